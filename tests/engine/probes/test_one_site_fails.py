"""What fails at one site stops there, whether a statistic, a function or a preprocessor; all other sites go on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.quick import quick
from torch import Tensor, nn

import sonde
from sonde.engine import Probe
from sonde.engine.probes import statistic_hooks
from sonde.errors import ObservationWarning
from sonde.preprocessor import AbstractForwardPreprocessor as Preprocessor
from sonde.stats import Column, Field, Statistic

FAILURES = ["raise", "operator", "index", "shape"]
STEPS = 3


class Total(Statistic):
    """The sum; fails for tensors whose last axis is seven long, from addition number *begin* on."""

    fields = (Field("total"),)

    def __init__(self, how: str, begin: int = 0) -> None:
        self.how = how
        self.begin = begin
        self._seen = 0

    def measure(self, tensor: Tensor) -> Tensor:
        if tensor.shape[-1] == 7:
            if self.begin:
                self._seen += 1
            if self._seen >= self.begin:
                if self.how == "raise":
                    raise ValueError("seven")
                if self.how == "operator":
                    tensor = tensor + torch.zeros(3, device=tensor.device)
                if self.how == "index":
                    tensor = tensor.select(5, 0)
                if self.how == "shape":
                    return tensor.double().flatten()
        return tensor.double().sum().reshape(1)

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        return {"total": columns["total"]}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 7), nn.Linear(7, 2))


def train(model: nn.Module) -> list[Tensor]:
    """Run some steps; return the gradients."""
    torch.manual_seed(1)
    for _ in range(STEPS):
        model(torch.randn(3, 4)).sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def by_site(probe: Probe) -> dict[str, tuple[int, Any]]:
    return {str(row["site"]): (row["calls"], row.get("total")) for row in probe.rows()}


CASES = list(itertools.product(FAILURES, (None, False, True), (False, True)))
QUICK = [(how, None, measures) for how in FAILURES for measures in (False, True)]
QUICK += [("raise", False, False), ("shape", True, True), ("index", False, True), ("operator", True, False)]


@pytest.mark.parametrize(("how", "compiled", "measures"), quick(CASES, *QUICK))
def test_a_statistic_that_fails_at_one_layer_stops_there(
    how: str, compiled: bool | None, *, measures: bool, fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: Any = ("output", "grad_output")
    if measures:  # as on an accelerator
        monkeypatch.setattr(statistic_hooks, "is_fused", lambda tensor: True)
    plain, whole = network(), network()
    expected = train(plain)
    sound = sonde.observe(whole, Total("never"), ports=ports)
    train(whole)
    model = network()
    if compiled is not None:
        model.compile(backend="aot_eager", fullgraph=compiled)
    with pytest.warns(
        ObservationWarning, match="nothing more is observed at 1:output.*other sites and the training go on"
    ) as caught:
        probe = sonde.observe(model, Total(how), ports=ports)
        found = train(model)
    assert len(caught) == 1
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    failed = {"1:output", "1:grad_output"}
    rows = by_site(probe)
    assert {site for site, (count, _) in rows.items() if not count} == failed
    for site, (count, total) in by_site(sound).items():
        if site not in failed:
            assert rows[site] == (count, pytest.approx(total, rel=1e-6, abs=1e-6))
    assert probe.attached
    assert {str(error.site) for error in probe.errors} == failed
    why = {str(line.site): line.reason for line in probe.coverage()}
    assert {site for site, reason in why.items() if "stopped" in reason} == failed


def test_additions_before_the_failure_stay() -> None:
    model = network()
    with pytest.warns(ObservationWarning, match="nothing more is observed at 1:output"):
        probe = sonde.observe(model, Total("raise", begin=3))
        train(model)
    assert {site: count for site, (count, _) in by_site(probe).items()} == {
        "(root):output": 3,
        "0:output": 3,
        "1:output": 2,
        "2:output": 3,
    }
    assert "ValueError: seven" in {str(line.site): line.reason for line in probe.coverage()}["1:output"]


class Pair(nn.Module):
    """Returns tensors of two shapes."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.cat([x, x[:, :3]], dim=1)


def test_a_leaf_that_fails_leaves_the_others() -> None:
    model = Pair()
    with pytest.warns(ObservationWarning, match=r"\(root\):output\[1\]"):
        probe = sonde.observe(model, Total("raise"))
        for _ in range(STEPS):
            model(torch.ones(2, 4))
    assert by_site(probe) == {"(root):output[0]": (3, 24.0), "(root):output[1]": (0, 0.0)}
    assert [line.reason for line in probe.coverage()] == ["[1] stopped: ValueError: seven"]


class Twice(nn.Module):
    """Calls one layer with two widths."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x).sum() + self.act(torch.cat([x, x[:, :3]], dim=1)).sum()


def test_a_call_that_fails_stops_all_calls_of_the_site() -> None:
    model = Twice()
    with pytest.warns(ObservationWarning, match="act:output"):
        probe = sonde.observe(model, Total("raise"), "act")
        for _ in range(STEPS):
            model(torch.ones(2, 4))
    first, second = probe.rows()[:2]
    assert (first["call"], first["calls"], first["total"]) == (0, 1, 8.0)
    assert second["calls"] == 0
    assert len(probe.errors) == 1


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_strict_raises(compiled: bool, fresh_compiler: None) -> None:
    model = network()
    if compiled:
        model.compile(backend="aot_eager")
    probe = sonde.observe(model, Total("raise"), strict=True)
    with pytest.raises(ValueError, match="seven"):
        train(model)
    probe.detach()


def test_every_site_may_fail_and_all_begin_again_when_attached_again() -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity())
    with pytest.warns(ObservationWarning, match="nothing more is observed") as caught:
        probe = sonde.observe(model, Total("raise"))
        model(torch.ones(1, 7))
    assert len(caught) == 1  # one place in the source has raised
    assert len(probe.errors) == 3
    assert not probe.coverage().observed
    probe.detach()
    probe.attach()
    model(torch.ones(1, 4))
    assert {count for count, _ in by_site(probe).values()} == {1}


def test_a_lens_goes_on_at_the_other_sites() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(ObservationWarning, match="nothing more is observed at 1:output"):
        inspector = sonde.watch(model, lenses=sonde.lens.Lens("total", Total("raise"), ("output",)), to="memory", every=1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
        inspector.detach()
    why = {str(line.site): (line.count, line.reason) for line in inspector.coverage()}
    assert {site: count for site, (count, _) in why.items()} == {"(root):output": 3, "0:output": 3, "1:output": 0, "2:output": 3}
    assert "ValueError: seven" in why["1:output"][1]
    assert [str(error.site) for error in inspector.errors] == ["1:output"]


# Subscribers, preprocessors, and rows that cannot be finished


class Widths(Preprocessor):
    """Sums of inputs by layer; raises at layers with seven outputs."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        if layer_output.shape[-1] == 7:
            raise ValueError("seven")
        self._sums[name] = self._sums.get(name, 0.0) + float(layer_output.detach().sum())

    @property
    def value(self) -> dict[str, Any]:
        return self._sums

    def reset(self) -> None:
        self._sums.clear()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_preprocessor_that_fails_at_one_layer_goes_on_at_the_others(compiled: bool, fresh_compiler: None) -> None:
    plain, model = network(), network()
    if compiled:
        model.compile(backend="aot_eager")
    expected = train(plain)
    preprocessor = Widths()
    with pytest.warns(ObservationWarning, match="nothing more is observed at 1:output: .*Widths.* raised ValueError") as caught:
        probe = sonde.observe(model, preprocessor)
        found = train(model)
    assert len(caught) == 1
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert set(preprocessor.value) == {"", "0", "2"}
    assert {str(line.site): line.count for line in probe.coverage()} == {
        "(root):output": STEPS,
        "0:output": STEPS,
        "1:output": 0,
        "2:output": STEPS,
    }


@pytest.mark.parametrize("port", ["input", "grad_input", "grad_output", "param", "update", "grad"])
def test_a_function_that_fails_at_one_site_goes_on_at_the_others(port: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen: list[str] = []

    def function(event: sonde.types.Event) -> None:
        seen.append(str(event.site))
        if event.name.startswith("1"):
            raise ValueError(event.name)

    with pytest.warns(ObservationWarning, match="nothing more is observed at 1"):
        probe = sonde.observe(model, function, r"^[12](\.bias)?$", ports=port)
        for _ in range(STEPS):
            train(model)
            optimizer.step()
    (error,) = probe.errors
    counts = {str(line.site): line.count for line in probe.coverage()}
    assert seen.count(str(error.site)) == 1
    assert counts.pop(str(error.site)) == 0
    assert set(counts.values()) == {seen.count(site) for site in counts} != {0}


def test_a_function_that_fails_everywhere_is_detached() -> None:
    model = network()
    with pytest.warns(ObservationWarning) as caught:
        probe = sonde.observe(model, lambda event: 1 / 0)
        train(model)
    assert len(caught) == 1  # one place in the source has raised
    assert len(probe.errors) == 4
    assert not probe.attached
    assert not any(module._forward_hooks for module in model.modules())


class Unfinished(Total):
    """The inverse of the sum; raises where the sum is zero."""

    def __init__(self) -> None:
        super().__init__("never")

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        if (columns["total"] == 0).any():
            raise ValueError("zero")
        return {"inverse": 1 / columns["total"]}


def zero_at_one_layer() -> nn.Sequential:
    model = network()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.zero_()
        model[2].bias.fill_(1.0)
    return model


def test_a_row_that_cannot_be_finished_leaves_the_others() -> None:
    model = zero_at_one_layer()
    probe = sonde.observe(model, Unfinished())
    train(model)
    with pytest.warns(ObservationWarning, match="there are no numbers at 1:output: .* raised ValueError: zero") as caught:
        rows = {row["site"]: row for row in probe.rows()}
    assert len(caught) == 1
    assert {site for site, row in rows.items() if "inverse" not in row} == {"1:output"}
    assert [str(error.site) for error in probe.errors] == ["1:output"]
    assert "ValueError: zero" in {str(line.site): line.reason for line in probe.coverage()}["1:output"]
    assert probe.rows()[0]["calls"] == STEPS  # asked again, without a second warning


def test_a_lens_that_cannot_finish_a_row_has_the_others() -> None:
    """In the run, in the coverage and in the errors; the row stops, and the others of the step are written."""
    model = zero_at_one_layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with pytest.warns(ObservationWarning, match=r"of total raised ValueError at 1:output: zero"):
        inspector = sonde.watch(model, lenses=sonde.lens.Lens("total", Unfinished(), ("output",)), to="memory", every=1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            train(model)
            optimizer.step()
        inspector.detach()
    sites = [row["site"] for row in inspector.run.table("total").to_pylist()]
    assert {site: sites.count(site) for site in sites} == {"(root):output": STEPS, "0:output": STEPS, "2:output": STEPS}
    assert [str(error) for error in inspector.errors] == ["total at 1:output: ValueError: zero"]
    why = {str(line.site): (line.count, line.reason) for line in inspector.coverage()}
    assert why["1:output"] == (0, "its rows could not be finished: ValueError: zero")
    assert {reason for site, (_, reason) in why.items() if site != "1:output"} == {""}
