"""Read what other programs write as a store of rows: the hidden states of vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sonde.errors import StoreError
from sonde.run.folder.files import check_regular
from sonde.run.tensors.index import INDEX, Index, Line
from sonde.warn import warn_user

_COLUMNS = ("hidden_states", "token_ids")
"""Of vLLM's ``extract_hidden_states``: positions x layers x width, and one for each position."""

_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64"}


def foreign_index(folder: Path) -> Index | None:
    """Return the index of a folder of files of vLLM, one for each request: an item each, in the order of their names.

    None where the folder has an index, or no such file. One that is damaged, or still being written, is left out with a warning.
    """
    if (folder / INDEX).exists() or not folder.is_dir():
        return None
    lines: list[Line] = []
    files = sorted(folder.glob("*.safetensors"))
    for item, file in enumerate(files):
        try:
            line = _line(file, item)
        except StoreError as error:
            warn_user(f"{error}. The file is left out; the others are read")
        else:
            if line is None:
                return None
            lines.append(line)
    return Index("rows", {"kind": "vllm", "requests": [file.stem for file in files]}, True, lines) if lines else None


def _line(file: Path, item: int) -> Line | None:
    """The line of one file; None where it is no file of vLLM.

    Raises:
        StoreError: the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Any] = {}
    try:
        size = check_regular(file).st_size
        with safe_open(file, framework="pt") as opened:
            if set(opened.keys()) != set(_COLUMNS):
                return None
            for name in _COLUMNS:
                part = opened.get_slice(name)
                tensors[name] = (None, _TYPES.get(part.get_dtype(), part.get_dtype()), tuple(part.get_shape()))
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from None
    rows = tensors[_COLUMNS[0]][2][0]
    return {"shard": file.name, "bytes": size, "header": None, "tensors": tensors, "rows": rows, "items": (item, item), "about": {}}
