"""Tensors and safetensors files: what a tensor needs to be written, its checksum, and files of a few tensors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sonde.errors import StoreError
from sonde.run.folder.checksum import checksum, file_checksum
from sonde.run.folder.files import open_regular, within

_LARGEST_HEADER = 100_000_000  # bytes, in the format


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


def tensor_checksum(tensor: Any) -> str:
    """The checksum of the bytes of *tensor*, which is contiguous and on the CPU, of whatever type."""
    if not tensor.nbytes:
        return checksum(b"")
    return checksum((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))


def header_checksum(file: Path) -> str:
    """The checksum of the header of a shard."""
    return file_checksum(file, first=header_size(file))


def header_size(file: Path) -> int:
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

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from sonde.run import read_tensor_file, write_tensor_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pairs, checksum = write_tensor_file(Path(folder) / "a", {"weight": torch.ones(2)})
    ...     read_tensor_file(Path(folder) / "a", pairs, checksum)
    {'weight': tensor([1., 1.])}

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

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from sonde.run import read_tensor_file, write_tensor_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pairs, checksum = write_tensor_file(Path(folder) / "a", {"weight": torch.ones(2)})
    ...     read_tensor_file(Path(folder) / "a", pairs, checksum)["weight"]
    tensor([1., 1.])

    Raises:
        StoreError: the file cannot be read, leads out of its folder, or is not as it was written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        header_size(within(file.parent, file))
        is_sound = expected is None or file_checksum(file) == expected
        found = load_file(file) if is_sound else {}
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from None
    if not is_sound:
        raise StoreError(f"{file} is damaged, or was changed since it was written: its checksum does not fit")
    try:
        return {key: joined_pairs(tensor) if key in pairs else tensor for key, tensor in found.items()}
    except StoreError as error:
        raise StoreError(f"{file} is not as it was written: {error}") from None


def needs_pairs(tensor: Any) -> bool:
    """Whether *tensor* is complex of a type that safetensors lacks, and is written as pairs of real numbers."""
    return is_pairs(str(tensor.dtype).removeprefix("torch."))


def is_pairs(dtype: str) -> bool:
    """Whether tensors of this type are written as pairs of real numbers: safetensors has one complex type."""
    return dtype.startswith("complex") and dtype != "complex64"


def joined_pairs(tensor: Any) -> Any:
    """Return pairs of real numbers, along the last axis, as complex numbers. This room has no torch to name their type."""
    joined = (tensor.flatten()[:0] * 1j).dtype
    if not tensor.is_floating_point() or joined.itemsize != 2 * tensor.element_size() or tensor.shape[-1:] != (2,):
        raise StoreError(f"a tensor of {tensor.dtype} of the shape {tuple(tensor.shape)} holds no pairs of real numbers")
    if tensor.data_ptr() % joined.itemsize:  # as it is mapped: safetensors places numbers by the size of their own type
        tensor = tensor.clone()
    return tensor.view(joined).squeeze(-1)
