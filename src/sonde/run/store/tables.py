"""The way of finished rows into Arrow tables: whole columns at once, never row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow

from sonde.errors import ArgumentError
from sonde.escape import encodable
from sonde.rows import KEY_COLUMNS, Column, KeyColumn, RowBlock
from sonde.run.schema import SCALARS
from sonde.run.store.arrow_arrays import array_of, number_array, text_array

_LINE_BYTES = 150  # of a tuple of Python values, roughly


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows of the family without a layout (scalars), the values of each in the order of its schema."""

    family: str
    values: tuple[tuple[Any, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory, roughly."""
        return _LINE_BYTES * len(self.values)

    @property
    def lines(self) -> int:
        """The number of rows."""
        return len(self.values)


def column_of(name: str, given: Any, length: int, what: str) -> Column:
    """Return one given column as an array of shape (length,) or (length, k), or as texts, without a copy where possible.

    Args:
        name: of the column.
        given: an array, a sequence of texts, or a number or text for all rows.
        length: of the column.
        what: the rows, in words.

    Raises:
        ArgumentError: *given* is none of these, or has another length.
    """
    if isinstance(given, str):
        return [encodable(given)] * length
    values = np.asarray(given)
    if values.ndim == 0:
        values = np.broadcast_to(values, (length,))
    if values.ndim > 2 or len(values) != length:
        raise ArgumentError(
            f"the column {name!r} has the shape {values.shape}; {what} take ({length},), or ({length}, k) for a list in each row"
        )
    if values.dtype.kind in "US" or (values.dtype == object and all(isinstance(value, str) for value in values)):
        return [encodable(str(value)) for value in values]
    if values.dtype.kind not in "biuf":
        raise ArgumentError(f"the column {name!r} holds {values.dtype}: numbers or texts can be written")
    return values.astype(_plain(values.dtype), copy=False)


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that stands for *dtype* in Parquet: all readers know it, and only longdouble loses digits."""
    if dtype.kind != "f":
        return dtype.newbyteorder("=")
    return np.dtype(np.float32) if dtype.itemsize <= 4 else np.dtype(np.float64)


def kind_of(column: Column) -> str:
    """Return the kind of a column: the character of its dtype (numbers), ``list`` (of numbers, in every row) or ``text``."""
    if not isinstance(column, np.ndarray):
        return "text"
    return column.dtype.char if column.ndim == 1 else "list"


def tables_of(items: Iterable[RowBlock | Lines], rank: int) -> Iterator[tuple[str, pyarrow.Table]]:
    """Yield one Arrow table for each family in *items*, in the order of their first rows."""
    families: dict[str, list[Any]] = {}
    for item in items:
        families.setdefault(item.family, []).append(item)
    for family, of_family in families.items():
        yield family, _line_table(of_family, SCALARS) if family == "scalars" else _block_table(of_family, rank)


def _line_table(lines: Sequence[Lines], schema: Mapping[str, str]) -> pyarrow.Table:
    columns = zip(*[line for several in lines for line in several.values], strict=True)
    return pyarrow.table({name: array_of(column, kind) for (name, kind), column in zip(schema.items(), columns, strict=True)})


def _block_table(blocks: Sequence[RowBlock], rank: int) -> pyarrow.Table:
    alike = groupby(blocks, key=lambda block: [(name, kind_of(column)) for name, column in block.numbers.items()])
    tables = [_joined(list(group), rank) for _, group in alike]
    return tables[0] if len(tables) == 1 else pyarrow.concat_tables(tables, promote_options="permissive")


class _Places:
    """The columns that layouts give, for all rows of *blocks*: texts are encoded once per layout, however many blocks it has."""

    def __init__(self, blocks: Sequence[RowBlock]) -> None:
        layouts = {id(block.layout): block.layout for block in blocks}
        starts = dict(zip(layouts, np.cumsum([0, *map(len, layouts.values())]).tolist(), strict=False))
        offsets = [starts[id(block.layout)] for block in blocks]
        self._rows = np.concatenate(
            [block.rows + start if start else block.rows for block, start in zip(blocks, offsets, strict=True)]
        )
        self._layouts = list(layouts.values())

    def column(self, key: KeyColumn) -> Any:
        """The column *key* of all rows."""
        given = [layout.columns[key.name] for layout in self._layouts]
        if key.kind != "string":
            return np.concatenate(given)[self._rows]
        texts: dict[str, int] = {}
        codes = [texts.setdefault(text, len(texts)) for values in given for text in values]
        return pyarrow.DictionaryArray.from_arrays(number_array(np.array(codes, np.int32)[self._rows]), text_array(list(texts)))


def _joined(blocks: list[RowBlock], rank: int) -> pyarrow.Table:
    """One table of *blocks*, whose numbers have the same names and kinds."""
    lengths = np.concatenate([np.diff(block.edges) for block in blocks])
    moments = np.concatenate([block.moments for block in blocks])
    places = _Places(blocks)
    columns: dict[str, Any] = {}
    for key in KEY_COLUMNS:
        if key.given == "moment":
            columns[key.name] = np.repeat(moments[:, len(columns)].astype(key.kind), lengths)
        elif key.given == "process":
            columns[key.name] = np.full(lengths.sum(), rank, key.kind)
        elif key.given == "row":
            columns[key.name] = np.concatenate([np.ones(b.lines, np.int32) if b.ranks is None else b.ranks for b in blocks])
        else:
            columns[key.name] = places.column(key)
    for name in blocks[0].numbers:
        columns[name] = _arrow([block.numbers[name] for block in blocks])
    return pyarrow.table(
        {name: column if isinstance(column, pyarrow.Array) else number_array(column) for name, column in columns.items()}
    )


def _arrow(columns: Sequence[Column]) -> pyarrow.Array:
    """One Arrow column of the same column of several blocks."""
    first = columns[0]
    if not isinstance(first, np.ndarray):
        return text_array([text for column in columns for text in column])
    if first.ndim == 1:
        return number_array(np.concatenate(columns))
    lengths = np.concatenate([np.full(len(column), np.shape(column)[1], np.int32) for column in columns])
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return pyarrow.ListArray.from_arrays(
        number_array(offsets), number_array(np.concatenate([np.ravel(column) for column in columns]))
    )
