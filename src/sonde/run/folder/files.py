"""Open regular files and nothing else, write files that appear whole or not at all, and find the folders of runs."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from sonde.errors import StoreError
from sonde.paths import is_inside

FILE = "run.json"
SUMMARY = "summary.json"
TENSORS = "tensors"

_TEMPORARY = ".tmp"

_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)  # as far as the system has them
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: Path) -> os.stat_result:
    """Return the size and times of the regular file at *path*, which is not opened.

    Whoever reads a file of a folder asks here first, or opens it by :func:`open_regular`: a pipe in its place would be waited for
    for ever, and a device may act when it is opened.

    Raises:
        FileNotFoundError: there is none.
        OSError: something else is there.
    """
    return _regular(path.stat(), path)


def descriptor_of(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open the regular file at *path* as ``os.open`` does, and return the descriptor.

    Raises:
        FileNotFoundError: there is none.
        OSError: something else is there, or the file cannot be opened.
    """
    with suppress(FileNotFoundError):
        check_regular(path)
    descriptor = os.open(path, flags | _AT_ONCE, 0o666)
    try:
        _regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: Path) -> FileIO:
    """Open the regular file at *path* for reading.

    Raises:
        FileNotFoundError: there is none.
        OSError: something else is there, or the file cannot be opened.
    """
    return FileIO(descriptor_of(path))


def within(folder: Path, file: Path) -> Path:
    """Return *file*, which lies in *folder*, however deep.

    Raises:
        StoreError: a link leads out of the folder.
    """
    if not is_inside(folder, file):
        raise StoreError(f"{file} is a link out of this folder, and is not followed")
    return file


def _regular(found: os.stat_result, path: Path) -> os.stat_result:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "of an unknown kind")
        raise OSError(
            errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL, f"it is {kind}, and no regular file", str(path)
        )
    return found


@contextmanager
def appearing(path: Path, *, sync: bool, name: Callable[[Path], str] | None = None) -> Iterator[Path]:
    """Give a temporary path beside *path* to write to; at the end of the block the file takes its place.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from sonde.run import appearing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with appearing(Path(folder) / "a.txt", sync=False) as hidden:
    ...         _ = hidden.write_text("whole")
    ...         (Path(folder) / "a.txt").exists()
    ...     (Path(folder) / "a.txt").read_text()
    False
    'whole'

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


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in *folder*, however deep, but for locks, which go; of one that is not there, 0."""
    total, folders = 0, [os.fspath(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file() and not entry.name.startswith(".lock-"):
                    with suppress(OSError):
                        total += entry.stat().st_size
    return total


def remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove the unfinished files of killed writers, where the finished name would start with *prefix*."""
    for path in folder.glob(f".{prefix}*{_TEMPORARY}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def runs_below(top: Path) -> list[Path]:
    """Return the folders below *top* that hold a run.json, sorted; what lies inside a run is not searched.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from sonde.run import runs_below, start_run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     start_run(f"{folder}/a").close()
    ...     [path.name for path in runs_below(Path(folder))]
    ['a']
    """
    found = []
    for at, folders, files in os.walk(top):
        if FILE in files:
            found.append(Path(at))
            folders.clear()
        else:
            folders[:] = [each for each in folders if not each.startswith(".")]
    return sorted(found, key=lambda path: _natural(path.as_posix()))


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Return a key by which ``run-2`` comes before ``run-10``."""
    parts = re.split(r"(\d+)", text)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
