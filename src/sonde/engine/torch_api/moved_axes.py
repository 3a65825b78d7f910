"""Follow the elements of a tensor through operations that only move them, from what autograd keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sonde.engine.torch_api import graph_nodes
from sonde.engine.torch_api.graph_nodes import Node

MOVES = (*graph_nodes.MOVES, "Add", "Clamp", "ClampMin")
"""Operations that change shape, order or type, or add a number."""
ELEMENTS = 1 << 20
"""Elements of a tensor, at most, whose places are followed."""
CLASSES_LAST = (
    "move the classes to the last axis before the view: permute(0, 2, 3, 1) or transpose(1, 2), then reshape(-1, classes)"
)
"""What to do where :func:`mixes_classes`."""


def made_of(node: Node) -> list[Node]:
    """Return the operations that an operation takes the results of, and no leaf beside them, as a bias is."""
    before = graph_nodes.sources_of(node)
    return [each for each in before if graph_nodes.leaf_of(each) is None] if len(before) > 1 else before


def moved(moves: Sequence[Node], places: Tensor | None) -> Tensor | None:
    """Return *places* as operations have moved them, the last of *moves* first; None where torch does not say how."""
    for move in reversed(moves):
        places = None if places is None else graph_nodes.moved(move, places)
    return places


def mixes_classes(softmax: Node) -> bool:
    """Return whether a *softmax* over classes is given what a view has made of other axes than those of classes.

    A Linear makes the classes along the last axis, a convolution along the second.
    """
    moves, node = [], softmax
    while len(before := made_of(node)) == 1:
        (node,) = before
        if graph_nodes.operation_of(node) not in (*MOVES, "Slice"):
            break
        moves.append(node)
    else:
        return False
    made, name, axis = graph_nodes.shape_of(node), graph_nodes.operation_of(node), graph_nodes.axis_of(softmax)
    if name not in ("Addmm", "Mm", "Convolution") or not moves or axis is None or not 1 < math.prod(made) <= ELEMENTS:
        return False
    classes = 1 if name == "Convolution" else len(made) - 1
    places = moved(moves, torch.arange(math.prod(made), device="cpu").reshape(made))
    if places is None:
        return False
    apart, rows = math.prod(made[classes + 1 :]), places.movedim(axis, -1).flatten(0, -2)
    label = rows // apart % made[classes]
    place = rows - label * apart  # a pointer takes one class of all places, and a head for several boxes some classes of one place
    return bool(((label != label[:, :1]).any(1) & (place != place[:, :1]).any(1)).any())
