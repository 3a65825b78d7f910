"""Look at a tensor of a shard: a few of its values, evenly picked, and its ends; without torch, and without loading the tensor."""

from __future__ import annotations

import math
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.errors import StoreError
from sonde.run.folder.checksum import checksum
from sonde.run.folder.files import open_regular
from sonde.run.folder.json_file import parse_json
from sonde.words import size_text

_MOST = 64  # rows, and columns
_PIECE = 1 << 18  # bytes that are read at once
_WHOLE = 256 << 20  # bytes: of a larger tensor only what is picked is read

_HALVES = {"bfloat16": "<u2", "float8_e5m2": "u1"}  # the first halves of the bytes of a float32, and of a float16
_PLAIN = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool")
_STORED = {**{name: name for name in _PLAIN}, "complex64": "<c8", "complex128": "<c16", **_HALVES}
"""By the name of a type, what NumPy reads."""


def sample_of(file: Path, header: int, key: str, expected: str | None, dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a few values of the tensor *key*, evenly picked, and what all of its values are.

    Args:
        file: a safetensors file.
        header: the bytes in front of its tensors.
        key, expected, dtype, shape: of the tensor, as the index of the store says; *expected* is its checksum.

    Returns:
        ``shape``, ``dtype``; ``values`` (float64, of complex numbers the magnitudes), of the last two axes, at the first place of
        all others, and ``rows`` and ``columns``, their places on these axes; of all values ``low`` and ``high`` (the finite ones,
        None without), ``nan`` and ``inf`` (how many), each of them None in a tensor that is too large to be read whole.

    Raises:
        StoreError: the tensor is damaged, or of a type that NumPy cannot read.
        OSError: the file cannot be read.
    """
    if dtype not in _STORED:
        raise StoreError(f"the tensor {key!r} holds {dtype}, which is not shown here: sonde.open_tensors() reads it")
    width, (down, across) = np.dtype(_STORED[dtype]).itemsize, (1, 1, *shape)[-2:]
    size = math.prod(shape) * width
    rows, columns = (np.unique(np.linspace(0, length - 1, min(length, _MOST)).round().astype(int)) for length in (down, across))
    at = rows[:, None] * across + columns if size else np.empty((0, 0), int)
    with open_regular(file) as opened:
        found = parse_json(_read(opened, 8, header - 8), f"the header of {file}")[0].get(key)
        match found:
            case {"data_offsets": [int(first), int(end)]} if end - first == size and 0 <= first < 2**62:
                start = header + first
            case _:
                raise StoreError(f"the tensor {key!r} in {file} is not what its index says: {dtype} in {size_text(size)}")
        picked = b"".join(_read(opened, start + width * each, width) for each in at.ravel().tolist())
        all_of_it = _ends(opened, start, size, dtype) if size <= _WHOLE else (None, None, None, None, expected)
    if expected not in (None, all_of_it[-1]):
        raise StoreError(f"the tensor {key!r} in {file} is damaged: the checksum of its bytes does not fit")
    return {
        "shape": list(shape),
        "dtype": dtype,
        "rows": rows.tolist(),
        "columns": columns.tolist(),
        "values": _decoded(picked, dtype).reshape(at.shape),
        **dict(zip(("low", "high", "nan", "inf"), all_of_it, strict=False)),
    }


def _ends(opened: FileIO, start: int, size: int, dtype: str) -> tuple[float | None, float | None, int, int, str]:
    """Return the ends of the finite values, how many are NaN, how many infinite, and the checksum of the bytes."""
    low, high, nan, inf, made = math.inf, -math.inf, 0, 0, checksum(b"")
    for first in range(start, start + size, _PIECE):
        piece = _read(opened, first, min(_PIECE, start + size - first))
        values, made = _decoded(piece, dtype), checksum(piece, made)
        nan, inf = nan + int(np.isnan(values).sum()), inf + int(np.isinf(values).sum())
        there = values[np.isfinite(values)]
        low, high = float(there.min(initial=low)), float(there.max(initial=high))
    return (low, high, nan, inf, made) if low <= high else (None, None, nan, inf, made)


def _read(opened: FileIO, at: int, size: int) -> bytes:
    opened.seek(at)
    held = opened.read(size)
    if len(held) < size:
        raise StoreError(f"{opened.name} ends in the middle of a tensor: it was cut")
    return held


def _decoded(held: bytes, dtype: str) -> npt.NDArray[np.float64]:
    raw = np.frombuffer(held, _STORED[dtype])
    if dtype in _HALVES:
        wide = raw.astype(f"<u{2 * raw.itemsize}") << 8 * raw.itemsize
        return wide.view(f"<f{wide.itemsize}").astype(np.float64)
    return np.asarray(np.abs(raw) if raw.dtype.kind == "c" else raw, np.float64)
