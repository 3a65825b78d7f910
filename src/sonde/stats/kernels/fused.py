"""A statistic's reference fused by torch.compile, for accelerators; the reference itself wherever that does not work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["failures", "measure"]


class _Measures(Protocol):
    """A statistic, as far as this file needs to know it."""

    def measure(self, tensor: Tensor) -> Tensor: ...
    def __hash__(self) -> int: ...


_compiled: dict[_Measures, Callable[[Tensor], Tensor]] = {}
_failures: dict[str, str] = {}  # type of device -> why its tensors are left to the reference


def measure(statistic: _Measures, tensor: Tensor) -> Tensor:
    """``statistic.measure(tensor)``, in few kernels where the compiler has one for the tensor's device.

    The first tensor of each precision on a device waits for the compiler. If that fails, the reference is used for that
    type of device from then on, and :func:`failures` says why.
    """
    device = tensor.device.type
    if device in _failures or torch.compiler.is_compiling():
        return statistic.measure(tensor)
    if statistic not in _compiled:
        _compiled[statistic] = torch.compile(statistic.measure, dynamic=True)
    plain = tensor.detach()
    try:
        return _compiled[statistic](plain.view(-1) if plain.is_contiguous() else plain)  # one graph for all shapes
    except Exception as error:
        measured = statistic.measure(tensor)  # if this raises too, it is not the compiler's failure
        _failures[device] = f"{type(error).__name__}: {error}".splitlines()[0]
        return measured


def failures() -> dict[str, str]:
    """Type of device to the first line of what its compiler said, for those that have none that works."""
    return dict(_failures)
