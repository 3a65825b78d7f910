"""Bounds on rounding errors, for tolerances that hold on every processor.

A processor may add in any order and may fuse a product with a sum. Each bound here holds for all of these ways. The unit
roundoff u of a format is half its ``eps``: one operation gives the exact result times ``1 + d`` with ``|d| <= u``. See Higham,
Accuracy and Stability of Numerical Algorithms, 2002, section 3.1.
"""

from __future__ import annotations

import math

import torch

__all__ = ["SUM", "of_decomposition", "of_effective_rank", "of_std", "relative"]

SUM = 150
"""Roundings in a row in a sum of ours in float64, as ``Moments`` promises; torch adds in blocks too and stays below."""


def relative(operations: float, dtype: torch.dtype = torch.float64) -> float:
    """Return the largest relative error after *operations* roundings in a row: ``n u / (1 - n u)``.

    This bounds a product, quotient or root of that many steps, a sum of that many terms of one sign, and the error of any
    sum as a share of the sum of magnitudes.
    """
    roundings = operations * torch.finfo(dtype).eps / 2
    return roundings / (1 - roundings)


def of_std(parts: float) -> float:
    """Return the largest relative error of a ``std`` of ``Moments`` that a row has, as its docstring says.

    A sum of squares about a pivot that is at least ``2^-12`` of the terms that it is derived from is off by ``2^12`` times the
    roundings of these. The pivot is the mean of one of *parts* parts of equal size, and so at most ``sqrt(parts - 1)`` standard
    deviations away from the mean of all (Samuelson 1968): at least one in *parts* of that sum is left as the variance.

    Args:
        parts: over how many tensors, or blocks of a large tensor, the elements are divided equally; in general, the number of
            elements over that of the smallest part.
    """
    return parts * relative(2**12 * 2 * SUM)


def of_decomposition(rows: int, features: int) -> float:
    """Return the largest error of a squared singular value that :class:`sonde.stats.Spectrum` gives, as a share of their sum.

    It makes four products of sums over rows or features: the Gram matrix, that times the directions, the change of basis, and
    the decomposition.
    """
    return 2 * relative(rows + 3 * features)


def of_effective_rank(features: int, squares: float) -> float:
    """Return the largest error of an effective rank whose squared singular values are each off by *squares*, a share of their sum.

    Each singular value moves by its root at most, and all shares of their sum by ``d`` together; the entropy then moves by
    ``d * (1 + log(features / d))``, and the rank, which is at most *features*, by that factor.
    """
    moved = features * math.sqrt(squares)
    return features * moved * (1 + math.log(features / moved))
