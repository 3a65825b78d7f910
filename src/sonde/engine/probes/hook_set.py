"""The hooks of one probe: make them for selected modules and parameters, put them in, take them out."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from operator import is_
from typing import Any

import torch
from torch import nn

from sonde.engine import selection
from sonde.engine.clock.clock import Clock
from sonde.engine.inventory import Inventory, Named
from sonde.engine.probes.aliases import Aliases, ParentMark
from sonde.engine.probes.dead_hooks import Root
from sonde.engine.probes.delivery import Delivery
from sonde.engine.probes.event_hooks import InputEventHook, ModuleEventHook, OutputEventHook, ParameterEventHook
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.probes.statistic_hooks import InputStatisticHook, OutputStatisticHook, ParameterStatisticHook, StatisticHook
from sonde.engine.probes.step_hooks import AroundSteps, StepEventHook, StepHook, StepStatisticHook, sample_updates
from sonde.engine.probes.targets import Sites, Target, Wanted
from sonde.engine.torch_api import hooks
from sonde.site import Port, Site
from sonde.stats import Table

LATER_HOOK = "a hook registered later runs after this one, and may return another output"
REPLACED = "came or was replaced after the probe was attached"
_COMPILED_BEFORE = "; the code was compiled before that was seen, and its first call ran without the hook"

# The hooks on modules, for events and for statistics, in the order of their sites
_MODULE_HOOKS = (
    (InputEventHook, InputStatisticHook),
    (OutputEventHook, OutputStatisticHook),
)


@dataclass(slots=True, eq=False)
class KeptHooks:
    """Hooks that were made together for a selection, with the rows of a statistic: the inventory of the model keeps them whole.

    Attributes:
        sites: of each target.
        hooks: each with the position of its target.
        how: what else the hooks follow from.
        table: their rows; None of events, and where other rows came to those that they were given.
    """

    sites: list[Sites]
    hooks: list[tuple[SiteHook, int]]
    how: tuple[object, ...]
    table: Table | None


_OUTPUT_HOOKS = (OutputEventHook, OutputStatisticHook)


class HookSet:
    """The hooks of one probe. Iterate over it for these.

    Attributes:
        held: the hooks, in the order in which they were made: another list as soon as one comes or goes.
        table: holds the rows of a statistic; None for a subscriber.
        unhooked: sites that could be selected, but take no hook, each with the reason.
    """

    def __init__(
        self, delivery: Delivery, table: Table | None, *, grad_at_step: bool, update_memory: float = inf, calls_apart: int = 0
    ) -> None:
        self.table = table
        self._calls_apart = calls_apart  # calls in a forward that have rows of their own
        self.unhooked: dict[Site, str] = {}
        self._delivery = delivery
        self._grad_at_step = grad_at_step
        self._update_memory = update_memory  # bytes that copies of parameters may take
        self.held: list[SiteHook] = []
        self._waiting: list[SiteHook] = []  # on parameters that take no hooks as yet
        self._marks: list[ParentMark] = []
        self._around: dict[Clock, AroundSteps] = {}
        self._kept: list[tuple[Inventory, KeptHooks]] = []  # what may be kept of the hooks when the probe is gone
        self._uncollected = weakref.ref(HookSet, lambda _: None)  # of its own, as any with a callback

    def __iter__(self) -> Iterator[SiteHook]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def sites(self) -> list[Site]:
        """Return every site, in the order of the hooks."""
        return [site for hook in self.held for site in hook.sites.values()]

    def canonical(self, name: str) -> str:
        """Return the canonical name of the module known as *name*; *name* itself if that is none of a module's other names."""
        for hook in self.held:
            if isinstance(hook, ModuleEventHook) and hook.aliases is not None and name in hook.aliases.names:
                return hook.name
        return name

    # Making

    def add(
        self, targets: Sequence[Target], clock: Clock, wanted: Wanted, roots: Sequence[Root], inventory: Inventory | None = None
    ) -> None:
        """Make the hooks of *targets*, or use those that a probe before has left; put them in if the probe observes.

        Args:
            targets: what to hook.
            clock: of the model they belong to.
            wanted: the selection they come from.
            roots: models whose parameters tell the device of a row, where a module has none.
            inventory: of the model, with the sites of *targets*; None where these are made for this probe alone.
        """
        if self.held or (self.table is not None and not self.table.is_of_values):
            inventory = None  # nothing is taken over or left: a statistic of the user's may hold anything
        made = [] if inventory is None else self._left_by_former(targets, clock, inventory, roots)
        is_new = not made
        if is_new:
            placed = [(hook, at) for at, target in enumerate(targets) for hook in self._made_for(target, clock)]
            made = [hook for hook, _ in placed]
            if inventory is not None:
                sites = [target.sites for target in targets]
                self._kept.append((inventory, KeptHooks(sites, placed, self._how(), self.table)))
        if self.held:  # the same module under the same name is observed once
            former: dict[int, list[SiteHook]] = {}
            for held in self.held:
                former.setdefault(id(held.target), []).append(held)
            made = [hook for hook in made if not any(held.sites == hook.sites for held in former.get(id(hook.target), ()))]
        if is_new:
            self._give_rows(made, roots)
        self.held = [*self.held, *made]
        if self._delivery.switch.on:
            for hook in made:
                self._put_in(hook)
        self.sample_updates()
        self._name_shared([target.item for target in targets if target.item.aliases], clock, wanted.model)

    def _how(self) -> tuple[object, ...]:
        return self.table is not None, self._grad_at_step, self._calls_apart

    def _left_by_former(
        self, targets: Sequence[Target], clock: Clock, inventory: Inventory, roots: Sequence[Root]
    ) -> list[SiteHook]:
        """Return the hooks of *targets* that a probe like this one has left; none if there are no such hooks."""
        sites, how, table = [target.sites for target in targets], self._how(), self.table

        def fits(kept: KeptHooks) -> bool:
            is_same = kept.how == how and len(kept.sites) == len(sites) and all(map(is_, kept.sites, sites))
            return is_same and (kept.table is None or table is None or kept.table.statistic == table.statistic)

        kept = inventory.take(KeptHooks, fits)
        if kept is None:
            return []
        self._kept.append((inventory, kept))
        if kept.table is not None:
            self.table = kept.table
            self.table.reset()
        made = [self._begin(hook, targets[at], clock) for hook, at in kept.hooks]
        if kept.table is None:
            kept.table = table
            self._give_rows(made, roots)
        for hook in made:
            if isinstance(hook, StatisticHook):
                hook.hold_again()
        return made

    def give_up(self) -> None:
        """Leave the hooks to a later probe on the same model, if they are as they were made; only after ``take_out``.

        Not where the collector has found this: it has ended the weak references that the hooks hold, as any garbage's.
        """
        kept, self._kept = self._kept, []
        if self._delivery.errors or self._delivery.stopped or self._uncollected() is None:
            return
        for inventory, made in kept:
            found = [hook for hook, _ in made.hooks]
            if found == self.held[: len(found)] and not any(hook.is_in for hook in found):
                if not all(hook.has_own_rows for hook in found if isinstance(hook, StatisticHook)):
                    made.table = None
                for hook in found:
                    hook.give_up()
                inventory.keep(made)

    def replace(self, target: Target, clock: Clock, roots: Sequence[Root]) -> None:
        """Let hooks of *target* go on where those of the same sites stop; without such hooks add them."""
        for hook in self._made_for(target, clock):
            old = next((held for held in self.held if held.sites == hook.sites and held.clock is clock), None)
            if old is None:
                self._give_rows([hook], roots)
                self.held = [*self.held, hook]
            else:
                old.detach()
                hook.take_over(old)
                self.held = [hook if held is old else held for held in self.held]
                self._waiting = [held for held in self._waiting if held is not old]
            if self._delivery.switch.on:
                self._put_in(hook)
            when = f", by step {clock.step}" if clock.step else ""
            is_late = hook.is_on_module and hook.module in clock.compiled_modules()
            hook.note(f"{REPLACED}{when}{_COMPILED_BEFORE if is_late else ''}")

    def drop(self, name: str, clock: Clock) -> None:
        """Take the hooks called *name* out for good: their module or parameter is gone."""
        gone = [hook for hook in self.held if hook.name == name and hook.clock is clock]
        self.remove(gone)
        for hook in gone:
            self.unhooked |= dict.fromkeys(hook.sites.values(), "was removed from the model after the probe was attached")

    def remove(self, gone: Collection[SiteHook]) -> None:
        """Take hooks out for good."""
        for hook in gone:
            hook.detach()
        self.held = [hook for hook in self.held if hook not in gone]
        self._waiting = [hook for hook in self._waiting if hook not in gone]

    def sample_updates(self) -> None:
        """Let copies of parameters fit into memory: observe samples of the largest ones."""
        if self._around:
            self._delivery.notes |= sample_updates(self.held, self._update_memory)

    def _made_for(self, target: Target, clock: Clock) -> Iterator[SiteHook]:
        name, adds, sites = target.item.name, self.table is not None, target.sites
        if target.parameter is not None:
            held = sites
            if "grad" in sites and not self._grad_at_step:
                held = {port: site for port, site in sites.items() if port != "grad"}
                kind = ParameterStatisticHook if adds else ParameterEventHook
                yield self._begin(kind(name, {"grad": sites["grad"]}), target, clock)
            if held:
                step_kind = StepStatisticHook if adds else StepEventHook
                yield self._begin(step_kind(name, held), target, clock)
            return
        entrance: InputEventHook | None = None
        for module_kind, ports in _module_hooks(tuple(sites), adds):
            here = sites if len(ports) == len(sites) else {port: sites[port] for port in ports}
            hook: SiteHook = self._begin(module_kind(name, here), target, clock)
            if isinstance(hook, InputEventHook):
                entrance = hook
            elif type(hook) is OutputEventHook:  # one hook alone may take a call off the list of those that the entrance began
                hook.entrance = entrance
            yield hook

    def _begin(self, hook: SiteHook, target: Target, clock: Clock) -> SiteHook:
        """Let *hook* work for this probe, on *target*; return it."""
        hook.begin(self._delivery, clock, target.item.module, target.parameter)
        if isinstance(hook, StepHook):
            if clock not in self._around:
                self._around[clock] = AroundSteps(clock, self._delivery.switch)
            hook.around = self._around[clock]  # type: ignore[misc]  # the slot is the subclass's
        return hook

    def _give_rows(self, made: Sequence[SiteHook], roots: Sequence[Root]) -> None:
        """Let the hooks *made* of a statistic have rows, on the devices of their modules."""
        if self.table is None:
            return
        by_device: dict[torch.device, list[StatisticHook]] = {}
        only = _only_device(roots)
        for hook in made:
            if isinstance(hook, StatisticHook):
                device = only or _device_of((hook.module, *(root.model for root in roots)))
                by_device.setdefault(device, []).append(hook)
        for device, hooked in by_device.items():
            rows = iter(self.table.allocate(sum(len(hook.sites) for hook in hooked), device))
            for hook in hooked:
                hook.hold(self.table, {port: next(rows) for port in hook.sites}, self._calls_apart, hooked[0])

    def _name_shared(self, items: list[Named], clock: Clock, model: nn.Module) -> None:
        """Mark the parents of shared modules, so that an event carries the name by which the module was called."""
        if not items or self.table is not None:
            return
        by_name = {name: member.module for member in selection.members(model) for name in (member.name, *member.aliases)}
        for item in items:
            aliases = Aliases(item, by_name)
            for hook in self.held:
                if isinstance(hook, ModuleEventHook) and hook.module is item.module:
                    hook.aliases = aliases
            for parent in aliases.parents:
                if all(mark.parent is not parent for mark in self._marks):
                    self._marks.append(ParentMark(clock, parent))
                    if self._delivery.switch.on:
                        self._marks[-1].attach()

    # In and out

    def put_in(self) -> None:
        """Put every hook in. Idempotent."""
        for mark in self._marks:
            mark.attach()
        self._waiting = []
        for hook in self.held:
            if not hook.is_in:
                hook.attach()
                if not hook.is_in:
                    self._waiting.append(hook)

    def _put_in(self, hook: SiteHook) -> None:
        hook.attach()
        if not hook.is_in:
            self._waiting.append(hook)

    def put_in_waiting(self) -> None:
        """If the probe observes, put hooks on parameters in that were frozen or had no shape, and are not or have one now."""
        if self._waiting and self._delivery.switch.on:
            waiting, self._waiting = self._waiting, []
            for hook in waiting:
                self._put_in(hook)
                if hook.is_in:
                    hook.clock.refresh()

    def rest(self, inside: Collection[nn.Module]) -> None:
        """Take hooks out, except on modules *inside* compiled code: these hooks do nothing while the switch is off."""
        for hook in self.held:
            if hook.was_eager and hook.is_in and hook.module not in inside and not isinstance(hook, StepHook):
                hook.detach()
        for mark in self._marks:
            mark.detach()

    def take_out(self) -> None:
        """Take every hook out. Idempotent."""
        for mark in self._marks:
            mark.detach()
        for hook in self.held:
            hook.detach()

    def additions(self) -> dict[int, int]:
        """Return how often something was added to each row, by its id. One copy per device."""
        return {} if self.table is None else Table.additions([self.table])

    def forget(self) -> None:
        """Let go of every model; only after ``take_out``."""
        self.held = []
        self._waiting.clear()
        self._marks.clear()
        self._around.clear()
        self._kept.clear()

    def note_later_hooks(self) -> None:
        """Note where a hook that was registered after ours may return another output than the one we were given."""
        for hook in self.held:
            if isinstance(hook, _OUTPUT_HOOKS) and hook.handle is not None and hook.is_in:
                later = hooks.registered_later(hook.module, hook.handle)
                if any(not isinstance(other, hooks.Hook) for other in later):
                    hook.note(LATER_HOOK)


@cache
def _module_hooks(ports: tuple[Port, ...], adds: bool) -> list[tuple[Any, tuple[Port, ...]]]:
    """Return the kinds of hooks that observe *ports* of a module, each with those that are its own; of a statistic if *adds*."""
    kinds = [of_statistics if adds else of_events for of_events, of_statistics in _MODULE_HOOKS]
    own = [(kind, tuple([port for port in ports if port in (kind.value_port, kind.gradient_port)])) for kind in kinds]
    return [(kind, here) for kind, here in own if here]


def _only_device(roots: Sequence[Root]) -> torch.device | None:
    """Return the device of all parameters of *roots*; None if there are several devices, or no parameter with data."""
    devices = {parameter.device for root in roots for parameter in root.inventory.parameters}
    return devices.pop() if len(devices) == 1 and torch.device("meta") not in devices else None


def _device_of(modules: Sequence[nn.Module]) -> torch.device:
    for module in modules:
        for parameter in module.parameters():
            if not parameter.is_meta:
                return parameter.device
    return torch.device("cpu")
