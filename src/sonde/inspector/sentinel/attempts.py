"""Count the attempts that a ``GradScaler`` skips, and estimate the time between two steps."""

from __future__ import annotations

import time
from typing import Any

from sonde.engine import Scaling, version_of

_MOST_SKIPPED = 16  # attempts in a row that a GradScaler skips: as many as take its first scale, 65,536, to 1


class StepTimer:
    """Estimates the time between two steps.

    Attributes:
        steps: that were good.
        seconds: between two; 0 while that is not known.
    """

    __slots__ = ("_last", "seconds", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0
        self._last = 0.0

    def note_step(self) -> None:
        """Note that a step is about to be taken."""
        now = time.perf_counter()
        between, self._last = now - self._last, now
        if self.steps:  # a longer time may be that of an evaluation
            self.seconds = min(between, 1.05 * self.seconds) if self.seconds else between


class Attempts:
    """Counts the attempts in a row that a ``GradScaler`` skips: it writes into its scale, and no step was taken."""

    __slots__ = ("_scaler", "_version", "skipped")

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._version = self._now()
        self.skipped = 0

    def _now(self) -> int:
        scale = Scaling.of(self._scaler)
        return 0 if scale is None else version_of(scale)

    def was_skipped(self) -> bool:
        """Return whether the scale was written into since the last call, or since ``step``."""
        before, self._version = self._version, self._now()
        return self._version != before

    def are_too_many(self) -> bool:
        """Return whether so many attempts in a row were skipped that no scale can be the cause. Reads a scale on the CPU alone."""
        scale = Scaling.of(self._scaler)
        if scale is None or self.skipped < _MOST_SKIPPED:
            return False
        return scale.item() < 1.0 if scale.device.type == "cpu" else self.skipped >= 2 * _MOST_SKIPPED

    def step(self) -> None:
        """A step is about to be taken."""
        self.skipped = 0
        self._version = self._now() + 1  # update() comes after the step
