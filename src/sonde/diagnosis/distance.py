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


def laid_out_alike(a: Tensor, b: Tensor) -> tuple[Tensor, str] | None:
    """Return *b* with the axes of *a*, and the change in words; None if the shapes do not fit.

    Axes of length 1 may be missing, and the axes may have another order, or be joined. Of several orders the one is chosen
    that brings *b* nearest to *a*.
    """
    if a.shape == b.shape:
        return b, ""
    if a.numel() != b.numel():
        return None
    if [length for length in a.shape if length != 1] == [length for length in b.shape if length != 1]:
        return b.reshape(a.shape), ""
    if a.dim() == b.dim() <= _MOST_AXES and sorted(a.shape) == sorted(b.shape):
        orders = [order for order in itertools.permutations(range(b.dim())) if b.permute(order).shape == a.shape]
        best = min(orders, key=lambda order: distance(a, b.permute(order)).relative)
        return b.permute(best), f"axes in the order {', '.join(map(str, best))}"
    if a.dim() != b.dim() and _joined(a.shape, b.shape):
        return b.reshape(a.shape), ""
    return None


def _joined(one: torch.Size, other: torch.Size) -> bool:
    """Return whether the longer of two shapes becomes the shorter one by joining neighbouring axes."""
    long, short = (list(one), list(other)) if len(one) > len(other) else (list(other), list(one))
    for length in short:
        product = 1
        while product < length and long:
            product *= long.pop(0)
        if product != length:
            return False
    return all(length == 1 for length in long)
