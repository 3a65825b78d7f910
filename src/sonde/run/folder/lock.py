"""Lock a run for one writer per rank. The operating system releases the lock when the process dies, in whatever way.

A forked child (a worker of a data loader) does not own it: it neither releases the lock nor keeps it after the parent's death.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

from sonde.errors import StoreError
from sonde.run.folder.files import descriptor_of

_held: set[Path] = set()  # by this process: the operating system would let it lock twice
_changing = [threading.RLock()]  # a thread that looks at a file and closes it would release the lock that another just took
_TRIES = 20


class Lock:
    """The right to write parts as one rank of the run in *folder*: a locked file, which goes when the right is given back.

    Where the file system or the operating system has no such locks, writers of other processes are not noticed.

    Attributes:
        is_held: whether the right was not given back yet.

    Raises:
        StoreError: another writer has it; the message names the process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = _file(folder, rank)
        self._process = os.getpid()
        self._descriptor: int | None = None
        self.is_held = True
        with _changing[0]:
            if self._path in _held:
                own = "close that writer first, or detach() the inspector that writes"
                raise StoreError(f"{folder} is being written by this very process: {own}")
            for tries_left in reversed(range(_TRIES)):
                if self._is_taken(folder, is_last=not tries_left):
                    break
            _held.add(self._path)

    def _is_taken(self, folder: Path, *, is_last: bool) -> bool:
        """Take the lock, as far as there are locks; return whether the file that was locked is the one in its place.

        Where another process gave the file back between opening and locking it, a third one may hold a new file. The last try
        believes in the lock: there may be file systems that never tell the same of a file.
        """
        try:
            import fcntl
        except ImportError:  # no POSIX
            return True
        descriptor = descriptor_of(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)  # nothing is written behind a link
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            owner = os.read(descriptor, 200).decode(errors="replace") or "unknown"
            os.close(descriptor)
            raise StoreError(f"{folder} is being written by another process ({owner}): end it, or give another folder") from None
        except OSError:  # a file system without locks
            os.close(descriptor)
            return True
        if not (is_last or self._is_in_place(descriptor)):
            os.close(descriptor)
            return False
        with suppress(OSError):  # on a full disk the lock holds without saying whose it is
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {self._process} on {os.uname().nodename}".encode(), 0)
        self._descriptor = descriptor
        return True

    def _is_in_place(self, descriptor: int) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.fstat(descriptor), self._path.lstat())
        return False

    def release(self) -> None:
        """Give the right back, and remove the file while it is locked. Idempotent. A forked child never had it."""
        if os.getpid() != self._process or not self.is_held:
            return
        self.is_held = False
        with _changing[0]:
            _held.discard(self._path)
            if self._descriptor is not None:
                with suppress(OSError):
                    if self._is_in_place(self._descriptor):
                        self._path.unlink()
                os.close(self._descriptor)
                self._descriptor = None


def _file(folder: Path, rank: int) -> Path:
    return folder.resolve() / f".lock-r{rank:04d}"


def is_locked(folder: Path, rank: int | None = None) -> bool | None:
    """Return whether a process writes to the run in *folder*, as *rank* or as any; None where that cannot be known.

    Nothing is locked or written meanwhile: a training may begin at this very moment. Writers on other machines are seen as far as
    the file system tells.
    """
    with _changing[0]:
        paths = list(folder.resolve().glob(".lock-r*")) if rank is None else [_file(folder, rank)]
        if any(path in _held for path in paths):  # and closing a descriptor of the file would release the lock
            return True
        try:
            return any(_is_locked(path) for path in paths)
        except (ImportError, OSError):
            return None


def _is_locked(path: Path) -> bool:
    import fcntl

    described = "qqihh" if sys.platform == "darwin" else "hhqqi4x"  # struct flock: there start, length, process, type, whence
    asked = (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET) if sys.platform == "darwin" else (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        descriptor = descriptor_of(path)
    except FileNotFoundError:  # it was given back
        return False
    try:
        found = struct.unpack(described, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(described, *asked)))
    finally:
        os.close(descriptor)
    return bool(found[3 if sys.platform == "darwin" else 0] != fcntl.F_UNLCK)


def _forked() -> None:
    _changing[0] = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
