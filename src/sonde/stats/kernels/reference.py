"""The reference kernels: plain torch, for any device, traced and fused by torch.compile."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["moments"]


def moments(values: Tensor) -> Tensor:
    """Return the row of :class:`~sonde.stats.Moments`: count, nan, inf, zeros, sum, squares, min, max; float64, shape ``(8,)``.

    Args:
        values: float64 of any shape. NaN and infinities are counted and left out of the last four; without a finite element,
            the sums are 0, min is inf and max is -inf.
    """
    nan = values.isnan()
    inf = values.isinf()
    spoiled = nan | inf
    finite = torch.where(spoiled, 0.0, values)
    if values.numel() == 0:
        low = values.new_tensor(float("inf"))
        high = values.new_tensor(float("-inf"))
    else:
        low = torch.where(spoiled, float("inf"), values).amin()
        high = torch.where(spoiled, float("-inf"), values).amax()
    return torch.stack(
        [
            torch.full_like(low, values.numel()),
            nan.sum(dtype=torch.float64),
            inf.sum(dtype=torch.float64),
            (values == 0).sum(dtype=torch.float64),
            finite.sum(),
            finite.square().sum(),
            low,
            high,
        ]
    )
