"""Compiled code that runs past the hooks: how it is noticed, and what is said about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from sonde.engine import selection
from sonde.engine.clock.clock import Clock
from sonde.engine.probes.event_hooks import EventHook
from sonde.engine.torch_api import compiled

__all__ = ["Root", "describe", "silent"]


@dataclass(slots=True)
class Root:
    """A model under observation, its clock, and what that had counted when the probe came."""

    model: nn.Module
    clock: Clock
    forwards: int
    returned: int
    backwards: int
    fingerprint: int | None = None
    gradients: dict[int, tuple[int, int]] = field(default_factory=dict)

    def remember_gradients(self) -> None:
        """Note which gradients there are already, so that later ones can be told from them."""
        self.gradients = {id(p): (id(p.grad), p.grad._version) for p in self.model.parameters() if p.grad is not None}

    def was_used(self, parameter: nn.Parameter) -> bool:
        """Whether a gradient has come to *parameter* since."""
        grad = parameter.grad
        return grad is not None and self.gradients.get(id(parameter)) != (id(grad), grad._version)

    @property
    def ran(self) -> bool:
        """Whether it was called since."""
        return self.clock.forwards > self.forwards

    @property
    def has_returned(self) -> bool:
        """Whether a call of it has returned since."""
        return self.clock.returned > self.returned

    @property
    def has_trained(self) -> bool:
        """Whether a backward pass has been since."""
        return self.clock.backwards > self.backwards

    def regions(self) -> list[compiled.Region]:
        """What of the model is compiled, as far as is known."""
        return compiled.regions(self.model, (self.model,) if self.clock.is_compiled else ())


def silent(roots: list[Root], taps: list[EventHook]) -> list[EventHook]:
    """Taps in compiled regions that were called although no tap in them has fired: the compiled code has no hooks.

    A region whose outermost module has a tap that never fired, though its hooks run in eager code, was simply not called.
    """
    by_module: dict[nn.Module, list[EventHook]] = {}
    for tap in taps:
        if tap.target is tap.module:
            by_module.setdefault(tap.module, []).append(tap)
    dead: list[EventHook] = []
    for root in roots:
        for region in root.regions():
            below = [tap for module, held in by_module.items() if module in region.below for tap in held]
            top = by_module.get(region.top, [])
            if any(map(_has_fired, below)):
                continue
            if any(map(_has_fired, top)):
                dead += below
            elif not top or not region.calls_hooks_of_top() or region.top is selection.unwrap(root.model):
                dead += top + below
    return dead


def describe(dead: list[EventHook], total: int) -> str:
    """What to say of silent taps: which, why, and the cure."""
    names = ", ".join(str(next(iter(tap.sites.values()))) for tap in dead[:3])
    return (
        f"{len(dead)} of {total} observed modules are in compiled code that ran without their hooks "
        f"({names}{', ...' if len(dead) > 3 else ''}): they were compiled before observation began, or the code of an unobserved "
        "model of the same class was used again. Call torch.compiler.reset() now, while the probe is attached; or attach before "
        "the first call, and before any model of that class is compiled."
    )


def _has_fired(tap: EventHook) -> bool:
    return any(tap.counts().values())
