"""What runs behind an inspector while it is attached: the models, what is pushed, the budget, and the thread that writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from sonde.engine import Coverage, ProbeError
from sonde.engine.failures import name_of, warn_user
from sonde.errors import ArgumentError, SelectionError
from sonde.inspector.measurement.measurement import Measurement
from sonde.inspector.pipeline.batch import Batch, BatchBuilder
from sonde.inspector.pipeline.batch_writer import BatchWriter
from sonde.inspector.pipeline.findings import Finding
from sonde.inspector.pipeline.scalars import ScalarBuffer
from sonde.inspector.report import coverage_of, plain
from sonde.inspector.schedule import Every, Schedule
from sonde.inspector.settings import Settings
from sonde.inspector.sinks.destinations import Targets, Visualizer
from sonde.inspector.watched_model import WatchedModel
from sonde.run.run import Run

__all__ = ["WatchedTraining"]

_MANY = 1024  # values that were pushed and may wait for a logged step


class WatchedTraining:
    """Hooks lead here and not to the inspector that people hold, so that one that is deleted can be noticed and taken off.

    Attributes:
        watched: the models.
        writing: the thread.
        errors: what the schedule raised.
        attached: the hooks are in.
    """

    def __init__(
        self, models: Mapping[str, nn.Module], settings: Settings, schedule: Schedule, budget: float | None, targets: Targets
    ) -> None:
        self.errors: list[ProbeError] = []
        self.targets = targets
        self._settings = settings
        self.schedule = schedule
        self._budget = budget
        self._pushes = ScalarBuffer()
        self.attached = False
        self.watched = [WatchedModel(model, name, settings, schedule, self._send, self._failed) for name, model in models.items()]
        self.writing = BatchWriter(targets.sinks)
        self._told = False  # the coverage is in the run

    def attach(self) -> None:
        """Put every lens on every model.

        Raises:
            SelectionError: a lens finds nothing in any of them.
        """
        try:
            targets = self.targets
            refused = [watched.attach(targets.first_step, targets.epoch) for watched in self.watched]
            self._complain([name for name in refused[0] if all(name in each for each in refused)], refused[0])
        except BaseException:
            self._take_off()
            self.writing.stop()
            raise
        self.attached = True

    def _complain(self, blind: list[str], why: Mapping[str, SelectionError]) -> None:
        """Raise, if a lens that was asked for finds nothing in any model, or all of them."""
        settings = self._settings
        if blind and (not settings.by_default or len(blind) == len(settings.lenses)):
            raise SelectionError(f"the lens {blind[0]!r} finds nothing to look at: {why[blind[0]]}")

    def stop(self) -> None:
        """Take everything off, write what is left, and close the sinks."""
        if not self.attached:
            return
        self._flush(everything=True)
        self._take_off()
        self.writing.stop(self._tell_all)

    def _take_off(self) -> None:
        self.attached = False
        for watched in self.watched:
            watched.detach()

    # Time

    def step(self) -> None:
        """A step was taken that is not a torch optimizer's.

        Raises:
            ArgumentError: no forward or backward pass of any model was seen since the last one.
        """
        moved = [watched for watched in self.watched if watched.clock.moved]
        if not moved or not any(watched.clock.forwards for watched in moved):
            raise ArgumentError(
                "step() says that the pass just made was a step, and no forward of the model was seen since the last step: call it "
                "once after each step, and not at all for a torch.optim optimizer, whose steps are seen by themselves"
            )
        for watched in moved:
            watched.clock.end_step()
            watched.complete(None)

    def end_epoch(self, epoch: int | None) -> None:
        """An epoch has ended: write what belongs to it."""
        self._flush(everything=True)
        for watched in self.watched:
            watched.clock.end_epoch(epoch)
            watched.meter.forget_step()

    def schedule_by(self, schedule: Schedule) -> None:
        """Log by another schedule from the next decision on."""
        self.schedule = schedule
        for watched in self.watched:
            watched.schedule_by(schedule)

    # What comes

    def push(self, name: str, value: Any, *, train: bool | None, running: bool) -> None:
        """Record a loss or metric; *train*: of training, or else of evaluation; None as the first model's mode says."""
        watched = self.watched[0]
        in_step = watched.model.training if train is None else train
        self._pushes.push(name, value, *watched.moment(in_step=in_step), running=running)
        if len(self._pushes) > _MANY:
            self._flush(everything=False)

    def _send(self, gathering: BatchBuilder, waited: list[Batch]) -> None:
        """Of one of the models a step, or an evaluation, is complete."""
        for batch in waited:
            self.writing.put(batch)
        if gathering.ends_interval:
            self._pushes.log(gathering.step)
            self._account(gathering)
        for pushed in self._pushes.take():
            gathering.pushed(pushed)
        if gathering:
            self.writing.put(gathering.batch())
        if not self._told and self.writing.has_written:
            self._tell_coverage()

    def _account(self, gathering: BatchBuilder) -> None:
        """Record what observing costs, and keep to the budget."""
        share = self.overhead()
        if share is not None:
            gathering.scalar("overhead", share)
        if self._budget is not None and isinstance(self.schedule, Every):
            wanted = [watched.meter.interval_for(self._budget) for watched in self.watched]
            known = [interval for interval in wanted if interval is not None]
            if known and max(known) != self.schedule.n:
                self.schedule_by(Every(max(known)))

    def overhead(self) -> float | None:
        """The share of training time that observing takes; None where it cannot be told."""
        shares = []
        for watched in self.watched:
            often = watched.logged / watched.steps if watched.steps else 0.0
            share = watched.meter.share(1 / self.schedule.n if isinstance(self.schedule, Every) else often)
            if share is not None:
                shares.append(share)
        return max(shares) if shares else None

    # Telling

    def measurings(self) -> Iterator[Measurement]:
        """Of all models, except those that only feed the norms."""
        return (each for watched in self.watched for each in watched.measurings if not each.hidden)

    def coverage(self) -> Coverage:
        """What was really observed, and why the rest was not."""
        return coverage_of(self.measurings(), self.writing.seen(), attached=self.attached)

    def _tell_coverage(self) -> None:
        """Write the coverage into the run."""
        self._told = True
        if self.targets.recorded is not None:
            self.targets.recorded.writer.document("coverage", plain(self.coverage()))

    @property
    def findings(self) -> list[Finding]:
        """What the rules find in the last rows."""
        self.writing.flush()
        return self.writing.findings.all()

    def _tell_all(self) -> None:
        """Write coverage and findings into the run, in the thread, when all rows are with the sinks."""
        self._tell_coverage()
        self._tell_findings()

    def _tell_findings(self) -> None:
        if self.targets.recorded is None:
            return
        for found in self.writing.findings.all():
            self.targets.recorded.writer.alert(
                found.message,
                step=found.step,
                epoch=found.epoch,
                rule=found.rule,
                site=found.site,
                value=found.value,
            )

    @property
    def lost(self) -> int:
        """Rows that could not be written."""
        return self.targets.recorded.writer.lost if self.targets.recorded is not None else 0

    @property
    def lost_steps(self) -> int:
        """Logged steps for which there was no room while the sinks did not keep up."""
        return self.writing.lost

    def try_to_show(self, visualizer: Visualizer, run: Run) -> None:
        """Call a visualizer; one that raises is not called again."""
        try:
            visualizer(run)
        except Exception as error:
            self.targets.visualizers = [each for each in self.targets.visualizers if each is not visualizer]
            name = name_of(visualizer)
            self.errors.append(ProbeError.of(name, None, error))
            warn_user(f"the visualizer {name} raised {type(error).__name__}: {error}. It is not called again; the training goes on")

    def lines(self, *, attached: bool) -> list[str]:
        """A few lines for a console."""
        state = "attached" if attached else "detached"
        families = ", ".join(dict.fromkeys(each.family for each in self.measurings()))
        path = self.targets.path
        steps = [f"{watched.name or 'model'}: {watched.logged:,} of {watched.steps:,} steps logged" for watched in self.watched]
        return [f"Inspector({state}, {'in memory' if path is None else path})", *steps, f"families: {families}"]

    # Writing

    def flush(self) -> None:
        """Have everything that is complete written."""
        self._flush(everything=False)
        self.writing.flush()

    def _flush(self, *, everything: bool) -> None:
        for watched in self.watched:
            if watched.measurings:
                watched.take_evaluation()
        if not self.watched[0].measurings:
            return
        gathering = BatchBuilder(*self.watched[0].moment(in_step=False))
        for pushed in self._pushes.take(everything=everything):
            gathering.pushed(pushed)
        if gathering:
            self.writing.put(gathering.batch())

    def _failed(self, error: Exception) -> None:
        kept = ProbeError.of("every=", None, error)
        if not self.errors:
            warn_user(
                f"the schedule raised {type(error).__name__}: {error}. The step is not logged, and the training goes on; "
                "the schedule is asked again for the next one, and what it raises is kept in .errors"
            )
        self.errors.append(kept)
