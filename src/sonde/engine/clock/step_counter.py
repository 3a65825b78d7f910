"""Count the optimizer steps of one root, and call observers around each.

A step is the step of whichever optimizer owns parameters of the root: nobody has to hand one over. Of optimizers that call each
other (``ZeroRedundancyOptimizer``, a Lookahead) the outermost one counts. A second optimizer that steps on the same gradients
belongs to the step of the first. A call that raised is no step; nor is one that found infinities under a ``GradScaler``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn
from torch.optim.optimizer import Optimizer

from sonde.engine.clock import optimizers
from sonde.engine.clock.backward_counter import BackwardCounter
from sonde.engine.clock.counters import Counters
from sonde.engine.clock.parameter_copies import Copies, copies
from sonde.engine.event import Tick
from sonde.engine.torch_api.autograd_state import optimizers_running
from sonde.engine.unseen import are_quiet, blocks

__all__ = ["StepCounter", "StepObserver", "Undo"]


Undo = Callable[[], None]


class StepObserver(Protocol):
    """Is called around each step of an optimizer. *held* are the ids of the parameters that the optimizer steps."""

    @property
    def is_on(self) -> bool:
        """Whether the step that begins now is observed."""

    def before(self, held: frozenset[int], wanted: dict[tuple[int, int], nn.Parameter], *, closure: bool) -> Undo | None:
        """A step begins. Add to *wanted* the parameters to copy; with *closure* gradients are computed in the step.

        Returns:
            A function that removes everything recorded now, for a step that is not taken; None if there is nothing to remove.
        """

    def after(self, held: frozenset[int], before: Copies, *, closure: bool) -> None:
        """The step was taken; *before* are the copies."""


@dataclass(slots=True)
class _Attempt:
    """A call of an optimizer's step that has begun and not ended."""

    observers: list[StepObserver]
    undo: list[Undo]
    closure: bool
    before: Copies


class StepCounter:
    """The steps of one root.

    Attributes:
        observers: called around each step, while they are on.
        after_optimizer: called when an optimizer of the root has stepped, with that optimizer and whether the step was taken.
        again: the optimizer that steps does so on the gradients of a step that was counted: it is part of that step.
        is_announced: steps are seen before they are taken.
    """

    def __init__(self, counters: Counters, backwards: BackwardCounter) -> None:
        self.observers: list[StepObserver] = []
        self.after_optimizer: list[Callable[[Optimizer, bool], None]] = []
        self.again = False
        self.is_announced = False
        self._counters = counters
        self._backwards = backwards
        self._ended: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._observing: list[StepObserver] = []  # observers of the step that runs, or ran last
        self._attempts: dict[tuple[int, int], _Attempt] = {}  # by thread and optimizer
        self._steps_root: dict[frozenset[int], bool] = {}  # by the parameters of an optimizer
        self._last: weakref.ref[Optimizer] | None = None
        self._may_nest = False  # the step of the last optimizer may be seen several times
        self._after: dict[Callable[[], None], int] = {}  # each with the step before which it is not to be called
        self._idle_until = 0  # before this step none of them is called

    # Hooks

    def start(self) -> None:
        """Count steps from now on."""
        optimizers.follow(self)

    def announce(self) -> None:
        """See steps before they are taken, too."""
        self.is_announced = True
        optimizers.announce(self)

    def stop_announcing(self) -> None:
        """See steps when they were taken; the step that was observed last is over, for all optimizers that take part."""
        self.is_announced = False
        self._observing = []
        self._attempts.clear()
        optimizers.stop_announcing(self)

    def stop(self) -> None:
        """Count no more steps."""
        self.is_announced = False
        self._observing = []
        self._attempts.clear()
        optimizers.leave(self)

    def forget_optimizers(self) -> None:
        """The root's parameters may have changed: find out again which optimizers step them."""
        self._steps_root.clear()

    # Callbacks

    def call_after(self, callback: Callable[[], None], *, first: bool, until: int) -> None:
        """Call *callback* when a step has ended and the step *until*, or a later one, begins; *first*: before all others."""
        others = {other: step for other, step in self._after.items() if other != callback}
        self._after = {callback: until, **others} if first else {**others, callback: until}
        self._idle_until = min(self._after.values())

    def call_no_more(self, callback: Callable[[], None]) -> None:
        """Remove a step callback. Idempotent."""
        self._after.pop(callback, None)
        self._idle_until = min(self._after.values(), default=0)

    # Steps

    @property
    def ended(self) -> Tick:
        """The tick of the step that ended last."""
        return Tick(*self._ended)

    def precede(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call the observers before *optimizer* steps, if it steps the root and no other optimizer has called it."""
        if blocks and self._is_quiet(optimizer):
            return
        held = optimizers.held_by(optimizer)
        if not self._is_stepped_by(held):
            return
        thread = threading.get_ident()
        running = optimizers_running()
        self._undo_raised(thread, running)
        if self._is_nested(running):
            return
        self.again = self._steps_again(optimizer)
        if not self.again:
            self._observing = [observer for observer in self.observers if observer.is_on]
        if self._observing:
            closure = optimizers.has_closure(args, kwargs)
            wanted: dict[tuple[int, int], nn.Parameter] = {}
            undo = [observer.before(held, wanted, closure=closure) for observer in self._observing]
            self._attempts[thread, id(optimizer)] = _Attempt(
                self._observing, [each for each in undo if each is not None], closure, copies(wanted)
            )

    def follow(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the step that *optimizer* has taken, and call the observers."""
        if blocks and self._is_quiet(optimizer):
            return
        counters, last = self._counters, self._last
        if (
            counters.step + 1 < self._idle_until
            and counters.moved
            and not counters.is_observed
            and not self._may_nest
            and last is not None
            and last() is optimizer
        ):
            if not optimizers.is_skipped(optimizer):
                self._count()
            return
        held = optimizers.held_by(optimizer)
        if not self._is_stepped_by(held):
            return
        if self._is_nested(optimizers_running()):
            return
        attempt = self._attempts.pop((threading.get_ident(), id(optimizer)), None)
        self.again = self._steps_again(optimizer)
        taken = not optimizers.is_skipped(optimizer)
        if attempt is not None:
            for observer in attempt.observers if taken else ():
                observer.after(held, attempt.before, closure=attempt.closure)
            for undo in () if taken else attempt.undo:
                undo()
        if taken and not self.again:
            self._last = weakref.ref(optimizer)
            self._may_nest = optimizers.may_nest(optimizer)
            self.end_step()
        for callback in tuple(self.after_optimizer):
            callback(optimizer, taken)

    def end_step(self) -> None:
        """Count a step, and call the step callbacks."""
        self._backwards.settle()
        self._count()
        counters = self._counters
        counters.local.depth = 0  # no forward runs now, even if an interrupt kept one from ending
        for callback, first in tuple(self._after.items()):
            if first <= counters.step:
                callback()

    def _count(self) -> None:
        """Advance the counters without calling callbacks."""
        counters = self._counters
        forward = counters.local.forward if counters.is_observed else None  # at rest it is an old one
        last = max(counters.forwards - 1, 0) if forward is None else forward.index
        self._ended = (counters.epoch, counters.step, counters.micro_step, last)
        self._backwards.end_step()
        counters.moved = False
        counters.step += 1
        counters.micro_step = 0
        counters.stamp += 1

    def _is_stepped_by(self, held: frozenset[int]) -> bool:
        """Return whether an optimizer of the parameters *held* steps parameters of the root."""
        known = self._steps_root.get(held)
        if known is None:
            root = self._counters.root()
            known = self._steps_root[held] = root is not None and any(id(parameter) in held for parameter in root.parameters())
        return known

    def _is_quiet(self, optimizer: Optimizer) -> bool:
        """Return whether a step of *optimizer* now is not to be seen."""
        return self._counters.is_quiet() or are_quiet(self._counters.number, optimizers.held_by(optimizer))

    def _is_nested(self, running: list[Optimizer]) -> bool:
        """Return whether the innermost of the *running* steps runs inside another step of the root."""
        return any(self._is_stepped_by(optimizers.held_by(other)) for other in running[1:])

    def _steps_again(self, optimizer: Optimizer) -> bool:
        """Return whether a step of *optimizer* now is part of the step that another one has ended."""
        last = self._last() if self._last is not None else None
        return last is not None and last is not optimizer and not self._counters.moved

    def _undo_raised(self, thread: int, running: list[Optimizer]) -> None:
        """Undo the attempts of this thread that have raised, as those have which do not run any more."""
        if not running:
            return  # this torch does not tell which run
        alive = {id(optimizer) for optimizer in running[1:]}  # the first one is about to step
        for key in [key for key in self._attempts if key[0] == thread and key[1] not in alive]:
            for undo in self._attempts.pop(key).undo:
                undo()
