"""One call of a root module: the calls of each module within it, and which call a recomputation repeats."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import nn

from sonde.engine.torch_api import autograd_state, hooks
from sonde.schedule import Tick
from sonde.stats import Piece

_is_grad_enabled = torch.is_grad_enabled
_saved_tensor_hooks = autograd_state.saved_tensor_hooks


class Forward:
    """One call of the root: its tick, the calls of each module within it, and the tensors whose gradients are listened to.

    Attributes:
        index: which call of the root, from 0.
        tick, stamp: the tick that events of this forward have, and the clock's stamp when the tick was made.
        began: the clock's stamp when the forward began.
        calls: by hook, how many calls of its module have been.
        entered: by hook, the calls that have begun and not ended, innermost last; kept where beginnings are seen.
        running: parents of shared modules that run, each with the calls that hooks have seen in it; see ``aliases.py``.
        recording: gradients are enabled; without them no checkpoint is in the forward.
        training: the root is in training mode with gradients enabled.
        is_on_ranks: distributed tensors may pass.
        may_be_recorded: the root does not run, or what it computes is written down: at a module call it has to be asked.
        watched: hooks on tensors, by the ids of these; emptied when the next forward begins.
    """

    __slots__ = (
        "_calls_in_checkpoints",
        "_repeated",
        "_repeated_calls",
        "began",
        "calls",
        "entered",
        "index",
        "is_on_ranks",
        "may_be_recorded",
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
        self.stamp = self.began = stamp
        self.calls: dict[hooks.Hook, int] = {}
        self.running: list[tuple[nn.Module, dict[hooks.Hook, int]]] = []
        self.entered: dict[hooks.Hook, list[int]] = {}
        self.recording = torch.is_grad_enabled()
        self.training = training and self.recording
        self.is_on_ranks = Piece.may_come()
        self.may_be_recorded = True
        self.watched: dict[int, hooks.GradientHooks] = {}
        self._repeated: tuple[int, Hashable] = (-1, None)  # the backward pass and the checkpoint that it repeats
        self._repeated_calls: dict[hooks.Hook, int] = {}  # by hook, how many calls it has repeated
        self._calls_in_checkpoints: dict[hooks.Hook, list[tuple[int, Hashable]]] = {}

    def call_of(self, hook: hooks.Hook, task: int) -> int:
        """Return the index of the module call that *hook* sees now.

        *task* is the backward pass that recomputes the call; -1 in a forward.
        """
        if task != -1:
            return self.repeated_call(hook, task)
        call = self.calls.get(hook, 0)
        self.calls[hook] = call + 1
        if self.recording:
            self.note_checkpoint(hook, call)
        return call

    def note_checkpoint(self, hook: hooks.Hook, call: int) -> None:
        """If *call* is made inside an activation checkpoint, remember in which."""
        if _is_grad_enabled() and _saved_tensor_hooks(True) is None:
            return  # as in most calls: no checkpoint is made, of either kind
        checkpoint = autograd_state.checkpoint_made()
        if checkpoint is not None:
            self._calls_in_checkpoints.setdefault(hook, []).append((call, checkpoint))

    def repeated_call(self, hook: hooks.Hook, task: int) -> int:
        """Return the index of the call that *hook* sees again while the backward pass *task* recomputes a checkpoint."""
        checkpoint = autograd_state.checkpoint_repeated()[0]
        if self._repeated != (task, checkpoint):
            self._repeated = (task, checkpoint)
            self._repeated_calls.clear()
        count = self._repeated_calls.get(hook, 0)
        self._repeated_calls[hook] = count + 1
        made = [call for call, inside in self._calls_in_checkpoints.get(hook, ()) if inside == checkpoint]
        return made[count % len(made)] if made else count
