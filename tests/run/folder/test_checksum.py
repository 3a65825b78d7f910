"""The checksum is CRC-32, whichever library forms it."""

from __future__ import annotations

import ctypes
import importlib
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sonde.run.folder import checksum as module


@pytest.fixture(params=["the library that is installed", "Python's own"])
def formed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module as it is, and as it is where zlib-ng is not installed."""
    with monkeypatch.context() as patch:
        if request.param == "Python's own":
            patch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
            assert importlib.reload(module).crc32 is zlib.crc32
        yield module
    importlib.reload(module)


def test_the_checksum_is_crc_32(formed: ModuleType) -> None:
    """The check value of the standard, of buffers of every kind, and continued piece by piece."""
    assert formed.checksum(b"123456789") == "cbf43926"
    assert formed.checksum(b"") == "00000000"
    data = bytes(range(256)) * 300
    for buffer in (data, bytearray(data), memoryview(data), (ctypes.c_ubyte * len(data)).from_buffer_copy(data)):
        assert formed.checksum(buffer) == f"{zlib.crc32(data):08x}"
    for cut in (0, 1, 15, 16, 17, 4097, len(data)):
        assert formed.checksum(data[cut:], formed.checksum(data[:cut])) == f"{zlib.crc32(data):08x}"


def test_a_file_is_read_in_pieces(formed: ModuleType, tmp_path: Path) -> None:
    """Files of no byte, of one piece and a byte more; and only the first bytes, where asked for."""
    for size in (0, 1, formed._CHUNK - 1, formed._CHUNK, formed._CHUNK + 1):
        data = bytes(k * k % 251 for k in range(1000)) * (size // 1000 + 1)
        (tmp_path / "file").write_bytes(data[:size])
        assert formed.file_checksum(tmp_path / "file") == f"{zlib.crc32(data[:size]):08x}"
        assert formed.file_checksum(tmp_path / "file", first=size // 2) == f"{zlib.crc32(data[: size // 2]):08x}"
