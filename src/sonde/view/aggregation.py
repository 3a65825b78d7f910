"""Reduce the values of intervals to one number each, or to a band: mean, quantiles, extremes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.suggest import nearest

Values: TypeAlias = npt.NDArray[np.float64]
Starts: TypeAlias = npt.NDArray[np.intp]

_SORTED = 1 << 17  # values that are sorted at once: they stay in the cache of a core


def mean_of(values: Values, starts: Starts) -> Values:
    """Return the means of the finite values in intervals of the last axis; NaN where there are none."""
    there = np.isfinite(values)
    counts = np.add.reduceat(there.astype(np.float64), starts, axis=-1)
    sums = np.add.reduceat(np.where(there, values, 0.0), starts, axis=-1)
    means: Values = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means


def _std_of(values: Values, starts: Starts) -> Values:
    """Return the standard deviations (ddof 0) of the finite values in intervals of the last axis."""
    lengths = np.diff([*starts, values.shape[-1]])
    away = np.where(np.isfinite(values), values, np.nan) - np.repeat(mean_of(values, starts), lengths, axis=-1)
    return np.sqrt(mean_of(away**2, starts))


def _quantile_of(share: float) -> Callable[[Values, Starts], Values]:
    def quantile_of(values: Values, starts: Starts) -> Values:
        parts = [_quantiles(pieces, counts, share) for pieces, counts in _sorted_pieces(values, starts)]
        return np.concatenate(parts).reshape(*values.shape[:-1], len(starts))

    return quantile_of


def ordered_of(values: Values, starts: Starts) -> tuple[Values, Values, Values]:
    """Return the least, the median and the greatest finite value of each interval of the last axis; NaN where there are none."""
    low, middle, high = (np.empty((values[..., 0].size, len(starts)), values.dtype) for _ in range(3))
    begin = 0
    for pieces, counts in _sorted_pieces(values, starts):
        rows = slice(begin, begin + len(pieces))
        begin = rows.stop
        low[rows], middle[rows] = pieces[..., 0], _quantiles(pieces, counts, 0.5)
        high[rows] = np.take_along_axis(pieces, np.maximum(counts - 1, 0)[..., None], -1)[..., 0]
    shape = *values.shape[:-1], len(starts)
    return low.reshape(shape), middle.reshape(shape), high.reshape(shape)


def _sorted_pieces(values: Values, starts: Starts) -> Iterator[tuple[Values, npt.NDArray[np.intp]]]:
    """Yield the values of some rows, of shape (rows, intervals, values), in ascending order, NaN last, and how many are finite."""
    lengths = np.diff([*starts, values.shape[-1]])
    places = starts[:, None] + np.arange(lengths.max())
    outside = places >= (starts + lengths)[:, None]
    places[outside] = 0
    rows = values.reshape(-1, values.shape[-1])
    together = max(_SORTED // places.size, 1)
    for begin in range(0, max(len(rows), 1), together):
        pieces = np.take(rows[begin : begin + together], places, axis=-1)
        there = np.isfinite(pieces) & ~outside
        pieces[~there] = np.nan
        pieces.sort(axis=-1)
        yield pieces, there.sum(axis=-1)


def _quantiles(pieces: Values, counts: npt.NDArray[np.intp], share: float) -> Values:
    """Return the quantile of each last axis of *pieces*, which are in ascending order; only the first *counts* of each count."""
    position = share * np.maximum(counts - 1, 0)
    below = np.floor(position).astype(np.intp)
    above = np.minimum(below + 1, np.maximum(counts - 1, 0))
    low, high = (np.take_along_axis(pieces, at[..., None], -1)[..., 0] for at in (below, above))
    part = position - below
    with np.errstate(over="ignore", invalid="ignore"):
        wide = high - low
        found: Values = np.where(part < 0.5, low + wide * part, high - wide * (1 - part))  # as numpy does: exact at both ends
    return found


def _extreme_of(choose: np.ufunc) -> Callable[[Values, Starts], Values]:
    return lambda values, starts: choose.reduceat(np.where(np.isfinite(values), values, np.nan), starts, axis=-1)


_Q1, _Q3 = _quantile_of(0.25), _quantile_of(0.75)
_POINTS: dict[str, Callable[[Values, Starts], Values]] = {
    "mean": mean_of,
    "median": _quantile_of(0.5),
    "min": _extreme_of(np.fmin),
    "max": _extreme_of(np.fmax),
    "std": _std_of,
    "Q1": _Q1,
    "Q3": _Q3,
    "IQR": lambda values, starts: _Q3(values, starts) - _Q1(values, starts),
}
POINTS = tuple(_POINTS)
"""The names of aggregations to one number; quantiles are linearly interpolated."""

BANDS = {"std": "± one standard deviation", "min-max": "least to greatest", "Q1-Q3": "first to third quartile"}
"""The names of bands, each with words for a legend."""


def point_of(values: Values, starts: Starts, method: str) -> Values:
    """Return one number for each interval of the last axis, over its finite values; NaN where there are none.

    Args:
        values: of shape (..., steps).
        starts: the position of the first value of each interval, ascending from 0.
        method: one of ``POINTS``.
    """
    return _POINTS[method](values, starts)


def band_of(values: Values, starts: Starts, method: str) -> tuple[Values, Values]:
    """Return the lower and upper end of the band of each interval; *method* is one of ``BANDS``, the rest as :func:`point_of`.

    One standard deviation below the mean of positive values stays positive, at the least of them, for a logarithmic axis.
    """
    if method == "std":
        middle, wide = mean_of(values, starts), _std_of(values, starts)
        least = point_of(values, starts, "min")
        return np.where((least > 0) & (middle <= wide), least, middle - wide), middle + wide
    low, high = method.split("-")
    return point_of(values, starts, low), point_of(values, starts, high)


def starts_of(count: int, intervals: int) -> Starts:
    """Return the position of the first of *count* values in each of at most *intervals* intervals of equally many."""
    return np.arange(0, count, max(-(-count // intervals), 1))


def points_named(argument: str, given: Any) -> tuple[str, ...]:
    """Return *given*, a name of ``POINTS``, several, or None, as a tuple of names.

    Raises:
        ArgumentError: a name is none of them; the message names the *argument*.
    """
    return checked(argument, given, POINTS)


def bands_named(argument: str, given: Any) -> tuple[str, ...]:
    """Return *given*, a name of ``BANDS``, several, or None, as a tuple of names.

    Raises:
        ArgumentError: a name is none of them; the message names the *argument*.
    """
    return checked(argument, given, BANDS)


def summarised(values: Values, method: str) -> float:
    """Return one number for all *values*, over the finite ones; NaN where there are none. *method* is one of ``POINTS``."""
    return float(point_of(values, starts_of(len(values), 1), method)[0])


def checked(argument: str, given: Any, known: Iterable[str]) -> tuple[str, ...]:
    """Return *given*, a name, several, or None, as a tuple of names that are all *known*."""
    known = tuple(known)
    names = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in known:
            hint = nearest(str(name), known, count=1)
            raise ArgumentError(
                f"{argument}={given!r}: there are {', '.join(known)}" + (f". {hint}" if hint.startswith("Nearest") else "")
            )
    return names
