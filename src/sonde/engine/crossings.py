"""Callbacks of a module tracker: as calls begin and end, forward and backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

from sonde.engine import hooks, structure
from sonde.engine.passage import Call, ModuleCall, ThreadState
from sonde.engine.trouble import ProbeError, name_of, warn_user

__all__ = ["Callback", "Crossing", "Crossings", "weak"]

Callback = Callable[[ModuleCall], object]
Crossing = Literal["enter", "leave", "enter_backward", "leave_backward"]


class Crossings:
    """The callbacks, by what they are called at; none after one of them has failed."""

    def __init__(self, callbacks: dict[Crossing, Callback | None], *, strict: bool) -> None:
        self._callbacks = {crossing: callback for crossing, callback in callbacks.items() if callback is not None}
        self._strict = strict
        self.errors: list[ProbeError] = []
        self._choose()

    def _choose(self) -> None:
        self.in_forward = bool({"enter", "leave"} & set(self._callbacks))
        self.in_backward = bool({"enter_backward", "leave_backward"} & set(self._callbacks))

    def tell(self, crossing: Crossing, call: Call) -> None:
        """Call the callback for *crossing*, if there is one."""
        callback, told = self._callbacks.get(crossing), call.told()
        if callback is None or told is None:
            return
        try:
            callback(told)
        except Exception as error:
            if self._strict:
                raise
            self.errors.append(ProbeError.of(name_of(callback), None, error))
            self._callbacks.clear()
            self._choose()
            warn_user(
                f"{crossing}={name_of(callback)} raised {type(error).__name__} at {told.name}: {error}. "
                "Tracking goes on; no callback is called any more. See errors; strict=True raises."
            )

    def watch(self, value: Any, hook: Callable[[Any], None]) -> None:
        """Hear when the backward pass comes to the tensors of *value*, which stand at the border of a module."""
        for _, leaf in structure.walk(value):
            if leaf.grad_fn is not None:
                hooks.on_node(leaf.grad_fn, hook)

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
