"""The shard that is being filled: buffers that hooks write into, in turn with those that a thread writes to disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from sonde.extraction.place import Columns, Place

Write = Callable[[dict[str, Tensor], Any], None]
"""Writes the columns of one shard, with what ``OpenShard.cut`` was told of it."""


class OpenShard(Place):
    """Buffers of one shard. A shard ends at a batch, by bytes alone: the same data make the same shards.

    Args:
        columns: as of :class:`Place`.
        size: bytes of a shard; a batch that is larger has a shard of its own.
        write: called in a thread of its own, with one shard at a time.
        full: called where a batch does not fit; it cuts the shard.
        device: where the tensors come from: for an accelerator the buffers are pinned, and filled without waiting.
    """

    def __init__(
        self, columns: Columns, size: float, write: Write, full: Callable[[], object], device: torch.device | None
    ) -> None:
        super().__init__(columns, size)
        self._write = write
        self._full = full
        self._device = device
        self._others: dict[str, Tensor] = {}
        self._thread = ThreadPoolExecutor(1, "sonde extract")
        self._under_way: Future[None] | None = None

    def begin(self, rows: int) -> None:
        """Prepare for *rows* more, in this shard or the next."""
        if self.used and self.used + rows > self.most:
            self._full()
        wanted = max(self.most, rows)
        if not self._tensors or len(next(iter(self._tensors.values()))) < wanted:
            self._tensors = self._allocate(wanted, pinned=self._device is not None)

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
        full = {name: buffer[: self.used] for name, buffer in self._tensors.items()}
        self._under_way = self._thread.submit(self._write_copied, copied, full, told)
        self._tensors, self._others, self.used = self._others, self._tensors, 0

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
