"""The training under an inspector while it is attached: its models, pushed values, the budget, and the writer."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from sonde.answer import Fact, Part, Report, Verdict, facts_of_findings
from sonde.engine import Coverage, ProbeError, members, name_of, raise_if_foreign
from sonde.errors import ArgumentError
from sonde.inspector.budget import Timer
from sonde.inspector.measurement.measurement import Measurement
from sonde.inspector.pipeline.batch import Batch, BatchBuilder
from sonde.inspector.pipeline.batch_writer import BatchWriter
from sonde.inspector.pipeline.merging import AT_THE_END, WITHIN_STEP
from sonde.inspector.pipeline.scalars import ScalarBuffer
from sonde.inspector.ranks import Participation
from sonde.inspector.report import closing_lines, coverage_data, coverage_of
from sonde.inspector.sentinel.bad_steps import BadStepReports
from sonde.inspector.settings import Settings
from sonde.inspector.sinks.destinations import Destinations, Visualizer
from sonde.inspector.watched_model import WatchedModel
from sonde.rules import RULES, Finding, implied, related
from sonde.run import LastError, Record, Run
from sonde.schedule import Every, Schedule, seconds_of, with_interval
from sonde.stats import Joining
from sonde.warn import warn_user
from sonde.words import many

_TRAINS = 20  # losses of training without any step, after which one was meant
_MANY = 1024  # pushed values that may wait for a logged step
_MOMENT = 1.0  # seconds
_CONNECTING = 20.0  # seconds in which ranks that are all here connect with each other


class WatchedTraining:
    """Hooks lead here and not to the inspector that people hold, so that a forgotten inspector can be noticed and taken off.

    It is large because each method of the inspector that acts on all models has its counterpart here.

    Attributes:
        watched: the models.
        destinations: where rows go.
        schedule: which steps are logged.
        attached: whether the hooks are in.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        settings: Settings,
        schedule: Schedule,
        budget: float | None,
        destinations: Destinations,
        about: Mapping[str, object],
        in_common: Mapping[str, object],
        *,
        verbose: bool = False,
    ) -> None:
        self.destinations = destinations
        self.attached = False
        self._errors: list[ProbeError] = []
        self._settings = settings
        self._budget = budget
        self._pushed = ScalarBuffer()
        part = settings.part
        self.watched: list[WatchedModel] = []
        self._ended_at: int | None = None
        merges = part.merges and part.meeting is not None
        self._verbose = verbose and part.leads
        compared = in_common if part.group is None else None
        self._joining = Joining(part.meet(self._say), compared, part.leave, part.timeout, self._place) if merges else None
        self._join_until = 0.0  # the end of the training and of the waiting for other ranks
        self._chosen_at = -1  # the place in the training of the last interval that was offered to the other ranks
        self.schedule = schedule = self._timed(schedule)
        self.watched = [WatchedModel(model, name, settings, schedule, self._send, self._failed) for name, model in models.items()]
        self._writer = BatchWriter(
            destinations.sinks,
            part=part,
            joining=self._joining,
            joined=self._note_joined,
            about=about,
            rules=settings.rules,
            alarm=self._alarm,
            seen=self._seen_so_far,
        )
        self._whens = (-1, 0)  # the steps of all models at the last batch, and its number among the batches since then
        self._coverage_written = False
        self._told: list[Record] = []  # by other ranks
        self._last_error = LastError()
        bad_steps = settings.bad_steps
        rank = part.rank if part.size > 1 else None
        unused = bad_steps.on_nonfinite is None and bad_steps.on_spike is None
        reports = None if unused else BadStepReports(bad_steps.on_nonfinite, lambda: destinations.path, self._flush_own, rank)
        self._bad_steps = reports
        self._seen: dict[tuple[object, int], Finding] = {}  # what no row holds
        self._follows: set[object] = set()  # identities of those that follow from what was found in rows
        self._losses = 0  # of training, that were pushed
        self._alarmed: list[Finding] = []  # what the sinks were told
        if self._joining is not None and part.all_are_here:
            self._joining.wait(_CONNECTING)

    def attach(self, fitted: Mapping[str, Iterable[Measurement]]) -> None:
        """Put every lens on every model: by the name of its model, the measurements that were *fitted*."""
        try:
            bad_step = None if self._bad_steps is None else self._bad_steps.report
            for watched in self.watched:
                watched.attach(fitted[watched.name], self.destinations.first_step, self.destinations.epoch, bad_step)
        except BaseException as error:
            self._take_off()
            self.destinations.note_end(error)
            self._writer.stop()
            raise
        self.attached = True

    def last_error(self) -> BaseException | None:
        """Return the exception that has ended the training, as far as Python knows one."""
        return self._last_error.found(in_step=any(watched.clock.has_begun for watched in self.watched))

    def stop(self, error: BaseException | None = None) -> None:
        """Take everything off, write what is left, with coverage and findings, and close the sinks. Idempotent.

        Args:
            error: ends the training. Other ranks may wait for this one: wait for them no longer than a moment.
        """
        if self.attached:
            epoch, step = self.moment
            try:
                self.destinations.note_end(error, epoch=epoch, step=step)
                self._put_rest(everything=True)
                self._ended_at = self._place()
                self._look_for_unstepped()
            finally:  # another Ctrl-C may come here
                self._take_off()
                seconds = min(self.part.exit_timeout, _MOMENT) if error is not None else self.part.exit_timeout
                self._join_until = time.monotonic() + seconds
                if self._joining is not None:
                    self._joining.hurry(seconds)
                self._writer.stop(self._write_ends, failed=LastError.is_bad(error))
                self.part.leave(max(self._join_until - time.monotonic(), _MOMENT))

    def _look_for_unstepped(self) -> None:
        """Judge models that no optimizer has stepped, where one has stepped another model, or losses of training were pushed."""
        is_stepped = any(watched.steps for watched in self.watched) or self._losses >= _TRAINS
        for watched in self.watched:
            if watched.observes and not watched.steps:
                passes, foreign = watched.clock.backward_counter.count, watched.clock.step_counter.foreign
                watched.rows.never_stepped(passes if is_stepped else min(passes, foreign), *watched.next_moment)

    def let_go(self) -> None:
        """Stop, since nobody holds the inspector any more; warn where no model has run before that."""
        try:
            has_run = any(watched.steps for watched in self.watched) or any(each.attachment.ran for each in self.measurements())
            if self.attached and self.watched and not has_run:
                warn_user(
                    "an Inspector was deleted before its model ran, and records nothing: hold it in a variable, as in inspector = "
                    "sonde.watch(...), or in a with block, for as long as it is to record"
                )
        finally:
            self.stop()

    def _take_off(self) -> None:
        self.attached = False
        for watched in self.watched:
            watched.detach()

    # Time

    def step(self) -> None:
        """Count a step that is not a torch optimizer's.

        Raises:
            ArgumentError: no forward or backward pass of any model was seen since the last one.
        """
        if not self.watched:
            return
        moved = [watched for watched in self.watched if watched.clock.has_begun]
        if not moved or not any(watched.clock.forwards for watched in moved):
            raise ArgumentError(
                "step() says that the pass just made was a step, and no forward of the model was seen since the last step: call it "
                "once after each step, and not at all for a torch.optim optimizer, whose steps are seen by themselves"
            )
        for watched in moved:
            watched.clock.end_step()
            watched.complete(None)

    def end_epoch(self, epoch: int | None) -> int:
        """End the epoch, and write what belongs to it; *epoch* sets the number of the next. Return the number of the one ended."""
        if not self.watched:
            return 0
        ended = self.watched[0].clock.epoch
        self._put_rest(everything=True)
        for watched in self.watched:
            watched.end_epoch(epoch)
        clock = self.watched[0].clock
        if self._settings.part.leads:
            self.destinations.begin_epoch(clock.epoch, clock.step)
        return ended

    @property
    def moment(self) -> tuple[int, int]:
        """The epoch and the step of the first model that run or come next; 0 and 0 where this process records nothing."""
        return self.watched[0].next_moment if self.watched else (0, 0)

    def schedule_by(self, schedule: Schedule) -> None:
        """Log by another schedule from the next decision on."""
        self._follow(self._timed(schedule))

    def _timed(self, schedule: Schedule) -> Schedule:
        """Return *schedule*; where ranks must log the same steps, with a number of steps for a time, which rank 0 adapts."""
        seconds = seconds_of(schedule) if self._joining is not None else None
        self._timer = None if seconds is None else Timer(seconds)
        self._interval = schedule.n if isinstance(schedule, Every) else 1
        return schedule if seconds is None else with_interval(schedule, 1)

    def _follow(self, schedule: Schedule) -> None:
        self.schedule = schedule
        for watched in self.watched:
            watched.schedule_by(schedule)

    # What comes

    def push_loss(self, names: tuple[str, str], value: Any, *, train: bool | None, running: bool) -> None:
        """Record a loss under the first of *names*, of training, or the second; *train* None: as the first model's mode says."""
        of_training = train if train is not None or not self.watched else self.watched[0].model.training
        self.push(names[0 if of_training else 1], value, train=bool(of_training), running=running)
        if train is False and self.watched:
            self.watched[0].take_validation_loss()

    def push(self, name: str, value: Any, *, train: bool | None, running: bool) -> None:
        """Record a loss or metric; *train*: of training, or else of evaluation; None as the first model's mode says."""
        if not self.watched:
            return
        watched = self.watched[0]
        in_step = watched.model.training if train is None else train
        self._pushed.push(name, value, *watched.moment(in_step=in_step), running=running)
        if len(self._pushed) > _MANY:
            self._put_rest(everything=False)
        if train:
            watched.take_loss(value)
            self._losses += 1

    def _send(self, builder: BatchBuilder, waited: list[Batch]) -> None:
        """Put what has *waited*, and the data of a step or an evaluation of one of the models."""
        for batch in waited:
            self._writer.put(batch)
        builder.when = self._when(ends_interval=builder.ends_interval)
        if builder.ends_interval:
            self._pushed.log(builder.step)
            self._account(builder)
            self._last_error.note_known()
        if builder.ends_interval or self._joining is None:  # what is pushed joins what other ranks push, which may not evaluate
            for pushed in self._pushed.take():
                builder.pushed(pushed)
        if builder:
            self._writer.put(builder.batch())
        if not self._coverage_written and self._writer.has_written:
            self._write_coverage(waits=False)

    def _when(self, *, ends_interval: bool) -> int:
        """Return the place in the training of data that comes now: the same on all ranks, and greater than that of all before."""
        steps = sum(watched.steps for watched in self.watched)
        number = self._whens[1] + 1 if self._whens[0] == steps else 0
        if not ends_interval:
            number = max(number, WITHIN_STEP // 2)
        self._whens = steps, min(number, AT_THE_END - 1)
        return steps * WITHIN_STEP + self._whens[1]

    def _place(self) -> int:
        """Return how far the training has come: the steps that have ended, and one more where a step has begun."""
        if self._ended_at is not None:
            return self._ended_at
        if not self.attached:
            return 0
        begun = any(watched.clock.has_begun and watched.model.training for watched in self.watched)
        return sum(watched.steps for watched in self.watched) + begun

    def _account(self, builder: BatchBuilder) -> None:
        """Record what observing costs, and keep to the budget."""
        share = self.overhead()
        if share is not None:
            builder.scalar("overhead", share, "max")
        if (self._budget is None or not isinstance(self.schedule, Every)) and self._timer is None:
            return
        wanted = self._wanted_interval(builder.step)
        merging = self._writer.merging
        if merging is not None and builder.when is not None:
            builder.interval = wanted or self._interval
            if merging.joins:
                before, self._chosen_at = self._chosen_at, builder.when  # rank 0 chooses for all, at the logged step before
                wanted = merging.interval[1] if before < 0 else self._writer.interval_at(before)
        if wanted and wanted != self._interval:
            self._interval = wanted
            self._follow(with_interval(self.schedule, wanted))

    def _wanted_interval(self, step: int) -> int:
        """Return the number of steps between logged ones that suits the budget, or the time between them; 0 if not known."""
        if self._timer is not None:
            return self._timer.interval_at(step)
        wanted = [watched.meter.interval_for(self._budget) for watched in self.watched] if self._budget is not None else []
        return max((interval for interval in wanted if interval is not None), default=0)

    def _put_rest(self, *, everything: bool) -> None:
        """Put the rows of evaluation passes and the pushed values; *everything*: also of intervals that have not ended."""
        for watched in self.watched:
            if watched.rows.measurements:
                watched.take_evaluation()
        if not self.watched or not self.watched[0].rows.measurements:
            return
        builder = BatchBuilder(*self.watched[0].moment(in_step=False))
        for pushed in self._pushed.take(everything=everything):
            builder.pushed(pushed)
        if builder:
            self._writer.put(builder.batch())

    def flush(self) -> None:
        """Return when everything that is complete is with the sinks."""
        self._put_rest(everything=False)
        self._writer.flush()

    def _flush_own(self) -> None:
        """Write what is complete, where that needs no other rank."""
        if self._joining is None:
            self.flush()

    @property
    def part(self) -> Participation:
        """How this process takes part in the run."""
        return self._settings.part

    # What there is to say

    def measurements(self) -> Iterator[Measurement]:
        """Those of all models, except those that only feed the norms."""
        return (each for watched in self.watched for each in watched.rows.measurements if not each.hidden)

    def coverage(self, *, waits: bool = True) -> Coverage:
        """Return which sites delivered, and why the others did not; without *waits*, of the logged steps that are written."""
        merging = self._writer.merging
        joins = merging is not None and merging.joins
        seen = self._writer.seen(waits=waits)
        apart = {} if merging is None else dict(merging.apart)
        between = {
            id(each): said
            for watched in self.watched
            for said in [watched.rows.between.said()]
            for each in watched.rows.measurements
        }
        return coverage_of(
            self.measurements(), seen, self._writer.ended, attached=self.attached, joins=joins, apart=apart, between=between
        )

    @property
    def findings(self) -> list[Finding]:
        """The findings of the rules in the rows so far; at the end also those of other ranks in their rows."""
        return self.record.findings

    @property
    def record(self) -> Record:
        """The record of findings so far; at the end also those of other ranks."""
        self._writer.flush()
        return Record.merged([self._writer.record(), *self._told])

    def _seen_so_far(self) -> Sequence[Finding]:
        """Return what the training knows and no row holds: in the writer thread. What is new of a rule is an alarm."""
        told = [found for of in self.watched for one in of.rows.looks for found in one.found()]
        for each in sorted(told, key=lambda each: each.step):  # of two of one rule the same, however late they are asked for
            if (each.identity, each.step) not in self._seen and each.identity not in self._follows and self._does_harm(each):
                self._see(each, max(each.step, self._writer.findings.step))
                self._alarm(self._seen[each.identity, each.step])
        for each in () if self._bad_steps is None else tuple(self._bad_steps.findings):
            self._see(each, each.step)
        return list(self._seen.values())

    def _does_harm(self, each: Finding) -> bool:
        """Return whether a finding is one by itself: it follows from no other, and what is recorded bears it out.

        That what goes in is the same is one finding, whichever look has seen it first.
        """
        is_again = each.rule == "input_same" and any(seen.rule == each.rule and related(seen, each) for seen in self._seen.values())
        if is_again or implied(each, self._writer.findings.judged()):
            self._follows.add(each.identity)
            return False
        divides = any(watched.rows.divides for watched in self.watched if watched.name in ("", each.model))
        return self._writer.findings.bears_out(each, divides=divides)

    def _see(self, found: Finding, step: int) -> None:
        """Note a finding that no row holds, at *step*, unless that was done."""
        rule = RULES[found.rule]
        whole = replace(self._writer.findings.with_rate(found), opened=step, condition=rule.condition, source=rule.source)
        self._seen.setdefault((found.identity, found.step), whole)

    @property
    def errors(self) -> tuple[ProbeError, ...]:
        """The errors of statistics, schedules, visualizers and sinks."""
        every = (each for watched in self.watched for each in watched.rows.measurements)  # also those that feed the norms
        hooks = (error for each in every for error in each.attachment.delivery.errors)
        return (*self._errors, *hooks, *self._writer.errors)

    def overhead(self) -> float | None:
        """The share of training time that observing takes; None where this is not known."""
        shares = []
        for watched in self.watched:
            often = watched.logged / watched.steps if watched.steps else 0.0
            share = watched.meter.share(1 / self.schedule.n if isinstance(self.schedule, Every) else often)
            if share is not None:
                shares.append(share)
        return max(shares) if shares else None

    def lines(self, *, attached: bool) -> list[str]:
        """Return a few lines for a console."""
        state = "attached" if attached else "detached"
        families = ", ".join(dict.fromkeys(each.family for each in self.measurements()))
        path = self.destinations.path
        steps = [
            f"{watched.name or 'model'}: {watched.logged:,} of {watched.steps:,} steps logged, {len(watched.rows.layers()):,} of "
            f"{many(len(members(watched.model)), 'module')} observed"
            for watched in self.watched
        ]
        return [f"Inspector({state}, {'in memory' if path is None else path})", *steps, f"families: {families}"]

    def report(self, *, attached: bool) -> Report:
        """Return a report for a notebook: what was found so far, what to do, where the run is and what observing costs."""
        run, found, cost = self.closing_lines()
        lost = self._writer.lost or (self.destinations.recorded is not None and self.destinations.recorded.writer.lost)
        verdict: Verdict = "bad" if self.errors else self.record.health(["rows are lost"] if lost else [])
        state, *models, families = self.lines(attached=attached)
        facts = [Fact("run", run.removeprefix("run ")), *(Fact("", model) for model in models if len(models) > 1)]
        facts += [Fact("families", families.removeprefix("families: ")), Fact("cost", cost)]
        parts = [Part("", facts_of_findings(self.findings)), Part("", facts)]
        return Report("sonde.watch", state, verdict, found, [part for part in parts if part.content])

    def closing_lines(self) -> list[str]:
        """Return three lines: the run, the findings, the overhead."""
        steps = sum(watched.logged for watched in self.watched), sum(watched.steps for watched in self.watched)
        rows = self.destinations.recorded.writer.lost if self.destinations.recorded is not None else 0
        lost = self._writer.lost, rows
        every = [(each.family, each.attachment) for each in self.measurements()]
        stopped = [family for family, attachment in every if attachment.delivery.has_ended(attachment.sites())]
        ended = tuple(dict.fromkeys([*stopped, *(each for each in self._writer.ended if isinstance(each, str))]))
        empty = not self._writer.has_written
        path, found, share = self.destinations.path, self.findings, self.overhead()
        merging = self._writer.merging
        ranks = self.part.size if self.part.group is not None or (merging is not None and merging.has_begun) else 1
        return closing_lines(path, steps, lost, found, self.errors, share, ended=ended, is_empty=empty, ranks=ranks)

    def _write_coverage(self, *, waits: bool = True) -> None:
        """Write the coverage into the run. In the training's thread it must not wait: other ranks may be slow."""
        self._coverage_written = True
        if self.destinations.recorded is not None and (self._settings.part.leads or self._writer.has_written):
            self.destinations.recorded.writer.document("coverage", coverage_data(self.coverage(waits=waits)))

    def _write_ends(self) -> None:
        """Write coverage and findings into the run: in the writer thread, when all rows are with the sinks."""
        self._write_coverage()
        merging = self._writer.merging
        group = None if self._joining is None or merging is None or not merging.has_begun else self._joining.group
        have_ended = merging is not None and merging.all_have_ended
        if self._settings.rules.is_on("no_training_forward"):
            for watched in self.watched:
                found = watched.rows.modes.finding(watched.logged, watched.model)
                if found is not None:
                    self._see(found, max(found.step, self._writer.findings.step))
        record = self._writer.record()
        for each in record.seen:
            if each not in self._alarmed:
                self._writer.alert(each)  # to the sinks; a warning or the closing lines say it
        seconds = self._join_until - time.monotonic() if have_ended else 0.0
        self._told = self.part.records_of_others(record, group, seconds, [] if merging is None else merging.members)
        if merging is None or not merging.has_begun:
            self._describe_ranks(joined=False)

    def _note_joined(self) -> None:
        """Say that rows of all ranks are joined from now on, where some came late: in the writer thread."""
        if self.part.group is None:
            self._say(f"all {self.part.size} ranks have come: their numbers are joined from now on")
            self._describe_ranks(joined=True)

    def _describe_ranks(self, *, joined: bool) -> None:
        """Write into the run which ranks have come, where not all did so in time."""
        came_apart = self.part.meeting is not None and self.part.group is None
        if came_apart and self.part.leads and self.destinations.recorded is not None:
            self.destinations.recorded.writer.describe(**self.part.described(joined=joined))

    def _say(self, text: str) -> None:
        if self._verbose:
            sys.stderr.write(f"sonde: {text}\n")

    def _alarm(self, found: Finding) -> None:
        """Tell the sinks of a finding, and print one line: in the writer thread, while the training goes on."""
        alone = [replace(each, follows="") for each in Record(tuple(self._seen.values()), (found,)).findings]
        if found not in self._seen.values() and found not in alone:
            return  # its beginning is known better
        self._alarmed.append(found)
        self._writer.alert(found)
        if self._verbose:
            note = "note, " if found.severity == "note" else ""
            told = next((each.follows for each in self._writer.record().findings if each.identity == found.identity), "")
            what = f" follows from {told}" if told else f": {found.advice}"
            sys.stderr.write(f"sonde: {note}step {found.step:,}: {found.message} ({found.rule}){what}\n")

    def try_to_show(self, visualizer: Visualizer, run: Run) -> None:
        """Call a visualizer; one that raises is not called again."""
        try:
            visualizer(run)
        except Exception as error:
            raise_if_foreign(error)
            self.destinations.visualizers = [each for each in self.destinations.visualizers if each is not visualizer]
            name = name_of(visualizer)
            self._errors.append(ProbeError.of(name, None, error))
            warn_user(f"the visualizer {name} raised {type(error).__name__}: {error}. It is not called again; the training goes on")

    def _failed(self, error: Exception) -> None:
        raise_if_foreign(error)
        kept = ProbeError.of("every=", None, error)
        if not self._errors:
            warn_user(
                f"the schedule raised {type(error).__name__}: {error}. The step is not logged, and the training goes on; "
                "the schedule is asked again for the next one, and what it raises is kept in .errors"
            )
        self._errors.append(kept)
