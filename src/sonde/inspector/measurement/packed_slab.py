"""Rows that lie together, and the one copy per device that takes all of a logged step's numbers to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sonde.stats import RowStatistic, Slab

__all__ = ["HostCopy", "PackedSlab", "pack"]

_ROWS = 64  # of the first block; each further one is as large as all before it


class PackedSlab(Slab):
    """A slab whose rows lie in few large blocks, so that copying and emptying them takes few operations.

    Attributes:
        changes: how often rows have come or moved.
    """

    def __init__(self, statistic: RowStatistic) -> None:
        super().__init__(statistic)  # type: ignore[arg-type]  # a pair statistic has rows as well
        self.changes = 0
        self._free: dict[torch.device, tuple[int, int]] = {}  # block, first position that is free
        self._empty: list[Tensor] = []  # what each block is when nothing was added

    @property
    def blocks(self) -> list[Tensor]:
        """All rows, of shape ``(rows, 1 + width)`` each; some may not be in use."""
        return self._blocks

    def places(self) -> dict[int, tuple[int, int]]:
        """Block and position of every row, by the row's id."""
        return {id(row): place for row, place in zip(self._rows, self._places, strict=True)}

    def allocate(self, rows: int, device: torch.device | str) -> list[Tensor]:
        self.changes += 1
        device = torch.device(device)
        block, first = self._free.get(device, (-1, 0))
        if block < 0 or first + rows > len(self._blocks[block]):
            block, first = self._grow(max(rows, _ROWS, len(self)), device), 0
        self._free[device] = block, first + rows
        made = list(self._blocks[block][first : first + rows].unbind(0))
        self._places += [(block, position) for position in range(first, first + rows)]
        self._rows += made
        return made

    def _grow(self, rows: int, device: torch.device) -> int:
        with torch.inference_mode(False):
            counted = torch.zeros(rows, 1, dtype=torch.float64, device=device)
            empty = torch.cat([counted, self.statistic.empty(rows, device)], dim=1)
            self._blocks.append(empty.clone())
        self._empty.append(empty)
        return len(self._blocks) - 1

    def move(self, row: Tensor, device: torch.device) -> Tensor:
        place = next(index for index, held in enumerate(self._rows) if held is row)
        (moved,) = self.allocate(1, device)
        with torch.inference_mode(False), torch.no_grad():
            moved.copy_(row)
        self._rows[place], self._places[place] = self._rows.pop(), self._places.pop()
        return self._rows[place]

    def reset(self) -> None:
        for block, empty in zip(self._blocks, self._empty, strict=True):
            block.copy_(empty)


@dataclass(frozen=True)
class _Sent:
    """What one device has sent: one tensor on the host, which is there when *arrived* says so."""

    flat: Tensor
    arrived: torch.Event
    places: list[tuple[int, int, Tensor]]  # of each tensor: its position in the packet, its start, and the tensor itself


class HostCopy:
    """Copies of tensors, on the host or on their way there."""

    def __init__(self, copies: list[Tensor | None], sent: list[_Sent]) -> None:
        self._copies = copies
        self._sent = sent

    def unpack(self) -> list[npt.NDArray[np.float64]]:
        """The copies, in the order in which the tensors were given. Waits for the devices: not for the thread that trains."""
        found = [np.empty(0) if copy is None else copy.numpy() for copy in self._copies]
        for sent in self._sent:
            sent.arrived.synchronize()
            host = sent.flat.numpy()
            for position, start, tensor in sent.places:
                found[position] = host[start : start + tensor.numel()].reshape(tuple(tensor.shape))
        return found


def pack(tensors: Sequence[Tensor]) -> HostCopy:
    """Begin to copy *tensors*, float64 and without a graph, to the host: in one go for each device, without waiting for it.

    What is written into them afterwards, in the same stream, does not reach the copies.
    """
    copies = [tensor.clone() if tensor.is_cpu else None for tensor in tensors]
    afar: dict[torch.device, list[tuple[int, int, Tensor]]] = {}
    for position, (tensor, copy) in enumerate(zip(tensors, copies, strict=True)):
        if copy is None:
            places = afar.setdefault(tensor.device, [])
            start = places[-1][1] + places[-1][2].numel() if places else 0
            places.append((position, start, tensor))
    return HostCopy(copies, [_send(device, places) for device, places in afar.items()])


def _send(device: torch.device, places: list[tuple[int, int, Tensor]]) -> _Sent:
    flat = torch.cat([tensor.reshape(-1) for _, _, tensor in places])
    host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    host.copy_(flat, non_blocking=True)
    arrived = torch.Event(device)
    arrived.record(torch.accelerator.current_stream(device))
    return _Sent(host, arrived, places)
