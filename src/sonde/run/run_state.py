"""Tell in which state a run is: whether a process writes to it, or else how it ended."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from sonde.run.folder.end import End, State, decisive
from sonde.run.folder.lock import is_locked
from sonde.run.folder.source import DiskSource, Source

_RECENT = 60.0  # seconds after its last change in which a run without a known lock counts as running


def state_of(source: Source) -> tuple[State, End | None]:
    """Return the state of a run, and the error or interrupt that ended the last attempt, on the rank where it came first.

    A run with such an end can still be ``running``: on other ranks.
    """
    attempts = source.describe().attempts
    end = decisive(source.ends, attempts[-1].attempt) if attempts else None
    has_ended = bool(attempts) and attempts[-1].ended is not None
    return state_by(has_ended, end, source.path if isinstance(source, DiskSource) else None), end


def state_by(has_ended: bool, end: End | None, path: Path | None) -> State:
    """Return the state of the run at *path* (None: in memory), whose last attempt has an end, or not, and was ended by *end*."""
    if not has_ended and (path is None or is_written(path)):
        return "running"
    return end.state if end is not None else "ended" if has_ended else "lost"


def is_written(path: Path) -> bool:
    """Return whether a process writes to the run at *path*; where locks are not known, whether it was written a minute ago."""
    locked = is_locked(path)
    return time.time() - changed_at(path) < _RECENT if locked is None else locked


def changed_at(path: Path) -> float:
    """Return when the files of a run were last written, in seconds since 1970."""
    times = [0.0]
    with suppress(OSError), os.scandir(path) as entries:
        times += [entry.stat().st_mtime for entry in entries if entry.name.endswith(".json")]
    return max(times)


def why_empty(source: Source) -> str:
    """Return in words why a run has no rows: it ended without any, or the first are still to come."""
    state, end = state_of(source)
    if state != "running":
        return f"the run is {state}, and nothing was recorded" + (f"; {end.words}" if end is not None else "")
    return (
        "nothing is recorded there yet. The first rows can be read a second after the first logged step, or when the "
        "writer flushes or closes"
    )
