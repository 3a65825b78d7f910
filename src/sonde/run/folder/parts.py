"""Parts of a family: their names, and which of them count.

A part is ``part-r<rank>-l<life>-g<generation>-<first>-<last>.parquet``. Each rank numbers the parts it flushes 1, 2, 3, ...
(``first`` = ``last``, generation 0). Compaction writes the parts ``first`` to ``last`` anew as one, of a higher generation,
and then removes them. So the names alone say which parts count: one that lies within a part of the same rank and a higher
generation does not, whether or not it has been removed yet, and nothing is ever read twice.

A life is one process's share of a run: a training that is resumed begins another. It starts at a step, and rows of earlier
lives from that step on are superseded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Part", "cutoffs", "live_parts", "parts_in", "prefix_of"]

_NAME = re.compile(r"part-r(\d+)-l(\d+)-g(\d+)-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One file of a family.

    Attributes:
        rank: of the process that wrote it.
        first, last: the flushes it holds the rows of.
        generation: 0 as flushed; one more than what it was made of after compaction.
        life: in which it was written; what earlier lives had superseded is not in it.
    """

    rank: int
    first: int
    last: int
    generation: int
    life: int

    @property
    def name(self) -> str:
        return f"{prefix_of(self.rank)}l{self.life:03d}-g{self.generation:02d}-{self.first:06d}-{self.last:06d}.parquet"

    @classmethod
    def parse(cls, name: str) -> Part | None:
        """The part that a file of this name is, if any."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        rank, life, generation, first, last = map(int, found.groups())
        return cls(rank, first, last, generation, life)

    def holds(self, other: Part) -> bool:
        """Whether *other* was compacted into this one."""
        return (
            self.rank == other.rank and self.generation > other.generation and self.first <= other.first and other.last <= self.last
        )


def prefix_of(rank: int) -> str:
    """What the names of all parts of one rank start with."""
    return f"part-r{rank:04d}-"


def parts_in(folder: Path) -> list[Part]:
    """Every part in *folder*, in order of rank and flush; other files are none of ours. An absent folder has none."""
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(part for part in map(Part.parse, names) if part is not None)


def live_parts(parts: Iterable[Part]) -> list[Part]:
    """The parts whose rows count: those that no other holds, in order of rank and flush."""
    kept: list[Part] = []
    for part in sorted(parts, key=lambda part: (part.rank, -part.generation, part.first)):
        if not any(other.holds(part) for other in kept):
            kept.append(part)
    return sorted(kept)


def cutoffs(starts: Sequence[tuple[int, int]]) -> Mapping[int, int | None]:
    """Of each life the step from which its rows are superseded (None: never), given each life's number and first step."""
    limits: dict[int, int | None] = {}
    lowest: int | None = None
    for life, start in sorted(starts, reverse=True):
        limits[life] = lowest
        lowest = start if lowest is None else min(lowest, start)
    return limits
