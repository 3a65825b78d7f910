"""One warning for all that goes wrong while a run is written."""

from __future__ import annotations

import warnings

from sonde.errors import ObservationWarning

__all__ = ["Trouble"]


class Trouble:
    """Remembers the first thing that went wrong, in any thread, and says it once, in the thread that the user sees.

    Args:
        run: what to call the run.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._first = ""
        self._said = False

    def note(self, what: str) -> None:
        """Something went wrong."""
        self._first = self._first or what

    def say(self) -> None:
        """Warn, if something has gone wrong and nothing was said yet."""
        if self._first and not self._said:
            self._said = True
            warnings.warn(
                f"the run {self._run} could not be written: {self._first}. Training goes on and what was written before stays "
                "readable; writing is tried again, and rows for which there is no room meanwhile are dropped and counted",
                ObservationWarning,
                stacklevel=5,
            )
