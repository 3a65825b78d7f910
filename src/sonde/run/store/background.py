"""A thread that writes what is appended, so that training never waits for a disk, with bounded memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from sonde.run.store.blocks import Block, Lines, Pending
from sonde.run.store.trouble import Trouble

__all__ = ["Background"]

Write = Callable[[str, Any], None]


class Background:
    """Collects blocks and lines and has a thread write them, each family as one table.

    It writes *seconds* after the first thing that is not written yet, or as soon as *size* bytes wait. What waits or is being
    written never exceeds *limit* bytes: beyond it ``put`` waits for the disk (back-pressure), at most *patience* seconds in a
    row; after that, and while writing fails, what does not fit is dropped and counted in ``lost``. The first such trouble is
    one warning, in the thread that calls; failed writes are tried again at every interval.

    Args:
        write: puts one table of a family on disk. An ``OSError`` means that it can be tried again.
        rank: written into the tables.
        trouble: is told what goes wrong.
    """

    def __init__(
        self, write: Write, *, rank: int, trouble: Trouble, seconds: float, size: int, limit: int, patience: float
    ) -> None:
        self._write = write
        self._rank = rank
        self._trouble = trouble
        self._seconds = seconds
        self._size = size
        self._limit = limit
        self._patience = patience
        self._pending = Pending()
        self._unwritten: list[tuple[str, Any]] = []  # tables that could not be written; of the thread alone
        self._held = 0  # bytes not on disk yet
        self._due = 0.0  # when to write next
        self._begun = self._done = 0  # rounds of writing
        self._wanted = 0  # begin rounds up to this one now
        self._stopping = False
        self._failing = False
        self._impatient = False  # waited in vain; until something is written again nobody waits
        self.lost = 0
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="sonde run writer", daemon=True)
        self._thread.start()

    def put(self, family: str, item: Block | Lines) -> None:
        """Have *item* written some time soon. In a forked child this does nothing: its thread stayed with the parent."""
        if os.getpid() != self._process:
            return
        with self._changed:
            if self._has_room(item) and not self._stopping:
                if not self._pending and not self._failing:
                    self._due = time.monotonic() + self._seconds
                    self._changed.notify_all()
                self._pending.add(family, item)
                self._held += item.nbytes
                if self._pending.nbytes >= self._size:
                    self._changed.notify_all()
            else:
                self.lost += len(item)
        self._trouble.say()

    def _has_room(self, item: Block | Lines) -> bool:
        def fits() -> bool:
            return self._held == 0 or self._held + item.nbytes <= self._limit

        if not fits() and not self._failing and not self._impatient:
            self._wanted = self._begun + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: fits() or self._failing, self._patience)
            if not fits() and not self._failing:
                self._impatient = True
                self._trouble.note(f"the disk did not keep up for {self._patience:g} seconds")
        return fits()

    def flush(self) -> None:
        """Return when everything put so far has been written, or has failed to be."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._wanted = wanted = self._begun + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= wanted or not self._thread.is_alive())
        self._trouble.say()

    def stop(self) -> None:
        """Write what is left and end the thread; what cannot be written then is lost and counted. Again does nothing."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        self.lost += sum(table.num_rows for _, table in self._unwritten)
        self._unwritten.clear()
        self._trouble.say()

    # The thread

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._is_time():
                    waiting = bool(self._pending or self._unwritten)
                    self._changed.wait(max(0.0, self._due - time.monotonic()) if waiting else None)
                batch, last = self._pending.take(), self._stopping
                self._begun += 1
            self._write_all(batch)
            with self._changed:
                self._done = self._begun
                self._due = time.monotonic() + self._seconds
                self._changed.notify_all()
            if last:
                return

    def _is_time(self) -> bool:
        if self._stopping or self._wanted > self._begun:
            return True
        if not (self._pending or self._unwritten):
            return False
        return time.monotonic() >= self._due or (self._pending.nbytes >= self._size and not self._failing)

    def _write_all(self, batch: Pending) -> None:
        """Write old tables, then new ones, in order; at the first that fails keep the rest for the next time."""
        waiting, self._unwritten = self._unwritten, []
        try:
            waiting += batch.tables(self._rank)
        except Exception as error:  # arrow refuses what the checks let through: training goes on without it
            self._trouble.note(f"{type(error).__name__}: {error}")
            self.lost += sum(len(item) for items in batch.held.values() for item in items)
        failed = False
        for family, table in waiting:
            if failed:
                self._unwritten.append((family, table))
                continue
            try:
                self._write(family, table)
            except OSError as error:
                self._trouble.note(f"{type(error).__name__}: {error}")
                failed = True
                self._unwritten.append((family, table))
            except Exception as error:
                self._trouble.note(f"{type(error).__name__}: {error}")
                self.lost += table.num_rows
        with self._changed:
            self._failing = failed
            self._impatient = self._impatient and failed
            self._held = self._pending.nbytes + sum(table.nbytes for _, table in self._unwritten)
