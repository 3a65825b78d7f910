"""Tensors on disk: safetensors shards of bounded size with a JSON index.

::

    index.json                   format, version, complete, about, records; weight_map: key -> shard; checksums: key -> checksum
                                 of the tensor's bytes; shards: shard -> bytes, and checksum of its header
    tensors-00001.safetensors

A record is one value that was kept at one site; its structure is in the index, in the form of ``json_tree.py``. The key of a
tensor is ``<record>/<site><leaf>``: a name of its own, which people can read. The index is written last and takes its place
in one step: a reader sees the former store or the new one, never a part. A shard's header is checked when the shard is opened, and
a tensor when it is read for the first time, so that one damaged tensor is named and all others are read.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from sonde.errors import SiteError, StoreError, UnknownSiteError
from sonde.paths import absolute_path, is_inside
from sonde.run import form
from sonde.run.folder.checksum import checksum, file_checksum
from sonde.run.folder.files import is_leftover, open_regular, remove_leftovers
from sonde.run.folder.json_file import parse_json, read_bytes, write_json
from sonde.run.json_tree import decode
from sonde.site import Site
from sonde.suggest import nearest

FORMAT = "sonde-tensors"
VERSION = 3
INDEX = "index.json"
SHARD_BYTES = 1 << 30

_THREADS = min(4, os.cpu_count() or 1)
_LARGEST_HEADER = 100_000_000  # bytes, in the format
_LARGE = 1 << 20  # bytes of a tensor whose checksum is worth another thread's time

_SHARD = re.compile(r"tensors-(\d{5,})\.safetensors")

Entry = tuple[dict[str, Any], Mapping[str, Any]]
"""A record as plain data, and its tensors by site and leaf."""


# Writing


class TensorWriter:
    """Append records with their tensors to a folder; at most one shard is held in memory.

    Each whole shard is entered in the index at once, so that a program that was killed resumes behind it. A shard ends
    before it would grow beyond *shard_bytes*; a record larger than that has a shard of its own.

    Args:
        folder: an existing folder.
        about: plain data about the whole store.
        resume: append behind the last whole shard of the store in *folder*.
        at_once: enter nothing in the index before ``close``.

    Attributes:
        written: the number of records in whole shards; a program that resumes goes on with the record of this number.

    Raises:
        StoreError: *resume* is true and the folder holds no store that can be read.
    """

    def __init__(
        self,
        folder: Path,
        about: dict[str, Any] | None = None,
        *,
        shard_bytes: int = SHARD_BYTES,
        resume: bool = False,
        at_once: bool = False,
    ) -> None:
        self.folder = folder
        self._shard_bytes = shard_bytes
        self._at_once = at_once
        self._index = _read_index(folder) if resume else _new_index(about or {})
        self.written = len(self._index["records"])
        self._records: list[dict[str, Any]] = []
        self._tensors: dict[str, Any] = {}
        self._size = 0
        if resume:
            self._index["complete"] = False
            self.remove_former()
        self._next_shard = max(map(_number_of, _shards_in(folder)), default=0) + 1

    def add(self, record: dict[str, Any], tensors: Mapping[str, Any]) -> None:
        """Append *record*, with its *tensors* (torch tensors of any device and layout) by site and leaf.

        The tensors are borrowed until the shard is written.
        """
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if self._tensors and self._size + size > self._shard_bytes:
            self.flush()
        self._records.append(record)
        self._tensors |= tensors
        self._size += size

    def flush(self) -> None:
        """Write the records that are held in memory, as a shard."""
        from safetensors.torch import save_file

        if self._tensors:
            storages: set[int] = set()
            name = f"tensors-{self._next_shard:05d}.safetensors"
            as_pairs = [key for key, tensor in self._tensors.items() if needs_pairs(tensor)]
            ready = {key: writable(tensor, storages) for key, tensor in self._tensors.items()}
            with ThreadPoolExecutor(_THREADS) as pool:  # the checksums are formed while the file is written
                large = [key for key, tensor in ready.items() if tensor.nbytes >= _LARGE]
                made = {key: pool.submit(_checksum, ready[key]) for key in large}
                save_file(ready, self.folder / name, metadata={"format": "pt"})
                self._index["checksums"] |= {
                    key: made[key].result() if key in made else _checksum(tensor) for key, tensor in ready.items()
                }
            self._next_shard += 1
            self._index["weight_map"] |= dict.fromkeys(ready, name)
            self._index["as_pairs"] += as_pairs
            file = self.folder / name
            self._index["shards"][name] = {"bytes": file.stat().st_size, "header": _header_checksum(file)}
        self._index["records"] += self._records
        self._records, self._tensors, self._size = [], {}, 0
        if not self._at_once:
            self.write_index()
        self.written = len(self._index["records"])

    def close(self) -> None:
        """Write the last shard, and mark the store complete."""
        self.flush()
        self._index["complete"] = True
        self.write_index()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()

    def remove_former(self) -> None:
        """Delete the shards that the index does not name: those of a former store, or of a writer that was killed."""
        for name in _shards_in(self.folder):
            if name not in self._index["shards"]:
                with suppress(OSError):  # it stays for the next writer to delete
                    (self.folder / name).unlink()

    def write_index(self) -> None:
        """Let the index name what was written so far."""
        write_json(self.folder / INDEX, self._index, sync=False)


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

    Args:
        about: plain data about the whole store.
        overwrite: replace a store that is there.
        mode, parents, exist_ok: of ``Path.mkdir``.

    Raises:
        StoreError: *path* is a file, holds a store and *overwrite* is false, holds anything else, or cannot be written.
    """
    path = absolute_path(path)
    former = _shards_to_replace(path, overwrite, parents=parents, exist_ok=exist_ok)
    with _folder(path, mode):
        writer = TensorWriter(path, about, shard_bytes=shard_bytes, at_once=True)
        try:
            if former is None:  # so that a program that is killed leaves a folder that is known to be a store
                writer.write_index()
            for record, tensors in entries:
                writer.add(record, tensors)
            writer.close()
        except BaseException:
            kept = set() if former is None else {INDEX, *former}
            for name in {*_shards_in(path), INDEX} - kept:
                (path / name).unlink(missing_ok=True)
            raise
        writer.remove_former()
        remove_leftovers(path, INDEX)
    return path


def _shards_to_replace(path: Path, overwrite: bool, *, parents: bool, exist_ok: bool) -> set[str] | None:
    """The shards of the store at *path*, which is to be replaced; None if there is no store."""
    if not path.exists():
        if not parents and not path.parent.exists():
            raise StoreError(f"{path.parent} does not exist, and parents=False says not to make it")
        return None
    if not path.is_dir():
        raise StoreError(f"{path} is a file, not a folder that could be written: give another path")
    if not exist_ok:
        raise StoreError(f"{path} exists, and exist_ok=False says that it must not")
    held = {file.name for file in path.iterdir() if not is_leftover(file)}
    if not held:
        return None
    try:
        ours = parse_json(read_bytes(path / INDEX), INDEX)[0].get("format") == FORMAT
    except (FileNotFoundError, StoreError):
        ours = False
    shards = set(_shards_in(path))
    if not ours or held - shards - {INDEX}:
        raise StoreError(f"{path} holds something else, which is not replaced: give another path")
    if not overwrite:
        raise StoreError(f"{path} holds saved tensors already: give another path, or overwrite=True to replace them")
    return shards


@contextmanager
def _folder(path: Path, mode: int) -> Iterator[None]:
    """Make the folder *path* and those above it; take away what was made if the block fails."""
    from safetensors import SafetensorError

    made: list[Path] = []
    try:
        for folder in reversed([above for above in (path, *path.parents) if not above.exists()]):
            folder.mkdir(mode if folder == path else 0o777)
            made.append(folder)
        yield
    except BaseException as error:
        for folder in reversed(made):
            with suppress(OSError):  # another program has put something there
                folder.rmdir()
        if isinstance(error, OSError | SafetensorError):
            raise StoreError(f"{path} cannot be written: {error}. Nothing was changed") from error
        raise


def _new_index(about: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "complete": False,
        "about": about,
        "records": [],
        "weight_map": {},
        "checksums": {},
        "as_pairs": [],
        "shards": {},
    }


def _shards_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if _SHARD.fullmatch(file.name)]


def _number_of(shard: str) -> int:
    found = _SHARD.fullmatch(shard)
    return int(found[1]) if found is not None else 0


def writable(tensor: Any, storages: set[int]) -> Any:
    """*tensor* on the CPU, dense, contiguous, in memory that no other tensor of the shard shares; safetensors needs it so."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    if needs_pairs(tensor):
        tensor = tensor.contiguous().unsqueeze(-1).view(tensor.real.dtype)
    tensor = tensor.contiguous()
    memory = tensor.untyped_storage().data_ptr()
    if memory in storages:
        tensor = tensor.clone()
        memory = tensor.untyped_storage().data_ptr()
    storages.add(memory)
    return tensor


def _checksum(tensor: Any) -> str:
    """The checksum of the bytes of *tensor*, which is contiguous and on the CPU, of whatever type."""
    if not tensor.nbytes:
        return checksum(b"")
    return checksum((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))


def _header_checksum(file: Path) -> str:
    """The checksum of the header of a shard."""
    return file_checksum(file, first=_header_of(file))


def _header_of(file: Path) -> int:
    """The bytes of the header of a safetensors *file*: eight with the length of the JSON behind them, and this JSON.

    Raises:
        OSError: there is no regular file.
        StoreError: the header is larger than the format allows, or than the file.
    """
    with open_regular(file) as opened:
        length, size = int.from_bytes(opened.read(8), "little"), os.fstat(opened.fileno()).st_size
    if length > _LARGEST_HEADER or 8 + length > size:
        raise StoreError(f"{file} cannot be read: a header of {length:,} bytes is beyond the end of the file, or of the format")
    return 8 + length


def write_tensor_file(file: Path, tensors: Mapping[str, Any]) -> tuple[list[str], str]:
    """Write *tensors* to one file; return the names of those that are written as pairs of real numbers, and the file's checksum.

    Raises:
        StoreError: the file cannot be written, as on a full disk.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    storages: set[int] = set()
    try:
        save_file({name: writable(tensor, storages) for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise StoreError(f"{file.name} cannot be written: {error}") from None
    return [name for name, tensor in tensors.items() if needs_pairs(tensor)], file_checksum(file)


def read_tensor_file(file: Path, pairs: Collection[str], expected: str | None) -> dict[str, Any]:
    """Return the tensors of a file of :func:`write_tensor_file`, which returned *pairs* and the *expected* checksum, if known.

    Raises:
        StoreError: the file cannot be read, leads out of its folder, or is not as it was written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not is_inside(file.parent, file):
        raise StoreError(f"{file} is a link out of this folder, and is not followed")
    try:
        _header_of(file)
        is_sound = expected is None or file_checksum(file) == expected
        found = load_file(file) if is_sound else {}
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from None
    if not is_sound:
        raise StoreError(f"{file} is damaged, or was changed since it was written: its checksum does not fit")
    try:
        return {key: _joined_pairs(tensor) if key in pairs else tensor for key, tensor in found.items()}
    except StoreError as error:
        raise StoreError(f"{file} is not as it was written: {error}") from None


def needs_pairs(tensor: Any) -> bool:
    """Whether *tensor* is complex of a type that safetensors lacks, and is written as pairs of real numbers."""
    return bool(tensor.is_complex() and tensor.element_size() != 8)


def _joined_pairs(tensor: Any) -> Any:
    """Return pairs of real numbers, along the last axis, as complex numbers. This room has no torch to name their type."""
    joined = (tensor.flatten()[:0] * 1j).dtype
    if not tensor.is_floating_point() or joined.itemsize != 2 * tensor.element_size() or tensor.shape[-1:] != (2,):
        raise StoreError(f"a tensor of {tensor.dtype} of the shape {tuple(tensor.shape)} holds no pairs of real numbers")
    return tensor.view(joined).squeeze(-1)


# Reading


class TensorStore(Mapping[str, Any]):
    """A folder of tensors, open for reading: a mapping from key to tensor.

    Tensors are mapped into memory; the first access to one reads it whole and compares its checksum.
    ``store["000012/layers.3.mlp:output"]``
    is one tensor, ``store.at("layers.3.mlp")`` every tensor of a module in the order they were kept, and ``store.value(12)``
    the value of record 12, in its structure.

    Attributes:
        path: the folder.
        about: plain data about the whole store, such as the kind of probe that wrote it.
        records: plain data about each record: its site, its module, when it was kept.
        complete: false if the writer did not finish; the records of the shards it finished are there.
    """

    def __init__(self, path: Path, index: dict[str, Any]) -> None:
        self.path = path
        self.about: dict[str, Any] = index["about"]
        self.records: list[dict[str, Any]] = index["records"]
        self.complete: bool = index["complete"]
        self._shard_of: dict[str, str] = index["weight_map"]
        self._checksum_of: dict[str, str] = index["checksums"]
        self._shards: dict[str, dict[str, Any]] = index["shards"]
        self._checked: set[str] = set()
        self._as_pairs = set(index["as_pairs"])
        self._open: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._shard_of:
            raise UnknownSiteError(f"{self.path} has no tensor {key!r}. {nearest(key, self)}")
        from safetensors import SafetensorError

        name = self._shard_of[key]
        try:
            tensor = self._shard(name).get_tensor(key)
            if key not in self._checked:
                if _checksum(tensor) != self._checksum_of[key]:
                    raise StoreError(f"the tensor {key!r} in {self.path / name} is damaged: the checksum of its bytes does not fit")
                self._checked.add(key)
            return _joined_pairs(tensor) if key in self._as_pairs else tensor
        except (OSError, SafetensorError, RuntimeError) as error:
            raise StoreError(f"{self.path / name}, a shard of this folder, cannot be read: {error}") from None

    def _shard(self, name: str) -> Any:
        """The open shard *name*."""
        if name not in self._open:
            from safetensors import safe_open

            file = self.path / name
            if not is_inside(self.path, file):
                raise StoreError(f"{file} is a link out of this folder, and is not followed")
            size, wanted = file.stat().st_size, self._shards[name]["bytes"]
            if size != wanted:
                raise StoreError(f"{file} is not whole: it has {size:,} bytes of {wanted:,}")
            if _header_checksum(file) != self._shards[name]["header"]:
                raise StoreError(f"{file} is damaged: the checksum of its header does not fit")
            self._open[name] = safe_open(file, framework="pt")
        return self._open[name]

    def __contains__(self, key: object) -> bool:
        return key in self._shard_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._shard_of)

    def __len__(self) -> int:
        return len(self._shard_of)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that have tensors, in order."""
        return tuple(dict.fromkeys(key.split("/", 1)[1] for key in self))

    def at(self, site: str | Site) -> list[Any]:
        """Every tensor of a module, of one of its ports or of one leaf, in the order they were kept.

        Raises:
            UnknownSiteError: the store has no tensor there; the message names the nearest.
            SiteError: the text is the site of one module and the name of another.
        """
        held: dict[str, Site] = {}
        for text in self.sites:
            with suppress(SiteError):
                held[text] = Site.parse(text)
        aliases = self.about.get("aliases")
        others = aliases if isinstance(aliases, dict) else {}
        asked, whole_module = Site.asked(site, held.values(), lambda path: str(others.get(path, path)))
        wanted = {text for text, each in held.items() if asked.covers(each, whole_module=whole_module)}
        if not wanted:
            names = [each.at("").name if whole_module and ":" not in str(site) else text for text, each in held.items()]
            raise UnknownSiteError(f"{self.path} has no tensor of {str(site)!r}. {nearest(str(site), names)}")
        return [self[key] for key in self if key.split("/", 1)[1] in wanted]

    def value(self, record: int) -> Any:
        """The value of a record, in its structure.

        Tuples, lists, dicts and numbers come back as they were, named tuples and dataclasses as dicts of their fields, and
        what could not be written as its description in ``<...>``.

        Raises:
            StoreError: the index names a tensor that is not there, or a shard is missing or broken.
        """
        return decode(self.records[record].get("value"), self._of_value)

    def _of_value(self, key: str) -> Any:
        if key not in self:
            raise StoreError(f"{self.path} is not whole: its {INDEX} names a tensor {key!r} and no shard that holds it")
        return self[key]

    def __repr__(self) -> str:
        state = "" if self.complete else ", not complete"
        return (
            f"TensorStore({str(self.path)!r}: {len(self)} tensors of {len(self.sites)} sites, {len(self.records)} records{state})"
        )


def open_tensors(path: str | os.PathLike[str]) -> TensorStore:
    """Open a folder that ``Tracker.save`` or ``Recorder.save`` wrote. Nothing in it is executed: it holds JSON and safetensors.

    Raises:
        StoreError: the folder is no store of tensors, is not whole, or was written in another version of the format.
    """
    folder = absolute_path(path)
    index = _read_index(folder)
    if not index["complete"] and not index["records"]:
        raise StoreError(f"{folder} is empty: the program that wrote it did not finish")
    return TensorStore(folder, index)


def _read_index(folder: Path) -> dict[str, Any]:
    """The index of the store in *folder*, with the types it must have."""
    try:
        index, fits = parse_json(read_bytes(folder / INDEX), INDEX, (INDEX,))
    except (FileNotFoundError, StoreError) as error:
        raise StoreError(f"{folder} is not a folder of tensors: {INDEX} cannot be read ({error})") from None
    if index.get("format") != FORMAT:
        raise StoreError(f"{folder} is not a folder of tensors: its {INDEX} is of another kind")
    version = index.get("version")
    if version != VERSION:
        cure = "update sonde" if isinstance(version, int) and version > VERSION else "save again with this sonde"
        raise StoreError(f"{folder} was written in version {version} of the format, and this sonde reads {VERSION}: {cure}")
    try:
        _INDEX(index, "")
        for key, name in index["weight_map"].items():  # a name, and no path: nothing outside the folder is ever read
            if "/" not in key or name not in index["shards"] or key not in index["checksums"]:
                raise StoreError(f"{key!r} is in {name!r}, which is no shard of this folder")
    except StoreError as error:
        raise StoreError(f"{folder} is not whole: in its {INDEX}, {error}") from None
    if not fits:
        raise StoreError(f"{folder / INDEX} is damaged or was changed after it was written: its checksum does not fit")
    return index


def _shard_name(held: Any, where: str) -> str:
    return held if isinstance(held, str) and _SHARD.fullmatch(held) else form.refuse(where, held, "the name of a shard")


_INDEX = form.members(
    complete=form.flag,
    about=form.mapping,
    records=form.listed(form.mapping),
    weight_map=form.named(form.text),
    checksums=form.named(form.text),
    as_pairs=form.listed(form.text),
    shards=form.named(form.members(bytes=form.count, header=form.text), _shard_name),
)
