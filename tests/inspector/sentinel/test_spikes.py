"""A step whose loss or gradient norm is far beyond those before it is kept, if that was asked for."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import pytest
import torch
from tests.inspector.sentinel.delayed import device
from tests.inspector.sentinel.faults import batch, watched
from torch import nn

import sonde
from sonde import BadSteps
from sonde.errors import ArgumentError, ObservationWarning
from sonde.inspector.sentinel.kept_step import read_step
from sonde.inspector.sentinel.spikes import Spikes

SPIKE = 33


def train(model: nn.Module, inspector: sonde.Inspector, *, pushes: bool, scale: float = 1e3) -> dict[str, torch.Tensor]:
    """Train for 40 steps; in one of them the batch is *scale* times as large. Return the parameters before that one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    before = {}
    for step in range(40):
        x = batch(step)["x"]
        if step == SPIKE:
            x = x * scale
            before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if pushes:
            inspector.push_loss(loss, train=True)
        optimizer.step()
    return before


@pytest.mark.parametrize("pushes", [True, False], ids=["loss", "gradients alone"])
@pytest.mark.parametrize("delay", [None, 2], ids=["at once", "later"])
def test_the_step_of_a_spike_is_kept_as_before_it(
    pushes: bool, delay: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    with (
        device(monkeypatch, 0 if delay is None else delay) as far,
        monkeypatch.context() as inside,
        pytest.warns(
            ObservationWarning, match=rf"step {SPIKE}: the gradient norm jumped to .* x its median.*largest gradient"
        ) as warned,
    ):
        if delay is None:
            inside.setattr("sonde.inspector.sentinel.sentinel.answers_at_once", lambda _: True)
        with watched(model, None, tmp_path / "run", bad_steps=BadSteps(on_spike=10), rules=False) as inspector:
            before = train(model, inspector, pushes=pushes)
            far.may_wait = True
    assert len(warned) == 1
    (found,) = inspector.findings
    assert (found.rule, found.step, found.severity) == ("spike", SPIKE, "warn")
    assert found.site.endswith(":grad")
    assert set(found.evidence) == {"value", "median", "deviations"}
    folder = tmp_path / "run" / "spikes" / f"step-{SPIKE:08d}"
    kept = read_step(folder)
    assert (kept.gradients, kept.loss) == ({}, None)
    assert all(torch.equal(kept.parameters[name], parameter) for name, parameter in before.items())
    assert torch.equal(kept.passes[0].args[0], batch(SPIKE)["x"] * 1e3)
    assert sonde.replay(folder, nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))).ok
    assert any(each.rule == "spike" and each.step == SPIKE for each in inspector.run.findings)


def test_nothing_is_said_without_being_asked_or_of_a_steady_training() -> None:
    for options, scale in (({}, 1e3), ({"bad_steps": BadSteps(on_spike=10)}, 1.0)):
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        with watched(model, None, rules=False, **options) as inspector:
            train(model, inspector, pushes=True, scale=scale)
        assert not inspector.findings


def test_a_deviation_is_the_robust_one_of_logarithms() -> None:
    values = [1 + 0.1 * math.sin(7 * step) for step in range(40)]
    spikes = Spikes(6.0)
    assert [spikes.judge("norm", "gradient norm", value) for value in values] == [None] * 40
    found = spikes.judge("norm", "gradient norm", 5.0, "weight")
    assert found is not None
    logs = [math.log(value) for value in values]
    spread = 1.4826 * median([abs(log - median(logs)) for log in logs])
    assert found.deviations == pytest.approx((math.log(5.0) - median(logs)) / spread)
    assert found.median == pytest.approx(math.exp(median(logs)))
    assert spikes.judge("other", "loss", 5.0) is None
    assert spikes.judge("norm", "gradient norm", math.nan) is None


@pytest.mark.parametrize("given", [0, -1.0, True, math.nan])
def test_what_is_no_number_of_deviations_is_refused(given: float) -> None:
    with pytest.raises(ArgumentError, match="on_spike="):
        sonde.watch(nn.Linear(1, 1), to="memory", bad_steps=BadSteps(on_spike=given))
