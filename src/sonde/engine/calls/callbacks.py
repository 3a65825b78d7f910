"""Call the callbacks of a module tracker as calls begin and end, forward and backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from sonde.engine import structure
from sonde.engine.calls.call_log import Call, ModuleCall
from sonde.engine.calls.thread_state import ThreadState
from sonde.engine.failures import ProbeError, name_of, raise_if_foreign
from sonde.engine.torch_api import hooks
from sonde.warn import warn_user

Callback = Callable[[ModuleCall], object]
Moment = Literal["enter", "leave", "enter_backward", "leave_backward"]
_IN_BACKWARD = ("enter_backward", "leave_backward")


class Callbacks:
    """The callbacks by the moment of their call; none after one of them has failed.

    Attributes:
        strict: raise what a callback raises.
        errors: what a callback raised.
        are_any: there are callbacks.
    """

    def __init__(self, callbacks: dict[Moment, Callback | None], *, strict: bool) -> None:
        self._callbacks = {moment: callback for moment, callback in callbacks.items() if callback is not None}
        self.strict = strict
        self.errors: list[ProbeError] = []
        self.are_any = bool(self._callbacks)

    def begin(self, call: Call, args: Any, border: Callable[[Any], None]) -> None:
        """Call ``enter``, and see when the backward pass comes to the tensors of *args*: call *border* then."""
        self._watch(args, border)
        self.call("enter", call)

    def end(self, call: Call, output: Any, border: Callable[[Any], None]) -> None:
        """Call ``leave``, and see when the backward pass comes to the tensors of *output*: call *border* then."""
        self._watch(output, border)
        self.call("leave", call)

    def call(self, moment: Moment, call: Call) -> None:
        """Call the callback for *moment* with *call*, if there is one."""
        callback = self._callbacks.get(moment)
        if callback is None:
            return
        shown = call.for_people()
        try:
            callback(shown)
        except Exception as error:
            raise_if_foreign(error)
            if self.strict:
                raise
            self.stop(error, callback)
            warn_user(
                f"{moment}={name_of(callback)} raised {type(error).__name__} at {shown.name}: {error}. "
                "Tracking goes on; no callback is called any more. See errors; strict=True raises."
            )

    def stop(self, error: Exception, observer: object) -> None:
        """Call no callback any more, since *observer* has raised *error*."""
        self.errors.append(ProbeError.of(name_of(observer), None, error))
        self._callbacks.clear()
        self.are_any = False

    def _watch(self, value: Any, border: Callable[[Any], None]) -> None:
        """Call *border* when a backward pass comes to the tensors of *value*, which stand at the border of a module."""
        if torch.is_grad_enabled() and not self._callbacks.keys().isdisjoint(_IN_BACKWARD):
            for _, leaf in structure.walk(value):
                if leaf.grad_fn is not None:
                    hooks.on_node(leaf.grad_fn, border)

    def move(self, state: ThreadState, calls: list[Call]) -> None:
        """Call the callbacks between the calls whose backward ran in *state*'s thread, and *calls*, whose backward runs now."""
        before, state.in_backward = state.in_backward, calls
        shared = 0
        while shared < min(len(before), len(calls)) and before[shared] is calls[shared]:
            shared += 1
        for call in reversed(before[shared:]):
            self.call("leave_backward", call)
        for call in calls[shared:]:
            self.call("enter_backward", call)


def weak(method: Callable[[], None]) -> Callable[[Any], None]:
    """Return a hook that calls *method* while its object lives; nodes of the graph may live longer."""
    held = weakref.WeakMethod(method)

    def hook(gradients: Any) -> None:
        alive = held()
        if alive is not None:
            alive()

    return hook
