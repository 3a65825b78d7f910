"""Which steps are logged, and that nothing happens in the others."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspector.training import small, train
from torch import nn

from sonde import Limits
from sonde.engine.clock.pace import Pace
from sonde.engine.clock.turns import Turns
from sonde.errors import ArgumentError
from sonde.inspector import Inspector, watch
from sonde.schedule import EverySeconds, Tick, Warmup, in_epochs, schedule_of


def logged(every: Any, steps: int) -> list[int]:
    schedule = schedule_of(every)
    return [step for step in range(steps) if schedule.wants(Tick(step=step), 0.0)]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (5, [0, 5, 10]),
        (range(3, 12, 4), [3, 7, 11]),
        ([10, 2, 2], [2, 10]),
        ({7}, [7]),
        (iter([4, 9]), [4, 9]),
        (count(1, 6), [1, 7]),
        (lambda tick: tick.step in (1, 2), [1, 2]),
        (Warmup(3, then=4), [0, 1, 2, 4, 8]),
        (Warmup(2, then=Warmup(4, then=10)), [0, 1, 2, 3, 10]),
        (Warmup(1, then=[5]), [0, 5]),
        (np.int64(5), [0, 5, 10]),
        (np.array(5), [0, 5, 10]),
        (np.array([10, 2]), [2, 10]),
        (torch.tensor([2, 10]), [2, 10]),
        ([np.int32(2), 10], [2, 10]),
        (iter(np.array([4, 9])), [4, 9]),
        (Warmup(np.uint8(3), then=np.int64(4)), [0, 1, 2, 4, 8]),
    ],
)
def test_what_every_means(every: Any, expected: list[int]) -> None:
    """Numbers, ranges, collections, iterators that may be endless, callables, dense at first."""
    assert logged(every, 12) == expected


@pytest.mark.parametrize(
    "every",
    [
        1,
        5,
        range(3, 40, 4),
        range(40, 3, -7),
        range(9, 9 + 1),
        [10, 2, 33],
        Warmup(3, then=7),
        Warmup(2, then=[20]),
        "10s",
        pytest.param(iter([4, 9]), id="an iterator"),
    ],
    ids=str,
)
def test_no_step_is_logged_before_the_next_one(every: Any) -> None:
    """What a schedule says of steps that are to come never passes over one that it wants, and is exact where steps are listed."""
    schedule = schedule_of(every)
    wanted = [step for step in range(50) if schedule.wants(Tick(step=step), 10.0)]
    for step in range(50):
        following = schedule.next(step)
        assert following >= step
        assert not [each for each in wanted if step <= each < following]
        if isinstance(every, int | range | list):
            assert following == min((each for each in wanted if each >= step), default=following)


def test_steps_are_not_looked_at_until_one_may_be_logged() -> None:
    """Between logged steps nothing is decided and timed, but before the next; a change of the schedule is heeded at once."""
    model, optimizer = small()
    with watch(model, every=20, to="memory", verbose=False) as inspector:
        (watched,) = inspector._training.watched
        timed: list[int] = []
        leave = watched.meter.leave

        def left(*, logged: bool) -> None:
            timed.append(watched.clock.step)
            leave(logged=logged)

        watched.meter.leave = left
        train(model, optimizer, 41)
        assert timed == [1, 19, 20, 21, 39, 40, 41]  # the end of 0, the step before 20 and its end, of 20, ...
        train(model, optimizer, 4)
        inspector.every = 3
        train(model, optimizer, 5)
        assert watched.steps == 50
        assert watched.logged == 4
    assert sorted(set(inspector.run.table("moments")["step"].to_pylist())) == [0, 20, 40, 48]


@pytest.mark.parametrize("whole", [True, False], ids=["model", "block"])
def test_steps_of_a_compiled_model_are_logged_by_a_schedule(whole: bool) -> None:
    """Its clock never sleeps, as its hooks are built in; what belongs to a step is there in each that is logged."""
    torch.compiler.reset()
    model, _ = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=3, to="memory", verbose=False, strict=True) as inspector:
        (model if whole else next(model.children())).compile(backend="eager")
        train(model, optimizer, 8)
    rows = inspector.run.table("moments").to_pylist()
    for port in ("output", "grad", "update"):
        assert sorted({row["step"] for row in rows if row["site"].endswith(f":{port}")}) == [0, 3, 6]
    torch.compiler.reset()


@pytest.mark.parametrize("every", [5, lambda tick: tick.step % 5 == 0], ids=["known", "asked"])
def test_two_optimizers_of_one_step_are_logged_together(every: Any) -> None:
    """Also where the steps between are not looked at: no row and no interval of another step comes of the second one."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    with watch(model, every=every, to="memory", verbose=False, strict=True) as inspector:
        for step in range(12):
            loss = model(torch.ones(3, 4)).square().mean()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            inspector.push_loss(float(step), train=True)
        run = inspector.run
    rows = run.table("moments").to_pylist()
    updated = sorted((row["step"], row["site"]) for row in rows if row["site"].endswith(":update"))
    names = ["0.bias:update", "0.weight:update", "1.bias:update", "1.weight:update"]
    assert updated == [(step, name) for step in (0, 5, 10) for name in names]
    steps, losses = run.scalar("loss")
    assert steps.tolist() == [0, 5, 10, 11]
    assert losses.tolist() == [0.0, 3.0, 8.0, 11.0]
    assert run.scalar("update_norm")[0].tolist() == [0, 5, 10]


def test_an_iterator_is_asked_no_further_than_needed_and_must_ascend() -> None:
    """The step after the one that runs is all that is taken."""
    taken: list[int] = []

    def steps() -> Any:
        for step in (2, 5, 4):
            taken.append(step)
            yield step

    schedule = schedule_of(steps())
    assert [schedule.wants(Tick(step=step), 0.0) for step in range(4)] == [False, False, True, False]
    assert taken == [2, 5]
    with pytest.raises(ArgumentError, match="step 4 after 5"):
        schedule.wants(Tick(step=6), 0.0)


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10.0), ("500ms", 0.5), ("1.5 min", 90.0), ("2m", 120.0), ("1h", 3600.0)])
def test_times_are_read(text: str, seconds: float) -> None:
    """With their units."""
    assert schedule_of(text) == EverySeconds(seconds)


def test_a_time_is_counted_from_the_last_logged_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step is logged, then each that begins so much later."""
    now = iter([0.0, 4.0, 9.9, 10.0, 12.0, 20.0])
    monkeypatch.setattr("sonde.engine.clock.pace.time.monotonic", lambda: next(now))
    pace = Pace(schedule_of("10s"))
    found = []
    for step in range(6):
        pace.begin(Tick(step=step), Turns())
        found.append(pace.on)
    assert found == [True, False, False, True, False, True]


def test_the_interval_can_be_changed_while_it_runs() -> None:
    """From the next step on; the number is read back."""
    model, optimizer = small()
    with watch(model, every=4, to="memory", verbose=False) as inspector:
        train(model, optimizer, 6)
        assert inspector.every == 4
        inspector.every = 1
        assert inspector.every == 1
        train(model, optimizer, 3)
        inspector.every = range(10, 12)
        train(model, optimizer, 4)
        with pytest.raises(ArgumentError):
            inspector.every = 0
    assert inspector.run.scalar("grad_norm")[0].tolist() == [0, 4, 7, 8, 9, 10, 11]


def test_no_layer_has_a_hook_between_logged_steps() -> None:
    """Only the root counts its calls, and keeps the gradients at its outputs."""
    model, optimizer = small()
    with watch(model, every=lambda tick: tick.step == 1, to="memory", verbose=False):
        hooked = []
        for _ in range(3):
            hooked.append(sum(len(module._forward_hooks) for module in list(model.modules())[1:]))
            train(model, optimizer, 1)
        assert hooked[0] == 0
        assert hooked[1] >= 3
        assert hooked[2] == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"is_active_fn": 2},
        {"is_active_fn": lambda number: number in (2, 4)},
        {"every": lambda tick: tick.epoch % 2 == 1},
    ],
    ids=["number", "callable", "tick"],
)
def test_steps_can_be_logged_in_some_epochs_only(settings: dict[str, Any]) -> None:
    """From the first step of an epoch to its last, whatever happened between the last step and the end of the epoch before."""
    model, optimizer = small()
    with Inspector(module=model, to="memory", verbose=False, **settings) as inspector:
        for _ in range(4):
            for _ in range(3):
                train(model, optimizer, 1)
            with torch.no_grad():
                model.eval()(torch.randn(2, 4))
            model.train()
            inspector.tick_epoch()
    found = inspector.run.sql("SELECT DISTINCT epoch, step FROM moments ORDER BY step").fetchall()
    assert found == [(1, 3), (1, 4), (1, 5), (3, 9), (3, 10), (3, 11)]


def test_a_second_decision_about_a_step_counts_from_the_same_logged_step_as_the_first() -> None:
    """Else the first decision would be the logged step that the second waits for."""
    pace = Pace(in_epochs(EverySeconds(1000.0), lambda number: number < 3))
    pace.begin(Tick(epoch=0), Turns())
    assert pace.on
    pace.decide_again(Tick(epoch=1), Turns())
    assert pace.on
    pace.decide_again(Tick(epoch=2), Turns())
    assert not pace.on


def test_an_epoch_that_ends_within_a_logged_step_leaves_the_step_logged_whole() -> None:
    """Its passes have been observed: they are no part of another step."""
    model, optimizer = small()
    with Inspector(module=model, to="memory", verbose=False, is_active_fn=lambda number: number in (1, 3)) as inspector:
        model(torch.randn(5, 4)).sum().backward()
        inspector.tick_epoch()
        optimizer.step()
        train(model, optimizer, 1)
        inspector.tick_epoch()
        train(model, optimizer, 1)
    assert inspector.run.series("0:output", "count", family="moments")[1].tolist() == [40.0, 40.0]
    assert inspector.run.series("0.weight:update", "count", family="moments")[0].tolist() == [0, 2]


def test_epochs_go_with_an_interval_that_is_set_later_and_not_with_a_budget() -> None:
    model, optimizer = small()
    with Inspector(module=model, to="memory", verbose=False, is_active_fn=2) as inspector:
        inspector.every = 2
        assert inspector.every == 2
        train(model, optimizer, 3)
        inspector.tick_epoch()
        train(model, optimizer, 3)
    assert inspector.run.sql("SELECT DISTINCT step FROM moments").fetchall() == [(4,)]
    with pytest.raises(ArgumentError, match="leave is_active_fn= out"):
        Inspector(is_active_fn=2, limits=Limits(budget="1%"))
    for wrong in (0, True, "2", 1.5):
        with pytest.raises(ArgumentError, match="is_active_fn="):
            Inspector(is_active_fn=wrong)  # type: ignore[arg-type]
