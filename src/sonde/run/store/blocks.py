"""What has been appended and is not written yet: blocks of numbers and lines, turned into Arrow tables at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow

from sonde.errors import ArgumentError
from sonde.run.schema import ALERTS, KEY_COLUMNS, SCALARS, Key, Layout

__all__ = ["Block", "ColumnSpec", "Kind", "Lines", "Pending", "blocks_of", "column_of", "kind_of"]

Kind = str
"""What a column holds: ``number``, ``list`` (of numbers, in every row) or ``text``."""

Column = npt.NDArray[Any] | list[str]

_LINE_BYTES = 150  # of a tuple of Python values, roughly
_KEY_BYTES = 40


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """The columns of a block in order: each one's name, and its dtype (numbers), ``list`` or ``text``.

    Numbers of one dtype lie in one matrix, so that a block is copied and joined with others in one go.
    """

    columns: tuple[tuple[str, str], ...]

    @property
    def kinds(self) -> dict[str, Kind]:
        """What each column holds."""
        return {name: kind if kind in ("list", "text") else "number" for name, kind in self.columns}

    def of(self, kind: str) -> list[str]:
        """The names of the columns of one dtype, or of all lists or texts."""
        return [name for name, each in self.columns if each == kind]

    @property
    def dtypes(self) -> list[str]:
        """The dtypes of the numbers."""
        return [kind for kind in dict.fromkeys(kind for _, kind in self.columns) if kind not in ("list", "text")]


@dataclass(frozen=True, slots=True)
class Block:
    """Numbers of one family at one moment or several, one after the other.

    Attributes:
        rows: of each row its place in *layout*; None for each place once, at one moment.
        moments: epoch, step and micro-step of each moment: int64 of shape (moments, 3).
        lengths: how many rows each moment has.
        numbers: by dtype a matrix of shape (columns of that dtype, rows).
        others: lists and texts.
    """

    layout: Layout
    rows: npt.NDArray[np.intp] | None
    moments: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.intp]
    form: ColumnSpec
    numbers: Mapping[str, npt.NDArray[Any]]
    others: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.layout) if self.rows is None else len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes that this holds in memory, and its keys when they are written out."""
        others = sum(column.nbytes if isinstance(column, np.ndarray) else 8 * len(column) for column in self.others.values())
        return sum(matrix.nbytes for matrix in self.numbers.values()) + others + _KEY_BYTES * len(self)


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows of a family that has no layout (scalars, alerts), the values of each in the order of its schema."""

    values: tuple[tuple[Any, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes that this holds in memory, roughly."""
        return _LINE_BYTES * len(self.values)

    def __len__(self) -> int:
        return len(self.values)


def column_of(name: str, given: Any, length: int, what: str) -> Column:
    """One given column as an array of shape (length,) or (length, k), or as texts; arrays that can be taken as they are, are.

    Args:
        name: of the column.
        given: an array, a sequence of texts, or a number or text for all rows.
        length: of the column.
        what: is so long, in words.

    Raises:
        ArgumentError: it is neither, or not as long.
    """
    if isinstance(given, str):
        return [given] * length
    values = np.asarray(given)
    if values.ndim == 0:
        values = np.broadcast_to(values, (length,))
    if values.ndim > 2 or len(values) != length:
        raise ArgumentError(
            f"the column {name!r} has the shape {values.shape}; {what} take ({length},), or ({length}, k) for a list in each row"
        )
    if values.dtype.kind in "US" or (values.dtype == object and all(isinstance(value, str) for value in values)):
        return [str(value) for value in values]
    if values.dtype.kind not in "biuf":
        raise ArgumentError(f"the column {name!r} holds {values.dtype}: numbers or texts can be written")
    return values.astype(_plain(values.dtype), copy=False)


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A dtype that everything that reads Parquet knows, without loss where there is one."""
    if dtype.kind != "f":
        return dtype.newbyteorder("=")
    return np.dtype(np.float32) if dtype.itemsize <= 4 else np.dtype(np.float64)


def kind_of(column: Column) -> str:
    """The dtype of numbers, ``list`` or ``text``."""
    if not isinstance(column, np.ndarray):
        return "text"
    return column.dtype.char if column.ndim == 1 else "list"


def blocks_of(
    layout: Layout,
    rows: npt.NDArray[np.intp] | None,
    moments: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.intp],
    form: ColumnSpec,
    columns: Mapping[str, Column],
    *,
    most: int,
) -> Iterator[Block]:
    """Blocks with copies of *columns*, which are as long as all moments together and have the form *form*.

    There is one, unless it would hold more than *most* bytes: then each has as many moments as fit, and at least one.
    """
    ends = np.cumsum(lengths)
    each = sum(column.nbytes if isinstance(column, np.ndarray) else 8 * len(column) for column in columns.values())
    fitting = most * max(int(ends[-1]), 1) // max(each + _KEY_BYTES * int(ends[-1]), 1)  # rows
    first = start = 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(ends, start + fitting, "right")))
        end = int(ends[last - 1])
        picked = None if rows is None else rows[start:end]
        cut = {name: column[start:end] for name, column in columns.items()}
        yield _block(layout, picked, moments[first:last], lengths[first:last], form, cut)
        first, start = last, end


def _block(
    layout: Layout,
    rows: npt.NDArray[np.intp] | None,
    moments: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.intp],
    form: ColumnSpec,
    columns: Mapping[str, Column],
) -> Block:
    numbers = {}
    for dtype in form.dtypes:
        given = [columns[name] for name in form.of(dtype)]
        numbers[dtype] = np.concatenate(given).reshape(len(given), -1)
    others: dict[str, Column] = {name: np.array(columns[name]) for name in form.of("list")}
    others |= {name: list(columns[name]) for name in form.of("text")}
    return Block(layout, rows, moments, lengths, form, numbers, others)


@dataclass(slots=True)
class Pending:
    """Blocks and lines by family, in the order they came."""

    held: dict[str, list[Block | Lines]] = field(default_factory=dict)
    nbytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.held)

    def add(self, family: str, item: Block | Lines) -> None:
        self.held.setdefault(family, []).append(item)
        self.nbytes += item.nbytes

    def take(self) -> Pending:
        """Everything held so far; afterwards this holds nothing."""
        taken = Pending(self.held, self.nbytes)
        self.held, self.nbytes = {}, 0
        return taken

    def tables(self, rank: int) -> Iterator[tuple[str, pyarrow.Table]]:
        """One Arrow table for each family; all columns of a block are joined at once, never row by row."""
        for family, items in self.held.items():
            single = {"scalars": SCALARS, "alerts": ALERTS}.get(family)
            if single is not None:
                yield family, _line_table([item for item in items if isinstance(item, Lines)], single)
            else:
                yield family, _block_table([item for item in items if isinstance(item, Block)], rank)


def _line_table(lines: Sequence[Lines], schema: Mapping[str, str]) -> pyarrow.Table:
    columns = zip(*(line for several in lines for line in several.values), strict=True)
    return pyarrow.table({name: pyarrow.array(column, kind) for (name, kind), column in zip(schema.items(), columns, strict=True)})


def _block_table(blocks: Sequence[Block], rank: int) -> pyarrow.Table:
    coded = _Coded(blocks)
    tables = [_joined(list(group), coded, rank) for _, group in groupby(blocks, key=lambda block: block.form)]
    return tables[0] if len(tables) == 1 else pyarrow.concat_tables(tables, promote_options="permissive")


class _Coded:
    """Texts of all layouts as integers, encoded once per layout however many blocks it has."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._texts: dict[str, int] = {}
        layouts = {id(block.layout): block.layout for block in blocks}
        self._codes = {
            (name, each): self._encoded(values) if isinstance(values, tuple) else values
            for each, layout in layouts.items()
            for name, values in layout.columns.items()
        }
        self._dictionary = pyarrow.array(list(self._texts), "string")

    def _encoded(self, texts: Sequence[str]) -> npt.NDArray[np.int32]:
        return np.fromiter((self._texts.setdefault(text, len(self._texts)) for text in texts), np.int32, len(texts))

    def column(self, key: Key, blocks: Sequence[Block]) -> Any:
        """The column *key* of *blocks*, which the layouts give."""
        values = np.concatenate([_pick(self._codes[key.name, id(block.layout)], block.rows) for block in blocks])
        return pyarrow.DictionaryArray.from_arrays(values, self._dictionary) if key.kind == "string" else values


def _joined(blocks: list[Block], coded: _Coded, rank: int) -> pyarrow.Table:
    lengths = np.concatenate([block.lengths for block in blocks])
    moments = np.concatenate([block.moments for block in blocks])
    columns: dict[str, Any] = {}
    for key in KEY_COLUMNS:
        if key.given == "moment":
            columns[key.name] = np.repeat(moments[:, len(columns)].astype(key.kind), lengths)
        elif key.given == "process":
            columns[key.name] = np.full(lengths.sum(), rank, key.kind)
        else:
            columns[key.name] = coded.column(key, blocks)
    form = blocks[0].form
    arrays = {name: _arrow([block.others[name] for block in blocks]) for name in blocks[0].others}
    for dtype in form.dtypes:
        matrix = np.concatenate([block.numbers[dtype] for block in blocks], axis=1)
        arrays |= dict(zip(form.of(dtype), map(pyarrow.array, matrix), strict=True))
    return pyarrow.table(columns | {name: arrays[name] for name, _ in form.columns})


def _pick(values: npt.NDArray[Any], rows: npt.NDArray[np.intp] | None) -> npt.NDArray[Any]:
    return values if rows is None else values[rows]


def _arrow(columns: Sequence[Column]) -> pyarrow.Array:
    if not isinstance(columns[0], np.ndarray):
        return pyarrow.array([text for column in columns for text in column], "string")
    lengths = np.concatenate([np.full(len(column), np.shape(column)[1], np.int32) for column in columns])
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return pyarrow.ListArray.from_arrays(offsets, np.concatenate([np.ravel(column) for column in columns]))
