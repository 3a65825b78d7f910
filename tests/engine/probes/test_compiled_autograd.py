"""Where torch compiles the backward pass, gradients are refused aloud; all else is observed, and the training is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd

import sonde
from sonde.errors import ObservationWarning
from sonde.stats import Moments

pytestmark = pytest.mark.usefixtures("fresh_compiler")

STEPS = 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, backend: str) -> list[float]:
    """Train with a compiled forward and backward pass; return losses, and then the parameters."""
    losses = []

    def passes(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch._dynamo.config.patch(compiled_autograd=True):  # type: ignore[no-untyped-call]
        compiled = torch.compile(passes, backend=backend)
        for step in range(STEPS):
            losses.append(compiled(torch.full((2, 3), 0.1 * step + 0.3)).item())
            optimizer.step()
            optimizer.zero_grad()
    return losses + [number for parameter in model.parameters() for number in parameter.flatten().tolist()]


@pytest.mark.parametrize(
    ("backend", "do"),
    [
        pytest.param("eager", lambda event: None, id="eager-function", marks=pytest.mark.slow),
        pytest.param("aot_eager", Moments(), id="aot_eager-statistic"),
        pytest.param("eager", Moments(), id="eager-statistic", marks=pytest.mark.slow),
        pytest.param("aot_eager", lambda event: None, id="aot_eager-function", marks=pytest.mark.slow),
    ],
)
def test_gradients_are_refused_and_all_other_ports_go_on(backend: str, do: Any) -> None:
    plain, model = network(), network()
    expected = train(plain, torch.optim.SGD(plain.parameters(), 0.1), backend)
    torch._dynamo.reset()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe = sonde.observe(model, do, ports=("output", "grad_output", "grad", "param"))
    with pytest.warns(ObservationWarning, match="no gradient is observed at .*compiled autograd.*grad_at_step=True") as caught:
        found = train(model, optimizer, backend)
    assert len(caught) == 1
    assert found == expected
    counts = {line.site.port: set[int]() for line in probe.coverage()}
    for line in probe.coverage():
        counts[line.site.port].add(line.count)
        assert ("compiled autograd" in line.reason) is (line.site.port in ("grad_output", "grad"))
    assert counts == {"output": {STEPS}, "grad_output": {0}, "grad": {0}, "param": {STEPS}}
    probe.detach()
    assert train(model, optimizer, backend)  # goes on


def test_gradients_at_steps_are_observed() -> None:
    """Rows of the run are those of an eager twin, but for the ports that are refused."""
    rows = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with sonde.observe(model, Moments(), ports=("grad", "update"), grad_at_step=True) as probe:
            if compiled:
                train(model, optimizer, "aot_eager")
            else:
                for step in range(STEPS):
                    model(torch.full((2, 3), 0.1 * step + 0.3)).square().sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        rows.append([(row["site"], row["calls"], row["mean"], row["std"]) for row in probe.rows()])
    for one, other in zip(*rows, strict=True):
        assert one[:2] == other[:2]
        assert one[2:] == pytest.approx(other[2:], rel=1e-5, abs=1e-6)  # of float32 numbers near 1


def train_with_backward_compiled(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> list[float]:
    """Train with an eager forward, and a backward pass that is compiled; return losses, and then the parameters."""
    losses = []
    for step in range(steps):
        loss: Tensor = model(torch.full((2, 3), 0.1 * step + 0.3)).square().sum()
        with compiled_autograd._enable(torch.compile(backend="aot_eager")):
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses + [number for parameter in model.parameters() for number in parameter.flatten().tolist()]


@pytest.mark.slow
def test_a_backward_pass_that_alone_is_compiled_is_noticed_after_its_first_step() -> None:
    plain, model = network(), network()
    expected = train_with_backward_compiled(plain, torch.optim.SGD(plain.parameters(), 0.1))
    torch._dynamo.reset()
    with (
        sonde.observe(model, Moments(), ports=("output", "grad_output", "grad")) as probe,
        pytest.warns(ObservationWarning, match="no gradient is observed at .*compiled autograd.*grad_at_step=True") as caught,
    ):
        found = train_with_backward_compiled(model, torch.optim.SGD(model.parameters(), 0.1))
    assert len(caught) == 1
    assert found == expected
    assert {line.count for line in probe.coverage() if line.site.port == "output"} == {STEPS}
    refused = [line for line in probe.coverage() if line.site.port != "output"]
    assert max(line.count for line in refused) <= 1  # the first pass was not known to be compiled
    assert all("compiled autograd" in line.reason for line in refused)


def test_a_model_whose_own_backward_passes_are_not_compiled_keeps_its_gradients() -> None:
    """Another model of the process has its backward passes compiled."""
    other, model = network(), network()
    with sonde.observe(model, Moments(), ports=("grad_output", "grad"), strict=True) as probe:
        for _ in range(STEPS):
            train_with_backward_compiled(other, torch.optim.SGD(other.parameters(), 0.1), steps=1)
            model(torch.ones(2, 3)).sum().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
    assert [line.count for line in probe.coverage()] == [STEPS] * 8
