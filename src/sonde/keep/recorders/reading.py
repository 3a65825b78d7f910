"""A recorder that was saved, open for reading: positions and names answer as they did, tensors are read when asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from safetensors import SafetensorError, safe_open

from sonde.engine import Site, Tick
from sonde.errors import SondeError, StoreError
from sonde.keep.recorders import json_tree
from sonde.keep.recorders.saving import FORMAT, INDEX, VERSION
from sonde.keep.recorders.slots import Key, Subrecorder, find, leaf_of

__all__ = ["Recorded", "open_recorded"]


class Recorded(Sequence[Any]):
    """What ``Recorder.save`` wrote: ``recorded[i]``, ``recorded["layers.3"]``, ``len``, iteration, ``samples``.

    Tuples, lists, dicts and numbers come back as they were, named tuples and dataclasses as dicts of their fields, and what
    could not be written as its description in ``<...>``.

    Attributes:
        path: the folder.
        kind: the class of the recorder, ``ForwardOutput``.
        reduction: its reduction, as text; None without one.
        subrecorders: the slots; a slot's ``value`` is empty here, ask by its position or name.
    """

    def __init__(self, path: Path, index: dict[str, Any]) -> None:
        self.path = path
        self.kind: str = index["kind"]
        self.reduction: str | None = index["reduction"]
        self.subrecorders = [_slot(place, written) for place, written in enumerate(index["slots"])]
        self._written = [(written["value"], written["file"]) for written in index["slots"]]

    def __len__(self) -> int:
        return len(self.subrecorders)

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    @overload
    def __getitem__(self, key: Key) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...
    def __getitem__(self, key: Key | slice) -> Any:
        """What one slot kept, by position, module name or site; or a list of them, by slice.

        Raises:
            UnknownSlotError: there is no such slot; the message names the nearest.
            StoreError: its file is missing or broken.
        """
        if isinstance(key, slice):
            return [self[place] for place in range(len(self))[key]]
        slot, leaf = find(self.subrecorders, key)
        written, file = self._written[slot.index]
        return leaf_of(slot, json_tree.read(written, _Tensors(self.path, file)), leaf, several=self.reduction is None)

    def samples(self, index: Key) -> int:
        """How many calls the slot had recorded."""
        return find(self.subrecorders, index)[0].samples

    def iter_samples(self) -> Iterator[int]:
        """For each slot, how many calls it had recorded."""
        return (slot.samples for slot in self.subrecorders)

    def __repr__(self) -> str:
        how = "" if self.reduction is None else f", reduced by {self.reduction}"
        return f"Recorded({str(self.path)!r}: {len(self)} slots of {self.kind}{how})"


class _Tensors:
    """The tensors of one file, which is opened when the first is asked for."""

    def __init__(self, folder: Path, file: str | None) -> None:
        self._folder = folder
        self._file = file
        self._open: Any = None

    def __call__(self, key: str) -> Any:
        if self._file is None or Path(self._file).name != self._file:
            raise StoreError(f"{self._folder} is not whole: its {INDEX} names a tensor {key!r} and no file that could hold it")
        try:
            if self._open is None:
                self._open = safe_open(self._folder / self._file, framework="pt")
            return self._open.get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise StoreError(f"{self._folder / self._file} cannot be read: {error}") from None


def open_recorded(path: str | os.PathLike[str]) -> Recorded:
    """Open a folder that ``Recorder.save`` wrote. Nothing in it is executed: it holds JSON and safetensors.

    Raises:
        StoreError: it is none, is not whole, or was written by a newer sonde.
    """
    folder = Path(path)
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder} is not a saved recorder: {INDEX} cannot be read ({error})") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise StoreError(f"{folder} is not a saved recorder: its {INDEX} is of another kind")
    if isinstance(index.get("version"), int) and index["version"] > VERSION:
        raise StoreError(f"{folder} was written in version {index['version']}; this sonde reads up to {VERSION}: update it")
    try:
        return Recorded(folder, index)
    except (KeyError, TypeError, AttributeError, SondeError) as error:
        raise StoreError(f"{folder} is not whole: its {INDEX} lacks something or has it in another form ({error!r})") from None


def _slot(place: int, written: dict[str, Any]) -> Subrecorder:
    tick = None if written["tick"] is None else Tick(**written["tick"])
    return Subrecorder(place, Site.parse(written["site"]), written["type"], None, written["samples"], tick=tick)
