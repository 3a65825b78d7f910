"""The slots of a recorder: what is kept of each module, how a slot is found, and the list of values that people see."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsIndex, TypeAlias

from sonde.engine import Site, Tick, structure
from sonde.errors import ArgumentError, SiteError, UnknownSlotError
from sonde.keep.reductions.base import Accumulated
from sonde.suggest import nearest

__all__ = ["Data", "Key", "Subrecorder", "find", "leaf_of"]

Key: TypeAlias = SupportsIndex | str | Site
"""What names one slot: its position, the module's name, or the site."""


@dataclass(eq=False)
class Subrecorder:
    """One slot: what a recorder keeps of one module.

    Attributes:
        index: the slot's position in the recorder; it moves up when a slot before it is removed.
        site: which tensors of which module.
        type: the module's class, with its module path.
        samples: how many calls were recorded.
        seen: how many calls came by, recorded or not.
        tick: when the last recorded one did.
        held: a list of values; with a reduction what it has made so far, None before the first value.
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
        """What is kept, finished: a running mean is the mean and not its sums."""
        return self.held.value if isinstance(self.held, Accumulated) else self.held

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self.held if isinstance(self.held, list) else self.held is None

    def __repr__(self) -> str:
        return f"Subrecorder({self.index}, {str(self.site)!r}, {self.type.rpartition('.')[2]}, samples={self.samples})"


def find(slots: Sequence[Subrecorder], key: Key, canonical: Callable[[str], str] = str) -> tuple[Subrecorder, str]:
    """The slot that *key* means, and the leaf of its value that is asked for (``""``: the whole).

    Args:
        canonical: from any name of a module to the one that its site has.

    Raises:
        UnknownSlotError: there is none; the message names the nearest.
        ArgumentError: *key* is neither a position nor a name nor a site.
    """
    if isinstance(key, str | Site):
        return _named(slots, key, canonical)
    try:
        position = operator.index(key)
    except TypeError:
        raise ArgumentError(f"a slot is asked for by position, module name or site, not by {key!r}") from None
    if not -len(slots) <= position < len(slots):
        there = f"there are {len(slots)}, 0 to {len(slots) - 1}" if slots else "there is none: register modules first"
        raise UnknownSlotError(f"there is no slot {position}; {there}")
    return slots[position], ""


def _named(slots: Sequence[Subrecorder], key: str | Site, canonical: Callable[[str], str]) -> tuple[Subrecorder, str]:
    site, any_port = _as_site(key)
    path = canonical(site.path)
    of_module = [slot for slot in slots if slot.site.path == path and slot.site.model == site.model]
    for slot in of_module:
        if any_port or slot.site.port == site.port:
            return slot, site.leaf
    if of_module:
        raise UnknownSlotError(f"there is no slot of {str(key)!r}: of that module this recorder keeps {of_module[0].site}")
    if any(slot.site.model for slot in slots):
        known = [str(slot.site) for slot in slots]
        raise UnknownSlotError(f"there is no slot of {str(key)!r}. {nearest(str(site), known)}")
    raise UnknownSlotError(f"there is no slot of {str(key)!r}. {nearest(site.path, [slot.site.path for slot in slots])}")


def _as_site(key: str | Site) -> tuple[Site, bool]:
    """The site that *key* means, and whether it leaves the port open."""
    if isinstance(key, Site):
        return key, False
    try:
        return Site.parse(key), ":" not in key
    except SiteError:
        return Site(key), True


def leaf_of(slot: Subrecorder, value: Any, leaf: str, *, several: bool) -> Any:
    """The tensor at the path *leaf* in the value of *slot*; if that is a list of *several* values, that of each.

    The path of a module's only positional argument is ``[0]``, though it is kept by itself.

    Raises:
        UnknownSlotError: a value has no such leaf; the message says which it has.
    """
    if not leaf:
        return value
    if several and isinstance(value, list):
        return [leaf_of(slot, item, leaf, several=False) for item in value]
    found = dict(structure.walk(value))
    if leaf in found:
        return found[leaf]
    if slot.site.port.endswith("input") and not isinstance(value, tuple) and leaf.startswith("[0]") and leaf[3:] in found:
        return found[leaf[3:]]
    has = ", ".join(str(slot.site.at(path)) for path in found) or "no tensor"
    raise UnknownSlotError(f"there is nothing at {slot.site.at(leaf)}; the value has {has}")


class Data(list[Any]):
    """The values of all slots, in order, as they are now. Assigning to an item sets the slot; the list cannot be resized."""

    def __init__(self, slots: Sequence[Subrecorder]) -> None:
        super().__init__(slot.value for slot in slots)
        self._slots = slots

    def __setitem__(self, key: Any, item: Any) -> None:
        chosen = range(len(self))[key]
        positions, items = (list(chosen), list(item)) if isinstance(chosen, range) else ([chosen], [item])
        if len(positions) != len(items):
            raise ArgumentError(f"{len(items)} values cannot be assigned to {len(positions)} slots")
        for position, each in zip(positions, items, strict=True):
            self._slots[position].held = each
            super().__setitem__(position, each)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ArgumentError("a recorder's data has one item for each slot: take a slot away with recorder.remove(index)")

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)
