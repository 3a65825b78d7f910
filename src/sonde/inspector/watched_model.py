"""One model under an inspector: its measurings, its pace, and the moments at which rows are taken."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from sonde.engine import Tick
from sonde.engine.clock.clock import Clock
from sonde.engine.clock.loss_scale import Scaling, scale_at_step
from sonde.errors import ArgumentError, SelectionError
from sonde.inspector.budget import Meter
from sonde.inspector.measurement.execution_order import Ordering
from sonde.inspector.measurement.fitting import fit, fit_norms
from sonde.inspector.measurement.measurement import Measurement
from sonde.inspector.measurement.turns import Turn
from sonde.inspector.pipeline.batch import Batch, BatchBuilder
from sonde.inspector.schedule import Pace, Schedule
from sonde.inspector.settings import Settings
from sonde.site import GRADIENT_PORTS, MODULE_PORTS

__all__ = ["WatchedModel"]

Send = Callable[[BatchBuilder, "list[Batch]"], None]
Failed = Callable[[Exception], None]


class WatchedModel:
    """One model.

    Attributes:
        name: of the model in its sites.
        pace: which of its steps are logged.
        meter: how long its steps take.
        logged: how many of them were logged.

    Args:
        send: called with what a moment has to write, and what has waited for that moment.
        failed: called with what the schedule raises.
    """

    def __init__(self, model: nn.Module, name: str, settings: Settings, schedule: Schedule, send: Send, failed: Failed) -> None:
        self.model = model
        self.name = name
        self.pace = Pace(schedule)
        self.meter = Meter()
        self.logged = 0
        self._first_step = self._last_step = 0
        self._turns: list[Turn] = []
        self._settings = settings
        self._send = send
        self._failed = failed
        self._clock: Clock | None = None
        self._ordering = Ordering(model, name)
        self._places: dict[str, int] = {}
        self._scaling = Scaling(settings.scaler)
        self._waiting: list[Batch] = []  # of backward passes in this step, until it is known that it is one
        self._attached = False
        self._ended = False  # a step has, and its rows were not taken yet
        self._was_logged = False  # that step
        self._logged_step = -1  # the last that was
        self._pairs = self._had_pairs = self._takes_pairs = False  # sequences are observed in this step, and were in the one before
        self._has_sequences = False
        self._evaluated = False

    # Life

    def attach(self, first_step: int | None, epoch: int) -> dict[str, SelectionError]:
        """Put every lens on; by name, what those say that find nothing here."""
        settings = self._settings
        refused = {}
        for lens in settings.lenses:
            try:
                for turn in fit(self.model, self.name, lens, settings):
                    self._put_on(turn, first_step, epoch)
            except SelectionError as error:
                refused[lens.name] = error
        hidden = fit_norms(self.model, self.name, self.measurings, settings)
        if hidden is not None:
            self._put_on(hidden, first_step, epoch)
        self._has_sequences = any(measuring.is_sequence for measuring in self.measurings)
        if self.pace.on and self._clock is not None:
            self._ordering.watch()
        return refused

    @property
    def steps(self) -> int:
        """How many have ended."""
        return (self._last_step if not self._attached else self.clock.step) - self._first_step

    @property
    def measurings(self) -> list[Measurement]:
        """All that it is measured by."""
        return [turn.measuring for turn in self._turns]

    def _put_on(self, turn: Turn, first_step: int | None, epoch: int) -> None:
        if self._clock is None:
            clock = self._clock = turn.measuring.attachment.clocks[0]
            if first_step is not None:
                clock.continue_at(first_step)
                clock.end_epoch(epoch)
            self._first_step = clock.step
            self._begin(clock.now())
        self._turns.append(turn)
        turn.attach(logged=self.pace.on, in_pair=self._pairs)
        if len(self._turns) == 1:
            self._attached = True
            clock.call_after_steps(self._step_ends, first=True)
            clock.call_after_optimizer(self._optimizer_stepped)
            clock.call_before_forward(self._forward_begins)
            clock.call_after_micro_step(self._backward_ended)

    def detach(self) -> None:
        """Take everything off; rows of a step that has not ended are dropped."""
        self._ordering.settle()
        clock = self._clock
        if clock is not None and self._attached:
            self._attached, self._last_step = False, clock.step
            clock.call_no_more(self._step_ends)
            clock.call_no_more(self._optimizer_stepped)
            clock.call_no_more(self._forward_begins)
            clock.call_no_more(self._backward_ended)
        for turn in self._turns:
            turn.measuring.attachment.detach()

    @property
    def clock(self) -> Clock:
        """The time of the model.

        Raises:
            ArgumentError: nothing of it is observed.
        """
        if self._clock is None:
            raise ArgumentError(f"nothing of {self.name or 'the model'} is observed")
        return self._clock

    # Time

    def _begin(self, tick: Tick) -> None:
        """A step begins at *tick*: decide whether it is logged."""
        try:
            self.pace.begin(tick)
        except Exception as error:
            self.pace.on = self.pace.soon = False
            self._failed(error)
        self._had_pairs, self._pairs = self._pairs, self.pace.on or self.pace.soon

    def moment(self, *, in_step: bool) -> tuple[int, int]:
        """Epoch and step of something that happens now: in the step that runs, if *in_step* and one does; else in the last."""
        clock = self.clock
        if in_step and clock.moved:
            return clock.epoch, clock.step
        return clock.epoch, max(clock.step - 1, 0)

    def schedule_by(self, schedule: Schedule) -> None:
        """Log by another schedule from the next decision on."""
        self.pace.schedule = schedule
        self.clock.call_after_steps(self._step_ends, first=True)

    def _step_ends(self) -> None:
        """The clock has counted a step. Other probes must see its rows, so they are taken later, in :meth:`complete`."""
        self.meter.enter()
        self._ended = True
        self._was_logged = self.pace.on
        self._takes_pairs = self._has_sequences and self._was_logged and self._had_pairs
        self._begin(self.clock.now())
        if self.pace.on or self._was_logged or (self._has_sequences and (self._pairs or self._had_pairs)):
            for turn in self._turns:
                turn.begin(logged=self.pace.on, in_pair=self._pairs)
        if self.pace.on:
            self._ordering.watch()

    def _optimizer_stepped(self, optimizer: Optimizer, taken: bool) -> None:
        """*optimizer* has stepped, unless the step was not *taken*, and the engine is done with it."""
        if self._ended:
            self.complete(optimizer)
        elif not taken:
            if self.pace.on:
                self.discard()
        elif self.clock.again and self._logged_step == self.clock.step - 1:
            self._take(optimizer)  # it belongs to the step that has ended already

    def complete(self, optimizer: Optimizer | None) -> None:
        """Take the rows of the step that has ended, if it was logged."""
        if not self._ended:
            return
        self._ended = False
        logged = self._was_logged
        if logged:
            self.logged += 1
            self._logged_step = self.clock.step - 1
            self._take(optimizer)
        if self._has_sequences:
            self._tend_sequences()
        self.meter.leave(logged=logged)
        if not self.pace.on:
            self._idle()

    def _idle(self) -> None:
        """Do nothing until the step before the next that may be logged: that one is timed, or is the first of a pair."""
        until, following = self.pace.schedule.next(self.clock.step + 1) - 1, self.clock.step + 1
        if until > following:
            self.clock.call_after_steps(self._step_ends, first=True, until=until)
            self.meter.forget_step()

    # Rows

    def _take(self, optimizer: Optimizer | None) -> None:
        """Take the rows of the step that has ended, which was logged."""
        ended = self.clock.ended
        if self._ordering.settle():
            self._places = {}
            for measuring in self.measurings:
                measuring.forget_order()
        gathering = BatchBuilder(ended.epoch, ended.step, ends_interval=True)
        scales: dict[str, Tensor] = {}
        if (scale := self._scaling.scale) is not None:
            scales |= {port: scale for port in GRADIENT_PORTS if port in MODULE_PORTS}
        if (scale := scale_at_step(optimizer)) is not None:
            scales["grad"] = scale
        for measuring in self.measurings:
            wanted = self._takes_pairs or not measuring.is_sequence
            if measuring.kind == "step" and wanted and measuring.attachment.attached:
                gathering.rows(measuring, self._order(), scales=scales)
        waited, self._waiting = self._waiting, []
        self._send(gathering, waited)

    def _tend_sequences(self) -> None:
        """Drop pairs of a step that is not logged, or has none before it, and predecessors if the next step is not observed."""
        for measuring in self.measurings:
            if measuring.is_sequence and measuring.pairs is not None:
                if not self._takes_pairs:
                    measuring.table.reset()
                if not self._pairs:
                    measuring.pairs.forget()

    def _order(self) -> dict[str, int]:
        if not self._places:
            self._places = self._ordering.places()
        return self._places

    def _backward_ended(self) -> None:
        """A backward pass has: take the rows that are of it alone."""
        if not self.pace.on:
            return
        clock = self.clock
        gathering = BatchBuilder(clock.epoch, clock.step)
        scale = self._scaling.scale
        scales = {} if scale is None else {"grad": scale}
        for measuring in self.measurings:
            if measuring.kind == "micro_step" and measuring.attachment.attached:
                gathering.rows(measuring, self._order(), micro_step=len(self._waiting), scales=scales)
        if gathering:
            self._waiting.append(gathering.batch())

    def _forward_begins(self) -> None:
        if not (torch.is_grad_enabled() and self.model.training):
            self._evaluated = True
            return
        if self._scaling.skipped(self.clock.step):
            self.discard()
        self.take_evaluation()

    def take_evaluation(self) -> None:
        """Take the rows of the evaluation passes since the last step, if there were any."""
        if not self._evaluated:
            return
        self._evaluated = False
        gathering = BatchBuilder(*self.moment(in_step=False))
        for measuring in self.measurings:
            if measuring.kind == "evaluation" and measuring.attachment.attached:
                gathering.rows(measuring, self._order())
        if gathering:
            self._send(gathering, [])

    def discard(self) -> None:
        """Drop the rows of an attempt at a step that was skipped."""
        self._waiting.clear()
        for measuring in self.measurings:
            if measuring.kind != "evaluation":
                measuring.table.reset()
