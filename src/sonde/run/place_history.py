"""Remember of each place in the network what the rules need of a whole run, in memory that does not grow with its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sonde.run.schema import Layout
from sonde.run.store.rows import RowBlock
from sonde.site import Port, Site

__all__ = ["DEFECTS", "RECENT", "Growth", "History", "Numbers", "Streaks", "defects_in", "extended"]

Numbers = npt.NDArray[np.float64]

RECENT = 20
"""Logged steps that medians are over."""

DEFECTS = ("nan", "inf", "nonfinite")
"""The numbers that count elements which are not finite."""


def defects_in(block: RowBlock) -> Numbers:
    """Return how many elements of each row are NaN or infinite; 0 where the family does not count them."""
    return sum((block.numbers[name] for name in DEFECTS if name in block.numbers), np.zeros(block.lines))


def extended(array: Numbers, length: int, fill: float = np.nan) -> Numbers:
    """Return *array* with its last axis extended to *length*."""
    more = [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])]
    return np.pad(array, more, constant_values=fill) if array.shape[-1] < length else array


class History:
    """One number at all places of one model: a column for each place (a site and a call), a line for each logged step.

    Where elements of a row are not finite, its number is NaN here: a size over the other elements says nothing of the tensor.

    Attributes:
        number: the name of the number.
        sites, calls: of each column.
        ports: of each column.
        order: of each column, its place in the order of execution.
        matrix: of each column, whether it is a parameter of two dimensions or more.
        moments: epoch and step of the last ``RECENT`` logged steps.
        recent: the values of these steps, of shape ``(steps, columns)``.
    """

    def __init__(self, number: str) -> None:
        self.number = number
        self.sites: list[Site] = []
        self.calls: list[int] = []
        self.ports = np.empty(0, dtype="U16")
        self.order = np.empty(0, np.int64)
        self.matrix = np.empty(0, bool)
        self.moments = np.empty((0, 2), np.int64)
        self.recent: Numbers = np.empty((0, 0))
        self._columns: dict[tuple[str, int], int] = {}
        self._layouts: dict[int, tuple[Layout, npt.NDArray[np.intp]]] = {}

    def __len__(self) -> int:
        return len(self.sites)

    def add(self, block: RowBlock, matrices: npt.NDArray[np.bool_]) -> Numbers:
        """Add the rows of *block*; return their values, of shape ``(moments, columns)``, NaN where a place has no row.

        *matrices* tells which rows of the layout belong to parameters of two dimensions or more.
        """
        columns = self._columns_of(block.layout, matrices)[block.rows]
        values = np.where(defects_in(block) > 0, np.nan, block.numbers[self.number])
        lines = np.repeat(np.arange(len(block)), np.diff(block.edges))
        found = np.full((len(block), len(self)), np.nan)
        found[lines, columns] = values
        axis = np.unique(np.concatenate([self.moments, block.moments[:, :2]]), axis=0)  # a step may come in several blocks
        joined = np.full((len(axis), len(self)), np.nan)
        place = {moment: line for line, moment in enumerate(map(tuple, axis.tolist()))}
        joined[[place[moment] for moment in map(tuple, self.moments.tolist())]] = extended(self.recent, len(self))
        joined[np.array([place[moment] for moment in map(tuple, block.moments[:, :2].tolist())])[lines], columns] = values
        self.moments, self.recent = axis[-RECENT:], joined[-RECENT:]
        return found

    def _columns_of(self, layout: Layout, matrices: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Return the column of each place of *layout*."""
        known = self._layouts.get(id(layout))
        if known is not None:
            return known[1]
        calls = np.asarray(layout.columns["call"]).tolist()
        columns = [self._columns.setdefault(key, len(self._columns)) for key in zip(layout.site, calls, strict=True)]
        for site, call, column in zip(layout.site, calls, columns, strict=True):
            if column == len(self.sites):
                self.sites.append(Site.parse(site))
                self.calls.append(call)
        found = np.array(columns, np.intp)
        self.ports = np.array([site.port for site in self.sites])
        self.order = extended(self.order.astype(float), len(self), 0).astype(np.int64)
        self.order[found] = layout.order
        self.matrix = extended(self.matrix.astype(float), len(self), 0).astype(bool)
        self.matrix[found] = matrices
        self._layouts = {id(layout): (layout, found)}  # the layout of a training rarely changes
        return found

    def medians(self) -> Numbers:
        """Return the median of each column over the recent steps; NaN without any."""
        found = np.full(len(self), np.nan)
        known = ~np.isnan(self.recent).all(axis=0)  # of a column without a value numpy would warn, and filters are of all threads
        if known.any():
            with np.errstate(invalid="ignore"):
                found[known] = np.nanmedian(self.recent[:, known], axis=0)
        return found

    def rank(self, column: int) -> tuple[int, bool, str, int]:
        """Return a key that sorts columns by execution, the weights of a layer before its biases, and by name."""
        site = self.sites[column]
        return int(self.order[column]), site.path.endswith("bias"), str(site), self.calls[column]

    def at(self, port: str) -> npt.NDArray[np.bool_]:
        """Return which columns are of *port*."""
        found: npt.NDArray[np.bool_] = self.ports == port
        return found

    def beside(self, port: Port, *others: Port) -> tuple[npt.NDArray[np.intp], ...]:
        """Return the columns of matrices at *port* that have columns at the *others*, too, and these columns, port by port."""
        columns = {(site, call): column for column, (site, call) in enumerate(zip(self.sites, self.calls, strict=True))}
        found = [
            (column, *beside)
            for column in np.flatnonzero(self.at(port) & self.matrix).tolist()
            if None not in (beside := [columns.get((self.sites[column].port_of(each), self.calls[column])) for each in others])
        ]
        return tuple(np.array(found, np.intp).reshape(-1, 1 + len(others)).T)

    def is_output_of_model(self) -> npt.NDArray[np.bool_]:
        """Return which columns are the outputs of the model itself: of the root, and of those that make its last tensor."""
        found = np.zeros(len(self), bool)
        outputs = np.flatnonzero(self.at("output"))
        parent = ""
        for column in sorted(outputs.tolist(), key=lambda column: (not self.sites[column].path, self.order[column]), reverse=True):
            path = self.sites[column].path
            if path != parent and parent and not path.startswith(f"{parent}."):
                break
            found[column] = True
            parent = path
        return found


@dataclass
class Growth:
    """How far each column of a history has risen above its smallest value, and above a value that is common to all.

    Attributes:
        limit: from this factor on a value is a hit.
        common: no value is compared with a smaller one; NaN: none is known.
        first: the first step with a hit, of each column; -1 without any.
        peak, before, step: the largest value by its factor, what it was compared with, and its step.
    """

    limit: float
    common: float = np.nan

    def __post_init__(self) -> None:
        self.first = np.empty(0)
        self.peak = self.before = self.step = self._low = np.empty(0)

    def add(self, values: Numbers, steps: npt.NDArray[np.int64]) -> None:
        """Add values of shape ``(moments, columns)``."""
        width = values.shape[1]
        self.first, self.step = extended(self.first, width, -1), extended(self.step, width, -1)
        self.peak, self.before, self._low = (extended(each, width) for each in (self.peak, self.before, self._low))
        low = np.fmin.accumulate(np.vstack([self._low, values]), axis=0)
        before = np.where(np.isnan(low[:-1]), np.nan, np.fmax(low[:-1], self.common))  # a first value has not grown
        with np.errstate(all="ignore"):
            factor = np.where(before > 0, values / before, np.nan)
            known = np.nan_to_num(self.peak / self.before, nan=-1.0)
        filled = np.nan_to_num(factor, nan=-1.0, posinf=np.inf)
        best = filled.argmax(axis=0)
        columns = np.arange(width)
        better = filled[best, columns] > known
        self.peak[better] = values[best, columns][better]
        self.before[better] = before[best, columns][better]
        self.step[better] = steps[best][better]
        hit = filled >= self.limit
        new = hit.any(axis=0) & (self.first < 0)
        self.first[new] = steps[hit.argmax(axis=0)][new]
        self._low = low[-1]


class Streaks:
    """The steps during which a condition held without a break at each column: the longest time, and the one that goes on.

    Attributes:
        since: the first step of the time that goes on, of each column; -1 where the condition does not hold.
        length: how many logged steps the longest time had.
        first, last: its steps.
    """

    def __init__(self) -> None:
        self.since = self.length = self.first = self.last = self._running = np.empty(0)

    def add(self, holds: npt.NDArray[np.bool_], seen: npt.NDArray[np.bool_], steps: npt.NDArray[np.int64]) -> None:
        """Add whether the condition holds, and where anything was *seen*: shape ``(moments, columns)``."""
        width = holds.shape[1]
        self.since, self.first, self.last = (extended(each, width, -1) for each in (self.since, self.first, self.last))
        self.length, self._running = extended(self.length, width, 0), extended(self._running, width, 0)
        if not holds.any() and not self._running.any():
            return
        for line, step in enumerate(steps.tolist()):
            held = holds[line] & seen[line]
            broken = seen[line] & ~holds[line]
            self.since[held & (self._running == 0)] = step
            self._running[held] += 1
            self._running[broken], self.since[broken] = 0, -1
            longer = held & (self._running > self.length)
            self.length[longer], self.first[longer], self.last[longer] = self._running[longer], self.since[longer], step
