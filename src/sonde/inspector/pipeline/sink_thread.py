"""Call a sink that may block in a thread of its own, so that neither the training nor the run waits for a network."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sonde.inspector.sinks.base import LoggedRows, Sink
from sonde.rules import Finding
from sonde.run import QueueLimits, WriteQueue, WriterThread
from sonde.warn import WarnOnce

if TYPE_CHECKING:
    from sonde.run import Run

_LIMITS = QueueLimits(seconds=0.1, size=4 << 20, limit=64 << 20, patience=0.0)
_ALERT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _WaitingCall:
    """A call of the sink that waits, and the bytes that it holds."""

    function: Callable[[], None]
    nbytes: int


class SinkThread(Sink):
    """Passes calls on to *sink*, in a thread that ends with it. Only ``close``, after ``finish``, waits, at most ``sink.timeout``.

    The sink is opened with the first rows: a training that does not begin leaves nothing behind.

    Args:
        sink: is called in the thread.
        about: the description with which the sink is opened.
        problems: notes what goes wrong, to warn of it once.
        raised: called in the thread with the sink and its error; the sink is not called again.
    """

    def __init__(self, sink: Sink, about: Mapping[str, Any], problems: WarnOnce, raised: Callable[[Sink, Exception], None]) -> None:
        self._sink = sink
        self._about = about
        self._raised = raised
        self._opened = self._failed = False
        self._lost = 0
        self._finish: Callable[[], None] = lambda: None
        self._done = threading.Event()
        self._thread = WriterThread()
        overrun = f"{type(sink).__name__} does not keep up; some of its rows are lost, none of the run's"
        self._queue: WriteQueue[_WaitingCall] = WriteQueue(self._thread, self._write, _LIMITS, problems, overrun)

    def write_all(self, entries: LoggedRows) -> None:
        self._put(partial(self._sink.write_all, entries), entries.nbytes)

    def alert(self, finding: Finding) -> None:
        self._put(partial(self._sink.alert, finding), _ALERT_BYTES)

    def finish(self, run: Run | None, *, failed: bool) -> None:
        self._finish = partial(self._sink.finish, run, failed=failed)
        self._thread.ask(self._end)

    def close(self) -> None:
        if self._thread.is_elsewhere:
            return
        if self._done.wait(self._sink.timeout):
            self._thread.stop()
        elif not self._failed:
            self._failed = True
            seconds = f"{self._sink.timeout:g} seconds"
            self._raised(self._sink, TimeoutError(f"it did not end within {seconds}; what waits for it may be lost"))

    def _put(self, function: Callable[[], None], nbytes: int) -> None:
        if not (self._failed or self._queue.put(_WaitingCall(function, nbytes))):
            self._lost += 1

    # In the thread

    def _end(self) -> None:
        self._queue.drain()
        if self._opened:
            self._try(self._finish)
        self._try(self._sink.close, always=True)
        if self._lost and not self._failed:
            self._raised(self._sink, BufferError(f"{self._lost} times there was no room for what came; those rows are lost"))
        self._done.set()
        self._thread.stop()

    def _write(self, calls: deque[_WaitingCall]) -> int:
        function = calls.popleft().function
        if not self._opened:
            self._opened = True
            self._try(partial(self._sink.open, self._about))
        self._try(function)
        return 0

    def _try(self, function: Callable[[], None], *, always: bool = False) -> None:
        """Call *function*, unless the sink has raised before; *always*: also then."""
        if self._failed and not always:
            return
        try:
            function()
        except Exception as error:
            if not self._failed:
                self._failed = True
                self._raised(self._sink, error)
