"""What one probe has put on models, and the one place where a failure of an observer ends up."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn

from sonde.engine import selection
from sonde.engine.clock.clock import Clock, clock_of
from sonde.engine.event import Event, Subscriber, Tick, weakly
from sonde.engine.failures import ProbeError, name_of, warn_user
from sonde.engine.probes import dead_hooks
from sonde.engine.probes.aliases import Aliases, ParentMark
from sonde.engine.probes.dead_hooks import Root
from sonde.engine.probes.event_hooks import EventHook, InputEventHook, OutputEventHook, ParameterEventHook
from sonde.engine.probes.gradients import Pending
from sonde.engine.probes.statistic_hooks import InputStatisticHook, OutputStatisticHook, ParameterStatisticHook, StatisticHook
from sonde.engine.probes.step_hooks import StepEventHook, StepHook, StepStatisticHook, sample_updates
from sonde.engine.probes.switch import Switch
from sonde.engine.probes.targets import Target, Wanted, choose, fingerprint, is_time_to_look
from sonde.engine.selection import Named, Where
from sonde.engine.torch_api import compiled, hooks
from sonde.errors import DeadHookError
from sonde.site import PARAMETER_PORTS, PORTS, Port, Site
from sonde.stats import Statistic, Table

__all__ = ["Attachment", "Schedule"]

Schedule = Callable[[Tick], bool]
"""Whether the step that begins at this tick is observed."""

# Looking whether the model has changed costs a walk over its modules: at the forwards 2, 4, 8, ... and then at every 64th
_RESCAN_EVERY = 64


@dataclass(slots=True)
class _Leaf:
    """A leaf of the graph that a module returned, the one hook on it, and who listens, for the forward that was last."""

    tensor: weakref.ref[Tensor]
    handle: hooks.Handle
    forward: int
    listeners: list[Callable[[Tensor], None]]


class Attachment:
    """Taps on modules, their clocks, and how to take all of it away again.

    Hooks lead here and not to the probe that people hold, so that a probe that is deleted can be noticed and its hooks
    removed.
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
    ) -> None:
        self.statistic = do if isinstance(do, Statistic) else None
        self.subscriber: Subscriber = _nobody if isinstance(do, Statistic) else weakly(do)
        self.table = None if self.statistic is None else Table(self.statistic)
        self.schedule = schedule
        self.strict = strict
        self._grad_at_step = grad_at_step
        self._update_memory = update_memory  # bytes that the copies of parameters may take which updates need
        self.switch = Switch(training)
        self.attached = False
        self.thread: int | None = None
        self.taps: list[EventHook] = []
        self._waiting: list[EventHook] = []  # for a parameter that takes no hooks as yet
        self.errors: list[ProbeError] = []
        self.stopped_by: Exception | None = None
        self.notes: dict[Site, str] = {}
        self.unhooked: dict[Site, str] = {}  # what could be selected, but takes no hook
        self.pending = Pending()
        self.roots: list[Root] = []
        self._wanted: list[tuple[Wanted, set[tuple[str, int]]]] = []
        self._marks: list[ParentMark] = []
        self._checked = False
        self._forwards = 0
        self._leaves: dict[tuple[int, int], _Leaf] = {}

    # Building

    def observe(self, model: nn.Module, include: Where, exclude: Where, ports: tuple[Port, ...], name: str = "") -> None:
        """Prepare taps on the selected modules of *model*; ``attach`` puts them in.

        Raises:
            ModelError, SelectionError, ArgumentError: see ``targets.choose``.
        """
        include, exclude = selection.settled(include), selection.settled(exclude)
        chosen = choose(model, include, exclude, ports)
        wanted = Wanted(model, include, exclude, ports, name)
        self._wanted.append((wanted, {target.key for target in chosen}))
        for item in selection.members(model):
            if isinstance(item.module, torch.jit.ScriptModule):
                self.unhooked |= {Site(item.name, port, "", name): "TorchScript, which takes no hooks" for port in ports}
        self._add_all(chosen, self._clock(model), wanted)

    def observe_one(self, module: nn.Module, path: str, ports: tuple[Port, ...]) -> None:
        """Prepare a tap on *module* alone, as *path*. Its clock is that of the model it is known to be part of."""
        above = next((root for root in self.roots if any(member is module for member in root.model.modules())), None)
        clock = self._clock(module) if above is None else above.clock
        self._add_all([Target(Named(path, module))], clock, Wanted(module, None, None, ports))

    def sites(self) -> list[Site]:
        """Every site, in the order the taps were prepared."""
        return [site for tap in self.taps for site in tap.sites.values()]

    def _add_all(self, targets: list[Target], clock: Clock, wanted: Wanted) -> None:
        for target in targets:
            for tap in self._taps_for(target, clock, wanted):
                self._add(tap)
        self.notes |= sample_updates(self.taps, self._update_memory)
        self._name_shared([target.item for target in targets if target.item.aliases], clock, wanted.model)

    def _taps_for(self, target: Target, clock: Clock, wanted: Wanted) -> Iterator[EventHook]:
        tally = self.statistic is not None
        sites: dict[Port, Site] = {port: Site(target.item.name, port, "", wanted.name) for port in wanted.ports}
        if target.parameter is not None:
            held: dict[Port, Site] = {port: site for port, site in sites.items() if port in PARAMETER_PORTS}
            if "grad" in held and not self._grad_at_step:
                accumulated: dict[Port, Site] = {"grad": held.pop("grad")}
                yield (ParameterStatisticHook if tally else ParameterEventHook)(
                    self, clock, target.item, accumulated, target.parameter
                )
            if held:
                yield (StepStatisticHook if tally else StepEventHook)(self, clock, target.item, held, target.parameter)
            return
        given: dict[Port, Site] = {port: site for port, site in sites.items() if PORTS[port].of == "input"}
        returned: dict[Port, Site] = {port: site for port, site in sites.items() if PORTS[port].of == "output"}
        entrance = (InputStatisticHook if tally else InputEventHook)(self, clock, target.item, given) if given else None
        if entrance is not None:
            yield entrance
        if returned:
            tap = (OutputStatisticHook if tally else OutputEventHook)(self, clock, target.item, returned)
            if isinstance(tap, OutputEventHook) and isinstance(entrance, InputEventHook):
                tap.entrance = entrance
            yield tap

    def _add(self, tap: EventHook) -> None:
        if any(held.target is tap.target and held.sites == tap.sites for held in self.taps):
            return  # the same module under the same name: observed once
        if isinstance(tap, StatisticHook) and self.table is not None:
            rows = self.table.allocate(len(tap.sites), _device_of(tap.module, self.roots))
            tap.hold(self.table, dict(zip(tap.sites, rows, strict=True)))
        self.taps.append(tap)
        if self.attached and self.switch.on:
            self._put_in(tap)

    def _put_in(self, tap: EventHook) -> None:
        tap.attach()
        if not tap.is_in:
            self._waiting.append(tap)

    def _name_shared(self, items: list[Named], clock: Clock, model: nn.Module) -> None:
        """Have the parents of shared modules marked, so that events can say by which name a module was called."""
        if not items or self.statistic is not None:
            return
        by_name = {name: member.module for member in selection.members(model) for name in (member.name, *member.aliases)}
        for item in items:
            aliases = Aliases(item, by_name)
            for tap in self.taps:
                if tap.module is item.module and tap.target is tap.module:
                    tap.aliases = aliases
            for parent in aliases.parents:
                if all(mark.parent is not parent for mark in self._marks):
                    self._marks.append(ParentMark(clock, parent))
                    if self.attached and self.switch.on:
                        self._marks[-1].attach()

    def _clock(self, model: nn.Module) -> Clock:
        for root in self.roots:
            if root.model is model:
                return root.clock
        clock = clock_of(model)
        self.roots.append(Root(model, clock, clock.forwards, clock.returned, clock.backwards))
        if self.attached:
            self._start(self.roots[-1])
        return clock

    def canonical(self, name: str) -> str:
        """The name that the module known as *name* has here; *name* itself if that is none of its other names."""
        for tap in self.taps:
            if tap.aliases is not None and name in tap.aliases.names:
                return tap.name
        return name

    # A model that changes

    def _look_for_changes(self) -> None:
        for root in self.roots:
            now = fingerprint(root.model)
            if root.fingerprint is not None and now != root.fingerprint:
                root.clock.refresh()
                self.rescan()
            root.fingerprint = now

    def rescan(self) -> None:
        """Follow modules and parameters that were replaced, added or removed since they were chosen, and say so."""
        followed: list[str] = []
        for position, (wanted, known) in enumerate(self._wanted):
            targets = wanted.targets()
            now = {target.key for target in targets}
            if now == known:
                continue
            self._wanted[position] = (wanted, now)
            clock = self._clock(wanted.model)
            gone = {name for name, _ in known - now}
            for target in targets:
                if target.key not in known:
                    self._replace(target, clock, wanted)
                    followed.append(target.item.name or "(root)")
            for name in gone - {target.item.name for target in targets}:
                self._drop(name, clock)
        if followed:
            self.notes |= sample_updates(self.taps, self._update_memory)
            shown = ", ".join(followed[:5]) + (", ..." if len(followed) > 5 else "")
            warn_user(
                f"the model has changed since it was observed: {shown} came or was replaced, and is observed from now on; what it "
                "did before that was not seen"
            )

    def _replace(self, target: Target, clock: Clock, wanted: Wanted) -> None:
        for tap in self._taps_for(target, clock, wanted):
            old = next((held for held in self.taps if held.sites == tap.sites and held.clock is clock), None)
            if old is None:
                self._add(tap)
            else:
                old.detach()
                tap.take_over(old)
                self.taps[self.taps.index(old)] = tap
                self._waiting = [held for held in self._waiting if held is not old]
                if self.switch.on:
                    self._put_in(tap)
            self.note(tap, "came or was replaced after the probe was attached")

    def _drop(self, name: str, clock: Clock) -> None:
        gone = [tap for tap in self.taps if tap.name == name and tap.clock is clock]
        for tap in gone:
            tap.detach()
            self.unhooked |= dict.fromkeys(tap.sites.values(), "was removed from the model after the probe was attached")
        self.taps = [tap for tap in self.taps if tap not in gone]
        self._waiting = [tap for tap in self._waiting if tap not in gone]

    # Life

    def attach(self, *, resting: bool = False) -> None:
        """Put every hook in; if *resting*, only what notices forwards and steps, until ``resume``. Does nothing if they are."""
        if self.attached:
            return
        self.attached = True
        self._checked = False
        self.stopped_by = None
        compiled.notice_hooks()
        try:
            for root in self.roots:
                self._start(root)
            self._follow_schedule()
            if self.schedule is None and not resting:
                self.resume()
        except BaseException:
            self._take_out()
            raise

    def detach(self) -> None:
        """Take every hook out. Does nothing if they are; a backward pass that comes later delivers nothing."""
        if not self.attached:
            return
        unchecked = not self._checked and self.switch.on and (self._can_judge() or self._ran_unseen())
        dead = self.silent() if unchecked else []
        self._checked = True
        self.note_later_hooks()
        self._take_out()
        self._report(dead)

    def _take_out(self) -> None:
        self.attached = False
        self.switch.on = False
        self.thread = None
        for mark in self._marks:
            mark.detach()
        for tap in self.taps:
            tap.detach()
        for leaf in self._leaves.values():
            leaf.handle.remove()
        self._leaves.clear()
        for root in self.roots:
            clock = root.clock
            if self._before_forward in clock.before_forward:
                clock.before_forward.remove(self._before_forward)
                clock.call_no_more(self._follow_schedule)
                clock.after_first_forward.remove(self._attach_parameters)
                clock.rest(self)
                clock.stop()

    def dispose(self) -> None:
        """Detach, and let go of everything: the probe is gone, and what it kept must not wait for the garbage collector."""
        self.detach()
        self.forget()
        self.subscriber = _nobody
        self.table = None

    def forget(self) -> None:
        """Let go of every model; only while detached."""
        self.taps.clear()
        self._waiting.clear()
        self._marks.clear()
        self._wanted.clear()
        self.roots.clear()
        self.notes.clear()

    def _start(self, root: Root) -> None:
        root.clock.start()
        root.remember_gradients()
        root.fingerprint = fingerprint(root.model)
        root.clock.before_forward.append(self._before_forward)
        if self.schedule is not None:
            root.clock.call_after_steps(self._follow_schedule)
        root.clock.after_first_forward.append(self._attach_parameters)
        if self.switch.on:
            root.clock.wake(self)

    def resume(self) -> None:
        """Observe from now on, if the probe is attached."""
        if not self.attached:
            return
        self.switch.on = True
        for root in self.roots:
            root.clock.wake(self)
        for mark in self._marks:
            mark.attach()
        self._waiting.clear()
        for tap in self.taps:
            if not tap.is_in:
                self._put_in(tap)

    def pause(self, *, between_steps: bool = False) -> None:
        """Observe nothing until ``resume``. Hooks that compiled code may have built in stay, and do nothing.

        Between steps the clock may rest too, since micro-steps are counted from the step that ends the pause.
        """
        self.switch.on = False
        inside = frozenset().union(*(root.clock.compiled_modules() for root in self.roots))
        for tap in self.taps:
            if tap.was_eager and tap.is_in and tap.module not in inside and not isinstance(tap, StepHook):
                tap.detach()
        for mark in self._marks:
            mark.detach()
        if between_steps:
            for root in self.roots:
                root.clock.rest(self)

    # Time

    @property
    def clocks(self) -> list[Clock]:
        """The clocks of the models under observation."""
        return [root.clock for root in self.roots]

    @property
    def observer(self) -> str:
        """The name of what is called or added to."""
        return name_of(self.statistic if self.statistic is not None else self.subscriber)

    def _follow_schedule(self) -> None:
        if self.schedule is None or not self.roots:
            return
        try:
            wanted = bool(self.schedule(self.roots[0].clock.now()))
        except Exception as error:
            self.failed(None, error, self.schedule)
            return
        self.go_on(wanted)

    def go_on(self, wanted: bool) -> None:
        """A step has ended; observe the next one if it is *wanted*."""
        if not self._checked and self._can_judge():
            self._check()
        if wanted and not self.switch.on:
            self.resume()
        elif not wanted and self.switch.on:
            self.pause(between_steps=True)

    @property
    def ran(self) -> bool:
        """Whether a root was called since the probe came."""
        return any(root.ran for root in self.roots)

    def _before_forward(self) -> None:
        if not self._checked and self._can_judge():
            self._check()
        count = self._forwards = self._forwards + 1
        if not self.switch.on:
            return
        self._attach_parameters()
        if count > 1 and is_time_to_look(count, _RESCAN_EVERY):
            self._look_for_changes()

    def _attach_parameters(self) -> None:
        """Attach to parameters that were frozen or lazy, and are no more."""
        if self.switch.on and self._waiting:
            waiting, self._waiting = self._waiting, []
            for tap in waiting:
                self._put_in(tap)
                if tap.is_in:
                    tap.clock.refresh()

    def _can_judge(self) -> bool:
        """Whether a forward of the kind that is observed has surely been, so that hooks which have not fired never will."""
        if self.switch.training is None:
            return any(root.has_returned for root in self.roots)
        return self.switch.training and any(root.has_returned and root.has_trained for root in self.roots)

    def _ran_unseen(self) -> bool:
        """Whether a root may have been called without its hooks: compiled code that there is already has none in it."""
        return not self.ran and any(region.has_code() for root in self.roots for region in root.regions())

    def _check(self) -> None:
        """Once, after the first observed forward: compiled code may have run past the hooks."""
        if self.switch.on:
            self._checked = True
            self._report(self.silent())

    # Delivering

    def deliver(self, event: Event) -> None:
        """Hand *event* to the subscriber; what it raises does not reach the training."""
        try:
            self.subscriber(event)
        except Exception as error:
            self.failed(event.site, error)

    def listen_to_leaf(self, tap: EventHook, forward: int, tensor: Tensor, listener: Callable[[Tensor], None]) -> None:
        """Like ``backward.listen``, for a tensor that outlives the forward: one hook, and the last forward's listeners count."""
        key = (id(tap), id(tensor))
        known = self._leaves.get(key)
        if known is not None and known.tensor() is tensor:
            if known.forward != forward:
                known.forward, known.listeners[:] = forward, []
            known.listeners.append(listener)
            return
        listeners = [listener]

        def deliver(gradient: Tensor) -> None:
            for each in tuple(listeners):
                each(gradient)

        reference = weakref.ref(tensor, lambda _: self._leaves.pop(key, None))
        self._leaves[key] = _Leaf(reference, hooks.on_tensor(tensor, deliver), forward, listeners)

    # Trouble

    def note(self, tap: EventHook, text: str) -> None:
        """Say in the coverage that something at *tap* could not be observed."""
        for site in tap.sites.values():
            self.notes[site] = text

    def note_later_hooks(self) -> None:
        """Say where a hook that was registered after ours may return another output than the one we were given."""
        for tap in self.taps:
            if isinstance(tap, OutputEventHook | OutputStatisticHook) and tap.handle is not None and tap.is_in:
                held = list(tap.module._forward_hooks.items())
                ours = next((place for place, (key, _) in enumerate(held) if key == tap.handle.id), len(held))
                if any(not isinstance(hook, hooks.Hook) for _, hook in held[ours:]):
                    self.note(tap, "a hook registered later runs after this one, and may return another output")

    def failed(self, site: Site | None, error: Exception, observer: object = None) -> None:
        """An observer raised: keep the error, warn once and stop observing; raise it again if strict."""
        if self.strict:
            raise error
        name = self.observer if observer is None else name_of(observer)
        self.stopped_by = error
        kept = ProbeError.of(name, site, error)
        self.errors.append(kept)
        self.detach()
        place = f" at {site}" if site is not None else ""
        warn_user(
            f"sonde stopped observing: {name} raised {type(error).__name__}{place}: {error}. The training goes on without it; "
            "what was recorded is kept, the error is in .errors, and strict=True raises it."
        )

    def silent(self) -> list[EventHook]:
        """Taps in compiled code that was called without them."""
        return dead_hooks.silent(self.roots, self.taps)

    def _report(self, dead: list[EventHook]) -> None:
        if not dead:
            return
        for tap in dead:
            self.note(tap, "compiled before it was observed: its hook never ran")
        text = dead_hooks.describe(dead, len(self.taps))
        if self.strict:
            raise DeadHookError(text)
        warn_user(text)


def _device_of(module: nn.Module, roots: list[Root]) -> torch.device:
    for source in (module, *(root.model for root in roots)):
        for parameter in source.parameters():
            if not parameter.is_meta:
                return parameter.device
    return torch.device("cpu")


def _nobody(event: Event) -> None:
    """The subscriber of a probe that feeds a statistic."""
