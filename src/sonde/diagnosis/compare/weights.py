"""Find the relation between two tensors of one size: transposed, rows in another order, a factor, rounded, shifted, or none."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sonde.diagnosis.distance import Distance, as_numbers, distance, held_of_both, readable
from sonde.words import names_text

EXACT = 1e-6
"""Relative distance below which parameters of two sides count as equal, when one is expressed by the other."""


@dataclass(frozen=True, slots=True)
class Relation:
    """How a tensor of ``b`` follows from one of ``a``.

    Attributes:
        rule: a name for it.
        words: the relation, with ``{a}`` and ``{b}`` in place of the names of the tensors.
        evidence: numbers by name.
    """

    rule: str
    words: str
    evidence: Mapping[str, float] = field(default_factory=dict)


_ADDENDS = ("bias", "beta", "shift", "offset")
_ADDEND = re.compile(r"(^|_|\.)b\d*$")


def is_addend(name: str) -> bool:
    """Return whether a parameter of this name is added, as a bias is, and does not multiply."""
    return any(part in name.lower() for part in _ADDENDS) or bool(_ADDEND.search(name.lower()))


def matched(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Return which tensors of two modules belong together, as pairs of names.

    Those of one name and size do. The rest is matched by size, value, shape, what it does (multiply or be added), and order.
    """
    pairs = [(name, name) for name, held in one.items() if name in other and _fit(held, other[name])]
    here = [name for name in one if (name, name) not in pairs]
    there = [name for name in other if (name, name) not in pairs]
    scores = []
    for i, name in enumerate(here):
        for j, label in enumerate(there):
            x, y = one[name], other[label]
            if _fit(x, y):
                alike = is_addend(name) == is_addend(label)
                score = 4 * same_values(x, y) + 2 * alike + 2 * (x.shape == y.shape) - 0.01 * abs(i - j)
                if alike or score >= 4:
                    scores.append((score, name, label))
    for _, name, label in sorted(scores, key=lambda each: -each[0]):
        if all(name != left and label != right for left, right in pairs):
            pairs.append((name, label))
    unfit = {name for name in here if name in there} - {name for name, _ in pairs} - {label for _, label in pairs}
    pairs += [(name, name) for name in unfit]
    return sorted(pairs, key=lambda pair: list(one).index(pair[0]))


def _fit(x: Tensor, y: Tensor) -> bool:
    return sorted(length for length in x.shape if length != 1) == sorted(length for length in y.shape if length != 1)


def same_values(x: Tensor, y: Tensor) -> bool:
    """Return whether two parameters hold the same numbers, in the same order, or one transposed."""
    if x.is_meta or y.is_meta or x.numel() != y.numel() or held_of_both(x, y) is None or x.numel() > _MOST_VALUES:
        return False
    a, b = as_numbers(x), as_numbers(y)
    return _equal(a.flatten(), b.flatten(), EXACT) or (a.dim() == b.dim() == 2 and a.shape == b.mT.shape and _equal(a, b.mT, EXACT))


_MOST_VALUES = 1 << 26


def of_equal_values(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, str]:
    """Return which tensors of *one* hold the numbers of one of *other*, where none of either holds them besides; by name."""
    found: list[dict[tuple[int, str], list[str]]] = [{}, {}]
    sizes = {each.numel() for each in one.values()} & {each.numel() for each in other.values()}
    for tensors, places in zip((one, other), found, strict=True):
        for name, held in tensors.items():
            if held.numel() in sizes and held.numel() > 1 and not (held.is_meta or held.is_nested):
                numbers = as_numbers(held).flatten()
                if bool((numbers != numbers[0]).any()):
                    places.setdefault((held.numel(), f"{float(numbers.norm()):.5g}"), []).append(name)
    both = [(here, found[1].get(key, [])) for key, here in found[0].items()]
    pairs = ((here[0], there[0]) for here, there in both if len(here) == len(there) == 1)
    return {name: beside for name, beside in pairs if same_values(one[name], other[beside])}


def of_equal_parameters(one: nn.Module | None, other: nn.Module | None) -> bool:
    """Return whether two modules hold parameters of their own, and equal ones."""
    own, beside = (
        [] if module is None else [readable(each) for each in module.parameters(recurse=False) if not each.is_nested]
        for module in (one, other)
    )
    return (
        bool(own)
        and [each.shape for each in own] == [each.shape for each in beside]
        and not any(each.is_meta for each in (*own, *beside))
        and all(distance(as_numbers(x), as_numbers(y)).relative <= EXACT for x, y in zip(own, beside, strict=True))
    )


def relation(a: Tensor, b: Tensor, tolerance: float = EXACT) -> Relation | None:
    """Return how *b* follows from *a*, both in float64; None where they are equal up to *tolerance*."""
    if a.shape == b.shape:
        apart = distance(a, b)
        if apart.relative <= tolerance:
            return None
        return _of_one_shape(a, b, apart, max(tolerance, EXACT))
    if a.dim() == b.dim() == 2 and a.shape == b.mT.shape and _equal(a.mT, b, tolerance):
        return Relation("weight_transposed", "{b} equals {a}.T, which has another shape")
    if a.numel() == b.numel() and _equal(a.flatten(), b.flatten(), tolerance):
        return None
    return Relation("weight_shape", f"{{a}} has the shape {tuple(a.shape)}, {{b}} {tuple(b.shape)}")


def _equal(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return a.shape == b.shape and distance(a, b).relative <= tolerance


def _of_one_shape(a: Tensor, b: Tensor, apart: Distance, tolerance: float) -> Relation:
    rounded = _rounded(a, b)
    if rounded:
        return Relation("weight_rounded", f"{{b}} equals {{a}} rounded to {rounded}", {"relative": apart.relative})
    factor = factor_between(a, b, tolerance)
    if factor is not None:
        return Relation("weight_scaled", f"{{b}} equals {{a}} times {factor:.6g}", {"factor": factor})
    if a.dim() >= 2:
        found = _of_axes(a, b, tolerance)
        if found is not None:
            return found
    for axis, what in enumerate(("rows", "columns")[: a.dim()]):
        order = order_of_rows(a.transpose(0, axis), b.transpose(0, axis), tolerance)
        if order is not None:
            return Relation("weight_permuted", f"{{b}} has the {what} of {{a}} in another order: {words_of_order(order, what)}")
    shift = _shift(a, b, tolerance)
    if shift:
        return Relation("weight_shifted", f"row i of {{b}} equals row i{-shift:+d} of {{a}}", {"rows": float(shift)})
    return _differs(a, b, apart, tolerance)


def _of_axes(a: Tensor, b: Tensor, tolerance: float) -> Relation | None:
    for rule, made, words in (
        ("weight_transposed", a.mT, "{b} equals {a}.T" if a.dim() == 2 else "{b} equals {a} with the last two axes exchanged"),
        (
            "weight_reshaped",
            a.mT.reshape(a.shape),
            "{b} equals {a}.T.reshape(shape): a transposition was written as a change of shape",
        ),
        (
            "weight_reshaped",
            a.reshape(a.mT.shape).mT,
            "{b} equals {a}.reshape(shape.T).T: a change of shape was written in place of a transposition",
        ),
    ):
        if _equal(made, b, tolerance):
            return Relation(rule, words)
    long = [axis for axis in range(a.dim()) if a.size(axis) > 1]
    for count in range(1, len(long) + 1):
        for axes in itertools.combinations(long, count):
            if _equal(a.flip(axes), b, tolerance):
                which = f"axis {axes[0]}" if count == 1 else f"axes {', '.join(map(str, axes))}"
                return Relation("weight_flipped", f"{{b}} equals {{a}} reversed along {which}")
    return None


def _rounded(a: Tensor, b: Tensor) -> str:
    """Return the type to which *a* was rounded to make *b*, or *b* to make *a*; ``""`` for none."""
    for kind in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        if torch.equal(a.to(kind).double(), b) or torch.equal(b.to(kind).double(), a):
            return str(kind).removeprefix("torch.")
    return ""


def factor_between(a: Tensor, b: Tensor, tolerance: float) -> float | None:
    """Return the factor c for which *b* equals c times *a*, c other than 1 and 0; None if there is none."""
    square = float((a * a).sum())
    if not square or not math.isfinite(square) or a.numel() < 2:
        return None
    factor = float((a * b).sum()) / square
    if not factor or not math.isfinite(factor) or abs(factor - 1) <= tolerance:
        return None
    return factor if distance(a * factor, b).relative <= 4 * tolerance else None


def fitted(off: Callable[[float], float], low: float, high: float, most: float) -> float | None:
    """Return the positive number between *low* and *high* at which *off* is smallest, a short one if it is as good.

    Args:
        off: from the number to a distance.
        low, high: the range, which is searched at 40 numbers and then between the best one's neighbours.
        most: the largest distance at which a number counts; above it None is returned.
    """
    tried = torch.logspace(math.log10(low), math.log10(high), 40, dtype=torch.float64, device="cpu").log().tolist()
    best = min(range(len(tried)), key=lambda place: off(math.exp(tried[place])))
    left, right = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
    for _ in range(_NARROWINGS):
        third = (right - left) / 3
        if off(math.exp(left + third)) < off(math.exp(right - third)):
            right -= third
        else:
            left += third
    exact = math.exp((left + right) / 2)
    return next((each for digits in range(1, 13) if off(each := float(f"{exact:.{digits}g}")) <= most), None)


_NARROWINGS = 60


def order_of_rows(a: Tensor, b: Tensor, tolerance: float) -> list[int] | None:
    """Return for each row of *b* the row of *a* that equals it, where the rows of *b* are those of *a* in another order.

    A random projection of the rows gives the order; then the rows are compared in full.
    """
    if a.dim() == 0 or a.size(0) < 2 or not bool(a.isfinite().all()) or not bool(b.isfinite().all()):
        return None
    rows, others = a.reshape(a.size(0), -1), b.reshape(b.size(0), -1)
    weights = torch.randn(rows.size(1), generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    mine, theirs = (rows @ weights).argsort(stable=True), (others @ weights).argsort(stable=True)
    order = torch.empty_like(mine)
    order[theirs] = mine
    if distance(rows[order], others).relative > 4 * tolerance or bool((order == torch.arange(len(order), device="cpu")).all()):
        return None
    return [int(row) for row in order]


def words_of_order(order: list[int], what: str) -> str:
    """Return the order of rows in words: the largest blocks that were moved as a whole, or a pattern inside of equal blocks."""
    count = len(order)
    if order == list(range(count))[::-1]:
        return f"all {count} {what} in reverse"
    if order == [(place + order[0]) % count for place in range(count)]:
        ahead = order[0] if 2 * order[0] <= count else order[0] - count
        return f"{what} in a circle, entry i of b is entry i{ahead:+d} of a"
    for size in sorted((size for size in range(2, count // 2 + 1) if count % size == 0), reverse=True):
        blocks = [order[start : start + size] for start in range(0, count, size)]
        if all(block[0] % size == 0 and block == list(range(block[0], block[0] + size)) for block in blocks):
            return f"blocks of {size} {what} in the order {_short([block[0] // size for block in blocks])}"
    for size in (size for size in range(4, count + 1, 2) if count % size == 0):
        half = size // 2
        inside = [[order[start + place] - start for place in range(size)] for start in range(0, count, size)]
        if all(held == inside[0] for held in inside[1:]) and sorted(inside[0]) == list(range(size)):
            which = _pattern(inside[0], half)
            if which:
                return f"in each block of {size} {what} {which}"
    for first in (0, 1):  # a class token may stand before
        rest = [row - first for row in order[first:]]
        for rows in (
            size for size in range(2, len(rest) // 2 + 1) if len(rest) % size == 0 and order[:first] == list(range(first))
        ):
            columns = len(rest) // rows
            if rest == [row * columns + column for column in range(columns) for row in range(rows)]:
                return f"{what} as a grid of {rows} × {columns}, row by row in a and column by column in b"
    moved = sum(place != row for place, row in enumerate(order))
    return f"{moved} of {count} {what} moved, {_short(order)}"


def _pattern(inside: list[int], half: int) -> str:
    size = 2 * half
    pairs = zip(range(half), range(half, size), strict=True)
    patterns = {
        "the even ones stand before the odd ones (pairs of a rotary embedding: interleaved in a, halves in b)": [
            *range(0, size, 2),
            *range(1, size, 2),
        ],
        "the two halves are interleaved (pairs of a rotary embedding: halves in a, interleaved in b)": list(
            itertools.chain(*pairs)
        ),
        "the two halves are swapped": [*range(half, size), *range(half)],
        "the order is reversed": list(range(size))[::-1],
    }
    return next((words for words, order in patterns.items() if inside == order), "")


def _short(numbers: list[int]) -> str:
    return names_text(numbers, 8)


def _shift(a: Tensor, b: Tensor, tolerance: float) -> int:
    """Return by how many rows *b* is shifted against *a*; 0 for no shift."""
    for rows in (1, 2, -1, -2):
        if a.dim() == 0 or a.size(0) < 4:
            continue
        here, there = (a[:-rows], b[rows:]) if rows > 0 else (a[-rows:], b[:rows])
        if _equal(here, there, tolerance):
            return rows
    return 0


def _differs(a: Tensor, b: Tensor, apart: Distance, tolerance: float) -> Relation:
    evidence = {"relative": apart.relative, "cosine": apart.cosine, "largest": apart.largest}
    off = ~torch.isclose(a, b, rtol=tolerance, atol=tolerance * float(a.abs().max()))
    for axis, what in enumerate(("rows", "columns")):
        if a.dim() > axis:
            hit = off.transpose(0, axis).reshape(a.size(axis), -1).any(1)
            count = int(hit.sum())
            if 0 < count <= max(1, a.size(axis) // 4):
                places = _short(hit.nonzero().flatten().tolist())
                return Relation(
                    "weight_differs", f"{count} of {a.size(axis)} {what} of {{b}} differ from {{a}}: {places}", evidence
                )
    return Relation("weight_differs", f"{{b}} differs from {{a}}: relative distance {apart.relative:.3g}", evidence)
