"""Reduce the numbers of an interval to one number: the list that keeps all, and the aggregations by name."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from sonde.errors import ArgumentError
from sonde.stats import RunningMeanVar
from sonde.suggest import nearest


class InMemory(list[Any]):
    """All numbers of an interval, in order: a list with mean, quantiles and extremes.

    >>> kept = InMemory([1.0, 2.0, 3.0, 4.0, 100.0])
    >>> kept.mean, kept.median, kept.q3, kept.min_, kept.max_
    (22.0, 3.0, 4.0, 1.0, 100.0)
    >>> InMemory()
    InMemory(no data)

    The list keeps NaN and infinities; the aggregations leave them out, as
    :class:`~sonde.stats.RunningMeanVar` does, and are NaN where no finite number is left. Quantiles are linearly
    interpolated (type 7 of Hyndman and Fan: Sample quantiles in statistical packages, 1996).
    """

    def _finite(self) -> np.typing.NDArray[np.float64]:
        try:
            held = np.asarray(self, dtype=np.float64)
        except (TypeError, ValueError):
            raise ArgumentError("this list holds things that are no numbers, which have no mean, quantile or extreme") from None
        return held[np.isfinite(held)]

    @property
    def finite(self) -> int:
        """Number of finite elements. (``count(x)`` is the method of every list.)"""
        return len(self._finite())

    @property
    def nonfinite(self) -> int:
        """Number of elements that are NaN or infinite."""
        return len(self) - self.finite

    @property
    def mean(self) -> float:
        """Mean of the finite elements."""
        held = self._finite()
        if not len(held):
            return math.nan
        exponent = max(0, math.frexp(float(np.abs(held).max()))[1] - 900)  # else the sum of numbers of 1e308 overflows
        return math.ldexp(math.fsum(math.ldexp(number, -exponent) for number in held.tolist()) / len(held), exponent)

    @property
    def var(self) -> float:
        """Population variance (ddof 0) of the finite elements."""
        held = self._finite()
        with np.errstate(over="ignore"):
            return float(np.square(held - self.mean).mean()) if len(held) else math.nan

    @property
    def std(self) -> float:
        """The square root of ``var``."""
        return math.sqrt(self.var)

    @property
    def min_(self) -> float:
        """Smallest finite element."""
        held = self._finite()
        return float(held.min()) if len(held) else math.nan

    @property
    def max_(self) -> float:
        """Largest finite element."""
        held = self._finite()
        return float(held.max()) if len(held) else math.nan

    def quantile(self, share: float) -> float:
        """Return the number below which a *share* of the finite elements lies, from 0 to 1.

        >>> from sonde.preprocessor import InMemory
        >>> numbers = InMemory()
        >>> numbers.extend([1.0, 2.0, 3.0])
        >>> numbers.quantile(0.5)
        2.0

        Raises:
            ArgumentError: *share* is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ArgumentError(f"a quantile is asked by a share between 0 and 1, not {share}")
        held = self._finite()
        return float(np.quantile(held, share)) if len(held) else math.nan

    @property
    def median(self) -> float:
        """Middle element, or the mean of the two middle elements."""
        return self.quantile(0.5)

    @property
    def q1(self) -> float:
        """The first quartile."""
        return self.quantile(0.25)

    @property
    def q3(self) -> float:
        """The third quartile."""
        return self.quantile(0.75)

    @property
    def iqr(self) -> float:
        """The distance between the quartiles."""
        return self.q3 - self.q1

    def __repr__(self) -> str:
        return f"InMemory({super().__repr__()})" if self else "InMemory(no data)"


Aggregate: TypeAlias = RunningMeanVar | InMemory
"""The numbers of an interval: aggregated as they come, or all kept."""

_POINTS = {"count": "finite", "mean": "mean", "median": "median", "min": "min_", "max": "max_", "std": "std"}
_POINTS |= {"Q1": "q1", "Q3": "q3", "IQR": "iqr"}
_RANGES = {"std": ("", ""), "min-max": ("min", "max"), "Q1-Q3": ("Q1", "Q3")}


def aggregate(numbers: Aggregate, method: str) -> float:
    """Return one number for an interval.

    >>> aggregate(InMemory([1.0, 2.0, 3.0, 4.0, 100.0]), "Q3")
    4.0

    Args:
        numbers: a running aggregate or a kept list.
        method: ``count`` (of the finite numbers), ``mean``, ``std``, ``min``, ``max``; of a kept list also ``median``,
            ``Q1``, ``Q3``, ``IQR``.

    Returns:
        The number; NaN where there is no data.

    Raises:
        ArgumentError: there is no such method, or the method needs all numbers and they were not kept.
    """
    if method not in _POINTS:
        raise ArgumentError(f"{method!r} is no aggregation; there are {', '.join(_POINTS)}. {nearest(method, _POINTS, count=1)}")
    if not hasattr(numbers, _POINTS[method]):
        raise ArgumentError(f"{method} needs all numbers of the interval, and only running ones were kept: use inplace=False")
    return float(getattr(numbers, _POINTS[method]))


def aggregate_range(numbers: Aggregate, method: str) -> tuple[float, float]:
    """Return the lower and the upper end of the numbers of an interval.

    >>> from sonde.preprocessor import aggregate_range
    >>> from sonde.stats import RunningMeanVar
    >>> losses = RunningMeanVar()
    >>> for loss in (1.0, 3.0):
    ...     losses.update(loss)
    >>> aggregate_range(losses, "min-max")
    (1.0, 3.0)

    Args:
        numbers: a running aggregate or a kept list.
        method: ``std`` for one standard deviation to both sides of the mean, ``min-max``; of a kept list also ``Q1-Q3``.

    Raises:
        ArgumentError: as :func:`aggregate`.
    """
    if method not in _RANGES:
        raise ArgumentError(f"{method!r} is no range; there are {', '.join(_RANGES)}. {nearest(method, _RANGES, count=1)}")
    if method == "std":
        mean, spread = aggregate(numbers, "mean"), aggregate(numbers, "std")
        return mean - spread, mean + spread
    low, high = _RANGES[method]
    return aggregate(numbers, low), aggregate(numbers, high)
