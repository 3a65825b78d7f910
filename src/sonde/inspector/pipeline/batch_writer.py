"""Finish batches in the writer thread and give the rows to the sinks, so that the training waits for neither."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import methodcaller
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sonde.engine import ProbeError
from sonde.inspector.measurement.row_index import RowIndex
from sonde.inspector.pipeline.batch import Batch
from sonde.inspector.pipeline.finishing import Arrays, Finishing
from sonde.inspector.pipeline.merging import Merging
from sonde.inspector.pipeline.sink_thread import SinkThread
from sonde.inspector.ranks import Participation
from sonde.inspector.sinks.base import LoggedRows, RunSink, Sink
from sonde.rules import RULES, Chosen, Finding
from sonde.run import Findings, QueueLimits, Record, RunWriter, WriteQueue, WriterThread, judge_rows
from sonde.site import Site
from sonde.stats import Merger
from sonde.warn import WarnOnce

LIMITS = QueueLimits(seconds=0.5, size=4 << 20, limit=64 << 20, patience=10.0)
"""When batches are finished, and how many bytes of them may wait."""

_RULES = "rules="
_PIECE = 4 << 20  # bytes of batches that are finished at once
_SPELL = 0.5  # seconds that one piece may take: room is made after each, so slow sinks are given little at a time


class BatchWriter:
    """Takes batches, finishes them in the writer thread, and gives the rows to the sinks.

    The thread is that of the run, if a run is written to disk; otherwise it is one of its own. If the sinks do not keep up, the
    training waits for them once, and then batches are lost, with one warning. A sink that raises is not called again.

    Attributes:
        findings: remembers what the rules need.
        errors: the errors of statistics at their finish, and of sinks.
        lost: batches for which there was no room.
        has_written: whether the sinks have rows.
        ended: by family or sink, the error after which it got no more rows; by family and site, the same of the site alone.
        merging: joins the batches with those of other ranks; None where nothing is joined.

    Args:
        sinks: get the rows.
        limits: when batches are finished.
        part: how this process takes part in the run; None: it is the only one.
        merger: joins rows with those of other ranks; None: nothing is joined.
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
        merger: Merger | None = None,
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
        path = next((str(path) for sink in sinks if (path := _path_of(sink)) is not None), None)
        described = {**(about or {}), "path": path}
        self._sinks = [SinkThread(sink, described, self._problems, self._raised) if sink.may_block else sink for sink in sinks]
        part = part or Participation()
        self._finishing = Finishing(
            self._failed, self._problems.note, self.findings.look_aside, part.scope, shares_norms=merger is not None
        )
        norms = self._finishing.norms_before
        self.merging = None if merger is None else Merging(part, merger, norms, self._problems.note)
        self._counted: dict[RowIndex, npt.NDArray[np.float64]] = {}
        self._at_once = 1  # batches to a piece; the first piece shows how long they take
        threads = [sink.writer.thread for sink in sinks if isinstance(sink, RunSink)]
        shared = next((thread for thread in threads if thread is not None and thread.is_running), None)
        self._owned = shared is None
        self._thread = shared or WriterThread()
        if merger is not None:
            self._thread.patience = part.timeout
        self._queue: WriteQueue[Batch] = WriteQueue(
            self._thread, self._write_some, limits, self._problems, "the sinks do not keep up; steps are lost"
        )
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
        self._each(lambda sink: None if isinstance(sink, RunSink) else sink.alert(finding))

    def stop(self, last: Callable[[], None] = lambda: None, *, failed: bool = False) -> None:
        """Write what is left, call *last*, close the sinks, and end the thread. Idempotent.

        In the thread itself, where garbage collection may have found a forgotten inspector, this happens a little later. The run
        is closed first; then each other sink may read it.

        Args:
            last: called in the thread when all rows are with the sinks.
            failed: whether an exception has ended the training.
        """

        def end() -> None:
            self._finish_all()
            if self.merging is not None:
                self._write_joined([self.merging.end()])
            self.findings.end()
            self._sound(self.findings.fresh())
            self._try(last)
            self._try(self._hand_record_on)
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
        self._try(lambda: self._give(self._finishing.rest()))

    def _write_some(self, batches: deque[Batch]) -> int:
        """Write the first of *batches*: as many as are not too much memory or time at once."""
        start, taken, size = time.monotonic(), 0, 0
        piece: list[tuple[Batch, Arrays]] = []
        joined: list[Iterator[tuple[Batch, Arrays]]] = []
        while batches and taken < self._at_once and size < _PIECE:
            taken += 1
            batch = batches.popleft()
            size += batch.nbytes
            try:
                arrays = batch.copy.unpack()
            except Exception as error:
                self._not_written(error, 1)
                continue
            if self.merging is None:
                piece.append((batch, arrays))
            else:
                joined.append(self.merging.add(batch, arrays))
        if self.merging is None:
            self._try(lambda: self._write(piece), len(piece))
        else:
            self._write_joined(joined)
        self._at_once = max(1, int(_SPELL * taken / max(time.monotonic() - start, 1e-9)))
        return 0

    def _write_joined(self, batches: Sequence[Iterator[tuple[Batch, Arrays]]]) -> None:
        """Join each of *batches*, finish what is joined before the next is, and give all together to the sinks and the rules."""
        finished: list[LoggedRows] = []

        def finish(joined: Iterator[tuple[Batch, Arrays]]) -> None:
            for each in joined:
                finished.append(self._finishing.finish([each])[0])

        for joined in batches:
            self._try(partial(finish, joined), 1)
        self._try(lambda: self._give(LoggedRows.joined(finished)), len(batches))

    def _write(self, piece: Sequence[tuple[Batch, Arrays]]) -> None:
        logged, indices = self._finishing.finish(piece)
        for index, block in zip(indices, logged.blocks, strict=True):
            counts = self._counted.setdefault(index, np.zeros(len(index.layout)))
            counts += np.bincount(block.rows, block.counts, len(index.layout))
        self._give(logged)

    def _give(self, logged: LoggedRows) -> None:
        self.has_written = self.has_written or bool(logged.blocks)
        self._try_to_judge(
            lambda: self.findings.judge(logged.blocks, [(each.name, each.value, each.epoch, each.step) for each in logged.scalars])
        )
        self._try(self._hand_record_on)  # before the rows: what can be read of them was judged
        if logged.sequence:
            self._each(methodcaller("write_all", logged))
        self._sound(self.findings.fresh())

    def _try_to_judge(self, judge: Callable[[], None]) -> None:
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
        rank = writer.process if len(run.ranks) > 1 else None
        self._try_to_judge(lambda: judge_rows(run, self.findings, rank=rank, before=writer.first_step))
        self.findings.fresh()

    def record(self) -> Record:
        """Return the record of the findings so far; called in the thread, or after ``flush``."""
        seen = None if self._seen is None else self._seen()
        judged = [*self.findings.judged(), *self._strange]
        record = Record.of(self.findings, () if seen is None else seen(), judged=judged)
        return replace(record, lost_steps=self.lost, failed=self._unjudged)

    def _hand_record_on(self) -> None:
        """Give the record to the writers of runs, which write it with their next rows."""
        writers = [sink.writer for sink in self._sinks if isinstance(sink, RunSink)]
        if writers:
            record = self.record()
            for writer in writers:
                writer.judged(record)

    def _sound(self, found: Sequence[Finding]) -> None:
        alarm = None if self._alarm is None else self._alarm()
        if alarm is not None:
            for each in found:
                self._try(partial(alarm, each))

    def _each(self, call: Callable[[Sink], None]) -> None:
        """Call every sink; one that raises is not called again."""
        for sink in tuple(self._sinks):
            try:
                call(sink)
            except Exception as error:
                self._sinks.remove(sink)
                self._raised(sink, error)

    def _close(self, *, failed: bool) -> None:
        """Close the sinks: first that of the run, which the others may read then."""
        written = [sink for sink in self._sinks if isinstance(sink, RunSink)]
        others = [sink for sink in self._sinks if not isinstance(sink, RunSink)]
        run = written[0].run() if written and others else None
        closes = [methodcaller("close")]
        for sinks, calls in ((written, closes), (others, [methodcaller("finish", run, failed=failed), *closes])):
            for call in calls:  # all of them finish before one is waited for
                for sink in sinks:
                    try:
                        call(sink)
                    except Exception as error:
                        self._raised(sink, error)
        self._sinks.clear()

    def _raised(self, sink: Sink, error: Exception) -> None:
        """Note the *error* after which *sink* is not called again; also called in the thread of a sink that may block."""
        name = type(sink).__name__
        self.errors.append(ProbeError.of(name, None, error))
        self.ended.setdefault(name, f"{type(error).__name__}: {error}")
        self._problems.note(f"{name} raised {type(error).__name__}: {error}; nothing more is written to it")

    def _try(self, step: Callable[[], None], batches: int = 0) -> None:
        try:
            step()
        except Exception as error:
            self._not_written(error, batches)

    def _not_written(self, error: Exception, batches: int) -> None:
        self.lost += batches
        self.errors.append(ProbeError.of("the writer of rows", None, error))
        self._problems.note(f"a logged step could not be written: {type(error).__name__}: {error}")

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
