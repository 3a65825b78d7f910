"""What waits for the thread that writes: handed over seldom and much at once, so that it hardly disturbs the one that trains."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["BatchQueue", "Request"]

Item = TypeVar("Item")
Request = Callable[[], None]
"""What the thread that writes is asked to call, after all that was put before."""

_PAUSE = 0.5  # seconds that something may wait before it is handed over


class BatchQueue(Generic[Item]):
    """Items and requests in the order in which they came, from any thread to one.

    That one sleeps until something comes, and then until a pause has gone by, half of the bound waits, or somebody makes a
    request. While things keep coming it wakes once for all that it then takes, never once for each: a thread that wakes takes
    the interpreter's lock from the one that trains.

    Attributes:
        most: items that may be here: those that wait, and those that were taken and are not done. Can be set at any time.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._items: deque[Item] = deque()
        self._asked: deque[tuple[deque[Item], Request]] = deque()  # each with the items before it
        self._held = 0
        self._due = 0.0
        self._asleep = False  # nothing has come for a pause: the next thing has to wake the thread
        self._woken = False  # since it last went to sleep
        self._closed = False
        lock = threading.Lock()
        self._work, self._room = threading.Condition(lock), threading.Condition(lock)

    def put(self, item: Item, patience: float) -> bool:
        """Add *item*, if there is room for it within so many seconds; whether there was."""
        with self._work:
            if self._held >= self.most and not self._room.wait_for(lambda: self._held < self.most, patience):
                return False
            self._held += 1
            self._items.append(item)
            if self._asleep:
                self._due = time.monotonic() + _PAUSE
                self._wake()
            elif not self._woken and len(self._items) * 2 >= self.most:
                self._wake()
            return True

    def ask(self, request: Request) -> None:
        """Have *request* taken soon, after all that was put before. It needs no room."""
        with self._work:
            self._asked.append((self._items, request))
            self._items = deque()
            self._wake()

    def close(self) -> None:
        """Nothing more will be put."""
        with self._work:
            self._closed = True
            self._wake()

    def _wake(self) -> None:
        self._asleep, self._woken = False, True
        self._work.notify()

    # The thread that takes

    def take(self) -> tuple[deque[Item], Request | None]:
        """All that waits up to the next request, and that, once it is time; nothing after :meth:`close`, when all was taken."""
        with self._work:
            self._due = time.monotonic() + _PAUSE
            while not self._is_time():
                left = self._due - time.monotonic()
                self._asleep, self._woken = left <= 0, False
                self._work.wait(None if self._asleep else left)
            if self._asked:
                return self._asked.popleft()
            taken, self._items = self._items, deque()
            return taken, None

    def _is_time(self) -> bool:
        if self._closed or self._asked or len(self._items) * 2 >= self.most:
            return True
        return bool(self._items) and time.monotonic() >= self._due

    def done(self, items: int) -> None:
        """So many of the items that were taken are dealt with, and make room."""
        with self._work:
            self._held -= items
            self._room.notify_all()
