"""Hold a whole run that has ended: as every rank, so that nobody else writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sonde.errors import StoreError
from sonde.run.folder.lock import Lock, is_locked
from sonde.run.folder.parts import parts_in
from sonde.run.folder.run_json import Description
from sonde.run.folder.written import ranks_in


def refuse_if_written(folder: Path) -> None:
    """Raise if a process writes to the run in *folder*, or may do so.

    Raises:
        StoreError: a process does, or that cannot be known.
    """
    locked = is_locked(folder)
    if locked:
        raise StoreError(f"{folder} is being written: change it when its training has ended")
    attempts = Description.read(folder).attempts
    if locked is None and (not attempts or attempts[-1].ended is None):
        raise StoreError(f"{folder} has no end, and its file system has no locks that say whether it is being written: not changed")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the right to write as every rank of the run in *folder*."""
    refuse_if_written(folder)
    locks: list[Lock] = []
    try:
        for rank in ranks_of(folder):
            locks.append(Lock(folder, rank))  # those that were taken are released if one is refused
        yield
    finally:
        for lock in locks:
            lock.release()


def ranks_of(folder: Path) -> list[int]:
    """Return the ranks that have written to the run in *folder*, and 0."""
    return sorted(
        {0, *ranks_in(folder), *(part.rank for family in folder.iterdir() if family.is_dir() for part in parts_in(family))}
    )
