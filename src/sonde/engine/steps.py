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
    clipped. ``param`` and ``update`` are delivered after it. ``update`` needs a copy of the parameter, for the time of the step.
    """

    __slots__ = ()

    def attach(self) -> None:
        taps = self.clock.around_step.setdefault(self.wiring, [])
        if self not in taps:
            taps.append(self)

    def detach(self) -> None:
        taps = self.clock.around_step.get(self.wiring, [])
        if self in taps:
            taps.remove(self)
            self.wiring.before.pop(self, None)
        if not taps:
            self.clock.around_step.pop(self.wiring, None)

    def before_step(self, *, again: bool) -> None:
        """An optimizer that holds the parameter is about to step; *again*: as a further one in the same step."""
        self.was_eager = True
        parameter = self.target
        if "grad" in self.sites and parameter.grad is not None:
            self._give("grad", parameter.grad, again=again)
        if "update" in self.sites:
            self.wiring.before[self] = parameter.detach().clone()

    def after_step(self, *, again: bool, taken: bool) -> None:
        """It has stepped; or, if not *taken*, it has left the parameters as they were."""
        before = self.wiring.before.pop(self, None)
        if not taken:
            return
        after = self.target.detach()
        if "param" in self.sites:
            self._give("param", after, again=again)
        if before is not None:
            self._give("update", (before, after), again=again)

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
