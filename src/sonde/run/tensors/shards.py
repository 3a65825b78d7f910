"""Open shards of a store of tensors: map each into memory, and check it against its line."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

from sonde.errors import StoreError
from sonde.run.folder.files import within
from sonde.run.tensors.index import Line
from sonde.run.tensors.sample import sample_of
from sonde.run.tensors.tensor_files import header_checksum, header_size, is_pairs, joined_pairs, tensor_checksum
from sonde.words import shape_text

_MOST = 8_192  # shards that are mapped at once: the system allows a process 65,530 mappings


class Shards:
    """The shards of one folder, each mapped into memory when it is first asked for.

    Args:
        folder: where they are.
        verify: compare the checksum of each tensor when it is read for the first time.
    """

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        self.verify = verify
        self._checked: set[tuple[str, str]] = set()
        self._open: OrderedDict[str, tuple[Any, dict[str, Any]]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Return this without what is mapped, for another process."""
        return self.__dict__ | {"_open": OrderedDict()}

    def tensor(self, line: Line, key: str) -> Any:
        """Return the tensor *key* of the shard of this *line*. It is mapped: what is written into it is read by the next who asks.

        Raises:
            StoreError: the shard is not there, not whole, damaged, or not what its line says; the message says which.
        """
        from safetensors import SafetensorError

        name = line["shard"]
        try:
            shard, held = self._shard(line)
            if key not in held:
                held[key] = self._checked_tensor(line, key, shard.get_tensor(key))
            return held[key]
        except (OSError, SafetensorError, RuntimeError) as error:
            raise StoreError(f"{self.folder / name}, a shard of this folder, cannot be read: {error}") from None

    def _checked_tensor(self, line: Line, key: str, read: Any) -> Any:
        name = line["shard"]
        expected, dtype, shape = line["tensors"][key]
        if self.verify and expected is not None and (name, key) not in self._checked:
            if tensor_checksum(read) != expected:
                raise StoreError(f"the tensor {key!r} in {self.folder / name} is damaged: the checksum of its bytes does not fit")
            self._checked.add((name, key))
        tensor = joined_pairs(read) if is_pairs(dtype) else read
        if (str(tensor.dtype), tuple(tensor.shape)) != (f"torch.{dtype}", shape):
            kind = f"{tensor.dtype} of the shape {shape_text(tensor.shape)}"
            raise StoreError(f"the tensor {key!r} in {self.folder / name} is {kind}, which its index does not say")
        return tensor

    def _shard(self, line: Line) -> tuple[Any, dict[str, Any]]:
        """The open shard of this *line*, and those of its tensors that were read."""
        name = line["shard"]
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        from safetensors import safe_open

        self._open[name] = safe_open(self._file(line), framework="pt"), {}
        if len(self._open) > _MOST:
            self._open.popitem(last=False)
        return self._open[name]

    def sample(self, line: Line, key: str) -> dict[str, Any]:
        """Return a few values of the tensor *key* of the shard of this *line*: see :func:`~sonde.run.tensors.sample.sample_of`.

        Raises:
            StoreError: see there, and :meth:`tensor`.
        """
        try:
            file = self._file(line)
            return sample_of(file, header_size(file), key, *line["tensors"][key])
        except OSError as error:
            raise StoreError(f"{self.folder / line['shard']}, a shard of this folder, cannot be read: {error}") from None

    def _file(self, line: Line) -> Path:
        """The shard of this *line*, which lies in this folder, and is as long, and begins, as it was written."""
        file = within(self.folder, self.folder / line["shard"])
        check_size(self.folder, line)
        if line["header"] is not None and header_checksum(file) != line["header"]:
            raise StoreError(f"{file} is damaged: the checksum of its header does not fit")
        return file


def check_size(folder: Path, line: Line) -> None:
    """Refuse a shard that is not there, or has not the bytes that its *line* says.

    Raises:
        StoreError: see above.
    """
    file = folder / line["shard"]
    try:
        size = file.stat().st_size
    except OSError as error:
        raise StoreError(f"{file}, a shard of this folder, cannot be read: {error}") from None
    if size != line["bytes"]:
        raise StoreError(f"{file} is not whole: it has {size:,} bytes of {line['bytes']:,}")


def loaded_torch() -> Any:
    """Return torch, which safetensors has imported: this room does without it until a tensor is asked for."""
    import safetensors.torch  # noqa: F401

    return sys.modules["torch"]
