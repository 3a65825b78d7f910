"""``sonde.doctor`` says what observing does to a model, and leaves the model as it was."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch_words import words_of
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.checkup import judgements
from sonde.checkup.examination import Examination
from sonde.errors import ArgumentError, ModelError
from sonde.stats import Moments

QUICK: dict[str, Any] = {"seconds": 1e-6, "verbose": False}
"""Too little time for anything to be timed."""


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))


def classify(output: Tensor) -> Tensor:
    return functional.cross_entropy(output, torch.arange(6) % 3)


@pytest.fixture
def batch() -> Tensor:
    return torch.randn(6, 4)


def test_a_training_is_unchanged_and_seen_as_a_whole(batch: Tensor) -> None:
    model = net()
    found = sonde.doctor(model, batch, classify, torch.optim.AdamW(model.parameters()), **QUICK)
    results = {each.name: each.verdict for each in found.checks}
    assert results == dict.fromkeys(judgements.CHECKS, "ok") | {"compiled": "unknown", "time": "unknown"}
    assert found.ok
    assert found.findings == ()
    assert found.numbers["coverage"] == {"sites": 28, "delivered": 28}  # 5 layers x 2 ports, 6 parameters x 3
    assert found.numbers["unchanged"]["facts"] > 50


def test_everything_stays_as_it_was(batch: Tensor) -> None:
    """Parameters, gradients, buffers, the optimizer's state, random state, modes and hooks."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    classify(model(batch)).backward()
    optimizer.step()
    state, kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = [each.grad for each in model.parameters()]
    random = torch.get_rng_state()
    sonde.doctor(model, batch, classify, optimizer, **QUICK)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert all(each.grad is gradient for each, gradient in zip(model.parameters(), gradients, strict=True))
    assert str(kept) == str(optimizer.state_dict())
    assert torch.equal(random, torch.get_rng_state())
    assert model.training
    sonde.testing.assert_no_hooks_left(model)


class Shy(nn.Module):
    """Computes something else while a layer has a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (0.5 if self.layer._forward_hooks else 0.0)


def test_a_model_that_is_changed_by_hooks_is_bad(batch: Tensor) -> None:
    """With the first place, and the largest difference."""
    found = sonde.doctor(Shy(), batch, **QUICK)
    assert not found.ok
    (changed,) = found["unchanged"].findings
    assert changed.severity == "bad"
    assert "first pass 0: output" in changed.message
    assert changed.evidence["largest"] >= 0.49


class Changed(nn.Module):
    """Computes the output in another way while its layer has a hook."""

    def __init__(self, bare: Callable[[Tensor], Tensor], hooked: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.bare, self.hooked = nn.Linear(4, 3, dtype=torch.float64).requires_grad_(False), bare, hooked

    def forward(self, x: Tensor) -> Tensor:
        return (self.hooked if self.layer._forward_hooks else self.bare)(self.layer(x))


CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], str]] = {
    "nothing, by the same operators": (lambda y: y + 1.0, lambda y: y + 1.0, "ok"),
    "nothing, by other operators": (lambda y: y + 1.0, lambda y: y.sub(-1.0), "ok"),
    "the last bits, by the same operators": (lambda y: y + 1.0, lambda y: y + (1.0 + 1e-12), "bad"),
    "little, by the same operators": (lambda y: y + 1.0, lambda y: y + 1.0009, "bad"),
    "the last bits, by other operators": (lambda y: y + 1.0, lambda y: y.sub(-1.0 - 1e-12), "warn"),
    "little, by other operators": (lambda y: y + 1.0, lambda y: y.sub(-1.0009), "warn"),
    "more, by other operators": (lambda y: y + 1.0, lambda y: y.sub(-1.0011), "bad"),
    "the shape, by other operators": (lambda y: y + 1.0, lambda y: y.sub(-1.0)[:, :2], "bad"),
    "the strides, by other operators": (lambda y: y + 1.0, lambda y: y.sub(-1.0).mT.contiguous().mT, "bad"),
    "a zero into a NaN, by other operators": (lambda y: y * 0.0, lambda y: y.sub(y) / 0.0, "bad"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_a_warning_only_in_the_last_bits_and_on_another_path(change: str, batch: Tensor) -> None:
    """Where torch runs the same operators, no bit may differ; where it runs others, results differ by rounding."""
    bare, hooked, result = CHANGES[change]
    found = sonde.doctor(Changed(bare, hooked), batch.double(), **QUICK)
    check = found["unchanged"]
    assert check.verdict == result
    assert [each.severity for each in check.findings] == ([] if result == "ok" else [result])
    assert found.ok is (result == "ok" and "same operators" in change), "other operators are a warning, whatever they compute"


class Touchy(Shy):
    def forward(self, x: Tensor) -> Tensor:
        if self.layer._forward_hooks:
            raise RuntimeError("leave me alone")
        return super().forward(x)


def test_a_model_that_raises_under_watch_alone_is_bad(batch: Tensor) -> None:
    """And nothing else is asked."""
    found = sonde.doctor(Touchy(), batch, **QUICK)
    assert not found.ok
    assert "raises RuntimeError: leave me alone" in found["unchanged"].findings[0].message
    assert {each.verdict for each in found.checks if each.name != "unchanged"} == {"unknown"}


class Restless(nn.Module):
    """Gives another result at each call."""

    calls = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * next(Restless.calls)


def test_a_model_that_does_not_repeat_itself_is_told_apart(batch: Tensor) -> None:
    found = sonde.doctor(Restless(), batch, **QUICK)
    assert found.ok
    assert [each.rule for each in found["unchanged"].findings] == ["not_repeatable"]
    assert found["unchanged"].verdict == "note"


def test_a_fused_path_that_hooks_switch_off_is_named() -> None:
    """That of a transformer encoder in evaluation: by its operator, and by the layers."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    found = sonde.doctor(model, torch.randn(2, 3, 8), **QUICK)
    (path,) = found["paths"].findings
    assert "_transformer_encoder_layer_fwd x 2 does not run" in path.message
    assert path.site == "layers.0:output"
    assert "layers.1" in path.message
    assert {cost.lens for cost in found.costs} == {"moments_eval"}


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / x.abs().max().item()


def test_reads_of_the_model_are_not_sondes(batch: Tensor) -> None:
    found = sonde.doctor(Reading(), batch, lenses=sonde.lens.moments(), **QUICK)
    assert found["reads"].words.endswith("the model, the loss and the optimizer 1")
    assert found["reads"].verdict == "ok"


def test_what_is_not_covered_is_said_with_the_reason(batch: Tensor) -> None:
    found = sonde.doctor(Reading(), batch, **QUICK)
    assert found["coverage"].verdict == "note"
    (unused,) = [each for each in found["coverage"].findings if each.site == "unused:output"]
    assert "never called" in unused.message


def test_an_observer_that_fails_is_bad(batch: Tensor) -> None:
    class Broken(Moments):
        def measure(self, tensor: Tensor) -> Tensor:
            raise RuntimeError("broken")

    lens = sonde.lens.Lens("broken", Broken(), ("output",))
    found = sonde.doctor(net(), batch, lenses=lens, **QUICK)
    assert not found.ok
    assert "broken" in found["coverage"].findings[0].message


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        return {"y": self.layer(x * scale), "loss": self.layer(x).square().sum()}


class Phases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


SIBLINGS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "a dict, double, a loss of its own": (Keyed, lambda: {"x": torch.ones(2, 4).double(), "scale": torch.ones(4).double()}),
    "complex": (Phases, lambda: torch.ones(2, 4)),
    "no parameters": (nn.ReLU, lambda: torch.ones(2, 4)),
    "all frozen": (lambda: nn.Linear(4, 3).requires_grad_(False), lambda: torch.ones(2, 4)),
    "tied": (lambda: nn.Sequential(layer := nn.Linear(4, 4), nn.Tanh(), layer), lambda: torch.ones(2, 4)),
    "evaluation": (lambda: net().eval(), lambda: torch.ones(6, 4)),
    "in place": (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), lambda: torch.randn(6, 4)),
}


@pytest.mark.parametrize("case", SIBLINGS)
def test_other_kinds_of_models_are_unchanged_too(case: str) -> None:
    make, arguments = SIBLINGS[case]
    found = sonde.doctor(make(), arguments(), **QUICK)
    assert found["unchanged"].verdict == found["paths"].verdict == "ok"


def test_inference_mode_around_it_changes_nothing(batch: Tensor) -> None:
    model = net()
    with torch.inference_mode():
        found = sonde.doctor(model, batch, classify, **QUICK)
    assert found["unchanged"].verdict == "ok"
    assert found.numbers["coverage"]["sites"] == found.numbers["coverage"]["delivered"]


def test_errors_say_what_to_do(batch: Tensor) -> None:
    model = net()
    with pytest.raises(ModelError):
        sonde.doctor("model", batch)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="load its weights first"):
        sonde.doctor(nn.Linear(3, 2, device="meta"), batch)
    with pytest.raises(ArgumentError, match="run the model once"):
        sonde.doctor(nn.LazyLinear(3), batch)
    for wrong in ({"every": 0}, {"compile": "yes"}, {"seconds": 0}, {"loss_fn": 3}, {"optimizer": 3}):
        with pytest.raises(ArgumentError, match=f"^{next(iter(wrong))}="):
            sonde.doctor(model, batch, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="scalar"):
        sonde.doctor(model, batch, lambda output: output, **QUICK)


def test_what_the_model_raises_comes_out(batch: Tensor) -> None:
    with pytest.raises(RuntimeError, match=words_of(lambda: nn.Linear(5, 2)(batch))):
        sonde.doctor(nn.Linear(5, 2), batch, **QUICK)


def test_the_result_is_data_text_and_a_page(batch: Tensor) -> None:
    found = sonde.doctor(Reading(), batch, **QUICK)
    plain = json.loads(found.to_json())
    assert plain == found.to_dict()
    assert plain["ok"] is True
    assert [each["name"] for each in plain["checks"]] == list(judgements.CHECKS)
    text = found.to_text(80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "What observing does to Reading" in text
    assert repr(found) == found.to_text()
    assert "sonde.doctor" in found.to_html()
    assert list(found) == found.checks
    with pytest.raises(sonde.errors.UnknownSiteError, match="unchanged"):
        found["unchaged"]


def test_each_lens_and_port_has_its_rows_and_bytes(batch: Tensor) -> None:
    """A row is 1 + width numbers of 8 bytes, one for each site."""
    found = sonde.doctor(net(), batch, classify, lenses=sonde.lens.moments(), **QUICK)
    size = 8 * (1 + Moments().width)
    rows = {cost.port: cost.rows for cost in found.costs}
    assert rows == {"output": 5, "grad_output": 5, "param": 6, "grad": 6, "update": 6}
    assert all(cost.bytes == size * cost.rows and cost.difference is None for cost in found.costs)


@pytest.mark.slow
def test_times_are_measured_where_there_is_time(batch: Tensor) -> None:
    found = sonde.doctor(net(), batch, classify, seconds=60, verbose=False)
    assert found.numbers["time"]["bare"] > 0
    assert found.numbers["time"]["rounds"] >= 5
    assert all(cost.difference is not None for cost in found.costs)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.linear(x))


def in_place() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), Block(), Block())
    for block in (model[1], model[2]):
        block.compile(backend="aot_eager")
    return model


COMPILED: dict[str, Callable[[], nn.Module]] = {
    "a Sequential": lambda: torch.compile(net(), backend="aot_eager"),
    "a module": lambda: torch.compile(Block(), backend="aot_eager"),
    "blocks, in place": in_place,
    "a part": lambda: nn.Sequential(torch.compile(nn.Linear(4, 4), backend="aot_eager"), nn.ReLU()),
}


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("case", COMPILED)
def test_a_compiled_model_has_one_graph_for_each_state(case: str, batch: Tensor) -> None:
    found = sonde.doctor(COMPILED[case](), batch, **QUICK)
    assert found["compiled"].words.startswith("1 graph without an observer, 2 under watch")
    assert found["unchanged"].verdict == found["compiled"].verdict == found["coverage"].verdict == "ok"


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_model_that_is_not_compiled_can_be(batch: Tensor) -> None:
    """By inductor."""
    found = sonde.doctor(nn.Sequential(nn.Linear(4, 3)), batch, compile=True, **QUICK)
    assert found["compiled"].words.startswith("1 graph without an observer, 2 under watch")
    assert found["unchanged"].verdict == found["compiled"].verdict == "ok"


def test_with_compile_false_the_copies_of_a_compiled_model_run_as_python(batch: Tensor) -> None:
    def never(graph: Any, inputs: Any) -> Any:
        raise AssertionError("compiled")

    found = sonde.doctor(torch.compile(net(), backend=never), batch, classify, compile=False, **QUICK)
    assert found["compiled"].words == "compile=False"
    assert "plain Python" in found["paths"].words


def test_numbers_of_an_examination_are_computed_once(batch: Tensor) -> None:
    from sonde.diagnosis.preflight.subject import Subject

    examined = Examination(Subject(net(), batch, classify, None, 1, 1), None, 10, 1e-6, None, {})
    assert examined.steps is examined.steps
