"""Look before each optimizer step, also between logged steps, whether the gradients and the loss are finite.

On the CPU the answer is there at once. On an accelerator nothing waits for it: see ``pending_steps.py``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from sonde.engine import (
    Clock,
    Scaling,
    autograd_state,
    backward_calls,
    graph_nodes,
    held_by,
    hooks,
    parameters,
    raise_if_foreign,
    returned_loss,
    unseen,
)
from sonde.errors import NonFiniteError, ObservationWarning
from sonde.inspector.sentinel.attempts import Attempts, StepTimer
from sonde.inspector.sentinel.bad_step import BadStep
from sonde.inspector.sentinel.gradients import GradientLook, kind_in, kind_of
from sonde.inspector.sentinel.pending_steps import PendingStep, PendingSteps
from sonde.inspector.sentinel.spikes import Spike, Spikes
from sonde.inspector.sentinel.training_passes import MOST_PASSES, BufferCopies, KeptPass
from sonde.warn import warn_user

_OUTPUTS_FROM = 2e-3  # seconds between two steps from which gradients at the outputs are kept, which takes 6 us
_TIMED = 8  # steps after which the time of a step is known
_READ = 3  # backward passes at whose loss function is looked
_LEARNS = 3  # first steps in which it is seen whether the model draws from the generators of Python and NumPy


def answers_at_once(parameter: Tensor) -> bool:
    """Return whether numbers made of *parameter* can be read without waiting for a device."""
    return parameter.device.type == "cpu"


def _number(loss: Any) -> float:
    return float(loss.item() if isinstance(loss, Tensor) else loss)


def _is_capturing() -> bool:
    """Return whether operations of the accelerator are being recorded to run later, as by ``torch.cuda.graph``."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


class Sentinel:
    """Looks at the gradients and the loss of one model in each step, and keeps what is needed to run the step again.

    On the CPU references to the arguments of the last step are kept; on an accelerator, the steps whose numbers have not come.

    What fails in the sentinel itself never leaves a hook: it looks no more, with one warning.

    Args:
        scaler: the ``GradScaler`` of the loop, or None.
        limit: the bytes that copies of buffers may take, and those of parameters on an accelerator.
        waits: wait for an accelerator before each step.
        spikes: judges losses and gradient norms; None: nobody does.
        report: called with a step whose gradients or loss are not finite. It may raise ``NonFiniteError``, which ends the step that
            is about to be taken.
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
        spikes: Spikes | None = None,
    ) -> None:
        self._held = weakref.ref(model)  # the clock holds the sentinel as long as the model lives
        self._name = name
        self._clock = clock
        self._attempts = None if scaler is None else Attempts(scaler)
        self._report = report
        self._waits = waits
        self._is_late = False  # numbers come later than they are asked for
        self._limit = limit
        self._buffers = BufferCopies(model, limit)
        self._pending = PendingSteps(limit)
        self._looks: dict[frozenset[int], GradientLook | None] = {}  # by the parameters of an optimizer
        self._passes: list[KeptPass] = []
        self._last: list[KeptPass] = []  # of the step that has ended, up to the next pass
        self._losses: list[Tensor | float] = []  # of the step that runs: on a device, or not finite
        self._spikes = spikes
        self._spike: Spike | None = None  # of the step that runs
        self._holds = False  # the passes so far have made a bad gradient: no other takes their place
        self._is_bad = False  # the last look found something; it is not reported again before a good one
        self._loss_is_bad = False  # so was the last loss
        self._since_look = 0  # passes since an optimizer was last looked at
        self._in_closure = False
        self._timer = StepTimer()
        self._draws = True  # the model may draw from the generators of Python or NumPy
        self._has_drawn = False
        self._returns_loss = False
        self._slopes: dict[str, None] = {}  # of the loss function, that are infinite somewhere
        self._read = 0  # so many backward passes were looked at for these

    @property
    def _model(self) -> nn.Module:
        """The model. Whatever calls the sentinel runs it, or steps its parameters."""
        model = self._held()
        if model is None:
            raise ReferenceError("the model is gone")
        return model

    # Life

    def attach(self) -> None:
        """Begin to look."""
        own = [parameter for _, parameter, _ in parameters(self._model)]
        if any(parameter.is_meta for parameter in own):
            return
        self._is_late = self._is_far(own)
        self._clock.forward_counter.arguments.append(self._begins)
        self._clock.forward_counter.take_outputs(self._returned)
        self._clock.guard_steps(self)

    def begin_anew(self) -> None:
        """The model has changed: look at the parameters and buffers that it has now."""
        self._buffers = BufferCopies(self._model, self._limit)
        self._looks.clear()
        self._timer.steps = 0  # what is learned in the first steps is learned again

    def _is_far(self, own: list[nn.Parameter]) -> bool:
        return not self._waits and not all(map(answers_at_once, own))

    def detach(self) -> None:
        """Look no more, and let go of everything that was kept; numbers on their way are waited for. Idempotent."""
        try:
            if self._is_late:
                self._is_late = False
                self._pending.send()
                self._settle(at_end=True)
        except ObservationWarning:  # a filter may make errors of warnings
            raise
        except Exception as error:
            self._broken(error)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._clock.stop_guarding(self)
        self._clock.forward_counter.take_no_more(self._begins)
        self._clock.forward_counter.take_no_more(self._returned)
        self._passes.clear()
        self._last = []
        self._losses.clear()
        self._pending.clear()

    def _broken(self, error: Exception) -> None:
        raise_if_foreign(error)
        self._let_go()
        warn_user(
            f"looking for NaN and infinity between logged steps has failed ({type(error).__name__}: {error}) and is given up; "
            "logged steps are recorded as before, and the training goes on"
        )

    # Passes

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """Keep a training pass that begins."""
        if not torch.is_grad_enabled():
            return
        try:
            self._pending.send()
            self._last = []
            if self._is_bad:
                return
            if self._attempts is not None and self._attempts.was_skipped():
                self._drop_attempt(self._attempts)
            passes = self._passes
            if not self._model.training and any(kept.thread == threading.get_ident() for kept in passes):
                return  # an evaluation without no_grad, in the middle of a step
            if not passes:
                self._buffers.copy()
            elif len(passes) >= MOST_PASSES:
                if self._holds or (not self._is_late and self._found_bad_at_ends()):
                    self._holds = True
                    return
                del passes[0]
            passes.append(KeptPass(args, kwargs, with_python=self._draws))
            self._since_look += 1
        except Exception as error:
            self._broken(error)

    def _returned(self, output: Any) -> None:
        """Listen to the gradients of what a pass has returned, and look at its loss."""
        thread = threading.get_ident()
        kept = next((kept for kept in reversed(self._passes) if kept.thread == thread and not kept.has_returned), None)
        if kept is None or output is None or not torch.is_grad_enabled():
            return
        try:
            loss = returned_loss(output)
            if loss is not None:
                self._returns_loss = True
                self._note_loss(loss)
            kept.listen(output, self._backward_begins)
        except Exception as error:
            self._broken(error)

    def _drop_attempt(self, attempts: Attempts) -> None:
        """Drop the passes of an attempt that the ``GradScaler`` has skipped; the first of too many is reported."""
        self._losses.clear()
        if self._passes:
            attempts.skipped += 1
            if attempts.are_too_many():
                self._is_bad = True
                self._tell({})
            self._passes.clear()

    def _found_bad_at_ends(self) -> bool:
        return any(look is not None and not look.is_finite_at_ends() for look in self._looks.values())

    # Losses

    def take_loss(self, loss: Any) -> None:
        """Look at a training loss that the loop gives: a number, or a tensor of one element.

        Raises:
            NonFiniteError: the loss is not finite, the optimizer has stepped already, and the policy says stop.
        """
        if self._is_bad:
            return
        try:
            if self._passes:
                self._note_loss(loss)
            elif isinstance(loss, Tensor) and not answers_at_once(loss):
                if self._pending.open is not None:
                    self._pending.open.add("loss", loss)
            elif self._pending.open is not None:
                self._pending.open.losses.append(_number(loss))
            elif isfinite(value := _number(loss)):
                self._loss_is_bad = False
                if self._spikes is not None and (spike := self._spikes.judge("loss", "loss", value)) is not None:
                    self._tell({}, is_taken=True, spike=spike)
            elif not self._loss_is_bad:
                self._loss_is_bad = True
                self._tell({}, loss=value, is_taken=True)
        except (NonFiniteError, ObservationWarning):
            self._go_on()
            raise
        except Exception as error:
            self._broken(error)

    def _note_loss(self, loss: Any) -> None:
        """Keep a loss of the step that runs, if it is not finite or not known yet."""
        if isinstance(loss, Tensor) and not answers_at_once(loss):
            if self._is_late:
                self._losses.append(loss.detach())
        elif not isfinite(value := _number(loss)) or self._is_late:
            self._losses.append(value)
        else:
            self._loss_is_bad = False
            if self._spikes is not None:
                self._spike = self._spikes.judge("loss", "loss", value) or self._spike

    # Looks

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at the gradients that *optimizer* is about to use."""
        try:
            held = held_by(optimizer)
            look = self._looks[held] if held in self._looks else self._new_look(held)
            if look is None or (unseen.blocks and self._clock.is_quiet_for(held)):
                return
            self._in_closure = bool(len(args) > 1 or kwargs) and self._clock.has_closure(args, kwargs)
            timer = self._timer
            timer.note_step()
            self._since_look = 0
            if self._is_late:
                self._settle()
                self._learn()
                self._look_later(look, timer.seconds, Scaling.skips(optimizer))
            elif not look.is_finite(timer.seconds):
                if Scaling.is_skipped(optimizer):
                    self._losses.clear()
                else:
                    self._found(look, in_backward=autograd_state.graph_task() != -1)
                return
            elif self._losses:
                self._found_loss()
                return
            else:
                self._is_bad = False
                self._learn()
                if self._spikes is not None:
                    self._judge_norm(look)
            self._holds = False
            timer.steps += 1
            is_needed = self._in_closure or self._returns_loss or self._spikes is not None
            if timer.steps == _TIMED and timer.seconds < _OUTPUTS_FROM and not is_needed:
                self._clock.forward_counter.take_no_more(self._returned)
            self._end_passes()
            if self._attempts is not None:
                self._attempts.step()
        except (NonFiniteError, ObservationWarning):
            self._go_on()
            raise
        except Exception as error:
            self._broken(error)

    def _new_look(self, held: frozenset[int]) -> GradientLook | None:
        if self._looks:  # an optimizer that is new may be of a model that has changed
            self._clock.look()
        own = [parameter for _, parameter, _ in parameters(self._model) if id(parameter) in held]
        self._is_late = self._is_late or self._is_far(own)  # the model may have been moved since it was attached
        found = self._looks[held] = GradientLook(own) if own else None
        return found

    def _learn(self) -> None:
        """See in the first steps which buffers a step changes, and whether it draws from the generators of Python and NumPy."""
        if self._timer.steps >= _LEARNS:
            return
        self._buffers.learn(last=self._timer.steps + 1 == _LEARNS)
        if self._passes and self._passes[0].random.python is not None:
            drawn = self._passes[0].random.has_drawn_from_python()
            self._has_drawn |= drawn
            self._draws = self._has_drawn or self._timer.steps + 1 < _LEARNS

    def _end_passes(self) -> None:
        """Keep the passes of the step until the next one begins: an optimizer may follow, or the loop may give the loss now."""
        if self._passes:
            for kept in self._passes:
                kept.let_go_of_graph()
            self._last, self._passes = self._passes, []

    def _backward_begins(self) -> None:
        """Look after this backward pass too, where no optimizer step may follow that can be looked at before."""
        if self._read < _READ:
            self._read += 1
            self._slopes |= dict.fromkeys(
                name for sent in backward_calls.sent_backward()[:1] for name in graph_nodes.steep_slopes(sent)
            )
        if self._in_closure or self._since_look > MOST_PASSES or self._clock.step_counter.says_steps:
            hooks.after_backward(self._backward_ended)

    def _backward_ended(self) -> None:
        """Look at the gradients that a backward pass has left. Under a ``GradScaler`` they may overflow, which is no fault."""
        says_steps = self._clock.step_counter.says_steps and self._attempts is None
        try:
            if says_steps and not self._looks:
                self._new_look(frozenset(id(parameter) for _, parameter, _ in parameters(self._model)))
            if self._is_late:
                self._settle()
            for look in list(self._looks.values()):
                if look is None:
                    continue
                if self._is_late:
                    if self._in_closure or says_steps:
                        self._look_later(look, 0.0, None)
                elif not (look.is_finite(0.0) if says_steps else look.is_finite_at_ends()):
                    self._holds = True
                    if self._in_closure or says_steps:
                        self._found(look, in_backward=False)
                elif says_steps and self._losses:
                    self._found_loss()
                elif says_steps:
                    self._is_bad = self._holds = False
                    self._end_passes()
            if self._is_late and says_steps:
                self._end_passes()
        except (NonFiniteError, ObservationWarning):
            self._go_on()
            raise
        except Exception as error:
            self._broken(error)

    # Looks whose answer comes later

    def _look_later(self, look: GradientLook, step_time: float, skipped: Tensor | None) -> None:
        """Send the numbers of the step that is about to be taken, and keep what the step began with."""
        if _is_capturing():  # a graph of the device is being recorded, in which nothing goes to the host
            return
        clock, pending = self._clock, self._pending
        opened = pending.open
        if opened is None or opened.step != clock.step:
            for kept in self._passes:
                kept.let_go_of_graph()
            opened = pending.begin(clock.epoch, clock.step, [] if self._is_bad else list(self._passes), self._buffers.give())
        if not self._is_bad:
            pending.keep(look.parameters)
        for loss in self._losses:
            if isinstance(loss, Tensor):
                opened.add("loss", loss)
            else:
                opened.losses.append(loss)
        self._losses.clear()
        for held, magnitudes in look.magnitudes(step_time):
            opened.add(held, magnitudes)
        for squares in look.squares_later() if self._spikes is not None else ():
            opened.add("squares", squares)
        if skipped is not None:
            opened.add("skipped", skipped)
        opened.in_backward = autograd_state.graph_task() != -1

    def _settle(self, *, at_end: bool = False) -> None:
        """Report the first bad one of the steps whose numbers have come; *at_end* wait for those that are on their way, too."""
        for step in self._pending.arrived(wait=at_end):
            magnitudes, others = step.read()
            if any(others.get("skipped", ())):
                continue
            losses = [*step.losses, *others.get("loss", ())]
            bad_losses = [loss for loss in losses if not isfinite(loss)]
            kinds = {each: kind for each, number in magnitudes.items() if (kind := kind_of(number))}
            is_new = bool(kinds and not self._is_bad) or bool(bad_losses and not (kinds or self._is_bad or self._loss_is_bad))
            self._is_bad = bool(kinds)
            self._loss_is_bad = bool(bad_losses)
            if is_new:
                self._tell_later(step, magnitudes, kinds, loss=bad_losses[0] if bad_losses else None, at_end=at_end)
            elif self._spikes is not None and not (kinds or bad_losses):
                spikes = [self._spikes.judge("loss", "loss", loss) for loss in losses]
                largest = self._names({max(magnitudes, key=magnitudes.__getitem__): ""}) if magnitudes else {}
                norm = sum(others.get("squares", ())) ** 0.5
                spikes.append(self._spikes.judge("norm", "gradient norm", norm, next(iter(largest), "")))
                for spike in [each for each in spikes if each is not None][-1:]:
                    self._tell_later(step, magnitudes, {}, spike=spike, at_end=at_end)

    def _names(self, kinds: dict[int, str]) -> dict[str, str]:
        return {name: kinds[id(parameter)] for name, parameter, _ in parameters(self._model) if id(parameter) in kinds}

    def _tell_later(self, step: PendingStep, magnitudes: dict[int, float], kinds: dict[int, str], **known: Any) -> None:
        """Report a step whose numbers have come: its gradients of bad *kinds*, and what else is *known*."""
        before = self._pending.parameters_before(step)
        found = BadStep(
            self._model,
            self._name,
            step.epoch,
            step.step,
            self._names(kinds),
            step.passes,
            step.buffers,
            looked_at=len(magnitudes),
            parameters=before,
            is_sample=step.looks_at_some,
            late=max(self._clock.step - step.step, 0),
            is_taken=True,
            in_backward=step.in_backward and bool(before.lost),
            slopes=tuple(self._slopes),
            **known,
        )
        self._report(found)

    # What was found

    def _found(self, look: GradientLook, *, in_backward: bool) -> None:
        """Report the step, unless the one before was bad already."""
        if self._is_bad:
            self._passes.clear()
            self._losses.clear()
            return
        bad: dict[str, str] = {}
        looked_at = 0
        held = set(map(id, look.parameters))
        for name, parameter, _ in parameters(self._model):
            if parameter.grad is not None and id(parameter) in held:
                looked_at += 1
                if kind := kind_in(parameter.grad):
                    bad[name] = kind
        if bad:
            self._is_bad = True
            losses = [loss for loss in self._losses if isinstance(loss, float)]
            self._tell(bad, looked_at=looked_at, loss=losses[0] if losses else None, in_backward=in_backward)

    def _found_loss(self) -> None:
        """Report a step whose gradients are finite and whose loss is not, unless that of the one before was not either."""
        is_new, loss = not self._loss_is_bad, next(each for each in self._losses if isinstance(each, float))
        self._is_bad, self._loss_is_bad = False, True
        if is_new:
            self._tell({}, loss=loss)
        self._losses.clear()
        self._end_passes()

    def _judge_norm(self, look: GradientLook) -> None:
        """Report the step if its loss or the norm of its gradients is a spike."""
        assert self._spikes is not None
        spike, self._spike = self._spike, None
        held, squares = look.squares()
        if held:
            largest = held[squares.index(max(squares))]
            name = next(name for name, parameter, _ in parameters(self._model) if parameter is largest)
            spike = self._spikes.judge(id(look), "gradient norm", sum(squares) ** 0.5, name) or spike
        if spike is not None:
            self._tell({}, spike=spike)

    def _go_on(self) -> None:
        """Forget what was found: if the loop goes on after the error, the next bad step stops it, too."""
        self._is_bad = self._loss_is_bad = False
        self._pending.clear()  # steps that were taken with the parameters that the bad one left

    def _tell(self, bad: dict[str, str], *, is_taken: bool = False, **known: Any) -> None:
        """Report the step that runs, or the one before if it *is_taken*: its *bad* gradients, and what else is *known*."""
        clock = self._clock
        skipped = 0 if self._attempts is None else self._attempts.skipped
        step, passes = max(clock.step - is_taken, 0), list(self._passes or self._last)
        buffers = self._buffers.values()
        found = BadStep(
            self._model,
            self._name,
            clock.epoch,
            step,
            bad,
            passes,
            buffers,
            is_taken=is_taken,
            skipped=skipped,
            slopes=tuple(self._slopes),
            **known,
        )
        try:
            self._report(found)
        finally:
            if found.spike is None:
                self._passes.clear()
            self._losses.clear()
