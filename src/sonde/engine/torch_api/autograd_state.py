"""Which activation checkpoint runs now: one that is made, or one that a backward pass repeats.

The non-reentrant kind keeps a frame, which its hooks on saved tensors hold: those that save, while it is made, and those that
recompute. The reentrant kind runs its part of the forward without gradients, so that all calls in it are made at the
sequence number after that of its node, which is the node that repeats them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch

__all__ = ["is_repeating", "made_in", "repeated"]

_current_node: Callable[[], Any] = torch._C._current_autograd_node
_is_grad_enabled = torch.is_grad_enabled
_saved_tensor_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
_sequence_now: Callable[[], int] = torch._C._autograd._get_sequence_nr


def made_in() -> Hashable | None:
    """What names the checkpoint that a module called now is part of; None outside one."""
    return _frame()[0] if _is_grad_enabled() else ("node", _sequence_now())


def repeated() -> tuple[Hashable, bool]:
    """What names the checkpoint that is repeated now, in a backward pass; and whether it is made meanwhile, inside another."""
    frame, is_made = _frame()
    if frame is not None:
        return frame, is_made
    node = _current_node()
    return ("node", -1 if node is None else node._sequence_nr() + 1), False


def is_repeating() -> bool:
    """Whether the backward pass that runs is repeating a part of the forward."""
    if _frame()[0] is not None:
        return True
    node = _current_node()
    return node is not None and node.name() == "CheckpointFunctionBackward"


def _frame() -> tuple[Hashable | None, bool]:
    """The frame of the non-reentrant checkpoint that runs, if one does, and whether it is being made."""
    hooks = _saved_tensor_hooks(True)
    if hooks is None:
        return None, False
    pack = getattr(hooks[0], "_torchdynamo_orig_callable", hooks[0])
    code = getattr(pack, "__code__", None)
    if code is None:
        return None, False
    held = {name: cell.cell_contents for name, cell in zip(code.co_freevars, pack.__closure__ or (), strict=False)}
    if "target_frame_ref" in held:
        return held["target_frame_ref"], False
    frame = held.get("frame")
    # by reference, and not by id, which the next one may get when this one is gone
    return (None, False) if frame is None else (weakref.ref(frame), True)
