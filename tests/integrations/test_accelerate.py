"""Loops that use Accelerate: ``watch`` before and after ``prepare``, and the tracker, with the real package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde
from sonde.errors import ArgumentError
from sonde.inspector import Inspector
from sonde.integrations import AccelerateTracker

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
BATCHES = X.split(4)


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """Accelerate's state is one for the process."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))


def loader() -> Any:
    return DataLoader(TensorDataset(X), batch_size=4)


def rows(inspector: Inspector) -> list[Any]:
    return inspector.run.sql("SELECT * FROM moments WHERE layer <> '' AND layer <> '(root)' ORDER BY ALL").fetchall()


def by_hand(accumulate: int, bfloat16: bool, clip: float | None) -> tuple[nn.Module, Inspector]:
    model, optimizer = network()
    with sonde.watch(model, optimizer, every=2, to="memory", verbose=False) as inspector:
        for index, x in enumerate(BATCHES * 2):
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = loss_of(model, x)
            (loss / accumulate).backward()
            if (index + 1) % accumulate == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
    return model, inspector


@pytest.mark.parametrize("first", [True, False], ids=["watch first", "prepare first"])
@pytest.mark.parametrize(
    ("accumulate", "precision", "clip"),
    [
        pytest.param(2, "no", 0.1, id="accumulation and clipping"),
        pytest.param(1, "bf16", None, id="bfloat16", marks=pytest.mark.slow),
        pytest.param(1, "no", None, id="plain", marks=pytest.mark.slow),
    ],
)
def test_watch_before_and_after_prepare(first: bool, accumulate: int, precision: str, clip: float | None) -> None:
    """Numbers and bits of the same loop by hand; what ``accumulate`` leaves out is no step."""
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=accumulate)
    model, optimizer = network()
    settings: dict[str, Any] = {"every": 2, "to": "memory", "verbose": False}
    early = sonde.watch(model, optimizer, **settings) if first else None
    prepared, stepped, data = accelerator.prepare(model, optimizer, loader())
    inspector = early or sonde.watch(prepared, stepped, **settings)
    with inspector:
        for (x,) in [*data, *data]:
            with accelerator.accumulate(prepared), accelerator.autocast():
                accelerator.backward(loss_of(prepared, x))
                if clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), clip)
                stepped.step()
                stepped.zero_grad()
    mine, expected = by_hand(accumulate, precision == "bf16", clip)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), mine.parameters(), strict=True))
    assert rows(inspector) == rows(expected)
    assert inspector.run.scalar("grad_norm")[1].tolist() == expected.run.scalar("grad_norm")[1].tolist()


def test_the_tracker_records_the_loop() -> None:
    """From ``init_trackers`` to ``end_training``: the rows of ``watch``, the configuration, and what is logged."""
    model, optimizer = network()
    tracker = AccelerateTracker(model, every=2, to="memory", verbose=False)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    prepared, stepped, data = accelerator.prepare(model, optimizer, loader())
    accelerator.init_trackers("digits", config={"lr": 0.05})
    losses = []
    for index, (x,) in enumerate([*data, *data]):
        loss = loss_of(prepared, x)
        accelerator.backward(loss)
        stepped.step()
        stepped.zero_grad()
        losses.append(float(loss.detach()))
        accelerator.log({"loss": loss.detach(), "grad_norm": 3.0, "word": "text"}, step=index * 100)
    accelerator.log({"val_loss": 0.5, "accuracy": 0.75})
    assert accelerator.get_tracker("sonde", unwrap=True) is tracker.inspector
    accelerator.end_training()
    inspector = tracker.inspector
    assert inspector is not None
    assert not inspector.attached
    assert rows(inspector) == rows(by_hand(1, False, None)[1])
    steps, values = inspector.run.scalar("loss")
    assert (steps.tolist(), values.tolist()) == (list(range(12)), pytest.approx(losses))
    assert set(inspector.run.scalar("trainer/grad_norm")[1]) == {3.0}
    assert [inspector.run.scalar(name)[1].tolist() for name in ("val_loss", "accuracy")] == [[0.5], [0.75]]
    assert inspector.run.config == {"lr": 0.05}


def test_the_model_may_come_after_the_accelerator() -> None:
    """As in most scripts; without any model the first ``log`` says what is missing."""
    tracker = AccelerateTracker(every=1, to="memory", verbose=False)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("digits", config={"lr": 0.05})
    with pytest.raises(ArgumentError, match=r"tracker.watch\(model\)"):
        accelerator.log({"loss": 1.0})
    prepared, stepped = accelerator.prepare(*network())
    tracker.watch(prepared)
    accelerator.backward(loss_of(prepared, X))
    stepped.step()
    accelerator.end_training()
    assert tracker.inspector is not None
    assert tracker.inspector.run.scalar("grad_norm")[0].tolist() == [0]
    assert tracker.inspector.run.config == {"lr": 0.05}
    with pytest.raises(ArgumentError, match="Nearest: every"):
        AccelerateTracker(evry=1)


def test_alerts_are_passed_on_by_the_tracker() -> None:
    """``on_alert=`` is an argument of ``watch``, as all others."""
    told: list[Any] = []
    model, optimizer = network()
    for part in model.modules():
        if isinstance(part, nn.Linear):
            nn.init.constant_(part.bias, -1e6)
    tracker = AccelerateTracker(model, every=1, to="memory", verbose=False, on_alert=told.append)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    prepared, stepped, data = accelerator.prepare(model, optimizer, loader())
    accelerator.init_trackers("digits")
    for (x,) in [*data, *data]:
        accelerator.backward(loss_of(prepared, x))
        stepped.step()
        stepped.zero_grad()
    accelerator.end_training()
    assert "update_large" in {finding.rule for finding in told}
