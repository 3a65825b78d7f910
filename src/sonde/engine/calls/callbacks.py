"""Callbacks of a module tracker: as calls begin and end, forward and backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from sonde.engine import structure
from sonde.engine.calls.call_log import Call, ModuleCall
from sonde.engine.calls.thread_state import ThreadState
from sonde.engine.failures import ProbeError, name_of, warn_user
from sonde.engine.torch_api import hooks

__all__ = ["Callback", "Callbacks", "Crossing", "weak"]

Callback = Callable[[ModuleCall], object]
Crossing = Literal["enter", "leave", "enter_backward", "leave_backward"]
_IN_BACKWARD = ("enter_backward", "leave_backward")


class Callbacks:
    """The callbacks, by what they are called at; none after one of them has failed."""

    def __init__(self, callbacks: dict[Crossing, Callback | None], *, strict: bool) -> None:
        self._callbacks = {crossing: callback for crossing, callback in callbacks.items() if callback is not None}
        self._strict = strict
        self.errors: list[ProbeError] = []
        self.are_wanted = bool(self._callbacks)

    def begin(self, call: Call, args: Any, border: Callable[[Any], None]) -> None:
        """A forward begins."""
        self._watch(args, border)
        self.tell("enter", call)

    def end(self, call: Call, output: Any, border: Callable[[Any], None]) -> None:
        """A forward ends."""
        self._watch(output, border)
        self.tell("leave", call)

    def tell(self, crossing: Crossing, call: Call) -> None:
        """Call the callback for *crossing*, if there is one."""
        callback = self._callbacks.get(crossing)
        if callback is None:
            return
        told = call.told()
        try:
            callback(told)
        except Exception as error:
            if self._strict:
                raise
            self.errors.append(ProbeError.of(name_of(callback), None, error))
            self._callbacks.clear()
            self.are_wanted = False
            warn_user(
                f"{crossing}={name_of(callback)} raised {type(error).__name__} at {told.name}: {error}. "
                "Tracking goes on; no callback is called any more. See errors; strict=True raises."
            )

    def _watch(self, value: Any, border: Callable[[Any], None]) -> None:
        """Hear when the backward pass comes to the tensors of *value*, which stand at the border of a module."""
        if torch.is_grad_enabled() and not self._callbacks.keys().isdisjoint(_IN_BACKWARD):
            for _, leaf in structure.walk(value):
                if leaf.grad_fn is not None:
                    hooks.on_node(leaf.grad_fn, border)

    def move(self, state: ThreadState, calls: list[Call]) -> None:
        """The backward pass of *state*'s thread has come from the calls it was in to these."""
        before, state.in_backward = state.in_backward, calls
        shared = 0
        while shared < min(len(before), len(calls)) and before[shared] is calls[shared]:
            shared += 1
        for call in reversed(before[shared:]):
            self.tell("leave_backward", call)
        for call in calls[shared:]:
            self.tell("enter_backward", call)


def weak(method: Callable[[], None]) -> Callable[[Any], None]:
    """A hook that calls *method* as long as its object lives; nodes of the graph may outlive it."""
    held = weakref.WeakMethod(method)

    def hook(gradients: Any) -> None:
        alive = held()
        if alive is not None:
            alive()

    return hook
