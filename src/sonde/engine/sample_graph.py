"""Tell whether a batch is a graph, whose samples belong together: its nodes are mixed on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from types import CellType
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine.structure import is_floating


def holds_graph(model: nn.Module, tensors: Sequence[Tensor], samples: int) -> bool:
    """Return whether the batch, the model or what its forward reads holds a matrix of *samples* by *samples*, or edges.

    Args:
        model: is given the batch.
        tensors: of the batch.
        samples: how many it has.
    """
    held: list[Any] = list(tensors) if len(tensors) > 1 else []
    for module in model.modules():
        forward = type(module).forward
        cells = [cell.cell_contents for cell in getattr(forward, "__closure__", None) or () if cell != CellType()]
        names = getattr(getattr(forward, "__code__", None), "co_names", ())
        read = [value for name, value in getattr(forward, "__globals__", {}).items() if name in names]
        weights = {each.shape for each in module.parameters(recurse=False)}  # a mask of one, and what is made of it, are no graphs
        own = [*module.buffers(recurse=False), *vars(module).values()]
        held += [each for each in own if isinstance(each, Tensor) and each.shape not in weights] + cells + read
    found = [each for each in held if isinstance(each, Tensor)]
    is_list = any(each.dim() == 2 and 2 in each.shape and samples not in each.shape and not is_floating(each) for each in tensors)
    square = (samples, samples)
    return is_list or any(each.layout != torch.strided or (each.dim() == 2 and tuple(each.shape) == square) for each in found)
