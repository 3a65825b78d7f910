"""Follow the runs below a folder: which there are, in what state each is, and which have something new to read."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sonde.errors import StoreError, UnknownSiteError
from sonde.escape import printable_line
from sonde.paths import absolute_path, short_path
from sonde.run.folder.run_json import written_version
from sonde.run.folder.source import DiskSource
from sonde.run.run import Run
from sonde.run.runs import Runs, RunSummary, runs_below
from sonde.run.schema import VERSION
from sonde.run.store.lock import is_locked
from sonde.suggest import nearest
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.app.answers.reduction import MISSING, listed, marks_of
from sonde.view.app.bounded_cache import BoundedCache

__all__ = ["FollowedRuns", "State"]

State = Literal["running", "ended", "lost", "damaged", "newer"]
"""``running``: a process writes; ``ended``: its writer has closed it; ``lost``: the writer is gone and did not; ``damaged``: the
run cannot be read; ``newer``: a newer sonde has written it."""

_SEARCH = 2.0  # seconds between two searches for new folders, and
_SHARE = 20.0  # at least so many times what a search takes
_RECENT = 60.0  # seconds after its last change in which a run without a known lock counts as running
_NUMBERS = 768 << 20  # bytes of numbers of all runs that stay in memory
_HEALTH = {"": "ok", "note": "note", "bad": "bad", "error": "bad"}


@dataclass
class _Followed:
    """One run that is followed."""

    id: str
    name: str
    run: Run | None
    path: Path | None
    version: str = ""
    error: str = ""
    ended: bool = False
    state: State = "running"
    opened: OpenedRun | None = None
    summary: RunSummary = field(default_factory=RunSummary)
    entry: dict[str, Any] = field(default_factory=dict)
    entry_of: tuple[str, State, str] = ("", "running", "")


class FollowedRuns:
    """The runs below one folder, or one run; any thread may ask.

    A run is named by an id that is looked up in a table: no text that a browser sends becomes part of a path.

    Args:
        runs: a folder, searched however deep; links are not followed. Or a run, on disk or in memory.
        threads: how many work on one question to a run; None: one for each core.

    Attributes:
        shown: the folder or the run, in words.

    Raises:
        StoreError: there is no such folder.
    """

    def __init__(self, runs: Path | Run, *, threads: int | None = None) -> None:
        self._threads = threads
        self._lock = threading.RLock()
        self._numbers = BoundedCache(_NUMBERS)
        self._followed: dict[str, _Followed] = {}
        self._top: Path | None = None
        self._next_search = 0.0
        if isinstance(runs, Run):
            name = "in memory" if runs.path is None else runs.path.name
            self.shown = f"run {name}"
            self._followed[_id(name)] = _Followed(_id(name), name, runs, runs.path)
        else:
            self._top = absolute_path(runs)
            if not self._top.is_dir():
                what = "is a file" if self._top.exists() else "does not exist"
                raise StoreError(
                    f"no runs can be shown: {self._top} {what}; give the folder that holds the folders of runs, as 'runs'"
                )
            self.shown = short_path(self._top)
        self.look()

    def look(self) -> tuple[list[str], bool]:
        """Look for what is new; return the ids of the runs that have changed, and whether the list of runs has.

        Files are not read: their sizes and times are enough. Folders are searched every two seconds, less often where that is slow.
        """
        with self._lock:
            found = self._search()
            changed = []
            for each in self._followed.values():
                version, state = self._version(each), each.state
                if version != each.version:
                    each.version, each.opened = version, None
                    self._open(each)
                    changed.append(each.id)
                each.state = _state(each)
                found |= each.state != state
            return changed, found

    def _search(self) -> bool:
        """Search for folders of runs, if it is time to; return whether the list has changed."""
        now = time.monotonic()
        if self._top is None or now < self._next_search:
            return False
        paths = {_id(_name(path, self._top)): path for path in runs_below(self._top)}
        self._next_search = now + max(_SEARCH, _SHARE * (time.monotonic() - now))
        if paths.keys() == self._followed.keys():
            return False
        known = self._followed
        self._followed = {
            name: known.get(name) or _Followed(name, _name(path, self._top), None, path) for name, path in paths.items()
        }
        return True

    def _version(self, each: _Followed) -> str:
        return DiskSource(each.path).version if each.path is not None else each.run.version if each.run is not None else ""

    def _open(self, each: _Followed) -> None:
        """Open the run, unless it is open, and look whether it has ended; or note why it cannot be read."""
        try:
            if each.run is None and each.path is not None:
                each.run = Run(DiskSource(each.path), threads=self._threads)
            each.error, each.ended = "", each.run is not None and each.run.state == "closed"
        except StoreError as error:
            each.run, each.error = None, str(error)

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the runs, in the order of their names."""
        return tuple(self._followed)

    def version(self, asked: str) -> str:
        """Return the version of a run, as of the last look."""
        return self._of(asked).version

    def opened(self, asked: str) -> OpenedRun:
        """Return the run of an id, as of the last look.

        Raises:
            UnknownSiteError: there is no such run.
            StoreError: the run cannot be read.
        """
        with self._lock:
            each = self._of(asked)
            if each.run is None:
                raise StoreError(each.error)
            if each.opened is None:
                each.opened = OpenedRun(each.run, each.name, each.version, self._numbers)
            return each.opened

    def _of(self, asked: str) -> _Followed:
        with self._lock:
            if asked not in self._followed:
                names = (each.name for each in self._followed.values())
                raise UnknownSiteError(f"{asked!r} is the id of no run in {self.shown}. {nearest(asked, names)}")
            return self._followed[asked]

    def entries(self) -> list[dict[str, Any]]:
        """Return what the list of runs shows of each, for JSON; only what has changed is read."""
        with self._lock:
            followed = list(self._followed.values())
            stale = [each for each in followed if each.entry_of != (each.version, each.state, each.error)]
            self._summarise([each for each in stale if each.run is not None and each.path is not None])
            for each in stale:
                each.entry, each.entry_of = _entry(each), (each.version, each.state, each.error)
            return [each.entry for each in followed]

    def _summarise(self, followed: Sequence[_Followed]) -> None:
        """Read the scalars and alerts of runs, all at once; where that fails, one by one."""
        for some in (followed, *([each] for each in followed)):
            runs = {each.id: each.run for each in some if each.run is not None}
            try:
                known = Runs(runs).summaries() if runs else {}
            except StoreError as error:
                if len(runs) == 1:
                    some[0].error = str(error)
                continue
            for each in some:
                each.summary = known.get(each.id, RunSummary())
            if some is followed:
                return


def _id(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _name(path: Path, top: Path) -> str:
    return path.relative_to(top).as_posix() if path != top else path.name


def _state(each: _Followed) -> State:
    if each.run is None:
        newer = each.path is not None and (written_version(each.path) or 0) > VERSION
        return "newer" if newer else "damaged"
    if each.ended:
        return "ended"
    locked = True if each.path is None else is_locked(each.path)
    is_recent = locked is None and each.path is not None and time.time() - _changed(each.path) < _RECENT
    return "running" if locked or is_recent else "lost"


def _changed(path: Path) -> float:
    """Return when the files of a run were last written, in seconds since 1970."""
    times = [0.0]
    with suppress(OSError):
        times += [file.stat().st_mtime for file in path.glob("*.json")]
    return max(times)


def _entry(each: _Followed) -> dict[str, Any]:
    about = {
        "id": each.id,
        "name": printable_line(each.name),
        "path": "" if each.path is None else printable_line(short_path(each.path)),
        "state": each.state,
        "version": each.version,
    }
    if each.run is None:
        return {**about, "error": printable_line(each.error), "health": "unknown"}
    run, summary = each.run, each.summary
    if each.path is None:
        summary = RunSummary(findings=len(run.alerts), severity=_worst(alert["severity"] for alert in run.alerts))
    attempts = run.description.attempts
    modules = run.info.get("model")
    lines = [line for line in modules if isinstance(line, dict)] if isinstance(modules, list) else []
    last = run.last_step if summary.last is None else summary.last
    return {
        **about,
        "health": _HEALTH.get(summary.severity, "warn"),
        "findings": summary.findings,
        "first": summary.first,
        "last": last if last >= 0 else None,
        "started": attempts[0].started if attempts else None,
        "updated": None if each.path is None else _changed(each.path),
        "attempts": len(attempts),
        "model": str(lines[0].get("type", "")) if lines else "",
        "layers": len(lines),
        "loss_last": None if summary.loss is None else listed(np.array([summary.loss]))[0],
        "loss_last_mark": MISSING if summary.loss is None else int(marks_of(np.array([summary.loss]))[0]),
        "size_bytes": 0 if each.path is None else _size(each.path),
        "lost": [f"{family}: {text}" for family, said in run.lost.items() for text in said],
        **({"error": each.error} if each.error else {}),
    }


def _worst(severities: Iterable[str]) -> str:
    found = set(severities)
    return next((each for each in ("bad", "error", "warn", "warning", "note") if each in found), "")


def _size(path: Path) -> int:
    total = 0
    for file in path.glob("**/*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total
