"""How often a condition must hold, and how often it did, in memory that does not grow with the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Columns = npt.NDArray[np.intp]


def extended(array: npt.NDArray[Any], length: int, fill: float = np.nan) -> npt.NDArray[Any]:
    """Return *array* with its last axis extended to *length*."""
    if array.shape[-1] >= length:
        return array
    return np.concatenate((array, np.full((*array.shape[:-1], length - array.shape[-1]), fill, array.dtype)), axis=-1)


@dataclass(frozen=True, slots=True)
class Window:
    """In how many of the last so many logged steps a condition must hold, counting the steps that have its numbers.

    Attributes:
        most, of: 3 of the last 5, for example; *of* is 5 at most.
        smallest: the smaller value is the worse one.
        after: so many values a place has before the condition counts, which must still hold then: how a training begins may pass.
    """

    most: int = 3
    of: int = 5
    smallest: bool = False
    after: int = 0


class Held:
    """Columns at which a condition held as often as a window asks for, counting the logged steps that had a value there.

    Attributes:
        since: of each column, the step from which on the condition held so; -1 where it never did.
        worst, step: the value furthest off while it held, and its step.
        others: further numbers at that step, as the value was compared with them.
        last: the last step at which the condition held.

    Args:
        window: how often.
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self.since = self.worst = self.step = self.last = self._begun = np.empty(0)
        self.others: list[Numbers] = []
        self._bits = np.empty(0, np.int64)
        self._count = np.empty(0, np.int64)  # of each column, its values

    def add(self, holds: Mask, values: Numbers, steps: npt.NDArray[np.int64], *others: Numbers) -> None:
        """Add whether the condition holds, of what values: shape ``(moments, columns)``. A NaN is no value."""
        width = holds.shape[1]
        if width > len(self.since):
            self.since, self.step, self.last, self._begun = (
                extended(each, width, -1) for each in (self.since, self.step, self.last, self._begun)
            )
            self.worst = extended(self.worst, width)
            self._bits, self._count = extended(self._bits, width, 0), extended(self._count, width, 0)
            self.others = [extended(each, width) for each in self.others or [np.empty(0)] * len(others)]
        seen = np.isfinite(values)
        if not self.is_waiting and not holds.any():
            self.count(np.arange(width), seen)
            return
        held = holds & seen
        if seen.all():
            alike = [(np.arange(width), np.arange(len(steps)))]
        else:
            patterns, which = np.unique(seen, axis=1, return_inverse=True)
            groups = enumerate(patterns.T)
            alike = [(np.flatnonzero(which.ravel() == number), np.flatnonzero(lines)) for number, lines in groups if lines.any()]
        for columns, lines in alike:
            here = np.ix_(lines, columns)
            self._add(columns, held[here], values[here], steps[lines], [other[here] for other in others])

    def count(self, columns: Columns, seen: Mask) -> None:
        """Count values of *columns* at which the condition does not hold, and has not held lately."""
        if self.window.after and len(columns):
            self._count = extended(self._count, int(columns.max()) + 1, 0)
            self._count[columns] += seen.sum(axis=0)

    def add_one(self, step: int, *, holds: bool) -> bool:
        """Add whether the condition holds at *step*, of the only column; return whether it has held often enough so far."""
        if holds or self.window.after or not len(self._bits) or self._bits[0]:  # else nothing changes
            self.add(np.array([[holds]]), np.zeros((1, 1)), np.array([step]))
        return bool(self.since[0] >= 0)

    def _add(self, columns: Columns, held: Mask, values: Numbers, steps: npt.NDArray[np.int64], others: Sequence[Numbers]) -> None:
        """Add lines in which all *columns* have a value."""
        lines, places = np.arange(len(steps))[:, None], np.arange(len(columns))
        before = [self._bits[columns] >> age & 1 for age in range(self.window.of - 1, -1, -1)]
        sums = np.cumsum(np.vstack([np.zeros_like(columns), *before, held]), axis=0)
        often = sums[self.window.of :] - sums[: -self.window.of]  # of the lines up to the one before, and then up to each line
        begins = np.maximum.accumulate(np.where(held & (often[:-1] == 0), lines, -1), axis=0)
        begun = np.where(begins >= 0, steps[begins], self._begun[columns])
        is_late = self._count[columns] + lines + 1 > self.window.after
        self._count[columns] += len(steps)
        fired = (often[1:] >= self.window.most) & held & is_late
        new = fired.any(axis=0) & (self.since[columns] < 0)
        self.since[columns[new]] = begun[fired.argmax(axis=0), places][new]
        self._begun[columns] = begun[-1]
        for line in held[-self.window.of :]:
            self._bits[columns] = (self._bits[columns] << 1 | line) & ((1 << self.window.of) - 1)
        any_held = held.any(axis=0)
        latest = len(steps) - 1 - held[::-1].argmax(axis=0)
        self.last[columns[any_held]] = steps[latest][any_held]
        sign = -1 if self.window.smallest else 1
        filled = np.where(held, sign * values, -np.inf)
        best = filled.argmax(axis=0)
        known = self.worst[columns]
        better = any_held & (np.isnan(known) | (filled[best, places] > sign * known))
        at, best, places = columns[better], best[better], places[better]
        self.worst[at], self.step[at] = values[best, places], steps[best]
        for kept, other in zip(self.others, others, strict=True):
            kept[at] = other[best, places]

    @property
    def is_waiting(self) -> bool:
        """Whether the condition held lately, so that further values matter."""
        return bool(self._bits.any())

    def columns(self) -> Columns:
        """Return the columns at which the condition held."""
        return np.flatnonzero(self.since >= 0)
