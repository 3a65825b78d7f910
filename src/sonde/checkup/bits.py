"""Compare tensors to the last bit, and say where and by how much they differ."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sonde.diagnosis import readable
from sonde.stats import bits_of


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits; any NaN equals any other.

    >>> import torch
    >>> from sonde import testing
    >>> testing.same_bits(torch.tensor([0.0]), torch.tensor([-0.0])), testing.same_bits(torch.ones(2), torch.ones(2))
    (False, True)
    """
    return difference(one, other) == ""


def difference(one: Tensor, other: Tensor) -> str:
    """Return the difference between two tensors in words; ``""`` if all bits are the same (any NaN equals any other).

    Of classes that compute their values these are compared, and nothing where the class gives none (:func:`is_compared`).
    """
    for what in ("dtype", "layout", "device", "is_nested"):
        here, there = getattr(one, what), getattr(other, what)
        if here != there:
            return f"{what} {here} and {there}"
    if type(one) is not type(other) and not {type(one), type(other)} <= {Tensor, nn.Parameter}:
        return f"type {type(one).__name__} and {type(other).__name__}"
    parts = _parts(one.detach()), _parts(other.detach())
    if len(parts[0]) != len(parts[1]):
        return f"{len(parts[0])} and {len(parts[1])} parts"
    return next(filter(None, map(_plain_difference, *parts)), "")


def is_compared(tensor: Tensor) -> bool:
    """Return whether :func:`difference` reads the values of *tensor*: its class, if that computes them, gives some."""
    return tensor.is_meta or not readable(tensor).is_meta


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return dense tensors of real numbers that together hold all that *tensor* holds."""
    tensor = readable(tensor)
    tensor = tensor if type(tensor) in (Tensor, nn.Parameter) or tensor.is_nested else tensor.as_subclass(Tensor)
    if tensor.is_nested:
        return [part for held in tensor.unbind() for part in _parts(held)]
    if tensor.layout == torch.sparse_coo:
        held = tensor.coalesce()
        return [held.indices(), *_parts(held.values())]
    if tensor.layout != torch.strided:
        return _parts(tensor.to_dense())
    return [torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor]


def _plain_difference(one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return f"shape {tuple(one.shape)} and {tuple(other.shape)}"
    if one.is_meta or one.numel() == 0:
        return ""
    differs = one != other if not one.is_floating_point() else (bits_of(one) != bits_of(other)) & ~(one.isnan() & other.isnan())
    count = int(differs.sum())
    if not count:
        return ""
    place = tuple(differs.nonzero()[0].tolist())
    shown = f"{count} of {one.numel()} elements, first at {place}: " if one.ndim else ""
    return f"{shown}{one[place].item()!r} and {other[place].item()!r}"
