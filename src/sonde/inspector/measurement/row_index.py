"""Map sites to rows of a table; finish the rows of many moments into numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sonde.errors import ArgumentError
from sonde.rows import Layout, Scope
from sonde.site import MODULE_PORTS, Port
from sonde.stats import Key, RowStatistic

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RowIndex:
    """The row of each site in a table, at one moment. The training thread makes a RowIndex; the writer thread reads it.

    Attributes:
        family: of the rows in the run.
        statistic: finishes the rows.
        layout: the sites.
        index: of each site, the position of its row in all blocks joined.
        ports: of each site, its port.
        sizes: of each site, how many times as large its tensor is as the part that was measured: 1, or more for a sample.
        keys: of each site, which rows of other ranks its row joins, None for none; None where no row joins any.
    """

    family: str
    statistic: RowStatistic
    layout: Layout
    index: npt.NDArray[np.intp]
    ports: tuple[Port, ...]
    sizes: Numbers
    keys: tuple[Key | None, ...] | None = None

    def rows_in(self, blocks: Sequence[Numbers]) -> Numbers:
        """Return the rows of the sites, of shape ``(sites, 1 + width)``, from all blocks of the table."""
        joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return joined.take(self.index, axis=0)

    @cached_property
    def joins(self) -> bool:
        """Whether any row joins rows of other ranks."""
        return self.keys is not None and any(key is not None for key in self.keys)

    @cached_property
    def alone(self) -> RowIndex:
        """The index of the same rows of this rank, in the order of the sites."""
        return replace(self, index=np.arange(len(self.layout)), keys=None)

    @cached_property
    def joined(self) -> RowIndex:
        """The index of rows that are joined with those of other ranks, in the order of the sites."""
        scopes: list[Scope] = ["data-parallel" if port in MODULE_PORTS else "global" for port in self.ports]
        return replace(self.alone, layout=self.layout.of_scope(scopes))

    @cached_property
    def beside(self) -> RowIndex:
        """The index of rows of this rank that are written beside the joined ones, in a family of their own."""
        return replace(self.alone, family=f"{self.family}_rank")

    def finish(self, moments: Sequence[Sequence[Numbers]]) -> tuple[npt.NDArray[np.bool_], Numbers, dict[str, Numbers]]:
        """Finish the rows of several moments at once.

        Args:
            moments: of each moment all blocks of the table.

        Returns:
            Which sites were added to, of shape ``(moments, sites)``. Of these sites, one moment after the other: how often, of
            shape ``(rows,)``; and the numbers, with the fields that the statistic records beside them.

        Raises:
            ArgumentError: the statistic gives numbers for another number of rows.
        """
        every = np.empty((len(moments), len(self.index), moments[0][0].shape[1]))
        for place, blocks in zip(every, moments, strict=True):
            place[:] = self.rows_in(blocks)
        seen = every[..., 0] != 0
        rows: Numbers = every.reshape(-1, every.shape[2]) if seen.all() else every[seen]
        if not len(rows):
            return seen, rows[:, 0], {}
        numbers = self._numbers(rows)
        if (self.sizes != 1).any():
            sizes = np.broadcast_to(self.sizes, seen.shape)[seen]
            for name in numbers:
                if name not in self.statistic.recorded and (power := self.statistic.number(name).growth):
                    numbers[name] = numbers[name] * sizes**power
        return seen, rows[:, 0].copy(), numbers

    def _numbers(self, rows: Numbers) -> dict[str, Numbers]:
        """Return the numbers of *rows*, which lead with their counts, and the fields that the statistic records beside them."""
        with np.errstate(all="ignore"):  # where a statistic divides by zero there is no number, which NaN says
            columns = self.statistic.columns(torch.from_numpy(rows[:, 1:]))
            found = {**self.statistic.finish(columns), **{name: columns[name] for name in self.statistic.recorded}}
        return {name: _checked(name, column, len(rows)) for name, column in found.items()}

    def unfinished(self, blocks: Sequence[Numbers]) -> dict[int, Exception]:
        """Return the sites, by position, whose row at one moment the statistic cannot finish alone, each with the error.

        Empty also where the statistic fails for all rows together, but for none of them alone.
        """
        rows = self.rows_in(blocks)
        found: dict[int, Exception] = {}
        for place in np.flatnonzero(rows[:, 0]).tolist():
            for is_again in (False, True):  # what has raised once need not raise again
                try:
                    self._numbers(rows[place : place + 1])
                    break
                except Exception as error:
                    if is_again:
                        found[place] = error
        return found

    def without(self, places: Collection[int], blocks: Sequence[Numbers]) -> Numbers:
        """Return the rows of the sites, in their order, as if nothing had been added at *places*: blocks of :attr:`alone`."""
        rows = self.rows_in(blocks).copy()
        rows[list(places), 0] = 0
        return rows

    def unscale(self, numbers: dict[str, Numbers], scales: Numbers) -> list[str]:
        """Divide *numbers*, in place, by the power of *scales* that each number follows.

        Args:
            numbers: as :meth:`finish` gives them.
            scales: of each row, the factor that its tensor was multiplied by. 1 is no factor.

        Returns:
            The names of numbers without a declared scaling: they are NaN now where the factor is not 1.
        """
        unknown = []
        for name, column in numbers.items():
            power = 0.0 if name in self.statistic.recorded else self.statistic.number(name).scaling
            along = scales.reshape(-1, *[1] * (column.ndim - 1))
            if power is None:
                if (scales != 1).any():
                    unknown.append(name)
                    numbers[name] = np.where(along == 1, column, np.nan)
            elif power:
                numbers[name] = column / along**power
        return unknown


def _checked(name: str, column: Any, rows: int) -> Numbers:
    """Return a column that a statistic gave, if it has a number, or a list, for each row; one number stands for all."""
    values = np.asarray(column)
    if values.ndim == 0:
        return np.full(rows, values)
    if len(values) != rows:
        raise ArgumentError(f"{name!r} has the shape {values.shape}, where there are {rows} rows")
    return values
