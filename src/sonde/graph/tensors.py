"""What of a tensor's identity a graph is built from: where it lies in memory, and how often that was written to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

__all__ = ["Span", "described", "span_of", "storage_of", "tensors_in", "version_of", "write_covers"]

_storage_id: Any = torch._C._storage_id  # type: ignore[attr-defined]

Span = tuple[int, int, bool]
"""First byte of a tensor in its storage, the byte after its last, and whether every byte between is its own."""

_UNREADABLE = (RuntimeError, NotImplementedError, TypeError)  # sparse, nested and wrapped tensors have no storage


def storage_of(tensor: Tensor) -> int | None:
    """What names the tensor's storage while that lives; None if it has none of its own."""
    try:
        found: int = _storage_id(tensor)
    except _UNREADABLE:
        return None
    return found


def version_of(tensor: Tensor) -> int:
    """How often the memory was written to; -1 where torch does not count (inference tensors)."""
    return -1 if tensor.is_inference() else tensor._version


def span_of(tensor: Tensor) -> Span:
    """Which bytes of its storage the tensor reads."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    if not tensor.numel():
        return first, first, True
    extent = int(sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))) + 1
    return first, first + extent * size, extent == tensor.numel()


def write_covers(write: Span, read: Span) -> bool:
    """Whether a write over *write* leaves nothing of what was at *read* before."""
    return write[2] and write[0] <= read[0] and read[1] <= write[1]


_DTYPES = {held: str(held).removeprefix("torch.") for held in vars(torch).values() if isinstance(held, torch.dtype)}


def described(tensor: Tensor) -> tuple[tuple[int, ...], str, str]:
    """Shape, dtype and device, as plain data."""
    if tensor.is_nested:
        return (tensor.size(0),), _DTYPES[tensor.dtype], str(tensor.device)
    return tuple(map(int, tensor.shape)), _DTYPES[tensor.dtype], str(tensor.device)


_SHAPELESS = (UninitializedParameter, UninitializedBuffer)  # a lazy module's, which its first call makes


def tensors_in(*values: Any) -> list[Tensor]:
    """The tensors among a function's arguments, or in what it returned, each once."""
    found: dict[int, Tensor] = {}
    pending = list(reversed(values))
    while pending:
        value = pending.pop()
        if isinstance(value, Tensor):
            if type(value) not in _SHAPELESS:
                found[id(value)] = value
        elif isinstance(value, tuple | list):
            pending.extend(reversed(value))
        elif isinstance(value, Mapping):
            pending.extend(reversed(value.values()))  # type: ignore[call-overload]  # of keyword arguments: a dict
        elif isinstance(value, slice):
            pending.extend((value.step, value.stop, value.start))
    return list(found.values())
