"""Begin to write a run: in a new folder, in an existing one, after an earlier attempt, or as another rank."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from sonde.errors import ArgumentError, StoreError
from sonde.paths import absolute_path
from sonde.run.folder.files import FILE, SUMMARY, remove_leftovers
from sonde.run.folder.lock import Lock, is_locked
from sonde.run.folder.parts import parts_in, prefix_of
from sonde.run.folder.run_json import Description, is_run
from sonde.run.folder.written import PATTERN
from sonde.run.schema import DOCUMENTS, may_be_family, whole_number
from sonde.run.store.disk_writer import DiskWriter, Flushing
from sonde.run.store.run_names import new_folder, numbered_folder

_LEFTOVER = re.compile(r"\.part-r(\d+)-")

Existing = Literal["error", "resume", "unique", "replace"]
_KEPT = ("nonfinite", "spikes")  # folders of steps that were kept to be run again
_OF_STEP = ("step.json", "model.safetensors", "passes.safetensors", "report.txt", "reproduce.py")
_EXISTING: tuple[Existing, ...] = ("error", "resume", "unique", "replace")


def start_run(
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] = "runs",
    exists: Existing = "error",
    step: int | None = None,
    about: Mapping[str, Any] | None = None,
    flushing: Flushing | None = None,
) -> DiskWriter:
    """Begin to write a run in a folder, as its only process or as rank 0.

    >>> import sonde, tempfile
    >>> from sonde.run import Layout, start_run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with start_run(f"{folder}/a") as writer:
    ...         writer.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=0)
    ...     sonde.open_run(f"{folder}/a").state
    'ended'

    Args:
        path: the folder, which a later ``os.chdir`` does not move; missing ones above it are made. None makes one in *root* with
            a readable name, as runs/quiet-otter.
        exists: what to do where the folder holds files already. ``"error"`` raises; ``"resume"`` continues the run in it
            (and starts one where there is none); ``"unique"`` writes beside it, to path-2, path-3, ...; ``"replace"``
            deletes the run in it and leaves what else is there.
        step: with ``"resume"``, the step that comes next: rows that earlier attempts wrote from that step on are superseded. The
            default continues after the last step that was written.
        about: plain data for run.json: ``model``, ``environment``, ``lenses``, ...
        flushing: when rows go to disk.

    Raises:
        ArgumentError: an argument that cannot be used.
        StoreError: the folder holds something, is being written by somebody, or cannot be written.
    """
    if exists not in _EXISTING:
        raise ArgumentError(f"exists={exists!r}: it is one of {', '.join(map(repr, _EXISTING))}")
    if step is not None and exists != "resume":
        raise ArgumentError("step= says where an earlier run is continued: give exists='resume' as well")
    try:
        folder = _folder(None if path is None else absolute_path(path), absolute_path(root), exists)
        lock = Lock(folder, 0)
        try:
            return _begin(folder, lock, exists, step, about or {}, flushing or Flushing())
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise StoreError(f"no run can be written to {path if path is not None else root}: {error}") from error


def join_run(path: str | os.PathLike[str], *, rank: int, attempt: int, flushing: Flushing | None = None) -> DiskWriter:
    """Write to the run that rank 0 has started, as another rank.

    >>> import tempfile
    >>> from sonde.run import join_run, start_run
    >>> with tempfile.TemporaryDirectory() as folder, start_run(f"{folder}/a") as first:
    ...     with join_run(f"{folder}/a", rank=1, attempt=1) as second:
    ...         second.scalar("loss", 2.5, step=0)
    ...     first.scalar("loss", 1.5, step=0)
    ...     first.flush()
    ...     [first.run().scalar("loss", rank=rank)[1].tolist() for rank in (0, 1)]
    [[1.5], [2.5]]

    Rank 0 calls :func:`start_run` and sends ``writer.path`` and ``writer.attempt`` to the others. A rank leaves no file before it
    has something to write.

    Raises:
        ArgumentError: *rank* is not above 0.
        StoreError: there is no such run or attempt, another process is writing as this rank, or the folder cannot be written.
    """
    folder = absolute_path(path)
    if whole_number("rank", rank) == 0:
        raise ArgumentError("rank 0 starts a run with start_run(); join_run() is for the others")
    description = Description.read(folder)
    if not description.attempts or description.attempts[-1].attempt != attempt:
        attempts = ", ".join(str(each.attempt) for each in description.attempts) or "none"
        raise StoreError(f"attempt {attempt} is not the one that {folder} is in (its attempts: {attempts}): rank 0 starts it first")
    try:
        if is_locked(folder, rank):
            Lock(folder, rank).release()  # which says who has it
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, "files cannot be made in it", str(folder))
        return DiskWriter(folder, rank, description, flushing or Flushing())
    except OSError as error:
        raise StoreError(f"rank {rank} cannot write to {folder}: {error}") from error


def _folder(folder: Path | None, root: Path, exists: Existing) -> Path:
    if folder is None:
        return new_folder(root)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, not a folder that a run could be written to: give another path")
    if exists == "unique":
        return numbered_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if _is_empty(folder):
        return folder
    if not (folder / FILE).exists():
        raise StoreError(f"{folder} holds something that is no run: give another path, or exists='unique' to write beside it")
    if exists == "error":
        raise StoreError(
            f"{folder} holds a run already: exists='resume' continues it, 'unique' writes beside it, 'replace' deletes it; "
            "without a path each run has a new folder"
        )
    if exists == "replace" and not is_run(folder):
        raise StoreError(f"{folder} is not replaced: it does not look like a run that this sonde wrote")
    return folder


def _is_empty(folder: Path) -> bool:
    """Return whether *folder* is empty, but for files of a writer that was killed at its start."""
    return all(path.name.startswith((".lock-", f".{FILE}.")) for path in folder.iterdir())


def _begin(
    folder: Path, lock: Lock, exists: Existing, step: int | None, about: Mapping[str, Any], flushing: Flushing
) -> DiskWriter:
    if exists == "replace":
        _clear(folder)
    _remove_leftovers(folder)
    first_step = 0 if step is None else whole_number("step", step)
    description = Description()
    if (folder / FILE).exists():
        description = Description.read(folder)
        first_step = _next_step(folder) if step is None else first_step
    description = description.telling(about).begun(first_step)
    description.write(folder, sync=flushing.sync)
    return DiskWriter(folder, 0, description, flushing, lock)


def _remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files of killed writers of all ranks, also in families without a finished part."""
    remove_leftovers(folder, "")
    for family in [entry for entry in folder.iterdir() if entry.is_dir() and may_be_family(entry.name)]:
        of_parts = [found for path in family.iterdir() if (found := _LEFTOVER.match(path.name))]
        for rank in {int(found[1]) for found in of_parts}:
            if rank == 0 or not is_locked(folder, rank):
                remove_leftovers(family, prefix_of(rank))


def _clear(folder: Path) -> None:
    """Delete the run in *folder* and no other file. Its description goes last: after a kill half-way it can still be replaced."""
    for family in [entry for entry in folder.iterdir() if entry.is_dir()]:
        parts = parts_in(family)
        for part in parts:
            (family / part.name).unlink(missing_ok=True)
        remove_leftovers(family, "part-")
        if parts:
            with suppress(OSError):  # it holds something of the user's
                family.rmdir()
    for kept in [path for name in _KEPT for path in folder.glob(f"{name}/step-*") if path.is_dir() and not path.is_symlink()]:
        for name in _OF_STEP:
            (kept / name).unlink(missing_ok=True)
        with suppress(OSError):
            kept.rmdir()
            kept.parent.rmdir()
    for name in DOCUMENTS:
        for document in (folder / f"{name}.json", *folder.glob(f"{name}-r[0-9]*.json")):
            document.unlink(missing_ok=True)
    for written in folder.glob(PATTERN):
        written.unlink(missing_ok=True)
    for name in (SUMMARY, FILE):
        (folder / name).unlink(missing_ok=True)


def _next_step(folder: Path) -> int:
    from sonde.run.run import open_run

    return open_run(folder).last_step + 1
