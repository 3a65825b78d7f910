"""The attachment of one probe to models: its life, its schedule, and the look for changes of the models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import inf

from torch import Tensor, nn

from sonde.engine import selection
from sonde.engine.clock.clock import Clock, clock_of
from sonde.engine.clock.pace import Pace
from sonde.engine.event import Subscriber
from sonde.engine.inventory import Inventory, Named, inventory_of
from sonde.engine.layer_axes import learn
from sonde.engine.probes.dead_hooks import DeadHookCheck, Root
from sonde.engine.probes.delivery import Delivery
from sonde.engine.probes.hook_set import HookSet
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.probes.statistic_hooks import StatisticHook
from sonde.engine.probes.step_hooks import StepHook
from sonde.engine.probes.targets import Target, Wanted, choose, sites_of
from sonde.engine.selection import Where
from sonde.engine.torch_api import compiler_state
from sonde.engine.torch_api.modules import is_scripted
from sonde.schedule import Schedule, When
from sonde.site import GRADIENT_PORTS, MODULE_PORTS, Port, Site
from sonde.stats import Statistic, Table
from sonde.warn import warn_user
from sonde.words import names_text

COMPILED_BACKWARD = "torch compiles the backward pass (compiled autograd)"


class Attachment:
    """One probe's hooks on models, and the clocks of these.

    Hooks lead here and not to the probe that people hold, so that a probe that is deleted can be noticed and its hooks removed.

    Attributes:
        delivery: the way to the observer.
        hooks: the hooks.
        roots: the models.
        attached: hooks are in.

    Args:
        do: a subscriber or a statistic.
        schedule: which steps are observed; None for all.
        strict: raise errors of the observer again.
        grad_at_step: observe ``grad`` before optimizer steps, and not after backward passes.
        training: True: observe training passes alone; False: evaluation passes alone; None: both.
        update_memory: bytes that copies of parameters may take, which ``update`` needs.
        table: the rows of the statistic; new ones by default.
        calls_apart: how many calls of a module in one forward have rows of their own; all others share one.
    """

    def __init__(
        self,
        do: Subscriber | Statistic,
        *,
        schedule: Schedule | None = None,
        strict: bool = False,
        grad_at_step: bool = False,
        training: bool | None = None,
        update_memory: float = inf,
        table: Table | None = None,
        calls_apart: int = 0,
    ) -> None:
        self._owns_rows = table is None
        if table is None and isinstance(do, Statistic):
            table = Table(do)
        self.delivery = Delivery(do, strict=strict, training=training, on_failure=self._detach_ended)
        self.hooks = HookSet(self.delivery, table, grad_at_step=grad_at_step, update_memory=update_memory, calls_apart=calls_apart)
        self.roots: list[Root] = []
        self.attached = False
        self._clock_failed = partial(self.delivery.failed, observer=Clock)
        self._pace = None if schedule is None else Pace(schedule)
        self._wanted: list[tuple[Wanted, list[Target]]] = []  # each selection, and what it meant when it was last looked at
        self._dead_hooks = DeadHookCheck(self.roots, self.delivery)
        self._has_refused = False
        self._seen = (compiler_state.backward_passes_compiled(), 0, 0)  # with the passes and steps counted, at the last forward

    # Choosing

    def observe(self, model: nn.Module, include: Where, exclude: Where, ports: tuple[Port, ...], name: str = "") -> None:
        """Prepare hooks on the selected modules of *model*; ``attach`` puts them in.

        Raises:
            ModelError, SelectionError, ArgumentError: see ``targets.choose``.
        """
        include, exclude = selection.settled(include), selection.settled(exclude)
        inventory = inventory_of(selection.check_model(model))
        chosen = choose(inventory, include, exclude, ports, name)
        selection.tell_of_globs(model, include=include, exclude=exclude)
        wanted = Wanted(model, include, exclude, ports, name)
        self._wanted.append((wanted, chosen))
        for path in inventory.remembered("scripted", lambda: [each.name for each in inventory.members if is_scripted(each.module)]):
            unhooked = {Site(path, port, "", name): "TorchScript, which takes no hooks" for port in ports}
            self.hooks.unhooked |= unhooked
        learn(inventory)
        clock = self._clock(model, inventory)
        self.hooks.add(chosen, clock, wanted, self.roots, inventory if self._owns_rows else None)

    def observe_one(self, module: nn.Module, path: str, ports: tuple[Port, ...]) -> None:
        """Prepare a hook on *module* alone, as *path*. Its clock is that of the observed model it is a part of, if any."""
        above = next((root for root in self.roots if any(member is module for member in root.model.modules())), None)
        clock = self._clock(module, inventory_of(module)) if above is None else above.clock
        (sites,) = sites_of([path], MODULE_PORTS, ports)
        self.hooks.add([Target(Named(path, module), sites)], clock, Wanted(module, None, None, ports), self.roots)

    def sites(self) -> list[Site]:
        """Return every site, in the order the hooks were prepared."""
        return self.hooks.sites()

    def rows(self) -> Iterator[tuple[Site, int, Tensor, SiteHook]]:
        """Yield the site, the call, the row in the table and the hook of each row of a statistic; none of a subscriber."""
        for hook in self.hooks.held:
            if isinstance(hook, StatisticHook):
                yield from ((hook.sites[port].at(leaf), call, row, hook) for (port, leaf, call), row in hook.places())

    def _clock(self, model: nn.Module, inventory: Inventory) -> Clock:
        for root in self.roots:
            if root.model is model:
                return root.clock
        clock = clock_of(model)
        self.roots.append(Root.of(model, clock, inventory))
        if self.attached:
            self._start(self.roots[-1], inventory)
        return clock

    # A model that changes

    def rescan(self) -> None:
        """Look through the models, and follow what has changed in them."""
        for root in self.roots:
            root.clock.look(fully=True)

    def _follow_changes(self) -> None:
        """Follow modules and parameters that were replaced, added or removed since they were chosen, and warn of it."""
        followed: list[str] = []
        for position, (wanted, before) in enumerate(self._wanted):
            targets = wanted.targets()
            known, now = {target.key for target in before}, {target.key for target in targets}
            if now == known:
                continue
            self._wanted[position] = (wanted, targets)
            clock = self._clock(wanted.model, inventory_of(wanted.model))
            gone = {name for name, _ in known - now}
            for target in targets:
                if target.key not in known:
                    self.hooks.replace(target, clock, self.roots)
                    followed.append(target.item.name or "(root)")
            for name in gone - {target.item.name for target in targets}:
                self.hooks.drop(name, clock)
        for root in self.roots:
            if root.clock.inventory is not None:
                root.inventory = root.clock.inventory
                learn(root.inventory)
        if followed:
            self.hooks.sample_updates()
            told = self.roots[0].clock.followed
            if not told.issuperset(followed):
                told.update(followed)
                was, is_ = ("was", "is") if len(followed) == 1 else ("were", "are")
                warn_user(
                    f"the model has changed since it was observed: {names_text(followed, 5)} came or {was} replaced, and {is_} "
                    "observed from now on"
                )

    # Life

    def attach(self, *, resting: bool = False, just_observed: bool = False) -> None:
        """Put every hook in; if *resting*, only those that count forwards and steps, until ``resume``. Idempotent.

        *just_observed* says that ``observe`` has looked at the models just now.
        """
        if self.attached:
            return
        self.attached = True
        self._dead_hooks.is_due = True
        self.delivery.begin()
        compiler_state.notice_hooks()
        try:
            for root in self.roots:
                self._start(root, root.inventory if just_observed else inventory_of(root.model))
            self._follow_schedule()
            if self._pace is None and not resting:
                self.resume(just_started=True)
            if not self.delivery.switch.on:
                self._rest_in_compiled_code()
        except BaseException:
            self._take_out()
            raise

    def detach(self) -> None:
        """Take every hook out; a backward pass that comes later delivers nothing. Idempotent."""
        if not self.attached:
            return
        dead = self._dead_hooks.check_at_end(self.hooks.held)
        self.hooks.note_later_hooks()
        self._take_out()
        self._dead_hooks.report(dead, len(self.hooks))

    def _detach_ended(self) -> None:
        """Take every hook out if the observer has failed as a whole, or at each site."""
        sites = self.sites()
        if self.delivery.stopped_by is not None or (len(self.delivery.stopped) >= len(sites) and self.delivery.has_ended(sites)):
            self.detach()

    def _take_out(self) -> None:
        self.attached = False
        self.delivery.stop()
        self.hooks.take_out()
        for root in self.roots:
            clock = root.clock
            clock.on_error.pop(self._clock_failed, None)
            clock.call_no_more(self._follow_changes)
            clock.call_no_more(self._before_forward)
            clock.call_no_more(self._follow_schedule)
            clock.call_no_more(self.hooks.put_in_waiting)
            clock.call_no_more(self._dead_hooks.note_used)
            clock.stop(self)

    def dispose(self) -> None:
        """Detach, and drop all data: the probe is gone, and its data must not wait for the garbage collector."""
        self.detach()
        self.hooks.give_up()
        self.forget()
        self.delivery.forget_subscriber()
        self.hooks.table = None

    def forget(self) -> None:
        """Let go of every model; only while detached."""
        self.hooks.forget()
        self._wanted.clear()
        self.roots.clear()
        self.delivery.notes.clear()
        self.delivery.refused.clear()

    def _start(self, root: Root, inventory: Inventory) -> None:
        root.clock.start(inventory)
        root.remember_gradients(inventory)
        root.clock.on_error[self._clock_failed] = self.delivery.strict
        root.clock.call_after_change(self._follow_changes)
        root.clock.call_before_forward(self._before_forward)
        if self._pace is not None:
            root.clock.call_after_steps(self._follow_schedule)
        root.clock.call_after_first_forward(self.hooks.put_in_waiting)
        root.clock.call_after_micro_step(self._dead_hooks.note_used)
        if self.delivery.switch.on:
            root.clock.wake(self, just_started=True)

    def resume(self, *, just_started: bool = False) -> None:
        """Observe from now on, if the probe is attached; *just_started*: the models were looked at as the clocks started."""
        if not self.attached:
            return
        if not self.delivery.switch.on:
            self._dead_hooks.begin()
        self.delivery.switch.on = self.delivery.switch.in_code = True
        for root in self.roots:
            root.clock.wake(self, just_started=just_started)
        self.hooks.put_in()

    def pause(self, *, between_steps: bool = False, in_code: bool = False) -> None:
        """Observe nothing until ``resume``; with *in_code*, compiled code still calls the hooks, which add nothing.

        Between steps the clock may rest too, since micro-steps are counted from the step that ends the pause.
        """
        self.delivery.switch.on = False
        self.delivery.switch.in_code = in_code
        self.hooks.rest(frozenset().union(*[root.clock.compiled_modules() for root in self.roots]))
        if between_steps:
            for root in self.roots:
                root.clock.rest(self)

    def _rest_in_compiled_code(self) -> None:
        """Put hooks in where modules are marked as compiled, as between observed steps: what is compiled first then holds later."""
        if any(root.clock.compiled_modules() for root in self.roots):
            self.resume(just_started=True)
            self.pause(between_steps=True)

    # Time

    @property
    def clocks(self) -> list[Clock]:
        """The clocks of the models under observation."""
        return [root.clock for root in self.roots]

    @property
    def ran(self) -> bool:
        """Whether a root was called since the probe was attached."""
        return any(root.ran for root in self.roots)

    def go_on(self, wanted: bool, *, in_code: bool = False) -> None:
        """A step has ended; observe the next one if it is *wanted*. Else compiled code calls the hooks if *in_code*."""
        self._dead_hooks.check(self.hooks.held)
        if wanted and not self.delivery.switch.on:
            self.resume()
        elif not wanted and self.delivery.switch.on:
            self.pause(between_steps=True, in_code=in_code)
        elif not wanted:
            self.delivery.switch.in_code = in_code

    def _follow_schedule(self) -> None:
        if self._pace is None or not self.roots:
            return
        clock = self.roots[0].clock
        try:
            self._pace.begin(clock.now(), clock.turns)
        except Exception as error:
            schedule = self._pace.schedule
            self.delivery.failed(error, schedule.asked if isinstance(schedule, When) else schedule)
            return
        self.go_on(self._pace.on)

    def _refuse_gradients(self) -> None:
        """Stop observing gradients in compiled backward passes, with a warning."""
        refused = [
            (hook, port)
            for hook in self.hooks
            for port in hook.sites
            if port in GRADIENT_PORTS and not isinstance(hook, StepHook) and hook.sites[port] not in self.delivery.stopped
        ]
        for hook, port in refused:
            hook.stop_at(port, COMPILED_BACKWARD)
        if refused and not self._has_refused:
            self._has_refused = True
            hook, port = refused[0]
            warn_user(
                f"no gradient is observed at {hook.sites[port]}{f' and {len(refused) - 1} other sites' * (len(refused) > 1)}: "
                f"{COMPILED_BACKWARD}, which leaves hooks on gradients out. The training, and all other ports, go on. "
                "Set torch._dynamo.config.compiled_autograd = False to observe gradients, or observe them as the optimizer "
                'sees them: ports="grad", grad_at_step=True.'
            )

    def _misses_compiled_backward(self) -> bool:
        """Return whether torch has compiled a backward pass, and a step has ended on gradients that no hook on a parameter saw.

        So a program is known that has only the backward pass compiled, and not what calls the forward.
        """
        compiled, passes, steps = self._seen
        now = compiler_state.backward_passes_compiled()
        has_passed = passes != (passes := sum(root.clock.backward_counter.count for root in self.roots))
        has_stepped = steps != (steps := sum(root.clock.step for root in self.roots))
        if now <= compiled or has_passed or has_stepped:
            self._seen = now, passes, steps
        return now > compiled and has_stepped and not has_passed

    def _before_forward(self) -> None:
        if compiler_state.compiles_backward() or self._misses_compiled_backward():
            self._refuse_gradients()
        self._dead_hooks.check(self.hooks.held)
        if self.delivery.switch.on:
            self.hooks.put_in_waiting()
