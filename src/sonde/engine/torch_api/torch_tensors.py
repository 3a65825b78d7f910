"""Private facts about tensors (version, storage), operations without overrides, and the scale of a ``GradScaler``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

version_of: Callable[[Tensor], int] = attrgetter("_version")
"""Return how often a tensor was written into. An inference tensor has no version: RuntimeError."""

storage_of: Callable[[Tensor], int] = torch._C._storage_id  # type: ignore[attr-defined]  # not in torch's stubs
"""Return a number that is equal for tensors which share memory."""

without_overrides: Callable[[], AbstractContextManager[Any]] = torch._C.DisableTorchFunction
"""Return a context in which no ``__torch_function__`` is called, neither of tensor classes nor of modes."""


def stored_values(tensor: Tensor) -> Tensor:
    """Return the stored elements of a sparse tensor, without summing those of equal positions, which would copy them."""
    return tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()


def clone_each(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a copy of each tensor, made by one call."""
    clone: Callable[[list[Tensor]], Sequence[Tensor]] | None = getattr(torch, "_foreach_clone", None)
    return [tensor.clone() for tensor in tensors] if clone is None else list(clone(list(tensors)))


def copy_each(targets: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Write each of *tensors* into the target at its position, by one call."""
    copy: Callable[[list[Tensor], list[Tensor]], None] | None = getattr(torch, "_foreach_copy_", None)
    if copy is not None and targets:
        copy(list(targets), list(tensors))
        return
    for target, tensor in zip(targets, tensors, strict=True):
        target.copy_(tensor)


def fake_tensors() -> Any:
    """Return a mode in which tensors have shapes, dtypes and devices, and no memory; ``from_tensor`` of it makes such tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def takes_loss_scale(scaler: Any) -> bool:
    """Return whether the scale of *scaler* can be read without waiting for the device, as that of a ``GradScaler`` can."""
    return hasattr(scaler, "_get_scale_async")


def loss_scale_of(scaler: Any) -> Tensor | None:
    """Return the scale that *scaler* multiplies losses by, as a tensor on its device; None without one. No host sync."""
    if scaler is None or not scaler.is_enabled():
        return None
    scale: Tensor | None = scaler._get_scale_async()
    return scale


def norms_of(tensors: Sequence[Tensor], order: float = 2.0) -> Sequence[Tensor]:
    """Return a norm of each tensor on its device, made by one call: the Euclidean one; with *order* inf the largest magnitude."""
    norms: Callable[[list[Tensor], float], Sequence[Tensor]] | None = getattr(torch, "_foreach_norm", None)
    if not tensors:
        return []
    return [tensor.norm(order) for tensor in tensors] if norms is None else norms(list(tensors), order)
