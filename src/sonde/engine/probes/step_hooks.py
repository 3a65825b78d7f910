"""Taps around optimizer steps: a parameter after a step, what the step did to it, and the gradient that the step used.

``grad`` is observed before the step: the gradient as the optimizer sees it, accumulated, reduced, unscaled and clipped; of a
step with a closure after it, the last that the closure computed. ``param`` and ``update`` are observed after it. ``update``
needs a copy of the parameter, for the time of the step: one, however many observe it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sonde.engine.clock.parameter_copies import Copies, error_of, one_in_each, sample, size_of
from sonde.engine.event import Event
from sonde.engine.probes.event_hooks import EventHook
from sonde.engine.probes.statistic_hooks import StatisticHook

__all__ = ["AroundSteps", "StepEventHook", "StepHook", "StepStatisticHook", "sample_updates"]


if TYPE_CHECKING:
    from sonde.site import Phase, Port, Site

    _Base = EventHook
else:
    _Base = object  # two bases with slots have no common layout


class AroundSteps:
    """All taps of one attachment around the steps of the optimizers of one model; the clock calls it before and after each.

    In every call *held* are the parameters that the optimizer steps, by their ids.
    """

    def __init__(self) -> None:
        self.taps: dict[StepHook, None] = {}  # a set that keeps its order

    def before(self, held: frozenset[int], wanted: dict[tuple[int, int], nn.Parameter], *, closure: bool) -> None:
        """A step begins; with *closure* its gradients are computed in it. Adds to *wanted* what has to be copied."""
        taps = self._of(held)
        if not closure:
            _give_gradients(taps)
        for tap in taps:
            if "update" in tap.sites:
                wanted[id(tap.target), tap.one_in] = tap.target

    def after(self, held: frozenset[int], copies: Copies, *, closure: bool) -> None:
        """It was taken."""
        taps = self._of(held)
        if not taps:
            return
        if closure:
            _give_gradients(taps)
        former = [copies.get((id(tap.target), tap.one_in)) if "update" in tap.sites else None for tap in taps]
        type(taps[0]).give_parameters(taps, former)

    def _of(self, held: frozenset[int]) -> list[StepHook]:
        return [tap for tap in self.taps if id(tap.target) in held]


def sample_updates(taps: Sequence[EventHook], limit: float) -> dict[Site, str]:
    """Have *taps* need copies of no more than *limit* bytes together; by site, what to say of those that are samples."""
    moving = [tap for tap in taps if isinstance(tap, StepHook) and "update" in tap.sites]
    said: dict[Site, str] = {}
    for tap, one_in in zip(moving, one_in_each([tap.target for tap in moving], limit), strict=True):
        tap.one_in = one_in
        if one_in > 1:
            said[tap.sites["update"]] = (
                f"of every {one_in}-th element: copies of all parameters would take more than the {limit:,.0f} bytes of "
                "update_memory=. Its counts and lengths are estimates, with a standard error of "
                f"{error_of(size_of(tap.target.numel(), one_in)):.1%} if the elements vary as normal ones"
            )
    return said


def _give_gradients(taps: list[StepHook]) -> None:
    found = [(tap, gradient) for tap in taps if "grad" in tap.sites and (gradient := tap.target.grad) is not None]
    if found:
        type(taps[0]).give_gradients([tap for tap, _ in found], [gradient for _, gradient in found])


class StepHook(_Base):
    """What observes the steps of one parameter; it registers no torch hook. All taps of a attachment are of one class."""

    __slots__ = ()

    def attach(self) -> None:
        self.is_in = self.was_eager = True
        self.clock.around_step.setdefault(self.attachment, AroundSteps()).taps[self] = None

    def detach(self) -> None:
        self.is_in = False
        around = self.clock.around_step.get(self.attachment)
        if around is not None:
            around.taps.pop(self, None)
            if not around.taps:
                del self.clock.around_step[self.attachment]

    @classmethod
    def give_gradients(cls, taps: Sequence[Any], gradients: Sequence[Tensor]) -> None:
        """What is in ``.grad`` of each tap's parameter."""
        raise NotImplementedError

    @classmethod
    def give_parameters(cls, taps: Sequence[Any], before: Sequence[Tensor | None]) -> None:
        """Each tap's parameter as it is, and as it was, where a tap observes that."""
        raise NotImplementedError


class StepEventHook(StepHook, EventHook):
    """Delivers events."""

    __slots__ = ()

    @classmethod
    def give_gradients(cls, taps: Sequence[StepEventHook], gradients: Sequence[Tensor]) -> None:
        for tap, gradient in zip(taps, gradients, strict=True):
            tap._give("grad", gradient)

    @classmethod
    def give_parameters(cls, taps: Sequence[StepEventHook], before: Sequence[Tensor | None]) -> None:
        for tap, former in zip(taps, before, strict=True):
            after = tap.target.detach()
            if "param" in tap.sites:
                tap._give("param", after)
            if former is not None:
                tap._give("update", (former, sample(after, tap.one_in)))

    def _give(self, port: Port, value: Any) -> None:
        tick = self.clock.ended if self.clock.again else self.clock.now()
        phase: Phase = "backward" if port == "grad" else "step"
        self._deliver(Event(self.name, nn.Parameter, port == "grad", value, (), {}, self.sites[port], 0, phase, tick))


class StepStatisticHook(StepHook, StatisticHook):
    """Adds to rows of a statistic; of ``update`` the difference, ``after - before``, formed in float64."""

    __slots__ = ()

    @classmethod
    def give_gradients(cls, taps: Sequence[StepStatisticHook], gradients: Sequence[Tensor]) -> None:
        cls.add_each(taps, "grad", gradients)

    @classmethod
    def give_parameters(cls, taps: Sequence[StepStatisticHook], before: Sequence[Tensor | None]) -> None:
        wanted = [tap for tap in taps if "param" in tap.sites]
        if wanted:
            cls.add_each(wanted, "param", [tap.target for tap in wanted])
        moved = [(tap, former) for tap, former in zip(taps, before, strict=True) if former is not None]
        if moved:
            after = [_sampled(tap) for tap, _ in moved]
            cls.add_each([tap for tap, _ in moved], "update", after, [former for _, former in moved])


def _sampled(tap: StepStatisticHook) -> Tensor:
    """The tap's parameter, or its sample as a tensor of its own, so that it lies as the copy does that it is compared with."""
    return tap.target if tap.one_in == 1 else sample(tap.target.detach(), tap.one_in).clone()
