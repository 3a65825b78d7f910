"""Write a run to disk: parts by the writer thread, compaction, and a good end where nobody closes the writer."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.errors import ArgumentError, StoreError
from sonde.rows import KEYS, RowBlock
from sonde.run.folder.checksum import file_checksum
from sonde.run.folder.duckdb_sql import numbers_of
from sonde.run.folder.end import End
from sonde.run.folder.files import appearing, remove_leftovers
from sonde.run.folder.json_file import write_json
from sonde.run.folder.lock import Lock
from sonde.run.folder.parts import Part, live_parts, parts_in, prefix_of
from sonde.run.folder.records import record_file, record_in
from sonde.run.folder.run_json import Description
from sonde.run.folder.verify import class_of, kind_of, kinds_of
from sonde.run.folder.written import Written
from sonde.run.record import Record
from sonde.run.run_summary import keep_summary
from sonde.run.store.compaction import Merger, sweep
from sonde.run.store.last_error import LastError
from sonde.run.store.tables import Lines, tables_of
from sonde.run.store.writer import RunWriter
from sonde.run.store.writer_thread import QueueLimits, WriteQueue, WriterThread
from sonde.warn import WarnOnce

if TYPE_CHECKING:
    from sonde.run.run import Run


_FAN_IN = 64  # parts of one generation that become one while the run is written: a week of flushes leaves about 200 parts
_TRIES = 5  # of a table that cannot be written for another reason than the disk's
_AT_THE_END = 3  # how often the end of a run is tried to be written
_PAUSE = 0.1  # seconds between
_BETWEEN_SUMMARIES = 10.0  # seconds, at least, while the run is written, and
_SHARE = 100.0  # so many times what a summary takes
_TEXTS = (*KEYS, "name")  # columns whose values come again and again
_NEEDED_AT_EXIT = ("duckdb", "pyarrow.parquet")  # loaded with the first part: 0.3 s, which a rank without rows need not spend


@dataclass(frozen=True, slots=True)
class Flushing(QueueLimits):
    """When appended rows go to disk, and what happens when the disk does not keep up.

    >>> from sonde.run import Flushing
    >>> Flushing(seconds=2.0).seconds
    2.0

    Attributes:
        seconds: rows are written no longer than this after they were appended. A kill can lose the rows of this time.
        first: the same for the first rows. Each writing makes the time half as long again, up to *seconds*.
        size: bytes of waiting rows that are written at once.
        limit: bytes that may wait in memory.
        patience: seconds that ``append`` waits for room before rows are dropped and counted, with one warning.
        sync: put every part on the disk itself before it gets its name, so that power failure leaves only whole parts too.
        fan_in: parts of one generation that are merged while the run is being written.

    Raises:
        ArgumentError: a number is not above 0, or *fan_in* is not above 1.
    """

    seconds: float = 10.0
    size: int = 8 << 20
    limit: int = 128 << 20
    patience: float = 10.0
    first: float = 0.1
    sync: bool = True
    fan_in: int = _FAN_IN

    def __post_init__(self) -> None:
        for name, least in (("seconds", 0), ("size", 0), ("limit", 0), ("patience", 0), ("first", 0), ("fan_in", 1)):
            if not getattr(self, name) > least:
                raise ArgumentError(f"{name}={getattr(self, name)!r}: it must be above {least}")


def publish(folder: Path, part: Part, table: Any, *, sync: bool) -> Path:
    """Write *table* as *part* of the family in *folder*; a reader sees the whole part or none. Return the path."""
    import pyarrow.parquet

    folder.mkdir(exist_ok=True)
    texts = [name for name in _TEXTS if name in table.column_names]
    names: list[str] = []

    def name(written: Path) -> str:
        names.append(replace(part, checksum=file_checksum(written)).name)
        return names[0]

    with appearing(folder / part.name, sync=sync, name=name) as temporary:
        # numbers hardly repeat, and pyarrow would look; its schema would make sites categories here and texts after compaction
        pyarrow.parquet.write_table(table, temporary, use_dictionary=texts, store_schema=False)
    return folder / names[0]


@dataclass(slots=True, eq=False)
class _Unwritten:
    """A table that is not on the disk yet, and how often it failed for another reason than the disk's."""

    family: str
    table: Any
    failures: int = 0


def _written(path: Path, rank: int) -> Written:
    try:
        return Written.read(path, rank)
    except StoreError:  # damaged: it is written anew
        return Written()


class DiskWriter(RunWriter):
    """Writes one rank's share of the run in a folder. ``start_run`` and ``join_run`` make one.

    Rows wait in a queue until the writer thread makes one table of each family and writes it as a part. What could not be
    written is kept and tried again after the same interval, as long as the disk refuses it; what fails for another reason, a few
    times. Under an inspector the same thread finishes the rows.

    Rank 0 has the lock from the start. Another rank may never have anything to write, as where its rows are joined with those of
    others: it takes its lock, and looks what is there of it, before its first file, and leaves none without.

    Attributes:
        path: the run's folder.
        lost: rows for which there was no room, or that could not be written at the end.
    """

    thread: WriterThread

    def __init__(self, path: Path, rank: int, description: Description, flushing: Flushing, lock: Lock | None = None) -> None:
        import_module("concurrent.futures.thread")  # pandas, which duckdb loads, cannot import it at exit
        attempt = description.attempts[-1]
        super().__init__(rank, attempt.first_step, room=flushing.limit)
        self.path = path
        self.attempt = attempt.attempt
        self.lost = 0
        self._description = description
        self._lock = lock
        self._flushing = flushing
        self._problems = WarnOnce(
            f"the run {str(path).replace('{', '{{').replace('}', '}}')} could not be written: {{}}. Training goes on and what was "
            "written before stays readable; writing is tried again, and rows for which there is no room meanwhile are dropped and "
            "counted"
        )
        self._merging = True
        self._changing = threading.RLock()  # the description, and what was written; garbage collection may come in between
        self._has_begun = False
        self._written = self._noted = Written()
        known = record_in(path, rank)
        self.before = Record() if known is None else known.up_to(self.first_step - 1)
        self._recorded = Record() if known is None else known  # what the file holds
        self._numbers: dict[str, int] = {}  # the last flush of each family
        self._unwritten: list[_Unwritten] = []  # in order; of the thread alone
        self._next_summary = time.monotonic() + _BETWEEN_SUMMARIES
        if lock is not None:
            self._begin()
        self.thread = WriterThread()
        self._queue: WriteQueue[RowBlock | Lines] = WriteQueue(
            self.thread,
            self._write,
            self._give_up,
            flushing,
            self._problems,
            f"the disk did not keep up for {flushing.patience:g} seconds",
        )
        self._last_error = LastError()
        if known is not None:  # what was found in rows that are superseded now is none of them
            self._write_record(sync=False)
        atexit.register(self._close_at_exit)

    def _begin(self) -> None:
        """Before the first file: take the lock, remove what a killed writer has left, and find what is there of this rank.

        Raises:
            StoreError: another process writes as this rank, or has begun the run anew.
            OSError: the folder cannot be written.
        """
        with self._changing:
            if self._has_begun:
                return
            if self._lock is None:
                lock = Lock(self.path, self.rank)
                if self._is_begun_anew():
                    lock.release()
                    raise StoreError(f"{self.path} was begun anew by another process, after rank {self.rank} had joined it")
                self._lock = lock
            there = _written(self.path, self.rank)
            documents, ends = there.documents | self._written.documents, (*there.ends, *self._written.ends)
            numbers = dict(there.families)
            for folder in [each for each in sorted(self.path.iterdir()) if each.is_dir() and parts_in(each)]:
                remove_leftovers(folder, prefix_of(self.rank))
                sweep(folder, self.rank)
                parts = parts_in(folder)
                last = max((part.last for part in parts if part.rank == self.rank), default=0)
                numbers[folder.name] = max(last, numbers.get(folder.name, 0))
                self._remember_kinds(folder, parts)
            self._accepted.clear()
            self._numbers = numbers
            self._written, self._noted = replace(there, documents=documents, ends=ends), there
            self._has_begun = True

    def _is_begun_anew(self) -> bool:
        """Return whether the run is not in the attempt any more that this rank takes part in."""
        own = self._description.attempts[-1]
        with suppress(StoreError):  # damaged: a reader says so
            last = Description.read(self.path).attempts[-1:]
            return [(each.attempt, each.started) for each in last] != [(own.attempt, own.started)]
        return False

    def _remember_kinds(self, folder: Path, parts: Sequence[Part]) -> None:
        """Remember the kinds of columns that earlier attempts wrote, by the parts of this rank and of the first that has any.

        A column of two kinds would make the family unreadable.
        """
        first = min((part.rank for part in parts), default=0)
        for part in live_parts(part for part in parts if part.attempt < self.attempt and part.rank in (first, self.rank)):
            with suppress(Exception):  # a damaged part, with an error of thrift's or arrow's; the reader names it
                for name, kind in kinds_of(folder / part.name).items():
                    self._kinds[folder.name, name.lower()] = class_of(kind)

    def describe(self, **about: Any) -> None:
        self._must_be_open()
        if self.rank:
            raise ArgumentError(f"rank 0 describes the run; this is rank {self.rank}")
        with self._changing:
            self._description = self._description.telling(about)
            try:
                self._description.write(self.path, sync=self._flushing.sync)
            except OSError as error:
                self._failed(f"run.json: {error}")

    def _write_document(self, name: str, data: Any) -> None:
        file = f"{name}.json" if self.rank == 0 else f"{name}-r{self.rank:04d}.json"
        try:
            with self._changing:
                self._begin()
                write_json(self.path / file, data, sync=self._flushing.sync)
                self._written = replace(self._written, documents=self._written.documents | {name})
        except (OSError, StoreError) as error:
            self._failed(f"{file}: {error}")

    def _record_changed(self) -> None:
        """The next flush writes it."""

    def _write_record(self, *, sync: bool) -> None:
        """Write the record of findings if it has changed; of a rank without rows, if it tells more than that of rank 0."""
        record = self.record
        if record == self._recorded:
            return
        if self.rank and not self._has_begun and not record.tells_more_than(record_in(self.path, 0) or Record()):
            return
        try:
            with self._changing:
                self._begin()
                write_json(self.path / record_file(self.rank), record.to_data(), sync=sync)
                self._recorded = record
                self._written = replace(self._written, documents=self._written.documents | {"findings"})
        except Exception as error:  # the next flush tries it again
            self._problems.note(f"{record_file(self.rank)}: {error}")

    def _failed(self, problem: str) -> None:
        self._problems.note(problem)
        self.thread.warn()

    def _take(self, item: RowBlock | Lines) -> None:
        if self.thread.is_elsewhere:  # a forked child writes nothing
            return
        if not self._queue.put(item):
            self.lost += item.lines
        self.thread.warn()

    def flush(self) -> None:
        self.thread.call(self._drain)

    # In the thread

    def _drain(self) -> None:
        self._queue.drain()
        self._write_record(sync=False)
        self._note_written(sync=False)

    def _write(self, items: deque[RowBlock | Lines]) -> int:
        """Write old tables, then those of *items*, those of a family in order; return the bytes of those that could not be."""
        tables = [_Unwritten(*each) for each in tables_of(items, self.process)] if items else []
        self._unwritten += tables
        items.clear()
        self._write_record(sync=False)  # first: rows that can be read were judged
        failed: set[str] = set()
        for each in tuple(self._unwritten):
            if each.family not in failed and not self._is_settled(each):
                failed.add(each.family)
        if tables:
            last = max([int(numbers_of(each.table.column("step")).max()) for each in tables])
            with self._changing:
                self._written = self._written.reached(last, time.time())
        self._note_written(sync=False)
        self._summarise()
        return sum([each.table.nbytes for each in self._unwritten])

    def _summarise(self) -> None:
        """Keep a summary for lists of runs, after ten seconds and from then on as often as it takes a hundredth of the time."""
        now = time.monotonic()
        if self.rank == 0 and now >= self._next_summary:
            keep_summary(self.path)
            end = time.monotonic()
            self._next_summary = end + max(_BETWEEN_SUMMARIES, _SHARE * (end - now))

    def _give_up(self, item: RowBlock | Lines, error: Exception) -> None:
        """Count the rows of *item*, which no table can be made of: arrow refuses what the checks let through."""
        self._problems.note(f"{type(error).__name__}: {error}")
        self.lost += item.lines

    def _is_settled(self, each: _Unwritten) -> bool:
        """Write a table, or count its rows as lost where that has failed too often; return whether either was done."""
        for is_again in (False, True):
            try:
                self._publish(each.family, each.table)
                break
            except Exception as error:
                if not isinstance(error, OSError) and not is_again:
                    continue
                self._problems.note(f"{type(error).__name__}: {error}")
                each.failures += not isinstance(error, OSError)
                if each.failures < _TRIES:
                    return False
                self.lost += each.table.num_rows
        self._unwritten.remove(each)
        return True

    def _publish(self, family: str, table: Any) -> None:
        """Write one part, and now and then merge many into one."""
        for module in _NEEDED_AT_EXIT:
            import_module(module)
        self._begin()
        self._check_kinds(family, table)
        number = self._numbers.get(family, 0) + 1
        folder, part = self.path / family, Part(self.rank, number, number, 0, self.attempt)
        try:
            publish(folder, part, table, sync=self._flushing.sync)
        except Exception:
            if not self._is_there(folder, number):
                raise
        self._numbers[family] = number
        if self._merging and number % self._flushing.fan_in == 0:
            self._merging = False
            with suppress(Exception):  # the part is there, whatever comes of this
                self._merging = self._compact([folder], fan_in=self._flushing.fan_in, threads=1)

    def _check_kinds(self, family: str, table: Any) -> None:
        """Raise if a column of *table* is of another kind than earlier attempts wrote, as the rank knows once it has begun."""
        for field in table.schema:
            if field.name not in _TEXTS:
                kind = class_of(kind_of(field.type))
                if (known := self._kinds.get((family, field.name.lower()), kind)) != kind:
                    raise ArgumentError(f"{field.name!r} of {family!r} held a {known} in each row before, and now a {kind}")

    def _is_there(self, folder: Path, number: int) -> bool:
        """Whether the part *number* has its name, though writing it has raised: a second one would hold its rows twice."""
        with suppress(OSError):  # if nobody can look, the same bytes get the same name again
            return any(part.rank == self.rank and part.last == number for part in parts_in(folder))
        return False

    def _note_written(self, *, sync: bool) -> None:
        """Write down the last flush of each family. If it fails, the file counts fewer parts than there are."""
        with self._changing:
            self._written = replace(self._written, families={family: last for family, last in self._numbers.items() if last})
            if (sync and self._has_begun) or self._written != self._noted:
                with suppress(Exception):
                    self._begin()
                    self._written.write(self.path, self.rank, sync=sync)
                    self._noted = self._written

    def _compact(self, folders: Iterable[Path], *, fan_in: int, threads: int) -> bool:
        """Merge parts; return whether it worked. If not (a full disk), the parts stay, which costs readers only time."""
        worked = True
        with Merger(self.rank, self.attempt, self._description.cutoffs, sync=self._flushing.sync, threads=threads) as merger:
            for folder in folders:
                try:
                    merger.compact(folder, fan_in=fan_in)
                except Exception:
                    worked = False
        return worked

    def _keep_end(self, end: End) -> None:
        if self.thread.is_elsewhere:
            return
        note = partial(self._note_in_file, end)
        note() if self.thread.is_current else self.thread.ask(note)  # at once: the end of the writing may take long, or be cut off

    def _note_in_file(self, end: End) -> None:
        with self._changing:
            self._written = replace(self._written, ends=(*self._written.ends, end))
        self._note_written(sync=self._flushing.sync)

    def _close_at_exit(self) -> None:
        self.thread.finish()
        error = self._last_error.found()
        if error is not None:
            self.note_end(error)
        self.close()
        if self._lock is not None and self._lock.is_held:  # Ctrl-C has cut off an end before
            self._end()

    def _end(self) -> None:
        if self.thread.is_elsewhere:
            return
        try:
            self.thread.call(self._queue.finish)
            self.thread.stop()
            self.lost += sum([each.table.num_rows for each in self._unwritten])
            self._unwritten.clear()
        finally:
            with suppress(Exception):  # of a full disk, or of a folder that was removed: the parts stay as they are
                folders = [self.path / family for family in sorted(self._numbers)]
                self._compact(folders, fan_in=1, threads=min(4, os.cpu_count() or 1))
            self._write_record(sync=self._flushing.sync)
            self._note_written(sync=self._flushing.sync)
            if self.rank == 0:
                self._write_end()
            if self._has_begun:
                keep_summary(self.path)
            if self._lock is not None:
                self._lock.release()
            atexit.unregister(self._close_at_exit)
            if not self.thread.is_current:
                self._problems.warn()

    def _write_end(self) -> None:
        """Write when the run ended and how many rows are lost; where that fails, the run stays without its end."""
        self._description = self._description.ended(self.attempt, self.lost)
        for tries_left in reversed(range(_AT_THE_END)):
            try:
                self._description.write(self.path, sync=self._flushing.sync)
                break
            except Exception as error:
                if tries_left:
                    time.sleep(_PAUSE)
                else:
                    self._problems.note(f"run.json: {error}")

    def run(self) -> Run:
        from sonde.run.run import open_run

        self.flush()
        return open_run(self.path)

    def __repr__(self) -> str:
        return f"<writer of the run {json.dumps(str(self.path))}, {'closed' if self._closed else 'open'}>"
