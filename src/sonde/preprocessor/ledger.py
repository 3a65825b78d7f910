"""The second level, numbers to aggregates: what was measured in an interval, read from the device as late as possible."""

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
from sonde.stats import RowStatistic
from sonde.stats.running import RunningMeanVar
from sonde.stats.statistic import Column

__all__ = ["MOST_PENDING", "IntervalAggregates", "Reading", "copied", "on_host"]

MOST_PENDING = 4096  # rows that may wait on their device, whatever the number of steps


@dataclass(frozen=True)
class Reading:
    """Which numbers are read from the rows of a statistic.

    Attributes:
        statistic: finishes the rows.
        numbers: for each number, what it is called here and what the statistic calls it.
    """

    statistic: RowStatistic
    numbers: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Entry:
    key: Hashable
    reading: int
    row: Tensor


class IntervalAggregates:
    """One aggregate per key and number, fed with rows of statistics.

    A row is what a statistic has measured of one tensor, on that tensor's device. Rows wait there until someone reads, or until
    there are so many that memory would grow; then all are copied to the host at once, finished into numbers, and the
    numbers added to the aggregates.

    A number that a statistic leaves undefined (NaN) is not added. That of a tensor in which something was NaN or infinite is
    added as NaN, so that the aggregate counts it.
    """

    def __init__(self, readings: Iterable[Reading], inplace: bool) -> None:
        self.readings = tuple(readings)
        self.inplace = inplace
        self._held: dict[Hashable, tuple[Aggregate, ...]] = {}
        self._pending: list[_Entry] = []
        self._open: dict[tuple[Hashable, int], tuple[int, _Entry]] = {}  # by key and reading: the step, and its latest row
        self._lock = threading.Lock()  # gradients arrive in threads of the autograd engine

    @property
    def labels(self) -> list[str]:
        """What the numbers are called, in order."""
        return [label for reading in self.readings for label in reading.numbers]

    def expect(self, key: Hashable) -> None:
        """There is such a key: until something is added, it has no data."""
        if key not in self._held:
            self._held[key] = self._empty()

    def add(self, key: Hashable, row: Tensor, reading: int = 0, *, step: int | None = None) -> None:
        """Add a row.

        Args:
            key: of what.
            row: float64, shape ``(width of the statistic,)``.
            reading: by which of the readings it is read.
            step: if given, the row stands in place of the last one of that key, if that was of the same step.
        """
        entry = _Entry(key, reading, row)
        with self._lock:
            self.expect(key)
            if step is None:
                self._pending.append(entry)
            else:
                before = self._open.get((key, reading))
                if before is not None and before[0] != step:
                    self._pending.append(before[1])
                self._open[key, reading] = step, entry
            if len(self._pending) >= MOST_PENDING:
                self._settle()

    def read(self) -> dict[Hashable, tuple[Aggregate, ...]]:
        """Copies of the aggregates so far, in the order in which the keys were first met."""
        with self._lock:
            self._settle()
            found = {key: tuple(copied(one) for one in held) for key, held in self._held.items()}
            _add(found, self.readings, [entry for _, entry in self._open.values()])
        return found

    def reset(self) -> None:
        """Begin a new interval: all keys have no data."""
        with self._lock:
            self._pending.clear()
            self._open.clear()
            self._held = {key: self._empty() for key in self._held}

    def clear(self) -> None:
        """Forget the keys as well."""
        self.reset()
        self._held.clear()

    def _empty(self) -> tuple[Aggregate, ...]:
        return tuple(RunningMeanVar() if self.inplace else InMemory() for _ in self.labels)

    def _settle(self) -> None:
        pending, self._pending = self._pending, []
        _add(self._held, self.readings, pending)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            self._settle()
            return {name: held for name, held in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()


def _add(held: dict[Hashable, tuple[Aggregate, ...]], readings: tuple[Reading, ...], entries: list[_Entry]) -> None:
    """Finish the rows of *entries* and add their numbers to the aggregates that are *held*."""
    first = 0
    for index, reading in enumerate(readings):
        mine = [entry for entry in entries if entry.reading == index]
        columns = _finished(reading, [entry.row for entry in mine])
        for place, (numbers, spoiled) in enumerate(columns, start=first):
            for entry, number, counts in zip(mine, numbers.tolist(), spoiled.tolist(), strict=True):
                if counts or not math.isnan(number):
                    held[entry.key][place].append(number)
        first += len(reading.numbers)


def _finished(reading: Reading, rows: list[Tensor]) -> list[tuple[Column, Any]]:
    """For each number of the reading: its value for each row, NaN if spoiled or undefined, and which rows are spoiled."""
    if not rows:
        return []
    host = on_host(rows)
    finished = reading.statistic.finish(reading.statistic.columns(host))
    spoiled = np.zeros(len(rows), dtype=bool)
    for defect in ("nan", "inf", "nonfinite"):
        if defect in finished:
            spoiled |= finished[defect] > 0
    found = [finished[number] for number in reading.numbers.values()]
    return [(np.where(spoiled & ~np.isinf(column), np.nan, column), spoiled) for column in found]


def on_host(rows: list[Tensor]) -> Tensor:
    """Rows of one width, float64, from any devices as one block on the host: one copy, and one wait, for each device."""
    devices: dict[torch.device, list[int]] = {}
    for index, row in enumerate(rows):
        devices.setdefault(row.device, []).append(index)
    host = torch.empty(len(rows), len(rows[0]), dtype=torch.float64)
    for indices in devices.values():
        host[indices] = torch.stack([rows[index] for index in indices]).cpu()
    return host


def copied(aggregate: Aggregate) -> Aggregate:
    """Another one that has seen the same."""
    return aggregate.copy() if isinstance(aggregate, RunningMeanVar) else InMemory(aggregate)
