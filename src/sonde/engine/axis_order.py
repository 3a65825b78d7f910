"""Tell whether the numbers of an input stand in the order of its axes: what is smooth is so in one order alone."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

_LONG, _FEWEST, _MOST = 8, 1024, 1 << 18  # places of an axis whose neighbours are compared; elements of a tensor


def roughness_by_order(given: Tensor) -> dict[tuple[int, ...], Tensor]:
    """Return how much less neighbours would differ if what was *given* had been of another shape, and its numbers taken in a row.

    Images and series are smooth along an axis. ``view`` or ``reshape``, where ``transpose`` or ``permute`` is meant, leaves their
    numbers in a row as they were: with their axes in the former order neighbours differ less, often half as much. There is one
    number for each shape that has the same sizes in another order, of tensors of three or four axes: the mean difference of
    neighbours along all axes, of what it is as given, or that along the smoothest one, if that is more. Samples, along the first
    axis, are no neighbours.

    >>> series = (torch.arange(40.0)[:, None] / 6 + torch.tensor([0.0, 2.0, 4.0])).sin().expand(9, -1, -1)  # 9 samples of 3 series
    >>> round(float(roughness_by_order(series.reshape(9, 3, 40))[9, 40, 3]), 1)
    0.1
    """
    sizes = tuple(given.shape)
    if len(sizes) not in (3, 4) or max(sizes[1:]) < _LONG or not _FEWEST <= given.numel() <= _MOST:
        return {}
    rows = given.detach().float().contiguous()
    found: dict[tuple[int, ...], Tensor] = {}
    as_given, smoothest = _roughness(rows, _LONG).mean(), _roughness(rows, 2).min()
    for order in itertools.permutations(range(len(sizes))):
        shape = tuple(sizes[axis] for axis in order)
        if [size for size in shape if size > 1] != [size for size in sizes if size > 1]:
            ordered = rows.view(shape).permute([order.index(axis) for axis in range(len(sizes))])
            rough = _roughness(ordered, _LONG)
            ratio = torch.maximum(rough.mean() / as_given, rough.min() / smoothest)
            found[shape] = torch.minimum(ratio, found.get(shape, ratio))
    return found


def _roughness(tensor: Tensor, least: int) -> Tensor:
    """Return the mean difference of neighbours along each axis of a *tensor* of *least* places or more, but for that of samples."""
    axes = [axis for axis in range(1, tensor.dim()) if tensor.shape[axis] >= least]
    return torch.stack([tensor.diff(dim=axis).abs().mean() for axis in axes])
