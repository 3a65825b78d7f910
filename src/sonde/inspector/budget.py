"""Measure the cost of observing while the training runs, and find the interval that keeps it within a budget."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from statistics import median

from sonde.errors import ArgumentError

_KEPT = 50  # steps of each kind that medians are over
_LEAST = 3  # of each kind before a share is given
_FRESH = 8  # logged steps, from which on medians are formed anew every so many
_SKIPPED = 2  # first steps, in which memory is allocated and code compiled
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


class Meter:
    """Times the steps of one model.

    A step's own time runs from the end of our work at the step before to the beginning of our work at its own end. The cost of
    logging one step is the difference of the medians of logged and of other steps, and our own work between steps:
    switching hooks, copying rows. On an accelerator this is the time of the host, which waits for the device now and
    then in any training loop. The time of the writer thread is not included, as far as this thread runs beside the training.
    """

    def __init__(self) -> None:
        self._logged: deque[float] = deque(maxlen=_KEPT)
        self._others: deque[float] = deque(maxlen=_KEPT)
        self._between: deque[float] = deque(maxlen=_KEPT)  # our work between steps, per logged step
        self._work = 0.0
        self._left: float | None = None
        self._entered = 0.0
        self._steps = 0
        self._medians: tuple[int, float | None, float | None] = (-1, None, None)  # of how many times, step time, cost

    def enter(self) -> None:
        """Note that a step has ended and our work begins."""
        self._entered = time.perf_counter()

    def leave(self, *, logged: bool) -> None:
        """Note that our work is done; the step that has ended was *logged* or not."""
        now = time.perf_counter()
        self._steps += 1
        if self._left is not None and self._steps > _SKIPPED:
            (self._logged if logged else self._others).append(self._entered - self._left)
            self._work += now - self._entered
            if logged:
                self._between.append(self._work)
                self._work = 0.0
        self._left = now

    def forget_step(self) -> None:
        """Leave out the time until the next step: evaluation, a checkpoint being written, the end of an epoch."""
        self._left = None

    @property
    def step_time(self) -> float | None:
        """Seconds of a step that is not logged; None if not known yet."""
        return self._known()[0]

    @property
    def cost(self) -> float | None:
        """Seconds that logging one step costs; None if not known yet."""
        return self._known()[1]

    def _known(self) -> tuple[float | None, float | None]:
        """Return step time and cost. Medians of many times move slowly, and are not formed at each step."""
        number = self._steps if self._steps < _FRESH * _LEAST else self._steps - self._steps % _FRESH
        if number != self._medians[0]:
            step = median(self._others) if len(self._others) >= _LEAST else None
            cost = None
            if step is not None and len(self._logged) >= _LEAST:
                cost = max(median(self._logged) - step, 0.0) + median(self._between)
            self._medians = number, step, cost
        return self._medians[1:]

    def share(self, logged_share: float) -> float | None:
        """Return the share of training time that observing takes, if *logged_share* of the steps are logged; None if not known."""
        step, cost = self.step_time, self.cost
        return None if step is None or cost is None else logged_share * cost / step

    def interval_for(self, share: float) -> int | None:
        """Return the least n such that logging every n-th step takes no more than *share*; None if not known yet."""
        step, cost = self.step_time, self.cost
        return None if step is None or cost is None else max(2, math.ceil(cost / (share * step)))


class Timer:
    """Finds the number of steps that take a time, from one logged step to the next.

    Args:
        seconds: the time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: tuple[int, float] | None = None
        self._interval = 1

    def interval_at(self, step: int) -> int:
        """Return after how many steps *seconds* will have passed, now that *step* has ended. It grows fourfold at most."""
        now = time.monotonic()
        if self._last is not None and step > self._last[0] and now > self._last[1]:
            wanted = self._seconds * (step - self._last[0]) / (now - self._last[1])
            self._interval = max(1, min(round(wanted), 4 * self._interval))
        self._last = step, now
        return self._interval


def share_of(budget: str | float | None) -> float | None:
    """Return the share of step time that ``"1%"`` or ``0.01`` stands for.

    Raises:
        ArgumentError: the share is not above 0 and below 1.
    """
    if budget is None:
        return None
    found = _SHARE.fullmatch(budget) if isinstance(budget, str) else None
    share = float(found[1]) / 100 if found is not None else budget
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ArgumentError(f'Limits(budget={budget!r}): give the share of step time that observing may take, as "1%" or 0.01')
    return float(share)
