"""A slot: the values that are kept of one module, and how a slot is found by position, name or site."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias, overload

from sonde.engine import walk
from sonde.errors import ArgumentError, UnknownSlotError
from sonde.recorders.reductions.base import Accumulated
from sonde.schedule import Tick
from sonde.site import Site
from sonde.suggest import nearest

Key: TypeAlias = SupportsIndex | str | Site
"""Names one slot: its position, the module's name, or the site."""


@dataclass(eq=False)
class Subrecorder:
    """One slot: the values that a recorder keeps of one module.

    >>> import torch
    >>> from sonde.recorders import ForwardOutput
    >>> net = torch.nn.Sequential(torch.nn.Identity())
    >>> with ForwardOutput().children(net) as recorder:
    ...     _ = net(torch.ones(1))
    >>> slot = recorder.subrecorders[0]
    >>> str(slot.site), slot.type, slot.samples
    ('0:output', 'torch.nn.modules.linear.Identity', 1)

    Attributes:
        index: the slot's position in the recorder; it moves up when a slot before it is removed.
        site: the module, and which of its tensors.
        type: the module's class, with its module path.
        held: a list of values; with a reduction what the reduction has made so far, None before the first value.
        samples: the number of calls that were recorded.
        seen: the number of calls that could have been recorded.
        tick: when the last recorded call happened.
    """

    index: int
    site: Site
    type: str
    held: Any
    samples: int = 0
    seen: int = 0
    tick: Tick | None = None

    @property
    def name(self) -> str:
        """The module's name, ``""`` for the root."""
        return self.site.path

    @property
    def value(self) -> Any:
        """The kept value, finished: of a running mean the mean, not its sums."""
        return self.held.value if isinstance(self.held, Accumulated) else self.held

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self.held if isinstance(self.held, list) else self.held is None

    def __repr__(self) -> str:
        return f"Subrecorder({self.index}, {str(self.site)!r}, {self.type.rpartition('.')[2]}, samples={self.samples})"


class SlotReader(ABC):
    """Values of slots by position, module name and site: the reading part of a recorder and of a saved recorder.

    Attributes:
        reduction: the reduction; None if every value is kept.
    """

    reduction: Any

    @property
    @abstractmethod
    def subrecorders(self) -> list[Subrecorder]:
        """The slots, in order."""

    @abstractmethod
    def _canonical(self, name: str) -> str:
        """Return the name that is in a module's site, given any of the module's names."""

    @abstractmethod
    def _value_of(self, slot: Subrecorder) -> Any:
        """Return the value of *slot*."""

    def __len__(self) -> int:
        return len(self.subrecorders)

    def __iter__(self) -> Iterator[Any]:
        return iter([self._value_of(slot) for slot in self.subrecorders])

    def __contains__(self, key: object) -> bool:
        """Whether there is a slot of this name or site; of another object, whether a slot has it as its value."""
        if not isinstance(key, str | Site):
            return any(value is key for value in self)
        try:
            self._find(key)
        except LookupError:
            return False
        return True

    @overload
    def __getitem__(self, key: Key) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...
    def __getitem__(self, key: Key | slice) -> Any:
        """The value of one slot, by position, module name or site; or a list of them, by slice.

        Raises:
            UnknownSlotError: there is no such slot; the message names the nearest.
            SiteError: the text is the site of one module and the name of another.
            StoreError: a file of a saved recorder is missing or broken.
        """
        if isinstance(key, slice):
            return [self._value_of(slot) for slot in self.subrecorders[key]]
        slot, leaf = self._find(key)
        return _leaf_of(slot, self._value_of(slot), leaf, several=self.reduction is None)

    def samples(self, index: Key) -> int:
        """The number of calls that a slot has recorded."""
        return self._find(index)[0].samples

    def iter_samples(self) -> Iterator[int]:
        """For each slot, the number of calls that it has recorded."""
        return iter([slot.samples for slot in self.subrecorders])

    def _find(self, key: Key) -> tuple[Subrecorder, str]:
        """The slot that *key* names, and the leaf of its value that *key* names (``""``: the whole value)."""
        slots = self.subrecorders
        if isinstance(key, str | Site):
            site, whole_module = Site.asked(key, (slot.site for slot in slots), self._canonical)
            return _at(slots, site, whole_module, str(key)), site.leaf
        try:
            position = operator.index(key)
        except TypeError:
            raise ArgumentError(f"a slot is found by position, module name or site, not by {key!r}") from None
        if not -len(slots) <= position < len(slots):
            there = f"there are {len(slots)}, 0 to {len(slots) - 1}" if slots else "there is none: register modules first"
            raise UnknownSlotError(f"there is no slot {position}; {there}")
        return slots[position], ""


def _at(slots: Sequence[Subrecorder], site: Site, whole_module: bool, asked: str) -> Subrecorder:
    """The slot at *site*, which was *asked* for."""
    for slot in slots:
        if site.at("").covers(slot.site, whole_module=whole_module):
            return slot
    of_module = next((slot.site for slot in slots if site.covers(slot.site, whole_module=True)), None)
    if of_module is not None:
        raise UnknownSlotError(f"there is no slot of {asked!r}: of that module this recorder keeps {of_module}")
    several = any(slot.site.model for slot in slots)
    names = [str(slot.site) if several else slot.site.path for slot in slots]
    raise UnknownSlotError(f"there is no slot of {asked!r}. {nearest(str(site) if several else site.path, names)}")


def _leaf_of(slot: Subrecorder, value: Any, leaf: str, *, several: bool) -> Any:
    """The tensor at the path *leaf* in the value of *slot*; if that is a list of *several* values, the tensor of each.

    The path of a module's only positional argument is ``[0]``, though the argument is kept by itself.
    """
    if not leaf:
        return value
    if several and isinstance(value, list):
        return [_leaf_of(slot, item, leaf, several=False) for item in value]
    found = dict(walk(value))
    if leaf in found:
        return found[leaf]
    if slot.site.port.endswith("input") and not isinstance(value, tuple) and leaf.startswith("[0]") and leaf[3:] in found:
        return found[leaf[3:]]
    has = ", ".join(str(slot.site.at(path)) for path in found) or "no tensor"
    raise UnknownSlotError(f"there is nothing at {slot.site.at(leaf)}; the value has {has}")
