"""The parts of a family: their names, and the rule that says which parts are live.

A part is ``part-r<rank>-a<attempt>-g<generation>-<first>-<last>-<checksum>.parquet``, with the checksum of the whole file. Each
rank numbers the parts it flushes 1, 2, 3, ...
(``first`` = ``last``, generation 0). Compaction writes the parts ``first`` to ``last`` anew as one, of a higher generation,
and then removes them. So the names alone say which parts are live: a part that lies within a part of the same rank and a higher
generation is not, whether or not it has been removed yet. No row is ever read twice.

An attempt is one process's share of a run: a training that is resumed begins another. An attempt starts at a step, and rows of
earlier attempts from that step on are superseded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_LARGEST = 2**62
_NAME = re.compile(r"part-r(\d+)-a(\d+)-g(\d+)-(\d+)-(\d+)-([0-9a-f]{8})\.parquet")


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One file of a family.

    Attributes:
        rank: of the process that wrote it.
        first, last: the numbers of the flushes whose rows are in the file.
        generation: 0 as flushed; after compaction one more than that of the parts that were merged.
        attempt: the number of the attempt that wrote the file; it holds no row that was superseded before.
        checksum: of the whole file; empty before the file is written.
    """

    rank: int
    first: int
    last: int
    generation: int
    attempt: int
    checksum: str = ""

    @property
    def name(self) -> str:
        flushes = f"{self.first:06d}-{self.last:06d}"
        return f"{prefix_of(self.rank)}a{self.attempt:03d}-g{self.generation:02d}-{flushes}-{self.checksum}.parquet"

    @classmethod
    def parse(cls, name: str) -> Part | None:
        """Return the part whose file has this name; None if no part has."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        rank, attempt, generation, first, last = map(int, found.groups()[:-1])
        part = cls(rank, first, last, generation, attempt, found[6])
        return part if part.name == name and max(rank, attempt, last) < _LARGEST else None  # one name for each part

    def holds(self, other: Part) -> bool:
        """Return whether *other* was merged into this part."""
        return (
            self.rank == other.rank and self.generation > other.generation and self.first <= other.first and other.last <= self.last
        )


def prefix_of(rank: int) -> str:
    """Return the beginning of the names of all parts of one rank."""
    return f"part-r{rank:04d}-"


def parts_in(folder: Path) -> list[Part]:
    """Return every part in *folder*, in order of rank and flush. Other files are left out; an absent folder has no parts."""
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(part for part in map(Part.parse, names) if part is not None)


def live_parts(parts: Iterable[Part]) -> list[Part]:
    """Return the parts whose rows are read: those that no other part holds, in order of rank and flush.

    Of several files with the numbers of one part (somebody copied some) only one is read.
    """
    kept: list[Part] = []
    for part in sorted(parts, key=lambda part: (part.rank, -part.generation, part.first, part.last, -part.attempt)):
        if not any(other.holds(part) or replace(other, checksum=part.checksum) == part for other in kept):
            kept.append(part)
    return sorted(kept)


def gaps(parts: Iterable[Part], written: Mapping[int, int]) -> Mapping[int, list[tuple[int, int]]]:
    """Return by rank the flushes that no part holds, as pairs of the first and the last.

    Args:
        parts: of one family, damaged ones too.
        written: by rank, the number of the last flush that is known to have been written.
    """
    ends = dict.fromkeys(written, 0)
    found: dict[int, list[tuple[int, int]]] = {}
    for part in sorted(parts):
        before = ends.get(part.rank, 0)
        if part.first > before + 1:
            found.setdefault(part.rank, []).append((before + 1, part.first - 1))
        ends[part.rank] = max(before, part.last)
    for rank, last in written.items():
        if ends[rank] < last:
            found.setdefault(rank, []).append((ends[rank] + 1, last))
    return found


def cutoffs(starts: Sequence[tuple[int, int]]) -> Mapping[int, int | None]:
    """Return by attempt the step from which its rows are superseded (None: never).

    Args:
        starts: the number and the first step of each attempt.
    """
    limits: dict[int, int | None] = {}
    lowest: int | None = None
    for attempt, start in sorted(starts, reverse=True):
        limits[attempt] = lowest
        lowest = start if lowest is None else min(lowest, start)
    return limits
