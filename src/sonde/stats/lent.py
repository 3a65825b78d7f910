"""Tell whether a function of the user's has written into the tensors that it was lent."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sonde.stats.kernels.torch_private import are_writes_counted, version_of
from sonde.stats.pieces import PLAIN
from sonde.stats.statistic import bits_of


class Lent:
    """Tensors that a function is lent, with what a write into them changes.

    A write counts up the version of a tensor. Torch counts none in an inference tensor, nor in Python that compiled code calls:
    there a copy is compared, of tensors on the CPU alone, since a comparison elsewhere would wait for the device.

    Args:
        tensors: each with its path.
    """

    __slots__ = ("_noted",)

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        is_counted = are_writes_counted()
        self._noted: list[tuple[str, Tensor, int, Tensor | None]] = []
        for path, tensor in tensors:
            if is_counted and not tensor.is_inference():
                self._noted.append((path, tensor, version_of(tensor), None))
            elif type(tensor) in PLAIN and tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_quantized:
                self._noted.append((path, tensor, 0, tensor.detach().clone()))

    def written(self) -> str | None:
        """Return the path of the first tensor that was written into since; None if none was, as far as that can be known."""
        for path, tensor, version, copy in self._noted:
            if version_of(tensor) != version if copy is None else not _has_same_bits(tensor, copy):
                return path
        return None


def is_looked_at(count: int) -> bool:
    """Return whether the call number *count*, from 1, of a function is looked at: the 1st, 2nd, 4th, 8th, and so on."""
    return not count & (count - 1)


def _has_same_bits(one: Tensor, other: Tensor) -> bool:
    one, other = one.detach(), other.detach()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(bits_of(one), bits_of(other))
