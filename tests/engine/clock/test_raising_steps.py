"""A step that raises after it has changed parameters is a step; one that raises before is none."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import sonde

STEPS = 9


class Raising(torch.optim.SGD):
    """Raises in some steps, before or after it has changed the parameters."""

    raises: frozenset[int] = frozenset()
    before = False
    calls = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.calls += 1
        bad = self.calls - 1 in self.raises
        if bad and self.before:
            raise ValueError("before")
        super().step(closure)
        if bad:
            raise ValueError("after")


def trained(model: nn.Module, optimizer: Raising) -> list[float]:
    """Train, and return the length of each change that a step has made."""
    changes = []
    for step in range(STEPS):
        before = [each.detach().clone() for each in model.parameters()]
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        with contextlib.suppress(ValueError):
            optimizer.step()
        moved = [now.detach() - then for now, then in zip(model.parameters(), before, strict=True)]
        changes.append(sum(float(each.double().square().sum()) for each in moved) ** 0.5)
    return changes


def made(raises: frozenset[int], *, before: bool = False) -> tuple[nn.Module, Raising]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = Raising(model.parameters(), lr=0.01)
    optimizer.raises, optimizer.before = raises, before
    return model, optimizer


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("raises", [frozenset({3}), frozenset({0}), frozenset({STEPS - 1}), frozenset(range(STEPS))], ids=str)
def test_a_step_that_raises_after_changing_parameters_has_its_rows(raises: frozenset[int], every: int) -> None:
    """At each logged step, and nothing is said, since nothing is missing."""
    expected = trained(*made(raises))
    model, optimizer = made(raises)
    with sonde.watch(model, optimizer, every=every, to="memory", rules=False, verbose=False) as inspector:
        trained(model, optimizer)
    steps, norms = inspector.run.scalar("update_norm")
    assert list(steps) == list(range(0, STEPS, every))
    assert list(norms) == pytest.approx([expected[step] for step in range(0, STEPS, every)], rel=1e-6)


@pytest.mark.parametrize(("raises", "logged"), [({4}, [0, 3, 7]), ({0, 4}, [0, 3, 6]), ({4, 7, 8}, [0, 3, 7])], ids=str)
def test_between_logged_steps_a_raised_step_counts_from_the_first_one_on_that_raises_at_a_logged_step(
    raises: set[int], logged: list[int]
) -> None:
    """Before, nothing sees a step begin there: the calls to ``step`` that have the numbers 0, 3 and 6 are *logged*."""
    expected = trained(*made(frozenset(raises)))
    model, optimizer = made(frozenset(raises))
    with sonde.watch(model, optimizer, every=3, to="memory", rules=False, verbose=False) as inspector:
        trained(model, optimizer)
    steps, norms = inspector.run.scalar("update_norm")
    assert list(steps) == [0, 3, 6]
    assert list(norms) == pytest.approx([expected[call] for call in logged], rel=1e-6)


def test_a_step_that_raises_before_it_changes_anything_is_none() -> None:
    """The next attempt makes the step."""
    model, optimizer = made(frozenset({2, 5}), before=True)
    expected = [change for change in trained(*made(frozenset({2, 5}), before=True)) if change]
    with sonde.watch(model, optimizer, every=1, to="memory", rules=False, verbose=False) as inspector:
        trained(model, optimizer)
    steps, norms = inspector.run.scalar("update_norm")
    assert list(steps) == list(range(STEPS - 2))
    assert list(norms) == pytest.approx(expected, rel=1e-6)


def test_events_of_a_step_that_raised_come_once() -> None:
    """A subscriber gets the parameter after the step, and no gradient twice."""
    model, optimizer = made(frozenset({1}))
    seen: list[tuple[str, int]] = []
    with sonde.observe(model, lambda event: seen.append((str(event.site), event.tick.step)), include="weight", ports=("param",)):
        trained(model, optimizer)
    assert seen == [("weight:param", step) for step in range(STEPS)]
