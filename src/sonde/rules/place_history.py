"""Remember of each place in the network what the rules need of a whole run, in memory that does not grow with its steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sonde.rows import Layout, RowBlock
from sonde.rules.model_facts import Fact, ModelFacts
from sonde.rules.window import Columns, Mask, Numbers, extended
from sonde.site import Port, Site

RECENT = 20
"""Logged steps of a place that are remembered."""

DEFECTS = ("nan", "inf", "nonfinite")
"""The numbers that count elements which are not finite."""


def defects_in(block: RowBlock) -> Numbers:
    """Return how many elements of each row are NaN or infinite; 0 where the family does not count them."""
    return sum((block.numbers[name] for name in DEFECTS if name in block.numbers), np.zeros(block.lines))


class History:
    """One number at all places of one model: a column for each place (a site and a call), a line for each logged step.

    Where elements of a row are not finite, its number is NaN here: a size over the other elements says nothing of the tensor.

    Args:
        number: its name.
        facts: about the layers of the model.

    Attributes:
        number: the name of the number.
        sites, calls: of each column.
        facts: of each column, what is known of its layer or parameter.
        ports: of each column.
        order: of each column, its place in the order of execution.
        matrix: of each column, whether it is of a weight that mixes inputs (``Fact.is_matrix``).
        moments, recent: epoch and step of the last ``RECENT`` logged steps, and their values, of shape ``(steps, columns)``.
        window_moments, window: the same, and behind them all lines that were added last.
        changes: how often columns were added, or their order changed.
    """

    def __init__(self, number: str, facts: ModelFacts) -> None:
        self.number = number
        self.sites: list[Site] = []
        self.calls: list[int] = []
        self.facts: list[Fact] = []
        self.ports = np.empty(0, dtype="U16")
        self.order = np.empty(0, np.int64)
        self.matrix = np.empty(0, bool)
        self.moments = self.window_moments = np.empty((0, 2), np.int64)
        self.recent: Numbers = np.empty((0, 0))
        self.window = self.recent
        self.changes = 0
        self._facts = facts
        self._columns: dict[tuple[str, int], int] = {}
        self._at: dict[tuple[str, str, int | None], int] = {}  # by path, port and call; None: of any call, the last
        self._times: Counter[Site] = Counter()  # of each site, how many columns
        self._layouts: dict[int, tuple[Layout, Columns]] = {}
        self._added: tuple[RowBlock, Columns, Columns, Mask] | None = None
        self._found: dict[str, Numbers] = {}  # the numbers of these rows that were asked for

    def __len__(self) -> int:
        return len(self.sites)

    def add(self, block: RowBlock) -> Numbers:
        """Add the rows of *block*; return their values, of shape ``(moments, columns)``, NaN where a place has no row."""
        columns = self._columns_of(block.layout)[block.rows]
        lines = np.repeat(np.arange(len(block)), np.diff(block.edges))
        self._added, self._found = (block, lines, columns, defects_in(block) > 0), {}
        found = self.of(self.number)
        axis = np.unique(np.concatenate([self.moments, block.moments[:, :2]]), axis=0)  # a step may come in several blocks
        joined = np.full((len(axis), len(self)), np.nan)
        place = {moment: line for line, moment in enumerate(map(tuple, axis.tolist()))}
        joined[[place[moment] for moment in map(tuple, self.moments.tolist())]] = extended(self.recent, len(self))
        at = np.array([place[moment] for moment in map(tuple, block.moments[:, :2].tolist())])
        joined[at[lines], columns] = found[lines, columns]
        self.window_moments, self.window = axis, joined
        self.moments, self.recent = axis[-RECENT:], joined[-RECENT:]
        return found

    def of(self, number: str) -> Numbers:
        """Return another *number* of the rows that were added last, as :meth:`add` does; NaN throughout if they have none."""
        assert self._added is not None
        if number in self._found:
            return self._found[number]
        block, lines, columns, broken = self._added
        found = np.full((len(block), len(self)), np.nan)
        if number in block.numbers:
            found[lines, columns] = np.where(broken, np.nan, block.numbers[number])
        self._found[number] = found
        return found

    def _columns_of(self, layout: Layout) -> Columns:
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
                self.facts.append(self._facts.of(self.sites[-1]))
                self._times[self.sites[-1]] += 1
                self._at |= dict.fromkeys([(self.sites[-1].path, self.sites[-1].port, each) for each in (call, None)], column)
        found = np.array(columns, np.intp)
        self.ports = np.array([site.port for site in self.sites])
        self.order = extended(self.order.astype(float), len(self), 0).astype(np.int64)
        self.order[found] = layout.order
        self.matrix = np.array([fact.is_matrix for fact in self.facts], bool)
        self.changes += 1
        self._layouts = {id(layout): (layout, found)}  # the layout of a training rarely changes
        return found

    def rank(self, column: int) -> tuple[int, bool, str, int]:
        """Return a key that sorts columns by execution, the weights of a layer before its biases, and by name."""
        site = self.sites[column]
        return int(self.order[column]), site.path.endswith("bias"), str(site), self.calls[column]

    def name(self, column: int) -> str:
        """Return the place in words, with the call where there are several."""
        site, call = self.sites[column], self.calls[column]
        return site.name if call <= 0 and self._times[site] == 1 else f"{site.name} (call {call})"

    def column_at(self, path: str, port: Port, call: int | None = None) -> int | None:
        """Return the column of a module or parameter at a port, of one call or of any; None if there is none."""
        return self._at.get((path, port, call))

    def at(self, port: str) -> Mask:
        """Return which columns are of *port*."""
        found: Mask = self.ports == port
        return found

    def beside(self, port: Port, *others: Port, every: bool = False) -> tuple[Columns, ...]:
        """Return the columns of matrices at *port* that have columns at the *others*, too, and these columns, port by port.

        With *every* also of other parameters.
        """
        columns = {(site, call): column for column, (site, call) in enumerate(zip(self.sites, self.calls, strict=True))}
        found = [
            (column, *beside)
            for column in np.flatnonzero(self.at(port) & (self.matrix | every)).tolist()
            if None not in (beside := [columns.get((self.sites[column].port_of(each), self.calls[column])) for each in others])
        ]
        return tuple(np.array(found, np.intp).reshape(-1, 1 + len(others)).T)

    def is_output_of_model(self) -> Mask:
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
        self.first = self.peak = self.before = self.step = self._low = np.empty(0)

    def add(self, values: Numbers, steps: npt.NDArray[np.int64]) -> None:
        """Add values of shape ``(moments, columns)``."""
        width = values.shape[1]
        self.first, self.step = (extended(each, width, -1) for each in (self.first, self.step))
        self.peak, self.before, self._low = (extended(each, width) for each in (self.peak, self.before, self._low))
        low = np.fmin.accumulate(np.vstack([self._low, values]), axis=0)
        before = np.where(np.isnan(low[:-1]), np.nan, np.fmax(low[:-1], self.common))  # a first value has not grown
        with np.errstate(all="ignore"):
            factor = np.where(before > 0, values / before, np.nan)
            known = np.nan_to_num(self.peak / self.before, nan=-1.0)
        filled = np.nan_to_num(factor, nan=-1.0, posinf=np.inf)
        best = filled.argmax(axis=0)
        better = np.flatnonzero(filled[best, np.arange(width)] > known)
        at = best[better], better
        self.peak[better], self.before[better], self.step[better] = values[at], before[at], steps[at[0]]
        hit = filled >= self.limit
        new = hit.any(axis=0) & (self.first < 0)
        self.first[new] = steps[hit.argmax(axis=0)][new]
        self._low = low[-1]
