"""Find the error that has ended a training, where a run is closed and nobody says why."""

from __future__ import annotations

import sys
import traceback
from types import CodeType, FrameType

from sonde.run.folder.end import is_bad_end, is_library


class LastError:
    """Tells the exception that has ended a training from others, without holding one.

    >>> from sonde.run import LastError
    >>> last = LastError()
    >>> last.note_known()
    >>> last.found(), LastError.is_bad(KeyboardInterrupt()), LastError.is_bad(SystemExit(0))
    (None, True, False)

    Python keeps the exception that a ``finally`` or ``except`` block is about, and the one whose traceback was printed last: at
    the end of a script, in a console, or under a notebook's cell. It has ended the training if it came after the last logged step,
    and through code that was running then, or while a step was running.
    """

    def __init__(self) -> None:
        self.note_known()

    @staticmethod
    def is_bad(error: BaseException | None) -> bool:
        """Return whether *error* ended a training badly: an interrupt does, ``sys.exit()`` does not, and neither does None."""
        return error is not None and is_bad_end(error)

    def note_known(self) -> None:
        """Note the exceptions that are there and the code that is running, while the training goes on."""
        self._known = [id(error) for error in _candidates()]
        frame: FrameType | None = sys._getframe(1)
        self._running: list[CodeType] = []
        while frame is not None:
            self._running.append(frame.f_code)
            frame = frame.f_back

    def found(self, *, in_step: bool = False) -> BaseException | None:
        """Return the exception that has ended the training; None if there is none. *in_step*: a step has begun and not ended."""
        running = {code for code in self._running if not is_library(code.co_filename)}  # a console's runs all cells
        for error in _candidates():
            if error is None or id(error) in self._known:
                continue
            if in_step or any(frame.f_code in running for frame, _ in traceback.walk_tb(error.__traceback__)):
                return error
        return None


def _candidates() -> tuple[BaseException | None, BaseException | None]:
    return sys.exception(), getattr(sys, "last_value", None)
