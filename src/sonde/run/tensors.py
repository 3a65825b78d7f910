"""Tensors on disk: safetensors shards of bounded size with a JSON index, in the style of Hugging Face checkpoints.

::

    index.json                       format, version, records, weight_map: key -> shard
    tensors-00001-of-00003.safetensors

A key is ``<record>/<site>``, so that each tensor has a name of its own and one that people can read. Everything is written
to a folder beside the final one, which takes its place at the end: a reader sees all of it or none.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde.errors import StoreError, UnknownSiteError

__all__ = ["FORMAT", "SHARD_BYTES", "VERSION", "TensorStore", "open_tensors", "write_tensors"]

FORMAT = "sonde-tensors"
VERSION = 1
INDEX = "index.json"
SHARD_BYTES = 1 << 30


def write_tensors(
    path: Path,
    tensors: Mapping[str, Any],
    records: list[dict[str, Any]],
    *,
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write *tensors* (key to torch tensor on the CPU) and *records* (plain data) to the folder *path*.

    Raises:
        StoreError: *path* is a file, or a folder that holds something and *overwrite* is false or that is no tensor store.
    """
    if path.is_symlink() or path.is_file():
        raise StoreError(f"{path} is a file or a link, not a folder that could be written: give another path")
    if path.exists() and any(path.iterdir()):
        if not overwrite:
            raise StoreError(f"{path} holds something already: give another path, or overwrite=True to replace it")
        if not _is_store(path):
            raise StoreError(f"{path} holds something that is no folder of tensors, and is not replaced: give another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        _fill(building, tensors, records, shard_bytes)
        building.chmod(0o777 & ~_umask())
        _put_in_place(building, path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return path


def _is_store(path: Path) -> bool:
    try:
        index = json.loads((path / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(index, dict) and index.get("format") == FORMAT


def _put_in_place(building: Path, path: Path) -> None:
    """Move the new folder to *path*; if that fails, what was there before is there again."""
    if not path.exists():
        building.replace(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent)) / path.name
    path.replace(old)
    try:
        building.replace(path)
    except BaseException:
        old.replace(path)
        raise
    finally:
        shutil.rmtree(old.parent, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _fill(folder: Path, tensors: Mapping[str, Any], records: list[dict[str, Any]], shard_bytes: int) -> None:
    from safetensors.torch import save_file

    shards = list(_shards(tensors, shard_bytes))
    where: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        name = f"tensors-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in shard.items()}, folder / name, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, name)
        total += sum(tensor.nbytes for tensor in shard.values())
    index = {"format": FORMAT, "version": VERSION, "metadata": {"total_size": total}, "records": records, "weight_map": where}
    (folder / INDEX).write_text(json.dumps(index, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _shards(tensors: Mapping[str, Any], shard_bytes: int) -> Iterator[dict[str, Any]]:
    shard: dict[str, Any] = {}
    size = 0
    for key, tensor in tensors.items():
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[key] = tensor
        size += tensor.nbytes
    if shard:
        yield shard


class TensorStore(Mapping[str, Any]):
    """A folder of tensors, open for reading: a mapping from key to tensor, each read from disk when it is asked for.

    ``store["12/layers.3.mlp:output"]`` is one tensor and ``store.at("layers.3.mlp:output")`` all of one site in order;
    ``store.records`` says what each record was.
    """

    def __init__(self, path: Path, index: dict[str, Any]) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = index["records"]
        self._where: dict[str, str] = index["weight_map"]
        self._files: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._where:
            raise UnknownSiteError(f"{self.path} has no tensor {key!r}; {_listed(list(self))}")
        name = self._where[key]
        if name not in self._files:
            from safetensors import SafetensorError, safe_open

            try:
                self._files[name] = safe_open(self.path / name, framework="pt")
            except (OSError, SafetensorError) as error:
                raise StoreError(f"{self.path / name}, a shard of this folder, cannot be read: {error}") from None
        return self._files[name].get_tensor(key)

    def __contains__(self, key: object) -> bool:
        return key in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites there are tensors of, in order."""
        return tuple(dict.fromkeys(key.split("/", 1)[1] for key in self))

    def at(self, site: str) -> list[Any]:
        """Every tensor of *site*, in the order they were kept.

        Raises:
            UnknownSiteError: there is none.
        """
        found = [self[key] for key in self if key.split("/", 1)[1] == site]
        if not found:
            raise UnknownSiteError(f"{self.path} has no tensor of {site!r}; {_listed(self.sites)}")
        return found

    def __repr__(self) -> str:
        return f"TensorStore({str(self.path)!r}: {len(self)} tensors of {len(self.sites)} sites, {len(self.records)} records)"


def _listed(names: Sequence[str], most: int = 6) -> str:
    if not names:
        return "it has none"
    return f"it has {', '.join(names[:most])}{', ...' if len(names) > most else ''}"


def open_tensors(path: str | os.PathLike[str]) -> TensorStore:
    """Open a folder that ``Tracker.save`` wrote.

    Raises:
        StoreError: it is none, or was written by a newer sonde.
    """
    folder = Path(path)
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder} is not a folder of tensors: {INDEX} cannot be read ({error})") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise StoreError(f"{folder} is not a folder of tensors: its {INDEX} is of another kind")
    if isinstance(index.get("version"), int) and index["version"] > VERSION:
        raise StoreError(
            f"{folder} was written in version {index['version']} of the format; this sonde reads up to {VERSION}: update it"
        )
    needed = {"version": int, "records": list, "weight_map": dict}
    broken = [key for key, kind in needed.items() if not isinstance(index.get(key), kind)]
    if broken:
        raise StoreError(f"{folder} is not whole: its {INDEX} has no usable {' and no '.join(broken)}")
    return TensorStore(folder, index)
