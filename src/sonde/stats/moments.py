"""Size, spread and defects of tensors: mean, std, rms, norm, extremes, zeros, NaN and infinities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.number import STANDARD, Number
from sonde.stats.kernels import MOMENTS, Kernel, reference
from sonde.stats.statistic import Column, Field, Statistic, elements


@dataclass(frozen=True)
class Moments(Statistic):
    """Count, mean, std, rms, norm, min, max, absmax, zeros, nan, inf of all elements added.

    >>> import torch
    >>> from sonde.stats import Accumulator, Moments
    >>> seen = Accumulator(Moments()).update(torch.tensor([3.0, -4.0, float("nan")])).compute()
    >>> seen.mean, seen.norm, seen.min, seen.nan
    (-0.5, 5.0, -4.0, 1.0)

    NaN and infinities are counted (``nan``, ``inf``) and left out of all other numbers; ``count`` is the number of all
    elements, ``finite`` the number of finite elements. Elements without a finite one among them have NaN for all other numbers but
    ``zeros``; no element at all has the ``norm`` 0.

    * ``mean``, and ``std`` of the population (ddof 0). The variance is ``E[(x - p)^2] - E[x - p]^2`` with a *pivot* p that the row
      keeps: the mean of some of the elements. So its relative error does not depend on ``|mean| / std``: with equal tensors it is
      a few ``2^-53`` times the number of tensors added, in the worst case ``2^-33`` times that number, and in general that of
      elements over those of the smallest tensor. Where squares overflow or underflow, or less than ``2^-24`` of
      ``E[(x - p)^2]`` is left, ``std`` is NaN. Rows with different pivots merge exactly: sums about one pivot follow from sums
      about another (:meth:`aligned`).
    * ``norm`` is the Euclidean norm ``sqrt(sum x^2)`` and ``rms`` is ``norm / sqrt(finite)``; squares are computed in
      float64: gradients of 1e-20 do not vanish, and float16 values do not overflow.
    * Every kernel adds float64 numbers: the error of the sums of one tensor is at most
      ``150 * 2^-53`` of the sum of magnitudes, and usually a few ``2^-53``. Counts and extremes are exact.
    * ``zeros`` counts exact zeros; ``absmax`` is the largest magnitude.

    Integers and bools are read as numbers, complex tensors as their modulus, sparse tensors as dense ones.
    """

    fields: ClassVar[tuple[Field, ...]] = (
        Field("count"),
        Field("nan"),
        Field("inf"),
        Field("zeros"),
        Field("sum"),
        Field("squares"),
        Field("offsets"),
        Field("squared_offsets"),
        Field("min", "min"),
        Field("pivot", "min", per="call"),
        Field("max", "max"),
    )

    kernel: ClassVar[Kernel | None] = MOMENTS
    numbers: ClassVar[tuple[Number, ...]] = tuple(
        [
            STANDARD[name]
            for name in ["rms", "norm", "std", "absmax", "mean", "min", "max", "count", "finite", "zeros", "nan", "inf"]
        ]
    )

    def measure(self, tensor: Tensor) -> Tensor:
        return reference.moments(elements(tensor))

    def aligned(self, rows: Tensor, minima: Tensor) -> Tensor:
        finite = rows[..., 0:1] - rows[..., 1:2] - rows[..., 2:3]
        by = torch.where(finite > 0, rows[..., 9:10] - minima[..., 1:2], 0.0)
        moved, offsets = finite * by, rows[..., 6:7]
        return torch.cat([rows[..., :6], offsets + moved, rows[..., 7:8] + by * (2 * offsets + moved)], -1)

    def marks(self, rows: Tensor) -> Tensor:
        finite = rows[:, 0] - rows[:, 1] - rows[:, 2]
        share = rows[:, 4] / (finite.sqrt() * rows[:, 5].sqrt())  # the sum may cancel out: the mean over the rms, from -1 to 1
        kept = rows[:, [0, 1, 2, 3, 5, 8, 10]]
        return torch.cat([kept, torch.where(rows[:, 5] > 0, 2 + share, 2.0)[:, None]], 1)

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        finite = columns["count"] - columns["nan"] - columns["inf"]
        divisor = np.where(finite > 0, finite, np.nan)
        mean = columns["sum"] / divisor
        square = columns["squares"] / divisor
        low = np.where(finite > 0, columns["min"], np.nan)
        high = np.where(finite > 0, columns["max"], np.nan)
        return {
            "count": columns["count"],
            "finite": finite,
            "mean": mean,
            "std": _spread(columns, divisor, low < high),
            "rms": np.sqrt(square),
            "norm": np.where((finite > 0) | (columns["count"] == 0), np.sqrt(columns["squares"]), np.nan),
            "min": low,
            "max": high,
            "absmax": np.maximum(np.abs(low), np.abs(high)),
            "zeros": columns["zeros"],
            "nan": columns["nan"],
            "inf": columns["inf"],
        }


_TRUSTED = 2.0**-24
"""The least part of the squared offsets that may be left where the square of their mean is taken away."""

_NORMAL = 2.0**-960
"""The least sum of squares in which no square that matters has lost digits to underflow."""


def _spread(columns: Mapping[str, Column], finite: Column, differ: NDArray[np.bool_]) -> Column:
    """Return the standard deviation; 0 where no two elements *differ*, NaN where the sums do not determine it."""
    with np.errstate(over="ignore", invalid="ignore"):  # the square of a number beyond 1e154 is infinite
        left = columns["squared_offsets"] - columns["offsets"] ** 2 / finite
        known = (left >= _TRUSTED * columns["squared_offsets"]) & (left > _NORMAL) & np.isfinite(left)
        spread = np.sqrt(np.where(known, left, np.nan) / finite)
    return np.where(differ | np.isnan(finite), spread, 0.0)
