"""The clock of an observed root: its epoch, step, micro-step and forward, shared by all probes on the root.

The root's own hooks see a forward begin and end (``forward_counter.py``). A backward pass is a micro-step if it accumulates into
a parameter of the model, which ``autograd.grad`` does not (``backward_counter.py``). Steps are those of the optimizer that owns
the model's parameters (``step_counter.py``). A clock counts from the moment at which its first probe is attached.

In compiled code the root's hooks are traced; at run time the operators of ``torch_api/compiled.py`` call ``replay``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

from torch import nn
from torch.optim.optimizer import Optimizer

from sonde.engine.clock import optimizers
from sonde.engine.clock.backward_counter import BackwardCounter
from sonde.engine.clock.counters import Counters
from sonde.engine.clock.forward_counter import ForwardCounter
from sonde.engine.clock.step_counter import StepCounter
from sonde.engine.clock.turns import Turns
from sonde.engine.compiled_regions import regions
from sonde.engine.inventory import Inventory, inventory_of
from sonde.engine.torch_api import compiler_state
from sonde.engine.torch_api.autograd_state import has_substituted_parameters
from sonde.engine.unseen import blocks, innermost
from sonde.schedule import Tick

# A full look costs a walk over the model: at the looks 1, 2, 4, 8, ... and at every 64th
_FULL_LOOK_EVERY = 64


class Clock(Counters):
    """The numbers of one root's time, the parts that move them, and callbacks at each moment.


    Attributes:
        forward_counter, backward_counter, step_counter: the parts.
        awake: the probes that observe now.
        inventory: of the root when it was last looked at.
        followed: of the last change that was seen, the names that a probe has warned of.
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__(root)
        self.backward_counter = BackwardCounter(self)
        self.forward_counter = ForwardCounter(self, self.backward_counter, self._forward_at_rest)
        self.step_counter = StepCounter(self, self.backward_counter)
        self.forward_counter.between = self.step_counter.forward_begins
        self.awake: set[Hashable] = set()
        self._users = 0
        self._has_begun = False
        self._lock = threading.RLock()  # probes come and go in several threads
        self._follows = False  # forwards to their end, and accumulation
        self._looks = 0
        self._is_due = False  # hooks on parameters are to be put in at the next look
        self._changed: list[Callable[[], None]] = []
        self.inventory: Inventory | None = None
        self.followed: set[str] = set()
        self._compiled: tuple[Any, frozenset[nn.Module]] | None = None

    # Life

    def start(self, inventory: Inventory) -> None:
        """Count one more probe of the root, whose *inventory* is given; for the first one put the hooks in that count."""
        with self._lock:
            self._users += 1
            self._has_begun = True
            root = self.root()
            if self._users > 1 or root is None:
                if inventory is not self.inventory:
                    self.look(fully=True)
                return
            self.inventory = inventory
            self.forward_counter.start(root)
            self.backward_counter.begin_with(inventory)
            self.step_counter.start()

    def wake(self, probe: Hashable, *, just_started: bool = False) -> None:
        """Mark *probe* active; install the forward-end and accumulation hooks, unless the clock has *just_started* with these."""
        with self._lock:
            self.awake.add(probe)
            self.is_observed = True
            if not self.step_counter.is_announced:
                self.step_counter.announce()
            root = self.root()
            if root is None or (self._follows and self.awake != {probe}):
                return
            if not self._follows:  # else it did not sleep, since modules are compiled, but hooks on parameters were taken out
                self._follows = True
                self.forward_counter.follow(root)
            if not just_started and not self.backward_counter.put_in():
                self._is_due = True

    def rest(self, probe: Hashable) -> None:
        """Mark *probe* inactive. While no probe is active, only forwards and steps are counted. Idempotent."""
        with self._lock:
            self.awake.discard(probe)
            self.is_observed = bool(self.awake)
            root = self.root()
            if not self.awake and root is not None and not self.compiled_modules():
                self._sleep()

    def _sleep(self) -> None:
        self._follows = False
        self.forward_counter.rest()
        self.backward_counter.watch(self.step_counter.watched_at_rest())

    def stop(self, probe: Hashable) -> None:
        """Count *probe* no longer; for the last one take the hooks out."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                self.rest(probe)
                return
            self.awake.clear()
            self.is_observed = self._follows = False
            self.backward_counter.leave(self.inventory)
            self.inventory = self._compiled = None
            self.forward_counter.stop()
            self.step_counter.stop()
            self.forget_forwards()

    def _forward_at_rest(self) -> None:
        """Count a forward that no probe observes."""
        self.forwards += 1
        self.has_begun = True

    def look(self, *, fully: bool = False) -> None:
        """Look whether modules or parameters of the root came, went, or were replaced, and tell the probes of a change.

        A look costs a quarter of a microsecond for each module. Now and then, and *fully*, it is a walk, which also sees what was
        frozen, unfrozen or compiled. Nothing is done inside ``functional_call``, where modules hold other tensors than parameters.
        """
        self.looked = self.step
        root, known = self.root(), self.inventory
        if root is None:
            return
        count = self._looks = self._looks + 1
        is_full = fully or count & (count - 1) == 0 or count % _FULL_LOOK_EVERY == 0
        if (not (is_full or self._is_due) and known is not None and known.is_current) or has_substituted_parameters():
            return
        with self._lock:
            now = self.inventory = inventory_of(root)
            if now is not known or self._is_due:
                self._compiled, self._is_due = None, False
                self.refresh()
        if now is not known:
            self.followed.clear()
            for follow in tuple(self._changed):
                follow()

    def refresh(self) -> None:
        """Listen to parameters that have come, or need a gradient by now: at once, or from the next look on if nobody observes."""
        root = self.root()
        if not self._follows:
            self._is_due = True
        elif root is not None:
            self.step_counter.forget_optimizers()
            self.backward_counter.follow(inventory_of(root).parameters)

    # Reading

    @property
    def has_ended(self) -> bool:
        """Whether every probe that was attached is detached: the next one counts from 0, on a clock of its own."""
        return self._has_begun and self._users == 0

    @property
    def ended(self) -> Tick:
        """The tick of the step that ended last."""
        return self.step_counter.ended

    @property
    def turns(self) -> Turns:
        """Which optimizer made which step, and is expected to make the next."""
        return self.step_counter.turns

    @property
    def again(self) -> bool:
        """Whether the optimizer that steps is part of a step that was counted already."""
        return self.step_counter.again

    def now(self) -> Tick:
        """Return the tick of this moment."""
        self.backward_counter.count_checkpointed()
        return self.tick_now()

    def end_open(self) -> None:
        """End a step whose end can only be seen as the next forward begins, if there is one. Idempotent."""
        self.backward_counter.count_checkpointed()
        self.step_counter.end_unsaid()

    def compiled_modules(self) -> frozenset[nn.Module]:
        """Return the root's modules that are in compiled code, as of the last look for changes."""
        is_compiled = self.forward_counter.is_compiled
        known = self.inventory, is_compiled
        root = self.root()
        if self._compiled is None or self._compiled[0] != known:
            found = [] if root is None else regions(root, (root,) if is_compiled else ())
            self._compiled = known, frozenset().union(*(region.modules for region in found))
        return self._compiled[1]

    def may_be_compiled(self) -> bool:
        """Return whether compiled code may call modules of the root, which would be compiled again for new hooks."""
        return bool(self.compiled_modules()) or compiler_state.has_compiled_any()

    def turn_of(self, optimizer: Optimizer) -> int:
        """Return the number of *optimizer* among those that step the root, in the order of their first steps."""
        return self.turns.turn_of(optimizer, optimizers.held_by(optimizer))

    # Moving

    def end_step(self) -> None:
        """Count a step of an optimizer that is not torch's."""
        self.step_counter.end_step()

    def continue_at(self, step: int) -> None:
        """Count on from *step*, as a training does that was interrupted before it."""
        self.step = step
        self.turns.begin_at(step)
        self.micro_step = 0
        self.stamp += 1

    def end_epoch(self, epoch: int | None = None) -> None:
        """Count an epoch that has ended; *epoch* sets the number of the next."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.stamp += 1

    # Callbacks

    def call_after_change(self, callback: Callable[[], None]) -> None:
        """Call *callback* when modules or parameters of the root were seen to have come, gone or been replaced."""
        self._changed.append(callback)

    def call_before_forward(self, callback: Callable[[], None]) -> None:
        """Call *callback* as each forward of the root begins, while a probe observes."""
        self.forward_counter.before.append(callback)

    def call_after_first_forward(self, callback: Callable[[], None]) -> None:
        """Call *callback* when a root with lazy parameters has returned, and these have a shape."""
        self.forward_counter.after_first.append(callback)

    def call_after_micro_step(self, callback: Callable[[], None]) -> None:
        """Call *callback* after each backward pass that wrote a ``.grad``, while a probe observes."""
        self.backward_counter.after.append(callback)

    def call_after_steps(self, callback: Callable[[], None], *, first: bool = False, until: int = 0) -> None:
        """Call *callback* when a step has ended and the step *until*, or a later one, begins; *first*: before all others."""
        self.step_counter.call_after(callback, first=first, until=until)

    def call_after_optimizer(self, callback: Callable[[Optimizer | None, bool], None]) -> None:
        """Call *callback* when an optimizer of the root has stepped: with the optimizer, and whether the step was taken.

        At the end of a backward pass in which optimizers have stepped *callback* is called once, with None.
        """
        self.step_counter.after_optimizer.append(callback)

    guard_steps = staticmethod(optimizers.guard_steps)
    stop_guarding = staticmethod(optimizers.stop_guarding)
    has_closure = staticmethod(optimizers.has_closure)

    def call_no_more(self, callback: Callable[..., None]) -> None:
        """Remove *callback* from every moment. Idempotent."""
        self.step_counter.call_no_more(callback)
        for callbacks in (
            self._changed,
            self.forward_counter.before,
            self.forward_counter.after_first,
            self.backward_counter.after,
            self.step_counter.after_optimizer,
        ):
            held: list[Any] = callbacks
            if callback in held:
                held.remove(callback)


_Clocks: TypeAlias = weakref.WeakKeyDictionary[nn.Module, weakref.ref[Clock]]
_clocks: _Clocks = weakref.WeakKeyDictionary()
_making = threading.Lock()


def clock_of(root: nn.Module) -> Clock:
    """Return the clock of *root*: that of the probes that are, or are about to be, attached, or a new one, which counts from 0.

    Inside a quiet block a clock that does not count there is left alone.
    """
    with _making:
        clock = _running(_clocks, root)
        if clock is not None and not (blocks and clock.is_quiet()):
            return clock
        block = innermost() if clock is not None else None
        clocks: _Clocks = _clocks if block is None else block.clocks
        clock = _running(clocks, root)
        if clock is None:
            clock = Clock(root)
            clocks[root] = weakref.ref(clock)
        return clock


def _running(clocks: _Clocks, root: nn.Module) -> Clock | None:
    known = clocks.get(root)
    clock = known() if known is not None else None
    return None if clock is None or clock.has_ended else clock
