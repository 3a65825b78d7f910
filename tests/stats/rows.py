"""Compare rows of statistics: with exact arithmetic, and with each other where sums were formed in another order."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from tests import bounds
from torch import Tensor

from sonde.stats import Activation, Moments
from sonde.stats.kernels import EXPONENTS, MOMENTS, NORM


def by_oracle(tensor: Tensor, pivot: float) -> list[float]:
    """The row of Moments with this pivot in exact arithmetic, one element after the other."""
    values = [float(value) for value in tensor.double().flatten().tolist()]
    finite = [value for value in values if math.isfinite(value)]
    offsets = [Fraction(value) - Fraction(pivot) for value in finite]
    return [
        len(values),
        sum(math.isnan(value) for value in values),
        sum(math.isinf(value) for value in values),
        values.count(0.0),
        math.fsum(finite),
        float(sum((Fraction(value) ** 2 for value in finite), Fraction())),
        float(sum(offsets, Fraction())),
        float(sum((offset**2 for offset in offsets), Fraction())),
        min(finite, default=math.inf),
        pivot,
        max(finite, default=-math.inf),
    ]


def assert_moments(row: Tensor, tensor: Tensor) -> None:
    """*row* is right within the bounds that the docstring of Moments states."""
    counted = row.tolist()
    pivot, finite = counted[9], counted[0] - counted[1] - counted[2]
    expected = by_oracle(tensor, pivot)
    assert counted[:4] == expected[:4]
    assert counted[8:] == expected[8:]
    assert expected[8] <= pivot <= expected[10] if finite else pivot == math.inf
    bound = 150 * 2.0**-53
    size = math.fsum(abs(value) for value in tensor.double().flatten().tolist() if math.isfinite(value))
    assert abs(counted[4] - expected[4]) <= bound * size
    assert abs(counted[5] - expected[5]) <= bound * expected[5]
    if not finite:
        return
    # derived from sums of x and x^2 where at least 2^-12 of the terms is left, and else from distances themselves
    left = min(2 * (expected[5] + finite * pivot**2), 2**12 * expected[7])
    assert abs(counted[7] - expected[7]) <= 2 * bound * left
    assert abs(counted[6] - expected[6]) <= 2 * bound * math.sqrt(finite * 2 * left)


def assert_same_rows(one: Tensor, other: Tensor, tensor: Tensor) -> None:
    """Counts and extremes are equal, sums (of values, of squares, of rates) up to the rounding of float64 in another order."""
    if one.numel() == MOMENTS.width:
        values = tensor.double()
        size = torch.where(values.isfinite(), values, 0.0).abs().sum().item()
        assert one[4].item() == pytest.approx(other[4].item(), rel=0, abs=1e-12 * size)
        found, expected = Moments().finish(Moments().columns(torch.stack([one, other])))["std"]
        blocks = tensor.numel() // 4096 + 1  # the pivot is the mean of a block, that of several threads the least
        assert found == pytest.approx(
            expected, rel=2 * bounds.of_std(blocks * 4096 / min(4096, tensor.numel())), abs=0, nan_ok=True
        )
    sums = {MOMENTS.width: [5], NORM.width: [3], Activation().width: [5], EXPONENTS.width: []}[one.numel()]
    for place in sums:
        assert one[place].item() == pytest.approx(other[place].item(), rel=1e-12, abs=0)
    rounded = [*sums, 4, 6, 7, 9] if one.numel() == MOMENTS.width else sums
    exact = [place for place in range(one.numel()) if place not in rounded]
    assert torch.equal(one[exact], other[exact])
