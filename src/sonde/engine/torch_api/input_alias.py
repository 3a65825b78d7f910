"""Make aliases of a module's inputs, whose gradients are those through this module alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def alias(tensor: Tensor) -> Tensor:
    """Return *tensor* as one more node of the graph, so that the node's gradient is that of one consumer alone."""
    return torch.ops.aten.alias.default(tensor) if tensor.requires_grad and not tensor.is_nested else tensor


def aliased_in_trace(value: Any) -> tuple[Any, Any]:
    """Return *value* with an alias of every tensor in plain containers; and a second time with None for all other parts.

    Gradients may be listened to in the second value only: a tensor without an alias has other consumers as well.
    """
    if isinstance(value, Tensor):
        one = alias(value)
        return one, one
    if type(value) is tuple or type(value) is list:
        pairs = [aliased_in_trace(item) for item in value]
        return type(value)([given for given, _ in pairs]), type(value)([seen for _, seen in pairs])
    if type(value) is dict:
        found = {key: aliased_in_trace(item) for key, item in value.items()}
        return {key: pair[0] for key, pair in found.items()}, {key: pair[1] for key, pair in found.items()}
    return value, None


def of_inputs(leaves: tuple[tuple[str, Tensor], ...]) -> tuple[tuple[str, Tensor], ...]:
    """Return paths in ``(args, kwargs)`` as paths of the arguments: ``[0][2]`` as ``[2]``, ``[1]['mask']`` as ``['mask']``."""
    return tuple((path[3:], tensor) for path, tensor in leaves)
