"""A batch: the data of one moment, on its way from the device to the writer thread in one copy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sonde.inspector.measurement.measurement import Measurement
from sonde.inspector.measurement.parameter_rows import ParameterRows
from sonde.inspector.measurement.row_index import RowIndex
from sonde.inspector.pipeline.scalars import Pushed
from sonde.rows import Scalar, Scope
from sonde.stats import HostCopy, Table


@dataclass(slots=True, eq=False)
class RawRows:
    """The rows of one measurement in a batch, not finished yet.

    Attributes:
        index: which row belongs to which site.
        blocks: where the rows are in the copy.
        epoch, step, micro_step: the moment.
        scales: by port, where in the copy the scale is that the port's gradients are multiplied by.
        norms: the ports whose norms over all parameters come from these rows.
        hidden: whether the rows are for these norms alone.
        role: the rows of hooks; or of all parameters as they were when the step began, or of their gradients before clipping.
        ranks: of each site the number of processes whose tensors are in its row; None: one.
        alone: of rows that join none, how the squares in them join those of other ranks.
    """

    index: RowIndex
    blocks: slice
    epoch: int
    step: int
    micro_step: int = 0
    scales: Mapping[str, int] = field(default_factory=dict)
    norms: frozenset[str] = frozenset()
    hidden: bool = False
    role: Literal["hooks", "start", "raw"] = "hooks"
    ranks: npt.NDArray[np.intp] | None = None
    alone: Join = "own"


Join = Literal["mean", "lowest", "max", "sum", "own", "part", "shard"]
"""How a scalar joins those of other ranks: the mean of all values, that of the lowest rank, the largest, or the root of the sum of
squares. Of squares that no rank's join: those of this rank's own model, of its part of one that is spread
over ranks, or of its shards of parameters, of which it is not known what completes them."""

NORMS: tuple[Join, ...] = ("sum", "part", "own", "shard")
"""The joins of squares, of which norms are the roots."""


@dataclass(slots=True)
class PendingScalar:
    """A scalar that is not read yet.

    Attributes:
        name, epoch, step: as of a :class:`~sonde.inspector.sinks.base.Scalar`.
        total: the sum of *count* values.
        count: the number of values in the sum.
        place: where the sum is in the copy; None: it is known.
        join: how it joins those of other ranks.
    """

    name: str
    epoch: int
    step: int
    total: float = 0.0
    count: int = 1
    place: int | None = None
    join: Join = "mean"

    def read_total(self, arrays: Sequence[npt.NDArray[np.float64]]) -> float:
        """Return the sum, once the copy has arrived."""
        return self.total if self.place is None else float(arrays[self.place])

    def read(self, arrays: Sequence[npt.NDArray[np.float64]], scope: Scope = "global") -> Scalar:
        """Return the mean, once the copy has arrived."""
        return self.of(self.read_total(arrays) / self.count, scope)

    def of(self, number: float, scope: Scope = "global", ranks: int = 1) -> Scalar:
        """Return the scalar for *number*, the mean, or the sum of squares over all ranks."""
        value = math.sqrt(number) if self.join in NORMS else number
        return Scalar(self.name, value, self.epoch, self.step, scope, ranks)


@dataclass(slots=True, eq=False)
class Batch:
    """The data of one moment: rows, pushed values and scales.

    Attributes:
        copy: of all tensors, on the host or on its way there.
        rows: the rows of each measurement.
        scalars: pushed values and numbers of the moment.
        nbytes: of the copy.
        moment: its epoch and step.
        when: the place of the moment in the training, the same number on all ranks; None where the data joins those of the next
            moment that has one.
        ends_interval: whether a logged step has ended.
        interval: the number of steps between logged ones that this process would choose from now on; 0 if it has no choice.
    """

    copy: HostCopy
    rows: Sequence[RawRows] = ()
    scalars: Sequence[Scalar | PendingScalar] = ()
    nbytes: int = 0
    moment: tuple[int, int] = (0, 0)
    when: int | None = None
    ends_interval: bool = False
    interval: int = 0


class BatchBuilder:
    """Collects the tensors of one batch. ``batch()`` begins the copy and empties the rows.

    Attributes:
        epoch, step: when.
        ends_interval: whether a logged step has ended, and with it the interval over which running values are averaged.
        when, interval: see :class:`Batch`.
    """

    def __init__(self, epoch: int, step: int, *, ends_interval: bool = False) -> None:
        self.epoch = epoch
        self.step = step
        self.ends_interval = ends_interval
        self.when: int | None = None
        self.interval = 0
        self._tensors: list[Tensor] = []
        self._rows: list[RawRows] = []
        self._scalars: list[Scalar | PendingScalar] = []
        self._sources: list[Measurement] = []
        self._scales: dict[int, int] = {}

    def rows(
        self,
        measurement: Measurement,
        places: Mapping[str, int],
        *,
        micro_step: int = 0,
        scales: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add the rows of *measurement*, if it has any.

        Args:
            measurement: has the rows.
            places: the place of each module in the order of execution.
            micro_step: the number of the backward pass within the step.
            scales: by port, the scale that the port's gradients are multiplied by.
        """
        if not measurement.table.blocks:  # a first tensor has no pair yet
            return
        index = measurement.row_index(places)
        blocks, placed = self._placed(measurement.table, index, scales)
        norms, hidden = measurement.norms, measurement.hidden
        self._rows.append(RawRows(index, blocks, self.epoch, self.step, micro_step, placed, norms, hidden=hidden))
        self._sources.append(measurement)

    def parameter_rows(
        self, rows: ParameterRows, index: RowIndex, *, role: Literal["start", "raw"], scales: Mapping[str, Tensor] | None = None
    ) -> None:
        """Add the *rows* that *index* names, if they are of this step. They are not emptied."""
        if rows.step == self.step and len(index.layout):
            blocks, placed = self._placed(rows.table, index, scales)
            norms = frozenset([rows.port]) if role == "raw" else frozenset[str]()
            self._rows.append(RawRows(index, blocks, self.epoch, self.step, 0, placed, norms, hidden=True, role=role))

    def _placed(self, table: Table, index: RowIndex, scales: Mapping[str, Tensor] | None) -> tuple[slice, dict[str, int]]:
        """Add the blocks of *table* and the scales of the ports; return their places in the copy."""
        start = len(self._tensors)
        self._tensors += table.blocks
        blocks = slice(start, len(self._tensors))
        return blocks, {port: self._place_of(scale) for port, scale in (scales or {}).items() if port in index.ports}

    def _place_of(self, scale: Tensor) -> int:
        if id(scale) not in self._scales:
            self._scales[id(scale)] = len(self._tensors)
            self._tensors.append(scale.detach().reshape(()).to(torch.float64))
        return self._scales[id(scale)]

    def pushed(self, pushed: Pushed, join: Join = "mean") -> None:
        """Add a value that the training loop pushed."""
        total, place = pushed.total, None
        if isinstance(total, Tensor):
            place = len(self._tensors)
            self._tensors.append(total)
            total = 0.0
        self._scalars.append(PendingScalar(pushed.name, pushed.epoch, pushed.step, total, pushed.count, place, join))

    def scalar(self, name: str, value: float | Tensor, join: Join) -> None:
        """Add a number of this moment."""
        total = value.detach().reshape(()).to(torch.float64) if isinstance(value, Tensor) else float(value)
        self.pushed(Pushed(name, self.epoch, self.step, total), join)

    def __bool__(self) -> bool:
        return bool(self._rows or self._scalars)

    def batch(self) -> Batch:
        """Begin the one copy per device, and empty the rows that are in it."""
        copy = HostCopy.of(self._tensors)
        for measurement in self._sources:
            measurement.table.reset()
        size = sum(tensor.nbytes for tensor in self._tensors)
        moment = self.epoch, self.step
        return Batch(copy, self._rows, self._scalars, size, moment, self.when, self.ends_interval, self.interval)
