"""Write a store of tensors: records all at once, or rows shard by shard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sonde.errors import ArgumentError, StoreError
from sonde.paths import absolute_path
from sonde.run.folder.files import appearing, descriptor_of, remove_leftovers
from sonde.run.folder.json_file import json_text
from sonde.run.folder.lock import Lock, is_locked
from sonde.run.tensors.index import (
    INDEX,
    Index,
    Journal,
    Line,
    all_shards_in,
    is_store,
    journal_name,
    journals_in,
    others_in,
    place_of,
    shard_name,
    shards_in,
)
from sonde.run.tensors.shards import check_size
from sonde.run.tensors.tensor_files import header_checksum, tensor_checksum, writable

SHARD_BYTES = 1 << 30

_THREADS = min(4, os.cpu_count() or 1)
_LARGE = 1 << 20  # bytes of a tensor whose checksum is worth another thread's time

Entry = tuple[dict[str, Any], Mapping[str, Any]]
"""A record as plain data, and its tensors by site and leaf."""


# All at once


def write_tensors(
    path: str | os.PathLike[str],
    entries: Iterable[Entry],
    about: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
    mode: int = 0o777,
    parents: bool = True,
    exist_ok: bool = True,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write *entries* to the folder *path*, all of them or nothing, and return *path*.

    >>> import sonde, tempfile, torch
    >>> from sonde.run import write_tensors
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with sonde.track(torch.nn.Identity(), grad=False) as tracker:
    ...         pass
    ...     write_tensors(f"{folder}/none", []).name
    'none'

    Args:
        about: plain data about the whole store.
        overwrite: replace a store that is there.
        mode, parents, exist_ok: of ``Path.mkdir``.
        shard_bytes: a shard ends before it would grow beyond; an entry larger than that has a shard of its own.

    Raises:
        StoreError: *path* is a file, holds a store and *overwrite* is false, holds anything else, or cannot be written.
    """
    path = absolute_path(path)
    former = _files_to_replace(path, overwrite, parents=parents, exist_ok=exist_ok)
    with _folder(path, mode):
        index = Index("records", about or {}, False, [])
        try:
            if former is None:  # so that a program that is killed leaves a folder that is known to be a store
                index.write(path)
            first = max((place_of(name)[1] for name in former or ()), default=0) + 1
            for number, (records, tensors) in enumerate(_in_shards(entries, shard_bytes), first):
                index.shards.append(_write_shard(path, shard_name(None, number), tensors, {"records": records}))
            index.complete = True
            index.write(path)
        except BaseException:
            kept = set() if former is None else {INDEX, *former}
            for name in {*all_shards_in(path), INDEX} - kept:
                (path / name).unlink(missing_ok=True)
            raise
        _remove(path, former or ())
        for prefix in (INDEX, "tensors-"):
            remove_leftovers(path, prefix)
    return path


def _in_shards(entries: Iterable[Entry], most: int) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Yield the records and tensors of one shard after the other; one shard is held in memory."""
    records: list[dict[str, Any]] = []
    tensors: dict[str, Any] = {}
    total = 0
    for record, held in entries:
        size = sum(tensor.numel() * tensor.element_size() for tensor in held.values())
        if tensors and total + size > most:
            yield records, tensors
            records, tensors, total = [], {}, 0
        records.append(record)
        tensors |= held
        total += size
    if records:
        yield records, tensors


def _files_to_replace(path: Path, overwrite: bool, *, parents: bool, exist_ok: bool) -> list[str] | None:
    """The shards and journals of the store at *path*, which is to be replaced; None if there is no store."""
    if not path.exists():
        if not parents and not path.parent.exists():
            raise StoreError(f"{path.parent} does not exist, and parents=False says not to make it")
        return None
    if not path.is_dir():
        raise StoreError(f"{path} is a file, not a folder that could be written: give another path")
    if not exist_ok:
        raise StoreError(f"{path} exists, and exist_ok=False says that it must not")
    if _is_empty(path):
        return None
    if not overwrite:
        raise StoreError(f"{path} holds saved tensors already: give another path, or overwrite=True to replace them")
    if is_locked(path):
        raise StoreError(f"{path} is being written by another program: end it, or give another path")
    return [*all_shards_in(path), *journals_in(path)]


def _is_empty(path: Path) -> bool:
    """Whether the folder *path* holds nothing, and no store.

    Raises:
        StoreError: it holds something else.
    """
    others, ours = others_in(path), is_store(path)
    if others or (not ours and ((path / INDEX).exists() or all_shards_in(path))):
        raise StoreError(f"{path} holds something else, which is not replaced: give another path")
    return not ours


@contextmanager
def _folder(path: Path, mode: int) -> Iterator[None]:
    """Make the folder *path* and those above it; take away what was made if the block fails."""
    made: list[Path] = []
    try:
        with _writing(path, "Nothing was changed"):
            for folder in reversed([above for above in (path, *path.parents) if not above.exists()]):
                with nullcontext() if folder == path else suppress(FileExistsError):  # another rank makes folders above, too
                    folder.mkdir(mode if folder == path else 0o777)
                    made.append(folder)
            yield
    except BaseException:
        for folder in reversed(made):
            with suppress(OSError):  # another program has put something there
                folder.rmdir()
        raise


@contextmanager
def _writing(path: Path, left: str) -> Iterator[None]:
    """Raise a :class:`StoreError` where *path* cannot be written, as on a full disk; it ends in what is *left*."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{path} cannot be written: {error}. {left}") from error


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with suppress(OSError):  # it stays for the next writer to delete
            (folder / name).unlink()


# Shard by shard


class RowWriter:
    """Writes rows to a folder, one whole shard at a time. Used by one thread.

    >>> import sonde, tempfile, torch
    >>> from pathlib import Path
    >>> from sonde.run import RowWriter, settle_rows, written_rows
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = RowWriter(Path(folder) / "rows", None)
    ...     rows.write({"0:output": torch.ones(2, 3)}, items=(0, 2), about={})
    ...     rows.tell({"model": "net"})
    ...     rows.close()
    ...     sonde.open_tensors(f"{folder}/rows")["0:output"].shape
    (2, 3)

    A shard that :meth:`write` has written stays, whatever happens to the program: its line is in the journal. The same columns
    make the same file, byte for byte.

    Args:
        folder: where the store is, or will be made.
        about: plain data about the whole store. It stands in the index before the first shard. None, where one is continued: what
            its index says.
        rank: the rank, in a program of several processes that each write shards of their own to *folder*; the first of them
            writes the index, and the lines of all whose writers have closed are put into it when that one closes.
        resume: go on behind the last whole shard of the store in *folder*. What was left of a further one is deleted.
        sync: wait after each shard until it is on the disk, so that power failure is covered as well.

    Attributes:
        folder: as given.
        about: what the index says about the whole store.
        shards: the lines of the whole shards that this rank, or the only writer, has written, also before.

    Raises:
        StoreError: *folder* holds something else, or a store and *resume* is false, or none that can be continued; or another
            process writes to it.
    """

    def __init__(
        self, folder: Path, about: Mapping[str, Any] | None, *, rank: int | None = None, resume: bool = False, sync: bool = False
    ) -> None:
        self.folder = folder
        self._rank = rank
        self._sync = sync
        self._journal = folder / journal_name(rank)
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(folder, rank or 0)
        try:
            with self._writing():
                self.about: dict[str, Any] = dict(about or {})
                self.shards = self._resumed(is_told=about is not None) if resume else self._begun()
        except BaseException:
            self._lock.release()
            raise

    def write(self, columns: Mapping[str, Any], *, items: tuple[int, int], about: Mapping[str, Any]) -> None:
        """Write one shard.

        Args:
            columns: torch tensors by the names of the columns, with as many rows each, along the first axis. They are borrowed.
            items: the first and the last of the items that the rows belong to.
            about: plain data about the shard.

        Raises:
            StoreError: the shard cannot be written, as on a full disk. Those before it stay, and it can be written again.
            ArgumentError: the columns are not of one length.
        """
        lengths = {name: len(column) if column.ndim else None for name, column in columns.items()}
        rows, *others = {*lengths.values()} or {None}
        if rows is None or others:
            said = ", ".join(f"{name!r} has {many}" for name, many in lengths.items())
            raise ArgumentError(f"the columns of a shard need one number of rows: {said or 'there are none'}")
        self._check_open()
        name = shard_name(self._rank, place_of(self.shards[-1]["shard"])[1] + 1 if self.shards else 1)
        more = {"rows": rows, "items": tuple(items), "about": dict(about)}
        with self._writing():
            line = _write_shard(self.folder, name, columns, more, sync=self._sync)
            try:
                self._append(line)
            except BaseException:
                _remove(self.folder, [name])
                raise
        self.shards.append(line)

    def tell(self, about: Mapping[str, Any]) -> None:
        """Let the index say *about* of the whole store, which has no shards yet.

        Raises:
            StoreError: the index cannot be written.
        """
        self.about = dict(about)
        with self._writing():
            Index("rows", self.about, False, []).write(self.folder, sync=self._sync)

    def close(self, *, complete: bool = True, about: Mapping[str, Any] | None = None) -> None:
        """Put the lines of the journals into the index, and end writing. Idempotent.

        Args:
            complete: whether the store is whole now.
            about: what stands in the index about the whole store from now on.

        Raises:
            StoreError: the index cannot be written. The shards stay, and the store can be continued.
        """
        if not self._lock.is_held:
            return
        try:
            with self._writing():
                if self._is_first:
                    self._finish(complete, about)
        finally:
            self._lock.release()

    @property
    def _is_first(self) -> bool:
        return not self._rank

    def _check_open(self) -> None:
        if not self._lock.is_held:
            raise StoreError(f"{self.folder} is not written any more: this writer was closed")

    def _writing(self) -> Any:
        return _writing(self.folder, "The shards that are whole stay")

    def _begun(self) -> list[Line]:
        if self._is_first:
            if not _is_empty(self.folder):
                raise StoreError(f"{self.folder} holds a store of tensors already: continue it with resume=True, or give another")
            self.tell(self.about)
        elif self._journal.exists() or shards_in(self.folder, self._rank):
            raise StoreError(f"{self.folder} holds shards of rank {self._rank} already: continue them with resume=True")
        return []

    def _resumed(self, *, is_told: bool) -> list[Line]:
        index = Index.read(self.folder)
        if index.holds != "rows":
            raise StoreError(f"{self.folder} holds records, which are written all at once: there is nothing to continue")
        journal = Journal.read(self._journal, "rows")
        if journal.damage:
            raise StoreError(f"{self.folder} cannot be continued: {journal.damage[0]}. open_tensors() reads what is whole")
        if not is_told:
            self.about = index.about
        whole = Index("rows", self.about, False, index.shards)
        whole.add(journal.lines)
        mine = [line for line in whole.shards if place_of(line["shard"])[0] == (-1 if self._rank is None else self._rank)]
        for line in mine:
            check_size(self.folder, line)
        if self._journal.exists():
            os.truncate(self._journal, journal.size)
        _remove(self.folder, {*shards_in(self.folder, self._rank)} - {line["shard"] for line in mine})
        remove_leftovers(self.folder, shard_name(self._rank, 0).replace("00000.safetensors", "[0-9]"))
        if self._is_first:
            remove_leftovers(self.folder, INDEX)
            Index("rows", self.about, False, index.shards).write(self.folder, sync=self._sync)
        return mine

    def _append(self, line: Line) -> None:
        """Append *line* to the journal, whole or not at all."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)  # nothing is written behind a link
        with os.fdopen(descriptor_of(self._journal, flags), "ab") as file:
            size = file.tell()
            try:
                file.write(f"{json_text(line, self._journal.name, indent=None)}\n".encode())
                file.flush()
                if self._sync:
                    os.fsync(file.fileno())
            except BaseException:
                file.truncate(size)
                raise

    def _finish(self, complete: bool, about: Mapping[str, Any] | None) -> None:
        index = Index.read(self.folder)
        index.complete = complete
        index.about = index.about if about is None else dict(about)
        ended = [name for name, rank in journals_in(self.folder).items() if not rank or not is_locked(self.folder, rank)]
        journals = {name: Journal.read(self.folder / name, "rows") for name in ended}
        for journal in journals.values():
            index.add(journal.lines)
        index.write(self.folder, sync=self._sync)
        _remove(self.folder, [name for name, journal in journals.items() if not journal.damage])


def written_rows(folder: Path) -> Index:
    """Return the index of the store of rows in *folder*, with the lines of all writers, also of those that have not closed.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from sonde.run import RowWriter, written_rows
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     RowWriter(Path(folder), None).write({"0:output": torch.ones(2, 3)}, items=(0, 2), about={})
    ...     type(written_rows(Path(folder))).__name__
    'Index'

    Raises:
        StoreError: there is none.
    """
    Index.read(folder)
    journals = [Journal.read(folder / name, "rows") for name in journals_in(folder)]
    index = Index.read(folder)  # once more: a writer that closes moves the lines from its journal to the index
    for journal in journals:
        index.add(journal.lines)
    return index


def settle_rows(folder: Path) -> None:
    """Let other writers go on with the store of rows in *folder*: the index gets the lines of the journals of all before, and
    nothing is left of shards that these have not finished.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from sonde.run import RowWriter, settle_rows, written_rows
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = RowWriter(Path(folder), None)
    ...     rows.write({"0:output": torch.ones(2, 3)}, items=(0, 2), about={})
    ...     rows.close()
    ...     settle_rows(Path(folder))
    ...     type(written_rows(Path(folder))).__name__
    'Index'

    Raises:
        StoreError: there is no such store, or a process writes to it.
    """
    ranks = {place_of(name)[0] for name in all_shards_in(folder)} | {
        -1 if rank is None else rank for rank in journals_in(folder).values()
    }
    for rank in sorted(ranks, reverse=True):  # the first puts the lines of all into the index
        RowWriter(folder, None, rank=None if rank < 0 else rank, resume=True).close(complete=False)
    writer = RowWriter(folder, None, resume=True)
    remove_leftovers(folder, "tensors-")
    writer.close(complete=False)


def remove_tensors(folder: Path) -> None:
    """Delete the store in *folder*, and no other file. Its index goes last: after a kill half-way it can be deleted again.

    >>> import sonde, tempfile, torch
    >>> from pathlib import Path
    >>> from sonde.run import holds_tensors, remove_tensors
    >>> with sonde.track(torch.nn.Identity()) as tracker, tempfile.TemporaryDirectory() as folder:
    ...     path = tracker.save(f"{folder}/seen")
    ...     remove_tensors(Path(path))
    ...     holds_tensors(path)
    False

    Raises:
        StoreError: *folder* holds something else, or a process writes to it.
    """
    if not folder.exists() or _is_empty(folder):
        return
    locks = []
    try:
        for rank in {0, *(rank or 0 for rank in journals_in(folder).values())}:
            locks.append(Lock(folder, rank))
        for name in [*all_shards_in(folder), *journals_in(folder), INDEX]:
            (folder / name).unlink(missing_ok=True)
        for prefix in (INDEX, "tensors-"):
            remove_leftovers(folder, prefix)
    finally:
        for lock in locks:
            lock.release()


def _write_shard(folder: Path, name: str, tensors: Mapping[str, Any], more: Line, *, sync: bool = False) -> Line:
    """Write one shard, which appears whole or not at all, and return its line; *more* is what it says of the content."""
    from safetensors.torch import save_file

    storages: set[int] = set()
    ready = {key: writable(tensor, storages) for key, tensor in tensors.items()}
    with ThreadPoolExecutor(_THREADS) as pool, appearing(folder / name, sync=sync) as temporary:
        large = {key: pool.submit(tensor_checksum, held) for key, held in ready.items() if held.nbytes >= _LARGE}
        apart = temporary.with_name(f"{temporary.stem}-{temporary.suffix}")  # for a file of safetensors' own, which a kill leaves
        apart.mkdir(exist_ok=True)
        try:
            save_file(ready, apart / name, metadata={"format": "pt"})  # while the checksums are formed
            (apart / name).replace(temporary)
        finally:
            shutil.rmtree(apart, ignore_errors=True)
        sums = {key: large[key].result() if key in large else tensor_checksum(held) for key, held in ready.items()}
        size, header = temporary.stat().st_size, header_checksum(temporary)
    written = {key: (sums[key], str(held.dtype).removeprefix("torch."), tuple(held.shape)) for key, held in tensors.items()}
    return {"shard": name, "bytes": size, "header": header, "tensors": written, **more}
