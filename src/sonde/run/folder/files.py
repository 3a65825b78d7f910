"""Write files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["appearing", "is_leftover", "remove_leftovers", "write_json"]

_TEMPORARY = ".tmp"


@contextmanager
def appearing(path: Path, *, sync: bool) -> Iterator[Path]:
    """Give a temporary path beside *path* to write to; at the end of the block the file takes its place.

    A process killed at any moment leaves the old file, or none, and at most a temporary one whose name starts with a dot and
    ends in ``.tmp``, so that no ``*.parquet`` pattern finds it.

    Args:
        path: the final name.
        sync: put the bytes on the disk before the name and the name before going on, so that power failure is covered as well.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        yield temporary
        if sync:
            _sync(temporary, os.O_RDWR)
        temporary.replace(path)
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


def write_json(path: Path, data: Any, *, sync: bool) -> None:
    """Write *data* as a JSON file, whole or not at all.

    Raises:
        TypeError, ValueError: *data* is not plain data, or holds a NaN or infinity.
    """
    text = json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    with appearing(path, sync=sync) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
