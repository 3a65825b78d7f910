"""Count the optimizer steps of one root, and call observers around each.

A step is a change of parameters of the root that optimizers make on one set of gradients. Nobody has to hand an optimizer over:
all optimizers are followed, and those that hold parameters of the root count.

* Of optimizers that call each other (``ZeroRedundancyOptimizer``, a Lookahead) the outermost one counts.
* An optimizer belongs to the step that has ended if it changes parameters which that step has not changed, and no gradient has been
  accumulated since. Forwards between the two, as for an evaluation, do not matter. Of parameters whose gradients are not seen, as
  of those that have just come, a forward of the root tells, or a graph that was built since.
* Optimizers that are called inside a backward pass, by hooks on parameters, belong to one step, which ends with the pass.
* A call that raised before it had changed parameters is no step; nor is one that found infinities under a ``GradScaler``.
* A loop without optimizers says when a step has ended. That step begins with the end of its first backward pass.
* A compiled optimizer says nothing. After two steps that nobody has said, steps are recognised as the next forward begins.

Whether anybody observes does not matter either: where several optimizers may take part, the hooks that see gradients come
(``backward_counter.py``) stay in between observed steps. One case differs: a call that raised after it had changed parameters is
a step where it was seen to begin, which is at observed steps, and at all steps from the first such call on. Before that nothing
at rest tells it from a loop that writes into parameters itself, but a hook before each step, which every training would pay for.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from torch.optim.optimizer import Optimizer

from sonde.engine.clock import optimizers
from sonde.engine.clock.backward_counter import BackwardCounter
from sonde.engine.clock.counters import Counters
from sonde.engine.clock.loss_scale import Scaling
from sonde.engine.clock.parameter_copies import Copies, copies
from sonde.engine.clock.turns import Turns
from sonde.engine.clock.witness import Witness
from sonde.engine.torch_api.autograd_state import graph_task, next_sequence, optimizers_running
from sonde.engine.torch_api.modules import parameters_in
from sonde.engine.unseen import blocks
from sonde.schedule import Tick
from sonde.warn import warn_user

Undo = Callable[[], None]


class StepObserver(Protocol):
    """Is called around each step of an optimizer. *held* are the ids of the parameters that the optimizer steps."""

    @property
    def is_on(self) -> bool:
        """Whether the step that begins now is observed."""

    @property
    def can_undo(self) -> bool:
        """Whether ``before`` may be called for a step that is perhaps none."""

    def before(self, held: frozenset[int], wanted: dict[tuple[int, int], nn.Parameter], *, closure: bool) -> Undo | None:
        """A step begins. Add to *wanted* the parameters to copy; with *closure* gradients are computed in the step.

        Returns:
            A function that removes everything recorded now, for a step that is not taken; None if there is nothing to remove.
        """

    def after(self, held: frozenset[int], before: Copies, *, closure: bool) -> None:
        """The step was taken; *before* are the copies."""


_UNSAID = 2  # times that parameters change unsaid until it is taken for steps: once they may be loaded, or disturbed on purpose


@dataclass(slots=True)
class _OpenStep:
    """A step that has begun and not ended.

    Attributes:
        observers: of the step that begins.
        former: of the step that has ended, to which this one belongs if nothing is accumulated before it ends.
        undo: remove everything recorded at its beginning.
        optimizer: makes the step; None if that is not known.
        witness: one of its parameters, which shows whether a step that has raised had changed parameters before.
    """

    observers: list[StepObserver]
    former: list[StepObserver] = field(default_factory=list)
    undo: list[Undo] = field(default_factory=list)
    closure: bool = False
    before: Copies = field(default_factory=dict)
    optimizer: weakref.ref[Optimizer] | None = None
    witness: Witness = field(default_factory=Witness)

    def begin(self, held: frozenset[int], observers: Collection[StepObserver], *, closure: bool) -> None:
        """Call *observers* before the step, and make the copies that they need."""
        self.closure = closure
        wanted: dict[tuple[int, int], nn.Parameter] = {}
        undo = [observer.before(held, wanted, closure=closure) for observer in observers]
        self.undo = [each for each in undo if each is not None]
        self.before |= copies({key: parameter for key, parameter in wanted.items() if key not in self.before})

    def take_back(self) -> None:
        """Remove everything recorded at the beginning. Idempotent."""
        undo, self.undo = self.undo, []
        for each in undo:
            each()


class StepCounter:
    """The steps of one root.


    Attributes:
        observers: called around each step, while they are on.
        after_optimizer: called when an optimizer of the root has stepped, with that optimizer and whether the step was taken; with
            None at the end of a step without one.
        turns: which optimizer made which step.
        again: the optimizer that steps is part of a step that was counted already.
        is_announced: steps are seen before they are taken.
        says_steps: the loop has no optimizer of torch, and says its steps.
        foreign: how many steps were made by optimizers that hold no parameter of the root.
    """

    def __init__(self, counters: Counters, backwards: BackwardCounter) -> None:
        self.observers: list[StepObserver] = []
        self.after_optimizer: list[Callable[[Optimizer | None, bool], None]] = []
        self.turns = Turns()
        self.again = False
        self.is_announced = False
        self.foreign = 0
        self._counters = counters
        self._backwards = backwards
        self._ended: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._observing: list[StepObserver] = []  # observers of the step that runs, or ran last
        self._attempts: dict[tuple[int, int], _OpenStep] = {}  # by thread and optimizer
        self._own: dict[frozenset[int], frozenset[int]] = {}  # by the parameters of an optimizer, those that are of the root
        self._last: weakref.ref[Optimizer] | None = None
        self._last_own: frozenset[int] = frozenset()
        self._may_nest = False  # the step of the last optimizer may be seen several times
        self._changed: frozenset[int] = frozenset()  # parameters that the step that ended last has changed
        self._passes = 0  # backward passes that were counted when it ended
        self._sequence = 0  # number of the autograd node that came next when it ended
        self._after: dict[Callable[[], None], int] = {}  # each with the step before which it is not to be called
        self._idle_until = 0  # before this step none of them is called
        # a step inside a backward pass: the pass and parts of it, and the parameters changed so far
        self._in_pass: set[int] = set()
        self._changed_in_pass: frozenset[int] = frozenset()
        # a loop without optimizers
        self.says_steps = False
        self._said: _OpenStep | None = None
        # steps that nobody says
        self._witness = Witness()
        self._unsaid = 0
        self._recognises = False
        self._raises = False  # a step has raised after it had changed parameters: steps are looked at at rest, too
        backwards.last_after = self._backward_ended

    # Hooks

    def start(self) -> None:
        """Count steps from now on."""
        self.turns.begin_at(self._counters.step)
        optimizers.follow(self)

    def announce(self) -> None:
        """See steps before they are taken, too."""
        self.is_announced = True
        optimizers.announce(self)

    def stop_announcing(self) -> None:
        """See steps when they were taken; the step that was observed last is over, for all optimizers that take part."""
        self._observing = []
        self._said = None
        if self._raises:
            return
        self.is_announced = False
        self._attempts.clear()
        optimizers.stop_announcing(self)

    def stop(self) -> None:
        """Count no more steps."""
        self._raises = False
        self.stop_announcing()
        optimizers.leave(self)

    def forget_optimizers(self) -> None:
        """The root's parameters may have changed: find out again which optimizers step them."""
        self._own.clear()

    def watched_at_rest(self) -> frozenset[int]:
        """Return the ids of the parameters whose gradients are observed even between logged steps.

        These are all if several optimizers make steps, or none has made one yet; else those that the one optimizer does not hold.
        """
        everything = self._of_root()
        if self.says_steps or (self._last is not None and not self.turns.are_several):
            return everything - self._changed
        return everything

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

    # Steps of optimizers

    @property
    def ended(self) -> Tick:
        """The tick of the step that ended last."""
        return Tick(*self._ended)

    def precede(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call the observers before *optimizer* steps, if it steps the root and no other optimizer has called it."""
        if blocks and self._is_quiet(optimizer):
            return
        held = optimizers.held_by(optimizer)
        self._look(is_due=held not in self._own)  # an optimizer that is new may be of a model that has changed
        own = self._own_of(held)
        if not own:
            return
        thread = threading.get_ident()
        running = optimizers_running(optimizer)
        if running:  # this torch tells which run; the first one is about to step
            self._end_raised(running[1:])
        if self._is_nested(running):
            return
        self._backwards.count_checkpointed()  # a pass that ends now may begin a step that the loop may say
        self._take_back_said()
        closure = optimizers.has_closure(args, kwargs)
        task = graph_task()
        if task != -1 and own & self._changed_in_pass:
            self._backwards.end_open()  # a pass steps each parameter once
        self.again = task == -1 and self._joins(own)
        former = self._observing
        if task not in self._in_pass and (closure or not self.again):  # a closure may make a step of its own
            self._observing = [observer for observer in self.observers if observer.is_on]
        if self._observing or (closure and former) or self._raises:
            attempt = _OpenStep(self._observing, former, optimizer=weakref.ref(optimizer))
            attempt.witness.choose(each for group in optimizer.param_groups for each in group["params"] if id(each) in own)
            attempt.begin(held, dict.fromkeys([*self._observing, *(former if closure else ())]), closure=closure)
            self._attempts[thread, id(optimizer)] = attempt

    def follow(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the step that *optimizer* has taken, and call the observers."""
        if blocks and self._is_quiet(optimizer):
            return
        counters, last, task = self._counters, self._last, graph_task()
        if not (counters.is_observed or self.is_announced):
            if task != -1 and task in self._in_pass:
                return
            if (
                task == -1
                and counters.step + 1 < self._idle_until
                and not self._may_nest
                and last is not None
                and last() is optimizer
            ):
                if not Scaling.is_skipped(optimizer):
                    self._changed = self._last_own
                    self._count()
                return
        held = optimizers.held_by(optimizer)
        own = self._own_of(held)
        if not own:
            self.foreign += 1
            self._backwards.left_gradients = False  # the pass was for this one, as that of a generator through its critic
            return
        if self._is_nested(optimizers_running(optimizer)):
            return
        attempt = self._attempts.pop((threading.get_ident(), id(optimizer)), None)
        taken = not Scaling.is_skipped(optimizer)
        if task != -1:
            if attempt is not None:
                self._finish(attempt, attempt.observers, held, taken=taken)
            if taken:  # the step ends with the pass
                if own & self._changed_in_pass:
                    self._backwards.end_open()
                self._in_pass.add(task)
                self._changed_in_pass |= own
                self._backwards.begin()
            return
        self._end_attempt(optimizer, attempt, held, own, taken=taken)

    def _end_attempt(
        self, optimizer: Optimizer, attempt: _OpenStep | None, held: frozenset[int], own: frozenset[int], *, taken: bool
    ) -> None:
        """Count the step that *optimizer* has made outside of a backward pass, if it was *taken*, and tell everyone."""
        self.again = self._joins(own)
        if attempt is not None:
            self._finish(attempt, attempt.former if self.again else attempt.observers, held, taken=taken)
        if taken and self.again:
            self._changed |= own
        elif taken:
            self._last = weakref.ref(optimizer)
            self._last_own = own
            self._may_nest = optimizers.may_nest(optimizer)
            self._recognises = self.says_steps = False
            self._end(optimizer, held, own)
        for callback in tuple(self.after_optimizer):
            callback(optimizer, taken)

    def _finish(self, attempt: _OpenStep, observers: list[StepObserver], held: frozenset[int], *, taken: bool) -> None:
        if taken:
            for observer in observers:
                observer.after(held, attempt.before, closure=attempt.closure)
        else:
            attempt.take_back()

    def _joins(self, own: frozenset[int]) -> bool:
        """Return whether an optimizer of the root's parameters *own* that steps now is part of the step that ended last."""
        if self.turns.last == -1 or own <= self._changed:
            return False
        backwards = self._backwards
        backwards.count_checkpointed()
        if backwards.sees(own - self._changed):
            return backwards.count == self._passes
        # gradients are not accumulated, or were not seen: forwards tell, also those of parts that are called without the root
        return not self._counters.has_begun and next_sequence() <= self._sequence

    def is_thrown_away(self, since: int) -> bool:
        """Return whether there were backward passes *since* so many, and all gradients are gone that no optimizer has used.

        ``zero_grad()`` took them away; one that writes zeros in their place cannot be seen without waiting for the device.
        """
        backwards = self._backwards
        is_pending = backwards.count > max(since, self._passes) and backwards.left_gradients
        return is_pending and not backwards.has_gradients() and not optimizers_running()

    def _end_raised(self, alive: list[Optimizer]) -> None:
        """End the attempts of this thread that have raised, as those have whose optimizers are not *alive*, inside ``step``.

        One that has changed parameters before was a step, and has the rows of one; of another nothing stays.
        """
        running, thread = {id(optimizer) for optimizer in alive}, threading.get_ident()
        for key in [key for key in self._attempts if key[0] == thread and key[1] not in running]:
            attempt = self._attempts.pop(key)
            optimizer = attempt.optimizer() if attempt.optimizer is not None else None
            if optimizer is None or attempt.closure or graph_task() != -1 or not attempt.witness.has_changed():
                attempt.take_back()
                continue
            self._raises = True
            held = optimizers.held_by(optimizer)
            self._end_attempt(optimizer, attempt, held, self._own_of(held), taken=True)

    def _is_nested(self, running: list[Optimizer]) -> bool:
        """Return whether the innermost of the *running* steps runs inside another step of the root."""
        return any(self._own_of(optimizers.held_by(other)) for other in running[1:])

    def _own_of(self, held: frozenset[int]) -> frozenset[int]:
        """Return which of the parameters *held*, given by their ids, are of the root."""
        own = self._own.get(held)
        if own is None:
            own = self._own[held] = held & self._of_root()
        return own

    def _look(self, *, is_due: bool = False) -> None:
        """Look whether the root has changed, if the step that ends is observed and no forward has looked, or if it *is_due*."""
        counters = self._counters
        if counters.is_observed and (is_due or counters.looked != counters.step):
            counters.look()

    def _of_root(self) -> frozenset[int]:
        root = self._counters.root()
        return frozenset() if root is None else frozenset(map(id, parameters_in(root)))

    # Steps that the loop says

    def end_step(self) -> None:
        """Count a step of an optimizer that is not torch's."""
        self._backwards.count_checkpointed()
        self._look()
        own = self._of_root()
        attempt, self._said = self._said, None
        self.says_steps, self.again = True, False
        if attempt is None:
            attempt = _OpenStep([observer for observer in self.observers if observer.is_on])
        for observer in attempt.observers:
            observer.after(own, attempt.before, closure=not observer.can_undo)
        self._end(None, own, own)

    def _backward_ended(self) -> None:
        """End the step that optimizers took in the counted backward pass, or begin a step that the loop may announce."""
        if self._in_pass:
            changed, self._changed_in_pass = self._changed_in_pass, frozenset()
            self._in_pass.clear()
            self._last = None
            self._end(None, frozenset(), changed)
            self._tell_of_step(taken=True)
            return
        if self.turns.last == -1 or self._recognises:
            root = self._counters.root()
            self._witness.choose(() if root is None else parameters_in(root))
        if self._counters.is_observed and not self._attempts and (self.says_steps or self.turns.last == -1):
            self._begin_said()

    def _begin_said(self) -> None:
        """Begin the step that the loop may announce, with the gradients so far: again after each backward pass."""
        if self._said is None:
            observers = [observer for observer in self.observers if observer.is_on and (self.says_steps or observer.can_undo)]
            if not observers:
                return
            self._said = _OpenStep(observers)
        self.again = False
        own = self._of_root()
        attempt = self._said
        attempt.take_back()
        attempt.begin(
            own, [each for each in attempt.observers if not each.can_undo], closure=True
        )  # their gradients come at the end
        attempt.begin(own, [each for each in attempt.observers if each.can_undo], closure=False)

    def _take_back_said(self) -> None:
        attempt, self._said = self._said, None
        if attempt is not None:
            attempt.take_back()

    # Steps that nobody says

    def forward_begins(self) -> None:
        """End the step before the forward that begins, if a step was taken and neither loop nor optimizer announces steps.

        In evaluation mode parameters may be exchanged for others, as for their averages.
        """
        if self._attempts:
            self._end_after_raise()
        if not self._recognises and self.turns.last != -1:
            return
        root = self._counters.root()
        if self._recognises:
            if root is not None and root.training:
                self.end_unsaid()
        elif root is None or not root.training or not self._witness.has_changed() or optimizers_running():
            return  # also inside a step with a closure
        elif self._backwards.count and (self.observers or self._after):
            self._unsaid += 1
            if self._unsaid == _UNSAID:
                self._recognise()

    def _end_after_raise(self) -> None:
        """End attempts that have raised, unless one may run still: the closure of a step, or a backward pass, may call the root."""
        if graph_task() == -1 and not any(attempt.closure for attempt in self._attempts.values()):
            self._end_raised(optimizers_running())

    def end_unsaid(self) -> None:
        """End the step that was taken since the last look, if steps are recognised and one was, or it raised. Idempotent."""
        if self._attempts:
            self._end_after_raise()
        if self._recognises and self._witness.has_changed():
            self.end_step()
            self._tell_of_step(taken=True)

    def _recognise(self) -> None:
        """Count the steps that were not announced, without the rows that they have in common, and recognise those that come."""
        self._recognises = self.says_steps = True
        self._said = None
        self._tell_of_step(taken=False)
        own = self._of_root()
        for _ in range(self._unsaid - 1):
            self._count()
        self._end(None, own, own)
        self._tell_of_step(taken=True)
        warn_user(
            f"the parameters have changed {self._unsaid} times and no optimizer was seen to step: its step is compiled by "
            "torch.compile, or it is none of torch.optim. These first steps are counted and have no rows. From now on a step is "
            "recognised as the next forward in training mode begins, and its gradients are those that the last backward pass has "
            "left. To say each step yourself, call step() of the inspector or probe after it. Where torch.compile holds the whole "
            "step, forward, backward and optimizer, say each step, or log each step (every=1): which graph runs is decided before "
            "its forward begins."
        )

    def _tell_of_step(self, *, taken: bool) -> None:
        for callback in tuple(self.after_optimizer):
            callback(None, taken)

    # The end of a step

    def _end(self, optimizer: Optimizer | None, held: frozenset[int], changed: frozenset[int]) -> None:
        """Count a step of *optimizer*, which has *changed* these parameters of the root, and call the step callbacks."""
        counters = self._counters
        self._backwards.count_checkpointed()
        several = self.turns.are_several
        first = self.turns.last == -1
        self.turns.note(optimizer, held, counters.step)
        self._changed = changed
        self._witness.has_changed()
        was_observed = bool(self._observing)
        self._count()
        counters.local.depth = 0  # no forward runs now, even if an interrupt kept one from ending
        for callback, step in tuple(self._after.items()):
            if step <= counters.step:
                callback()
        if counters.is_observed:
            return
        if self.is_announced and not was_observed:
            self.stop_announcing()
        if first or several is not self.turns.are_several:
            self._backwards.watch(self.watched_at_rest())

    def _count(self) -> None:
        """Advance the counters without calling callbacks."""
        counters = self._counters
        forward = counters.local.forward if counters.is_observed else None  # at rest it is an old one
        last = max(counters.forwards - 1, 0) if forward is None else forward.index
        self._ended = (counters.epoch, counters.step, counters.micro_step, last)
        self._backwards.end_step()
        self._passes = self._backwards.count
        self._sequence = next_sequence()
        counters.has_begun = False
        counters.step += 1
        counters.micro_step = 0
        counters.stamp += 1

    def failed(self, error: Exception) -> None:
        """Stop every observer of the root."""
        self._counters.failed(error)

    def _is_quiet(self, optimizer: Optimizer) -> bool:
        """Return whether a step of *optimizer* now is not to be seen."""
        return self._counters.is_quiet_for(optimizers.held_by(optimizer))
