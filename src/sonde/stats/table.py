"""The table of a statistic: one row per site, rows of a device packed together, one copy per device to read all rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats.host_copy import HostCopy
from sonde.stats.kernels import fused, native
from sonde.stats.lent import Lent, is_looked_at
from sonde.stats.pair import PairStatistic
from sonde.stats.statistic import Column, RowStatistic, Statistic, dense

_ROWS = 64  # rows of the first block of a device; each further block is as large as all blocks before it
_BYTES = 1 << 20  # bytes of unused rows that a block may hold, whatever the number of rows


class Table:
    """The rows of *statistic*: float64, shape ``(1 + width,)``; the first number counts the additions.

    >>> import torch
    >>> from sonde.stats import Norm, Table
    >>> table = Table(Norm())
    >>> first, second = table.allocate(2, "cpu")
    >>> table.add(first, torch.tensor([3.0]))
    >>> table.merge(first, table.measured(torch.tensor([4.0])))
    >>> additions, numbers = table.read()
    >>> additions, numbers["norm"].tolist()
    ([2, 0], [5.0, 0.0])
    >>> before = table.copied()
    >>> table.clear(first)
    >>> table.restore([first], before)
    >>> table.finished(table.on_host([first]))[0], table.positions([second]).tolist()
    ([2], [1])
    >>> table.merged(first, first)[0].item(), Table.additions([table])[id(first)]
    (4.0, 2)
    >>> table.check(table.measured(torch.ones(1)))
    >>> table.replace(second, table.measured(torch.ones(1))[1:])
    >>> table.reset()
    >>> table.read()[0]
    [0, 0]
    >>> table.move(first, torch.device("cpu")).shape == second.shape
    True

    Rows of a device lie in few blocks, so that copying and emptying all rows takes few operations. A row is written in place and
    never replaced, except by :meth:`move`, because a kernel keeps the address of a row, and compiled code keeps the row itself.

    Every row is an alias of the block's memory *with an autograd version counter of its own*. Views of one block share a
    counter: then an addition to one row looks to autograd like a change of all rows, and the user's backward pass raises where a
    compiled region has saved one of them.

    Attributes:
        statistic: measures tensors and finishes rows.
        blocks: all rows, of shape ``(rows, 1 + width)`` per block; some may not be in use.
        changes: number of times that rows were allocated or moved, or got another place.

    Args:
        rows: how many rows the first block of a device has; None for a number that suits models.
    """

    def __init__(self, statistic: RowStatistic, rows: int | None = None) -> None:
        self.statistic = statistic
        self.blocks: list[Tensor] = []
        self.changes = 0
        self._width = statistic.width
        self._first = rows
        self._aligner = statistic.kernel if _is_aligned(statistic) else None
        self._merges_by_kind = type(statistic).merged in (Statistic.merged, PairStatistic.merged) and (
            not _is_aligned(statistic) or (self._aligner is not None and self._aligner.aligns)
        )
        self._empty: list[Tensor] = []  # of each block: its content while no tensor was added
        self._before: list[Tensor] = []  # of each block: additions to its rows before a reset that goes on counting
        self._unused: dict[torch.device, list[tuple[int, int]]] = {}  # places, the next one last
        self._rows: list[Tensor] = []
        self._places: list[tuple[int, int]] = []  # of each row: block, position
        self._numbers: dict[int, int] = {}  # of each row, by its id: its number
        self._measures = 0
        self._lock = threading.Lock()  # torch lets other threads run between reading a row and writing the row

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_of_values(self) -> bool:
        """Whether the statistic is one of sonde's own, which is equal to others by value, and holds plain values alone."""
        kind = type(self.statistic)
        return kind.__module__.startswith("sonde.stats.") and kind.__eq__ is not object.__eq__

    # Rows

    def allocate(self, rows: int, device: torch.device | str) -> list[Tensor]:
        """Return new empty rows on *device*."""
        self.changes += 1
        device = torch.empty(0, device=device).device  # as tensors name it: with its index
        unused = self._unused.setdefault(device, [])
        if len(unused) < rows:
            self._grow(rows - len(unused), device)
        places = [unused.pop() for _ in range(rows)]
        made = self._made(places)
        self._numbers |= {id(row): number for number, row in enumerate(made, start=len(self._rows))}
        self._places += places
        self._rows += made
        return made

    def _grow(self, rows: int, device: torch.device) -> None:
        """Add a block of at least *rows* rows on *device*."""
        width = 1 + self._width
        spare = self._first if self._first is not None and not self.blocks else max(_ROWS, len(self))
        rows = max(rows, min(spare, _BYTES // (8 * width)))
        with torch.inference_mode(False):
            empty = self._empty_rows(rows, device)
            self.blocks.append(empty.clone())
        self._empty.append(empty)
        self._unused[device] += [(len(self.blocks) - 1, position) for position in reversed(range(rows))]

    def _made(self, places: list[tuple[int, int]]) -> list[Tensor]:
        """Return an alias of the row at each place, with a version counter of its own, which a view does not have."""
        with torch.inference_mode(False):
            if len(places) == 1:
                return [self.blocks[block][position].data for block, position in places]
            rows = {block: self.blocks[block].unbind() for block in {block for block, _ in places}}
            return [rows[block][position].data for block, position in places]

    def _widen(self, width: int) -> None:
        """Let every row have *width* numbers, if it has fewer. A row stays the same tensor, in other memory."""
        if width <= self._width:
            return
        self.changes += 1
        former, self.statistic, self._width = 1 + self._width, self.statistic.at_width(width), width
        with torch.inference_mode(False), torch.no_grad():
            for number, block in enumerate(self.blocks):
                self._empty[number] = self._empty_rows(len(block), block.device)
                self.blocks[number] = self._empty[number].clone()
                self.blocks[number][:, :former] = block
            for row, moved in zip(self._rows, self._made(self._places), strict=True):
                row.data = moved

    def _empty_rows(self, rows: int, device: torch.device) -> Tensor:
        counted = torch.zeros(rows, 1, dtype=torch.float64, device=device)
        return torch.cat([counted, self.statistic.empty(rows, device)], dim=1)

    def _empty_at(self, row: Tensor) -> Tensor:
        """Return the content that *row* has while nothing was added to it."""
        block, _ = self._places[self._numbers[id(row)]]
        return self._empty[block][0]

    def move(self, row: Tensor, device: torch.device) -> Tensor:
        """Return the same row on *device*, under its old number. *row* is given up."""
        (moved,) = self.allocate(1, device)
        with torch.inference_mode(False), torch.no_grad():
            moved.copy_(row)
        self.clear(row)
        number = self._numbers.pop(id(row))
        self._unused[row.device].append(self._places[number])
        self._rows[number], self._places[number] = self._rows.pop(), self._places.pop()
        self._numbers[id(moved)] = number
        return moved

    def clear(self, row: Tensor) -> None:
        """Empty one row, in place."""
        row.copy_(self._empty_at(row))

    def replace(self, row: Tensor, content: Tensor) -> None:
        """Set the sums of one row to *content*, in place; the number of its additions stays."""
        if self.statistic.grows:
            self._widen(content.shape[0])
        row[1:].copy_(torch.cat([content, self._empty_at(row)[1 + content.shape[0] :]]))

    def positions(self, rows: Sequence[Tensor]) -> npt.NDArray[np.intp]:
        """Return the position of each of *rows* in all blocks joined."""
        starts = np.cumsum([0, *(len(block) for block in self.blocks)])
        places = (self._places[self._numbers[id(row)]] for row in rows)
        return np.array([starts[block] + position for block, position in places], np.intp)

    # Adding

    def measured(self, tensor: Tensor, previous: Tensor | None = None) -> Tensor:
        """Return the row of *tensor* alone; *previous* is its predecessor, for a statistic of pairs."""
        return self._led(self.statistic.row_of(tensor, previous))

    def _led(self, measure: Tensor) -> Tensor:
        """Return *measure* as a row, led by a count of one addition."""
        if not torch.compiler.is_dynamo_compiling():
            self._check(measure)
        elif measure.dim() != 1:
            return measure
        return torch.cat([torch.ones_like(measure[:1]), measure])

    def check(self, measured: Tensor) -> None:
        """Raise if *measured*, which traced code has measured, is no row of this table.

        Raises:
            ArgumentError: it is not one number for each of the fields.
        """
        self._check(measured[1:] if measured.dim() == 1 else measured)

    def _check(self, measure: Tensor) -> None:
        if measure.dim() == 1 and self.statistic.grows:
            self.statistic.at_width(measure.shape[0])
        elif measure.dim() != 1 or measure.shape[0] != self._width:
            numbers = f"{measure.numel()} number{'s' * (measure.numel() != 1)}"
            gave = numbers if measure.dim() == 1 else f"a tensor of shape {tuple(measure.shape)}"
            raise ArgumentError(f"{self.statistic!r}: measure gave {gave}, fields say {self._width}")

    def merged(self, row: Tensor, other: Tensor) -> Tensor:
        """Return a new row, the merge of *row* and *other*."""
        return torch.cat([row[:1] + other[:1], self.statistic.merged(row[1:], other[1:])])

    def add(self, row: Tensor, tensor: Tensor, previous: Tensor | None = None) -> None:
        """Add *tensor* to *row* in place. Several threads may add at the same time.

        Args:
            row: of this table, on the device of *tensor*.
            tensor: any tensor that the statistic can measure; see :meth:`sonde.stats.Accumulator.update`.
            previous: the predecessor of *tensor*, for a statistic of pairs.
        """
        kernel = self.statistic.kernel
        if kernel is not None and kernel.add(row, tensor, led=1):
            return
        self._measures = count = self._measures + 1
        measured = self._looked_at(tensor, previous) if is_looked_at(count) else self._measured(tensor, previous)
        self.merge(row, measured)

    def _looked_at(self, tensor: Tensor, previous: Tensor | None) -> Tensor:
        """Return the row of :meth:`measured`, and look whether the statistic has written into what it was lent.

        Raises:
            ArgumentError: it has.
        """
        tensor, previous = dense(tensor), None if previous is None else dense(previous)
        lent = Lent([("", tensor)] if previous is None else [("", tensor), ("", previous)])
        measured = self._measured(tensor, previous)
        if lent.written() is not None:
            self._measures -= 1  # the next one is looked at, too
            raise ArgumentError(
                f"{self.statistic!r} has written into the tensor that it measures, which the model goes on with: measure must "
                "leave its argument as it is, as x.abs() does and x.abs_() does not"
            )
        return measured

    def _measured(self, tensor: Tensor, previous: Tensor | None) -> Tensor:
        """Return the row of :meth:`measured`, in eager mode, by the fastest way for the device of *tensor*."""
        if not fused.is_fused(tensor) or not isinstance(self.statistic, Statistic):
            return self.measured(tensor, previous)
        return self._led(fused.measure(self.statistic, dense(tensor)))

    def merge(self, row: Tensor, other: Tensor) -> None:
        """Add the row *other*, which counts its own additions, to *row* in place. Several threads may add at the same time."""
        if self.statistic.grows and other.shape[0] != row.shape[0]:
            with self._lock:
                self._widen(other.shape[0] - 1)
                other = torch.cat([other, self._empty_at(row)[other.shape[0] :]])
        if self._merges_by_kind:
            sums, minima = self.statistic._cuts()
            if native.merge(row, other, 1 + sums, minima - sums, row.numel() - 1 - minima, self._aligner):
                return
        with self._lock, torch.no_grad():
            row.copy_(self.merged(row, other))

    # All rows

    def copied(self) -> list[Tensor]:
        """Return a copy of every block, for :meth:`restore`."""
        return [block.clone() for block in self.blocks]

    def restore(self, rows: Sequence[Tensor], copied: Sequence[Tensor]) -> None:
        """Set *rows* back to their content when *copied* was made; rows that were moved since then stay unchanged."""
        for row in rows:
            block, position = self._places[self._numbers[id(row)]]
            if block < len(copied):
                former = copied[block][position]  # of a table that grows, perhaps narrower
                row.copy_(torch.cat([former, self._empty_at(row)[former.shape[0] :]]))

    def reset(self, *, counts_on: bool = False) -> None:
        """Empty every row, in place. No host sync.

        Args:
            counts_on: let :meth:`additions` count what was added before, too.
        """
        if not counts_on:
            self._before = []
        else:
            known = len(self._before)
            self._before = [
                block[:, 0] + self._before[number] if number < known else block[:, 0].clone()
                for number, block in enumerate(self.blocks)
            ]
        for block, empty in zip(self.blocks, self._empty, strict=True):
            block.copy_(empty)

    @staticmethod
    def additions(tables: Sequence[Table]) -> dict[int, int]:
        """Return by the id of each row of *tables* how often something was added to it, also before a reset that counts on.

        One copy per device, whatever the number of tables.
        """
        placed = [list(zip(table._rows, table._places, strict=False)) for table in tables]  # first: rows may be added now
        columns = [[block[:, 0] for block in table.blocks] for table in tables]
        former = [list(table._before) for table in tables]
        arrived = iter(HostCopy.of([column for each in (*columns, *former) for column in each]).unpack())
        counts = [[next(arrived) for _ in each] for each in columns]
        before = [[next(arrived) for _ in each] for each in former]
        return {
            id(row): int(now[block][at] + (then[block][at] if block < len(then) else 0))
            for places, now, then in zip(placed, counts, before, strict=True)
            for row, (block, at) in places
        }

    def read(self, rows: Sequence[Tensor] | None = None) -> tuple[list[int], dict[str, Column]]:
        """Return the additions to each of *rows*, and the numbers of the statistic. One copy per device.

        Without *rows* every row is read, in order of allocation. Of no rows there are no numbers.
        """
        return self.finished(self.on_host(self._rows if rows is None else rows))

    def on_host(self, rows: Sequence[Tensor]) -> npt.NDArray[np.float64]:
        """Return a copy of *rows* on the host, of shape ``(rows, 1 + width)``. One copy per device."""
        if not rows:
            return np.zeros((0, 1 + self._width))
        joined: npt.NDArray[np.float64] = np.concatenate(HostCopy.of(self.blocks).unpack())
        return joined[self.positions(rows)]

    def finished(self, rows: npt.NDArray[np.float64]) -> tuple[list[int], dict[str, Column]]:
        """Return the additions to each of *rows*, as of :meth:`on_host`, and the numbers of the statistic; of no rows none."""
        if not len(rows):
            return [], {}
        return rows[:, 0].astype(int).tolist(), self.statistic.finish(self.statistic.columns(torch.from_numpy(rows[:, 1:])))


def _is_aligned(statistic: RowStatistic) -> bool:
    """Return whether the sums of *statistic* depend on its minima."""
    return isinstance(statistic, Statistic) and type(statistic).aligned is not Statistic.aligned
