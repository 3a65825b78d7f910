"""Size, spread and defects of tensors: mean, std, rms, norm, extremes, zeros, NaN and infinities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from sonde.number import STANDARD, Number
from sonde.stats.kernels import MOMENTS, Kernel, reference
from sonde.stats.statistic import Column, Field, Statistic, elements

__all__ = ["Moments"]


@dataclass(frozen=True)
class Moments(Statistic):
    """Count, mean, std, rms, norm, min, max, absmax, zeros, nan, inf of all elements added.

    NaN and infinities are counted (``nan``, ``inf``) and left out of all other numbers; ``count`` is the number of all
    elements, ``finite`` the number of finite elements. Elements without a finite one among them have NaN for all other numbers but
    ``zeros``; no element at all has the ``norm`` 0.

    * ``mean`` and ``std`` (population, ddof 0: ``sqrt(E[x^2] - E[x]^2)``) from float64 sums, so that
      ``|mean| / std`` up to 1e6 leaves ``std`` a relative error of about 1e-4.
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
        Field("min", "min"),
        Field("max", "max"),
    )

    kernel: ClassVar[Kernel | None] = MOMENTS
    numbers: ClassVar[tuple[Number, ...]] = tuple(
        STANDARD[name] for name in ["rms", "norm", "std", "absmax", "mean", "min", "max", "count", "finite", "zeros", "nan", "inf"]
    )

    def measure(self, tensor: Tensor) -> Tensor:
        return reference.moments(elements(tensor))

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        finite = columns["count"] - columns["nan"] - columns["inf"]
        divisor = np.where(finite > 0, finite, np.nan)
        mean = columns["sum"] / divisor
        square = columns["squares"] / divisor
        with np.errstate(over="ignore", invalid="ignore"):  # the square of a number beyond 1e154 is infinite
            spread = np.sqrt(np.maximum(square - mean * mean, 0.0))
        low = np.where(finite > 0, columns["min"], np.nan)
        high = np.where(finite > 0, columns["max"], np.nan)
        return {
            "count": columns["count"],
            "finite": finite,
            "mean": mean,
            "std": spread,
            "rms": np.sqrt(square),
            "norm": np.where((finite > 0) | (columns["count"] == 0), np.sqrt(columns["squares"]), np.nan),
            "min": low,
            "max": high,
            "absmax": np.maximum(np.abs(low), np.abs(high)),
            "zeros": columns["zeros"],
            "nan": columns["nan"],
            "inf": columns["inf"],
        }
