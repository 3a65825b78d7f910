"""Stashes as tensors and records that can be written to disk without pickle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sonde.engine import Site
from sonde.keep.stash import Stash, leaves_of
from sonde.run.tensors import write_tensors

__all__ = ["save_stashes"]


def save_stashes(stashes: list[Any], path: Path, *, overwrite: bool = False) -> Path:
    """Write *stashes* to the folder *path*; see ``Tracker.save``."""
    tensors: dict[str, Tensor] = {}
    records: list[dict[str, Any]] = []
    storages: set[int] = set()
    for number, stash in enumerate(stashes):
        record, found = _record(number, stash)
        records.append(record)
        for key, tensor in found.items():
            tensors[key] = _separate(tensor, storages)
    return write_tensors(path, tensors, records, overwrite=overwrite)


def _record(number: int, stash: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    kind = getattr(stash, "type", type(stash))
    name, grad = getattr(stash, "name", ""), bool(getattr(stash, "grad", False))
    site = getattr(stash, "site", None) or Site(name, "grad_output" if grad else "output")
    record: dict[str, Any] = {
        "name": name,
        "type": f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind),
        "grad": grad,
        "site": str(site),
    }
    if isinstance(stash, Stash):
        record |= {"call": stash.call, "phase": stash.phase, "tick": stash.tick._asdict(), "alias": stash.alias}
    found: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for path, held in leaves_of(stash).items():
        if isinstance(held, Tensor) and _can_be_stored(held):
            found[f"{number:06d}/{site}{path}"] = held
        else:
            values[path] = _plain(held)
    record["tensors"] = {key.split("/", 1)[1]: key for key in found}
    return (record | {"values": values} if values else record), found


def _can_be_stored(tensor: Tensor) -> bool:
    return not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)


def _plain(held: Any) -> Any:
    """What JSON can hold: numbers that it cannot, and other objects, as text."""
    if isinstance(held, float) and not math.isfinite(held):
        return str(held)
    return held if isinstance(held, bool | int | float | str | None) else f"<{type(held).__name__}>"


def _separate(tensor: Tensor, storages: set[int]) -> Tensor:
    """The tensor on the CPU, dense, in memory that no other tensor of the file shares (safetensors refuses that)."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if not tensor.is_contiguous() or tensor.untyped_storage().data_ptr() in storages:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    storages.add(tensor.untyped_storage().data_ptr())
    return tensor
