"""Read the rows of a store of tensors: one column across shards and folders, or all columns of some rows."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sonde.errors import ArgumentError, StoreError, UnknownSiteError
from sonde.run.tensors.index import Line
from sonde.run.tensors.shards import Shards, loaded_torch
from sonde.words import many, shape_text

Ints = np.ndarray[Any, np.dtype[np.int64]]

ITEM = "item"
"""The column that says to which item a row belongs."""

_MOST_MAPPED = 2_048  # shards that are kept mapped for each column: the system allows a process 65,530 mappings
_LARGE_ROW = 1 << 16  # bytes of a row that is worth a call of its own


class _Mapped:
    """The memory of one column, of the shards that are mapped: one array that begins with the lowest of them.

    An element is a row, and one begins at each byte: NumPy copies rows of all shards in one call, each once.

    Args:
        held: tensors by shard, which stay mapped as long as this holds them.
        first: of each shard the address of its first row; 0 where it is not mapped.
        size: bytes of a row.
    """

    def __init__(self, held: dict[int, Any], first: Ints, size: int) -> None:
        self.held = held
        self.first = first
        self._size = size
        self._base = int(first[first > 0].min())
        last = held[int(first.argmax())]
        span = last.data_ptr() + last.nbytes - self._base
        memory = (ctypes.c_ubyte * span).from_address(self._base)
        self._rows: np.ndarray[Any, Any] = np.ndarray((span - size + 1,), f"V{size}", memory, strides=(1,))

    def rows(self, blocks: Ints, inside: Ints) -> np.ndarray[Any, Any]:
        """Return a copy of the rows of these numbers *inside* of the *blocks*."""
        found: np.ndarray[Any, Any] = self._rows[self.first[blocks] + inside * self._size - self._base]
        return found


class Blocks:
    """The shards of rows of a store, in order, and where each of them begins.

    Attributes:
        held: the shards, each with its line.
        rows: how many there are in all.
        columns: by name, the type of a column and the shape of one row of it.

    Raises:
        StoreError: a shard has other columns than the first one.
    """

    def __init__(self, held: Sequence[tuple[Shards, Line]]) -> None:
        self.columns: dict[str, tuple[str, tuple[int, ...]]] = {}
        for place, (shards, line) in enumerate(held):
            count = (line["rows"],)
            found = {name: (dtype, shape[1:]) for name, (_, dtype, shape) in line["tensors"].items() if shape[:1] == count}
            if len(found) < len(line["tensors"]) or (place and found != self.columns):
                raise StoreError(f"{shards.folder / line['shard']} has other columns, or rows, than {held[0][1]['shard']}: {found}")
            self.columns = found
        self.held = [(shards, line) for shards, line in held if line["rows"]]
        self._ends: Ints = np.cumsum([line["rows"] for _, line in self.held], dtype=np.int64)
        self._starts: Ints = self._ends - [line["rows"] for _, line in self.held]
        self._items: Ints = np.array([line["items"] for _, line in self.held], dtype=np.int64).reshape(-1, 2)
        self.rows = int(self._ends[-1]) if len(self._ends) else 0
        self._sizes: dict[str, int] = {}
        self._memory: dict[str, _Mapped] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return this without what is mapped, for another process."""
        return self.__dict__ | {"_memory": {}}

    def tensor(self, block: int, column: str) -> Any:
        """Return one column of one shard, as it is mapped: nobody may write to it."""
        shards, line = self.held[block]
        return shards.tensor(line, column)

    def pieces(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield, of the rows from *first* to before *end*, the shard, and the first and the end of those rows in it."""
        while first < end:
            block = int(self._ends.searchsorted(first, "right"))
            start = int(self._starts[block])
            until = min(end, int(self._ends[block]))
            yield block, first - start, until - start
            first = until

    def between(self, column: str, first: int, end: int) -> Any:
        """Return a copy of the rows of *column* from *first* to before *end*."""
        parts = [self.tensor(block, column)[a:b] for block, a, b in self.pieces(first, end)]
        if not parts:
            return self.empty(column)
        return parts[0].clone() if len(parts) == 1 else loaded_torch().cat(parts)

    def gather(self, column: str, at: Ints) -> Any:
        """Return a copy of the rows of *column* of these numbers, in this order."""
        torch, (dtype, shape) = loaded_torch(), self.columns[column]
        if len(at) > _MOST_MAPPED < len(self.held):
            return torch.cat([self.gather(column, at[first : first + _MOST_MAPPED]) for first in range(0, len(at), _MOST_MAPPED)])
        blocks = self._ends.searchsorted(at, "right")
        inside = at - self._starts[blocks]
        if not len(at) or not 0 < self._size(column) <= _LARGE_ROW:
            rows = [self.tensor(block, column)[row] for block, row in zip(blocks.tolist(), inside.tolist(), strict=True)]
            return torch.stack(rows) if rows else self.empty(column)
        found = self._mapped(column, blocks).rows(blocks, inside)
        return torch.from_numpy(found.view(np.uint8)).view(getattr(torch, dtype)).reshape(len(at), *shape)

    def _mapped(self, column: str, blocks: Ints) -> _Mapped:
        """Return the memory of *column*, with all of these *blocks* mapped."""
        memory = self._memory.get(column)
        if memory is not None and memory.first[blocks].all():
            return memory
        held, first = ({}, np.zeros(len(self.held), np.int64)) if memory is None else (memory.held, memory.first.copy())
        new = np.unique(blocks)
        if len(held) + len(new) > _MOST_MAPPED:
            held, first = {}, np.zeros_like(first)
        for block in new[first[new] == 0].tolist():
            held[block] = self.tensor(block, column)
            first[block] = held[block].data_ptr()
        memory = self._memory[column] = _Mapped(held, first, self._size(column))
        return memory

    def _size(self, column: str) -> int:
        """The bytes of one row of *column*."""
        if column not in self._sizes:
            self._sizes[column] = self.empty(column).element_size() * math.prod(self.columns[column][1])
        return self._sizes[column]

    def empty(self, column: str) -> Any:
        """Return no rows of *column*."""
        torch, (dtype, shape) = loaded_torch(), self.columns[column]
        return torch.empty((0, *shape), dtype=getattr(torch, dtype), device="cpu")

    def of_item(self, item: int) -> Ints:
        """Return the numbers of the rows of one item.

        Raises:
            UnknownSiteError: there is no such item.
            ArgumentError: two of the folders have one of this number.
        """
        found, folders = [], set()
        for block in np.flatnonzero((self._items[:, 0] <= item) & (item <= self._items[:, 1])).tolist():
            if ITEM in self.columns:
                rows = np.flatnonzero(self.tensor(block, ITEM).numpy() == item)
            elif self._items[block, 0] == self._items[block, 1]:
                rows = np.arange(self.held[block][1]["rows"])
            else:
                raise ArgumentError(f"the rows have no column {ITEM!r} that says to which item each belongs")
            if len(rows):
                found.append(rows + self._starts[block])
                folders.add(self.held[block][0].folder)
        if len(folders) > 1:
            raise ArgumentError(f"item {item} is in each of {', '.join(map(str, sorted(folders)))}: open one of them for its items")
        if not found:
            span = self.item_span
            raise UnknownSiteError(f"there is no item {item}{'' if span is None else f'; there are {span[0]} to {span[1]}'}")
        return np.concatenate(found)

    @property
    def item_span(self) -> tuple[int, int] | None:
        """The first and the last item; None where there are none."""
        return None if not len(self._items) else (int(self._items[:, 0].min()), int(self._items[:, 1].max()))

    def numbers(self, asked: Any) -> Ints | slice | int:
        """Return the rows that *asked* means: one number, a slice of them in steps of 1, or an array, none of them negative.

        Raises:
            IndexError: there is no such row.
            ArgumentError: *asked* is no number, slice, list of numbers, or mask of all rows.
        """
        if isinstance(asked, slice):
            first, end, step = asked.indices(self.rows)
            return slice(first, max(first, end)) if step == 1 else np.arange(first, end, step, dtype=np.int64)
        try:
            array = np.asarray(asked)
        except (TypeError, ValueError, RuntimeError):
            array = np.asarray(None)
        if array.dtype == bool and array.shape == (self.rows,):
            return np.flatnonzero(array)
        if isinstance(asked, tuple) or array.ndim > 1 or (array.size and array.dtype.kind not in "iu"):
            raise ArgumentError(f"{asked!r:.80} chooses no rows: give a number, a slice, a list of numbers, or a mask of all rows")
        found = array.astype(np.int64, copy=False)
        lowest, highest = (int(found.min()), int(found.max())) if found.size else (0, -1)
        if lowest < -self.rows or highest >= self.rows:
            raise IndexError(f"there is no row {lowest if lowest < -self.rows else highest}: there are {self.rows:,}")
        found = np.where(found < 0, found + self.rows, found) if lowest < 0 else found
        return found if array.ndim else int(found)

    def read(self, column: str, asked: Any) -> Any:
        """Return a copy of the rows of *column* that *asked* means, as :meth:`numbers` has it."""
        at = self.numbers(asked)
        if isinstance(at, slice):
            return self.between(column, at.start, at.stop)
        return self.between(column, at, at + 1)[0] if isinstance(at, int) else self.gather(column, at)


class TensorRows:
    """One column of a store of rows: an array that is read where it is asked for, across shards.

    ``rows[3]``, ``rows[10:20]``, ``rows[[5, 3]]`` and ``rows[mask]`` are torch tensors, ``rows.item(7)`` all rows of item 7,
    ``rows.numpy()`` the whole. What is returned is a copy. ``for block in rows.blocks()`` goes through it shard by shard.

    Attributes:
        name: of the column.
        shape: the number of rows, and the shape of one.
        dtype: the torch type of the values.
    """

    def __init__(self, name: str, blocks: Blocks) -> None:
        self.name = name
        self._blocks = blocks
        self._dtype, shape = blocks.columns[name]
        self.shape = (blocks.rows, *shape)

    @property
    def dtype(self) -> Any:
        return getattr(loaded_torch(), self._dtype)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        return self._blocks.read(self.name, rows)

    def __iter__(self) -> Iterator[Any]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[Any]:
        """Yield the rows of one shard after the other."""
        for block in range(len(self._blocks.held)):
            yield self._blocks.tensor(block, self.name).clone()

    def item(self, item: int) -> Any:
        """Return the rows of one item, as the positions of a sequence.

        Raises:
            UnknownSiteError: there is no such item.
            ArgumentError: two of the folders have one of this number.
        """
        return self._blocks.gather(self.name, self._blocks.of_item(item))

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the whole as a NumPy array.

        Raises:
            ArgumentError: NumPy has no such type, as bfloat16.
        """
        try:
            found: np.ndarray[Any, Any] = self[:].numpy()
        except TypeError:
            raise ArgumentError(f"NumPy has no {self._dtype}: use store[{self.name!r}][:].float().numpy()") from None
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the rows lie on disk: an array of them is always a copy")
        return self.numpy().astype(dtype or None, copy=False) if dtype is not None else self.numpy()

    def __repr__(self) -> str:
        return f"TensorRows({self.name!r}: {shape_text(self.shape)} {self._dtype} in {many(len(self._blocks.held), 'shard')})"


class Rows:
    """All columns of the rows of a store: a data set for ``torch.utils.data.DataLoader``.

    ``rows[3]`` is one row, as a dict from column to tensor. ``rows[10:20]`` and ``rows[[5, 3]]`` are a dict as well, of several
    rows each: with a sampler of lists and ``batch_size=None`` a ``DataLoader`` reads whole batches at once.
    """

    def __init__(self, blocks: Blocks, columns: Sequence[str] | None = None) -> None:
        self._blocks = blocks
        self._columns = list(blocks.columns if columns is None else columns)
        if unknown := [name for name in self._columns if name not in blocks.columns]:
            raise UnknownSiteError(f"there is no column {unknown[0]!r}; there are {', '.join(blocks.columns)}")

    def __len__(self) -> int:
        return self._blocks.rows

    def __getitem__(self, rows: Any) -> dict[str, Any]:
        return {name: self._blocks.read(name, rows) for name in self._columns}

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows, each as a dict: what a ``DataLoader`` makes a batch of."""
        found = {name: self._blocks.read(name, rows).unbind() for name in self._columns}
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]

    def __repr__(self) -> str:
        return f"Rows({len(self):,} of {', '.join(self._columns)})"
