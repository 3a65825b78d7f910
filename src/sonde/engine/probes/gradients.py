"""Collect the gradients of all tensors of one module call, until all that will come have come.

Torch's module backward hooks wrap a module's output in a view, which makes in-place operations raise and loses dicts and
dataclasses. A hook on the tensor itself changes nothing. But an output of several tensors gets its gradients one at a time, and
some never. The engine runs autograd nodes in descending order of their sequence numbers: once the engine is below a tensor's
node, that tensor will get no gradient in this pass. Gradients still missing then wait for the end of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from sonde.engine.clock.forward import Forward
from sonde.engine.torch_api import hooks
from sonde.engine.torch_api.autograd_state import current_node, graph_task, sequence_of_node


def sequence_of(tensor: Tensor) -> int | None:
    """Return the sequence number of the node that made *tensor*: 0 for a leaf, None if the tensor gets no gradient."""
    if not tensor.requires_grad:
        return None
    return 0 if tensor.grad_fn is None else sequence_of_node(tensor.grad_fn)


class Receiver(Protocol):
    """Takes the gradients of one module call."""

    def receive(self, collector: GradientCollector) -> None: ...
    def failed(self, error: Exception) -> None: ...


class GradientCollector:
    """The gradients of several tensors of one module call.

    Attributes:
        forward, call: the module call.
        context: for the receiver, which makes an event of it.
        gradients: by tensor; None where none has come.
    """

    __slots__ = ("_lowest", "_pending", "_receiver", "_sequence", "_task", "call", "context", "forward", "gradients")

    def __init__(
        self, receiver: Receiver, pending: Pending, forward: Forward, call: int, context: Any, sequence: list[int | None]
    ) -> None:
        self._receiver = receiver
        self._pending = pending
        self.forward = forward
        self.call = call
        self.context = context
        self._sequence = sequence  # of each tensor's node; None for a tensor that cannot get a gradient
        self._task = -1
        self._lowest = -1
        self.gradients: list[Tensor | None] = [None] * len(sequence)

    def arrive(self, index: int, gradient: Tensor) -> None:
        """Take the gradient of the tensor at *index*."""
        try:
            self._arrive(index, gradient)
        except Exception as error:
            self._receiver.failed(error)

    def _arrive(self, index: int, gradient: Tensor) -> None:
        task = graph_task()
        if task != self._task:  # a first arrival, also when the same graph runs backward a second time
            self._task = task
            self.gradients = [None] * len(self._sequence)
            self._pending.add(self, task)
        self.gradients[index] = gradient
        self._update_lowest()
        if self._lowest < 0 or self.is_passed(sequence_of_node(current_node())):
            self._pending.discard(self, task)
            self.deliver()

    def _update_lowest(self) -> None:
        """Find the lowest sequence number among tensors still without a gradient; -1 if none is left."""
        left = [
            number
            for number, gradient in zip(self._sequence, self.gradients, strict=True)
            if gradient is None and number is not None
        ]
        self._lowest = min(left) if left else -1

    def is_passed(self, sequence: int) -> bool:
        """Return whether the engine, now at *sequence*, will reach none of the tensors that are left."""
        return self._lowest > sequence

    def deliver(self) -> None:
        """Hand the gradients that have come to the receiver."""
        self._task = -1
        try:
            self._receiver.receive(self)
        except Exception as error:
            self._receiver.failed(error)
        self.gradients = [None] * len(self._sequence)


class _OpenPass:
    """The incomplete collectors of one backward pass."""

    __slots__ = ("by_key", "open")

    def __init__(self) -> None:
        self.open: list[GradientCollector] = []
        self.by_key: dict[Hashable, GradientCollector] = {}


class Pending:
    """The incomplete collectors of one probe, by backward pass.

    Passes run inside each other (a reentrant checkpoint) and beside each other (threads); their sequence numbers do not compare.
    """

    __slots__ = ("passes",)

    def __init__(self) -> None:
        self.passes: dict[int, _OpenPass] = {}

    def _of_task(self, task: int) -> _OpenPass:
        known = self.passes.get(task)
        if known is None:
            while len(self.passes) >= _MOST_PASSES:  # left by passes that raised
                self.passes.pop(next(iter(self.passes)), None)
            known = self.passes[task] = _OpenPass()
            hooks.after_backward(partial(self._finish, task))
        return known

    def add(self, collector: GradientCollector, task: int) -> None:
        """Keep *collector* until it is complete, or the backward pass *task* has passed its tensors."""
        self._of_task(task).open.append(collector)

    def of(self, key: Hashable, make: Callable[[], GradientCollector]) -> GradientCollector:
        """Return the collector known as *key* in the running backward pass, made if there is none."""
        by_key = self._of_task(graph_task()).by_key
        if key not in by_key:
            by_key[key] = make()
        return by_key[key]

    def discard(self, collector: GradientCollector, task: int) -> None:
        """Drop *collector*, which is complete."""
        known = self.passes.get(task)
        if known is not None:
            known.open = [held for held in known.open if held is not collector]

    def advance(self) -> None:
        """Deliver collectors whose tensors the engine has passed; called when any gradient arrives."""
        known = self.passes.get(graph_task())
        if known is None or not known.open:
            return
        sequence = sequence_of_node(current_node())
        passed = [collector for collector in known.open if collector.is_passed(sequence)]
        if passed:
            known.open = [collector for collector in known.open if collector not in passed]
            for collector in passed:
                collector.deliver()

    def _finish(self, task: int) -> None:
        known = self.passes.pop(task, None)
        for collector in known.open if known is not None else ():
            collector.deliver()


_MOST_PASSES = 16
