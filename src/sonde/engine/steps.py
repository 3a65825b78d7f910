"""Taps around optimizer steps: a parameter after a step, what the step did to it, and the gradient that the step used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from sonde.engine.event import Event
from sonde.engine.tallies import Tally
from sonde.engine.taps import Tap

__all__ = ["AroundStep", "StepTally", "StepTap"]


if TYPE_CHECKING:
    from sonde.engine.site import Phase, Port

    _Base = Tap
else:
    _Base = object  # two bases with slots have no common layout


class AroundStep(_Base):
    """What is called by the clock before and after each optimizer step, for one parameter; it registers no torch hook.

    ``grad`` is delivered before the step: the gradient as the optimizer sees it, accumulated, reduced, unscaled and
    clipped; of a step with a closure after it, the last that the closure computed. ``param`` and ``update`` are delivered
    after it. ``update`` needs a copy of the parameter, for the time of the step.
    """

    __slots__ = ()

    def attach(self) -> None:
        self.clock.around_step.setdefault(self.wiring, {})[self] = None

    def detach(self) -> None:
        taps = self.clock.around_step.get(self.wiring, {})
        taps.pop(self, None)
        self.wiring.before.pop(self, None)
        if not taps:
            self.clock.around_step.pop(self.wiring, None)

    def before_step(self, *, again: bool, closure: bool) -> None:
        """An optimizer that holds the parameter is about to step; *again*: as a further one in the same step."""
        self.was_eager = True
        if not closure:
            self._give_gradient(again=again)
        if "update" in self.sites:
            self.wiring.before[self] = self.target.detach().clone()

    def after_step(self, *, again: bool, taken: bool, closure: bool) -> None:
        """It has stepped; or, if not *taken*, it has left the parameters as they were."""
        before = self.wiring.before.pop(self, None)
        if not taken:
            return
        if closure:
            self._give_gradient(again=again)
        after = self.target.detach()
        if "param" in self.sites:
            self._give("param", after, again=again)
        if before is not None:
            self._give("update", (before, after), again=again)

    def _give_gradient(self, *, again: bool) -> None:
        if "grad" in self.sites and self.target.grad is not None:
            self._give("grad", self.target.grad, again=again)

    def _give(self, port: Port, value: Any, *, again: bool) -> None:
        raise NotImplementedError


class StepTap(AroundStep, Tap):
    """Delivers events."""

    __slots__ = ()

    def _give(self, port: Port, value: Any, *, again: bool) -> None:
        tick = self.clock.ended if again else self.clock.now()
        phase: Phase = "backward" if port == "grad" else "step"
        self._deliver(Event(self.name, nn.Parameter, port == "grad", value, (), {}, self.sites[port], 0, phase, tick))


class StepTally(AroundStep, Tally):
    """Adds to rows of a statistic; of ``update`` the difference, ``after - before``."""

    __slots__ = ()

    def _give(self, port: Port, value: Any, *, again: bool) -> None:
        self._add(port, value[1] - value[0] if port == "update" else value)
