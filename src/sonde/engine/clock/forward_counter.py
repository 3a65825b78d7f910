"""Count the calls of one root: two hooks on it, which see each forward begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sonde.engine.clock.backward_counter import BackwardCounter
from sonde.engine.clock.counters import Counters
from sonde.engine.inventory import inventory_of
from sonde.engine.torch_api import compiled, compiler_state, hooks, operators
from sonde.engine.torch_api.autograd_state import graph_task, is_shape_inference, modules_running
from sonde.engine.unseen import blocks, quiet

_is_recorded = compiler_state.is_recorded
_is_traced = compiler_state.is_traced
_trace_mark = compiled.trace_mark


class ForwardCounter:
    """The hooks that see a root's forwards begin and end.

    While no probe observes, only beginnings are counted.

    Attributes:
        returned: forwards that returned something.
        raised: the last forward did not return.
        is_compiled: the root was seen to be called as compiled code.
        before: called as each forward begins.
        after_first: called when a root whose parameters had no shape has returned.
        between: called before a forward begins, for the step that may have ended.
        at_rest: called, instead of all others, as a forward begins while no probe observes.
        arguments: called with the arguments of each forward that eager code begins, also while no probe observes.
        outputs: called with the output of each such forward; see ``take_outputs``.
    """

    def __init__(self, counters: Counters, backwards: BackwardCounter, at_rest: Callable[[], None]) -> None:
        self.returned = 0
        self.raised = False
        self.is_compiled = False
        self.before: list[Callable[[], None]] = []
        self.after_first: list[Callable[[], None]] = []
        self.between: Callable[[], None] = lambda: None
        self.at_rest = at_rest
        self.arguments: list[Callable[[Any, Any], None]] = []
        self.outputs: list[Callable[[Any], None]] = []
        self.counters = counters
        self._backwards = backwards
        self._ends = _ForwardEnd(self)
        self._begin: hooks.Handle | None = None
        self._end: hooks.Handle | None = None
        self._is_followed = False  # a probe needs the ends of forwards

    # Hooks

    def start(self, root: nn.Module) -> None:
        """Put the hook in that counts beginnings."""
        self.counters.local.depth = 0
        self._begin = hooks.on_forward_pre(root, _Begin(self), first=True)

    def follow(self, root: nn.Module) -> None:
        """See each forward end, too, up to ``rest``."""
        self._is_followed = True
        self._see_ends(root)

    def take_outputs(self, take: Callable[[Any], None]) -> None:
        """Call *take* with the output of each forward that returns to eager code, also while no probe observes. Idempotent."""
        root = self.counters.root()
        if root is not None and take not in self.outputs:
            self.outputs.append(take)
            self._see_ends(root)

    def take_no_more(self, take: Callable[..., None]) -> None:
        """Call *take* no more, neither with arguments nor with outputs. Idempotent."""
        for held in (self.arguments, self.outputs):
            callbacks: list[Any] = held
            if take in callbacks:
                callbacks.remove(take)
        self._see_no_ends()

    def _see_ends(self, root: nn.Module) -> None:
        if self._end is None or not self._end.put_back(self._ends):
            self._end = hooks.on_forward(root, self._ends, always=True)

    def _see_no_ends(self) -> None:
        """Take the hook out that sees forwards end, unless it is needed, or compiled code would notice and be compiled again."""
        if self._end is not None and not (self.outputs or self._is_followed or self.is_compiled):
            self._end.remove()

    def rest(self) -> None:
        """Count beginnings alone. Idempotent."""
        self._is_followed = False
        self._see_no_ends()
        local = self.counters.local
        local.depth = 0
        if local.forward is not None:
            local.forward.watched.clear()

    def stop(self) -> None:
        """Take both hooks out."""
        self.outputs.clear()
        self.rest()
        if self._end is not None:
            self._end.remove()
            self._end = None
        if self._begin is not None:
            self._begin.remove()
            self._begin = None

    # Forwards

    def look_for_inference(self) -> None:
        """Let nothing of the root be seen while a pipeline calls it to learn shapes, up to the next call of the root."""
        local, root = self.counters.local, self.counters.root()
        if local.silence is not None:
            local.silence.__exit__(None, None, None)
            local.silence = None
        if is_shape_inference() and root is not None:
            local.silence = quiet(root)
            local.silence.__enter__()

    def close_backward(self) -> None:
        """End what the last backward pass has left open, which may end a step, before a call of the root begins."""
        if not self.counters.local.depth:
            self._backwards.count_checkpointed()
            self.between()

    def begin(self) -> None:
        """Count a call of the root that begins, unless it runs inside another one."""
        counters = self.counters
        local = counters.local
        if local.depth and not _is_traced():
            root = counters.root()
            running = sum(module is root for module in modules_running())  # an interrupt may have kept one from ending
            local.depth = max(running - 1, 0)
        local.depth += 1
        if local.depth > 1:
            return
        counters.has_begun = True
        counters.look()
        for callback in tuple(self.before):
            callback()
        counters.forwards += 1
        if local.forward is not None:
            local.forward.watched.clear()  # its hooks refer to the forward: both would wait for the garbage collector
        local.forward = counters.new_forward()
        local.forward.may_be_recorded = not _is_traced() and _is_recorded()

    def end(self, *, returned: bool = True) -> None:
        """End a call of the root, which has returned or raised."""
        local = self.counters.local
        local.depth = max(local.depth - 1, 0)
        if local.depth == 0:
            if local.forward is not None:
                local.forward.may_be_recorded = True
            self.raised = not returned
            self.returned += returned
            if self._backwards.is_lazy and returned:
                root = self.counters.root()
                if root is not None:
                    self._backwards.follow(inventory_of(root).parameters)
                for callback in tuple(self.after_first):
                    callback()


class _Begin(hooks.Hook):
    """The root's forward pre-hook."""

    __slots__ = ("counter", "token")

    def __init__(self, counter: ForwardCounter) -> None:
        self.counter = counter
        self.token = operators.Token(self)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if _is_traced():
            _trace_mark(self.token)
        elif (compiler := hooks.compiler_at_work()) is not None:
            self.counter.is_compiled = True
            hooks.undisturbed(compiler, self._eager, args, kwargs)
        else:
            self._eager(args, kwargs)

    def _eager(self, args: Any, kwargs: Any) -> None:
        counter = self.counter
        counter.look_for_inference()
        if graph_task() != -1 or (blocks and counter.counters.is_quiet()):
            return  # checkpointing recomputes a call that was counted
        counter.close_backward()
        try:
            if counter.counters.is_observed:
                counter.begin()
            else:
                counter.at_rest()
            if counter.arguments and not _is_recorded():
                for take in tuple(counter.arguments):
                    take(args, kwargs)
        except Exception as error:
            counter.counters.failed(error)

    def failed(self, error: Exception) -> None:
        """Stop every observer of the root."""
        self.counter.counters.failed(error)

    def replay(self, leaves: list[Tensor], form: int, port: str) -> tuple[int, int]:
        """Count a call of the root that compiled code has begun."""
        if graph_task() == -1 and not (blocks and self.counter.counters.is_quiet()):
            self.counter.is_compiled = True
            self.counter.counters.local.depth = 0
            self.counter.close_backward()
            self.counter.begin()
        return 0, 0


class _ForwardEnd(hooks.Hook):
    """The root's forward hook, called also when the forward raised."""

    __slots__ = ("counter", "token")

    def __init__(self, counter: ForwardCounter) -> None:
        self.counter = counter
        self.token = operators.Token(self)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = hooks.NOT_GIVEN) -> None:
        if output is hooks.NOT_GIVEN:
            output = kwargs
        if _is_traced():
            _trace_mark(self.token)
        elif (compiler := hooks.compiler_at_work()) is not None:
            hooks.undisturbed(compiler, self._eager, output)
        else:
            self._eager(output)

    def _eager(self, output: Any) -> None:
        if graph_task() == -1 and not (blocks and self.counter.counters.is_quiet()):
            returned = output is not None or sys.exc_info()[0] is None
            try:
                if self.counter.counters.is_observed:
                    self.counter.end(returned=returned)
                if self.counter.outputs and not _is_recorded():
                    for take in tuple(self.counter.outputs):
                        take(output)
            except Exception as error:
                self.counter.counters.failed(error)

    def failed(self, error: Exception) -> None:
        """Stop every observer of the root."""
        self.counter.counters.failed(error)

    def replay(self, leaves: list[Tensor], form: int, port: str) -> tuple[int, int]:
        """End a call of the root in compiled code."""
        if graph_task() == -1 and not (blocks and self.counter.counters.is_quiet()):
            self.counter.end()
        return 0, 0
