"""Lock a run for one writer per rank. The operating system releases the lock when the process dies, in whatever way.

A forked child (a worker of a data loader) does not own it: it neither releases the lock nor keeps it after the parent's death.
"""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress
from pathlib import Path

from sonde.errors import StoreError
from sonde.run.folder.files import descriptor_of

_held: set[Path] = set()  # by this process: the operating system would let it lock twice


class Lock:
    """The right to write parts as one rank of the run in *folder*.

    Where the file system or the operating system has no such locks, writers of other processes are not noticed.

    Attributes:
        is_held: whether the right was not given back yet.

    Raises:
        StoreError: another writer has it; the message names the process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder.resolve() / f".lock-r{rank:04d}"
        self._process = os.getpid()
        self._descriptor: int | None = None
        self.is_held = True
        if self._path in _held:
            raise StoreError(
                f"{folder} is being written by this very process: close that writer first, or detach() the inspector that writes"
            )
        try:
            import fcntl
        except ImportError:  # no POSIX
            _held.add(self._path)
            return
        self._descriptor = descriptor_of(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)  # nothing is written behind a link
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            owner = os.read(self._descriptor, 200).decode(errors="replace") or "unknown"
            os.close(self._descriptor)
            raise StoreError(f"{folder} is being written by another process ({owner}): end it, or give another folder") from None
        except OSError:  # a file system without locks
            os.close(self._descriptor)
            self._descriptor = None
        else:
            with suppress(OSError):  # on a full disk the lock holds without saying whose it is
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, f"process {self._process} on {os.uname().nodename}".encode(), 0)
        _held.add(self._path)

    def release(self) -> None:
        """Give the right back. Idempotent. A forked child never had it.

        The file stays: after its removal one process could lock the old file, which it has open, and another one a new file.
        """
        if os.getpid() != self._process or not self.is_held:
            return
        self.is_held = False
        _held.discard(self._path)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_free(folder: Path, rank: int) -> bool:
    """Return whether no process writes as *rank* to the run in *folder*."""
    try:
        Lock(folder, rank).release()
    except (StoreError, OSError):
        return False
    return True


def is_locked(folder: Path) -> bool | None:
    """Return whether a process writes to the run in *folder*, as any rank; None where that cannot be known.

    Nothing is locked or written meanwhile: a training may begin at this very moment. Writers on other machines are seen as far as
    the file system tells.
    """
    paths = list(folder.resolve().glob(".lock-r*"))
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
    descriptor = descriptor_of(path)
    try:
        found = struct.unpack(described, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(described, *asked)))
    finally:
        os.close(descriptor)
    return bool(found[3 if sys.platform == "darwin" else 0] != fcntl.F_UNLCK)
