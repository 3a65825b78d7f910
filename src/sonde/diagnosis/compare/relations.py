"""Say in words how a tensor that one side's code makes follows from one of the other: a factor, an order, shares of a sum."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from sonde.diagnosis.compare.weights import factor_between, order_of_rows, words_of_order
from sonde.diagnosis.distance import distance, laid_out_alike
from sonde.words import names_text

_LEAST, _MOST_AXES = 4, 4


def relation_of(a: Tensor, b: Tensor, tolerance: float) -> str:
    """Return in words what *b* is, of *a* in its layout, which is ``{a}``; ``""`` for no relation that is known, and equal ones."""
    if a.shape != b.shape or a.numel() < _LEAST or not bool(a.isfinite().all() & b.isfinite().all()):
        return ""
    if _is_one_number(a) or _is_one_number(b) or distance(a, b).relative <= 4 * tolerance:
        return ""
    factor = factor_between(a, b, tolerance)
    if factor is not None:
        return f"{factor:.6g} times {{a}}"
    return next(itertools.chain(_shares(a, b, tolerance), _orders(a, b, tolerance), _factors(a, b, tolerance)), "")


def _is_one_number(tensor: Tensor) -> bool:
    return bool((tensor == tensor.flatten()[0]).all())


def _shares(a: Tensor, b: Tensor, tolerance: float) -> Iterator[str]:
    """Yield along which axis one tensor is the other, divided by its sum."""
    for axis in range(a.dim()):
        for one, other, words in ((a, b, "{a}, divided by its sum"), (b, a, "{a}, but for a division by its sum")):
            total = one.sum(axis, keepdim=True)
            if a.size(axis) > 1 and bool((total != 0).all()) and distance(one / total, other).relative <= 4 * tolerance:
                yield f"{words} over the {a.size(axis)} entries of axis {axis}"


def _factors(a: Tensor, b: Tensor, tolerance: float) -> Iterator[str]:
    """Yield along what first axes each entry of one tensor, of many elements, is that of the other times a number."""
    for count in range(1, a.dim()):
        rest = list(range(count, a.dim()))
        many = [a.size(axis) for axis in rest]
        square = (a * a).sum(rest, keepdim=True)
        if torch.Size(many).numel() < _MANY or not bool((square > 0).all()):
            continue
        factors = (a * b).sum(rest, keepdim=True) / square
        if bool((factors != 0).all()) and distance(a * factors, b).relative <= 4 * tolerance:
            which = "axis 0" if count == 1 else f"axes {', '.join(map(str, range(count)))}"
            said = names_text([f"{float(each):.4g}" for each in factors.flatten()[:8]], 4)
            yield f"{{a}}, times a number for each entry of {which}: {said}"


_MANY = 8


def _orders(a: Tensor, b: Tensor, tolerance: float) -> Iterator[str]:
    """Yield along which axis one tensor has the entries of the other in another order, or which axes are exchanged."""
    for axis in range(a.dim()):
        order = order_of_rows(a.transpose(0, axis), b.transpose(0, axis), tolerance)
        if order is not None:
            yield f"{{a}}, with {words_of_order(order, f'entries of axis {axis}')}"
    for axes in itertools.combinations(range(min(a.dim(), _MOST_AXES)), 2):
        if a.size(axes[0]) == a.size(axes[1]) and distance(a.transpose(*axes), b).relative <= 4 * tolerance:
            yield f"{{a}}, with axes {axes[0]} and {axes[1]} exchanged"


def as_laid_out(tensor: Tensor, like: Tensor) -> Tensor | None:
    """Return *tensor* in the layout of *like*, one of several equal parts where it repeats them; None if it does not fit."""
    if tensor.numel() > like.numel() > 0 and tensor.numel() % like.numel() == 0:
        parts = tensor.reshape(-1, like.numel())
        if not torch.equal(parts, parts[:1].expand_as(parts)):
            return None
        tensor = parts[0]
    if tensor.dim() == 1 and tensor.numel() == like.numel():
        return tensor.reshape(like.shape)
    laid = laid_out_alike(like, tensor) if tensor.numel() == like.numel() else None
    return None if laid is None else laid[0]
