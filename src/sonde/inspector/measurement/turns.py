"""When each measuring of a model observes: its hooks are put in and taken out as steps begin."""

from __future__ import annotations

from sonde.inspector.measurement.measurement import Measurement

__all__ = ["Turn"]


class Turn:
    """A measuring, and how often its turn comes.

    Args:
        one_in: it observes one in so many of the steps that are logged.
    """

    def __init__(self, measuring: Measurement, one_in: int = 1) -> None:
        self.measuring = measuring
        self._one_in = one_in
        self._logged = -1  # steps that were, so far

    def attach(self, *, logged: bool, in_pair: bool) -> None:
        """A first step begins; see :meth:`begin`."""
        self.measuring.attachment.attach(resting=not self._wants(logged, in_pair))

    def begin(self, *, logged: bool, in_pair: bool) -> None:
        """A step begins, which is *logged*; or is one of a pair of steps of which the second is, or may be."""
        self.measuring.attachment.go_on(self._wants(logged, in_pair))

    def _wants(self, logged: bool, in_pair: bool) -> bool:
        if self.measuring.kind == "evaluation":
            return True
        if self.measuring.is_sequence:
            return in_pair
        self._logged += logged
        return logged and self._logged % self._one_in == 0
