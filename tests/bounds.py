"""Bounds on rounding errors, for tolerances that hold on every processor.

A processor may add in any order and may fuse a product with a sum. Each bound here holds for all of these ways. The unit
roundoff u of a format is half its ``eps``: one operation gives the exact result times ``1 + d`` with ``|d| <= u``. See Higham,
Accuracy and Stability of Numerical Algorithms, 2002, section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

__all__ = ["of_std", "of_sum", "relative"]


def relative(operations: int, dtype: torch.dtype = torch.float64) -> float:
    """Return the largest relative error after *operations* roundings in a row: ``n u / (1 - n u)``.

    This bounds a product, quotient or root of that many steps, and a sum of that many terms of one sign.
    """
    roundings = operations * torch.finfo(dtype).eps / 2
    return roundings / (1 - roundings)


def of_sum(terms: Iterable[float], dtype: torch.dtype = torch.float64) -> float:
    """Return the largest absolute error of the sum of *terms*, added in any order, each rounded once before."""
    sizes = [abs(term) for term in terms]
    return relative(len(sizes), dtype) * math.fsum(sizes)


def of_std(count: int, largest: float, dtype: torch.dtype = torch.float64) -> float:
    """Return the largest absolute error of a standard deviation that is computed from a sum and a sum of squares.

    *largest* bounds the *count* values. The two sums of the variance, each at most ``largest**2`` after division, are off by
    ``count + 3`` roundings each; the difference keeps that error, and the root of a variance near zero takes its root.
    """
    return math.sqrt(2 * relative(count + 3, dtype)) * largest
