"""Write files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["appearing", "is_leftover", "remove_leftovers"]

_TEMPORARY = ".tmp"


@contextmanager
def appearing(path: Path, *, sync: bool, name: Callable[[Path], str] | None = None) -> Iterator[Path]:
    """Give a temporary path beside *path* to write to; at the end of the block the file takes its place.

    A process killed at any moment leaves the old file, or none, and at most a temporary one whose name starts with a dot and
    ends in ``.tmp``, so that no ``*.parquet`` pattern finds it.

    Args:
        path: the final name.
        name: gives another final name, from the whole temporary file.
        sync: put the bytes on the disk before the name and the name before going on, so that power failure is covered as well.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{_TEMPORARY}")
    try:
        yield temporary
        if sync:
            _sync(temporary, os.O_RDWR)
        temporary.replace(path if name is None else path.with_name(name(temporary)))
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if sync and os.name == "posix":  # elsewhere folders cannot be opened
        _sync(path.parent, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_leftover(path: Path) -> bool:
    """Return whether *path* is an unfinished file of a writer that was killed."""
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY)


def remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove the unfinished files of killed writers, where the finished name would start with *prefix*."""
    for path in folder.glob(f".{prefix}*{_TEMPORARY}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
