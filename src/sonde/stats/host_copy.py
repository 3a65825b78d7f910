"""Copy tensors to the host: one copy per device, begun without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class _Sent:
    """One flat tensor that a device sends to the host; ``flat`` is complete once *arrived* has happened."""

    flat: Tensor
    arrived: torch.Event
    places: list[tuple[int, int, Tensor]]  # of each tensor: its position in the argument of of(), its start in flat, the tensor


class HostCopy:
    """Copies of tensors, on the host or on their way to the host."""

    def __init__(self, copies: list[Tensor | None], sent: list[_Sent]) -> None:
        self._copies = copies
        self._sent = sent

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> HostCopy:
        """Begin to copy *tensors* to the host: one operation per device, without waiting for the device.

        Later writes to *tensors* in the same stream do not reach the copies.

        Args:
            tensors: float64, without a graph, of any shapes and devices.
        """
        copies = [tensor.clone() if tensor.is_cpu else None for tensor in tensors]
        afar: dict[torch.device, list[tuple[int, int, Tensor]]] = {}
        for position, (tensor, copy) in enumerate(zip(tensors, copies, strict=True)):
            if copy is None:
                places = afar.setdefault(tensor.device, [])
                start = places[-1][1] + places[-1][2].numel() if places else 0
                places.append((position, start, tensor))
        return HostCopy(copies, [_send(device, places) for device, places in afar.items()])

    def has_arrived(self) -> bool:
        """Return whether all copies are on the host. Waits for nothing."""
        return all(sent.arrived.query() for sent in self._sent)

    def unpack(self) -> list[npt.NDArray[np.float64]]:
        """Return the copies in the order in which the tensors were given. Wait for the devices, not for the training thread."""
        found = [np.empty(0) if copy is None else copy.numpy() for copy in self._copies]
        for sent in self._sent:
            sent.arrived.synchronize()
            host = sent.flat.numpy()
            for position, start, tensor in sent.places:
                found[position] = host[start : start + tensor.numel()].reshape(tuple(tensor.shape))
        return found


def _send(device: torch.device, places: list[tuple[int, int, Tensor]]) -> _Sent:
    flat = torch.cat([tensor.reshape(-1) for _, _, tensor in places])
    host = torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=True)
    host.copy_(flat, non_blocking=True)
    arrived = torch.Event(device)
    arrived.record(torch.accelerator.current_stream(device))
    return _Sent(host, arrived, places)
