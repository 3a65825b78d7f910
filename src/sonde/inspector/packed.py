"""Rows that lie together, and the one copy per device that takes all of a logged step's numbers to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sonde.stats import RowStatistic, Slab

__all__ = ["PackedSlab", "Packet", "pack"]

_ROWS = 64  # of the first block; each further one is as large as all before it


class PackedSlab(Slab):
    """A slab whose rows lie in few large blocks, so that copying and emptying them takes few operations."""

    def __init__(self, statistic: RowStatistic) -> None:
        super().__init__(statistic)  # type: ignore[arg-type]  # a pair statistic has rows as well
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
        with torch.no_grad():
            for block, empty in zip(self._blocks, self._empty, strict=True):
                block.copy_(empty)


@dataclass(frozen=True)
class _Copy:
    """What one device has sent: a flat tensor on the host, which is there when *arrived* says so."""

    flat: Tensor
    arrived: torch.Event | None
    places: list[tuple[int, int, tuple[int, ...]]]  # of each tensor: its position in the packet, its start, its shape


class Packet:
    """Tensors on their way to the host."""

    def __init__(self, copies: list[_Copy], size: int) -> None:
        self._copies = copies
        self._size = size

    def unpack(self) -> list[npt.NDArray[np.float64]]:
        """The tensors, in the order they were given. Waits for the devices: not for the thread that trains."""
        found: list[npt.NDArray[np.float64]] = [np.empty(0)] * self._size
        for copy in self._copies:
            if copy.arrived is not None:
                copy.arrived.synchronize()
            host = copy.flat.numpy()
            for position, start, shape in copy.places:
                found[position] = host[start : start + int(np.prod(shape))].reshape(shape)
        return found


def pack(tensors: Sequence[Tensor]) -> Packet:
    """Begin to copy *tensors*, all float64, to the host: one copy for each device, without waiting for it.

    What is written into them afterwards, in the same stream, does not reach the copy.
    """
    devices: dict[torch.device, list[int]] = {}
    for position, tensor in enumerate(tensors):
        devices.setdefault(tensor.device, []).append(position)
    copies = []
    with torch.no_grad():
        for device, positions in devices.items():
            flat = torch.cat([tensors[position].reshape(-1) for position in positions])
            starts = np.cumsum([0, *(tensors[position].numel() for position in positions)]).tolist()
            places = [(at, start, tuple(tensors[at].shape)) for at, start in zip(positions, starts, strict=False)]
            copies.append(_Copy(*_to_host(flat, device), places))
    return Packet(copies, len(tensors))


def _to_host(flat: Tensor, device: torch.device) -> tuple[Tensor, torch.Event | None]:
    if device.type == "cpu":
        return flat, None
    host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    host.copy_(flat, non_blocking=True)
    arrived = torch.Event(device)
    arrived.record(torch.accelerator.current_stream(device))
    return host, arrived
