"""Follow which optimizer steps when.

Where optimizers alternate, every tenth step may always be a step of the same one. So each optimizer that makes steps has a
*turn*: its own numbers from 0. Before a step begins nobody says whose it will be; the order so far tells.
"""

from __future__ import annotations

import weakref
from collections import deque

from torch.optim.optimizer import Optimizer

_KEPT = 64  # runs of steps that are remembered
_CONTEXT = 4  # runs before the one that is going on, which are compared with earlier ones
_SETTLED = 16  # steps of one turn after which it is expected to go on, if there was nothing like it before

_Stretch = tuple[int, int]
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
        self._runs: deque[_Stretch] = deque(maxlen=_KEPT)
        self._counts: list[int] = []  # by turn, its steps before the run that is going on
        self._by_optimizer: dict[int, tuple[weakref.ref[Optimizer], int]] = {}
        self._by_parameters: dict[frozenset[int], int] = {}

    def begin_at(self, step: int) -> None:
        """Number the steps of the only turn from *step* on."""
        if self.last == -1:
            self._begun = step

    def note(self, optimizer: Optimizer | None, held: frozenset[int], step: int) -> None:
        """Note that *optimizer*, which holds the parameters *held*, makes *step*. None: the loop announces its steps itself."""
        turn = self.turn_of(optimizer, held, settled=step - self._begun >= _SETTLED)
        if turn == self.last:
            return
        if self.last != -1:
            length = step - self._begun
            self._runs.append((self.last, length))
            self._counts[self.last] += length
            self.are_several = True
            self._begun = step
        self.last = turn

    def turn_of(self, optimizer: Optimizer | None, held: frozenset[int], *, settled: bool = False) -> int:
        """Return the turn of *optimizer*: that of the same object, of another one that held the same parameters, or a new one.

        An optimizer that comes later and holds some of the parameters of another one takes its place, if the other one is gone, or
        has long been the only one to step (*settled*): the loop has made a new optimizer, as after a layer was added.
        """
        key = id(optimizer)
        if optimizer is not None:
            known = self._by_optimizer.get(key)
            if known is not None and known[0]() is optimizer:
                return known[1]
        turn = self._by_parameters.get(held)
        if turn is None:
            turn = self._left_to(held, settled=settled)
            if turn is None:
                turn = len(self._counts)
                self._counts.append(0 if self._counts else self._begun)
            self._by_parameters[held] = turn
        if optimizer is not None:
            by_optimizer = self._by_optimizer
            by_optimizer[key] = weakref.ref(optimizer, lambda _: by_optimizer.pop(key, None)), turn
        return turn

    def _left_to(self, held: frozenset[int], *, settled: bool) -> int | None:
        """Return the turn that an optimizer of the parameters *held* takes over, which has held the most of them; None for none.

        Former optimizers of that turn are forgotten: one that steps again is a new one.
        """
        kept = {turn for known, turn in self._by_optimizer.values() if known() is not None}
        if settled:
            kept.discard(self.last)
        shared = {turn: len(held & former) for former, turn in self._by_parameters.items() if turn not in kept}
        taken = max(shared, key=shared.__getitem__, default=None)
        if taken is None or not shared[taken]:
            return None
        for key in [key for key, (_, turn) in self._by_optimizer.items() if turn == taken]:
            del self._by_optimizer[key]
        self._by_parameters = {former: turn for former, turn in self._by_parameters.items() if turn != taken}
        return taken

    def number(self, turn: int, step: int) -> int:
        """Return the number of the next step of *turn* among its own, where *step* is the next of all."""
        return self._counts[turn] + (step - self._begun if turn == self.last else 0)

    def recent(self) -> set[int]:
        """Return the turns that have made steps lately."""
        return {turn for turn, _ in self._runs} | {self.last}

    def expected(self, step: int) -> int | None:
        """Return the turn that is expected to make *step*; None where the order so far shows none.

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
        return self.last if found is None and length >= _SETTLED else found

    def likely(self, step: int) -> set[int]:
        """Return the turns that may make *step*: the expected one, or, if none is, those that have made steps lately."""
        expected = self.expected(step)
        return self.recent() if expected is None else {expected}
