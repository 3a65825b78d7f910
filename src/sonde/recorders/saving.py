"""Write slots to a store of tensors, and read a saved recorder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from sonde.engine import walk
from sonde.errors import SondeError, StoreError
from sonde.recorders.reductions.base import value_text
from sonde.recorders.slots import SlotReader, Subrecorder
from sonde.run import Entry, TensorStore, encode, open_tensors
from sonde.schedule import Tick
from sonde.site import Site


def entries_of_slots(slots: Sequence[Subrecorder]) -> Iterator[Entry]:
    """A record with its tensors for each kept value, slot by slot; with a reduction one for each slot."""
    number = 0
    for slot in slots:
        value = slot.value
        for each in value if isinstance(value, list) else [value]:
            yield entry_of(number, slot.site, each, {"slot": slot.index, "name": slot.name, "type": slot.type}, dict(walk(each)))
            number += 1


def slots_as_data(slots: Sequence[Subrecorder]) -> list[dict[str, Any]]:
    """Plain data about each slot; its values are in the records."""
    return [
        {
            "site": str(slot.site),
            "type": slot.type,
            "samples": slot.samples,
            "tick": None if slot.tick is None else slot.tick._asdict(),
            "is_list": isinstance(slot.value, list),
        }
        for slot in slots
    ]


def entry_of(number: int, site: Site, value: Any, record: dict[str, Any], leaves: dict[str, Any]) -> Entry:
    """Return *record* with *value* at *site*, and its tensors; *leaves* gives the path of each tensor."""
    tensors: dict[str, Any] = {}
    paths: dict[int, list[str]] = {}
    for leaf, held in leaves.items():
        paths.setdefault(id(held), []).append(leaf)

    def encode_tensor(part: Any, path: str) -> dict[str, Any] | None:
        if not isinstance(part, Tensor):
            return None
        if part.is_meta or part.is_nested or part.is_quantized:
            kind = "meta" if part.is_meta else "nested" if part.is_nested else "quantized"
            return {"object": f"{kind} tensor {value_text(part)}"}
        known = paths.get(id(part))
        key = f"{number:06d}/{site}{known.pop(0) if known else path}"
        key = key.encode("utf-8", "backslashreplace").decode()  # a name may hold half a surrogate pair
        while key in tensors:
            key += "'"
        tensors[key] = part
        return {"tensor": key}

    return record | {"site": str(site), "value": encode(value, encode_tensor)}, tensors


class Recorded(SlotReader):
    """A saved recorder: ``recorded[i]``, ``recorded["layers.3"]``, ``len``, iteration, ``samples``.

    >>> import tempfile, torch
    >>> from sonde.recorders import ForwardOutput, open_recorded
    >>> net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
    >>> with ForwardOutput(reduction=torch.add).children(net) as recorder, tempfile.TemporaryDirectory() as folder:
    ...     for _ in range(3):
    ...         _ = net(torch.ones(1))
    ...     recorded = open_recorded(recorder.save(f"{folder}/sums"))
    ...     recorded[1], recorded.samples(1)
    (tensor([3.]), 3)

    Tuples, lists, dicts and numbers come back as they were, named tuples and dataclasses as dicts of their fields, and what
    could not be written as its description in ``<...>``.

    Attributes:
        path: the folder.
        store: the tensors and records in the folder, as ``sonde.open_tensors`` reads them.
        kind: the class of the recorder, ``ForwardOutput``.
        reduction: its reduction, as text; None without one.
    """

    def __init__(self, store: TensorStore) -> None:
        about = store.about
        self.path = store.path
        self.store = store
        self.kind: str = about["kind"]
        self.reduction: str | None = about["reduction"]
        self._slots = [_slot(place, written) for place, written in enumerate(about["slots"])]
        self._is_list = [bool(written["is_list"]) for written in about["slots"]]
        self._records: list[list[int]] = [[] for _ in self._slots]
        for number, record in enumerate(store.records):
            self._records[record["slot"]].append(number)
        if any(len(held) != 1 and not is_list for held, is_list in zip(self._records, self._is_list, strict=True)):
            raise ValueError("a slot has not one value")

    @property
    def subrecorders(self) -> list[Subrecorder]:
        """The slots. A slot's ``value`` is empty here: read a value by position or name."""
        return list(self._slots)

    def _canonical(self, name: str) -> str:
        aliases = self.store.about.get("aliases")
        return str(aliases.get(name, name)) if isinstance(aliases, dict) else name

    def _value_of(self, slot: Subrecorder) -> Any:
        values = [self.store.value(number) for number in self._records[slot.index]]
        return values if self._is_list[slot.index] else values[0]

    def __repr__(self) -> str:
        how = "" if self.reduction is None else f", reduced by {self.reduction}"
        return f"Recorded({str(self.path)!r}: {len(self)} slots of {self.kind}{how})"


def _slot(place: int, written: dict[str, Any]) -> Subrecorder:
    tick = None if written["tick"] is None else Tick(**written["tick"])
    return Subrecorder(place, Site.parse(written["site"]), written["type"], None, written["samples"], tick=tick)


def open_recorded(path: str | os.PathLike[str]) -> Recorded:
    """Open a folder that ``Recorder.save`` wrote. Nothing in it is executed: it holds JSON and safetensors.

    >>> import tempfile, torch
    >>> from sonde.recorders import ForwardOutput, open_recorded
    >>> net = torch.nn.Sequential(torch.nn.Identity())
    >>> with ForwardOutput().children(net) as recorder, tempfile.TemporaryDirectory() as folder:
    ...     _ = net(torch.ones(1))
    ...     recorded = open_recorded(recorder.save(f"{folder}/seen"))
    ...     recorded["0"], recorded.samples("0"), len(recorded)
    ([tensor([1.])], 1, 1)

    Raises:
        StoreError: the folder holds no recorder, is not whole, or was written in another version of the format.
    """
    store = open_tensors(path)
    if "slots" not in store.about:
        raise StoreError(f"{store.path} holds tensors of another kind, and no recorder: sonde.open_tensors reads them")
    try:
        return Recorded(store)
    except (LookupError, TypeError, ValueError, AttributeError, SondeError) as error:
        raise StoreError(f"{store.path} is not whole: its index lacks something or has it in another form ({error!r})") from None
