"""Who knows the epoch, step, micro-step and forward: one clock per observed root, shared by all probes on it.

The root's own hooks say when a forward begins and ends. A backward pass is a micro-step if it accumulates into a parameter
of the model (``autograd.grad`` does not): a hook on each parameter tells. Steps come from the optimizer that owns the model's
parameters, whichever it is: nobody has to hand it over. A clock counts from the moment its first probe was attached.

In compiled code these hooks are traced; there the operators of ``compiled.py`` call back at run time.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from sonde.engine.clock import optimizers
from sonde.engine.clock.forward import Forward
from sonde.engine.clock.parameter_copies import Copies, copies
from sonde.engine.event import Tick
from sonde.engine.probes.targets import fingerprint, is_time_to_look
from sonde.engine.torch_api import compiled, hooks
from sonde.engine.torch_api.running import modules_running, nodes_running

if TYPE_CHECKING:
    from sonde.engine.probes.attachment import Attachment
    from sonde.engine.probes.step_hooks import AroundSteps

__all__ = ["Clock", "clock_of", "transformed"]

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_is_traced = compiled.is_traced


# Looking whether the model has other parameters than it had costs a walk over its modules: at wakes 1, 2, 4, 8, ... and every 16th
_LOOK_EVERY = 16


def transformed() -> bool:
    """Whether a ``torch.func`` transform runs: its tensors are wrappers that must not outlive it."""
    return torch._C._functorch.peek_interpreter_stack() is not None


class _Current(threading.local):
    forward: Forward | None = None
    depth: int = 0


class Clock:
    """The time of one root module."""

    def __init__(self, root: nn.Module) -> None:
        self.root = weakref.ref(root)
        self.epoch = 0
        self.step = 0
        self.micro_step = 0
        self.forwards = 0  # calls of the root begun
        self.returned = 0  # of those, the ones that returned something
        self.backwards = 0  # backward passes that wrote a .grad
        self.raised = False  # the last one did not return
        self.is_compiled = False  # the root was seen to be called as compiled code
        self.stamp = 0  # moves with epoch, step and micro-step
        self.local = _Current()
        self.before_forward: list[Callable[[], None]] = []
        self.around_step: dict[Attachment, AroundSteps] = {}
        self._before: Copies = {}
        self._around: list[AroundSteps] = []  # of them, those that observe the step that runs, or ran last
        self._stepped_by: dict[frozenset[int], bool] = {}  # by what an optimizer holds
        self.again = False  # the optimizer that steps does so on the same gradients as one before: it is part of that step
        self._ended = (0, 0, 0, 0)
        self.after_optimizer: list[Callable[[Optimizer, bool], None]] = []  # one of the root's has stepped: was it taken
        self.after_step: dict[Callable[[], None], int] = {}  # each with the step before which it is not to be called
        self._idle_until = 0  # before this step none of them is
        self.after_micro_step: list[Callable[[], None]] = []
        self.after_first_forward: list[Callable[[], None]] = []  # of a model with lazy parameters, which have a shape then
        self._users = 0
        self.awake: set[Hashable] = set()  # the probes that observe now
        self._begin: hooks.Handle | None = None
        self._end: hooks.Handle | None = None
        self._is_lazy = False
        self._task = -1  # the backward pass heard last, and the last that was not part of another
        self._outer = -1
        self._unfinished = False
        self.moved = True  # a forward or a backward pass has been since the last step
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._ends = _End(self)
        self._accumulates = _Accumulates(self)
        self._listening: dict[int, tuple[weakref.ref[nn.Parameter], hooks.Handle]] = {}
        self._heralded = False  # it is told of steps before they are taken
        self._follows = False  # forwards to their end, and what is accumulated
        self._wakes = 0
        self._fingerprint: int | None = None
        self._compiled: tuple[Any, frozenset[nn.Module]] | None = None

    # Life

    def start(self) -> None:
        """One more probe uses this clock; the first one puts a hook in that counts forwards."""
        self._users += 1
        root = self.root()
        if self._users > 1 or root is None:
            return
        self.local.depth = 0
        self._begin = hooks.on_forward_pre(root, _Begin(self), first=True)
        optimizers.follow(self)

    def wake(self, probe: Hashable) -> None:
        """*probe* observes from now on: follow each forward to its end, and hear what is accumulated."""
        self.awake.add(probe)
        if not self._heralded:
            self._heralded = True
            optimizers.announce(self)
        root = self.root()
        if self._follows or root is None:
            return
        self._follows = True
        if self._end is None or not self._end.put_back(self._ends):
            self._end = hooks.on_forward(root, self._ends, always=True)
        for key, (parameter, handle) in tuple(self._listening.items()):
            if parameter() is None or not handle.put_back(self._accumulates):
                del self._listening[key]
                self._fingerprint = None
        count = self._wakes = self._wakes + 1
        if self._fingerprint is None or is_time_to_look(count, _LOOK_EVERY):
            self._compiled = None
            now = fingerprint(root)
            if now != self._fingerprint:
                self._fingerprint = now
                self.refresh()

    def rest(self, probe: Hashable) -> None:
        """*probe* does not observe for a while. While none does, the clock only counts forwards and steps."""
        self.awake.discard(probe)
        root = self.root()
        if not self.awake and root is not None and not self.compiled_modules():
            self._sleep()

    def _sleep(self) -> None:
        self._follows = False
        if self._end is not None:
            self._end.remove()
        for _, handle in self._listening.values():
            handle.remove()
        self.local.depth = 0
        if self.local.forward is not None:
            self.local.forward.watched.clear()

    def stop(self) -> None:
        """One probe less; the last one takes the hooks out."""
        self._users -= 1
        if self._users > 0:
            return
        self._sleep()
        self._end = self._fingerprint = self._compiled = None
        self._heralded = False
        self._listening.clear()
        self._around.clear()
        self._before = {}
        self.local = _Current()  # the last forward knows taps, and they the model
        if self._begin is not None:
            self._begin.remove()
            self._begin = None
        optimizers.leave(self)

    # Reading

    @property
    def is_running(self) -> bool:
        """Whether any probe is attached."""
        return self._users > 0

    @property
    def ended(self) -> Tick:
        """The tick of the step that ended last."""
        return Tick(*self._ended)

    def compiled_modules(self) -> frozenset[nn.Module]:
        """The modules of the root that are in compiled code, as of when it was last looked through for changes."""
        known = self._fingerprint, self.is_compiled
        root = self.root()
        if self._compiled is None or self._compiled[0] != known:
            found = [] if root is None else compiled.regions(root, (root,) if self.is_compiled else ())
            self._compiled = known, frozenset().union(*(region.modules for region in found))
        return self._compiled[1]

    def current(self) -> Forward:
        """The forward of this thread that runs or ran last; module calls before any call of the root share one."""
        forward = self.local.forward
        if forward is None:
            forward = self.local.forward = self._new_forward()
        return forward

    def now(self) -> Tick:
        """The tick of this moment."""
        self.settle()
        return self.tick_of(self.current())

    def tick_of(self, forward: Forward) -> Tick:
        """The tick of something that happens now and belongs to *forward*."""
        if forward.stamp != self.stamp:
            forward.stamp = self.stamp
            forward.tick = Tick(self.epoch, self.step, self.micro_step, forward.index)
        return forward.tick

    # Moving

    def _new_forward(self) -> Forward:
        index = max(self.forwards - 1, 0)
        root = self.root()
        training = root is None or root.training
        return Forward(index, Tick(self.epoch, self.step, self.micro_step, index), self.stamp, training=training)

    def is_training(self, forward: Forward, task: int) -> bool:
        """Whether a module call of *forward*, made in the backward pass *task* (else -1), is part of a training pass.

        That is a call of the root in training mode with gradients enabled; or, for a module that is called alone, such a call.
        """
        if self.local.depth or task != -1:
            return forward.training
        root = self.root()
        return torch.is_grad_enabled() and (root is None or root.training)

    def refresh(self) -> None:
        """Listen to parameters that have come, or need a gradient by now."""
        root = self.root()
        if root is None or not self._follows:
            return
        self._stepped_by.clear()
        parameters = list(root.parameters())
        shapeless = {id(parameter) for parameter in parameters if is_lazy(parameter)}  # type: ignore[redundant-expr]  # is_lazy narrows too much
        self._is_lazy = bool(shapeless)
        for parameter in parameters:
            if id(parameter) in shapeless:
                continue
            known = self._listening.get(id(parameter))
            if parameter.requires_grad and (known is None or known[0]() is not parameter):
                self._listening[id(parameter)] = weakref.ref(parameter), hooks.on_accumulated(parameter, self._accumulates)

    def begin_forward(self) -> None:
        """The root is called."""
        local = self.local
        if local.depth and not _is_traced():
            root = self.root()
            running = sum(module is root for module in modules_running())  # an interrupt may have kept one from ending
            local.depth = max(running - 1, 0)
        local.depth += 1
        if local.depth > 1:
            return
        self.settle()
        self.moved = True
        for callback in tuple(self.before_forward):
            callback()
        self.forwards += 1
        if local.forward is not None:
            local.forward.watched.clear()  # it refers to its forward: left alone, both would wait for the garbage collector
        local.forward = self._new_forward()

    def end_forward(self, *, returned: bool = True) -> None:
        """The root has returned, or raised."""
        local = self.local
        local.depth = max(local.depth - 1, 0)
        if local.depth == 0:
            self.raised = not returned
            self.returned += returned
            if self._is_lazy and returned:
                self.refresh()
                for callback in tuple(self.after_first_forward):
                    callback()

    def begin_accumulation(self) -> None:
        """A gradient has been accumulated into a parameter: the backward pass that did it will have been a micro-step."""
        task = _graph_task()
        if task in (self._task, -1):
            return
        self._task = task
        if nodes_running():
            self._unfinished = True  # it is a part of a pass whose end cannot be heard from here
        elif task != self._outer:
            self._outer = task
            hooks.after_backward(self._end_backward)

    def _end_backward(self) -> None:
        self._unfinished = False
        self.moved = True
        self.micro_step += 1
        self.backwards += 1
        self.stamp += 1
        for callback in tuple(self.after_micro_step):
            callback()

    def settle(self) -> None:
        """End a backward pass of which only parts inside checkpoints were heard, now that none runs."""
        if self._unfinished and _graph_task() == -1:
            self._end_backward()

    def end_step(self) -> None:
        """An optimizer step was taken."""
        self.settle()
        self._count_step()
        self.local.depth = 0  # no forward runs now, even if an interrupt kept one from ending
        for callback, first in tuple(self.after_step.items()):
            if first <= self.step:
                callback()

    def _count_step(self) -> None:
        """All there is to a step that nobody wants to know of."""
        forward = self.local.forward if self.awake else None  # at rest it is an old one
        self._ended = (self.epoch, self.step, self.micro_step, max(self.forwards - 1, 0) if forward is None else forward.index)
        self._unfinished = self.moved = False
        self.step += 1
        self.micro_step = 0
        self.stamp += 1

    def call_after_steps(self, callback: Callable[[], None], *, first: bool = False, until: int = 0) -> None:
        """Call *callback* when a step has ended and the step *until*, or a later one, begins; *first*: before all others."""
        others = {other: step for other, step in self.after_step.items() if other != callback}
        self.after_step = {callback: until, **others} if first else {**others, callback: until}
        self._idle_until = min(self.after_step.values())

    def call_no_more(self, callback: Callable[[], None]) -> None:
        """Call it no more after steps. Again does nothing."""
        self.after_step.pop(callback, None)
        self._idle_until = min(self.after_step.values(), default=0)

    def precede(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """*optimizer* is about to step."""
        self.again = self._steps_again(optimizer)
        if not self.again:
            self._around = [around for attachment, around in self.around_step.items() if attachment.switch.on]
        if self._around:
            held, closure = optimizers.held_by(optimizer), optimizers.has_closure(args, kwargs)
            wanted: dict[tuple[int, int], nn.Parameter] = {}
            for around in self._around:
                around.before(held, wanted, closure=closure)
            self._before = copies(wanted)

    def follow(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """*optimizer* has stepped. A second optimizer that steps on the same gradients belongs to the first one's step."""
        last = self._optimizer
        if self.step + 1 < self._idle_until and self.moved and not self.awake and last is not None and last() is optimizer:
            if not optimizers.is_skipped(optimizer):
                self._count_step()
            return
        held = optimizers.held_by(optimizer)
        if not self._is_stepped_by(held):
            return
        self.again = self._steps_again(optimizer)
        taken = not optimizers.is_skipped(optimizer)
        before, self._before = self._before, {}
        if self._around and taken:
            closure = optimizers.has_closure(args, kwargs)
            for around in self._around:
                around.after(held, before, closure=closure)
        if taken and not self.again:
            self._optimizer = weakref.ref(optimizer)
            self.end_step()
        for callback in tuple(self.after_optimizer):
            callback(optimizer, taken)

    def _is_stepped_by(self, held: frozenset[int]) -> bool:
        """Whether an optimizer that holds these holds parameters of the root."""
        known = self._stepped_by.get(held)
        if known is None:
            root = self.root()
            known = self._stepped_by[held] = root is not None and any(id(parameter) in held for parameter in root.parameters())
        return known

    def _steps_again(self, optimizer: Optimizer) -> bool:
        """Whether a step of *optimizer* now is part of the step that another one has ended."""
        last = self._optimizer() if self._optimizer is not None else None
        return last is not None and last is not optimizer and not self.moved

    def continue_at(self, step: int) -> None:
        """Count on from *step*, as a training does that was interrupted before it."""
        self.step = step
        self.micro_step = 0
        self.stamp += 1

    def end_epoch(self, epoch: int | None = None) -> None:
        """An epoch has ended; *epoch* sets the number of the next."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.stamp += 1


class _Begin(hooks.Hook):
    """The root's forward pre-hook."""

    __slots__ = ("clock", "token")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.token = compiled.token_for(self)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _is_traced():
            compiled.trace_mark(self.token)
        elif (compiler := hooks.compiler_at_work()) is not None:
            self.clock.is_compiled = True
            hooks.undisturbed(compiler, self._eager)
        else:
            self._eager()

    def _eager(self) -> None:
        clock = self.clock
        if _graph_task() != -1:
            return  # checkpointing recomputes a call that was counted
        if clock.awake:
            clock.begin_forward()
            return
        if clock._heralded and not clock.moved:  # the step that was observed last is over, for all optimizers that take part
            clock._heralded = False
            clock._around = []
            optimizers.hush(clock)
        clock.forwards += 1
        clock.moved = True

    def replay(self, leaves: list[Tensor], form: int, port: str) -> tuple[int, int]:
        """Compiled code has reached the root's beginning."""
        if _graph_task() == -1:
            self.clock.local.depth = 0
            self.clock.begin_forward()
        return 0, 0


class _End(hooks.Hook):
    """The root's forward hook, called also when the forward raised."""

    __slots__ = ("clock", "token")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.token = compiled.token_for(self)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if _is_traced():
            compiled.trace_mark(self.token)
        elif (compiler := hooks.compiler_at_work()) is not None:
            hooks.undisturbed(compiler, self._eager, output)
        else:
            self._eager(output)

    def _eager(self, output: Any) -> None:
        if _graph_task() == -1:
            self.clock.end_forward(returned=output is not None or sys.exc_info()[0] is None)

    def replay(self, leaves: list[Tensor], form: int, port: str) -> tuple[int, int]:
        """Compiled code has reached the root's end."""
        if _graph_task() == -1:
            self.clock.end_forward()
        return 0, 0


class _Accumulates(hooks.Hook):
    """The post-accumulate hook of every parameter of the root."""

    __slots__ = ("clock",)

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(self, parameter: Tensor) -> None:
        clock = self.clock
        if clock._task != _graph_task() and not _is_traced():
            clock.begin_accumulation()


_clocks: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Clock]] = weakref.WeakKeyDictionary()


def clock_of(root: nn.Module) -> Clock:
    """The clock of *root*: the one that runs for the probes attached to it now, or a new one, which counts from 0."""
    known = _clocks.get(root)
    clock = known() if known is not None else None
    if clock is None or not clock.is_running:
        clock = Clock(root)
        _clocks[root] = weakref.ref(clock)
    return clock
