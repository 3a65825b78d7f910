"""Notice when gradients are cleared, never or between the passes of a step, and when they are changed behind the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sonde.engine import SiteHook, backward_calls, hooks, version_of, walk
from sonde.rules import Chosen, Finding
from sonde.stats import HostCopy

_ONCE = "call optimizer.zero_grad() once before the passes of a step, not before each of them"
_MIXED = "a pass whose gradients another optimizer steps leaves some here, too, and the own pass adds to them"
_BEHIND = "clear these gradients right before the backward pass of their own loss: optimizer.zero_grad() is missing, or too early"
_LATE = "it is changed after the step that has used it, and then cleared: clipping there does nothing"
_BEFORE = "clip behind backward() and in front of optimizer.step(): clip_grad_norm_ changes the gradients that the next step takes"
_MOST = 8  # logged steps
_SAME = 0.999  # cosine of the gradient of the last pass and of the step, however it was clipped


@dataclass
class _Watch:
    """A gradient since the step that has used it, until the next logged step.

    Attributes:
        parameter: has the gradient.
        gradient, version: the gradient as the step has left it, and how often it had been written into.
        passes: backward passes that have come to the parameter.
        was_cleared: one of them found no gradient, another one, or one that had been written into.
        wasted: passes since the last step whose gradient the next one did not find.
        last: how often the parameter had been written into at the last pass, and a copy of what that one brought.
        others: how many steps other optimizers have made, as the last pass of the model began; *left*: as the last gradient came
            that was not cleared since, -1 without one.
        is_mixed: a pass has added to the gradient of another one, behind one such step.
        late: the largest of the gradient that the step has used, where it was written into behind it and then exchanged.
    """

    parameter: Tensor
    gradient: Tensor
    version: int
    passes: int = 0
    was_cleared: bool = False
    wasted: int = 0
    last: tuple[int, Tensor] | None = None
    others: int = 0
    left: int = -1
    is_mixed: bool = False
    late: HostCopy | None = None
    handle: hooks.Handle | None = field(default=None, repr=False)

    def arrives(self, brought: Tensor) -> None:
        """Look at the gradient that a backward pass is about to add to. On an accelerator no value is read."""
        if not backward_calls.sent_backward():
            return  # a derivative that torch.autograd.grad returns
        self.passes += 1
        gradient, written = self.parameter.grad, version_of(self.parameter)
        is_on_host = brought.device.type == "cpu"
        is_empty = gradient is None or (is_on_host and not bool(gradient.any()))
        self.wasted = self.wasted + 1 if is_empty and self.last is not None and self.last[0] == written else 0
        self.last = written, brought.detach().clone()
        self.is_mixed |= not is_empty and self.left >= 0 and self.others == self.left + 1
        self.left = self.others
        if gradient is None or gradient is not self.gradient:
            self.was_cleared = True
            if self.passes == 1 and version_of(self.gradient) != self.version and _is_apart(self.gradient):
                self.late = HostCopy.of([self.gradient.detach().abs().max()])
        elif not self.was_cleared:
            self.was_cleared = is_empty if is_on_host else version_of(gradient) != self.version
            self.version = version_of(gradient) + 1  # by the addition that follows

    def end(self) -> bool:
        """Look no more; return whether the gradient was kept."""
        if self.handle is not None:
            self.handle.remove()
        return self.passes > 0 and not self.was_cleared

    def stepped_by_last(self) -> HostCopy | None:
        """Return the cosine of the gradient that the step has used and that of the last pass, if others were cleared; else None.

        Nor is there one where no step writes into the parameter as torch's do, so that steps between passes are not seen.
        """
        used = self.parameter.grad
        if not self.wasted or self.last is None or used is None or version_of(self.parameter) == self.last[0]:
            return None
        with torch.no_grad():
            used, last = (each.detach().flatten().double() for each in (used, self.last[1]))
            return HostCopy.of([used @ last / (used.norm() * last.norm())])


class KeptGradients:
    """Looks at the smallest gradient of a model, in its first logged steps, for as long as it is never cleared, or too often.

    Attributes:
        looks: further logged steps matter.
        is_alone: one optimizer makes all steps so far, so that no pass is meant for another one.
    """

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        self._watch: _Watch | None = None
        self._first = (0, 0)  # epoch and step of the first look
        self._looks = 0  # logged steps that were looked at, but for the first
        self._kept = 0  # logged steps before which the gradient was kept
        self._mixed = 0  # those of them that added to what a pass for another optimizer had left
        self._last: list[HostCopy] = []  # of steps with passes that were for nothing: see stepped_by_last()
        self._passes = 0  # of such passes, the fewest before one step
        self._late: list[HostCopy] = []  # of steps: see _Watch.late
        self._found: tuple[Finding, ...] = ()
        self.looks = chosen.is_on("gradient_kept") or chosen.is_on("gradient_cleared")
        self.is_alone = True

    def look_at_pass(self, args: Sequence[Any], kwargs: Mapping[str, Any], others: int) -> None:
        """Look no more if what a pass is given takes a gradient itself: one for an attack, or a penalty, which is thrown away.

        Args:
            args, kwargs: what it is given.
            others: how many steps optimizers have made that hold no parameter of the model.
        """
        if self._watch is not None:
            self._watch.others = others
        if any(each.requires_grad and each.is_leaf for _, each in walk([list(args), dict(kwargs)])):
            self.end()

    def check(self, at: Sequence[SiteHook], held: frozenset[int] | None, epoch: int, step: int) -> None:
        """Look at what has become of the gradient since the last logged step, and at the gradient now.

        Args:
            at: the hooks of all parameters.
            held: the ids of the parameters of the optimizer that has made the step; None if that is not known.
            epoch, step: the moment.
        """
        watch = self._watch
        if watch is not None and held is not None and id(watch.parameter) not in held:
            return
        if watch is None:
            self._first = epoch, step
        elif watch.end() or watch.is_mixed:
            self._kept += 1
            self._mixed += watch.is_mixed
        elif watch.late is not None:
            self._late.append(watch.late)
        elif self.is_alone and (last := watch.stepped_by_last()) is not None:
            self._passes = watch.wasted if not self._last else min(self._passes, watch.wasted)
            self._last.append(last)
        if watch is not None and max(self._kept, len(self._last), len(self._late)) < self._looks:
            self.end()
            return
        self._looks += 1
        own = [each for each in at if held is not None and id(each.target) in held and _may_be_watched(each.target)]
        smallest = min(own, key=lambda hook: hook.target.numel(), default=None)
        found = None if smallest is None else self._judged()
        if smallest is None or found is not None or self._looks == _MOST:
            self.end()
        if smallest is not None and found is not None:
            site = smallest.sites["param"].port_of("grad")
            told = found.at(str(site), *self._first, f"{site.name}: {found.message}")
            self._found = (replace(told, first_step=self._first[1]),)
        elif smallest is not None and self.looks:
            parameter, gradient = smallest.target, smallest.target.grad
            assert gradient is not None
            self._watch = _Watch(parameter, gradient, version_of(gradient))
            self._watch.handle = hooks.on_tensor(parameter, self._watch.arrives)

    def _judged(self) -> Finding | None:
        """Return what is found of the looks so far."""
        late = self._chosen.judge("gradient_kept", float(len(self._late)))
        if late is not None and all(float(each) > 0 for copy in self._late for each in copy.unpack()):
            return replace(late, message=_LATE, advice=_BEFORE, severity="warn")
        cleared = self._chosen.judge("gradient_cleared", float(len(self._last)))
        if cleared is None or not self.is_alone:
            found = self._chosen.judge("gradient_kept", float(self._kept))
            return found if found is None or self._mixed < self._kept else replace(found, message=_MIXED, advice=_BEHIND)
        if any(not float(each) >= _SAME for copy in self._last for each in copy.unpack()):
            return None
        message = (
            f"its gradient is cleared between the backward passes of a step: only the last of {self._passes + 1} or more counts"
        )
        return replace(cleared, message=message, severity="warn", advice=_ONCE)

    def end(self) -> None:
        """Look no more. Idempotent."""
        self.looks = False
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def found(self) -> tuple[Finding, ...]:
        """Return the finding, if there is one so far."""
        return self._found


def _is_apart(gradient: Tensor) -> bool:
    """Return whether a gradient is no part of a buffer, whose other parts raise its version, too."""
    return gradient.untyped_storage().nbytes() == gradient.nbytes


def _may_be_watched(parameter: Tensor) -> bool:
    gradient = parameter.grad
    return type(gradient) is Tensor and gradient.layout is torch.strided and not gradient.is_inference() and parameter.is_leaf
