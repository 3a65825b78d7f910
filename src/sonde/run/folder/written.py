"""Read and write what one rank has written so far: the last flush of each family, the documents, and errors that ended attempts.

``written-r<rank>.json`` is written after the parts that it counts. A reader that finds fewer parts knows that some were removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sonde.errors import StoreError
from sonde.run import form
from sonde.run.folder.end import End
from sonde.run.folder.json_file import read_json, write_json
from sonde.run.form import Absent
from sonde.run.schema import DOCUMENTS, may_be_family

PATTERN = "written-r[0-9]*.json"

_TIMES = 512  # that are kept

_NAME = re.compile(r"written-r([0-9]{4,18})\.json")


def ranks_in(folder: Path) -> list[int]:
    """Return the ranks that have such a file in *folder*, ascending."""
    found = (match for file in folder.glob(PATTERN) if (match := _NAME.fullmatch(file.name)) is not None)
    return sorted({int(each[1]) for each in found})


@dataclass(frozen=True, slots=True)
class Written:
    """What one rank has written.

    Attributes:
        families: by family, the number of its last flush.
        documents: the names of the documents.
        ends: the errors and interrupts that ended attempts, in order.
        times: steps, ascending, and when the rows up to each of them came to the disk, in seconds since 1970.
    """

    families: Mapping[str, int] = field(default_factory=dict)
    documents: frozenset[str] = frozenset()
    ends: tuple[End, ...] = ()
    times: tuple[tuple[int, float], ...] = ()

    @staticmethod
    def file(folder: Path, rank: int) -> Path:
        """Return the path of the file of one rank."""
        return folder / f"written-r{rank:04d}.json"

    def write(self, folder: Path, rank: int, *, sync: bool) -> None:
        """Put this in place of what is in *folder*, whole or not at all."""
        held = {"families": dict(self.families), "documents": sorted(self.documents)}
        ends = {"ends": [end.to_data() for end in self.ends]} if self.ends else {}
        times = {"times": [list(each) for each in self.times]} if self.times else {}
        write_json(self.file(folder, rank), {**held, **ends, **times}, sync=sync)

    def reached(self, step: int, now: float) -> Written:
        """Return the same with rows up to *step* on the disk since *now*; of too many times every second one goes."""
        times = (*(each for each in self.times if each[0] < step), (step, now))
        return replace(self, times=times if len(times) <= _TIMES else times[::-2][::-1])

    @classmethod
    def read(cls, folder: Path, rank: int) -> Written:
        """Return what *rank* has written in *folder*; nothing where there is no such file.

        Raises:
            StoreError: the file is damaged.
        """
        file = cls.file(folder, rank)
        try:
            held = read_json(file)
        except FileNotFoundError:
            return cls()
        try:
            read = _WRITTEN(held, "")
        except StoreError as error:
            raise StoreError(f"{file} is not what sonde writes: {error}") from None
        ends = (End.read(each, rank) for each in read["ends"])
        times = tuple([(int(step), seconds) for step, seconds in read["times"]])
        return cls(read["families"], frozenset(read["documents"]), tuple([end for end in ends if end is not None]), times)


def _family(held: Any, where: str) -> str:
    return str(held) if may_be_family(held) else form.refuse(where, held, "the name of a family")


_WRITTEN = form.members(
    families=form.named(form.whole(1), _family),
    documents=form.listed(form.one_of(*DOCUMENTS)),
    ends=Absent(form.listed(form.anything), ()),
    times=Absent(form.listed(form.listed(form.time, 2)), ()),
)
