"""Read what autograd keeps of how a tensor was made: operations, shapes, axes and parameters. Reads no value."""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor

Node: TypeAlias = Any
"""A node of autograd's graph, which keeps its place behind a backward pass."""


def operation_of(node: Node) -> str:
    """Return the name of the operation, as ``MseLoss``; ``AccumulateGrad`` for a leaf."""
    name: str = node.name().rpartition("::")[2].rstrip("0123456789")
    return name.removesuffix("Backward")


def sources_of(node: Node) -> list[Node]:
    """Return the nodes of the tensors that the operation took, of those that have one."""
    return [each for each, _ in node.next_functions if each is not None]


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of the first tensor that the operation made; ``()`` where torch does not say it."""
    made: Any = getattr(node, "_input_metadata", ())
    return tuple(made[0].shape) if len(made) else ()


def axis_of(node: Node) -> int | None:
    """Return the axis along which a softmax runs, counted from the start; None where torch does not say it."""
    axis: int | None = getattr(node, "_saved_dim", None)
    if axis is None:
        return None
    return axis if axis < 1 << 32 else axis - (1 << 64) + len(shape_of(node))  # one below zero was kept without its sign


def leaf_of(node: Node) -> Tensor | None:
    """Return the leaf whose ``.grad`` the node writes; None for an operation."""
    held = getattr(node, "variable", None)
    return held if isinstance(held, Tensor) else None


def nodes_before(node: Node, most: float = math.inf, ends: Collection[Node] = ()) -> Iterator[Node]:
    """Yield *node* and what it was made of, the nearest first; nothing behind the first *most*, nor before one of *ends*."""
    seen, waiting = {node}, deque([node])
    while waiting and len(seen) <= most:
        yield (now := waiting.popleft())
        new = [each for each in sources_of(now) if each not in seen] if now not in ends else []
        seen.update(new)
        waiting += dict.fromkeys(new)


def sent_backward() -> list[Tensor]:
    """Return what ``torch.autograd.backward`` was given, whose backward pass runs now; nothing where no call of it is seen.

    On an accelerator the pass runs in threads of its own, and the one that called waits.
    """
    found = _given(sys._getframe())
    if found is None:
        others = sys._current_frames()
        del others[threading.get_ident()]  # this very frame, which would hold itself
        found = next((given for frame in others.values() if (given := _given(frame)) is not None), [])
    return found


def _given(frame: FrameType | None) -> list[Tensor] | None:
    """Return what the call of ``torch.autograd.backward`` was given that *frame* is in; None if it is in none."""
    while frame is not None and frame.f_code is not torch.autograd.backward.__code__:
        frame = frame.f_back
    if frame is None:
        return None
    given = frame.f_locals.get("tensors")
    return [each for each in (given if isinstance(given, tuple) else (given,)) if isinstance(each, Tensor)]
