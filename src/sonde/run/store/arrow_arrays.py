"""Make Arrow arrays of NumPy arrays and lists, without ``pyarrow.array``.

``pyarrow.array`` looks whether its input is a pandas object, and imports pandas for that wherever it is installed: half a second
in which the writer thread holds the interpreter's lock, in the middle of a training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow


def array_of(values: Sequence[Any], kind: str) -> pyarrow.Array:
    """Return *values* as an array of *kind*, ``string`` or a dtype of NumPy's; None is null."""
    if kind == "string":
        return text_array(values)
    missing = np.array([value is None for value in values], bool)
    if not missing.any():
        return number_array(np.asarray(values, kind))
    return number_array(np.asarray([0 if value is None else value for value in values], kind), missing)


def number_array(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pyarrow.Array:
    """Return the numbers *values*, of one dimension, as an array of their dtype; null where they are *missing*, NaN is not."""
    bits = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    valid = None if missing is None else pyarrow.py_buffer(np.packbits(~missing, bitorder="little"))
    return pyarrow.Array.from_buffers(pyarrow.from_numpy_dtype(values.dtype), len(values), [valid, pyarrow.py_buffer(bits)])


def text_array(texts: Sequence[str | None]) -> pyarrow.StringArray:
    """Return *texts* as an array of strings, in which None is null.

    Raises:
        ValueError: the texts together are longer than 2 GiB.
    """
    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"the texts of a column have {ends[-1]:,} bytes; 2 GiB are the most that Arrow takes at once")
    missing = [text is None for text in texts]
    valid = pyarrow.py_buffer(np.packbits(~np.array(missing), bitorder="little")) if any(missing) else None
    offsets = pyarrow.py_buffer(ends.astype(np.int32))
    return pyarrow.StringArray.from_buffers(len(texts), offsets, pyarrow.py_buffer(b"".join(encoded)), valid)
