"""Decide where series of two runs part: the first column from which a number differs by more than trainings of one setting differ.

Two trainings of one setting and two seeds never have equal numbers: numbers scatter from step to step, one training is some way
ahead of the other, and small tensors begin with other values. So three allowances are made:

- *scatter*: running medians over :data:`WINDOW` columns are compared, and :data:`DEVIATIONS` robust standard deviations of them are
  allowed, which come from the differences of neighbouring columns of both runs.
- *pace*: a value is compared with all values that the other run has between ``t / PACE`` and ``t * PACE`` steps; beyond its last
  step, a run goes on in ``log(step)`` as it came.
- *seed*: a factor that is larger for tensors of few elements (:func:`allowance`), or what repeats of one setting show.

A series parts at the first of :data:`HELD` running medians in a row that are farther apart than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

WINDOW = 5
"""Columns that a running median is over."""
HELD = 3
"""Running medians in a row that must be apart."""
PACE = 2.0
"""How much faster one of two healthy trainings may be."""
DEVIATIONS = 3.0
"""Standard deviations of the running medians that are allowed."""
_FEW = 2.0
_OF_REPEATS = 1.5  # times the largest gap that repeats of one setting show


def allowance(factor: float, count: Values) -> Values:
    """Return the logarithm of the factor by which healthy seeds may differ in a number over *count* elements.

    It is ``log(factor) * (1 + 2 / sqrt(count))``: the root mean square of n independent elements varies by ``1 / sqrt(2 n)``.
    """
    found: Values = np.log(factor) * (1 + _FEW / np.sqrt(np.maximum(count, 1.0)))
    return found


@dataclass(frozen=True, eq=False)
class Parted:
    """Where each series parts.

    Attributes:
        column: the first column from which the runs are apart; -1 where they never are.
        gap: how far they are apart there, beyond pace: the median over the columns from there on that a running median is over.
        allowed: the scatter and the seed's allowance.
    """

    column: npt.NDArray[np.intp]
    gap: Values
    allowed: Values


def part(a: Sequence[Values], b: Values, steps: Steps, seed: Values) -> Parted:
    """Find where the rows of *b* part from those of *a*.

    Args:
        a: one or several runs of one setting; *b* must part from each. Shape (series, columns), on a scale on which differences
            matter, as the logarithm of a size; NaN where there is no value.
        b: the other run.
        steps: of each column, ascending.
        seed: what seeds may differ by, of each series.
    """
    if not len(steps):
        return Parted(np.full(len(b), -1, np.intp), np.full(len(b), np.nan), seed)
    window = _window(len(steps))
    medians, other = [_running_median(each, window) for each in a], _running_median(b, window)
    gaps = np.minimum.reduce([_apart(each, other, steps) for each in medians])
    allowed = seed + DEVIATIONS * _scatter_of_medians(a[0], b, window)
    held = min(HELD, len(steps))
    apart = gaps > allowed[:, None]
    lasting = apart & _in_a_row(apart | np.isnan(gaps), held)
    column = np.where(lasting.any(axis=1), lasting.argmax(axis=1), -1)
    gap = np.full(len(b), np.nan)
    for row in np.flatnonzero(column >= 0).tolist():
        start = int(column[row])
        there = gaps[row, start : start + max(window, held)]
        gap[row] = np.median(there[np.isfinite(there)])
        column[row] = _sharpened(np.abs(b[row] - a[0][row]), start, window, float(gap[row]))
    return Parted(column, gap, allowed)


def repeats_differ(runs: Sequence[Values], steps: Steps, kinds: Sequence[object]) -> Values:
    """Return what seeds may differ by in each series, from two or more *runs* of one setting.

    It is 1.5 times the largest gap between any two of them that lasts, or that nine in ten series of the same kind stay below,
    whichever is larger; at least 5 %.
    """
    window = _window(len(steps))
    medians = [_running_median(each, window) for each in runs]
    found = np.zeros(len(runs[0]))
    for place, one in enumerate(medians):
        for later, other in enumerate(medians[place + 1 :], place + 1):
            gaps = np.nan_to_num(_apart(one, other, steps), nan=0.0)
            held = min(HELD, max(len(steps), 1))
            views = np.lib.stride_tricks.sliding_window_view(gaps, held, axis=1)
            largest = views.min(axis=2).max(axis=1)
            found = np.maximum(found, largest - DEVIATIONS * _scatter_of_medians(runs[place], runs[later], window))
    of_kind: dict[object, list[int]] = {}
    for row, kind in enumerate(kinds):
        of_kind.setdefault(kind, []).append(row)
    for rows in of_kind.values():
        found[rows] = np.maximum(found[rows], np.quantile(found[rows], 0.9))
    return np.maximum(_OF_REPEATS * found, np.log(1.05))


def _window(columns: int) -> int:
    """Return over how many columns running medians are: fewer in short runs, always odd."""
    return min(WINDOW, columns // WINDOW | 1)


def _running_median(values: Values, window: int) -> Values:
    """Return the medians of each row over *window* columns, fewer at the ends; NaN where none has a value."""
    if window == 1:
        return values
    half = window // 2
    padded = np.pad(values, ((0, 0), (half, half)), constant_values=np.nan)
    views = np.sort(np.lib.stride_tricks.sliding_window_view(padded, window, axis=1), axis=2)  # NaN come last
    known = np.isfinite(views).sum(axis=2)
    places = (np.maximum(known - 1, 0) // 2, np.minimum(known // 2, window - 1))
    low, high = (np.take_along_axis(views, place[..., None], 2)[..., 0] for place in places)
    found: Values = np.where(known > 0, (low + high) / 2, np.nan)
    return found


def _scatter_of_medians(a: Values, b: Values, window: int) -> Values:
    """Return the standard deviation of the difference of running medians of each row, from the scatter of both runs."""
    of_median = 1.2533 / np.sqrt(window) if window > 1 else 1.0  # of independent values
    found: Values = of_median * np.hypot(_scatter(a), _scatter(b))
    return found


def _scatter(values: Values) -> Values:
    """Return the robust standard deviation of each row about its trend: 1.4826 / sqrt(2) x the median of neighbours' distances."""
    moves = np.sort(np.abs(np.diff(values, axis=1)), axis=1)
    known = np.isfinite(moves).sum(axis=1)
    if not moves.shape[1]:
        return np.zeros(len(values))
    middle = np.take_along_axis(moves, (np.maximum(known - 1, 0) // 2)[:, None], 1)[:, 0]
    return np.where(known > 0, 1.4826 * middle / np.sqrt(2), 0.0)


def _apart(one: Values, other: Values, steps: Steps) -> Values:
    """Return how far two runs are apart beyond pace, in each column; NaN where either has no value."""
    found: Values = np.fmax(_beyond(one, other, steps), _beyond(other, one, steps))
    return found


def _beyond(one: Values, other: Values, steps: Steps) -> Values:
    """Return how far each value of *other* is outside of the values that *one* has about that step; NaN where either has none."""
    since = (steps - steps[0]).astype(np.float64)
    later, mirrored = _continued(since)
    longer = np.hstack([one, 2 * one[:, -1:] - one[:, mirrored]]) if len(later) else one
    axis = np.concatenate([since, later])
    columns = np.arange(len(since))
    low = np.minimum(np.searchsorted(since, since / PACE), np.maximum(columns - 2, 0))
    high = np.maximum(np.searchsorted(axis, since * PACE, side="right"), np.minimum(columns + 3, len(since)))
    found = np.full(one.shape, np.nan)
    for column, (start, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        near, value = longer[:, start:end], other[:, column]
        outside = np.maximum(value - np.fmax.reduce(near, axis=1), np.fmin.reduce(near, axis=1) - value)
        found[:, column] = np.where(np.isnan(one[:, column]), np.nan, np.maximum(outside, 0.0))
    return found


def _continued(since: Values) -> tuple[Values, npt.NDArray[np.intp]]:
    """Return steps beyond the last one, and of each the column that is mirrored there: a trend goes on in log(step)."""
    if len(since) < 2:
        return np.empty(0), np.empty(0, np.intp)
    earlier = np.flatnonzero((since[:-1] >= since[-1] / PACE) & (since[:-1] > 0))[::-1]
    return since[-1] ** 2 / since[earlier], earlier


def _in_a_row(marks: npt.NDArray[np.bool_], length: int) -> npt.NDArray[np.bool_]:
    """Return where *length* columns in a row, from each on, are marked."""
    found = np.zeros_like(marks)
    if marks.shape[1] >= length:
        found[:, : marks.shape[1] - length + 1] = np.lib.stride_tricks.sliding_window_view(marks, length, axis=1).all(axis=2)
    return found


def _sharpened(distance: Values, start: int, window: int, gap: float) -> int:
    """Return the column about *start* from which the values themselves are half of *gap* apart: medians are early or late."""
    half = window // 2
    end = min(start + half + 1, len(distance))
    for column in range(max(start - half, 0), end):
        if distance[column] >= gap / 2 and not np.any(distance[column:end] < gap / 4):
            return column
    return start
