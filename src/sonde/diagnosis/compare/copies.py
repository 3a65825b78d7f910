"""Copy the tensors of a comparison: into main memory up to a limit, beyond it into files that the system pages in and out."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from sonde.diagnosis.distance import readable
from sonde.engine import memory_of
from sonde.errors import StoreError
from sonde.keep import default_stash_value
from sonde.words import size_text

_SHARE = 0.25
"""Part of the main memory that copies take by default."""
_FILE = 1 << 28
"""Bytes of one file; a larger tensor has a file of its own."""
_ALIGNED = 64


class Copies:
    """Makes copies of tensors on the CPU.

    Beyond the limit a copy lies in a file that is mapped into memory: for those who read it a tensor like any other, whose memory
    the system can free. A file has no name any more when it is used, so that it is gone with its last tensor, however
    the process ends. Sparse, nested and quantized tensors lie in main memory always.

    Args:
        limit: bytes of copies in main memory; None is a quarter of the machine's.

    Attributes:
        in_memory, in_files: bytes of the copies so far.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.in_memory = self.in_files = 0
        self._limit = _SHARE * memory_of(torch.device("cpu")) if limit is None else limit
        self._file: Tensor | None = None
        self._used = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy of *tensor*: of its values if it is of a class that computes them, on the meta device if that gives none.

        Raises:
            StoreError: there is no room for files.
        """
        tensor = readable(tensor.detach())
        if (
            type(tensor) is not Tensor
            or tensor.is_meta
            or tensor.is_nested
            or tensor.is_quantized
            or tensor.layout is not torch.strided
        ):
            return self._plain(tensor)
        needed = tensor.numel() * tensor.element_size()
        if self.in_memory + needed <= self._limit:
            self.in_memory += needed
            return self._plain(tensor)
        self.in_files += needed
        held = self._room(needed).view(tensor.dtype).view(tensor.shape)
        return held.copy_(tensor)

    def _plain(self, tensor: Tensor) -> Tensor:
        copy: Tensor = default_stash_value(tensor)
        return copy

    def note(self) -> str:
        """Return how much lies in files, in words; ``""`` for nothing."""
        where = tempfile.gettempdir()
        return f"{size_text(self.in_files)} of tensors lay in files of {where} meanwhile" if self.in_files else ""

    def _room(self, needed: int) -> Tensor:
        """Return bytes of a file."""
        start = -(-self._used // _ALIGNED) * _ALIGNED
        if self._file is None or start + needed > self._file.numel():
            self._file, start = _mapped_file(max(needed, _FILE)), 0
        self._used = start + needed
        return self._file[start : start + needed]


def _mapped_file(length: int) -> Tensor:
    """Return the bytes of a new file without a name."""
    length = max(length, _ALIGNED)
    descriptor, path = tempfile.mkstemp(prefix="sonde-compare-")
    try:
        _fill(descriptor, length)
        return torch.from_file(path, shared=True, size=length, dtype=torch.uint8)
    except OSError as error:
        raise StoreError(
            f"there is no room for {size_text(length)} of tensors in {Path(path).parent} ({error.strerror}): set TMPDIR to a "
            "folder with more room, or compare with a smaller batch or backward=False"
        ) from None
    finally:
        os.close(descriptor)
        Path(path).unlink(missing_ok=True)


def _fill(descriptor: int, length: int) -> None:
    """Give a file its blocks on the disk now: a disk that is full when a mapped page is written ends the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, length)
        return
    block = bytes(1 << 20)
    for _ in range(math.ceil(length / len(block))):
        os.write(descriptor, block)
