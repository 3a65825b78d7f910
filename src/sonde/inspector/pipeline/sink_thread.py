"""Call sinks in the thread that writes, or in one of their own where they may block; a call that raises is made again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sonde.inspector.pipeline.merging import steadily
from sonde.inspector.sinks.base import LoggedRows, RunSink, Sink
from sonde.rules import Finding
from sonde.run import QueueLimits, WriteQueue, WriterThread
from sonde.warn import WarnOnce

if TYPE_CHECKING:
    from sonde.run import Run

_LIMITS = QueueLimits(seconds=0.1, size=4 << 20, limit=64 << 20, patience=0.0)
_ALERT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _WaitingCall:
    """A call of the sink that waits, the rows that it gives, and the bytes that they hold."""

    function: Callable[[], None]
    rows: int
    nbytes: int


class SinkQueue(Sink):
    """Passes calls on to *sink* in *thread*; those that raised, or came after one that did, wait there to be made again.

    A sink whose call is given up is called no more, but closed. A run goes on without the rows of this call, which it counts.

    Args:
        sink: is called in the thread.
        thread: calls it.
        problems: notes what goes wrong, to warn of it once.
        raised: called in the thread with the sink, its error, and the number of rows of a run that are lost by it; None where
            nothing more is given to the sink.

    Attributes:
        sink: as given.
        thread: as given.
    """

    def __init__(
        self, sink: Sink, thread: WriterThread, problems: WarnOnce, raised: Callable[[Sink, Exception, int | None], None]
    ) -> None:
        self.sink = sink
        self.thread = thread
        self._raised = raised
        self._failed = False
        self._lost = 0  # calls for which there was no room
        overrun = f"{type(sink).__name__} does not keep up; some of its rows are lost, none of the run's"
        self._queue: WriteQueue[_WaitingCall] = WriteQueue(thread, self._write, self._give_up, _LIMITS, problems, overrun)

    def write_all(self, entries: LoggedRows) -> None:
        try:
            calls = steadily(lambda: self.sink.calls_for(entries))
        except Exception as error:
            self._give_up(_WaitingCall(lambda: None, entries.lines, 0), error)
            return
        self._put([_WaitingCall(function, rows, entries.nbytes // len(calls) + 1) for function, rows in calls])

    def alert(self, finding: Finding) -> None:
        self._put([_WaitingCall(partial(self.sink.alert, finding), 0, _ALERT_BYTES)])

    def flush(self) -> None:
        """Make the calls that wait now, and try once more those that have raised."""
        self._queue.drain()

    def end_rows(self) -> None:
        """Make the calls that wait, or give them up: no more come."""
        self._queue.finish()

    def finish(self, run: Run | None, *, failed: bool) -> None:
        self._try(partial(self.sink.finish, run, failed=failed))

    def close(self) -> None:
        self._try(self.sink.close, always=True)
        if self._lost and not self._failed:
            error = BufferError(f"{self._lost} times there was no room for what came; those rows are lost")
            self._raised(self.sink, error, None)
        self.thread.remove(self._queue)

    def _put(self, calls: list[_WaitingCall]) -> None:
        for call in calls:
            if not (self._failed or self._queue.put(call)):
                self._lose(call)
        if not self._queue.is_failing:
            self._queue.drain()

    def _lose(self, call: _WaitingCall) -> None:
        if isinstance(self.sink, RunSink):
            self.sink.writer.lost += call.rows
        else:
            self._lost += 1

    # In the thread

    def _write(self, calls: deque[_WaitingCall]) -> int:
        while calls:
            if not self._failed:
                calls[0].function()
            calls.popleft()
        return 0

    def _give_up(self, call: _WaitingCall, error: Exception) -> None:
        if isinstance(self.sink, RunSink):
            self._lose(call)
            self._raised(self.sink, error, call.rows)
        else:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self._raised(self.sink, error, None)

    def _try(self, function: Callable[[], None], *, always: bool = False) -> None:
        """Call *function*, unless the sink has failed before; *always*: also then."""
        if self._failed and not always:
            return
        try:
            function()
        except Exception as error:
            self._fail(error)


class SinkThread(SinkQueue):
    """Passes calls on to *sink*, in a thread that ends with it, so that neither the training nor the run waits for a network.

    Only ``close``, after ``finish``, waits, at most ``sink.timeout``. The sink is opened with the first rows: a training that does
    not begin leaves nothing behind.

    Args:
        sink: is called in the thread.
        about: the description with which the sink is opened.
        problems, raised: as of a :class:`SinkQueue`.
    """

    def __init__(
        self,
        sink: Sink,
        about: Mapping[str, Any],
        problems: WarnOnce,
        raised: Callable[[Sink, Exception, int | None], None],
    ) -> None:
        super().__init__(sink, WriterThread(), problems, raised)
        self._about = about
        self._opened = False
        self._finish: Callable[[], None] = lambda: None
        self._done = threading.Event()

    def flush(self) -> None:
        """Wait for nothing."""

    def end_rows(self) -> None:
        """Wait for nothing; the thread does it."""

    def finish(self, run: Run | None, *, failed: bool) -> None:
        self._finish = partial(self.sink.finish, run, failed=failed)
        self.thread.ask(self._end)

    def close(self) -> None:
        if self.thread.is_elsewhere:
            return
        if self._done.wait(self.sink.timeout):
            self.thread.stop()
        elif not self._failed:
            self._failed = True
            seconds = f"{self.sink.timeout:g} seconds"
            self._raised(self.sink, TimeoutError(f"it did not end within {seconds}; what waits for it may be lost"), None)

    def _put(self, calls: list[_WaitingCall]) -> None:
        if not self._opened:
            self._opened = self._queue.put(_WaitingCall(partial(self.sink.open, self._about), 0, 1))
        for call in calls:
            if not (self._failed or self._queue.put(call)):
                self._lose(call)

    # In the thread

    def _end(self) -> None:
        try:
            self._queue.finish()
            if self._opened:
                self._try(self._finish)
            super().close()
        finally:
            self._done.set()
            self.thread.stop()
