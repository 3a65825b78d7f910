"""Find modules of one side that are portions of one module of the other: queries, keys and values of a joined projection."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sonde.diagnosis.compare.sides import Cut, Kept, Portion, Side, feature_axis
from sonde.diagnosis.distance import as_numbers, distance, readable
from sonde.engine import parameters_of


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
    """A linear layer, or a convolution, that ran.

    Attributes:
        name, parent: its name, and that of the layer around it.
        inner: what makes one feature: the size of the input; of a convolution that of its kernel, channels first.
        outer: how many features its output has.
        axis: of its output, along which they lie.
        given: the norm of its input.
        output: its output.
        weight: its matrix or kernel, features first; None where it is not known.
    """

    name: str
    parent: str
    inner: tuple[int, ...]
    outer: int
    axis: int
    given: float
    output: Tensor
    weight: Tensor | None


def joined_projections(a: Side, b: Side) -> list[Joined]:
    """Return the projections that one side has joined and the other has not, in the order of execution.

    The linear layers and convolutions of both sides are aligned in the order of execution, so that as many as possible have a
    counterpart: one layer of the same sizes, or two or three neighbours with one input whose outputs have its size together.
    """
    here, there = _projections(a), _projections(b)
    rows, columns = len(here), len(there)
    best = np.zeros((rows + 1, columns + 1))
    taken: dict[tuple[int, int], tuple[int, int]] = {}  # how many of each side end here together
    for row in range(rows + 1):
        for column in range(columns + 1):
            for up, left in _STEPS:
                if up > row or left > column:
                    continue
                of_a, of_b = here[row - up : row], there[column - left : column]
                score = best[row - up, column - left] + _score(of_a, of_b)
                if score > best[row, column] or (row, column) not in taken:
                    best[row, column], taken[row, column] = score, (up, left)
    found = []
    row, column = rows, columns
    while row or column:
        up, left = taken[row, column]
        of_a, of_b = here[row - up : row], there[column - left : column]
        if up > 1 and left == 1:
            found.append(_divided(of_b[0], of_a, is_in_a=False))
        elif left > 1 and up == 1:
            found.append(_divided(of_a[0], of_b, is_in_a=True))
        elif {up, left} == {2, 3}:
            few, many = sorted((of_a, of_b), key=len)
            joined, parts = next(_in_any_order(few, many))
            found.append(_divided(joined, parts, is_in_a=up < left))
        row, column = row - up, column - left
    return found[::-1]


_STEPS = ((1, 0), (0, 1), (1, 1), (3, 1), (2, 1), (1, 3), (1, 2), (2, 3), (3, 2))
"""How many projections of ``a`` and of ``b`` may belong together: one alone has none, and one is at most three.

Of two against three, one of the two is two of the three, and the other one the third, whatever runs first.
"""


def _score(of_a: list[_Projection], of_b: list[_Projection]) -> float:
    """Return what it is worth that these belong together: their number, more where they are given one input, and for two alike."""
    if not of_a or not of_b:
        return 0.0
    both = (*of_a, *of_b)
    if {len(of_a), len(of_b)} == {2, 3}:
        found = next(_in_any_order(*sorted((of_a, of_b), key=len)), None)
        return -math.inf if found is None else len(both) * 1.5 + 0.2
    alike = len({each.inner for each in both}) == 1 and sum(each.outer for each in of_a) == sum(each.outer for each in of_b)
    one_layer = len({each.parent for each in of_a}) == len({each.parent for each in of_b}) == 1
    alike = alike and all(map(_is_one_input, (of_a, of_b))) and (one_layer or (len(both) > 2 and _hold_the_same(of_a, of_b)))
    return len(both) * (1.5 if _is_one_input(both) else 1.0) + 0.1 * (len(both) == 2) if alike else -math.inf


def _in_any_order(two: list[_Projection], three: list[_Projection]) -> Iterator[tuple[_Projection, list[_Projection]]]:
    """Yield one of *two*, and which of *three* it joins, where the other is the third: all of one input, and of equal weights."""
    for (joined, alone), third in itertools.product((two, two[::-1]), three):
        parts = [each for each in three if each is not third]
        is_alike = alone.inner == third.inner and alone.outer == third.outer and _is_one_input((*two, *three))
        if is_alike and _hold_the_same([alone], [third]) and _hold_the_same([joined], parts):
            yield joined, parts


def _hold_the_same(of_a: list[_Projection], of_b: list[_Projection]) -> bool:
    """Return whether the weights of both have one norm in all, as those of lists of layers have that stand in several places."""
    held = [[None if each.weight is None or each.weight.is_meta else each.weight for each in group] for group in (of_a, of_b)]
    if any(weight is None for group in held for weight in group):
        return False
    sums = [sum(float(as_numbers(weight).square().sum()) for weight in group if weight is not None) for group in held]
    return abs(sums[0] - sums[1]) <= _ONE_NORM * max(sums)


_ONE_NORM = 1e-6


def _is_one_input(group: Sequence[_Projection]) -> bool:
    given = [each.given for each in group]
    return max(given) - min(given) <= _SAME * max(given)


_SAME = 1e-3
"""Relative difference of two norms that may be those of one tensor."""


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
        if any(each.is_nested or each.is_meta or not each.dim() for each in (x, y)):
            continue
        weight = _weight(modules.get(name))
        if weight is not None and weight.dim() > 2:
            axis = 1 - weight.dim()
            is_layer = y.dim() >= -axis and y.size(axis) == len(weight)
        else:
            axis = -1
            of_sizes = kept.type in ("Linear", "Conv1D") if name not in modules else weight is not None
            is_layer = x.shape[:-1] == y.shape[:-1] and of_sizes and (weight is None or weight.shape == (y.size(-1), x.size(-1)))
        if is_layer:
            inner = tuple(weight.shape[1:]) if weight is not None else (x.size(-1),)
            norm = float(as_numbers(x).norm())
            found[name] = _Projection(name, name.rpartition(".")[0], inner, y.size(axis), axis, norm, y, weight)
    return list(found.values())


def _weight(module: nn.Module | None) -> Tensor | None:
    """Return the matrix or kernel of a layer, features first; None for any other module, and a convolution in groups."""
    held = [] if module is None else [each for each in parameters_of(module).values() if each is not None and each.dim() > 1]
    if module is None or len(held) != 1 or held[0].is_nested:
        return None
    weight = readable(held[0].detach())
    if weight.dim() == 2:
        return weight.movedim(feature_axis(module, weight), 0)
    is_plain = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and module.groups == 1
    return weight if is_plain else None


def _divided(whole: _Projection, group: list[_Projection], *, is_in_a: bool) -> Joined:
    """Return which features of *whole* are each of *group*: in order, or so that more of their outputs and weights are equal."""
    wide = as_numbers(whole.output)
    rows = None if whole.weight is None or whole.weight.is_meta else as_numbers(whole.weight)

    def equal(layout: list[Tensor]) -> int:
        pairs = list(zip(group, layout, strict=True))
        of_outputs = sum(_is_equal(each.output, wide, part, whole.axis) for each, part in pairs)
        of_weights = sum(_is_equal(each.weight, rows, part, 0) for each, part in pairs)
        return of_outputs + of_weights

    best = max(layouts([each.outer for each in group]), key=equal)
    parts = {each.name: Portion(whole.name, part, whole.axis) for each, part in zip(group, best, strict=True)}
    return Joined(is_in_a, whole.name, parts)


def _is_equal(one: Tensor | None, wide: Tensor | None, features: Tensor, axis: int) -> bool:
    if one is None or wide is None or one.is_meta:
        return False
    other = wide.index_select(axis, features)
    return one.shape == other.shape and distance(as_numbers(one), other).relative <= _EQUAL


_EQUAL = 0.1
"""Relative distance of two outputs of one projection, in any precision."""


def layouts(sizes: list[int]) -> Iterator[list[Tensor]]:
    """Yield in which ways parts of *sizes* may share the features of one output, first in order: the features of each part."""
    every = torch.arange(sum(sizes), device="cpu")
    for order in itertools.permutations(range(len(sizes))):
        parts = dict(zip(order, every.split([sizes[place] for place in order]), strict=True))
        yield [parts[place] for place in range(len(sizes))]
    if len(set(sizes)) == 1:
        for heads in range(2, sizes[0] + 1):
            if sizes[0] % heads == 0:
                turns = every.reshape(heads, len(sizes), -1)
                yield [turns[:, place].flatten() for place in range(len(sizes))]


def cut_calls(one: Side, other: Side, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Let calls of *one* be compared in parts, where *other* calls the same module several times: step by step, or in chunks.

    Args:
        one: the side whose calls are cut.
        other: the other side.
        pairs: the modules that belong together, of *one* and *other*.

    Returns:
        The modules whose calls are cut.
    """
    held: list[dict[tuple[str, str], list[Kept]]] = [{}, {}]
    for side, found in zip((one, other), held, strict=True):
        for kept in side.forward:
            found.setdefault((kept.site.path, kept.site.port), []).append(kept)
    calls, cuts = dict[str, int](), dict[tuple[str, str], Cut]()
    for name, beside in pairs:
        for port in ("output", "input"):
            whole, parts = held[0].get((name, port), []), held[1].get((beside, port), [])
            cut = _cut_of(whole[0], parts) if len(whole) == 1 < len(parts) else None
            if cut is not None and (port == "output" or name in calls):
                calls[name], cuts[name, port] = len(parts), cut
                cuts |= {(name, "grad_output"): cut} if port == "output" else {}
    one.cut(calls, cuts)
    return list(calls)


def _cut_of(whole: Kept, parts: Sequence[Kept]) -> Cut | None:
    """Return how the tensor of one call is divided into those of several; None if it is not. Of two ways it is the nearer one."""
    mains = [kept.main for kept in (whole, *parts)]
    tensors = [main[1] for main in mains if main is not None and not main[1].is_meta and not main[1].is_nested]
    if len(tensors) < len(mains):
        return None
    wide, *rest = tensors
    while all(each.dim() > wide.dim() and each.size(0) == 1 for each in rest):
        rest = [each[0] for each in rest]
    found: list[tuple[Cut, Tensor]] = []
    for axis in range(wide.dim()):
        shapes = {each.shape[:axis] + each.shape[axis + 1 :] for each in rest if each.dim() == wide.dim()}
        sizes = tuple(each.size(axis) for each in rest if each.dim() == wide.dim())
        around = wide.shape[:axis] + wide.shape[axis + 1 :]
        if len(sizes) == len(rest) and shapes == {around} and sum(sizes) == wide.size(axis):
            found.append((Cut(axis, sizes), torch.cat([as_numbers(each) for each in rest], axis)))
        elif {each.shape for each in rest} == {around} and wide.size(axis) == len(rest):
            found.append((Cut(axis, ()), torch.stack([as_numbers(each) for each in rest], axis)))
    apart = [distance(as_numbers(wide), joined).relative for _, joined in found] if len(found) > 1 else [0.0]
    return found[apart.index(min(apart))][0] if found else None
