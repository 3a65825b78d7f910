"""The reference kernels: plain torch, for any device, traced and fused by torch.compile."""

from __future__ import annotations

import torch
from torch import Tensor


def moments(values: Tensor) -> Tensor:
    """Return the row of :class:`~sonde.stats.Moments`: float64, shape ``(11,)``.

    The fields are count, nan, inf, zeros, sum, squares, offsets, squared offsets, min, pivot, max. The pivot is the mean; offsets
    are the distances from the pivot.

    Args:
        values: float64 of any shape. NaN and infinities are counted and left out of all other fields; without a finite element,
            the sums are 0, min and pivot are inf and max is -inf.
    """
    nan = values.isnan()
    inf = values.isinf()
    spoiled = nan | inf
    finite = torch.where(spoiled, 0.0, values)
    if values.numel() == 0:
        low = torch.full((), float("inf"), dtype=torch.float64, device=values.device)
        high = -low
    else:
        low = torch.where(spoiled, float("inf"), values).amin()
        high = torch.where(spoiled, float("-inf"), values).amax()
    nans, infs, total = nan.sum(dtype=torch.float64), inf.sum(dtype=torch.float64), finite.sum()
    pivot = torch.fmax(low, torch.fmin(total / (values.numel() - nans - infs), high))
    offsets = torch.where(spoiled, 0.0, values - pivot)
    return torch.stack(
        [
            torch.full_like(low, values.numel()),
            nans,
            infs,
            (values == 0).sum(dtype=torch.float64),
            total,
            finite.square().sum(),
            offsets.sum(),
            offsets.square().sum(),
            low,
            pivot,
            high,
        ]
    )
