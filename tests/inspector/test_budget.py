"""The share of step time that observing takes, with a clock that the test turns; and the interval that follows it."""

from __future__ import annotations

import pytest
from tests.inspector.training import small, train

from sonde import Limits
from sonde.inspector import watch
from sonde.inspector.budget import Meter, share_of


class Clock:
    """``perf_counter`` by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("sonde.inspector.budget.time.perf_counter", lambda: self.now)


def walk(meter: Meter, clock: Clock, steps: int, every: int, *, step: float, extra: float, work: float) -> None:
    """*steps* of *step* seconds; logged ones take *extra* longer, and *work* between steps."""
    for number in range(steps):
        logged = number % every == 0
        clock.now += step + (extra if logged else 0.0)
        meter.enter()
        clock.now += work if logged else 0.0
        meter.leave(logged=logged)


def test_the_share_is_what_logging_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 100, 30 more when it is logged and 20 between steps: 50 in ten steps are 5 %."""
    clock, meter = Clock(monkeypatch), Meter()
    assert meter.share(0.1) is None
    walk(meter, clock, 60, 10, step=100.0, extra=30.0, work=20.0)
    assert meter.step_time == pytest.approx(100.0)
    assert meter.cost == pytest.approx(50.0)
    assert meter.share(0.1) == pytest.approx(0.05)
    assert meter.interval_for(0.01) == 50
    assert meter.interval_for(0.9) == 2


def test_where_every_step_is_logged_there_is_none_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing is claimed."""
    clock, meter = Clock(monkeypatch), Meter()
    walk(meter, clock, 30, 1, step=100.0, extra=30.0, work=20.0)
    assert meter.share(1.0) is None


def test_what_is_no_step_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an epoch, in which a checkpoint may be written."""
    clock, meter = Clock(monkeypatch), Meter()
    walk(meter, clock, 30, 3, step=100.0, extra=30.0, work=20.0)
    for _ in range(10):
        clock.now += 100_000.0
        meter.forget_step()
        walk(meter, clock, 3, 3, step=100.0, extra=30.0, work=20.0)
    assert meter.share(1 / 3) == pytest.approx(1 / 6, rel=0.01)


@pytest.mark.parametrize(("budget", "share"), [("1%", 0.01), ("0.5 %", 0.005), (0.02, 0.02), (None, None)])
def test_budgets_are_read(budget: str | float | None, share: float | None) -> None:
    """As text or number."""
    assert share_of(budget) == share


def test_the_interval_keeps_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows where observing costs too much, and is read back; the share is in the run."""
    cost = 0.25
    monkeypatch.setattr(Meter, "step_time", property(lambda self: 1.0))
    monkeypatch.setattr(Meter, "cost", property(lambda self: cost))
    model, optimizer = small()
    with watch(model, every=1, to="memory", limits=Limits(budget="1%"), verbose=False) as inspector:
        assert inspector.every == 2
        train(model, optimizer, 1)
        assert inspector.every == 25
        train(model, optimizer, 25)
        cost = 0.05
        train(model, optimizer, 25)
        assert inspector.every == 5
        assert inspector.overhead == pytest.approx(0.01)
    steps, shares = inspector.run.scalar("overhead")
    assert steps.tolist() == [0, 25, 50]
    assert shares.tolist() == pytest.approx([0.125, 0.01, 0.002])
