"""Find hooks that already compiled code left out, and word the warning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from sonde.engine.clock.clock import Clock
from sonde.engine.compiled_regions import Region, regions
from sonde.engine.inventory import Inventory
from sonde.engine.probes.delivery import Delivery
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.torch_api.modules import parameters_in, unwrap
from sonde.engine.torch_api.torch_tensors import version_of
from sonde.errors import DeadHookError
from sonde.warn import warn_user


@dataclass(slots=True)
class Root:
    """A model under observation, its clock, and the clock's counts when the probe was attached to it, or began to observe again.

    Attributes:
        inventory: of the model when it was last looked at.
        gradients: by parameter, the ``.grad`` that was there when the probe was attached, and its version.
        used: the ids of parameters that had a new gradient at the end of a backward pass, which may be dropped by now.
    """

    model: nn.Module
    clock: Clock
    forwards: int
    returned: int
    backwards: int
    inventory: Inventory
    gradients: dict[int, tuple[int, int]] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, model: nn.Module, clock: Clock, inventory: Inventory) -> Root:
        """Return *model*, whose *inventory* is given, as a root observed from now on."""
        return cls(model, clock, clock.forwards, clock.forward_counter.returned, clock.backward_counter.count, inventory)

    def remember_gradients(self, inventory: Inventory) -> None:
        """Note the gradients that are there already, so that later ones can be recognised."""
        self.used.clear()
        self.gradients = {
            id(each): (id(grad), version_of(grad)) for each in inventory.parameters if (grad := each.grad) is not None
        }

    def note_used(self) -> None:
        """Note the parameters to which gradients have come, before the training drops these."""
        self.used |= {id(parameter) for parameter in self.inventory.parameters if self.was_used(parameter)}

    def was_used(self, parameter: nn.Parameter) -> bool:
        """Return whether a gradient has come to *parameter* since."""
        grad = parameter.grad
        if id(parameter) in self.used:
            return True
        return grad is not None and self.gradients.get(id(parameter)) != (id(grad), version_of(grad))

    @property
    def ran(self) -> bool:
        """Whether the model was called since."""
        return self.clock.forwards > self.forwards

    @property
    def has_returned(self) -> bool:
        """Whether a call of the model has returned since."""
        return self.clock.forward_counter.returned > self.returned

    @property
    def has_trained(self) -> bool:
        """Whether a backward pass has been since."""
        return self.clock.backward_counter.count > self.backwards

    def left_out(self, region: Region) -> bool:
        """Return whether training has left *region* without a gradient, though others came: then it was not called.

        False where no gradient was seen, which says nothing.
        """
        trainable = [parameter for module in region.modules for parameter in parameters_in(module) if parameter.requires_grad]
        if not (self.has_trained and trainable) or any(map(self.was_used, trainable)):
            return False
        return any(map(self.was_used, parameters_in(self.model)))

    def regions(self) -> list[Region]:
        """Return the compiled parts of the model, as far as is known."""
        return regions(self.model, (self.model,) if self.clock.forward_counter.is_compiled else ())


class DeadHookCheck:
    """Checks once, after the first observed forward, whether compiled code has run past the hooks.

    Attributes:
        is_due: the check was not made as yet.
    """

    def __init__(self, roots: Sequence[Root], delivery: Delivery) -> None:
        self.is_due = True
        self._roots = roots
        self._delivery = delivery

    def check(self, hooked: Sequence[SiteHook]) -> None:
        """Report dead hooks if the check is due and a forward of the observed kind has surely been.

        Raises:
            DeadHookError: there are some, and the probe is strict.
        """
        if self.is_due and self._delivery.switch.on and self._can_judge(hooked):
            self.is_due = False
            self.report(dead_among(self._roots, hooked), len(hooked))

    def begin(self) -> None:
        """Judge by forwards from now on, as long as the check is due: the probe has rested, and hooks that rest do not fire."""
        if self.is_due:
            for root in self._roots:
                root.returned, root.backwards = root.clock.forward_counter.returned, root.clock.backward_counter.count

    def note_used(self) -> None:
        """Note at the end of a backward pass which parameters of compiled models it has reached, as long as the check is due."""
        if self.is_due:
            for root in self._roots:
                if root.regions():
                    root.note_used()

    def check_at_end(self, hooked: Sequence[SiteHook]) -> list[SiteHook]:
        """Return the dead hooks of a probe that is about to be detached; none if the check was made."""
        due, self.is_due = self.is_due, False
        if not (due and self._delivery.switch.on and (self._can_judge(hooked) or self._ran_unseen())):
            return []
        return dead_among(self._roots, hooked)

    def report(self, dead: Sequence[SiteHook], total: int) -> None:
        """Warn of dead hooks, of *total* ones.

        Raises:
            DeadHookError: the probe is strict.
        """
        if not dead:
            return
        for hook in dead:
            hook.note("compiled before it was observed: its hook never ran")
        text = _described(dead, total)
        if self._delivery.strict:
            raise DeadHookError(text)
        warn_user(text)

    def _can_judge(self, hooked: Sequence[SiteHook]) -> bool:
        """Return whether a pass of the observed kind has surely been, so that hooks which have not fired never will."""
        training = self._delivery.switch.training
        if not any(
            port in ("input", "output") for hook in hooked if hook.is_on_module for port in hook.sites
        ):  # gradients alone, which come in a backward pass
            return any(root.has_returned and root.has_trained for root in self._roots)
        if training is None:
            return any(root.has_returned for root in self._roots)
        return training and any(root.has_returned and root.has_trained for root in self._roots)

    def _ran_unseen(self) -> bool:
        """Return whether a root may have been called without its hooks: code that was compiled before has none."""
        ran = any(root.ran for root in self._roots)
        return not ran and any(region.has_code() for root in self._roots for region in root.regions())


def dead_among(roots: Sequence[Root], hooked: Sequence[SiteHook]) -> list[SiteHook]:
    """Return the hooks in compiled regions that were called although no hook in them has fired.

    A region whose outermost module has a hook that never fired, though its hooks run in eager code, was simply not called.
    """
    compiled = [(root, region) for root in roots for region in root.regions()]
    by_module: dict[nn.Module, list[SiteHook]] = {}
    for hook in hooked if compiled else ():
        if hook.is_on_module:
            by_module.setdefault(hook.module, []).append(hook)
    dead: list[SiteHook] = []
    for root, region in compiled:
        below = [hook for module, held in by_module.items() if module in region.below for hook in held]
        top = by_module.get(region.top, [])
        if any(hook.has_fired for hook in below):
            continue
        if any(hook.has_fired for hook in top):
            dead += below
        elif not top or not region.calls_hooks_of_top() or region.top is unwrap(root.model):
            dead += top + below if region.has_code() and not root.left_out(region) else []
    return dead


def _described(dead: Sequence[SiteHook], total: int) -> str:
    """Return which of *total* hooks are dead, why, and the cure."""
    names = ", ".join(str(next(iter(hook.sites.values()))) for hook in dead[:3])
    return (
        f"{len(dead)} of {total} observed modules are in compiled code that ran without their hooks "
        f"({names}{', ...' if len(dead) > 3 else ''}): they were compiled before observation began, or the code of an unobserved "
        "model of the same class was used again. Call torch.compiler.reset() now, while the probe is attached; or attach before "
        "the first call, and before any model of that class is compiled."
    )
