"""Warn at the line of the user's code that led here, every time or once for many problems."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import deque
from pathlib import Path

from sonde.errors import ObservationWarning

_PASSED = (str(Path(__file__).parent), contextlib.__file__)


def warn_user(text: str) -> None:
    """Warn at the nearest line outside of sonde and torch, so that Python's once-per-place filter tells places apart."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    ours = (*_PASSED, *([] if torch is None else [str(Path(torch).parent)]))
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, ObservationWarning, stacklevel=level)


class WarnOnce:
    """Keep the first problem, noted in any thread, and each event, and warn of them once, in the thread that the user sees.

    Args:
        message: the text of the warning, with ``{}`` where the problem stands.

    Attributes:
        problem: the first one; ``""`` while there is none.
    """

    def __init__(self, message: str) -> None:
        self.problem = ""
        self._message = message
        self._warned = False
        self._events: deque[str] = deque()

    def note(self, problem: str) -> None:
        """Keep *problem*, if it is the first."""
        self.problem = self.problem or problem

    def add(self, event: str) -> None:
        """Keep *event*, however many there were: what each of them says, no other does."""
        self._events.append(event)

    def warn(self) -> None:
        """Warn of the events, and of the problem, if one was noted, unless that was done."""
        while self._events:
            warn_user(self._message.format(self._events.popleft()))
        if self.problem and not self._warned:
            self._warned = True
            warn_user(self._message.format(self.problem))
