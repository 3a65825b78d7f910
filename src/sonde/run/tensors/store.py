"""Read a store of tensors: a mapping from key to tensor, each mapped into memory and checked when it is read for the first time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from sonde.errors import SiteError, StoreError, UnknownSiteError
from sonde.paths import absolute_path
from sonde.run.json_tree import decode
from sonde.run.tensors.index import INDEX, Index, Journal, Line, journals_in
from sonde.run.tensors.shards import Shards
from sonde.site import Site
from sonde.suggest import nearest
from sonde.warn import warn_user


class TensorStore(Mapping[str, Any]):
    """A folder of tensors, open for reading: a mapping from key to tensor.

    Tensors are mapped into memory; the first access to one reads it whole and compares its checksum.
    ``store["000012/layers.3.mlp:output"]``
    is one tensor, ``store.at("layers.3.mlp")`` every tensor of a module in the order they were kept, and ``store.value(12)``
    the value of record 12, in its structure.

    Attributes:
        path: the folder.
        about: plain data about the whole store, such as the kind of probe that wrote it.
        records: plain data about each record: its site, its module, when it was kept.
        complete: false if the writer did not finish; the records of the shards it finished are there.
    """

    def __init__(self, shards: Shards, index: Index) -> None:
        self.path = shards.folder
        self.about = index.about
        self.complete = index.complete
        self.records: list[dict[str, Any]] = [record for line in index.shards for record in line["records"]]
        self._shards = shards
        self._line_of: dict[str, Line] = {key: line for line in index.shards for key in line["tensors"]}

    def __getitem__(self, key: str) -> Any:
        if key not in self._line_of:
            raise UnknownSiteError(f"{self.path} has no tensor {key!r}. {nearest(key, self)}")
        return self._shards.tensor(self._line_of[key], key).detach()

    def __contains__(self, key: object) -> bool:
        return key in self._line_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._line_of)

    def __len__(self) -> int:
        return len(self._line_of)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that have tensors, in order."""
        return tuple(dict.fromkeys(key.split("/", 1)[1] for key in self))

    def at(self, site: str | Site) -> list[Any]:
        """Every tensor of a module, of one of its ports or of one leaf, in the order they were kept.

        Raises:
            UnknownSiteError: the store has no tensor there; the message names the nearest.
            SiteError: the text is the site of one module and the name of another.
        """
        held: dict[str, Site] = {}
        for text in self.sites:
            with suppress(SiteError):
                held[text] = Site.parse(text)
        aliases = self.about.get("aliases")
        others = aliases if isinstance(aliases, dict) else {}
        asked, whole_module = Site.asked(site, held.values(), lambda path: str(others.get(path, path)))
        wanted = {text for text, each in held.items() if asked.covers(each, whole_module=whole_module)}
        if not wanted:
            names = [each.at("").name if whole_module and ":" not in str(site) else text for text, each in held.items()]
            raise UnknownSiteError(f"{self.path} has no tensor of {str(site)!r}. {nearest(str(site), names)}")
        return [self[key] for key in self if key.split("/", 1)[1] in wanted]

    def value(self, record: int) -> Any:
        """The value of a record, in its structure.

        Tuples, lists, dicts and numbers come back as they were, named tuples and dataclasses as dicts of their fields, and
        what could not be written as its description in ``<...>``.

        Raises:
            StoreError: the index names a tensor that is not there, or a shard is missing or broken.
        """
        return decode(self.records[record].get("value"), self._of_value)

    def _of_value(self, key: str) -> Any:
        if key not in self:
            raise StoreError(f"{self.path} is not whole: its {INDEX} names a tensor {key!r} and no shard that holds it")
        return self[key]

    def __repr__(self) -> str:
        state = "" if self.complete else ", not complete"
        return (
            f"TensorStore({str(self.path)!r}: {len(self)} tensors of {len(self.sites)} sites, {len(self.records)} records{state})"
        )


def open_tensors(path: str | os.PathLike[str]) -> TensorStore:
    """Open a folder that ``Tracker.save`` or ``Recorder.save`` wrote. Nothing in it is executed: it holds JSON and safetensors.

    Raises:
        StoreError: the folder is no store of tensors, is not whole, or was written in another version of the format.
    """
    folder = absolute_path(path)
    index = Index.read(folder)
    for name in journals_in(folder):
        journal = Journal.read(folder / name, index.holds)
        index.add(journal.lines)
        for each in journal.damage:
            warn_user(f"{each}. The shard that it names is left out; the others are read")
    if not index.complete and not index.shards:
        raise StoreError(f"{folder} is empty: the program that wrote it did not finish")
    return TensorStore(Shards(folder), index)
