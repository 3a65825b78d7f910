"""Read and write what one rank has written so far: the last flush of each family, the documents, and errors that ended attempts.

``written-r<rank>.json`` is written after the parts that it counts. A reader that finds fewer parts knows that some were removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sonde.errors import StoreError
from sonde.run.folder.end import End
from sonde.run.folder.json_file import read_json, write_json
from sonde.run.schema import DOCUMENTS, may_be_family

PATTERN = "written-r[0-9]*.json"


@dataclass(frozen=True, slots=True)
class Written:
    """What one rank has written.

    Attributes:
        families: by family, the number of its last flush.
        documents: the names of the documents.
        ends: the errors and interrupts that ended attempts, in order.
    """

    families: Mapping[str, int] = field(default_factory=dict)
    documents: frozenset[str] = frozenset()
    ends: tuple[End, ...] = ()

    @staticmethod
    def file(folder: Path, rank: int) -> Path:
        """Return the path of the file of one rank."""
        return folder / f"written-r{rank:04d}.json"

    def write(self, folder: Path, rank: int, *, sync: bool) -> None:
        """Put this in place of what is in *folder*, whole or not at all."""
        held = {"families": dict(self.families), "documents": sorted(self.documents)}
        ends = {"ends": [end.to_data() for end in self.ends]} if self.ends else {}
        write_json(self.file(folder, rank), {**held, **ends}, sync=sync)

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
        families, documents = held.get("families"), held.get("documents")
        if not isinstance(families, dict) or not isinstance(documents, list) or not _valid(families, documents):
            raise StoreError(f"{file} is not what sonde writes: it has no usable families or documents")
        ends = held.get("ends", [])
        read = [End.read(each, rank) for each in ends] if isinstance(ends, list) else []
        return cls(families, frozenset(documents), tuple(end for end in read if end is not None))


def _valid(families: Mapping[str, object], documents: Iterable[object]) -> bool:
    numbers = all(may_be_family(name) and type(last) is int and 0 < last < 2**62 for name, last in families.items())
    return numbers and all(name in DOCUMENTS for name in documents)
