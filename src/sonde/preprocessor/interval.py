"""Measure tensors into rows of tables; turn the rows into the aggregates of an interval, as late as possible."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonde.preprocessor.aggregates import Aggregate, InMemory
from sonde.stats import RowStatistic, RunningMeanVar, Table

MOST_PENDING = 4096  # rows that may lie unread on their device, however many steps there are


@dataclass(frozen=True)
class NumberSpec:
    """The numbers that are read from the rows of one statistic.

    Attributes:
        statistic: measures tensors and finishes rows.
        numbers: for each number, its name in the preprocessor and its name in the statistic.
    """

    statistic: RowStatistic
    numbers: dict[str, str]


def size_of(statistic: RowStatistic, normalize: bool) -> NumberSpec:
    """Return the number ``rms`` of *statistic* with *normalize*, otherwise ``norm``."""
    name = "rms" if normalize else "norm"
    return NumberSpec(statistic, {name: name})


_Entry = tuple[Hashable, Tensor]  # a key, and a row of it


class _PendingRows:
    """The rows of one statistic that were not read from their devices yet."""

    def __init__(self, spec: NumberSpec) -> None:
        self.spec = spec
        self.pending: list[_Entry] = []
        self.open: dict[Hashable, tuple[int, Tensor]] = {}  # by key: the step, and the row of its latest version
        self._table = Table(spec.statistic)
        self._spare: dict[torch.device, list[Tensor]] = {}

    def measured(self, tensor: Tensor, previous: Tensor | None, row: Tensor | None = None) -> Tensor:
        """Add *tensor* to an empty row, or to *row* after emptying it; return the row."""
        if row is None or row.device != tensor.device:
            row = self._unused(tensor.device)
        else:
            self._table.clear(row)
        try:
            self._table.add(row, tensor.detach(), previous)
        except BaseException:
            self._spare[row.device].append(row)
            raise
        return row

    def taken(self, row: Tensor) -> Tensor:
        """Return a row of the table with the content of *row*."""
        found = self._unused(row.device)
        self._table.merge(found, row)
        return found

    def _unused(self, device: torch.device) -> Tensor:
        spare = self._spare.setdefault(device, [])
        if not spare:
            spare += self._table.allocate(16, device)
        return spare.pop()

    def add_to(self, held: dict[Hashable, tuple[Aggregate, ...]], first: int, entries: list[_Entry]) -> None:
        """Finish the rows of *entries*, and append their numbers to the aggregates from position *first* on."""
        if not entries:
            return
        finished = self._table.read([row for _, row in entries])[1]
        spoiled = np.zeros(len(entries), dtype=bool)
        for defect in ("nan", "inf", "nonfinite"):
            if defect in finished:
                spoiled |= finished[defect] > 0
        for place, name in enumerate(self.spec.numbers.values(), start=first):
            column = np.where(spoiled & ~np.isinf(finished[name]), np.nan, finished[name])
            for (key, _), number, counts in zip(entries, column.tolist(), spoiled.tolist(), strict=True):
                if counts or not math.isnan(number):
                    held[key][place].append(number)

    def empty(self) -> None:
        """Empty all rows but the open ones."""
        opened = [row for _, row in self.open.values()]
        kept = self._table.copied() if opened else []
        self._table.reset()
        self._table.restore(opened, kept)
        for _, row in self.pending:
            self._spare[row.device].append(row)
        self.pending = []

    def close(self) -> None:
        """Drop the open rows."""
        self.pending += [(key, row) for key, (_, row) in self.open.items()]
        self.open.clear()
        self.empty()


class IntervalAggregates:
    """One aggregate per key and number, fed with tensors.

    Each tensor is added to a row of a :class:`~sonde.stats.Table` on its device. Rows wait there until a read, or until there
    are so many that memory would grow; then all are copied to the host at once, finished into numbers, and the numbers
    are appended to the aggregates.

    A number that a statistic leaves undefined (NaN) is not appended. The number of a tensor with a NaN or infinite element is
    appended as NaN, so that the aggregate counts the tensor.
    """

    def __init__(self, specs: Iterable[NumberSpec], inplace: bool) -> None:
        self.specs = tuple(specs)
        self.inplace = inplace
        self._held: dict[Hashable, tuple[Aggregate, ...]] = {}
        self._rows = [_PendingRows(spec) for spec in self.specs]
        self._lock = threading.Lock()  # gradients arrive in threads of the autograd engine

    @property
    def labels(self) -> list[str]:
        """The names of the numbers, in order."""
        return [label for spec in self.specs for label in spec.numbers]

    def expect(self, key: Hashable) -> None:
        """Make *key* known: until a tensor is added, the key has no data."""
        if key not in self._held:
            self._held[key] = self._empty()

    def add(self, key: Hashable, tensor: Tensor, previous: Tensor | None = None, *, spec: int = 0, step: int | None = None) -> None:
        """Measure *tensor*.

        Args:
            key: key of the numbers.
            tensor: any tensor that the statistic can measure.
            previous: the predecessor of *tensor*, for a statistic of pairs.
            spec: the position of the statistic.
            step: if given, the tensor replaces the last tensor of that key if both are of the same step.

        Raises:
            ArgumentError: *tensor* has no values (nested, or on the meta device), or the statistic cannot measure it.
        """
        with self._lock:
            self.expect(key)
            rows = self._rows[spec]
            if step is None:
                rows.pending.append((key, rows.measured(tensor, previous)))
            else:
                before = rows.open.pop(key, None)
                if before is not None and before[0] != step:
                    rows.pending.append((key, before[1]))
                    before = None
                rows.open[key] = step, rows.measured(tensor, previous, None if before is None else before[1])
            if len(rows.pending) >= MOST_PENDING:
                self._settle()

    def read(self) -> dict[Hashable, tuple[Aggregate, ...]]:
        """Return copies of the aggregates so far, in the order in which the keys were first met."""
        with self._lock:
            self._settle()
            found = {key: tuple(copied(one) for one in held) for key, held in self._held.items()}
            self._add_all(found, opened=True)
        return found

    def reset(self) -> None:
        """Begin a new interval: all keys have no data."""
        with self._lock:
            for rows in self._rows:
                rows.close()
            self._held = {key: self._empty() for key in self._held}

    def clear(self) -> None:
        """Forget the keys as well."""
        self.reset()
        self._held.clear()

    def _empty(self) -> tuple[Aggregate, ...]:
        return tuple(RunningMeanVar() if self.inplace else InMemory() for _ in self.labels)

    def _settle(self) -> None:
        self._add_all(self._held, opened=False)
        for rows in self._rows:
            rows.empty()

    def _add_all(self, held: dict[Hashable, tuple[Aggregate, ...]], *, opened: bool) -> None:
        first = 0
        for rows in self._rows:
            rows.add_to(held, first, [(key, row) for key, (_, row) in rows.open.items()] if opened else rows.pending)
            first += len(rows.spec.numbers)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            self._settle()
            opened = [{key: (step, row.clone()) for key, (step, row) in rows.open.items()} for rows in self._rows]
            return {"specs": self.specs, "inplace": self.inplace, "held": self._held, "open": opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        IntervalAggregates.__init__(self, state["specs"], state["inplace"])
        self._held = state["held"]
        for rows, opened in zip(self._rows, state["open"], strict=True):
            rows.open = {key: (step, rows.taken(row)) for key, (step, row) in opened.items()}


def copied(aggregate: Aggregate) -> Aggregate:
    """Return a copy of *aggregate*."""
    return aggregate.copy() if isinstance(aggregate, RunningMeanVar) else InMemory(aggregate)
