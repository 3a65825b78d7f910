"""Find the fault of a part before any of its rows is read: a link, a wrong checksum, columns that no part has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sonde.errors import ArgumentError
from sonde.paths import is_inside
from sonde.rows import KEY_COLUMNS
from sonde.run.folder.checksum import file_checksum
from sonde.run.folder.files import check_regular
from sonde.run.folder.parts import Part
from sonde.run.schema import SCALARS, check_number

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


_CODECS = ("UNCOMPRESSED", "SNAPPY")  # what sonde writes; snappy makes at most 21 bytes of one, others make gigabytes of nothing
_FREE = 1 << 20  # rows of a part, however small it is
_PER_BYTE = 16  # and more for each byte: of a training that stands still, all rows are alike, and five take a byte
_PER_ROW = 128  # values of a list


def kinds_of(path: Path) -> dict[str, str]:
    """Return by column of a Parquet file its kind: ``text``, ``list`` (of numbers), or the Arrow type of a number.

    Raises:
        OSError, pyarrow.ArrowException: the file cannot be read.
        TypeError, ValueError: a column holds something else, or more values than a file of its size can be meant to have.
    """
    import pyarrow.parquet

    size = check_regular(path).st_size
    with pyarrow.parquet.ParquetFile(path) as file:
        _check_size(file.metadata, size)
        return {column.name: kind_of(column.type) for column in file.schema_arrow}


def kind_of(given: pyarrow.DataType) -> str:
    """Return the kind of a column of this type.

    Raises:
        TypeError: no part has such a column.
    """
    import pyarrow

    if pyarrow.types.is_string(given) or pyarrow.types.is_large_string(given):
        return "text"
    if pyarrow.types.is_list(given) and kind_of(given.value_type) not in ("text", "list"):
        return "list"
    if pyarrow.types.is_integer(given) or pyarrow.types.is_floating(given) or pyarrow.types.is_boolean(given):
        return str(given)
    raise TypeError(f"a column holds {given}")


def _check_size(metadata: pyarrow.parquet.FileMetaData, size: int) -> None:
    """Refuse a Parquet file of *size* bytes that would take far more memory and time than a part of sonde that large."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    for each in columns:
        if each.compression not in _CODECS:
            raise ValueError(f"a column is compressed by {each.compression}, and those of sonde by one of {', '.join(_CODECS)}")
    values = max(sum(group.column(at).num_values for group in groups) for at in range(metadata.num_columns)) if groups else 0
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    if rows > (most := _FREE + int(_PER_BYTE * size)) or values > _PER_ROW * most:
        raise ValueError(f"it declares {rows:,} rows and {values:,} values of a column in {size:,} bytes")


def class_of(kind: str) -> str:
    """Return ``text``, ``list`` or ``number``: kinds of different classes cannot stand in one column."""
    return kind if kind in ("text", "list") else "number"


def fault(folder: Path, part: Part, classes: dict[str, str]) -> str:
    """Return the fault of *part* of the family in *folder*, in words; ``""`` if every byte is as it was written.

    Args:
        classes: by column, in small letters, its class in the parts before. Those of a part without fault are added.

    Raises:
        FileNotFoundError: the part is not there any more.
    """
    path = folder / part.name
    if not is_inside(folder.parent, path):
        return "it is a link out of the run"
    try:
        found = file_checksum(path)
        if found != part.checksum:
            return f"the checksum of its bytes is {found}, and was {part.checksum}"
        kinds = kinds_of(path)
        wrong = _wrong_column(folder.name, kinds)
        for name, kind in kinds.items():
            if not wrong and classes.get(name.lower(), class_of(kind)) != class_of(kind):
                wrong = f"its column {name!r} holds {class_of(kind)}s, and {classes[name.lower()]}s in the parts before"
        if not wrong:
            classes |= {name.lower(): class_of(kind) for name, kind in kinds.items()}
        return wrong
    except FileNotFoundError:
        raise
    except Exception as error:  # thrift and arrow have their own
        return f"{type(error).__name__}: {error}"


def _wrong_column(family: str, kinds: Mapping[str, str]) -> str:
    """Return what is wrong with the columns of a part; ``""`` if the family can have them."""
    keys = SCALARS if family == "scalars" else {key.name: key.kind for key in KEY_COLUMNS}
    for name, kind in keys.items():
        wanted = "text" if kind == "string" else "double" if kind == "float64" else kind
        if kinds.get(name) != wanted:
            return f"its column {name!r} holds {kinds.get(name, 'nothing')}, and in every part {wanted}"
    for name in kinds:
        if name not in keys:
            try:
                check_number(name)
            except ArgumentError as error:
                return str(error)
    return ""
