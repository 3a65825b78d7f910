"""Look before each optimizer step, also between logged steps, whether the gradients are finite."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from sonde.engine.clock.clock import Clock
from sonde.engine.clock.optimizers import has_closure, held_by, is_skipped, look_before, look_no_more
from sonde.engine.selection import parameters
from sonde.engine.torch_api import hooks
from sonde.engine.torch_api.autograd_state import graph_task
from sonde.engine.torch_api.tensors import loss_scale_of, version_of
from sonde.engine.unseen import are_quiet, blocks
from sonde.errors import NonFiniteError, ObservationWarning
from sonde.inspector.sentinel.gradients import GradientLook, is_finite
from sonde.inspector.sentinel.training_passes import MOST_PASSES, BufferCopies, KeptPass
from sonde.warn import warn_user

__all__ = ["ON_NONFINITE", "BadStep", "OnNonFinite", "Sentinel"]

OnNonFinite = Literal["warn", "stop"]
"""What is done about a step with gradients that are not finite."""

ON_NONFINITE: tuple[OnNonFinite | None, ...] = ("warn", "stop", None)

_MOST_SKIPPED = 16  # attempts in a row that a GradScaler skips: as many as take its first scale, 65,536, to 1
_OUTPUTS_FROM = 2e-3  # seconds between two steps from which gradients at the outputs are kept, which takes 6 us
_TIMED = 8  # steps after which the time of a step is known
_LEARNS = 3  # first steps in which it is seen whether the model draws from the generators of Python and NumPy


@dataclass(slots=True)
class BadStep:
    """A step whose gradients are not finite, before the optimizer has used them.

    Attributes:
        model, name: the model, and its name in the sites.
        epoch, step: when.
        gradients: by the name of the parameter, the numbers of NaN and of infinities in its gradient, and of its elements.
        finite: the names of the parameters whose gradients are finite.
        passes: the training passes of the step, in order.
        buffers: as they were before the step, by name; of those that are not there the present ones are as good.
        skipped: so many attempts in a row were skipped by a ``GradScaler``; 0 if none was.
        in_backward: the optimizer runs inside the backward pass, so that some parameters have changed already.
    """

    model: nn.Module
    name: str
    epoch: int
    step: int
    gradients: dict[str, tuple[int, int, int]]
    finite: list[str]
    passes: list[KeptPass]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    skipped: int = 0
    in_backward: bool = False


class _StepTimer:
    """Estimates the time between two steps.

    Attributes:
        steps: that were good.
        seconds: between two; 0 while that is not known.
    """

    __slots__ = ("_last", "seconds", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0
        self._last = 0.0

    def look(self) -> None:
        """Note that a step is about to be taken."""
        now = time.perf_counter()
        between, self._last = now - self._last, now
        if self.steps:  # a longer time may be that of an evaluation
            self.seconds = min(between, 1.05 * self.seconds) if self.seconds else between


class _Attempts:
    """Counts the attempts in a row that a ``GradScaler`` skips: it writes into its scale, and no step was taken."""

    __slots__ = ("_scaler", "_version", "skipped")

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._version = self._now()
        self.skipped = 0

    def _now(self) -> int:
        scale = loss_scale_of(self._scaler)
        return 0 if scale is None else version_of(scale)

    def was_skipped(self) -> bool:
        """Return whether the scale was written into since the last call, or since ``step``."""
        before, self._version = self._version, self._now()
        return self._version != before

    def are_too_many(self) -> bool:
        """Return whether so many attempts in a row were skipped that no scale can be the cause. Reads a scale on the CPU alone."""
        scale = loss_scale_of(self._scaler)
        if scale is None or self.skipped < _MOST_SKIPPED:
            return False
        return scale.item() < 1.0 if scale.device.type == "cpu" else self.skipped >= 2 * _MOST_SKIPPED

    def step(self) -> None:
        """A step is about to be taken."""
        self.skipped = 0
        self._version = self._now() + 1  # update() comes after the step


class Sentinel:
    """Looks at the gradients of one model before each step, and keeps what is needed to run the step again.

    Nothing is kept from one step to the next but references to the arguments of the step that runs.

    What fails in the sentinel itself never leaves a hook: it looks no more, with one warning. The class is large because what a
    pass, a backward pass and a step leave behind is one state, which a fault at any of them needs whole.

    Args:
        scaler: the ``GradScaler`` of the loop, or None.
        limit: the bytes that copies of buffers may take.
        waits: look at gradients on an accelerator, too, and wait for it before each step. Else a model on one is not looked at.
        report: called with a step whose gradients are not finite. It may raise ``NonFiniteError``, which ends the step before
            any parameter has changed.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        clock: Clock,
        scaler: Any,
        limit: float,
        report: Callable[[BadStep], None],
        *,
        waits: bool,
    ) -> None:
        self._held = weakref.ref(model)  # the clock holds the sentinel as long as the model lives
        self._name = name
        self._clock = clock
        self._attempts = None if scaler is None else _Attempts(scaler)
        self._report = report
        self._waits = waits
        self._buffers = BufferCopies(model, limit)
        self._looks: dict[frozenset[int], GradientLook | None] = {}  # by the parameters of an optimizer
        self._passes: list[KeptPass] = []
        self._holds = False  # the passes so far have made a bad gradient: no other takes their place
        self._is_bad = False  # the last look found something; it is not reported again before a good one
        self._since_look = 0  # passes since an optimizer was last looked at
        self._in_closure = False
        self._timer = _StepTimer()
        self._draws = True  # the model may draw from the generators of Python or NumPy
        self._has_drawn = False

    @property
    def _model(self) -> nn.Module:
        """The model. Whatever calls the sentinel runs it, or steps its parameters."""
        model = self._held()
        if model is None:
            raise ReferenceError("the model is gone")
        return model

    # Life

    def attach(self) -> None:
        """Begin to look, if that is possible without waiting for a device that is not to be waited for."""
        if not self._may_look([parameter for _, parameter, _ in parameters(self._model)]):
            return
        self._clock.forward_counter.arguments.append(self._begins)
        self._clock.forward_counter.take_outputs(self._returned)
        look_before(self)

    def detach(self) -> None:
        """Look no more, and let go of everything that was kept. Idempotent."""
        look_no_more(self)
        self._clock.forward_counter.take_no_more(self._begins)
        self._clock.forward_counter.take_no_more(self._returned)
        self._passes.clear()

    def _broken(self, error: Exception) -> None:
        self.detach()
        warn_user(
            f"looking for NaN and infinity between logged steps has failed ({type(error).__name__}: {error}) and is given up; "
            "logged steps are recorded as before, and the training goes on"
        )

    # Passes

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """Keep a training pass that begins."""
        if not torch.is_grad_enabled() or self._is_bad:
            return
        try:
            if self._attempts is not None and self._attempts.was_skipped():
                self._drop_attempt(self._attempts)
            passes = self._passes
            if not self._model.training and any(kept.thread == threading.get_ident() for kept in passes):
                return  # an evaluation without no_grad, in the middle of a step
            if not passes:
                self._buffers.take()
            elif len(passes) >= MOST_PASSES:
                if self._holds or self._found_bad_at_ends():
                    self._holds = True
                    return
                del passes[0]
            passes.append(KeptPass(args, kwargs, with_python=self._draws))
            self._since_look += 1
        except Exception as error:
            self._broken(error)

    def _returned(self, output: Any) -> None:
        """Listen to the gradients of what a pass has returned."""
        thread = threading.get_ident()
        kept = next((kept for kept in reversed(self._passes) if kept.thread == thread and not kept.has_returned), None)
        if kept is None or output is None or not torch.is_grad_enabled():
            return
        try:
            kept.listen(output, self._backward_begins)
        except Exception as error:
            self._broken(error)

    def _drop_attempt(self, attempts: _Attempts) -> None:
        """Drop the passes of an attempt that the ``GradScaler`` has skipped; the first of too many is reported."""
        if self._passes:
            attempts.skipped += 1
            if attempts.are_too_many():
                self._tell(self._bad_step({}, []))
            self._passes.clear()

    def _found_bad_at_ends(self) -> bool:
        return any(look is not None and not look.is_finite_at_ends() for look in self._looks.values())

    # Looks

    def look(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at the gradients that *optimizer* is about to use."""
        try:
            held = held_by(optimizer)
            look = self._looks[held] if held in self._looks else self._new_look(held)
            if look is None or (blocks and self._is_quiet(optimizer)):
                return
            self._in_closure = bool(len(args) > 1 or kwargs) and has_closure(args, kwargs)
            timer = self._timer
            timer.look()
            self._since_look = 0
            if not look.is_finite(timer.seconds):
                if not is_skipped(optimizer):
                    self._found(look, in_backward=graph_task() != -1)
                return
            self._is_bad = self._holds = False
            if timer.steps < _LEARNS:
                self._learn()
            timer.steps += 1
            if timer.steps == _TIMED and timer.seconds < _OUTPUTS_FROM and not self._in_closure:
                self._clock.forward_counter.take_no_more(self._returned)
            self._passes.clear()
            if self._attempts is not None:
                self._attempts.step()
        except (NonFiniteError, ObservationWarning):  # a filter may make errors of warnings
            self._is_bad = False  # if the loop goes on, the next one stops, too
            raise
        except Exception as error:
            self._broken(error)

    def _new_look(self, held: frozenset[int]) -> GradientLook | None:
        own = [parameter for _, parameter, _ in parameters(self._model) if id(parameter) in held]
        if not self._may_look(own):  # the model was moved since it was attached
            self.detach()
            return None
        found = self._looks[held] = GradientLook(own) if own else None
        return found

    def _may_look(self, own: list[nn.Parameter]) -> bool:
        return self._waits or all(parameter.device.type == "cpu" for parameter in own)

    def _is_quiet(self, optimizer: Optimizer) -> bool:
        return self._clock.is_quiet() or are_quiet(self._clock.number, held_by(optimizer))

    def _learn(self) -> None:
        """See which buffers the step has changed, and whether it has drawn from the generators of Python and NumPy."""
        self._buffers.learn(last=self._timer.steps + 1 == _LEARNS)
        if self._passes and self._passes[0].random.python is not None:
            drawn = self._passes[0].random.has_drawn_from_python()
            self._has_drawn |= drawn
            self._draws = self._has_drawn or self._timer.steps + 1 < _LEARNS

    def _backward_begins(self) -> None:
        """Look after this backward pass too, where no optimizer step may follow that can be looked at before."""
        if self._in_closure or self._since_look > MOST_PASSES or self._clock.step_counter.says_steps:
            hooks.after_backward(self._backward_ended)

    def _backward_ended(self) -> None:
        """Look at the gradients that a backward pass has left. Under a ``GradScaler`` they may overflow, which is no fault."""
        says_steps = self._clock.step_counter.says_steps and self._attempts is None
        try:
            if says_steps and not self._looks:
                self._new_look(frozenset(map(id, self._model.parameters())))
            for look in list(self._looks.values()):
                if look is None:
                    continue
                if not (look.is_finite(0.0) if says_steps else look.is_finite_at_ends()):
                    self._holds = True
                    if self._in_closure or says_steps:
                        self._found(look, in_backward=False)
                elif says_steps:
                    self._is_bad = self._holds = False
                    self._passes.clear()
        except (NonFiniteError, ObservationWarning):
            self._is_bad = False
            raise
        except Exception as error:
            self._broken(error)

    # What was found

    def _found(self, look: GradientLook, *, in_backward: bool) -> None:
        """Report the step, unless the one before was bad already."""
        if self._is_bad:
            self._passes.clear()
            return
        bad: dict[str, tuple[int, int, int]] = {}
        finite: list[str] = []
        held = set(map(id, look.parameters))
        for name, parameter, _ in parameters(self._model):
            gradient = parameter.grad
            if gradient is None or id(parameter) not in held:
                continue
            if is_finite(gradient):
                finite.append(name)
            else:
                values = gradient.detach()
                values = values.coalesce().values() if values.is_sparse else values
                bad[name] = int(values.isnan().sum()), int(values.isinf().sum()), values.numel()
        if bad:
            self._tell(self._bad_step(bad, finite, in_backward=in_backward))

    def _bad_step(self, bad: dict[str, tuple[int, int, int]], finite: list[str], *, in_backward: bool = False) -> BadStep:
        clock = self._clock
        return BadStep(
            self._model,
            self._name,
            clock.epoch,
            clock.step,
            bad,
            finite,
            list(self._passes),
            self._buffers.values(),
            0 if self._attempts is None else self._attempts.skipped,
            in_backward,
        )

    def _tell(self, found: BadStep) -> None:
        self._is_bad = True
        try:
            self._report(found)
        finally:
            self._passes.clear()
