"""Count backward passes that accumulate into parameters of one root: its micro-steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine.clock.counters import Counters
from sonde.engine.inventory import Inventory, inventory_of
from sonde.engine.torch_api import compiler_state, hooks
from sonde.engine.torch_api.autograd_state import graph_task, has_substituted_parameters, is_nested_pass
from sonde.engine.torch_api.modules import parameters_in
from sonde.engine.unseen import blocks

_is_traced = compiler_state.is_traced


class _Hooked(dict[int, tuple[weakref.ref[nn.Parameter], hooks.Handle]]):
    """By the id of a parameter, a reference to it and the handle of its hook."""


class BackwardCounter:
    """A hook on each parameter of the root, and the count of backward passes that these hooks have seen.

    Attributes:
        count: backward passes that wrote a ``.grad``, since the clock began.
        after: called after each such pass, while a probe observes.
        last_after: called after all these, also while none does.
        is_lazy: some parameters have no shape as yet, and so take no hook.
        left_gradients: the last of these passes has left gradients, and no optimizer of other parameters has stepped since.
    """

    def __init__(self, counters: Counters) -> None:
        self.count = 0
        self.after: list[Callable[[], None]] = []
        self.last_after: Callable[[], None] = lambda: None
        self.is_lazy = self.left_gradients = False
        self._counters = counters
        self._accumulates = _Accumulates(self)
        self._hook = hooks.Weak(self._accumulates)  # one for all parameters
        self._hooked = _Hooked()
        self._late: set[int] = set()  # hooked in the step that has not ended, perhaps after its gradients
        self._task = -1  # the backward pass that was seen last
        self._outer = -1  # the last one that was not part of another
        self._unfinished = False

    # Hooks

    def put_in(self) -> bool:
        """Put the hooks of all known parameters back in; return False if one of the parameters is gone."""
        complete = True
        for key, (parameter, handle) in tuple(self._hooked.items()):
            if parameter() is None or not handle.put_back(self._hook):
                self._hooked.pop(key, None)
                complete = False
        return complete

    def take_out(self) -> None:
        """Take every hook out. Idempotent."""
        self.watch(())

    def watch(self, parameters: Collection[int]) -> None:
        """Let hooks be in on *parameters* alone, which are given by their ids."""
        for key, (_, handle) in tuple(self._hooked.items()):
            if key in parameters:
                handle.put_back(self._hook)
            else:
                handle.remove()

    def sees(self, parameters: Collection[int]) -> bool:
        """Return whether gradients of *parameters*, given by their ids, were seen in this step; if not, see them from now on."""
        missing = [key for key in parameters if key not in self._hooked]
        root = self._counters.root()
        if self.count == 0:
            return False
        if missing and root is not None and any(p.requires_grad for p in parameters_in(root) if id(p) in missing):
            self.follow(inventory_of(root).parameters)
        return self._late.isdisjoint(parameters)

    def has_gradients(self) -> bool:
        """Return whether any of the known parameters has a gradient now."""
        return any((parameter := known()) is not None and parameter.grad is not None for known, _ in tuple(self._hooked.values()))

    def forget(self) -> None:
        """Forget all parameters; only after ``take_out``."""
        self._hooked = _Hooked()

    def leave(self, inventory: Inventory | None) -> None:
        """Take every hook out, forget all parameters, and leave the handles to a later counter of the same *inventory*."""
        self.take_out()
        if inventory is not None and not has_substituted_parameters():
            inventory.keep(self._hooked)
        self.forget()

    def begin_with(self, inventory: Inventory) -> None:
        """Put hooks on all parameters of *inventory* that need a gradient: where a former counter has left handles, by these."""
        parameters = inventory.parameters
        if not self._hooked and (left := inventory.take(_Hooked, lambda _: True)) is not None:
            self._hooked = left
            hook, unusable = self._hook, []
            for key, (reference, handle) in left.items():
                parameter = reference()
                usable = parameter is not None and parameter.requires_grad and parameter.is_leaf
                if parameter is None or not (usable and handle.is_on(parameter) and handle.put_back(hook)):
                    unusable.append(key)
            for key in unusable:
                del left[key]
            self._late.update(left)
            if left.keys() >= set(map(id, parameters)):  # each is hooked, and so has a shape
                self.is_lazy = False
                return
        self.follow(parameters)

    def follow(self, parameters: Collection[nn.Parameter]) -> None:
        """Put hooks on those of the root's *parameters* that have come, or need a gradient by now.

        Does nothing inside a ``functional_call``, where modules hold other tensors than their parameters.
        """
        if has_substituted_parameters():
            return
        hooked, hook = self._hooked, self._hook
        self.is_lazy = False
        for parameter in parameters:
            given: Any = parameter
            if is_lazy(given):
                self.is_lazy = True
            elif parameter.requires_grad and parameter.is_leaf:
                known = hooked.get(id(parameter))
                if known is None or known[0]() is not parameter:
                    self._late.add(id(parameter))
                    hooked[id(parameter)] = weakref.ref(parameter), hooks.on_accumulated(parameter, hook)

    # Passes

    def begin(self) -> None:
        """A gradient was accumulated into a parameter: count the running backward pass when it ends. Idempotent."""
        task = graph_task()
        if task in (self._task, -1):
            return
        self._task = task
        if is_nested_pass():
            self._unfinished = True  # a part of another pass, whose end cannot be seen from here
        elif task != self._outer:
            self._outer = task
            hooks.after_backward(self._after_reduction)

    def _after_reduction(self) -> None:
        """Call ``_end_pass`` after what others have queued, as DDP, which then puts the mean over all ranks into ``.grad``."""
        hooks.after_backward(self._end_pass)

    def _end_pass(self) -> None:
        """Count the backward pass that has ended; what raises here does not leave the user's backward pass."""
        try:
            self._end()
        except Exception as error:
            self._counters.failed(error)

    def count_checkpointed(self) -> None:
        """Count a backward pass that was only seen from inside checkpoints, if no backward pass runs now."""
        if self._unfinished and graph_task() == -1:
            self._end()

    def end_open(self) -> None:
        """Count a backward pass that was only seen from inside checkpoints: the one that runs now is another."""
        if self._unfinished:
            self._end()
            self._task = -1

    def end_step(self) -> None:
        """Leave a pass that was not finished to the step that has ended."""
        self._unfinished = False
        self._late.clear()

    def _end(self) -> None:
        self._unfinished = False
        counters = self._counters
        counters.has_begun = True
        counters.micro_step += 1
        counters.stamp += 1
        self.count += 1
        self.left_gradients = self.has_gradients()
        for callback in tuple(self.after) if counters.is_observed else ():
            callback()
        self.last_after()


class _Accumulates(hooks.Hook):
    """The post-accumulate hook of every parameter of the root."""

    __slots__ = ("counter",)

    def __init__(self, counter: BackwardCounter) -> None:
        self.counter = counter

    def __call__(self, parameter: Tensor) -> None:
        counter = self.counter
        if counter._task != graph_task() and not _is_traced() and not (blocks and counter._counters.is_quiet(parameter)):
            try:
                counter.begin()
            except Exception as error:
                counter._counters.failed(error)
