"""One model under an inspector: its clock, the steps that are logged, and the work at each of its moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from sonde.engine import Clock, Pace
from sonde.errors import ArgumentError
from sonde.inspector.batches import PASSES
from sonde.inspector.budget import Meter
from sonde.inspector.measurement.fitting import fit_norms
from sonde.inspector.measurement.measurement import Measurement
from sonde.inspector.pipeline.row_taker import RowTaker, Send
from sonde.inspector.sentinel.bad_step import BadStep
from sonde.inspector.sentinel.sentinel import Sentinel
from sonde.inspector.sentinel.spikes import Spikes
from sonde.inspector.settings import Settings
from sonde.schedule import Schedule

_SAME_PASSES = 2  # of a step, in which samples are compared


class WatchedModel:
    """One model under an inspector.


    Attributes:
        model, name: the model, and its name in the sites.
        pace: which of its steps are logged.
        meter: measures how long its steps take.
        rows: its measurements.
        logged: the number of steps that were logged.

    Args:
        send: called with the data of each moment, and with the batches that have waited for this moment.
        failed: called with an error that the schedule raises.
    """

    def __init__(
        self, model: nn.Module, name: str, settings: Settings, schedule: Schedule, send: Send, failed: Callable[[Exception], None]
    ) -> None:
        self.model = model
        self.name = name
        self.pace = Pace(schedule)
        self.meter = Meter()
        self.rows = RowTaker(model, name, settings, send)
        self.logged = 0
        self._settings = settings
        self._failed = failed
        self._clock: Clock | None = None
        self._sentinel: Sentinel | None = None
        self._first_step = self._last_step = 0
        self._attached = False
        self._ended = False  # a step has, and its rows were not taken yet
        self._logged_step = -1  # the last step that was logged
        self._pass_of: int | None = None  # the step of the pass that was looked at since
        self._pass_number = 0  # of these passes
        self._arguments: tuple[Any, Any] | None = None  # of the pass that runs, if its output is looked at
        self._begun_step = -1  # the last step of which a training pass was observed
        self._passes = 0  # backward passes before the last training pass that was observed

    # Life

    def attach(
        self,
        measurements: Iterable[Measurement],
        first_step: int | None,
        epoch: int,
        bad_step: Callable[[BadStep], None] | None = None,
    ) -> None:
        """Put every lens on the model.

        Args:
            measurements: of all lenses.
            bad_step: called with a step whose gradients or loss are not finite; None: not every step is looked at.
        """
        settings = self._settings
        for measurement in measurements:
            self._put_on(measurement, first_step, epoch)
        self._fit_norms(first_step, epoch)
        if self.pace.on and self._clock is not None:
            self.rows.watch_order()
            self.rows.look_at_start(self._clock.step)
            self.rows.listen(self.pace)
        if bad_step is not None and self._clock is not None:
            self._sentinel = Sentinel(
                self.model,
                self.name,
                self._clock,
                settings.scaler,
                settings.update_memory,
                bad_step,
                waits=settings.bad_steps.on_nonfinite == "wait",
                spikes=None if settings.bad_steps.on_spike is None else Spikes(settings.bad_steps.on_spike),
            )
            self._sentinel.attach()

    def _fit_norms(self, first_step: int | None, epoch: int) -> None:
        hidden = fit_norms(self.model, self.name, self.rows.measurements, self._settings)
        if hidden is not None:
            self._put_on(hidden, first_step, epoch)

    def _put_on(self, measurement: Measurement, first_step: int | None, epoch: int) -> None:
        if self._clock is None:
            clock = self._clock = measurement.attachment.clocks[0]
            if first_step is not None:
                clock.continue_at(first_step)
            if epoch:
                clock.end_epoch(epoch)
            self._first_step = clock.step
            self._decide()
        self.rows.add(measurement, self.pace)
        if not self._attached:
            self._attached = True
            clock = self.clock
            clock.call_after_steps(self._step_ends, first=True)
            clock.call_after_optimizer(self._optimizer_stepped)
            clock.call_before_forward(self._forward_begins)
            clock.call_after_micro_step(self._backward_ended)
            clock.call_after_change(self._model_changed)
            self._look_at_passes()

    def detach(self) -> None:
        """Take everything off; rows of a step that has not ended are dropped."""
        clock = self._clock
        if self._sentinel is not None:
            self._sentinel.detach()
        if clock is not None and self._attached:
            clock.end_open()
            self._attached, self._last_step = False, clock.step
            clock.call_no_more(self._step_ends)
            clock.call_no_more(self._optimizer_stepped)
            clock.call_no_more(self._forward_begins)
            clock.call_no_more(self._backward_ended)
            clock.call_no_more(self._model_changed)
            self._look_at_no_passes()
            clock.forward_counter.take_no_more(self._pass_was_begun)
        self.rows.detach()

    @property
    def observes(self) -> bool:
        """Whether anything in the model is observed."""
        return self._clock is not None

    @property
    def clock(self) -> Clock:
        """The time of the model.

        Raises:
            ArgumentError: nothing in the model is observed.
        """
        if self._clock is None:
            raise ArgumentError(f"nothing of {self.name or 'the model'} is observed")
        return self._clock

    @property
    def steps(self) -> int:
        """The number of steps that have ended."""
        return (self._last_step if not self._attached else self.clock.step) - self._first_step

    @property
    def next_moment(self) -> tuple[int, int]:
        """The epoch and the step that run or come next."""
        return self.clock.epoch, self._first_step + self.steps

    def take_loss(self, loss: Any) -> None:
        """Look at a training loss that the loop gives: a number, or a tensor of one element.

        Raises:
            NonFiniteError: it is not finite, and the training is to stop.
        """
        if self._clock is not None:
            self.rows.loss_graph.take_loss(loss, *self.moment(in_step=False))
        if self._sentinel is not None:
            self._sentinel.take_loss(loss)

    def take_validation_loss(self) -> None:
        """Note that a validation loss was given, and see from which passes later ones come."""
        if self._clock is None:
            return
        counter = self._clock.forward_counter
        if not self.rows.evaluations.take_loss(self.model, *self.moment(in_step=False)):
            counter.take_no_more(self._pass_was_begun)
        elif self._pass_was_begun not in counter.arguments:
            counter.arguments.append(self._pass_was_begun)

    def _pass_was_begun(self, args: Any, kwargs: Any) -> None:
        self.rows.evaluations.begin_pass(self.model, self.clock.epoch, self.clock.step, (args, kwargs))

    def moment(self, *, in_step: bool) -> tuple[int, int]:
        """Epoch and step of something that happens now: in the step that runs, if *in_step* and one does; else in the last."""
        clock = self.clock
        if in_step and clock.has_begun:
            return clock.epoch, clock.step
        return clock.epoch, max(clock.step - 1, 0)

    # Moments

    def _model_changed(self) -> None:
        """Let norms be of all parameters that the model has now, and the order of its modules be seen again."""
        self._fit_norms(None, 0)
        self.rows.begin_anew()
        if self.pace.on:
            self.rows.watch_order()
        if self._sentinel is not None:
            self._sentinel.begin_anew()

    def end_epoch(self, epoch: int | None) -> None:
        """End the epoch; *epoch* sets the number of the next. A schedule of epochs decides again about a step that comes now.

        A logged step whose training pass has been stays logged.
        """
        self.clock.end_epoch(epoch)
        self.meter.forget_step()
        if self.pace.schedule.by_epoch and self._begun_step != self.clock.step:
            self.clock.call_after_steps(self._step_ends, first=True)
            self._decide(again=True)
            self.rows.begin_step(self.pace, again=True)

    def schedule_by(self, schedule: Schedule) -> None:
        """Log by another schedule from the next decision on."""
        self.pace.follow(schedule, self.clock.turns, self.clock.step)
        self.clock.call_after_steps(self._step_ends, first=True)

    def _decide(self, *, again: bool = False) -> None:
        """Decide whether the step that begins now is logged; *again*: after an epoch has ended."""
        try:
            (self.pace.decide_again if again else self.pace.begin)(self.clock.now(), self.clock.turns)
        except Exception as error:
            self._failed(error)

    def _step_ends(self) -> None:
        """Begin the next step. The rows of the one that has ended are taken in :meth:`complete`, after all other probes."""
        self.meter.enter()
        self._ended = True
        self._decide()
        self.rows.modes.end_step(self.clock.epoch, self.clock.step - 1, logged=self.pace.was_on, training=self.model.training)
        self.rows.begin_step(self.pace)

    def _optimizer_stepped(self, optimizer: Optimizer | None, taken: bool) -> None:
        """*optimizer* has stepped, unless the step was not *taken*, and the engine is done with the step."""
        if self._ended:
            self.complete(optimizer)
        elif not taken:
            if self.pace.on:
                self.rows.discard()
        elif self.clock.again and self._logged_step == self.clock.step - 1:
            self._take(optimizer)  # a second optimizer's: these rows belong to the step that has ended already

    def _pass_begins(self, args: Any, kwargs: Any) -> None:
        """See the first training passes of a step after a logged one begin, observed or not.

        Several environments of a game begin alike: their first pass alone says nothing of the samples.
        """
        self._arguments = None
        if not (torch.is_grad_enabled() and self.model.training):
            return
        step, former, self._pass_of = self.clock.step, self._pass_of, self.clock.step
        self._pass_number = 0 if former is None else self._pass_number + 1
        looks = self.rows.batches.looks and former in (None, step) and self._pass_number < PASSES
        if former != step:
            self.rows.listen(self.pace, passes=looks and not self.clock.forward_counter.is_compiled)
        if former is None and step == self._logged_step + 1:
            self.rows.between.look()
        if former in (None, step) and self.rows.same.looks and self._pass_number < _SAME_PASSES:
            self.rows.same.look(args, kwargs, *self.next_moment)
        if self.rows.kept.looks:
            self.rows.kept.look_at_pass(args, kwargs, self.clock.step_counter.foreign)
        if looks and not self.clock.forward_counter.is_compiled:
            self._arguments = args, kwargs
            self.clock.forward_counter.take_outputs(self._pass_ends)  # for this call alone: compiled code is guarded by hooks
        elif former != step and (former is not None or not self.rows.same.looks):
            self._look_at_no_passes()

    def _pass_ends(self, output: Any) -> None:
        """See what such a pass returns."""
        self.clock.forward_counter.take_no_more(self._pass_ends)
        given, self._arguments = self._arguments, None
        if given is not None:
            self.rows.loss_graph.look_at_pass(*given, output)
            self.rows.batches.look(*given, output, self.next_moment, self._pass_number)

    def _look_at_passes(self) -> None:
        counter = self.clock.forward_counter
        if self._pass_begins not in counter.arguments:
            counter.arguments.append(self._pass_begins)

    def _look_at_no_passes(self) -> None:
        self.clock.forward_counter.take_no_more(self._pass_begins)
        self.clock.forward_counter.take_no_more(self._pass_ends)

    def complete(self, optimizer: Optimizer | None) -> None:
        """Take the rows of the step that has ended, if it was logged."""
        if not self._ended:
            return
        self._ended = False
        if self.pace.was_on:
            self.logged += 1
            self._logged_step = self.clock.step - 1
            self._take(optimizer)
        if self.pace.on and not self.pace.was_on:  # otherwise the rows of the step before tell how the step begins
            self.rows.look_at_start(self.clock.step)
        if self.rows.has_sequences:
            self.rows.end_pair(self.pace)
        self.meter.leave(logged=self.pace.was_on)
        if not self.pace.on:
            self._idle()

    def _take(self, optimizer: Optimizer | None) -> None:
        turn = 0 if optimizer is None else self.clock.turn_of(optimizer)
        self.rows.kept.is_alone &= not (self.clock.turns.are_several or self.clock.step_counter.foreign)
        self.rows.take_step(self.clock.ended, optimizer, turn, pairs=self.pace.ends_pair)
        self._pass_of = None
        self.rows.batches.end_step()
        self.rows.parts.end_step()
        if self.rows.between.waits or self.rows.same.looks or self.rows.batches.looks:
            self._look_at_passes()

    def _idle(self) -> None:
        """Do nothing until the step before the next that may be logged: that one is timed, or is the first of a pair."""
        until, following = self.pace.rests_until(self.clock.step + 1, self.clock.turns) - 1, self.clock.step + 1
        if until > following:
            self.clock.call_after_steps(self._step_ends, first=True, until=until)
            self.meter.forget_step()

    def _backward_ended(self) -> None:
        if self.pace.on:
            self.rows.take_backward(self.clock.epoch, self.clock.step)

    def _forward_begins(self) -> None:
        if torch.is_grad_enabled():
            self.rows.modes.add(training=self.model.training)
        if not (torch.is_grad_enabled() and self.model.training):
            self.rows.evaluated = True
            return
        self._begun_step = self.clock.step
        passes, self._passes = self._passes, self.clock.backward_counter.count
        if self.rows.was_skipped(self.clock.step) or self.clock.step_counter.is_thrown_away(since=passes):
            self.rows.discard()
        self.take_evaluation()

    def take_evaluation(self) -> None:
        """Take the rows of the evaluation passes since the last step, if there were any."""
        alone = 0 if self._clock is None else self._clock.evaluated_alone
        if self.rows.evaluated or alone != self.rows.evaluated_alone:
            self.rows.evaluated_alone = alone
            self.rows.take_evaluation(*self.moment(in_step=False))
