"""Where rows go as they come: tensors by column, filled batch by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.words import shape_text

Columns = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Type and shape of a row, by column."""


class Place(ABC):
    """A tensor for each column, filled from the front.

    Attributes:
        used: rows in it.
        rows: rows that came so far, those that have left it included.
        columns: as given.
        row_bytes: of all columns.
        most: rows that it may hold.

    Args:
        columns: what a row is, as the first batch shows.
        size: bytes of all tensors.
    """

    def __init__(self, columns: Columns, size: float) -> None:
        self.used = self.rows = 0
        self.columns = columns
        self.row_bytes = sum(dtype.itemsize * torch.Size(shape).numel() for dtype, shape in columns.values())
        self.most = max(int(size // max(self.row_bytes, 1)), 1)
        self._tensors: dict[str, Tensor] = {}

    @abstractmethod
    def begin(self, rows: int) -> None:
        """Prepare for *rows* more. Called within a forward."""

    def target(self, column: str, rows: int, shape: tuple[int, ...]) -> Tensor:
        """Return the place of the next *rows* of *column*, whose rows have this *shape*.

        Raises:
            ArgumentError: the column is unknown, or its rows had another shape before.
        """
        if column not in self.columns:
            raise ArgumentError(f"{column} came, which had nothing in the first batch: what is kept must come in every batch")
        known = self.columns[column][1]
        if shape != known:
            raise ArgumentError(
                f"rows of {column} have the shape {shape_text(shape)}, and had {shape_text(known)} in the first batch. If axis 1 "
                "is that of positions, give positions=, so that a row is one position; else bring them to one shape by transform="
            )
        return self._next(column, rows)

    def end(self, rows: int) -> None:
        """Count the *rows* that were filled."""
        self.used += rows
        self.rows += rows

    def _next(self, column: str, rows: int) -> Tensor:
        return self._tensors[column][self.used : self.used + rows]

    def _allocate(self, rows: int, device: torch.device | None = None, *, pinned: bool = False) -> dict[str, Tensor]:
        """Return tensors for *rows* of each column. Pages of memory that are not yet written take none."""
        return {
            name: torch.empty((rows, *shape), dtype=dtype, device=device or "cpu", pin_memory=pinned)
            for name, (dtype, shape) in self.columns.items()
        }
