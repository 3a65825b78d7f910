"""A recorder on disk: a safetensors file for each slot, named after its module, and a JSON index.

::

    index.json                    format, version, kind, reduction, and for each slot index, site, type, samples, file, value
    000-(root).safetensors        the tensors of slot 0
    001-layers.3.safetensors      of slot 1

The form of a value is that of ``tree.py``; a slot without tensors has no file. All of it is written to a folder of another
name first, and moved to its place at the end, the index last: a reader sees all of it or none.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from safetensors import SafetensorError
from safetensors.torch import save_file

from sonde.errors import StoreError
from sonde.keep.recorders.json_tree import planted
from sonde.keep.recorders.slots import Subrecorder

__all__ = ["FORMAT", "INDEX", "VERSION", "Making", "save"]

FORMAT = "sonde-recorder"
VERSION = 1
INDEX = "index.json"
_UNFINISHED = ".sonde-tmp"  # ends the names of folders that a killed program may leave


@dataclass(frozen=True)
class Making:
    """Whether a missing folder is made, and how: the arguments of ``Path.mkdir`` with defaults that make the most of it."""

    wanted: bool
    mode: int = 0o777
    parents: bool = True
    exist_ok: bool = True

    @classmethod
    def of(cls, wanted: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Making:
        """The making that the arguments of ``Recorder.save`` mean.

        Raises:
            TypeError: they are not those of ``Path.mkdir``.
        """
        return cls(wanted, *args, **kwargs)


def save(described: dict[str, Any], slots: Sequence[Subrecorder], path: Path, making: Making, overwrite: bool) -> Path:
    """Write *slots* to the folder *path*; see ``Recorder.save``."""
    path = Path(os.path.abspath(path))  # noqa: PTH100  # "." has no name; links stay what they are
    _check(path, making, overwrite)
    made: list[Path] = []
    try:
        for folder in reversed([above for above in path.parents if not above.exists()]):
            folder.mkdir()
            made.append(folder)
        with _appearing(path, making.mode) as building:
            _fill(building, described, slots)
    except BaseException as error:
        for folder in reversed(made):
            with suppress(OSError):  # somebody else has put something there
                folder.rmdir()
        if isinstance(error, OSError | SafetensorError):
            raise StoreError(f"{path} cannot be written: {error}. Nothing was changed there") from error
        raise
    return path


def _check(path: Path, making: Making, overwrite: bool) -> None:
    if not path.exists():
        if not making.wanted:
            raise StoreError(f"there is no folder {path}: mkdir=True makes it")
        if not making.parents and not path.parent.exists():
            raise StoreError(f"there is no folder {path.parent} to make {path.name} in: leave parents=False out to make both")
        return
    if making.wanted and not making.exist_ok:
        raise StoreError(f"{path} is there already, and exist_ok=False: give another path")
    if path.is_symlink() or not path.is_dir():
        raise StoreError(f"{path} is a file or a link, not a folder that could be written: give another path")
    if _index_last(path):
        if not _is_ours(path):
            raise StoreError(f"{path} holds something else, which is not replaced: give another path, or one in it with mkdir=True")
        if not overwrite:
            raise StoreError(f"{path} holds a saved recorder already: give another path, or overwrite=True to replace it")


def _is_ours(path: Path) -> bool:
    """Whether nothing is there but what an earlier ``save`` wrote."""
    try:
        index = json.loads((path / INDEX).read_text(encoding="utf-8"))
        known = {INDEX, *(slot["file"] for slot in index["slots"])}
        return index["format"] == FORMAT and all(held.name in known for held in _index_last(path))
    except (OSError, ValueError, TypeError, KeyError):
        return False


@contextmanager
def _appearing(path: Path, mode: int) -> Iterator[Path]:
    """Give a new folder to write to; at the end of the block *path* holds what it holds, or if anything fails what it held."""
    unique = f".{uuid.uuid4().hex[:12]}"
    existed = path.exists()
    # in a folder that is there: it may be a mount point, or where the program runs, and cannot be replaced itself
    building = (path if existed else path.parent) / f"{unique}{_UNFINISHED}"
    former = path / f"{unique}-former{_UNFINISHED}"
    building.mkdir(mode)
    try:
        yield building
        if existed:
            former.mkdir()
            _exchange(path, building, former)
        else:
            building.replace(path)
    finally:
        shutil.rmtree(building, ignore_errors=True)
        if existed:
            shutil.rmtree(former, ignore_errors=True)


def _exchange(path: Path, building: Path, former: Path) -> None:
    """Move the files of *path* to *former* and those of *building* to *path*. Without an index there is nothing to read."""
    new: list[Path] = []
    try:
        for file in _index_last(path)[::-1]:
            file.replace(former / file.name)
        for file in _index_last(building):
            new.append(file.replace(path / file.name))
    except BaseException:
        for file in reversed(new):
            file.unlink()
        for file in _index_last(former):
            file.replace(path / file.name)
        raise


def _index_last(folder: Path) -> list[Path]:
    return sorted(
        (file for file in folder.iterdir() if file.name[-len(_UNFINISHED) :] != _UNFINISHED), key=lambda file: file.name == INDEX
    )


def _fill(folder: Path, described: dict[str, Any], slots: Sequence[Subrecorder]) -> None:
    written = []
    for slot in slots:
        tree, tensors = planted(slot.value)
        file = _file_name(slot) if tensors else None
        if file is not None:
            save_file(tensors, folder / file, metadata={"format": "pt", "site": str(slot.site)})
        written.append(
            {
                "index": slot.index,
                "site": str(slot.site),
                "name": slot.name,
                "type": slot.type,
                "samples": slot.samples,
                "tick": None if slot.tick is None else slot.tick._asdict(),
                "file": file,
                "value": tree,
            }
        )
    index = {"format": FORMAT, "version": VERSION, **described, "slots": written}
    (folder / INDEX).write_text(json.dumps(index, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _file_name(slot: Subrecorder) -> str:
    """The module's name, with what a file name may not hold written ``%XX``; the position tells apart what looks the same."""
    name = quote(slot.name or "(root)", safe="() ,=+")
    model = f"{quote(slot.site.model, safe='')}@" if slot.site.model else ""
    return f"{slot.index:03d}-{(model + name)[:200]}.safetensors"
