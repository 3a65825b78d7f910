"""Follow which optimizer steps when, and choose the steps to observe for each optimizer apart.

Where optimizers alternate, every tenth step may always be a step of the same one. So each optimizer that makes steps has a
*turn*: its own numbers from 0. Before a step begins nobody says whose it will be; the order so far tells.
"""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer

__all__ = ["EveryNth", "OneIn", "Turns", "TurnsSeen", "whole_number"]

_KEPT = 64  # runs of steps that are remembered
_CONTEXT = 4  # runs before the one that is going on, which are compared with earlier ones

_Run = tuple[int, int]
"""A turn, and how many steps it made without another turn between them."""


class Turns:
    """The turns of one root: which made each step, and which is expected to make the next.

    Attributes:
        last: the turn that made the last step; -1 before the first.
        are_several: more than one turn has made steps.
    """

    def __init__(self) -> None:
        self.last = -1
        self.are_several = False
        self._begun = 0  # the step with which the run that is going on began
        self._runs: deque[_Run] = deque(maxlen=_KEPT)
        self._counts: list[int] = []  # by turn, its steps before the run that is going on
        self._by_optimizer: dict[int, tuple[weakref.ref[Optimizer], int]] = {}
        self._by_parameters: dict[frozenset[int], int] = {}

    def begin_at(self, step: int) -> None:
        """Number the steps of the only turn from *step* on."""
        if self.last == -1:
            self._begun = step

    def note(self, optimizer: Optimizer | None, held: frozenset[int], step: int) -> None:
        """Note that *optimizer*, which holds the parameters *held*, makes *step*. None is a loop that says its steps itself."""
        turn = self.turn_of(optimizer, held)
        if turn == self.last:
            return
        if self.last != -1:
            length = step - self._begun
            self._runs.append((self.last, length))
            self._counts[self.last] += length
            self.are_several = True
            self._begun = step
        self.last = turn

    def turn_of(self, optimizer: Optimizer | None, held: frozenset[int]) -> int:
        """Return the turn of *optimizer*: that of the same object, of another one that held the same parameters, or a new one."""
        key = id(optimizer)
        if optimizer is not None:
            known = self._by_optimizer.get(key)
            if known is not None and known[0]() is optimizer:
                return known[1]
        turn = self._by_parameters.get(held)
        if turn is None:
            turn = self._by_parameters[held] = len(self._counts)
            self._counts.append(0 if self._counts else self._begun)
        if optimizer is not None:
            by_optimizer = self._by_optimizer
            by_optimizer[key] = weakref.ref(optimizer, lambda _: by_optimizer.pop(key, None)), turn
        return turn

    def number(self, turn: int, step: int) -> int:
        """Return the number of the next step of *turn* among its own, where *step* is the next of all."""
        return self._counts[turn] + (step - self._begun if turn == self.last else 0)

    def recent(self) -> set[int]:
        """Return the turns that have made steps lately."""
        return {turn for turn, _ in self._runs} | {self.last}

    def expected(self, step: int) -> int | None:
        """Return the turn that is expected to make *step*; None where the order so far does not tell.

        The order is compared with itself: where the runs before this moment have come in the same order earlier, as many of
        them as possible, the next step is taken to be of the turn that came then.
        """
        if not self.are_several:
            return self.last if self.last != -1 else None
        runs = list(self._runs)
        length = step - self._begun
        best, found = -1, None
        for place in range(len(runs) - 1, -1, -1):
            turn, earlier = runs[place]
            if turn != self.last or earlier < length:
                continue
            following = runs[place + 1][0] if place + 1 < len(runs) else self.last
            agreed = 0
            while agreed < min(_CONTEXT, place) and runs[place - 1 - agreed] == runs[-1 - agreed]:
                agreed += 1
            if agreed > best:
                best, found = agreed, turn if earlier > length else following
        return found

    def likely(self, step: int) -> set[int]:
        """Return the turns that may make *step*: the expected one, or, if none is, those that have made steps lately."""
        expected = self.expected(step)
        return self.recent() if expected is None else {expected}


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


class EveryNth:
    """Chooses every *n*-th step, and where optimizers alternate every n-th of each. Called as each step begins."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._seen = TurnsSeen()
        self._chosen = False

    def wants(self, turns: Turns, step: int) -> bool:
        """Return whether *step*, which begins, is observed."""
        if self._chosen and turns.last != -1:
            self._seen.note(turns, step)
        if not turns.are_several:
            self._chosen = step % self.n == 0
        else:
            self._chosen = self._seen.choose(turns, step, lambda _, number, seen: _is_due(number, seen, self.n))
        return self._chosen


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


def whole_number(value: Any) -> int | None:
    """Return *value* as an int, if it is a whole number of any library (as ``numpy.int64(7)``); else None."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
