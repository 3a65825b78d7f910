"""The rows of one statistic at many sites: one block per device, rows that never move, one copy to read them all."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from sonde.stats.kernels import fused, native
from sonde.stats.statistic import Column, Statistic, dense

__all__ = ["Slab"]


class Slab:
    """Rows of *statistic*, each led by the number of times it was added to.

    Hooks own views of their rows. Compiled code has the address of a row built in, so a row is written in place and never
    replaced.
    """

    def __init__(self, statistic: Statistic) -> None:
        self.statistic = statistic
        self._blocks: list[Tensor] = []  # of shape (rows, 1 + fields)
        self._places: list[tuple[int, int]] = []  # of each row: block, position
        self._rows: list[Tensor] = []
        self._lock = threading.Lock()  # torch lets other threads run between reading a row and writing it

    def __len__(self) -> int:
        return len(self._places)

    def allocate(self, rows: int, device: torch.device | str) -> list[Tensor]:
        """New empty rows on *device*: float64, shape ``(1 + len(fields),)``, the first number the count of additions."""
        with torch.inference_mode(False):
            counted = torch.zeros(rows, 1, dtype=torch.float64, device=device)
            block = torch.cat([counted, self.statistic.empty(rows, device)], dim=1)
        self._places += [(len(self._blocks), position) for position in range(rows)]
        self._blocks.append(block)
        made = list(block.unbind(0))
        self._rows += made
        return made

    def move(self, row: Tensor, device: torch.device) -> Tensor:
        """The same row on another device; the old one is given up."""
        place = next(index for index, held in enumerate(self._rows) if held is row)
        with torch.inference_mode(False):
            block = row.detach()[None].to(device)
        self._places[place] = (len(self._blocks), 0)
        self._blocks.append(block)
        self._rows[place] = block[0]
        return self._rows[place]

    def measured(self, tensor: Tensor) -> Tensor:
        """The row that *tensor* alone would leave."""
        measure = self.statistic.measure(tensor)
        return torch.cat([torch.ones_like(measure[:1]), measure])

    def merged(self, row: Tensor, other: Tensor) -> Tensor:
        """A new row that holds both."""
        return torch.cat([row[:1] + other[:1], self.statistic.merged(row[1:], other[1:])])

    def add(self, row: Tensor, tensor: Tensor) -> None:
        """Add *tensor* to a row of this slab, in place. Threads may do so at the same time."""
        kernel = self.statistic.kernel
        if kernel is not None and kernel.add(row, tensor, led=1):
            return
        measured = self._measured(dense(tensor))
        sums, minima = self.statistic._cuts()
        if native.merge(row, measured, 1 + sums, minima - sums, row.numel() - 1 - minima):
            return
        with self._lock:
            row.copy_(self.merged(row, measured))

    def _measured(self, tensor: Tensor) -> Tensor:
        """The same as :meth:`measured`, in eager mode, by whatever is best for the tensor's device."""
        if tensor.is_cpu:
            return self.measured(tensor)
        measure = fused.measure(self.statistic, tensor)
        return torch.cat([torch.ones_like(measure[:1]), measure])

    def reset(self) -> None:
        """Empty every row, in place."""
        for block in self._blocks:
            block[:, 0] = 0
            block[:, 1:] = self.statistic.empty(1, block.device)

    def read(self) -> tuple[list[int], dict[str, Column]]:
        """How often each row was added to, and the statistic's numbers, in order of allocation. One copy per device."""
        if not self._blocks:
            return [], {}
        devices: dict[torch.device, list[int]] = {}
        for index, block in enumerate(self._blocks):
            devices.setdefault(block.device, []).append(index)
        host: dict[int, Tensor] = {}
        for indices in devices.values():
            joined = torch.cat([self._blocks[index] for index in indices]).cpu()
            host |= zip(indices, joined.split([len(self._blocks[index]) for index in indices]), strict=True)
        rows = torch.stack([host[block][position] for block, position in self._places])
        return [int(count) for count in rows[:, 0].tolist()], self.statistic.finish(self.statistic.columns(rows[:, 1:]))
