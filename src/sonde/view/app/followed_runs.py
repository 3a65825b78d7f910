"""Follow the runs below a folder: which there are, in what state each is, and which have something new to read."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sonde.errors import StoreError, UnknownSiteError
from sonde.escape import printable_line
from sonde.paths import absolute_path, short_path
from sonde.run import Run, RunFolder, RunSummary, runs_below, setting_text
from sonde.run import State as RunState
from sonde.suggest import nearest
from sonde.view.app.answers.covered import lost_parts
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.app.answers.reduction import MISSING, listed, marks_of
from sonde.view.app.bounded_cache import BoundedCache
from sonde.view.plots.scalars import kind_of

State = Literal[RunState, "damaged", "newer"]
"""The states of a run; ``damaged``: the run cannot be read; ``newer``: a newer sonde has written it."""

_SEARCH = 2.0  # seconds between two searches for new folders, and
_SHARE = 20.0  # at least so many times what a search takes
_NO_METRICS = ("overhead", "epoch", "loss_scale")
_THREADS = 1  # work on one question to a run, and several questions are answered at once: each more would hold some 16 MB
_NUMBERS = 768 << 20  # bytes of numbers of all runs that stay in memory


@dataclass
class _Followed:
    """One run that is followed."""

    id: str
    name: str
    run: Run | None
    folder: RunFolder | None
    version: str = ""
    error: str = ""
    state: State = "running"
    opened: OpenedRun | None = None
    summary: RunSummary | None = None
    entry: dict[str, Any] = field(default_factory=dict)
    entry_of: tuple[Any, ...] = ()

    @property
    def known(self) -> tuple[Any, ...]:
        """What the entry of the list depends on; damage is found where rows are asked for, and no file changes."""
        return self.version, self.state, self.error, self.lost

    @property
    def lost(self) -> list[str]:
        """The parts that were found damaged so far, in words."""
        return [] if self.run is None else lost_parts(self.run)

    def open(self) -> None:
        """Open the run, unless it is open; or note why it cannot be read."""
        try:
            if self.run is None and self.folder is not None:
                self.run = self.folder.open(threads=_THREADS)
            self.error = ""
        except StoreError as error:
            self.run, self.error = None, str(error)

    def summarise(self) -> None:
        """Make the summary, where none is kept of the files that are there."""
        if self.summary is None and self.run is not None:
            try:
                self.summary = self.run.summary
            except StoreError as error:
                self.error, self.summary = str(error), RunSummary()

    def look(self) -> None:
        """Take the summary that is kept, if it is of the files that are there, and open the run if not; note its state."""
        self.summary = None if self.folder is None else self.folder.kept_summary
        if self.folder is not None and self.summary is not None:
            self.error, self.state = "", self.folder.state(self.summary)
            return
        self.open()
        try:
            if self.run is not None:
                self.state = self.run.state
        except StoreError as error:
            self.run, self.error = None, str(error)
        if self.run is None:
            self.state = "newer" if self.folder is not None and self.folder.is_newer else "damaged"


class FollowedRuns:
    """The runs below one folder, or one run. Safe to use from any thread.

    A run is named by an id that is looked up in a table: no text that a browser sends becomes part of a path.

    Args:
        runs: a folder, searched however deep; links are not followed. Or a run, on disk or in memory.

    Attributes:
        shown: the folder or the run, in words.

    Raises:
        StoreError: there is no such folder.
    """

    def __init__(self, runs: Path | Run) -> None:
        self._lock = threading.RLock()
        self._numbers = BoundedCache(_NUMBERS)
        self._followed: dict[str, _Followed] = {}
        self._top: Path | None = None
        self._next_search = 0.0
        self._changed: dict[str, None] = {}  # since the last news
        self._has_list_changed = False
        if isinstance(runs, Run):
            name = "in memory" if runs.path is None else runs.path.name
            self.shown = f"run {name}"
            self._followed[_id(name)] = _Followed(_id(name), name, runs, None if runs.path is None else RunFolder(runs.path))
        else:
            self._top = absolute_path(runs)
            if not self._top.is_dir():
                what = "is a file" if self._top.exists() else "does not exist"
                raise StoreError(
                    f"no runs can be shown: {self._top} {what}; give the folder that holds the folders of runs, as 'runs'"
                )
            self.shown = short_path(self._top)
        self.news()

    def news(self) -> tuple[list[str], bool]:
        """Look, and return what is new since the last call: the ids of runs that have changed, and whether the list of runs has."""
        with self._lock:
            self.refresh()
            changed, has_list_changed = [each for each in self._changed if each in self._followed], self._has_list_changed
            self._changed, self._has_list_changed = {}, False
            return changed, has_list_changed

    def refresh(self) -> None:
        """Look for what is new, so that answers are of the newest data.

        Files are not read: their sizes and times are enough. Folders are searched every two seconds, less often where that is slow.
        """
        with self._lock:
            found = self._search()
            for each in self._followed.values():
                version, state = self._version(each), each.state
                is_new = version != each.version
                if is_new:
                    each.version, each.opened = version, None
                    self._changed[each.id] = None
                if is_new or (state == "running" and each.folder is not None and not each.folder.is_written):
                    each.look()
                found |= each.state != state
            self._has_list_changed |= found

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
            name: known.get(name) or _Followed(name, _name(path, self._top), None, RunFolder(path)) for name, path in paths.items()
        }
        return True

    def _version(self, each: _Followed) -> str:
        return each.folder.version if each.folder is not None else each.run.version if each.run is not None else ""

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
            each.open()
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

    def entries(self, *, seconds: float = math.inf) -> list[dict[str, Any]]:
        """Return what the list of runs shows of each, for JSON; only what has changed is read.

        Args:
            seconds: after so many no further runs are read. Those that are left are as they were, or have name and state alone and
                are ``unread``; the list counts as changed, so that who follows :meth:`news` asks again.
        """
        with self._lock:
            end = time.monotonic() + seconds
            followed = list(self._followed.values())
            stale = deque(each for each in followed if each.entry_of != each.known)
            while stale and time.monotonic() < end:
                each = stale.popleft()
                each.summarise()
                each.entry, each.entry_of = _entry(each), each.known
            self._has_list_changed |= bool(stale)
            return [each.entry or {**_about(each), "health": "unknown", "unread": True} for each in followed]


def _id(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _name(path: Path, top: Path) -> str:
    return path.relative_to(top).as_posix() if path != top else path.name


_SMALLER = ("loss", "err", "perplexity", "ppl", "mse", "mae", "rmse", "bpb", "bits")


def _metrics(summary: RunSummary) -> Iterator[tuple[str, dict[str, float | None]]]:
    """Yield the losses and metrics of a run, each with its ``last`` and its ``best`` value: the least of what should be small."""
    for name, (last, least, most) in sorted(summary.scalars.items()):
        if kind_of(name) in ("loss", "metric") and name not in _NO_METRICS and not name.startswith("lr"):
            best = least if any(word in name.lower() for word in _SMALLER) else most
            yield name, dict(zip(("last", "best"), listed(np.array([last, best], np.float64)), strict=True))


def _plain(value: Any) -> str | float | int | bool:
    """Return a setting for JSON: numbers and booleans as they are, others as text."""
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_number else printable_line(setting_text(value))


def _about(each: _Followed) -> dict[str, Any]:
    end = None if each.summary is None else each.summary.end
    return {
        "id": each.id,
        "name": printable_line(each.name),
        "path": "" if each.folder is None else printable_line(short_path(each.folder.path)),
        "state": each.state,
        "end": None if end is None else {**end.to_data(), "words": printable_line(end.words)},
        "version": each.version,
    }


def _entry(each: _Followed) -> dict[str, Any]:
    about, summary = _about(each), each.summary
    if summary is None:
        return {**about, "error": printable_line(each.error), "health": "unknown"}
    lost = each.lost
    doubts = summary.doubts(len(lost))
    return {
        **about,
        "health": summary.health(doubts),
        "findings": summary.findings,
        "counted": summary.counted,
        "root": summary.root,
        "shortfalls": doubts,
        "judged": summary.judged if summary.judged >= 0 else None,
        "first": summary.first,
        "last": summary.last,
        "started": summary.started,
        "updated": None if each.folder is None else each.folder.changed,
        "attempts": summary.attempts,
        "pruned": summary.pruned,
        "model": summary.model,
        "layers": summary.layers,
        "loss_last": None if summary.loss is None else listed(np.array([summary.loss]))[0],
        "loss_last_mark": MISSING if summary.loss is None else int(marks_of(np.array([summary.loss]))[0]),
        "course": listed(np.array(summary.course, np.float64)),
        "settings": {name: _plain(value) for name, value in summary.settings.items()},
        "metrics": dict(_metrics(summary)),
        "size_bytes": 0 if each.folder is None else each.folder.size,
        "lost": [*summary.losses, *lost],
        **({"error": each.error} if each.error else {}),
    }
