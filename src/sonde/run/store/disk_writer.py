"""The writer of a run on disk: parts by a background thread, compaction, and a good end even where nobody closes it."""

from __future__ import annotations

import atexit
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.errors import ArgumentError
from sonde.run.schema import KEYS
from sonde.run.store.background import Background
from sonde.run.store.blocks import Block, Lines
from sonde.run.store.compaction import compact, sweep
from sonde.run.store.files import appearing, remove_leftovers, write_json
from sonde.run.store.lock import Lock
from sonde.run.store.parts import Part, parts_in, prefix_of
from sonde.run.store.run_json import Description
from sonde.run.store.trouble import Trouble
from sonde.run.store.writer import RunWriter

if TYPE_CHECKING:
    from sonde.run.run import Run

__all__ = ["DiskWriter", "Flushing", "publish"]

_FAN_IN = 64  # parts of one generation that become one while the run is written: a week of flushes leaves about 200 parts
_NEEDED_AT_EXIT = ("duckdb", "pyarrow.parquet", "concurrent.futures.thread")  # the last by pandas, which cannot import it then


@dataclass(frozen=True, slots=True)
class Flushing:
    """When appended rows go to disk, and what happens when the disk does not keep up.

    Attributes:
        seconds: at most so long after they were appended. It is what a kill can lose.
        size: or as soon as so many bytes wait.
        limit: bytes that may wait in memory.
        patience: seconds that ``append`` waits for room in them before rows are dropped, with one warning, and counted.
        sync: put every part on the disk itself before it gets its name, so that power failure leaves only whole parts too.
        fan_in: parts of one generation that are merged while the run is being written.

    Raises:
        ArgumentError: one of them is not above 0, or *fan_in* not above 1.
    """

    seconds: float = 10.0
    size: int = 8 << 20
    limit: int = 128 << 20
    patience: float = 10.0
    sync: bool = True
    fan_in: int = _FAN_IN

    def __post_init__(self) -> None:
        for name, least in (("seconds", 0), ("size", 0), ("limit", 0), ("patience", 0), ("fan_in", 1)):
            if not getattr(self, name) > least:
                raise ArgumentError(f"{name}={getattr(self, name)!r}: it must be above {least}")


def publish(folder: Path, part: Part, table: Any, *, sync: bool) -> Path:
    """Write *table* as *part* of the family in *folder*; a reader sees all of it or nothing."""
    import pyarrow.parquet

    path = folder / part.name
    folder.mkdir(exist_ok=True)
    texts = [name for name in (*KEYS, "name") if name in table.column_names]
    with appearing(path, sync=sync) as temporary:
        # numbers hardly repeat, and pyarrow would look; its schema would make sites categories here and texts after compaction
        pyarrow.parquet.write_table(table, temporary, use_dictionary=texts, store_schema=False)
    return path


class DiskWriter(RunWriter):
    """Writes one rank's share of the run in a folder. Made by ``start_run`` and ``join_run``.

    Attributes:
        path: the run's folder.
        life: which of the processes that wrote this run one after another this is, from 1.
    """

    def __init__(self, path: Path, rank: int, description: Description, lock: Lock, flushing: Flushing) -> None:
        for module in _NEEDED_AT_EXIT:
            import_module(module)
        life = description.lives[-1]
        super().__init__(rank, life.first_step, room=flushing.limit)
        self.path = path
        self.life = life.life
        self._description = description
        self._lock = lock
        self._flushing = flushing
        self._process = os.getpid()
        self._trouble = Trouble(str(path))
        self._merging = True
        self._numbers: dict[str, int] = {}  # the last flush of each family
        for folder in self._families():
            remove_leftovers(folder, prefix_of(rank))
            sweep(folder, rank)
            self._numbers[folder.name] = max((part.last for part in parts_in(folder) if part.rank == rank), default=0)
            self._remember_kinds(folder)
        how = {"seconds": flushing.seconds, "size": flushing.size, "limit": flushing.limit, "patience": flushing.patience}
        self._background = Background(self._write, rank=rank, trouble=self._trouble, **how)  # type: ignore[arg-type]
        atexit.register(self.close)

    def _families(self) -> list[Path]:
        return [folder for folder in sorted(self.path.iterdir()) if folder.is_dir() and parts_in(folder)]

    def _remember_kinds(self, folder: Path) -> None:
        """What the columns of an earlier life hold: one that changed would make the family unreadable."""
        import pyarrow
        import pyarrow.parquet

        for part in parts_in(folder):
            with suppress(OSError, pyarrow.ArrowException):  # a damaged part; the reader names it
                for column in pyarrow.parquet.read_schema(folder / part.name):
                    text = pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)
                    kind = "text" if text else "list" if pyarrow.types.is_nested(column.type) else "number"
                    self._kinds[folder.name, column.name.lower()] = kind

    @property
    def lost(self) -> int:
        return self._background.lost

    def describe(self, **about: Any) -> None:
        self._must_be_open()
        if self.rank:
            raise ArgumentError(f"rank 0 describes the run; this is rank {self.rank}")
        self._description = self._description.telling(about)
        try:
            self._description.write(self.path, sync=self._flushing.sync)
        except OSError as error:
            self._trouble.note(f"run.json: {error}")
            self._trouble.say()

    def _write_document(self, name: str, data: Any) -> None:
        file = f"{name}.json" if self.rank == 0 else f"{name}-r{self.rank:04d}.json"
        try:
            write_json(self.path / file, data, sync=self._flushing.sync)
        except OSError as error:
            self._trouble.note(f"{file}: {error}")
            self._trouble.say()

    def _take(self, family: str, item: Block | Lines) -> None:
        self._background.put(family, item)

    def flush(self) -> None:
        self._background.flush()

    def _write(self, family: str, table: Any) -> None:
        """In the background: one part, and now and then one of many."""
        number = self._numbers.get(family, 0) + 1
        publish(self.path / family, Part(self.rank, number, number, 0, self.life), table, sync=self._flushing.sync)
        self._numbers[family] = number
        if self._merging and number % self._flushing.fan_in == 0:
            self._merging = self._compact(self.path / family, fan_in=self._flushing.fan_in, threads=1)

    def _compact(self, folder: Path, *, fan_in: int, threads: int) -> bool:
        """Whether it worked; if not (a full disk), the parts stay as they are, which costs readers time and nothing else."""
        import duckdb

        how = {"sync": self._flushing.sync, "fan_in": fan_in, "threads": threads}
        try:
            compact(folder, rank=self.rank, life=self.life, cutoffs=self._description.cutoffs, **how)  # type: ignore[arg-type]
        except (OSError, duckdb.Error):
            return False
        return True

    def _end(self) -> None:
        if os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        try:
            self._background.stop()
        finally:
            with suppress(OSError):  # of a full disk, or of a folder that was removed: the run stays marked as not closed
                for folder in self._families():
                    self._compact(folder, fan_in=1, threads=min(4, os.cpu_count() or 1))
                if self.rank == 0:
                    self._description.ended(self.life, self.lost).write(self.path, sync=self._flushing.sync)
            self._lock.release()

    def run(self) -> Run:
        from sonde.run.run import open_run

        self.flush()
        return open_run(self.path)

    def __repr__(self) -> str:
        return f"<writer of the run {json.dumps(str(self.path))}, {'closed' if self._closed else 'open'}>"
