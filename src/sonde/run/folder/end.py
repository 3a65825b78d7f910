"""The states of a run, and the error or interrupt that ended one of its attempts, as ``written-r<rank>.json`` keeps it."""

from __future__ import annotations

import sysconfig
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from sonde.errors import StoreError
from sonde.escape import encodable, shortened
from sonde.run import form

State = Literal["running", "ended", "failed", "interrupted", "lost"]
"""``running``: a process writes. ``ended``: the training came to its end. ``failed``: an error ended it. ``interrupted``: Ctrl-C
did, or a signal that the program turned into an exception. ``lost``: the process is gone without an end: it was killed."""

STATES: tuple[State, ...] = get_args(State)

_LONGEST = 4000  # characters of a message
_SHOWN = 300  # of these in one line
_LIBRARIES = ("<frozen", *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), str(Path(__file__).parents[2]))
_SIGNALS = (130, 143)  # exit codes of a program that SIGINT or SIGTERM has ended


@dataclass(frozen=True, slots=True)
class End:
    """How an error or an interrupt ended one rank's share of an attempt.

    Attributes:
        attempt, rank: which.
        state: ``"failed"`` or ``"interrupted"``.
        error: the type of the exception, as ``"ValueError"`` or ``"torch.OutOfMemoryError"``.
        message: its text, of at most 4,000 characters.
        line: the last line of the user's own code that was running, as ``"train.py:25: loss = model(x)"``; ``""`` if unknown.
        step, epoch: those that were running, or would have come next; None if unknown.
        when: seconds since 1970.
    """

    attempt: int
    rank: int
    state: Literal["failed", "interrupted"]
    error: str
    message: str = ""
    line: str = ""
    step: int | None = None
    epoch: int | None = None
    when: float = 0.0

    @classmethod
    def of(cls, error: BaseException, attempt: int, rank: int, *, step: int | None = None, epoch: int | None = None) -> End | None:
        """Return the end by *error*; None where the exception is a good end: ``sys.exit()``, or a generator that is closed."""
        state = _state_after(error)
        if state is None:
            return None
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
        try:
            message = str(error)
        except Exception:  # of the user's class
            message = ""
        return cls(attempt, rank, state, name, encodable(message[:_LONGEST]), encodable(line_of(error)), step, epoch, time.time())

    @property
    def words(self) -> str:
        """Say how it ended, in one line: ``"failed at step 17: ValueError: no such token (train.py:25: loss = model(x))"``."""
        step = "" if self.step is None else f" at step {self.step:,}"
        where = f"{step} on rank {self.rank}" if self.rank else step
        text = shortened(" ".join(self.message.split()), _SHOWN)
        return f"{self.state}{where}: {self.error}{f': {text}' if text else ''}{f' ({self.line})' if self.line else ''}"

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, given: Any, rank: int) -> End | None:
        """Return the end that *given*, out of the file of *rank*, describes; None where it describes none that this sonde knows."""
        try:
            held = _END(given, "end")
        except StoreError:
            return None
        return cls(**held, rank=rank)


_END = form.members(
    attempt=form.count,
    state=form.one_of("failed", "interrupted"),
    error=form.text,
    message=form.text,
    line=form.text,
    step=form.optional(form.count),
    epoch=form.optional(form.count),
    when=form.time,
)


def _state_after(error: BaseException) -> Literal["failed", "interrupted"] | None:
    if isinstance(error, GeneratorExit):
        return None
    if isinstance(error, SystemExit) and type(error) is SystemExit:
        return "interrupted" if error.code in _SIGNALS else "failed" if error.code else None
    # others that no ``except Exception`` catches stop a program from outside: Ctrl-C, a cancelled task, Lightning's of SIGTERM
    return "failed" if isinstance(error, Exception) else "interrupted"


def is_bad_end(error: BaseException) -> bool:
    """Return whether *error*, which ends a training, means that it failed or was interrupted: ``sys.exit()`` does not."""
    return _state_after(error) is not None


def decisive(ends: Iterable[End], attempt: int) -> End | None:
    """Return the end that decides how *attempt* ended: the first failure of any rank, or else the first interrupt; None without."""
    own = [end for end in ends if end.attempt == attempt]
    return min(own, key=lambda end: (end.state != "failed", end.when, end.rank), default=None)


def line_of(error: BaseException) -> str:
    """Return the last line of the user's own code that *error* came through, as ``"train.py:25: loss = model(x)"``; or ``""``.

    >>> from sonde.run import line_of
    >>> line_of(ValueError("never raised"))
    ''
    """
    places = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    own = next((place for place in reversed(places) if _is_readable(place.filename)), None)
    return "" if own is None else f"{Path(own.filename).name}:{own.lineno}: {own.line}"


def _is_readable(file: str) -> bool:
    return not is_library(file) and (not file.startswith("<") or "input" in file)  # <ipython-input-1-...>, not <string>


def is_library(file: str) -> bool:
    """Return whether the code in *file* is Python's own, that of an installed package, or sonde's."""
    return file.startswith(_LIBRARIES)
