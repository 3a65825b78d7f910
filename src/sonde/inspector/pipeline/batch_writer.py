"""Finish batches in the writer thread and give the rows to the sinks, so that the training waits for neither."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sonde.engine import ProbeError
from sonde.inspector.measurement.row_index import RowIndex
from sonde.inspector.pipeline.batch import Batch
from sonde.inspector.pipeline.finishing import Arrays, Finishing
from sonde.inspector.pipeline.merging import Merging, steadily
from sonde.inspector.pipeline.sink_thread import SinkQueue, SinkThread
from sonde.inspector.ranks import Participation
from sonde.inspector.sinks.base import LoggedRows, RunSink, Sink
from sonde.rows import RowBlock
from sonde.rules import RULES, Chosen, Finding
from sonde.run import Findings, QueueLimits, Record, Run, RunWriter, WriteQueue, WriterThread, judge_rows
from sonde.site import Site
from sonde.stats import Joining
from sonde.warn import WarnOnce
from sonde.words import many

LIMITS = QueueLimits(seconds=1.0, size=4 << 20, limit=64 << 20, patience=10.0, first=0.05)
"""When batches are finished, and how many bytes of them may wait."""

_RULES = "rules="
_PIECE = 4 << 20  # bytes of batches that are finished at once
_SPELL = 0.5  # seconds that one piece may take: room is made after each, so slow sinks are given little at a time


class BatchWriter:
    """Takes batches, finishes them in the writer thread, and gives the rows to the sinks.

    The thread is that of the run, if a run is written to disk; otherwise it is one of its own. If the sinks do not keep up, the
    training waits for them once, and then batches are lost, with one warning. What raises is tried again: a batch is finished, or
    as if it had not been looked at, and each sink keeps the calls that it has not taken.

    Attributes:
        findings: remembers what the rules need.
        errors: the errors of statistics at their finish, and of sinks.
        lost: batches for which there was no room, or that could not be finished.
        has_written: whether the sinks have rows.
        ended: by family or sink, the error after which it got no more rows; by family and site, the same of the site alone.
        merging: joins the batches with those of other ranks; None where nothing is joined.

    Args:
        sinks: get the rows.
        limits: when batches are finished.
        part: how this process takes part in the run; None: it is the only one.
        joining: the way to joining rows with those of other ranks; None: nothing is joined.
        joined: a method, called in the thread once rows of all ranks are joined; held as *alarm* is.
        about: the description that the run begins with, for the rules.
        rules: those that are applied.
        alarm: a method, called in the thread with each finding that is new. Its object is held weakly: it may hold a model.
        seen: a method, held in the same way, that returns in the thread what the training knows and no row holds.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        limits: QueueLimits = LIMITS,
        *,
        part: Participation | None = None,
        joining: Joining | None = None,
        joined: Callable[[], None] | None = None,
        about: Mapping[str, object] | None = None,
        rules: Chosen | None = None,
        alarm: Callable[[Finding], None] | None = None,
        seen: Callable[[], Sequence[Finding]] | None = None,
    ) -> None:
        run = next((sink.writer for sink in sinks if isinstance(sink, RunSink)), None)
        before = Record() if run is None else run.before
        self._strange = [each for each in before.judged if each.rule not in RULES]
        fixed = [each for each in before.judged if each.found_at <= before.fixed]
        self.findings = Findings(about, rules, fixed, before.fixed)
        self._alarm = None if alarm is None else weakref.WeakMethod(alarm)
        self._seen = None if seen is None else weakref.WeakMethod(seen)
        self._unjudged = ""
        self.errors: list[ProbeError] = []
        self.lost = 0
        self.has_written = False
        self.ended: dict[str | tuple[str, Site], str] = {}
        self._problems = WarnOnce("{}. The training goes on")
        part = part or Participation()
        self._finishing = Finishing(
            self._failed, self._problems.note, self._look_aside, part.scope, shares_norms=joining is not None
        )
        norms = self._finishing.norms_before
        begun = (lambda: None) if joined is None else weakref.WeakMethod(joined)
        self.merging = None if joining is None else Merging(part, joining, norms, self._problems, self._not_written, begun)
        self._asides: list[tuple[str, RowBlock]] = []  # rows that are not written, for the rules
        self._counted: dict[RowIndex, npt.NDArray[np.float64]] = {}
        self._at_once = 1  # batches to a piece; the first piece shows how long they take
        threads = [sink.writer.thread for sink in sinks if isinstance(sink, RunSink)]
        shared = next((thread for thread in threads if thread is not None and thread.is_running), None)
        self._owned = shared is None
        self._thread = shared or WriterThread()
        if joining is not None:
            self._thread.patience = part.timeout
        self._queue: WriteQueue[Batch] = WriteQueue(
            self._thread, self._write_some, self._give_up, limits, self._problems, "the sinks do not keep up; steps are lost"
        )
        path = next((str(path) for sink in sinks if (path := _path_of(sink)) is not None), None)
        described = {**(about or {}), "path": path}
        self._sinks = [
            SinkThread(sink, described, self._problems, self._raised)
            if sink.may_block
            else SinkQueue(sink, self._thread, self._problems, self._raised)
            for sink in sinks
        ]
        self._writers = [sink.writer for sink in sinks if isinstance(sink, RunSink)]
        if run is not None and run.first_step > 0:
            self._thread.ask(partial(self._replay, run))

    def put(self, batch: Batch) -> None:
        """Queue *batch* for the thread. In a forked child the batch is lost, with a warning."""
        if not self._queue.put(batch):
            self.lost += 1
            if self._thread.is_elsewhere:
                self._problems.note("this process was forked from the one that writes; its steps are lost")
        self._thread.warn()

    def seen(self, *, waits: bool = True) -> dict[tuple[str, str], int]:
        """By family and site, how often something was added in all batches that were put before.

        Args:
            waits: wait until the batches are finished, and with them other ranks; else those count that are finished already.
        """
        if waits:
            self._thread.call(self._queue.drain)
        found: dict[tuple[str, str], int] = {}
        counted = self._counted if self.merging is None else self.merging.counted
        for index, counts in list(counted.items()):  # the thread may add to them
            for site, count in zip(index.layout.site, counts.tolist(), strict=True):
                found[index.family, site] = found.get((index.family, site), 0) + int(count)
        return found

    def interval_at(self, when: int) -> int:
        """Return the number of steps between logged ones that rank 0 has chosen at the place *when* of the training.

        Wait until the data of that place is joined.
        """
        assert self.merging is not None
        if self.merging.interval[0] < when:
            self._thread.call(self._queue.drain)
        return self.merging.interval[1]

    def flush(self) -> None:
        """Return when the rows of all batches put before are with the sinks, and the norms of the last step with them.

        Rows that other ranks do not join within the time-out come later.
        """
        self._thread.call(self._finish_all)

    def alert(self, finding: Finding) -> None:
        """Give *finding* to the sinks, in the thread; the writer of the run has the record."""
        for each in self._sinks:
            if not isinstance(each.sink, RunSink):
                each.alert(finding)

    def stop(self, last: Callable[[], None] = lambda: None, *, failed: bool = False) -> None:
        """Write what is left, call *last*, close the sinks, and end the thread. Idempotent.

        In the thread itself, where garbage collection may have found a forgotten inspector, this happens a little later. The run
        is closed first; then each other sink may read it.

        Args:
            last: called in the thread when all rows are with the sinks.
            failed: whether an exception has ended the training.
        """

        def end() -> None:
            try:
                self._queue.finish()
                self._finish_rest()
                if self.merging is not None:
                    self._write_joined([self.merging.end()])
                self._judge(self.findings.end)
                self._sound(self.findings.fresh())
                self._try(last)
            finally:
                self._close(failed=failed)
                if self._owned:
                    self._thread.stop()

        if self._thread.is_current:
            self._thread.ask(end)
            return
        self._thread.call(end, is_last=True)
        if self._owned:
            self._thread.stop()
        self._thread.remove(self._queue)

    # In the thread

    def _finish_all(self) -> None:
        self._queue.drain()
        self._finish_rest()
        for each in self._sinks:
            each.flush()

    def _finish_rest(self) -> None:
        """Give the norms of the last steps."""
        self._try(lambda: self._give(steadily(self._finishing.rest)))

    def _write_some(self, batches: deque[Batch]) -> int:
        """Write the first of *batches*: as many as are not too much memory or time at once."""
        start, size = time.monotonic(), 0
        piece: list[tuple[Batch, Arrays]] = []
        for batch in batches:
            if piece and (len(piece) >= self._at_once or size >= _PIECE):
                break
            piece.append((batch, batch.copy.unpack()))
            size += batch.nbytes
        logged = self._finished(piece) if self.merging is None else LoggedRows([], [], [])
        for _ in piece:
            batches.popleft()
        if self.merging is None:
            self._give(logged)
        else:
            self._write_joined([self.merging.add(*each) for each in piece])
        self._at_once = max(1, int(_SPELL * len(piece) / max(time.monotonic() - start, 1e-9)))
        return 0

    def _give_up(self, batch: Batch, error: Exception) -> None:
        self._not_written(error, 1)

    def _look_aside(self, role: str, block: RowBlock) -> None:
        self._asides.append((role, block))

    def _finished(self, piece: Sequence[tuple[Batch, Arrays]]) -> LoggedRows:
        """Return the rows of *piece*, and count what is in them. If this raises, nothing has happened."""
        asides = len(self._asides)
        try:
            logged, indices = self._finishing.finish(piece)
        except BaseException:
            del self._asides[asides:]
            raise
        for index, block in zip(indices, logged.blocks, strict=True):
            counts = self._counted.setdefault(index, np.zeros(len(index.layout)))
            counts += np.bincount(block.rows, block.counts, len(index.layout))
        return logged

    def _write_joined(self, batches: Sequence[Iterator[tuple[Batch, Arrays]]]) -> None:
        """Join each of *batches*, finish what is joined before the next is, and give all together to the sinks and the rules.

        Other ranks wait: what raises is tried again at once, and the batch is lost if it raises still.
        """
        finished: list[LoggedRows] = []
        for joined in batches:
            self._try(partial(self._finish_joined, joined, finished))
        try:
            logged = steadily(lambda: LoggedRows.joined(finished))
        except Exception as error:
            self._not_written(error, len(finished))
        else:
            self._give(logged)

    def _finish_joined(self, joined: Iterator[tuple[Batch, Arrays]], finished: list[LoggedRows]) -> None:
        for each in joined:
            try:
                finished.append(steadily(partial(self._finishing.finish, [each]))[0])
            except Exception as error:
                self._not_written(error, 1)

    def _give(self, logged: LoggedRows) -> None:
        self.has_written = self.has_written or bool(logged.blocks)
        asides, self._asides = self._asides, []
        for role, block in asides:
            self._judge(partial(self.findings.look_aside, role, block))
        scalars = [(each.name, each.value, each.epoch, each.step) for each in logged.scalars]
        self._judge(lambda: self.findings.judge(logged.blocks, scalars))
        self._try(self._hand_record_on)  # before the rows: what can be read of them was judged
        if logged.sequence:
            for sink in self._sinks:
                sink.write_all(logged)
        self._sound(self.findings.fresh())

    def _judge(self, judge: Callable[[], None]) -> None:
        """Apply the rules. Where one raises, the rows are with the sinks all the same."""
        try:
            judge()
        except Exception as error:
            if not any(known.observer == _RULES for known in self.errors):
                self.errors.append(ProbeError.of(_RULES, None, error))
            self._unjudged = f"the rules raised {type(error).__name__}: {error}; some rows were not judged"
            self._problems.note(f"the rules raised {type(error).__name__}: {error}; rows are written, and some are not judged")

    def _replay(self, writer: RunWriter) -> None:
        """Judge what earlier processes have written of a run that is continued. Its findings were printed then."""
        run = writer.run()
        if writer.rank and writer.process not in run.ranks:  # nothing to go on from: others have written what it has joined
            return
        rank = writer.process if len(run.ranks) > 1 else None
        self._judge(lambda: judge_rows(run, self.findings, rank=rank, before=writer.first_step))
        self.findings.fresh()

    def record(self) -> Record:
        """Return the record of the findings so far; called in the thread, or after ``flush``."""
        seen = None if self._seen is None else self._seen()
        judged = [*self.findings.judged(), *self._strange]
        record = Record.of(self.findings, () if seen is None else seen(), judged=judged)
        return replace(record, lost_steps=self.lost, failed=self._unjudged)

    def _hand_record_on(self) -> None:
        """Let the writers of runs write the record with their next rows."""
        for writer in self._writers:
            writer.judged(self.record)

    def _hand_last_record_on(self) -> None:
        """Give the record as it is now to the writers of runs, which may live longer."""
        record = self.record()
        for writer in self._writers:
            writer.judged(lambda: record)

    def _sound(self, found: Sequence[Finding]) -> None:
        alarm = None if self._alarm is None else self._alarm()
        if alarm is not None:
            for each in found:
                self._try(partial(alarm, each))

    def _close(self, *, failed: bool) -> None:
        """Close the sinks: first that of the run, which the others may read then."""
        written = [each for each in self._sinks if isinstance(each.sink, RunSink)]
        others = [each for each in self._sinks if not isinstance(each.sink, RunSink)]
        for each in self._sinks:
            each.end_rows()
        self._try(self._hand_last_record_on)
        run: Run | None = None
        if written and others:
            try:
                run = steadily(self._writers[0].run)
            except Exception as error:
                self._not_written(error, 0)
        for each in written:
            each.close()
        for each in others:  # all of them finish before one is waited for
            each.finish(run, failed=failed)
        for each in others:
            each.close()
        self._sinks.clear()
        self._writers.clear()

    def _raised(self, sink: Sink, error: Exception, rows: int | None) -> None:
        """Note the *error* by which so many *rows* of a run are lost, or, None, after which *sink* is given nothing more.

        Also called in the thread of a sink that may block.
        """
        name, said = type(sink).__name__, f"{type(error).__name__}: {error}"
        self.errors.append(ProbeError.of(name, None, error))
        if rows is None:
            self.ended.setdefault(name, said)
        outcome = "nothing more is written to it" if rows is None else f"{many(rows, 'row')} could not be written"
        self._problems.note(f"{name} raised {said}; {outcome}")

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self._not_written(error, 0)

    def _not_written(self, error: Exception, batches: int) -> None:
        self.lost += batches
        self.errors.append(ProbeError.of("the writer of rows", None, error))
        what = "a logged step could not be written" if batches else "the writer of rows"
        self._problems.note(f"{what}: {type(error).__name__}: {error}")

    def _failed(self, index: RowIndex, error: Exception, site: str) -> None:
        why = f"its rows could not be finished: {type(error).__name__}: {error}"
        place = Site.parse(site) if site else None
        if place is not None:
            self.ended.setdefault((index.family, place.at("")), f"{place.leaf} {why}".lstrip())
            self.errors.append(ProbeError.of(index.family, place, error))
        elif not any(known.observer == index.family and known.site is None for known in self.errors):  # one, not one of each step
            self.errors.append(ProbeError.of(index.family, None, error))
            self.ended[index.family] = why
        at = f" at {site}" if site else ""
        self._problems.note(f"{index.statistic!r} of {index.family} raised {type(error).__name__}{at}: {error}")


def _path_of(sink: Sink) -> Path | None:
    """Return the folder of the run that *sink* writes; None if it writes none."""
    return getattr(sink.writer, "path", None) if isinstance(sink, RunSink) else None
