"""One call of a root module: what is counted within it, and which call a recomputation repeats."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sonde.engine import hooks
from sonde.engine.event import Tick

if TYPE_CHECKING:
    from sonde.engine.backward import Watch

__all__ = ["Forward", "checkpoint_made_in", "checkpoint_recomputed"]

_sequence_now: Callable[[], int] = torch._C._autograd._get_sequence_nr
_saved_tensor_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks


class Forward:
    """One call of the root: its tick, the calls of each module within it, and the tensors watched for gradients."""

    __slots__ = (
        "_marks",
        "_recall_key",
        "calls",
        "entered",
        "index",
        "recalls",
        "recording",
        "running",
        "stamp",
        "tick",
        "training",
        "watched",
    )

    def __init__(self, index: int, tick: Tick, stamp: int, *, training: bool = True) -> None:
        self.index = index
        self.tick = tick
        self.stamp = stamp  # of the clock when the tick was made
        self.calls: dict[hooks.Hook, int] = {}
        self.recalls: dict[hooks.Hook, int] = {}  # the same, while one node of a backward pass recomputes
        self.running: list[tuple[nn.Module, dict[hooks.Hook, int]]] = []  # parents of shared modules, see aliases.py
        self.entered: dict[hooks.Hook, list[int]] = {}  # calls that have begun, innermost last, where beginnings are seen
        self.recording = torch.is_grad_enabled()  # otherwise no checkpoint can be in it
        self.training = training and self.recording
        self._recall_key: tuple[int, Hashable] = (-1, None)
        self._marks: dict[hooks.Hook, list[tuple[int, Hashable]]] = {}
        self.watched: dict[int, Watch] = {}  # by id of the tensor; emptied when the next one begins

    def call_of(self, hook: hooks.Hook, task: int) -> int:
        """The index of the module call that *hook* sees now, in the backward pass *task* if that recomputes (else -1)."""
        if task != -1:
            return self.recall_of(hook, task)
        call = self.calls.get(hook, 0)
        self.calls[hook] = call + 1
        if self.recording:
            self.mark(hook, call)
        return call

    def mark(self, hook: hooks.Hook, call: int) -> None:
        """If this call is made inside an activation checkpoint, remember in which."""
        checkpoint = checkpoint_made_in()
        if checkpoint is not None:
            self._marks.setdefault(hook, []).append((call, checkpoint))

    def recall_of(self, hook: hooks.Hook, task: int) -> int:
        """The index of the call that *hook* sees again while the backward pass *task* recomputes a checkpoint."""
        checkpoint = checkpoint_recomputed()
        if self._recall_key != (task, checkpoint):
            self._recall_key = (task, checkpoint)
            self.recalls.clear()
        recall = self.recalls.get(hook, 0)
        self.recalls[hook] = recall + 1
        made = [call for call, inside in self._marks.get(hook, ()) if inside == checkpoint]
        return made[recall % len(made)] if made else recall


# Which checkpoint a module call is part of. The non-reentrant kind keeps a frame, which both its hooks on saved tensors hold.
# The reentrant kind runs its part of the forward without gradients, so that all calls in it are made at the sequence
# number after that of its node, which is the node that recomputes them.


def checkpoint_made_in() -> Hashable:
    """What names the activation checkpoint that a module called now is part of; None outside one."""
    if not torch.is_grad_enabled():
        return "node", _sequence_now()
    return _frame_of_saved_tensors()


def checkpoint_recomputed() -> Hashable:
    """What names the activation checkpoint that is recomputed now; only inside a backward pass."""
    frame = _frame_of_saved_tensors()
    if frame is not None:
        return frame
    node = torch._C._current_autograd_node()
    return "node", node._sequence_nr() + 1 if node is not None else -1  # type: ignore[redundant-expr]  # there may be none


def _frame_of_saved_tensors() -> Hashable:
    """What names the non-reentrant checkpoint whose hooks on saved tensors are active, if one's are."""
    active = _saved_tensor_hooks(True)
    if active is None:
        return None
    pack = getattr(active[0], "_torchdynamo_orig_callable", active[0])
    code = getattr(pack, "__code__", None)
    if code is None:
        return None
    held = {name: cell.cell_contents for name, cell in zip(code.co_freevars, pack.__closure__ or (), strict=False)}
    frame = held["target_frame_ref"]() if "target_frame_ref" in held else held.get("frame")
    return None if frame is None else ("frame", id(frame))
