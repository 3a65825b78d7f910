"""Find modules of one side that are portions of one module of the other: queries, keys and values of a joined projection."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sonde.diagnosis.compare.sides import Portion, Side
from sonde.diagnosis.distance import as_numbers, distance
from sonde.engine import parameters_of

_PARTS = (3, 2)
"""Into how many modules a joined projection may be divided."""


@dataclass(frozen=True)
class Joined:
    """A module of one side, and the modules of the other that are its portions.

    Attributes:
        is_in_a: the joined module is in ``a``.
        module: its name.
        parts: names of the modules of the other side, and the portion that each is.
    """

    is_in_a: bool
    module: str
    parts: dict[str, Portion]

    def divide(self, a: Side, b: Side) -> dict[str, str]:
        """Let the portions be compared like modules. Return the names of ``a`` and ``b`` that belong together."""
        side = a if self.is_in_a else b
        named = {name: f"{self.module}[{place}]" for place, name in enumerate(self.parts)}
        side.divide({named[name]: portion for name, portion in self.parts.items()})
        return {named[name]: name for name in named} if self.is_in_a else named


@dataclass(frozen=True)
class _Projection:
    """A linear layer that ran: its name, the layer around it, sizes of input and output, and its first output."""

    name: str
    parent: str
    inner: int
    outer: int
    output: Tensor


def joined_projections(a: Side, b: Side) -> list[Joined]:
    """Return the projections that one side has joined and the other has not, in the order of execution."""
    found: list[Joined] = []
    here, there = _projections(a), _projections(b)
    for is_in_a, whole, divided in ((False, there, here), (True, here, there)):
        groups = list(_groups(divided, {(each.inner, each.outer) for each in whole}))
        for (inner, outer), of_size in itertools.groupby(sorted(groups, key=_size), key=_size):
            several = list(of_size)
            own = [each for each in whole if (each.inner, each.outer) == (inner, outer)]
            twins = sum((each.inner, each.outer) == (inner, outer) for each in divided)
            if len(own) - twins == len(several) and not twins:
                found += [_joined(one, group, is_in_a) for one, group in zip(own, several, strict=True)]
    return found


def _size(group: list[_Projection]) -> tuple[int, int]:
    return group[0].inner, sum(each.outer for each in group)


def _projections(side: Side) -> list[_Projection]:
    modules = side.modules()
    inputs = {kept.key[0].path: kept for kept in side.forward if kept.site.port == "input" and kept.call == 0}
    found: dict[str, _Projection] = {}
    for kept in side.forward:
        name, main = kept.site.path, kept.main
        given = inputs.get(name)
        if kept.site.port != "output" or name in found or main is None or given is None or given.main is None:
            continue
        x, y = given.main[1], main[1]
        if (
            x.dim() != y.dim()
            or not x.dim()
            or x.shape[:-1] != y.shape[:-1]
            or x.is_meta
            or y.is_meta
            or x.is_nested
            or y.is_nested
        ):
            continue
        if name in modules:
            held = [each.numel() for each in parameters_of(modules[name]).values() if each is not None and each.dim() == 2]
            if held != [x.size(-1) * y.size(-1)]:
                continue
        elif kept.type not in ("Linear", "Conv1D"):
            continue
        found[name] = _Projection(name, name.rpartition(".")[0], x.size(-1), y.size(-1), y)
    return list(found.values())


def _groups(projections: list[_Projection], sizes: set[tuple[int, int]]) -> Iterator[list[_Projection]]:
    """Yield neighbours of one layer and input size whose outputs together have one of *sizes*."""
    for _, each in itertools.groupby(projections, key=lambda projection: projection.parent):
        siblings, start = list(each), 0
        while start < len(siblings):
            taken = next(
                (siblings[start : start + count] for count in _PARTS if _is_group(siblings[start : start + count], count, sizes)),
                None,
            )
            if taken is None:
                start += 1
            else:
                yield taken
                start += len(taken)


def _is_group(group: list[_Projection], count: int, sizes: set[tuple[int, int]]) -> bool:
    return len(group) == count and len({each.inner for each in group}) == 1 and _size(group) in sizes


def _joined(whole: _Projection, group: list[_Projection], is_in_a: bool) -> Joined:
    """Return which features of *whole* are each of *group*: in order, in another order, or taking turns head by head."""
    wide = as_numbers(whole.output)
    layouts = list(_layouts([each.outer for each in group]))
    apart = [
        sum(_apart(as_numbers(each.output), wide, part) for each, part in zip(group, layout, strict=True)) for layout in layouts
    ]
    best = layouts[apart.index(min(apart))]
    return Joined(is_in_a, whole.name, {each.name: Portion(whole.name, part) for each, part in zip(group, best, strict=True)})


def _apart(one: Tensor, wide: Tensor, features: Tensor) -> float:
    other = wide.index_select(-1, features)
    return min(1.0, distance(one, other).relative) if one.shape == other.shape else 1.0


def _layouts(sizes: list[int]) -> Iterator[list[Tensor]]:
    every = torch.arange(sum(sizes))
    for order in itertools.permutations(range(len(sizes))):
        parts = dict(zip(order, every.split([sizes[place] for place in order]), strict=True))
        yield [parts[place] for place in range(len(sizes))]
    if len(set(sizes)) == 1:
        for heads in range(2, sizes[0] + 1):
            if sizes[0] % heads == 0:
                turns = every.reshape(heads, len(sizes), -1)
                yield [turns[:, place].flatten() for place in range(len(sizes))]
