"""Make whole what the ranks of one model hold parts of, as under tensor parallelism, and see whether it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import ranks_of
from sonde.errors import ArgumentError
from sonde.site import Port
from sonde.stats import Piece, local
from sonde.words import shape_text

_FEATURES: dict[type[nn.Module], int] = {nn.Linear: 0, nn.Embedding: 1}
"""Of the weight of a module, the axis along which its output has features."""

_ALIKE = 1e-3  # relative: replicas of a tensor differ by rounding, parts of one by all


def whole(partners: Sequence[int], tensor: Tensor, module: nn.Module | None, port: Port) -> Tensor:
    """Return the whole *tensor* at a port of *module*, where each of the *partners* may hold a part. All of them call this.

    That is a ``DTensor``, and the output of a layer whose weight is split by features, which ``ColwiseParallel`` returns as a plain
    tensor. What other plain tensors are parts of cannot be known: see :func:`refuse_parts`.
    """
    held: Any = tensor
    if not Piece.may_come():
        return tensor
    if hasattr(held, "full_tensor"):
        held = held.full_tensor()
    found = local(held)
    assert found is not None  # a whole is no partial sum
    if len(partners) > 1 and port == "output" and module is not None:
        found = _of_split_features(partners, found, module)
    return found


def _of_split_features(partners: Sequence[int], tensor: Tensor, module: nn.Module) -> Tensor:
    weight: Any = getattr(module, "weight", None)
    axis = next((axis for kind, axis in _FEATURES.items() if isinstance(module, kind)), None)
    if axis is None or not hasattr(weight, "device_mesh") or not tensor.dim() or tensor.shape[-1] == weight.shape[axis]:
        return tensor
    from torch.distributed.tensor import DTensor, Shard

    mesh = weight.device_mesh
    if mesh.ndim > 1:
        names = [name for at, name in enumerate(mesh.mesh_dim_names or ()) if ranks_of(mesh.get_group(at)) == tuple(partners)]
        if not names:
            return tensor
        mesh = mesh[names[0]]
    shape = torch.Size([*tensor.shape[:-1], weight.shape[axis]])
    strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
    split = DTensor.from_local(tensor.contiguous(), mesh, [Shard(tensor.dim() - 1)], run_check=False, shape=shape, stride=strides)
    made = local(split.full_tensor())
    assert made is not None
    return made


def marks_of(columns: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Return of each of *columns*, as plain data, what tells it from another one: the shape, a projection, and the norm."""
    found: dict[str, list[Any]] = {}
    for name, rows in columns.items():
        numbers = rows.double().flatten().nan_to_num(posinf=1.0, neginf=-1.0)
        weights = torch.arange(1, len(numbers) + 1, dtype=torch.float64, device="cpu").mul_(math.sqrt(2)).frac_().sub_(0.5)
        found[name] = [list(rows.shape), float(numbers @ weights), float(numbers.norm())]
    return found


def refuse_parts(marks: Sequence[tuple[int, Mapping[str, list[Any]]]]) -> None:
    """Refuse columns that ranks which hold one model together have other values of, by the number of the replica and their marks.

    Raises:
        ArgumentError: a column differs.
    """
    first: dict[int, Mapping[str, list[Any]]] = {}
    for number, mine in marks:
        others = first.setdefault(number, mine)
        for name, (shape, projection, norm) in mine.items():
            wanted, expected, size = others.get(name, [shape, projection, norm])
            if shape != wanted or abs(projection - expected) > _ALIKE * max(norm, size):
                raise ArgumentError(
                    f"{name}: the ranks of one model have different tensors here, of the shapes {shape_text(tuple(wanted))} and "
                    f"{shape_text(tuple(shape))}: each holds a part, and nothing says how they are put together. Leave it out by "
                    "exclude=, and take the layer before it or behind it"
                )
