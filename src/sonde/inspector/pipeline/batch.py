"""What one moment takes to the host: rows, pushed values and scales, packed into one copy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sonde.inspector.measurement.measurement import Measurement
from sonde.inspector.pipeline.scalars import Pushed
from sonde.inspector.pipeline.writer_thread import Batch, DeviceScalar, Part
from sonde.inspector.sinks.base import Scalar
from sonde.stats.host_copy import pack

__all__ = ["BatchBuilder"]


class BatchBuilder:
    """Collects tensors for one batch; ``batch()`` begins the copy and empties the rows.

    Attributes:
        epoch, step: when.
        ends_interval: a logged step has ended, and with it the interval that running values are averaged over.
    """

    def __init__(self, epoch: int, step: int, *, ends_interval: bool = False) -> None:
        self.epoch = epoch
        self.step = step
        self.ends_interval = ends_interval
        self._tensors: list[Tensor] = []
        self._parts: list[Part] = []
        self._scalars: list[Scalar | DeviceScalar] = []
        self._sources: list[Measurement] = []
        self._scales: dict[int, int] = {}

    def rows(
        self, measuring: Measurement, places: Mapping[str, int], *, micro_step: int = 0, scales: Mapping[str, Tensor] | None = None
    ) -> None:
        """Take the rows of *measuring*, if it has any; the gradients at each port in *scales* are that scale times too large."""
        if not measuring.blocks:  # of a first tensor there is no pair yet
            return
        rowed = measuring.rowed(places)
        start = len(self._tensors)
        self._tensors += measuring.blocks
        blocks = slice(start, len(self._tensors))
        placed: dict[str, int] = {port: self._place_of(scale) for port, scale in (scales or {}).items() if port in rowed.ports}
        self._parts.append(Part(rowed, blocks, self.epoch, self.step, micro_step, placed, measuring.norms, hidden=measuring.hidden))
        self._sources.append(measuring)

    def _place_of(self, scale: Tensor) -> int:
        if id(scale) not in self._scales:
            self._scales[id(scale)] = len(self._tensors)
            self._tensors.append(scale.detach().reshape(()).to(torch.float64))
        return self._scales[id(scale)]

    def pushed(self, pushed: Pushed) -> None:
        """Take a value that was pushed."""
        if isinstance(pushed.total, Tensor):
            self._scalars.append(DeviceScalar(pushed.name, pushed.epoch, pushed.step, len(self._tensors), pushed.count))
            self._tensors.append(pushed.total)
        else:
            self._scalars.append(Scalar(pushed.name, pushed.total / pushed.count, pushed.epoch, pushed.step))

    def scalar(self, name: str, value: float | Tensor) -> None:
        """Take a number of this moment."""
        total = value.detach().reshape(()).to(torch.float64) if isinstance(value, Tensor) else float(value)
        self.pushed(Pushed(name, self.epoch, self.step, total))

    def __bool__(self) -> bool:
        return bool(self._parts or self._scalars)

    def batch(self) -> Batch:
        """Begin the one copy per device, and empty the rows that are in it."""
        packet = pack(self._tensors)
        for measuring in self._sources:
            measuring.table.reset()
        return Batch(packet, self._parts, self._scalars)
