"""The shard that is being filled: buffers that hooks write into, in turn with those that a thread writes to disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.words import shape_text

Write = Callable[[dict[str, Tensor], Any], None]
"""Writes the columns of one shard, with what ``OpenShard.cut`` was told of it."""


class OpenShard:
    """Buffers of one shard, filled batch by batch. A shard ends at a batch, by bytes alone: the same data make the same shards.

    Attributes:
        used: rows in it so far.
        rows: of all shards so far.
        columns: as given.

    Args:
        columns: type and shape of a row of each column.
        size: bytes of a shard; a batch that is larger has a shard of its own.
        write: called in a thread of its own, with one shard at a time.
        device: where the tensors come from: for an accelerator the buffers are pinned, and filled without waiting.
    """

    def __init__(
        self, columns: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], size: float, write: Write, device: torch.device | None
    ) -> None:
        self.used = self.rows = 0
        self.columns = columns
        self._write = write
        self._device = device
        self.row_bytes = sum(dtype.itemsize * shape.numel() for dtype, shape in _sizes(columns))
        self._most = max(int(size // max(self.row_bytes, 1)), 1)
        self._buffers: dict[str, Tensor] = {}
        self._others: dict[str, Tensor] = {}
        self._thread = ThreadPoolExecutor(1, "sonde extract")
        self._under_way: Future[None] | None = None

    def has_room(self, rows: int) -> bool:
        """Return whether so many *rows* belong into this shard, and not into the next."""
        return not self.used or self.used + rows <= self._most

    def begin(self, rows: int) -> None:
        """Prepare for *rows* more."""
        wanted = max(self._most, rows)
        if not self._buffers or len(next(iter(self._buffers.values()))) < wanted:
            self._buffers = {  # pages of memory that are not yet written take none
                name: torch.empty((wanted, *shape), dtype=dtype, pin_memory=self._device is not None)
                for name, (dtype, shape) in self.columns.items()
            }

    def target(self, column: str, rows: int, shape: tuple[int, ...]) -> Tensor:
        """Return the place of the next *rows* of *column*, whose rows have this *shape*.

        Raises:
            ArgumentError: the column is unknown, or its rows had another shape before.
        """
        if column not in self.columns:
            raise ArgumentError(f"{column} came, which had nothing in the first batch: one store holds what comes in every batch")
        known = self.columns[column][1]
        if shape != known:
            raise ArgumentError(
                f"rows of {column} have the shape {shape_text(shape)}, and had {shape_text(known)} in the first batch. If axis 1 "
                "is that of positions, give positions=, so that a row is one position; else bring them to one shape by transform="
            )
        return self._buffers[column][self.used : self.used + rows]

    def end(self, rows: int) -> None:
        """Count the *rows* that were filled."""
        self.used += rows
        self.rows += rows

    def cut(self, told: Any) -> None:
        """Hand the shard, if it holds anything, to the thread with what is *told* of it, and begin the next.

        Raises:
            Exception: what writing the shard before has raised.
        """
        if not self.used:
            return
        self.wait()
        copied = None
        if self._device is not None:
            copied = torch.Event(self._device)
            copied.record()
        full = {name: buffer[: self.used] for name, buffer in self._buffers.items()}
        self._under_way = self._thread.submit(self._write_copied, copied, full, told)
        self._buffers, self._others, self.used = self._others, self._buffers, 0

    def check(self) -> None:
        """Raise what writing has raised so far, without waiting."""
        if self._under_way is not None and self._under_way.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the shard that is being written.

        Raises:
            Exception: what writing it has raised.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def stop(self) -> None:
        """Wait for the thread, and end it."""
        self._thread.shutdown()

    def _write_copied(self, copied: torch.Event | None, columns: dict[str, Tensor], told: Any) -> None:
        if copied is not None:
            copied.synchronize()
        self._write(columns, told)


def _sizes(columns: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> list[tuple[torch.dtype, torch.Size]]:
    return [(dtype, torch.Size(shape)) for dtype, shape in columns.values()]
