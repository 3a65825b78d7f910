"""The checksum of everything that sonde writes: CRC-32, as zlib, PNG and Parquet have it, in eight hexadecimal digits.

It finds damage; it does not stop somebody who wants to forge a file. zlib-ng forms it with the processor's instructions (17 to 25
gigabytes a second on one core of an AMD EPYC), faster than a file is written. Without zlib-ng (`sonde[fast]`) Python's zlib forms
the same (1 to 6 gigabytes a second). Both run without the interpreter's lock, so that threads can form it while a file is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sonde.run.folder.files import open_regular

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # not installed, or not for this processor
    from zlib import crc32


_CHUNK = 1 << 19  # bytes: they stay in the second cache


def checksum(data: Any, before: str = "") -> str:
    """Return the checksum of *data*, an object with a contiguous buffer; with *before*, of the data of that checksum and *data*."""
    return f"{crc32(data, int(before, 16) if before else 0):08x}"


def file_checksum(path: Path, *, first: int | None = None) -> str:
    """Return the checksum of a file, or of its *first* bytes. The file is read in pieces and not mapped: it may be cut meanwhile.

    Raises:
        OSError: the file cannot be read.
    """
    made = checksum(b"")
    with open_regular(path) as file:
        left = os.fstat(file.fileno()).st_size if first is None else first
        buffer = memoryview(bytearray(min(max(left, 1), _CHUNK)))
        while left > 0 and (read := file.readinto(buffer[: min(left, len(buffer))])):
            made = checksum(buffer[:read], made)
            left -= read
    return made
