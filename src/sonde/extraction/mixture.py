"""Rows that wait in a buffer until they are given out in random order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.extraction.place import Columns, Place
from sonde.words import many, size_text


class Mixture(Place):
    """A buffer that is filled, and gives out half of its rows, chosen at random, wherever no batch has room any more.

    Args:
        columns: as of :class:`Place`.
        size: bytes of the buffer.
        batch: rows to give out at a time.
        seed: of the order.
        device: of the buffer.
        may_move: be on the CPU where the device has no room.
    """

    def __init__(
        self, columns: Columns, size: float, batch: int, seed: int, device: torch.device | None, *, may_move: bool
    ) -> None:
        super().__init__(columns, size)
        self._batch = batch
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device
        self._may_move = may_move
        self._largest = 0  # rows of a batch so far
        self._late: dict[str, Tensor] = {}  # the rows of a batch that was larger than those before, and had no room

    @property
    def is_full(self) -> bool:
        """Whether rows have to leave before the next batch comes."""
        return bool(self._late) or self.used + self._largest > self.most

    def begin(self, rows: int) -> None:
        """Prepare for *rows* more.

        Raises:
            ArgumentError: the buffer is too small.
        """
        if rows + self._batch > self.most:
            raise ArgumentError(
                f"buffer={size_text(self.most * self.row_bytes)} holds {many(self.most, 'row')} of {self.row_bytes:,} bytes, and "
                f"{rows:,} come at once where {self._batch:,} are given out: give more, smaller batches, or a smaller rows="
            )
        if not self._tensors:
            self._tensors = self._made()
        self._largest = max(self._largest, rows)
        if self.used + rows > self.most:
            self._late = self._allocate(rows, self._device)

    def end(self, rows: int) -> None:
        """Count the *rows* that were filled."""
        self.rows += rows
        self.used += 0 if self._late else rows

    def given_out(self) -> Iterator[dict[str, Tensor]]:
        """Yield batches of rows until the next batch of the data has room."""
        while self.used + self._largest > self.most:
            count = max(self.used // 2 // self._batch, 1) * self._batch
            order = torch.randperm(self.used, generator=self._generator, device="cpu")[:count]
            yield from self._batches(order)
            self._close_up(order)
        late, self._late = self._late, {}
        if late:
            rows = len(next(iter(late.values())))
            for name, held in late.items():
                self._next(name, rows).copy_(held)
            self.used += rows

    def rest(self) -> Iterator[dict[str, Tensor]]:
        """Yield all rows; the last batch may have fewer."""
        yield from self.given_out()
        yield from self._batches(torch.randperm(self.used, generator=self._generator, device="cpu"))

    def _made(self) -> dict[str, Tensor]:
        try:
            return self._allocate(self.most, self._device)
        except torch.OutOfMemoryError:
            if not self._may_move:
                raise
            self._device = None
            return self._allocate(self.most)

    def _next(self, column: str, rows: int) -> Tensor:
        return self._late[column] if self._late else super()._next(column, rows)

    def _batches(self, order: Tensor) -> Iterator[dict[str, Tensor]]:
        for part in torch.split(order.to(self._device or "cpu"), self._batch):
            if len(part):
                yield {name: held.index_select(0, part) for name, held in self._tensors.items()}

    def _close_up(self, gone: Tensor) -> None:
        """Move the last rows to the places of those that are *gone*."""
        left = self.used - len(gone)
        is_gone = torch.zeros(self.used, dtype=torch.bool, device="cpu")
        is_gone[gone] = True
        to, kept = is_gone[:left].nonzero()[:, 0], (~is_gone[left:]).nonzero()[:, 0] + left
        device = self._device or "cpu"
        for targets, sources in zip(
            torch.split(to.to(device), self._batch), torch.split(kept.to(device), self._batch), strict=True
        ):
            for held in self._tensors.values():
                held.index_copy_(0, targets, held.index_select(0, sources))
        self.used = left
