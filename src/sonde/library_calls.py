"""Calls into libraries that are not Python: the end of the program waits for those under way, and closes what they have opened."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from contextlib import suppress

_PATIENCE = 60.0  # seconds that the end of the program waits for calls


class LibraryCalls:
    """A ``with`` block around calls into a library, one thread at a time; the same thread may come again.

    A thread that is inside C++ when the interpreter ends is cut off there, which ends the process with a message of C++, and what
    C++ has opened and nobody closed is printed as a leak. So the end of the program waits until no other thread is in such a block.
    Then :meth:`ended` is called, and no thread but the main one comes in any more. In a forked child :meth:`forked` is called.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _program.keep(self)

    def __enter__(self) -> None:
        _program.enter()
        try:
            self._lock.acquire()
        except BaseException:
            _program.leave()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        _program.leave()

    def ended(self) -> None:
        """Close what is open: the program ends, and no thread is in the block."""

    def forked(self) -> None:
        """Let go of what was open in the parent: its threads are not here."""


class _Program:
    """Knows how many threads are in blocks, and when the end has come."""

    def __init__(self) -> None:
        self._every: weakref.WeakSet[LibraryCalls] = weakref.WeakSet()
        self._depth = threading.local()
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_over = False

    def keep(self, calls: LibraryCalls) -> None:
        with self._changed:
            self._every.add(calls)

    def enter(self) -> None:
        """Count this thread, if it is in no block yet. At the end it stays here for ever, as nobody waits for it."""
        depth = getattr(self._depth, "blocks", 0)
        if not depth:
            with self._changed:
                may_come = not self._is_over or threading.current_thread() is threading.main_thread()
                self._inside += may_come
            if not may_come:
                threading.Event().wait()
        self._depth.blocks = depth + 1

    def leave(self) -> None:
        self._depth.blocks -= 1
        if not self._depth.blocks:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Registered when this module is loaded, so called after what was registered later, as the end of the writing of a run."""
        with self._changed:
            self._is_over = True
            has_left = self._changed.wait_for(lambda: self._inside == 0, _PATIENCE)
            every = list(self._every)
        for each in every if has_left else ():
            with suppress(Exception):
                each.ended()

    def forked(self) -> None:
        self._begin()
        self._inside = int(getattr(self._depth, "blocks", 0) > 0)
        for each in list(self._every):
            each._lock = threading.RLock()
            each.forked()


_program = _Program()
atexit.register(_program.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_program.forked)
