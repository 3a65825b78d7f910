"""Choose the modules that a recorder is registered on, by types, indices, include and exclude together."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

from torch import nn

from sonde.engine import Named, Where, class_of, members, select, unwrap
from sonde.errors import SelectionError
from sonde.words import names_text

Types: TypeAlias = type | Iterable[type] | None
"""One class or several: their instances are chosen. None chooses every module."""

Indices: TypeAlias = int | Iterable[int] | None
"""Positions in ``modules()`` or ``children()``, from 0; negative ones count from the end. None chooses every position."""

Iteration: TypeAlias = Literal["modules", "children"]


def candidates(module: nn.Module, root: nn.Module, iteration: Iteration) -> list[Named]:
    """The modules of ``module.modules()`` or ``module.children()``, in that order, with their names in *root*.

    Wrappers (compiled, data-parallel) are not counted, so that an index means the same module with and without them.
    """
    named = {item.module: item for item in members(root)}
    if iteration == "modules":
        return [named[item.module] for item in members(module)]
    children = (unwrap(child) for child in unwrap(module).children())
    return [named[child] for child in dict.fromkeys(children)]


def choose(items: list[Named], types: Types, indices: Indices, include: Where, exclude: Where) -> list[Named]:
    """Those of *items* that satisfy every condition.

    Raises:
        SelectionError: a condition cannot be read, an index is out of range, or nothing is left.
    """
    admits = _of_types(types)
    places = _of_indices(indices, items)
    names = [(item.name, item.module) for item in items]
    aliases = {item.name: item.aliases for item in items if item.aliases}
    admitted = set(select(names, include, exclude, aliases=aliases))
    chosen = [
        item
        for place, item in enumerate(items)
        if place in admitted and (places is None or place in places) and admits(item.module)
    ]
    if not chosen:
        raise SelectionError(_nothing(items, types, places))
    return chosen


def _of_types(types: Types) -> Callable[[Any], bool]:
    if types is None:
        return lambda module: True
    wanted = (types,) if isinstance(types, type) else tuple(types)
    for kind in wanted:
        if not isinstance(kind, type):
            raise SelectionError(f"types={types!r}: {kind!r} is no class; give module types, as types=(nn.Conv2d, nn.Linear)")
    return lambda module: isinstance(module, wanted)


def _of_indices(indices: Indices, items: list[Named]) -> set[int] | None:
    if indices is None:
        return None
    places = set()
    for index in [indices] if not isinstance(indices, Iterable) else indices:
        try:
            place = operator.index(index)
        except TypeError:
            raise SelectionError(f"indices={indices!r}: {index!r} is no position; give integers from 0") from None
        if not -len(items) <= place < len(items):
            raise SelectionError(f"index {place}: there are {len(items)} modules, {_listed(items, range(len(items)))}")
        places.add(place % len(items))
    return places


def _nothing(items: list[Named], types: Types, places: set[int] | None) -> str:
    wanted = () if types is None else (types,) if isinstance(types, type) else tuple(types)
    asked = [f"of type {' or '.join(kind.__name__ for kind in wanted)}"] if types is not None else []
    asked += [f"at {', '.join(map(str, sorted(places)))}"] if places is not None else []
    there = sorted(places) if places else range(len(items))
    return f"nothing is selected {' '.join(asked) or 'from a module without children'}. There is {_listed(items, there) or 'none'}"


def _listed(items: list[Named], places: Iterable[int], most: int = 8) -> str:
    shown = [f"{place}: {items[place].name or '(root)'} ({class_of(items[place].module).__name__})" for place in places]
    return names_text(shown, most)
