"""The index of a store of tensors, and the journals that it is made of while the store is written.

::

    index.json                   format, version, complete, holds, about; shards: a line for each shard that it knows
    shards.jsonl                 while the store is written shard by shard: a line for each whole shard, with a checksum of its own
    tensors-00001.safetensors
    shards-r0003.jsonl, tensors-r0003-00001.safetensors    the part of another rank

A line has the ``shard``, its ``bytes``, the checksum of its ``header``, and of each of its ``tensors`` the checksum of the bytes,
the type and the shape. A store that holds records has the ``records`` of the shard beside them; the key of a tensor is
``<record>/<site><leaf>``. One that holds rows has the number of ``rows``, the first and the last of the ``items`` that they belong
to, and what its writer says ``about`` the shard; the key of a tensor is the name of a column.

A line is written behind the journal when its shard has its name. A reader takes the lines of the index, and those of the journals
that the index has not: at any moment, and after a kill, it sees whole shards only. A last line that was not finished is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sonde.errors import StoreError
from sonde.run import form
from sonde.run.folder.files import is_leftover
from sonde.run.folder.json_file import parse_json, read_bytes, write_json
from sonde.run.form import Absent

FORMAT = "sonde-tensors"
VERSION = 4
INDEX = "index.json"

Holds = Literal["records", "rows"]
Line = dict[str, Any]

_LARGEST = 2**62  # of a size of a tensor

_SHARD = re.compile(r"tensors-(?:r(\d{4,9})-)?(\d{5,18})\.safetensors")
_JOURNAL = re.compile(r"shards(?:-r(\d{4,9}))?\.jsonl")
_LOCK = re.compile(r"\.lock-r\d{4,9}")


def shard_name(rank: int | None, number: int) -> str:
    """Return the name of the shard of this *number* of one rank, or of the only writer."""
    return f"tensors-{_part(rank)}{number:05d}.safetensors"


def journal_name(rank: int | None) -> str:
    """Return the name of the journal of one rank, or of the only writer."""
    return f"shards{'' if rank is None else f'-{_part(rank)[:-1]}'}.jsonl"


def _part(rank: int | None) -> str:
    return "" if rank is None else f"r{rank:04d}-"


def place_of(shard: str) -> tuple[int, int]:
    """Return the rank and the number of a shard: the order of shards. The only writer comes before all ranks."""
    found = _SHARD.fullmatch(shard)
    return (-1, 0) if found is None else (-1 if found[1] is None else int(found[1]), int(found[2]))


def shards_in(folder: Path, rank: int | None = None) -> list[str]:
    """Return the names of the shards in *folder* that one rank, or the only writer, has written."""
    part = -1 if rank is None else rank
    return [name for name in all_shards_in(folder) if place_of(name)[0] == part]


def all_shards_in(folder: Path) -> list[str]:
    """Return the names of the shards in *folder*, of whatever writer."""
    return [file.name for file in folder.iterdir() if _SHARD.fullmatch(file.name)]


def journals_in(folder: Path) -> dict[str, int | None]:
    """Return the names of the journals in *folder*, each with its rank."""
    found = (match for file in folder.iterdir() if (match := _JOURNAL.fullmatch(file.name)) is not None)
    return {match[0]: None if match[1] is None else int(match[1]) for match in sorted(found, key=lambda each: each[0])}


def others_in(folder: Path) -> list[str]:
    """Return the names of what lies in *folder* and belongs to no store of tensors."""
    ours = (_SHARD, _JOURNAL, _LOCK)
    names = [file.name for file in folder.iterdir() if not is_leftover(file)]
    return [name for name in names if name != INDEX and not any(kind.fullmatch(name) for kind in ours)]


def is_store(folder: Path) -> bool:
    """Return whether the index in *folder* says that it is one of tensors, of whatever version."""
    try:
        return parse_json(read_bytes(folder / INDEX), INDEX)[0].get("format") == FORMAT
    except (FileNotFoundError, StoreError):
        return False


@dataclass(slots=True)
class Index:
    """What the index of a store says.

    Attributes:
        holds: whether the shards hold records or rows.
        about: plain data about the whole store.
        complete: whether the writer has finished.
        shards: the lines.
    """

    holds: Holds
    about: dict[str, Any]
    complete: bool
    shards: list[Line]

    def write(self, folder: Path, *, sync: bool = False) -> None:
        """Put this in the place of the index in *folder*, whole or not at all."""
        about = {"format": FORMAT, "version": VERSION, "complete": self.complete, "holds": self.holds, "about": self.about}
        write_json(folder / INDEX, {**about, "shards": self.shards}, sync=sync)

    def add(self, lines: Iterable[Line]) -> None:
        """Take those *lines* that are not there yet, in the order of the shards."""
        known = {line["shard"] for line in self.shards}
        self.shards = sorted([*self.shards, *(line for line in lines if line["shard"] not in known)], key=_place)

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Return the index in *folder*, with the types that it must have.

        Raises:
            StoreError: there is none, it is of another kind or version, or damaged.
        """
        try:
            index, fits = parse_json(read_bytes(folder / INDEX), INDEX, (INDEX,))
        except (FileNotFoundError, StoreError) as error:
            raise StoreError(f"{folder} is not a folder of tensors: {INDEX} cannot be read ({error})") from None
        if index.get("format") != FORMAT:
            raise StoreError(f"{folder} is not a folder of tensors: its {INDEX} is of another kind")
        version = index.get("version")
        if version != VERSION:
            cure = "update sonde" if isinstance(version, int) and version > VERSION else "save again with this sonde"
            raise StoreError(f"{folder} was written in version {version} of the format, and this sonde reads {VERSION}: {cure}")
        try:
            read = _INDEX(index, "")
            line = _LINE[read["holds"]]
            lines = [line(held, f"shards[{place}]") for place, held in enumerate(read["shards"])]
        except StoreError as error:
            raise StoreError(f"{folder} is not whole: in its {INDEX}, {error}") from None
        if not fits:
            raise StoreError(f"{folder / INDEX} is damaged or was changed after it was written: its checksum does not fit")
        return cls(read["holds"], read["about"], read["complete"], lines)


def _place(line: Line) -> tuple[int, int]:
    return place_of(line["shard"])


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one writer.

    Attributes:
        lines: the whole ones.
        size: the bytes up to the end of the last whole line.
        damage: of each line in between that is not as it was written, what is wrong, in words.
    """

    lines: list[Line]
    size: int
    damage: list[str]

    @classmethod
    def read(cls, file: Path, holds: Holds) -> Journal:
        """Return what *file* says; nothing where there is none."""
        try:
            held = read_bytes(file)
        except FileNotFoundError:
            return cls([], 0, [])
        except StoreError as error:
            return cls([], 0, [str(error)])
        *whole, _ = held.split(b"\n")
        lines, damage = [], []
        for number, text in enumerate(whole, 1):
            try:
                line, fits = parse_json(text, f"line {number} of {file}", (file.name,))
                if not fits:
                    raise StoreError(f"line {number} of {file} is damaged: its checksum does not fit")
                lines.append(_LINE[holds](line, f"line {number} of {file}"))
            except StoreError as error:
                damage.append(str(error))
        return cls(lines, held.rfind(b"\n") + 1, damage)


def _shard(held: Any, where: str) -> str:
    """Return the name of a shard: a name, and no path, so that nothing outside of the folder is ever read."""
    return held if isinstance(held, str) and _SHARD.fullmatch(held) else form.refuse(where, held, "the name of a shard")


def _key_of_record(held: Any, where: str) -> str:
    return held if isinstance(held, str) and "/" in held else form.refuse(where, held, "<record>/<site>")


_of_tensor = form.row(checksum=form.text, dtype=form.text, shape=form.listed(form.count))


def _tensor(held: Any, where: str) -> tuple[str, str, tuple[int, ...]]:
    """Return what a line says of one tensor; a store of ten thousand shards has a hundred thousand of them."""
    match held:
        case [str(checksum), str(dtype), list(shape)] if all(type(size) is int and 0 <= size < _LARGEST for size in shape):
            return checksum, dtype, tuple(shape)
    read: tuple[str, str, tuple[int, ...]] = _of_tensor(held, where)  # says what is wrong
    return read


_every = {"shard": _shard, "bytes": form.count, "header": form.text}
_LINE = {
    "records": form.members(**_every, tensors=form.named(_tensor, _key_of_record), records=form.listed(form.mapping)),
    "rows": form.members(
        **_every,
        tensors=form.named(_tensor),
        rows=form.count,
        items=form.listed(form.count, 2),
        about=Absent(form.mapping, {}),
    ),
}
_INDEX = form.members(
    complete=form.flag, holds=form.one_of("records", "rows"), about=form.mapping, shards=form.listed(form.anything)
)
