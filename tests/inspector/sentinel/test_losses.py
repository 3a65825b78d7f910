"""A loss that is not finite is a fault, also where all gradients are finite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.inspector.sentinel.faults import BAD, batch, watched
from torch import Tensor, nn

import sonde
from sonde.errors import NonFiniteError, ObservationWarning
from sonde.inspector.sentinel.kept_step import read_step


def masked(logits: Tensor, switch: Tensor) -> Tensor:
    """Return a loss that is infinite where *switch* is 1: the class that was meant is masked. Its gradient is softmax - 1."""
    forbidden = torch.tensor([1.0, 0.0]).bool() & switch.bool()
    return nn.functional.cross_entropy(logits.masked_fill(forbidden, -torch.inf), torch.zeros(len(logits), dtype=torch.int64))


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class Classifier(nn.Module):
    """A classifier that returns its loss, as those of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, switch: Tensor) -> Output:
        logits = self.head(x)
        return Output(masked(logits, switch), logits)


def losses(inspector: sonde.Inspector) -> list[tuple[int, str]]:
    return [(each.step, each.site) for each in inspector.findings if each.rule == "nonfinite"]


def test_a_bad_loss_that_the_model_returns_is_found_with_finite_gradients(tmp_path: Path) -> None:
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watched(model, optimizer, tmp_path / "run") as inspector, pytest.warns(ObservationWarning) as warned:
        for step in range(40):
            optimizer.zero_grad()
            model(**batch(step)).loss.backward()
            assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters() if parameter.grad is not None)
            optimizer.step()
    (message,) = [str(each.message) for each in warned]
    assert f"step {BAD}: the loss is inf, and the gradients are finite." in message
    assert losses(inspector) == [(BAD, "(root):output")]
    kept = read_step(tmp_path / "run" / "nonfinite" / f"step-{BAD:08d}")
    assert (kept.loss, kept.gradients) == (torch.inf, {})
    found = sonde.replay(tmp_path / "run" / "nonfinite" / f"step-{BAD:08d}", Classifier())
    assert (found.operation, found.reached) == ("cross_entropy", ["the loss"])  # of a label whose class is masked


Loop = Callable[[nn.Module, torch.optim.Optimizer, sonde.Inspector, int], None]


def before(model: nn.Module, optimizer: torch.optim.Optimizer, inspector: sonde.Inspector, step: int) -> None:
    given = batch(step)
    loss = masked(model(given["x"]), given["switch"])
    inspector.push_loss(loss, train=True)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def after(model: nn.Module, optimizer: torch.optim.Optimizer, inspector: sonde.Inspector, step: int) -> None:
    given = batch(step)
    optimizer.zero_grad()
    loss = masked(model(given["x"]), given["switch"])
    loss.backward()
    optimizer.step()
    inspector.push_loss(loss.item(), train=True)


@pytest.mark.parametrize(("loop", "changed"), [(before, False), (after, True)], ids=["before the step", "after the step"])
def test_a_bad_loss_that_the_loop_pushes_is_laid_to_its_step(loop: Loop, changed: bool, tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watched(model, optimizer, tmp_path / "run", bad_steps="stop") as inspector:
        for step in range(BAD):
            loop(model, optimizer, inspector, step)
        weights = model.weight.detach().clone()
        with pytest.raises(NonFiniteError, match=f"step {BAD}: the loss is inf.*the loss function has made it") as raised:
            loop(model, optimizer, inspector, BAD)
    assert torch.equal(weights, model.weight) is not changed
    assert ("has stepped already" in str(raised.value)) is changed
    assert losses(inspector) == [(BAD, "(root):output")]
    folder = tmp_path / "run" / "nonfinite" / f"step-{BAD:08d}"
    (only,) = read_step(folder).passes
    assert torch.equal(only.args[0], batch(BAD)["x"])
    found = sonde.replay(folder, nn.Linear(4, 2), lambda logits: masked(logits, torch.tensor(1.0)))
    assert found.reached == ["the loss"]


def test_a_loss_that_stays_bad_is_said_once_and_losses_of_evaluations_never() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watched(model, optimizer, rules=False) as inspector, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for step in range(30):
            optimizer.zero_grad()
            model(batch(step)["x"]).square().mean().backward()
            optimizer.step()
            inspector.push_loss(torch.nan if step in (7, 8, 9, 17) else 1.0, train=True)
            inspector.push_loss(torch.nan, train=False)
            inspector.push_metric("accuracy", torch.inf)
    assert [str(each.message).split(":")[0] for each in warned] == ["step 7", "step 17"]
    assert [step for step, _ in losses(inspector)] == [7, 17]


def test_a_bad_loss_whose_step_a_scaler_skips_is_no_fault() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with watched(model, optimizer, scaler=scaler, rules=False) as inspector:
        for step in range(12):
            optimizer.zero_grad()
            loss = model(batch(step)["x"]).square().mean() * (torch.inf if step == 5 else 1)
            inspector.push_loss(loss, train=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert losses(inspector) == []


@pytest.mark.parametrize(
    ("wrong", "site", "says"),
    [
        (
            "target",
            "mean:grad_output",
            "mean:grad_output has 1 NaN or infinite elements at step 4, the first logged step with any: ",
        ),
        ("log", "", "loss is nan from step 4 on: all outputs that were recorded at this step are finite, so it arose behind them"),
        ("input", "body.0:output", "body.0:output has 16 NaN or infinite elements at step 4, the first logged step with any"),
        ("", "", ""),
    ],
)
def test_where_a_nan_arose_is_said_by_the_rows_of_the_step_if_parts_of_a_model_are_called(wrong: str, site: str, says: str) -> None:
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 16), nn.Tanh()), "mean": nn.Linear(16, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
            for step in range(8):
                data, target = torch.randn(8, 4), torch.randn(8, 1)
                (data if wrong == "input" else target)[0, 0] = math.nan if wrong in ("target", "input") and step == 4 else 1.0
                loss = (model["mean"](model["body"](data)) - target).square().mean()
                loss = loss + (-loss.detach()).log() if wrong == "log" and step == 4 else loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                inspector.push_loss(loss, train=True)
    found = [each for each in inspector.findings if each.rule == "nonfinite"]
    assert [(each.severity, each.site) for each in found] == [("bad", site)] * bool(wrong)
    assert not wrong or found[0].message.startswith(says)
    assert ("in the loss" in found[0].message or "the loss" in found[0].advice) == (wrong != "input") if wrong else True
