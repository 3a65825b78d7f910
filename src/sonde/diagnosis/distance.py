"""Compute how far two tensors are apart: relative norm of the difference, cosine, largest difference."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from sonde.errors import ArgumentError
from sonde.stats import PLAIN, Piece, dense, local, unreadable

_MOST_AXES = 5  # of tensors whose axes are tried in every order


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one tensor is from another.

    Attributes:
        relative: the Euclidean norm of the difference, divided by the larger norm of the two; infinite where an element is
            finite in one alone.
        cosine: of the angle between the two; NaN where one is zero.
        largest: the largest magnitude of a difference of two elements, in the unit of the elements.
        nonfinite: how many elements are finite in one tensor alone, or are different infinities.
    """

    relative: float
    cosine: float
    largest: float
    nonfinite: int = 0

    @property
    def farthest(self) -> float:
        """The largest magnitude of a difference of two elements; infinite where an element is finite in one tensor alone."""
        return math.inf if self.nonfinite else self.largest


def readable(tensor: Tensor) -> Tensor:
    """Return *tensor* itself if torch reads it; of a class that computes its values, as quantised weights do, these values.

    Where the class gives none, a tensor on the meta device is returned, which has their shape alone.
    """
    kind = unreadable(tensor)
    if kind in ("nested", "quantised") or (not kind and (type(tensor) in PLAIN or local(tensor) is not tensor)):
        return tensor
    try:
        return dense(tensor.detach())
    except ArgumentError:
        return torch.empty(() if kind == "lazy" else tensor.shape, dtype=tensor.dtype, device="meta")


def as_numbers(tensor: Tensor) -> Tensor:
    """Return *tensor*, a :func:`readable` one, dense on the CPU in float64; if it is complex, with a last axis of both parts.

    Of a distributed tensor what this rank holds, without any communication.
    """
    tensor = tensor.detach()
    if type(tensor) not in PLAIN:
        held = local(tensor)
        tensor = tensor if held is None else held
    if tensor.is_nested:
        return torch.cat([as_numbers(part).flatten() for part in tensor.unbind()])
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to("cpu", torch.float64)


def held_of_both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return *x* and *y*; of distributed tensors what this rank holds of both, without any communication.

    Returns:
        None where this rank does not hold the same part of both, or an addend alone.
    """
    if type(x) in PLAIN and type(y) in PLAIN:
        return x, y
    x, y = x.detach(), y.detach()
    if x.shape != y.shape:
        return None if any(Piece.is_part(each) or Piece.is_partial_sum(each) for each in (x, y)) else (x, y)
    here, there = Piece.like(x, y), local(y)
    if here is None or there is None:
        here, there = local(x), Piece.like(y, x)
    return None if here is None or there is None else (here, there)


def distance_between(one: Tensor, other: Tensor) -> Distance:
    """Return how far two tensors are apart, of any kind and device; infinitely where shapes differ, or a tensor has no numbers."""
    one, other = readable(one), readable(other)
    if one.is_meta or other.is_meta:
        return _NOWHERE
    held = held_of_both(one, other)
    if held is None:
        return _NOWHERE
    a, b = map(as_numbers, held)
    return distance(a, b) if a.shape == b.shape else _NOWHERE


_NOWHERE = Distance(math.inf, math.nan, math.inf)


def distance(a: Tensor, b: Tensor) -> Distance:
    """Return how far *a* and *b* are apart, two tensors of one shape as :func:`as_numbers` returns them.

    NaN is equal to NaN, and an infinity to itself; such elements are left out.
    """
    a, b = a.flatten(), b.flatten()
    sizes = float(vector_norm(a)), float(vector_norm(b))
    if all(_SMALLEST < size < _LARGEST for size in sizes):  # so that every element is finite, and no square under- or overflows
        off = a - b
        cosine = float(a @ b) / (sizes[0] * sizes[1])
        largest = float(vector_norm(off, math.inf))
        return Distance(float(vector_norm(off)) / max(sizes), max(-1.0, min(1.0, cosine)), largest)
    return _careful_distance(a, b)


_SMALLEST, _LARGEST = 1e-100, 1e150


def _careful_distance(a: Tensor, b: Tensor) -> Distance:
    finite = a.isfinite() & b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    nonfinite = int((~finite & ~same).sum())
    a, b = a[finite], b[finite]
    if not a.numel():
        return Distance(math.inf if nonfinite else 0.0, math.nan, 0.0, nonfinite)
    scale = float(torch.maximum(a.abs().max(), b.abs().max()))
    if scale == 0.0:
        return Distance(math.inf if nonfinite else 0.0, math.nan, 0.0, nonfinite)
    a, b = a / scale, b / scale
    off = a - b
    norms = float(vector_norm(a)), float(vector_norm(b))
    cosine = float(a @ b) / (norms[0] * norms[1]) if min(norms) > 0 else math.nan
    relative = math.inf if nonfinite else float(vector_norm(off)) / max(norms)
    return Distance(relative, max(-1.0, min(1.0, cosine)), float(off.abs().max()) * scale, nonfinite)


def spacing(tensor: Tensor) -> float:
    """Return the relative spacing of numbers (``eps``) of the type of *tensor*; 0 for whole numbers."""
    kind = tensor.dtype
    return torch.finfo(kind).eps if kind.is_floating_point or kind.is_complex else 0.0


def laid_out_alike(a: Tensor, b: Tensor, *, turned: bool = False) -> tuple[Tensor, str] | None:
    """Return *b* with the axes of *a*, and the change in words; None if the shapes do not fit.

    Axes of length 1 may be missing, and the axes may have another order, and be joined then. Of several orders the one is chosen
    that brings *b* nearest to *a*, of those that keep the first axis if none makes them equal; with *turned* of those alone that
    are not the order of *b* itself. One may hold once what the other repeats for each sample.
    """
    if a.shape == b.shape and not turned:
        return b, ""
    if a.numel() != b.numel():
        return None if turned else _repeated(a, b)
    axes = [[axis for axis, length in enumerate(held.shape) if length != 1] for held in (a, b)]
    lengths = [[held.shape[axis] for axis in own] for held, own in zip((a, b), axes, strict=True)]
    if lengths[0] == lengths[1] and not turned:
        return b.reshape(a.shape), ""
    is_split = len(lengths[0]) > len(lengths[1])  # an axis of b is made of several of a
    long, short = lengths if is_split else lengths[::-1]
    own = axes[0] if is_split else axes[1]

    def laid(order: tuple[int, ...]) -> Tensor:
        if not is_split:
            return b.reshape(long).permute(order).reshape(a.shape)
        back = sorted(range(len(order)), key=order.__getitem__)
        return b.reshape([long[axis] for axis in order]).permute(back).reshape(a.shape)

    straight = tuple(range(len(long)))
    orders = itertools.permutations(straight) if len(long) <= _MOST_AXES else iter((straight,))
    ways = {order: joined for order in orders if (joined := _joined(order, long, short)) and not (turned and order == straight)}
    if not ways:
        return None
    kept = [order for order in ways if order[0] == 0]
    far = {order: distance(a, laid(order)).relative for order in ways} if len(ways) > 1 else dict.fromkeys(ways, 0.0)
    best = min(far, key=far.__getitem__)
    if best not in kept and kept and far[best] > _EQUAL_IN_LAYOUT:  # samples
        best = min(kept, key=far.__getitem__)
    if best == straight:
        return laid(best), ""
    groups = [", ".join(str(own[axis]) for axis in group) for group in ways[best]]
    words = ", ".join(f"({text})" if "," in text else text for text in groups)
    return laid(best), f"axes of {'a' if is_split else 'b'} in the order {words}"


_EQUAL_IN_LAYOUT = 1e-2
"""Relative difference of two tensors that are equal but for their layout, and for types of few digits."""


def repeats(many: Tensor, few: Tensor) -> bool:
    """Return whether *many* has the shape of *few* for each entry of a first axis, of several."""
    is_first = many.dim() > 0 and many.shape[1:] == few.shape[few.dim() == many.dim() :]
    return is_first and 0 < few.numel() < many.numel() == len(many) * few.numel()


def _repeated(a: Tensor, b: Tensor) -> tuple[Tensor, str] | None:
    """Return *b* in the shape of *a*, where one of them is the other for each entry of axis 0; None otherwise."""
    if repeats(a, b) and torch.equal(a, a[:1].expand_as(a)):
        return b.expand_as(a), "repeated for each entry of axis 0 in a"
    if repeats(b, a) and torch.equal(b, b[:1].expand_as(b)):
        return b[:1].reshape(a.shape), "repeated for each entry of axis 0 in b"
    return None


def _joined(order: tuple[int, ...], long: list[int], short: list[int]) -> list[list[int]] | None:
    """Return which axes, in *order*, of lengths *long* make each of those of lengths *short*; None where they make others.

    Axes that are joined keep their order: the positions of an image row by row are no layout of those column by column.
    """
    left, groups = list(order), []
    for length in short:
        group: list[int] = []
        while left and math.prod(long[axis] for axis in group) < length:
            group.append(left.pop(0))
        if math.prod(long[axis] for axis in group) != length or group != sorted(group):
            return None
        groups.append(group)
    return None if left else groups
