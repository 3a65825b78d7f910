"""Gradients of tensors: one hook per tensor, parents before children, and one event for all tensors of an output.

Torch's module backward hooks wrap what a module returns in a view, which makes in-place operations raise and loses dicts
and dataclasses. A hook on the tensor itself changes nothing. Two things have to be made up for:

* A module that returns its last child's tensor shares it with the child. A ``Watch`` on the tensor holds all its
  listeners and calls them in reverse, so that the parent comes first, as the backward pass would meet it.
* An output of several tensors gets its gradients one at a time, and some never. ``GradientCollector`` collects those of one
  module call. The engine runs autograd nodes in descending order of their sequence numbers, so once it is below a
  tensor's node, that tensor will get no gradient in this pass; what is left waits for the end of the pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from sonde.engine.clock.forward import Forward
from sonde.engine.torch_api import hooks

__all__ = ["GradientCollector", "Pending", "Watch", "listen", "sequence_of"]

_graph_task: Callable[[], int] = torch._C._current_graph_task_id

Listener = Callable[[Tensor], None]

# A program that calls submodules without ever calling the root has no end of forward at which watches are let go.
_MOST_WATCHES = 4096


class Watch:
    """All that listen to the gradient of one tensor."""

    __slots__ = ("_tensor", "_version", "listeners")

    def __init__(self, tensor: Tensor, listener: Listener) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = tensor._version
        self.listeners = [listener]

    def is_on(self, tensor: Tensor) -> bool:
        """Whether this is the same tensor, not written to since (after which it is another one to autograd)."""
        return self._tensor() is tensor and self._version == tensor._version

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is not None:  # the engine says None for an output of a multi-output node that nothing used
            for listener in reversed(self.listeners):
                listener(gradient)


def sequence_of(tensor: Tensor) -> int | None:
    """The sequence number of the node that made *tensor*: 0 for a leaf, None if it gets no gradient."""
    if not tensor.requires_grad:
        return None
    return 0 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()


def listen(forward: Forward, tensor: Tensor, listener: Listener) -> None:
    """Call *listener* with each gradient of *tensor*, a result of some operation (not a leaf) in *forward*."""
    watched = forward.watched
    key = id(tensor)
    watch = watched.get(key)
    if watch is not None and watch.is_on(tensor):
        watch.listeners.append(listener)
        return
    watch = Watch(tensor, listener)
    hooks.on_result(tensor, watch)
    if len(watched) >= _MOST_WATCHES:
        watched.clear()
    watched[key] = watch


class Receiver(Protocol):
    """What takes the gathered gradients of one module call."""

    def gathered(self, gathering: GradientCollector) -> None: ...


class GradientCollector:
    """The gradients of several tensors of one module call, until all that will come have come."""

    __slots__ = ("_lowest", "_pending", "_receiver", "_sequence", "_task", "call", "context", "forward", "gradients")

    def __init__(
        self, receiver: Receiver, pending: Pending, forward: Forward, call: int, context: Any, sequence: list[int | None]
    ) -> None:
        self._receiver = receiver
        self._pending = pending
        self.forward = forward
        self.call = call
        self.context = context  # whatever the receiver needs to make an event of it
        self._sequence = sequence  # of each tensor's node; None for a tensor that cannot get a gradient
        self._task = -1
        self._lowest = -1
        self.gradients: list[Tensor | None] = [None] * len(sequence)

    def arrive(self, index: int, gradient: Tensor) -> None:
        """The gradient of the tensor at *index* has come."""
        task = _graph_task()
        if task != self._task:  # a first arrival, also when the same graph runs backward a second time
            self._task = task
            self.gradients = [None] * len(self._sequence)
            self._pending.add(self, task)
        self.gradients[index] = gradient
        self._update_lowest()
        if self._lowest < 0 or self.is_passed(torch._C._current_autograd_node()._sequence_nr()):
            self._pending.discard(self, task)
            self.deliver()

    def _update_lowest(self) -> None:
        """The lowest sequence number among tensors still without a gradient; -1 if none is left."""
        left = [
            number
            for number, gradient in zip(self._sequence, self.gradients, strict=True)
            if gradient is None and number is not None
        ]
        self._lowest = min(left) if left else -1

    def is_passed(self, sequence: int) -> bool:
        """Whether the engine, now at *sequence*, will reach none of the tensors that are left."""
        return self._lowest > sequence

    def deliver(self) -> None:
        """Hand over what has come."""
        self._task = -1
        self._receiver.gathered(self)
        self.gradients = [None] * len(self._sequence)


class _Pass:
    """What is incomplete in one backward pass."""

    __slots__ = ("by_key", "open")

    def __init__(self) -> None:
        self.open: list[GradientCollector] = []
        self.by_key: dict[Hashable, GradientCollector] = {}


class Pending:
    """The gatherings of one probe that have begun and are not complete, by the backward pass they belong to.

    Passes run inside each other (a reentrant checkpoint) and beside each other (threads); their sequence numbers do not compare.
    """

    __slots__ = ("passes",)

    def __init__(self) -> None:
        self.passes: dict[int, _Pass] = {}

    def _of_task(self, task: int) -> _Pass:
        known = self.passes.get(task)
        if known is None:
            while len(self.passes) >= _MOST_PASSES:  # left by passes that raised
                self.passes.pop(next(iter(self.passes)), None)
            known = self.passes[task] = _Pass()
            hooks.after_backward(partial(self._finish, task))
        return known

    def add(self, gathering: GradientCollector, task: int) -> None:
        self._of_task(task).open.append(gathering)

    def of(self, key: Hashable, make: Callable[[], GradientCollector]) -> GradientCollector:
        """The gathering known as *key* in this backward pass, made if there is none."""
        by_key = self._of_task(_graph_task()).by_key
        if key not in by_key:
            by_key[key] = make()
        return by_key[key]

    def discard(self, gathering: GradientCollector, task: int) -> None:
        known = self.passes.get(task)
        if known is not None:
            known.open = [held for held in known.open if held is not gathering]

    def advance(self) -> None:
        """A gradient has arrived elsewhere: deliver what the engine has passed."""
        known = self.passes.get(_graph_task())
        if known is None or not known.open:
            return
        sequence = torch._C._current_autograd_node()._sequence_nr()
        passed = [gathering for gathering in known.open if gathering.is_passed(sequence)]
        if passed:
            known.open = [gathering for gathering in known.open if gathering not in passed]
            for gathering in passed:
                gathering.deliver()

    def _finish(self, task: int) -> None:
        known = self.passes.pop(task, None)
        for gathering in known.open if known is not None else ():
            gathering.deliver()


_MOST_PASSES = 16
