"""Losses and metrics: which step they belong to, what they are averaged over, and that nothing waits for a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.inspector.training import small, train
from torch import nn

from sonde import lens
from sonde.inspector import Inspector, watch


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("after", [True, False], ids=["pushed after the step", "pushed before the step"])
def test_a_loss_is_averaged_over_the_interval_of_its_logged_step(every: int, after: bool) -> None:
    """Each row is the mean over the steps since the last logged one, whenever in its step a loss is pushed."""
    model, optimizer = small()
    losses = []
    with watch(model, every=every, to="memory", verbose=False) as inspector:
        for _ in range(8):
            loss = model(torch.randn(5, 4)).square().mean()
            losses.append(loss.item())
            if not after:
                inspector.push_loss(loss, train=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if after:
                inspector.push_loss(loss, train=True)
    steps, values = inspector.run.scalar("loss")
    ends = [*range(0, 8, every), *([7] if 7 % every else [])]
    assert steps.tolist() == ends
    starts = [0, *(end + 1 for end in ends[:-1])]
    assert values.tolist() == pytest.approx([np.mean(losses[a : b + 1]) for a, b in zip(starts, ends, strict=True)])


def test_what_is_not_running_is_a_row_each() -> None:
    """Several values in one step stay apart."""
    model, optimizer = small()
    with watch(model, every=1, to="memory", verbose=False) as inspector:
        for value in (1.0, torch.tensor(2.0), np.float32(3)):
            inspector.push_metric("size", value, running=False)
        train(model, optimizer, 1)
    assert inspector.run.scalar("size")[1].tolist() == [1.0, 2.0, 3.0]


def test_a_tensor_that_changes_later_is_recorded_as_it_was() -> None:
    """A running total that the loop goes on adding to."""
    model, optimizer = small()
    total = torch.zeros((), dtype=torch.float64)
    with watch(model, every=1, to="memory", verbose=False) as inspector:
        for _ in range(3):
            train(model, optimizer, 1)
            total += 1
            inspector.push_metric("total", total)
    assert inspector.run.scalar("total")[1].tolist() == [1.0, 2.0, 3.0]


def test_evaluation_belongs_to_the_step_before_it_and_to_its_epoch() -> None:
    """Also where the epoch ends after it."""
    model, optimizer = small()
    inspector = Inspector(module=model, to="memory", verbose=False, non_train_loss_str="held_out")
    for epoch in inspector.range(2):
        train(model, optimizer, 3, inspector)
        model.eval()
        for value in (1.0, 2.0):
            inspector.push_loss(value + epoch, train=False)
        inspector.push_metric("accuracy", 0.5)
        model.train()
    inspector.detach()
    rows = [row for row in inspector.run.table("scalars").to_pylist() if row["name"] in ("held_out", "accuracy")]
    found = {(row["name"], row["epoch"], row["step"], row["value"]) for row in rows}
    assert found == {("held_out", 0, 2, 1.5), ("held_out", 1, 5, 2.5), ("accuracy", 0, 2, 0.5), ("accuracy", 1, 5, 0.5)}


def test_a_loss_module_is_heard_by_itself() -> None:
    """In training and, without gradients, in evaluation; its hook goes with the inspector."""
    model, optimizer = small()
    criterion = nn.MSELoss()
    with watch(
        model, every=1, to="memory", verbose=False, lenses=[lens.moments(), lens.LossMetrics(loss_fn=criterion)]
    ) as inspector:
        losses = []
        for _ in range(2):
            loss = criterion(model(torch.randn(5, 4)), torch.zeros(5, 2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            held_out = criterion(model(torch.randn(5, 4)), torch.zeros(5, 2)).item()
    assert inspector.run.scalar("loss")[1].tolist() == pytest.approx(losses)
    assert inspector.run.scalar("val_loss")[1].tolist() == pytest.approx([held_out])
    assert not criterion._forward_hooks


def test_many_pushes_without_a_logged_step_do_not_pile_up() -> None:
    """They are written in between."""
    model, _ = small()
    with watch(model, every=10, to="memory", verbose=False) as inspector:
        for value in range(3000):
            inspector.push_metric("noise", float(value), running=False)
        assert len(inspector._training._pushed) < 1100  # type: ignore[union-attr]
    assert len(inspector.run.scalar("noise")[0]) == 3000
