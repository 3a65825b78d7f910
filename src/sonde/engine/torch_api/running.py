"""What runs in this thread now, as the Python frames show. Exact at any moment, and slow: for rare questions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

__all__ = ["modules_running", "nodes_running"]

_CALL = nn.Module._call_impl.__code__
_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__


def modules_running() -> list[nn.Module]:
    """The modules whose calls run in this thread, the outermost first; one that calls itself comes several times."""
    return [frame.f_locals["self"] for frame in _frames() if frame.f_code is _CALL][::-1]


def nodes_running() -> list[Any]:
    """The nodes of the graph whose backward is written in Python and runs, the innermost first.

    A reentrant checkpoint is one: a backward pass that runs while it does is a part of another.
    """
    return [frame.f_locals["self"] for frame in _frames() if frame.f_code is _BACKWARD]


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
