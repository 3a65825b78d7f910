"""Hooks around optimizer steps: a parameter after a step, the change that the step made, and the gradient that the step used.

``grad`` is observed before the step: the gradient as the optimizer sees it, accumulated, reduced, unscaled and clipped; of a
step with a closure after it, the last that the closure computed. ``param`` and ``update`` are observed after the step.
``update`` needs a copy of the parameter for the time of the step: one, however many observe the parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any, TypeVar

from torch import Tensor, nn

from sonde.engine.clock.clock import Clock
from sonde.engine.clock.parameter_copies import Copies, length_error, one_in_each, part_of, positions, sample, size_of
from sonde.engine.clock.step_counter import Undo
from sonde.engine.event import Event
from sonde.engine.probes.delivery import Delivery, Switch
from sonde.engine.probes.event_hooks import EventHook
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.probes.statistic_hooks import StatisticHook
from sonde.site import OTHER_CALLS, PORTS, Port, Site
from sonde.words import percent


class AroundSteps:
    """The step hooks of one probe on one root: an observer of the root's step counter, as long as there are hooks."""

    def __init__(self, clock: Clock, switch: Switch) -> None:
        self._observers = clock.step_counter.observers
        self._switch = switch
        self._hooks: dict[StepHook, None] = {}  # a set that keeps its order
        self._by_target: dict[int, list[StepHook]] = {}
        self._prepared: dict[frozenset[int], _Prepared] = {}  # by the parameters of an optimizer
        self._stepped: set[frozenset[int]] = set()  # the parameters of each optimizer that has stepped

    @property
    def is_on(self) -> bool:
        """Whether the probe observes."""
        return self._switch.on

    @property
    def can_undo(self) -> bool:
        """Whether what ``before`` observes can be taken back: additions to rows can, events cannot."""
        return all(isinstance(hook, StepStatisticHook) for hook in self._hooks)

    def add(self, hook: StepHook) -> None:
        """Call *hook* around steps. All hooks of one probe are of one class."""
        if not self._hooks:
            self._observers.append(self)
        if hook not in self._hooks:
            self._hooks[hook] = None
            self._by_target.setdefault(id(hook.target), []).append(hook)
            self.prepare_anew()

    def remove(self, hook: StepHook) -> None:
        """Call *hook* no more. Idempotent."""
        if hook in self._hooks:
            del self._hooks[hook]
            self._by_target[id(hook.target)].remove(hook)
            self.prepare_anew()
        if not self._hooks and self in self._observers:
            self._observers.remove(self)

    def before(self, held: frozenset[int], wanted: dict[tuple[int, int], nn.Parameter], *, closure: bool) -> Undo | None:
        """Observe the gradients of *held*, unless a closure will compute them, and request copies of parameters.

        Events cannot be taken back; additions to rows of a statistic can.
        """
        prepared = self._of(held)
        undo = None if closure else prepared.give_gradients()
        wanted |= prepared.wanted
        return undo

    def after(self, held: frozenset[int], before: Copies, *, closure: bool) -> None:
        """Observe the parameters of *held*, and their gradients if a closure has computed them."""
        self._stepped.add(held)
        prepared = self._of(held)
        if prepared.hooked:
            if closure:
                prepared.give_gradients()
            prepared.give_parameters(before)

    @property
    def has_stepped(self) -> bool:
        """Whether a step was observed."""
        return bool(self._stepped)

    def was_stepped(self, parameter: nn.Parameter) -> bool:
        """Return whether a step of an optimizer that holds *parameter* was observed."""
        return any(id(parameter) in held for held in self._stepped)

    def prepare_anew(self) -> None:
        """Hooks have come or gone, or observe another sample: what is prepared for a step is no longer so."""
        self._prepared.clear()

    def _of(self, held: frozenset[int]) -> _Prepared:
        found = self._prepared.get(held)
        if found is None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            if len(held) == 1:  # of many optimizers that hold one parameter each
                hooked = [hook for key in held for hook in self._by_target.get(key, ())]
            else:
                hooked = [hook for hook in self._hooks if id(hook.target) in held]
            found = self._prepared[held] = _Prepared(hooked)
        return found


class _Prepared:
    """The hooks around the steps of one optimizer, in lists that every step goes through as they are.

    Attributes:
        hooked: all of them.
        wanted: the parameters that are to be copied before a step.
    """

    def __init__(self, hooked: list[StepHook]) -> None:
        self.hooked = hooked
        self._kind: Any = type(hooked[0]) if hooked else StepHook
        self._with_gradients = [hook for hook in hooked if "grad" in hook.sites]
        self._targets = [hook.target for hook in self._with_gradients]
        self._keys = [(id(hook.target), hook.one_in) if "update" in hook.sites else None for hook in hooked]
        self.wanted = {key: hook.target for key, hook in zip(self._keys, hooked, strict=True) if key is not None}

    def give_gradients(self) -> Undo | None:
        """Observe the gradients that there are; return a function that takes this back, or None."""
        hooked, gradients = self._with_gradients, [target.grad for target in self._targets]
        if any(gradient is None for gradient in gradients):
            hooked = [hook for hook, gradient in zip(hooked, gradients, strict=True) if gradient is not None]
            gradients = [gradient for gradient in gradients if gradient is not None]
        undo: Undo | None = self._kind.give_gradients(hooked, gradients) if hooked else None
        return undo

    def give_parameters(self, before: Copies) -> None:
        """Observe the parameters as they are, and as they were, by their copies."""
        former = [None if key is None else before.get(key) for key in self._keys]
        for hook, key, copy in zip(self.hooked, self._keys, former, strict=True):
            if copy is None and key is not None and key in before:
                hook.delivery.note([hook.sites["update"]], f"left out: a {type(hook.target).__name__} cannot be copied")
        self._kind.give_parameters(self.hooked, former)


_MOST_PREPARED = 4096  # optimizers: one for each parameter of a large model


class StepHook(SiteHook):
    """A hook around the steps of one parameter; abstract. Registers no torch hook.

    Attributes:
        around: calls this hook.
        one_in: at ``update`` one in so many elements of the parameter is observed.
        positions: the positions of these elements, held so that they are not computed again; None if all are observed.
    """

    __slots__ = ()  # the other base of each subclass has slots, and Python joins only one base that has any

    around: AroundSteps
    one_in: int
    positions: Tensor | None

    def begin(self, delivery: Delivery, clock: Clock, module: nn.Module, parameter: nn.Parameter | None) -> None:
        super().begin(delivery, clock, module, parameter)
        self.one_in = 1  # type: ignore[misc]
        self.positions = None  # type: ignore[misc]

    def size_factor(self, port: Port) -> float:
        if port != "update" or self.one_in == 1:
            return 1.0
        elements = part_of(self.target).numel()
        return elements / size_of(elements, self.one_in)

    def was_stepped(self) -> bool:
        return self.around.was_stepped(self.target)

    def attach(self) -> None:
        self.is_in = self.was_eager = True
        self.around.add(self)

    def detach(self) -> None:
        self.is_in = False
        self.around.remove(self)


class StepEventHook(StepHook, EventHook):
    """Delivers events around the steps of one parameter."""

    __slots__ = ("around", "one_in", "positions")

    @staticmethod
    def give_gradients(hooked: Sequence[StepEventHook], gradients: Sequence[Tensor]) -> None:
        """Deliver each parameter's ``.grad``."""
        for hook, gradient in zip(hooked, gradients, strict=True):
            part = hook.gradient_part(gradient)
            if part is not None:
                hook._give("grad", part)

    @staticmethod
    def give_parameters(hooked: Sequence[StepEventHook], before: Sequence[Tensor | None]) -> None:
        """Deliver each parameter as it is; and as it was and is, where *before* holds a copy."""
        for hook, former in zip(hooked, before, strict=True):
            for port in hook.sites:
                hook.note_part(port, hook.target)
            after = part_of(hook.target)
            if "param" in hook.sites:
                hook._give("param", after)
            if former is not None:
                hook._give("update", (former, sample(after, hook.one_in)))

    def _give(self, port: Port, value: Any) -> None:
        tick = self.clock.ended if self.clock.again else self.clock.now()
        self._deliver(Event(self.name, nn.Parameter, port == "grad", value, (), {}, self.sites[port], 0, PORTS[port].phase, tick))


class StepStatisticHook(StepHook, StatisticHook):
    """Adds to rows of a statistic around the steps of one parameter.

    Of ``update`` the difference ``after - before`` is added, formed in float64.
    """

    __slots__ = ("around", "one_in", "positions")

    @staticmethod
    def give_gradients(hooked: Sequence[StepStatisticHook], gradients: Sequence[Tensor]) -> Undo:
        """Add each parameter's ``.grad``; return a function that takes these additions back."""
        table = hooked[0].table
        copied = table.copied()
        StatisticHook.add_each(hooked, "grad", gradients)
        return lambda: table.restore([hook.rows["grad", "", OTHER_CALLS] for hook in hooked], copied)

    @staticmethod
    def give_parameters(hooked: Sequence[StepStatisticHook], before: Sequence[Tensor | None]) -> None:
        """Add each parameter; and its change, where *before* holds a copy."""
        wanted = [hook for hook in hooked if "param" in hook.sites]
        if wanted:
            StatisticHook.add_each(wanted, "param", [hook.target for hook in wanted])
        moved = [hook for hook, former in zip(hooked, before, strict=True) if former is not None]
        if moved:
            after = [_sampled(hook) for hook in moved]
            StatisticHook.add_each(moved, "update", after, [former for former in before if former is not None])


def _sampled(hook: StepStatisticHook) -> Tensor:
    """Return the parameter, or the sample of the part of it that this rank holds, which lies in memory as its copy does."""
    return hook.target if hook.one_in == 1 else sample(part_of(hook.target), hook.one_in)


SAMPLED = "of one in"
"""The beginning of the note on an update that is sampled."""

_AnyHook = TypeVar("_AnyHook", bound=SiteHook)


def sample_updates(hooked: Sequence[_AnyHook], limit: float) -> dict[Site, str]:
    """Let *hooked* need copies of no more than *limit* bytes together; return a note for each site that is sampled."""
    if limit == inf:
        return {}
    moving = [hook for hook in hooked if isinstance(hook, StepHook) and "update" in hook.sites]
    notes: dict[Site, str] = {}
    for hook, one_in in zip(moving, one_in_each([hook.target for hook in moving], limit), strict=True):
        hook.one_in = one_in
        hook.around.prepare_anew()
        hook.positions = None
        if one_in > 1:
            part = part_of(hook.target)
            hook.positions = positions(part, one_in)
            seen = size_of(part.numel(), one_in)
            notes[hook.sites["update"]] = (
                f"{SAMPLED} {one_in} elements, chosen at random: copies of all parameters would take more than the "
                f"{limit:,.0f} bytes of Limits(memory=). Its counts and lengths are estimates. For any elements, the root mean "
                f"square error of a length is at most {length_error(one_in):.3g} * absmax / norm of it, of a share "
                f"{percent(0.5 / sqrt(seen), 2)}"
            )
    return notes
