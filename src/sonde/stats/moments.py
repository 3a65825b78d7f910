"""Size, spread and defects of a tensor: the first numbers that anybody wants to know."""

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
    """Count, mean, std, rms, norm, min, max, absmax, zeros, nan, inf of all elements seen.

    NaN and infinities are counted (``nan``, ``inf``) and left out of everything else; ``count`` is the number of all
    elements, ``finite`` of those that the other numbers are over. Where there are none, they are NaN (sums are 0).

    * ``mean`` and ``std`` (population, ddof 0: ``sqrt(E[x^2] - E[x]^2)``) from float64 sums, so that
      ``|mean| / std`` up to 1e6 leaves ``std`` a relative error of about 1e-4.
    * ``norm`` is the Euclidean norm ``sqrt(sum x^2)`` and ``rms`` is ``norm / sqrt(finite)``; squares are formed in
      float64, so that neither gradients of 1e-20 vanish nor float16 values overflow.
    * Both sums are of float64 numbers whichever kernel adds them up: the error of what one tensor adds is at most
      ``150 * 2^-53`` of the sum of magnitudes, and usually a few ``2^-53``. The rest is exact.
    * ``zeros`` counts exact zeros; ``absmax`` is the largest magnitude.

    Integers and bools are read as numbers, complex tensors as their modulus, sparse ones as what they stand for.
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
        with np.errstate(over="ignore", invalid="ignore"):  # beyond 1e154 a square is infinite, and is said to be
            spread = np.sqrt(np.maximum(square - mean * mean, 0.0))
        low = np.where(finite > 0, columns["min"], np.nan)
        high = np.where(finite > 0, columns["max"], np.nan)
        return {
            "count": columns["count"],
            "finite": finite,
            "mean": mean,
            "std": spread,
            "rms": np.sqrt(square),
            "norm": np.sqrt(columns["squares"]),
            "min": low,
            "max": high,
            "absmax": np.maximum(np.abs(low), np.abs(high)),
            "zeros": columns["zeros"],
            "nan": columns["nan"],
            "inf": columns["inf"],
        }
