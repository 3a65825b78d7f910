"""One call of a root module: what is counted within it, and which call a recomputation repeats."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import nn

from sonde.engine.event import Tick
from sonde.engine.torch_api import autograd_state, hooks

if TYPE_CHECKING:
    from sonde.engine.probes.gradients import Watch

__all__ = ["Forward"]


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
        checkpoint = autograd_state.made_in()
        if checkpoint is not None:
            self._marks.setdefault(hook, []).append((call, checkpoint))

    def recall_of(self, hook: hooks.Hook, task: int) -> int:
        """The index of the call that *hook* sees again while the backward pass *task* recomputes a checkpoint."""
        checkpoint = autograd_state.repeated()[0]
        if self._recall_key != (task, checkpoint):
            self._recall_key = (task, checkpoint)
            self.recalls.clear()
        recall = self.recalls.get(hook, 0)
        self.recalls[hook] = recall + 1
        made = [call for call, inside in self._marks.get(hook, ()) if inside == checkpoint]
        return made[recall % len(made)] if made else recall
