"""Measure tensors on accelerators by a statistic that torch.compile has fused, or by the statistic itself where compiling fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class _Measures(Protocol):
    """The methods of a statistic that are used here."""

    def measure(self, tensor: Tensor) -> Tensor: ...
    def __hash__(self) -> int: ...


_compiled: dict[_Measures, Callable[[Tensor], Tensor]] = {}
_failures: dict[str, str] = {}  # type of device -> why tensors on such devices are measured by the reference


def is_fused(tensor: Tensor) -> bool:
    """Return whether a statistic of *tensor* is best compiled: on accelerators, where each operation is a launch of a kernel.

    On the CPU it is not: the native kernels read memory once, and reductions in float64 that are compiled for each site cost more,
    at run time and most of all when they are compiled.
    """
    return not tensor.is_cpu


def measure(statistic: _Measures, tensor: Tensor) -> Tensor:
    """Return ``statistic.measure(tensor)``, computed in few kernels where torch can compile for the tensor's device.

    The first tensor of each precision on a device waits for the compiler. If compiling fails, the reference is used for that
    type of device from then on, and :func:`failures` gives the reason.
    """
    device = tensor.device.type
    if device in _failures or torch.compiler.is_dynamo_compiling():
        return statistic.measure(tensor)
    if statistic not in _compiled:
        _compiled[statistic] = torch.compile(statistic.measure, dynamic=True)
    plain = tensor.detach()
    try:
        return _compiled[statistic](plain.view(-1) if plain.is_contiguous() else plain)  # one graph for all shapes
    except Exception as error:
        measured = statistic.measure(tensor)  # raises too if the statistic, not the compiler, is at fault
        _failures[device] = f"{type(error).__name__}: {error}".splitlines()[0]
        return measured


def failures() -> dict[str, str]:
    """Return, for each type of device whose compiler failed, the first line of the error."""
    return dict(_failures)
