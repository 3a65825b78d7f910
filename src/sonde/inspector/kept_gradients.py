"""Notice that nobody clears the gradients: those of the step before are still there as the next backward pass adds to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sonde.engine import SiteHook, hooks, version_of
from sonde.rules import Chosen, Finding


@dataclass
class _Watch:
    """A gradient since the step that has used it, until the next logged step.

    Attributes:
        parameter: has the gradient.
        gradient, version: the gradient as the step has left it, and how often it had been written into.
        passes: backward passes that have come to the parameter.
        was_cleared: one of them found no gradient, another one, or one that had been written into.
    """

    parameter: Tensor
    gradient: Tensor
    version: int
    passes: int = 0
    was_cleared: bool = False
    handle: hooks.Handle | None = field(default=None, repr=False)

    def arrives(self, _: Tensor) -> None:
        """Look at the gradient that a backward pass is about to add to. On an accelerator no value is read."""
        self.passes += 1
        gradient = self.parameter.grad
        if gradient is not self.gradient:
            self.was_cleared = True
        elif not self.was_cleared:
            written = version_of(gradient) != self.version
            self.was_cleared = not bool(gradient.any()) if gradient.device.type == "cpu" else written
            self.version = version_of(gradient) + 1  # by the addition that follows

    def end(self) -> bool:
        """Look no more; return whether the gradient was kept."""
        if self.handle is not None:
            self.handle.remove()
        return self.passes > 0 and not self.was_cleared


class KeptGradients:
    """Looks at the smallest gradient of a model, in its first logged steps, for as long as nobody clears it."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        self._watch: _Watch | None = None
        self._first = (0, 0)  # epoch and step of the first look
        self._kept = 0  # logged steps before which the gradient was kept
        self._found: tuple[Finding, ...] = ()
        self.looks = chosen.is_on("gradient_kept")

    def check(self, at: Sequence[SiteHook], held: frozenset[int] | None, epoch: int, step: int) -> None:
        """Look at what has become of the gradient since the last logged step, and at the gradient now.

        Args:
            at: the hooks of all parameters.
            held: the ids of the parameters of the optimizer that has made the step; None if that is not known.
            epoch, step: the moment.
        """
        if self._watch is not None and held is not None and id(self._watch.parameter) not in held:
            return
        if self._watch is None:
            self._first = epoch, step
        elif self._watch.end():
            self._kept += 1
        else:
            self.end()
            return
        own = [each for each in at if held is not None and id(each.target) in held and _may_be_watched(each.target)]
        smallest = min(own, key=lambda hook: hook.target.numel(), default=None)
        found = None if smallest is None else self._chosen.judge("gradient_kept", float(self._kept))
        if smallest is None or found is not None:
            self.end()
        if smallest is not None and found is not None:
            site = smallest.sites["param"].port_of("grad")
            told = found.at(str(site), *self._first, f"{site.name}: {found.message}")
            self._found = (replace(told, first_step=self._first[1]),)
        elif smallest is not None:
            parameter, gradient = smallest.target, smallest.target.grad
            assert gradient is not None
            self._watch = _Watch(parameter, gradient, version_of(gradient))
            self._watch.handle = hooks.on_tensor(parameter, self._watch.arrives)

    def end(self) -> None:
        """Look no more. Idempotent."""
        self.looks = False
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def found(self) -> tuple[Finding, ...]:
        """Return the finding, if there is one so far."""
        return self._found


def _may_be_watched(parameter: Tensor) -> bool:
    gradient = parameter.grad
    return type(gradient) is Tensor and gradient.layout is torch.strided and not gradient.is_inference() and parameter.is_leaf
