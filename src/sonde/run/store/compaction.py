"""Merge many small parts into one that is sorted by site and step. At no moment is a row lost or read twice."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sonde.run.folder.checksum import file_checksum
from sonde.run.folder.duckdb_sql import connect, damage, literal, quoted, rows_of
from sonde.run.folder.files import appearing
from sonde.run.folder.parts import Part, live_parts, parts_in
from sonde.run.folder.verify import fault
from sonde.run.schema import STORED_ORDER

if TYPE_CHECKING:
    import duckdb


_MEMORY = "512MB"  # beyond it DuckDB spills to a folder beside the parts


@dataclass(slots=True)
class Merger:
    """Merges the parts of one rank. As a context manager it serves many folders with one database, which takes 12 ms to open.

    Attributes:
        rank: whose parts.
        attempt: the number that merged parts get.
        cutoffs: by attempt, the step from which on its rows are superseded.
        sync: wait until the disk has what was written.
        threads: how many DuckDB uses.
    """

    rank: int
    attempt: int
    cutoffs: Mapping[int, int | None]
    sync: bool
    threads: int
    _database: duckdb.DuckDBPyConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def compact(self, folder: Path, *, fan_in: int) -> None:
        """Merge the parts in *folder* wherever *fan_in* of one generation lie side by side.

        With *fan_in* 1, all become one part. A damaged part is never merged and never removed.

        Raises:
            OSError, duckdb.Error: a part could not be written. The parts from before stay live.
        """
        before: list[Part] = []
        while (parts := self._parts(folder)) != before:
            before = parts
            for together in _neighbours(parts, fan_in):
                for whole in _without_damaged(folder, together):
                    if len(whole) > 1 or whole[0].generation == 0 or self.cutoffs.get(whole[0].attempt) is not None:
                        self._merge(folder, whole)  # else it is a single part, sorted already, without superseded rows

    def thin(self, folder: Path, steps: Collection[int]) -> None:
        """Merge the parts in *folder* into one that has the rows of *steps* alone. Damaged parts stay as they are.

        Raises:
            OSError, duckdb.Error: a part could not be written. The parts from before stay live.
        """
        for whole in _without_damaged(folder, self._parts(folder)):
            self._merge(folder, whole, steps)

    def _parts(self, folder: Path) -> list[Part]:
        return [part for part in live_parts(parts_in(folder)) if part.rank == self.rank]

    def _merge(self, folder: Path, parts: Sequence[Part], steps: Collection[int] | None = None) -> None:
        """Write neighbouring *parts* as one part, of *steps* alone if they are given, and remove them."""
        made = Part(
            rank=self.rank,
            first=min(part.first for part in parts),
            last=max(part.last for part in parts),
            generation=1 + max(part.generation for part in parts),
            attempt=self.attempt,
        )

        def name(written: Path) -> str:
            return replace(made, checksum=file_checksum(written)).name

        with appearing(folder / made.name, sync=self.sync, name=name) as temporary:
            spill = temporary.with_suffix(f".spill{temporary.suffix}")
            try:
                files = [(folder / part.name, self.cutoffs.get(part.attempt)) for part in parts]
                self._write_sorted(files, steps, temporary, spill)
            except BaseException:
                self._close()
                raise
            finally:
                if spill.exists():  # a database that has spilled stays with its folder
                    self._close()
                    shutil.rmtree(spill, ignore_errors=True)
        _remove(folder, parts)

    def _write_sorted(
        self, files: Sequence[tuple[Path, int | None]], steps: Collection[int] | None, path: Path, spill: Path
    ) -> None:
        """Write the rows of *files* to *path*, in the order of parts; what memory does not hold goes to the folder *spill*."""
        if self._database is None:
            self._database = connect({"threads": self.threads, "memory_limit": _MEMORY})
        database = self._database
        database.execute(f"SET temp_directory = {literal(str(spill))}")
        everything = rows_of(files)
        chosen = ", ".join(literal(step) for step in sorted(steps or ()))
        rows = everything if steps is None else f"SELECT * FROM ({everything}) WHERE step IN ({chosen})"
        columns = {name for name, *_ in database.execute(f"DESCRIBE {rows}").fetchall()}
        order = ", ".join(quoted(name) for name in STORED_ORDER if name in columns)
        database.execute(f"COPY (FROM ({rows}) ORDER BY {order}) TO {literal(str(path))} (FORMAT parquet, COMPRESSION snappy)")

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _neighbours(parts: Sequence[Part], fan_in: int) -> Iterator[Sequence[Part]]:
    """Yield the groups of parts that are to become one: all, or *fan_in* neighbours of one generation."""
    if fan_in == 1:
        if parts:
            yield parts
        return
    run: list[Part] = []
    for part in parts:
        if run and run[-1].generation != part.generation:
            run = []
        run.append(part)
        if len(run) == fan_in:
            yield run
            run = []


def _without_damaged(folder: Path, parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Yield *parts*, split at damaged ones, so that each merged part stays one range of flushes."""
    whole: list[Part] = []
    classes: dict[str, str] = {}
    for part in parts:
        if fault(folder, part, classes) or damage(folder / part.name):
            if whole:
                yield whole
            whole = []
        else:
            whole.append(part)
    if whole:
        yield whole


def sweep(folder: Path, rank: int) -> None:
    """Remove the parts of one rank that were merged into others. A process that was killed in between leaves some.

    Where the merged part turns out to be damaged, its parts stay and are live again.
    """
    everything = [part for part in parts_in(folder) if part.rank == rank]
    counted = live_parts(everything)
    for holder in counted:
        held = [part for part in everything if holder.holds(part)]
        if held and not fault(folder, holder, {}) and not damage(folder / holder.name):
            _remove(folder, held)


def _remove(folder: Path, parts: Sequence[Part]) -> None:
    for part in parts:
        (folder / part.name).unlink(missing_ok=True)
