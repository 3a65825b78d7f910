"""Merge many small parts into one that is sorted by site and step. At no moment is a row lost or read twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sonde.run.folder.checksum import file_checksum
from sonde.run.folder.duckdb_sql import connect, damage, literal, quoted, rows_of
from sonde.run.folder.files import appearing
from sonde.run.folder.parts import Part, live_parts, parts_in
from sonde.run.folder.verify import fault
from sonde.run.schema import STORED_ORDER

__all__ = ["compact", "sweep"]

_MEMORY = "512MB"  # beyond it DuckDB spills to a folder beside the parts


@dataclass(frozen=True, slots=True)
class _How:
    """The settings of all merges of one writer: its attempt, the limits of earlier attempts, sync, and DuckDB's threads."""

    attempt: int
    cutoffs: Mapping[int, int | None]
    sync: bool
    threads: int


def compact(
    folder: Path, *, rank: int, attempt: int, cutoffs: Mapping[int, int | None], sync: bool, fan_in: int, threads: int
) -> None:
    """Merge the parts of one rank in *folder* wherever *fan_in* of one generation lie side by side.

    With *fan_in* 1, all become one part. A damaged part is never merged and never removed.

    Raises:
        OSError, duckdb.Error: a part could not be written. The parts from before stay live.
    """
    how = _How(attempt, cutoffs, sync, threads)
    before: list[Part] = []
    while (parts := [part for part in live_parts(parts_in(folder)) if part.rank == rank]) != before:
        before = parts
        for together in _neighbours(parts, fan_in):
            _merge_whole(folder, together, how)


def _merge_whole(folder: Path, parts: Sequence[Part], how: _How) -> None:
    """Merge each sequence of *parts* between damaged ones: what is merged gets a new checksum."""
    for whole in _without_damaged(folder, parts):
        _merge_if_worth_it(folder, whole, how)


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


def _merge_if_worth_it(folder: Path, parts: Sequence[Part], how: _How) -> None:
    """Merge *parts*, unless this is a single part that is sorted already and has no superseded rows."""
    if len(parts) > 1 or parts[0].generation == 0 or how.cutoffs.get(parts[0].attempt) is not None:
        _merge(folder, parts, how)


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


def _merge(folder: Path, parts: Sequence[Part], how: _How) -> None:
    """Write neighbouring *parts* of one rank as one part, and remove them."""
    made = Part(
        rank=parts[0].rank,
        first=min(part.first for part in parts),
        last=max(part.last for part in parts),
        generation=1 + max(part.generation for part in parts),
        attempt=how.attempt,
    )

    def name(written: Path) -> str:
        return replace(made, checksum=file_checksum(written)).name

    with appearing(folder / made.name, sync=how.sync, name=name) as temporary:
        spill = temporary.with_suffix(f".spill{temporary.suffix}")
        settings: dict[str, str | int] = {"threads": how.threads, "memory_limit": _MEMORY, "temp_directory": str(spill)}
        try:
            with connect(settings) as connection:
                rows = rows_of([(folder / part.name, how.cutoffs.get(part.attempt)) for part in parts])
                columns = {name for name, *_ in connection.execute(f"DESCRIBE {rows}").fetchall()}
                order = ", ".join(quoted(name) for name in STORED_ORDER if name in columns)
                merged = f"(FROM ({rows}) ORDER BY {order})"
                connection.execute(f"COPY {merged} TO {literal(str(temporary))} (FORMAT parquet, COMPRESSION snappy)")
        finally:
            shutil.rmtree(spill, ignore_errors=True)
    _remove(folder, parts)


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
