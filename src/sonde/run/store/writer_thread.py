"""The one thread that writes, and the bounded queues of items that wait for it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Generic, Protocol, TypeVar

from sonde.warn import WarnOnce

_PAUSES = (0.0, 1.0, 2.0, 4.0)  # seconds after each failure of what is written; after the next one an item is given up
_GROWTH = 1.5  # of the time between two writings while a queue is young
_AT_ONCE = 2  # how often in a row what fails is tried where somebody waits, or where several items may hold one that fails
_AT_LAST = 3  # how often an item is tried at the end, without pauses


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Item = TypeVar("Item", bound=_Sized)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """When the items of a queue are written, and how many may wait.

    >>> from sonde.run import QueueLimits
    >>> QueueLimits(seconds=1.0, size=1 << 20, limit=1 << 27, patience=10.0).size
    1048576

    Attributes:
        seconds: an item waits no longer than this.
        size: bytes of waiting items that are written at once, however short they have waited.
        limit: bytes that may wait or be under way.
        patience: seconds that ``put`` waits for room.
        first: as *seconds* at first; each writing makes the time half as long again, up to *seconds*. Much that goes wrong does so
            at the beginning: what a kill loses is about a third of the time since then.
    """

    seconds: float
    size: int
    limit: int
    patience: float
    first: float = inf


class WriterThread:
    """A thread that empties queues: of rows on their way to disk and, under an inspector, of batches on their way to rows.

    The thread sleeps until a queue is due and then takes all that waits there. While items keep coming, it wakes once in each
    queue's interval and not for each item: a thread that wakes takes the interpreter's lock from the thread that trains.

    Attributes:
        changed: the condition that guards the queues. Its lock can be taken again by the thread that holds it, since garbage
            collection may stop an inspector anywhere.
        patience: the seconds that a caller waits for the thread; None: until a request is done. The thread may wait for other
            processes, which may wait for the caller.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.patience: float | None = None
        self._queues: list[WriteQueue[_Sized]] = []
        self._requests: deque[Callable[[], None]] = deque()
        self._wakes_at = -inf  # when the sleeping thread wakes by itself; -inf while it is awake
        self._stopping = self._ended = False
        self._last = 0  # last requests that are not done
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="sonde writer", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    @property
    def is_running(self) -> bool:
        """Whether the thread still takes items. In a forked child this is False: the thread stayed with the parent."""
        return os.getpid() == self._process and not self._ended

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the one in which the thread runs."""
        return os.getpid() != self._process

    def add(self, queue: WriteQueue[Item]) -> None:
        """Empty *queue* from now on. Of two that are due, the one that was added first is emptied first."""
        with self.changed:
            self._queues.append(queue)  # type: ignore[arg-type]  # every queue is fed with items of its own kind only

    def remove(self, queue: WriteQueue[Item]) -> None:
        """Empty *queue* no more. Idempotent."""
        with self.changed:
            self._queues = [each for each in self._queues if each is not queue]

    def call(self, request: Callable[[], None], *, is_last: bool = False) -> None:
        """Call *request* in the thread, return when it is done, or unless it *is_last* after ``patience``, and raise its error.

        If *request* stops the thread, wait for its end. In the thread itself *request* is called at once; after the end of the
        thread it is not called. Where Ctrl-C ends the waiting for the last request, the end of the program waits for it.
        """
        if self.is_current:
            request()
        elif self.is_running:
            if is_last:
                self._last += 1
                atexit.register(self.finish)
            done = [False]
            raised: list[BaseException] = []

            def call() -> None:
                try:
                    request()
                except BaseException as error:
                    raised.append(error)
                with self.changed:
                    done[0] = True
                    self._last -= is_last
                    self.changed.notify_all()

            with self.changed:
                self.ask(call)
                self.changed.wait_for(lambda: (done[0] and not self._stopping) or self._ended, None if is_last else self.patience)
            if is_last:
                atexit.unregister(self.finish)
            if raised:
                raise raised[0]
        self.warn()

    def ask(self, request: Callable[[], None]) -> None:
        """Call *request*, which does not raise, in the thread soon; do not wait for it."""
        with self.changed:
            self._requests.append(request)
            self.wake()

    def finish(self) -> None:
        """Return when no last request is under way: that of a caller whose waiting was interrupted goes on in the thread."""
        if not (self.is_current or self.is_elsewhere):
            with self.changed:
                self.changed.wait_for(lambda: not self._last or self._ended)

    def stop(self) -> None:
        """Write what waits in the queues and end the thread. Idempotent. Called in the thread itself, it does not wait."""
        if self.is_elsewhere:
            return
        with self.changed:
            self._stopping = True
            self.wake()
            if self.is_current:
                return
            self.changed.wait_for(lambda: self._ended)  # not join(): the lock may be held here, and waiting gives it back
        self._thread.join()
        self.warn()

    def warn(self) -> None:
        """Warn of the problems that were noted in the thread; in the thread itself do nothing."""
        if not self.is_current:
            for queue in tuple(self._queues):
                queue.problems.warn()

    def wake(self, due: float = -inf) -> None:
        """End the thread's sleep, unless it wakes before *due* by itself. The caller holds the lock."""
        if due < self._wakes_at:
            self._wakes_at = -inf
            self.changed.notify_all()

    # In the thread

    def _loop(self) -> None:
        try:
            while not self._ended:
                try:
                    if (job := self._next_job()) is not None:
                        job()
                except Exception:  # of a request that nobody waits for; what is written later needs the thread
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
                    time.sleep(_PAUSES[1] / 10)
        finally:
            with self.changed:
                self._ended = True
                self.changed.notify_all()

    def _next_job(self) -> Callable[[], None] | None:
        """The next thing to do, as soon as there is one; None at the end."""
        with self.changed:
            while True:
                if self._requests:
                    return self._requests.popleft()
                now = time.monotonic()
                for queue in self._queues:
                    if self._stopping and queue.waits:
                        return queue.finish
                    if queue.is_due(now):
                        return queue.write_some
                if self._stopping:
                    self._ended = True  # under the lock: no item may come between
                    return None
                self._wakes_at = min((queue.wakes_at(now) for queue in self._queues), default=inf)
                while self._wakes_at > now:
                    self.changed.wait(None if self._wakes_at == inf else self._wakes_at - now)
                    now = time.monotonic()
                self._wakes_at = -inf


class WriteQueue(Generic[Item]):
    """Items that wait to be written by a thread, in order, within a number of bytes.

    The items that wait or are being written never exceed ``limits.limit`` bytes: beyond it ``put`` waits for the thread
    (back-pressure), at most ``limits.patience`` seconds in a row. After that, and while writing fails, an item for which there
    is no room is refused at once, until something is written again.

    Whatever error *write* raises, the items that it has left are written again: at once, then after longer and longer pauses, and
    one at a time, so that one which cannot be written does not hold up the others. That one is given up at last.

    Args:
        thread: writes the items.
        write: called in the thread with the items that wait, oldest first. The function removes one or more of them, each once it
            is done with it, and returns the bytes that it keeps because writing failed; for these it is called again after the
            interval.
        given_up: called in the thread with an item that is given up, and its last error.
        limits: when and how much.
        problems: notes the *overrun*, to warn of it once.
        overrun: the problem to note when the patience is at an end.
    """

    def __init__(
        self,
        thread: WriterThread,
        write: Callable[[deque[Item]], int],
        given_up: Callable[[Item, Exception], None],
        limits: QueueLimits,
        problems: WarnOnce,
        overrun: str,
    ) -> None:
        self.limits = limits
        self.problems = problems
        self._thread = thread
        self._write = write
        self._given_up = given_up
        self._overrun = overrun
        self._waiting: deque[Item] = deque()
        self._taken: deque[Item] = deque()  # of the thread alone: what is being written
        self._waiting_bytes = self._taken_bytes = self._kept_bytes = 0
        self._interval = min(limits.first, limits.seconds)
        self._due = inf  # when what waits is to be written
        self._following = -inf  # the end of the interval that began with the last writing
        self._impatient = self._urgent = self._writing = False
        self._failures = 0  # in a row, of what is written next
        self._alone = 0  # how many of the first items are written one at a time
        thread.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes that wait or are being written."""
        return self._waiting_bytes + self._taken_bytes + self._kept_bytes

    def put(self, item: Item) -> bool:
        """Add *item*, if there is room in time; return whether there was. In a forked child, or after the end, there is none."""
        thread = self._thread
        if thread.is_elsewhere:
            return False
        with thread.changed:
            size = item.nbytes
            if not (thread.is_running and self._has_room(size)):
                return False
            self._waiting.append(item)
            self._waiting_bytes += size
            if self._due == inf:
                now = time.monotonic()
                self._due = self._following if self._following > now else now + self._interval
                thread.wake(self._due)
            elif self._is_full():
                thread.wake()
            return True

    def _has_room(self, size: int) -> bool:
        def fits() -> bool:
            return self.nbytes == 0 or self.nbytes + size <= self.limits.limit

        if fits():
            return True
        if self._thread.is_current:
            self.drain()
            return fits() or self._writing
        if not self._kept_bytes and not self._impatient:
            self._urgent = True
            self._thread.wake()
            self._thread.changed.wait_for(lambda: fits() or self._kept_bytes or not self._thread.is_running, self.limits.patience)
            if not fits() and not self._kept_bytes:
                self._impatient = True
                self.problems.note(self._overrun)
        return fits()

    # In the thread

    @property
    def waits(self) -> bool:
        """Whether there is something to write."""
        return bool(self._waiting or self._taken)

    def is_due(self, now: float) -> bool:
        """Whether there is something to write at once."""
        if self._failures:
            return now >= self._due
        return bool(self._taken) or (self._urgent and bool(self._waiting)) or now >= self._due or self._is_full()

    @property
    def is_failing(self) -> bool:
        """Whether what was written last could not be, and waits to be tried again."""
        return bool(self._kept_bytes or self._failures)

    def _is_full(self) -> bool:
        return self._waiting_bytes >= self.limits.size and not self.is_failing

    def wakes_at(self, now: float) -> float:
        """Return when the thread has to look here again: also at the end of an interval, so that the next item need not wake it."""
        return self._due if self._due < inf else self._following if self._following > now else inf

    def drain(self) -> None:
        """Write all items that wait now, and try once more to write those that were kept, or have failed."""
        if self._writing:
            return
        self._write_taken()
        if not self._taken and (self._waiting or self._kept_bytes):
            self.write_some()
            self._write_taken()

    def finish(self) -> None:
        """Write all items that wait now, or give them up: the end has come."""
        if self._writing:
            return
        while self._taken:
            self.write_some(tries=_AT_LAST)
        if self._waiting or self._kept_bytes:
            self.write_some(tries=_AT_LAST)
        while self._taken:
            self.write_some(tries=_AT_LAST)

    def _write_taken(self) -> None:
        """Write what was taken; where it fails, once more."""
        failed = 0
        while self._taken and failed < _AT_ONCE:
            self.write_some()
            failed = failed + 1 if self._failures else 0

    def write_some(self, *, tries: int = len(_PAUSES) + 1) -> None:
        """Write the first of the items, as many as are written at once; give up one that has failed alone so many *tries*."""
        with self._thread.changed:
            self._urgent = False
            if not self._taken:
                self._taken, self._waiting = self._waiting, deque()
                self._taken_bytes, self._waiting_bytes = self._waiting_bytes, 0
            self._due = inf
        items = deque([self._taken[0]]) if self._alone else self._taken
        before, kept, pause = len(items), self._kept_bytes, 0.0
        self._writing = True
        try:
            kept = self._write(items)
            self._failures = 0
        except Exception as error:  # nothing that goes wrong in writing ends the thread
            pause = self._failed(items, error, before, tries)
        finally:
            self._writing = False
        with self._thread.changed:
            if self._alone and not items:
                self._taken.popleft()
                self._alone -= 1
            self._taken_bytes = sum(item.nbytes for item in self._taken)
            self._kept_bytes = kept
            self._impatient = self._impatient and self.is_failing
            self._interval = min(_GROWTH * self._interval, self.limits.seconds)
            self._following = time.monotonic() + self._interval
            if self._failures:
                self._due = time.monotonic() + pause
            elif kept or self._waiting:
                self._due = min(self._due, self._following)
            self._thread.changed.notify_all()

    def _failed(self, items: deque[Item], error: Exception, before: int, tries: int) -> float:
        """Return the seconds after which *items* that could not be written are tried again; give up one that was tried enough."""
        if len(items) < before:  # some were written
            self._failures = 0
        self._failures += 1
        pause = _PAUSES[min(self._failures, len(_PAUSES)) - 1]
        if len(items) > 1 and self._failures >= _AT_ONCE:
            self._alone, self._failures = len(items), 0
        elif len(items) == 1 and self._failures >= tries:
            self._failures = 0
            self._given_up(items.popleft(), error)
        return pause
