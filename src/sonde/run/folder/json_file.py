"""Write documents as JSON with a checksum, and read them from anybody: size, depth and checksum are checked first.

::

    {"checksum": "1a2b3c4d",
     "format": ...

The checksum is that of the file's name and of all bytes after the closing quote; that of a document that people may rename, as a
graph, leaves the name out. A document is an object in ASCII; a reader that knows nothing of the checksum sees one more member.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from sonde.errors import ArgumentError, StoreError
from sonde.run.folder.checksum import checksum
from sonde.run.folder.files import appearing, open_regular

_HEAD = re.compile(rb'\{"checksum":"([0-9a-f]{8})"|\{"checksum": "([0-9a-f]{8})"')
_MEMBER = "checksum"
_LARGEST = 1 << 28  # bytes of a document
_MOST = 1 << 24  # values in a document: each takes up to a hundred bytes of memory when it is read
_BEGINNINGS = (b",", b"[", b"{")
_DEEPEST = 64  # lists and objects inside each other


def json_text(data: Mapping[str, Any], name: str = "", *, indent: int | None = 1) -> str:
    """Return *data* as JSON text with its checksum, for a file of this *name*; in one line where *indent* is None.

    Raises:
        ArgumentError: *data* has a member ``"checksum"`` of its own.
        TypeError, ValueError: *data* is not plain data, or holds a NaN or infinity.
    """
    if _MEMBER in data:
        raise ArgumentError(f"{_MEMBER!r} is a name that sonde writes to each document itself: use another")
    separators = (",", ":") if indent is None else None
    body = json.dumps(dict(data), indent=indent, allow_nan=False, separators=separators)[1:]
    rest = ("," if data else "") + body + ("" if indent is None else "\n")
    colon = ":" if indent is None else ": "
    return f'{{"{_MEMBER}"{colon}"{checksum(rest.encode(), checksum(name.encode()))}"{rest}'


def parse_json(written: bytes, shown: str, names: Collection[str] = ("",)) -> tuple[dict[str, Any], bool | None]:
    """Return the data of the document *written*, and whether the checksum fits; None where there is no checksum.

    Args:
        written: the content of the file.
        shown: the file, for messages.
        names: the names that the file may have been written for.

    Raises:
        StoreError: *written* is too large, no JSON, too deep, or no object.
    """
    if len(written) > _LARGEST or sum(map(written.count, _BEGINNINGS)) > _MOST:
        raise StoreError(f"{shown} is not read: a document of sonde has at most {_LARGEST:,} bytes and {_MOST:,} values")
    head = _HEAD.match(written)
    try:
        data = json.loads(written, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{shown} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise StoreError(f"{shown} is of another kind: it holds a {type(data).__name__}, and no object")
    if _depth_is_above(_DEEPEST, data):
        raise StoreError(f"{shown} is not read: more than {_DEEPEST} lists and objects lie inside each other")
    data.pop(_MEMBER, None)
    if head is None:
        return data, None
    rest, found = memoryview(written)[head.end() :], (head[1] or head[2]).decode()
    return data, any(checksum(rest, checksum(name.encode())) == found for name in names)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text:.40} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)


def _depth_is_above(most: int, data: Any) -> bool:
    level = [data]
    for _ in range(most):
        level = [held for each in level for held in (each.values() if type(each) is dict else each) if type(held) in (dict, list)]
        if not level:
            return False
    return True


def read_json(path: Path) -> dict[str, Any]:
    """Return the data of the document at *path*.

    Raises:
        FileNotFoundError: there is none.
        StoreError: the document cannot be read, or is not as it was written.
    """
    data, fits = parse_json(read_bytes(path), str(path), (path.name,))
    if not fits:
        why = "does not fit" if fits is False else "is not there"
        raise StoreError(f"{path} is damaged or was changed after it was written: its checksum {why}")
    return data


def read_checked(path: Path) -> tuple[dict[str, Any], bool | None]:
    """Return the data of the document at *path*, and whether its checksum fits; None where there is no checksum.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from sonde.run import read_checked, write_json
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "about.json", {"lr": 0.1}, sync=False)
    ...     read_checked(Path(folder) / "about.json")
    ({'lr': 0.1}, True)

    Raises:
        FileNotFoundError: there is none.
        StoreError: the document cannot be read.
    """
    return parse_json(read_bytes(path), str(path), ("", path.name))


def read_bytes(path: Path) -> bytes:
    """Return the content of the document at *path*.

    Raises:
        FileNotFoundError: there is none.
        StoreError: the file is too large for a document, or cannot be read.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _LARGEST:
                raise StoreError(f"{path} is not read: it has {size:,} bytes, and a document of sonde at most {_LARGEST:,}")
            return file.readall()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from None


def write_json(path: Path, data: Mapping[str, Any], *, sync: bool) -> None:
    """Write *data* as a JSON document, whole or not at all.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from sonde.run import read_checked, write_json
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "about.json", {"lr": 0.1}, sync=False)
    ...     read_checked(Path(folder) / "about.json")
    ({'lr': 0.1}, True)

    Raises:
        ArgumentError, TypeError, ValueError: see :func:`json_text`.
        OSError: the file cannot be written.
    """
    text = json_text(data, path.name)
    with appearing(path, sync=sync) as temporary:
        temporary.write_text(text, encoding="ascii")
