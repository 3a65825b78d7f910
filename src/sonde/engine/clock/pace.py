"""Follow a schedule step by step: for all steps together or, where optimizers alternate, for the steps of each."""

from __future__ import annotations

import time
from collections.abc import Callable

from sonde.engine.clock.turns import Turns
from sonde.schedule import Schedule, Tick


class Pace:
    """Follows a schedule for one model, whose clock counts the steps.

    Statistics of pairs of steps observe a logged step and the one before it. Where optimizers alternate, the one before is that of
    the same optimizer, and the steps between are observed too.

    Attributes:
        schedule: decides, once for each step.
        on: whether the step that runs now is logged.
        in_pair: whether statistics of pairs observe this step: it is logged, or the next one may be.
        was_on, was_in_pair: the same of the step before.
        ends_pair: whether the step before was logged and had a step before it that statistics of pairs observed.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.on = self.was_on = False
        self.in_pair = self.was_in_pair = self.ends_pair = False
        self._begun: dict[int, float] = {}  # when the last logged step of each turn began; -1: of any
        self._begun_before = float("-inf")  # when the last logged step before the one that runs began
        self._seen = TurnsSeen()
        self._likely: set[int] = set()  # the turns that may make the step that runs, which is logged
        self._rare: dict[int, OneIn] = {}

    def follow(self, schedule: Schedule, turns: Turns, step: int) -> None:
        """Decide by *schedule* from *step* on."""
        self.schedule = schedule
        self._seen.forget_missed(turns, step)

    def begin(self, tick: Tick, turns: Turns) -> None:
        """Begin the step at *tick*.

        Raises:
            Exception: whatever the schedule raises; the step is not logged then.
        """
        self.was_on, self.was_in_pair, self.ends_pair = self.on, self.in_pair, self.on and self.was_in_pair
        if self.was_on and turns.last != -1:
            self._seen.note(turns, tick.step)
            self._begun[turns.last] = self._begun[-1]
        if self.was_on:
            for rare in self._rare.values():
                rare.end(turns.last)
        self._begun_before = self._begun.get(-1, float("-inf"))
        self._decide(tick, turns)

    def decide_again(self, tick: Tick, turns: Turns) -> None:
        """Decide again whether the step of :meth:`begin` is logged: an epoch has ended, and *tick* is of the new one.

        Raises:
            Exception: whatever the schedule raises; the step is not logged then.
        """
        self._begun[-1] = self._begun_before
        self._decide(tick, turns)

    def _decide(self, tick: Tick, turns: Turns) -> None:
        self.on = self.in_pair = False
        now = time.monotonic()
        if turns.are_several and self.schedule.is_by_turn:
            on, in_pair = self._by_turn(tick.step, turns, now)
        else:
            on = self.schedule.wants(tick, now - self._begun.get(-1, float("-inf")))
            in_pair = self.schedule.next(tick.step + 1) == tick.step + 1
        on = on and self.schedule.is_in_epoch(tick)
        if on:
            self._begun[-1] = now
            self._likely = turns.likely(tick.step)
        self.in_pair = on or in_pair
        self.on = on

    def is_chosen(self, one_in: int) -> bool:
        """Return whether the step that runs is logged, and chosen as one in *one_in* logged steps of its optimizer."""
        if one_in == 1 or not self.on:
            return self.on
        return self._rare.setdefault(one_in, OneIn(one_in)).wants(self._likely)

    def _by_turn(self, step: int, turns: Turns, now: float) -> tuple[bool, bool]:
        """Return whether *step* is logged, and whether any turn's next step but one may be."""

        def is_due(turn: int, number: int, seen: int) -> bool:
            return self.schedule.is_due(number, seen, now - self._begun.get(turn, float("-inf")))

        following = any(is_due(turn, turns.number(turn, step) + 1, self._seen.seen(turn)) for turn in turns.recent())
        return self._seen.choose(turns, step, is_due), following

    def rests_until(self, step: int, turns: Turns) -> int:
        """Return the first step from *step* on that may be logged."""
        if not (turns.are_several and self.schedule.is_by_turn):
            return self.schedule.next(step)
        missing = (self.schedule.next(self._seen.seen(turn) + 1) - turns.number(turn, step) for turn in turns.recent())
        return step + max(min(missing), 0)


class TurnsSeen:
    """By turn, the number of the step that was observed last: chooses for each turn whether its next step is observed."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def note(self, turns: Turns, step: int) -> None:
        """Note that the step before *step* was observed."""
        self._seen[turns.last] = turns.number(turns.last, step) - 1

    def seen(self, turn: int) -> int:
        """Return the number of the step of *turn* that was observed last; -1 if none was."""
        return self._seen.get(turn, -1)

    def forget_missed(self, turns: Turns, step: int) -> None:
        """Let no turn catch up on steps before *step*."""
        self._seen = {turn: turns.number(turn, step) - 1 for turn in turns.recent() if turn != -1}

    def choose(self, turns: Turns, step: int, is_due: Callable[[int, int, int], bool]) -> bool:
        """Return whether *step* is observed: if it is due for the turn that is expected, or, if none is, for any.

        Args:
            turns: of the root.
            step: the step that begins.
            is_due: called with a turn, the number of its next step, and the number of its last one that was observed.
        """
        return any(is_due(turn, turns.number(turn, step), self.seen(turn)) for turn in turns.likely(step))


class OneIn:
    """Chooses one in *n* of the steps that are logged, and where optimizers alternate one in n of the logged steps of each.

    The steps of a turn that are logged have numbers of their own from 0.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._numbers: dict[int, int] = {}  # by turn, that of its next logged step
        self._seen: dict[int, int] = {}  # by turn, that of its last logged step that was chosen
        self._chosen = False

    def wants(self, likely: set[int]) -> bool:
        """Return whether the logged step is chosen that begins, and that one of the turns *likely* makes."""
        self._chosen = any(_is_due(self._numbers.get(turn, 0), self._seen.get(turn, -1), self.n) for turn in likely)
        return self._chosen

    def end(self, turn: int) -> None:
        """Note that the logged step has ended, and that *turn* made it."""
        number = self._numbers.get(turn, 0)
        self._numbers[turn] = number + 1
        if self._chosen:
            self._seen[turn] = number


def _is_due(number: int, seen: int, n: int) -> bool:
    """Return whether the step *number* is observed, where every *n*-th is, and *seen* was last: it makes up for a missed one."""
    return (seen // n + 1) * n <= number
