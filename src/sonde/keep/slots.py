"""A slot: the values that are kept of one module, and how a slot is found by position, name or site."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias

from sonde.engine import Site, Tick, structure
from sonde.errors import ArgumentError, UnknownSlotError
from sonde.keep.reductions.base import Accumulated
from sonde.suggest import nearest

__all__ = ["Key", "Subrecorder", "find", "leaf_of"]

Key: TypeAlias = SupportsIndex | str | Site
"""Names one slot: its position, the module's name, or the site."""


@dataclass(eq=False)
class Subrecorder:
    """One slot: the values that a recorder keeps of one module.

    Attributes:
        index: the slot's position in the recorder; it moves up when a slot before it is removed.
        site: which tensors of which module.
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


def find(slots: Sequence[Subrecorder], key: Key, canonical: Callable[[str], str] = str) -> tuple[Subrecorder, str]:
    """The slot that *key* names, and the leaf of its value that *key* names (``""``: the whole value).

    Args:
        canonical: from any name of a module to the name in its site.

    Raises:
        UnknownSlotError: there is no such slot; the message names the nearest.
        ArgumentError: *key* is neither a position nor a name nor a site.
    """
    if isinstance(key, str | Site):
        return _find_by_name(slots, key, canonical)
    try:
        position = operator.index(key)
    except TypeError:
        raise ArgumentError(f"a slot is found by position, module name or site, not by {key!r}") from None
    if not -len(slots) <= position < len(slots):
        there = f"there are {len(slots)}, 0 to {len(slots) - 1}" if slots else "there is none: register modules first"
        raise UnknownSlotError(f"there is no slot {position}; {there}")
    return slots[position], ""


def _find_by_name(slots: Sequence[Subrecorder], key: str | Site, canonical: Callable[[str], str]) -> tuple[Subrecorder, str]:
    site, whole_module = Site.asked(key)
    owner = Site(canonical(site.path), site.port, "", site.model)
    for slot in slots:
        if owner.covers(slot.site, whole_module=whole_module):
            return slot, site.leaf
    of_module = next((slot.site for slot in slots if owner.covers(slot.site, whole_module=True)), None)
    if of_module is not None:
        raise UnknownSlotError(f"there is no slot of {str(key)!r}: of that module this recorder keeps {of_module}")
    several = any(slot.site.model for slot in slots)
    names = [str(slot.site) if several else slot.site.path for slot in slots]
    raise UnknownSlotError(f"there is no slot of {str(key)!r}. {nearest(str(site) if several else site.path, names)}")


def leaf_of(slot: Subrecorder, value: Any, leaf: str, *, several: bool) -> Any:
    """The tensor at the path *leaf* in the value of *slot*; if that is a list of *several* values, the tensor of each.

    The path of a module's only positional argument is ``[0]``, though the argument is kept by itself.

    Raises:
        UnknownSlotError: a value has no such leaf; the message names those it has.
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
