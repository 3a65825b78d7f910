"""Read a tensor's place in memory, its version and its shape, for the graph of a forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from sonde.engine import torch_tensors
from sonde.engine import version_of as written_to

Span = tuple[int, int, bool]
"""First byte of a tensor in its storage, the byte after its last one, and whether it uses every byte between."""

_UNREADABLE = (RuntimeError, NotImplementedError, TypeError)  # sparse, nested and wrapped tensors have no storage


def storage_of(tensor: Tensor) -> int | None:
    """Return a number that identifies the tensor's storage while the storage lives; None without a storage."""
    try:
        return torch_tensors.storage_of(tensor)
    except _UNREADABLE:
        return None


def version_of(tensor: Tensor) -> int:
    """Return how often the memory was written to; -1 where torch does not count writes (inference tensors).

    >>> import torch
    >>> from sonde import graph
    >>> tensor = torch.zeros(2)
    >>> before = graph.version_of(tensor)
    >>> _ = tensor.add_(1)
    >>> graph.version_of(tensor) - before
    1
    """
    return -1 if tensor.is_inference() else written_to(tensor)


def span_of(tensor: Tensor) -> Span:
    """Return the bytes of its storage that the tensor covers."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    if not tensor.numel():
        return first, first, True
    extent = int(sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))) + 1
    return first, first + extent * size, extent == tensor.numel()


def write_covers(write: Span, read: Span) -> bool:
    """Whether a write over the bytes *write* replaces all bytes of *read*."""
    return write[2] and write[0] <= read[0] and read[1] <= write[1]


_DTYPES = {held: str(held).removeprefix("torch.") for held in vars(torch).values() if isinstance(held, torch.dtype)}


def described(tensor: Tensor) -> tuple[tuple[int, ...], str, str]:
    """Return shape, dtype and device as plain data."""
    if tensor.is_nested:
        return (tensor.size(0),), _DTYPES[tensor.dtype], str(tensor.device)
    return tuple(map(int, tensor.shape)), _DTYPES[tensor.dtype], str(tensor.device)


_SHAPELESS = (UninitializedParameter, UninitializedBuffer)  # of a lazy module before its first call


def tensors_in(*values: Any) -> list[Tensor]:
    """Return the tensors in *values* (arguments or results of a function), each once, in order."""
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
            pending.extend(reversed(value.values()))  # type: ignore[call-overload]  # keyword arguments are in a dict
        elif isinstance(value, slice):
            pending.extend((value.step, value.stop, value.start))
    return list(found.values())
