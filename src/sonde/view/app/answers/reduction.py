"""Reduce numbers over steps to what a screen shows: bins of logged steps, each with its median, its extremes and its worst mark."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.suggest import nearest_steps
from sonde.view.aggregation import ordered_of, starts_of
from sonde.view.scales import Scale

Marks = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float64]

VALUE, MISSING, NAN, INFINITE, NEGATIVE, ZERO, BROKEN = range(7)
"""The codes of marks: a value, nothing recorded, NaN elements, infinite elements (or +inf), -inf, exactly zero, and NaN or infinite
elements where the run counts both as one."""

REDUCTION = (
    "bins of equally many logged steps; value: median of the finite values, low and high: their extremes; spikes: the value of a "
    "step that stands out in its bin; the worst mark of a bin wins; zero: the median is exactly 0"
)
"""How the steps of an answer are put together, in words for the page."""

_VISIBLE, _UNUSUAL = 1 / 8, 3.0  # a spike is so far from its bin's median: of the whole scale, and of what is usual in its row

_RANKS = np.array([1, 0, 6, 4, 3, 1, 5], np.uint8)
"""By code how bad a mark is: a bin has the worst; nothing recorded gives way to everything."""
_OF_RANKS = np.array([MISSING, VALUE, VALUE, NEGATIVE, INFINITE, BROKEN, NAN], np.uint8)


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins of the logged steps from one step to another.

    Attributes:
        within: the positions of the steps among all logged ones.
        starts: the position of the first step of each bin within these.
        steps: the first step of each bin.
        ends: the last step of each bin.
        edges: the borders of the bins on an axis of steps, one more than bins.
    """

    within: slice
    starts: npt.NDArray[np.intp]
    steps: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    edges: npt.NDArray[np.float64]

    @staticmethod
    def of(steps: npt.NDArray[np.int64], first: int | None, last: int | None, most: int) -> Bins:
        """Return at most *most* bins of the ascending *steps* from *first* to *last*, both inclusive; None: from or to the end.

        Raises:
            ArgumentError: no step lies between them, or *most* is below 1.
        """
        if most < 1:
            raise ArgumentError(f"{most} bins were asked for: give 1 or more")
        begin = 0 if first is None else int(np.searchsorted(steps, first, "left"))
        end = len(steps) if last is None else int(np.searchsorted(steps, last, "right"))
        if begin >= end:
            asked = first if first is not None else last
            near = f" The nearest are {nearest_steps(asked or 0, steps.tolist())}." if len(steps) else ""
            raise ArgumentError(f"no step from {first} to {last} was logged.{near}")
        inside = steps[begin:end]
        starts = starts_of(len(inside), most)
        ends = inside[np.append(starts[1:], len(inside)) - 1]
        gap = float(np.median(np.diff(inside))) if len(inside) > 1 else 1.0
        edges = np.append(inside[starts], inside[-1] + gap).astype(np.float64)
        return Bins(slice(begin, end), starts, inside[starts], ends, edges)

    @property
    def are_single(self) -> bool:
        """Whether each bin holds one step."""
        return len(self.starts) == int(self.within.stop - self.within.start)

    def reduced(self, values: Values, marks: Marks) -> Reduced:
        """Return the median, the extremes and the mark of each bin; *values* and *marks* are of shape (..., all steps)."""
        values, marks = values[..., self.within], marks[..., self.within]
        if self.are_single:
            finite = np.where(np.isfinite(values), values, np.nan)
            return Reduced(finite, finite, finite, marks)
        low, middle, high = ordered_of(values, self.starts)
        if any(marks.strides):
            worst = _OF_RANKS[np.maximum.reduceat(_RANKS[marks], self.starts, axis=-1)]
        else:  # one code for all, see marks_of
            worst = np.broadcast_to(marks[..., :1], middle.shape)
        return Reduced(middle, low, high, np.where((worst == VALUE) & (middle == 0), ZERO, worst).astype(np.uint8))

    def plain(self) -> dict[str, Any]:
        """Return the first and the last step of each bin, and how many logged steps it joins, for JSON."""
        joined = (self.within.stop - self.within.start) / len(self.starts)
        return {"steps": self.steps.tolist(), "ends": self.ends.tolist(), "joined": joined}


@dataclass(frozen=True, eq=False)
class Reduced:
    """What is left of numbers in bins.

    Attributes:
        middle: the median of the finite values of each bin; NaN where there is none.
        low, high: the least and the greatest of them.
        marks: the worst mark of each bin.
    """

    middle: Values
    low: Values
    high: Values
    marks: Marks

    def __getitem__(self, rows: slice | list[int]) -> Reduced:
        """Some rows."""
        return Reduced(self.middle[rows], self.low[rows], self.high[rows], self.marks[rows])

    def spikes(self, scale: Scale) -> tuple[npt.NDArray[np.intp], Values]:
        """Return the bins in which a step stands out of the others, and the value of that step.

        It does where it is farther from the median of its bin than an eighth of the scale of colours, and three times as far as the
        extremes of half of the bins in its row: noise that is the same everywhere is none. On a logarithmic scale an exact 0 is
        infinitely far. A bin with a NaN or an infinity has that mark instead.

        Args:
            scale: on which distances are measured.

        Returns:
            Positions in the flattened *middle*, ascending, and the values there.
        """
        up, down = _distance(self.high, self.middle, scale), _distance(self.middle, self.low, scale)
        farthest = np.where(np.isin(self.marks, (VALUE, ZERO)), np.maximum(up, down), 0.0)
        usual = np.median(farthest, axis=-1, keepdims=True)
        at = np.flatnonzero((farthest > _VISIBLE) & (farthest > _UNUSUAL * usual))
        return at, np.where(up >= down, self.high, self.low).reshape(-1)[at]


def _distance(upper: Values, lower: Values, scale: Scale) -> Values:
    """Return how far two values are apart, as a share of the scale; 0 where one is missing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.array([scale.low, scale.high])
        upper, lower, ends = (np.log(each) if scale.log else each for each in (upper, lower, ends))
        found = (upper - lower) / (ends[1] - ends[0])
    found[np.isnan(found)] = 0.0
    return np.asarray(found)


def marks_of(values: Values, defects: npt.NDArray[np.int8] | None = None) -> Marks:
    """Return the mark of each value.

    Args:
        values: NaN is MISSING, unless there are no *defects*.
        defects: codes of elements as in :class:`sonde.view.plots.layer_series.Matrix`; None: the values are all that is known,
            and NaN is a value that was recorded.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        are_finite = bool(np.isfinite(values.sum()))  # or their sum is too large, and each is looked at
    if are_finite and np.count_nonzero(values) == values.size and (defects is None or not defects.any()):
        return np.broadcast_to(np.uint8(VALUE), values.shape)  # one code in memory, and not one for each cell
    marks = np.where(values == 0, np.uint8(ZERO), np.uint8(VALUE))
    if not are_finite:
        marks[np.isnan(values)] = NAN if defects is None else MISSING
        marks[values == np.inf] = INFINITE
        marks[values == -np.inf] = NEGATIVE
    if defects is not None and defects.any():
        there = (defects > 0) & (marks != NEGATIVE)
        marks[there] = np.array([VALUE, INFINITE, BROKEN, NAN], np.uint8)[defects[there]]
    return marks


def end_of(values: Values, marks: Marks, step: int = -1, name: str = "last") -> dict[str, Any]:
    """Return the value at one place, the last, and its mark, for JSON; None for a NaN or an infinity."""
    return {name: float(values[step]) if np.isfinite(values[step]) else None, f"{name}_mark": int(marks[step])}


def packed(values: npt.NDArray[Any], kind: str) -> str:
    """Return *values* as base64 of little-endian numbers of a *kind*, as ``"f4"`` or ``"u1"``, row by row."""
    return base64.b64encode(np.ascontiguousarray(values, f"<{kind}").data).decode("ascii")


def unpacked(text: str, kind: str) -> npt.NDArray[Any]:
    """Return the numbers that :func:`packed` has written, in one row."""
    return np.frombuffer(base64.b64decode(text), f"<{kind}")


def listed(values: Values) -> list[float | None]:
    """Return *values* as a list for JSON: None for each NaN or infinity."""
    finite = np.isfinite(values)
    return [value if there else None for value, there in zip(values.tolist(), finite.tolist(), strict=True)]
