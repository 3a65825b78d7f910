"""Read the rows of a store in another order, with bounded memory, shared among workers of loaders and ranks of a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sonde.errors import ArgumentError
from sonde.run.tensors.rows import Blocks, Rows
from sonde.run.tensors.shards import loaded_torch

_PIECES = 64  # of rows that lie together on disk, mixed in memory at once


class Shuffled:
    """Batches of all rows, each row once, in an order that the seed and the epoch give; made by ``store.shuffled()``.

    The rows are cut into pieces of neighbours, and the pieces put in a random order. As many as the memory holds are read and
    mixed row by row. Workers of a ``DataLoader`` (with ``batch_size=None``) and ranks each go through a share of the pieces, of the
    same number of rows but for one.
    """

    def __init__(self, blocks: Blocks, batch: int, seed: int, columns: Sequence[str] | None, memory: float) -> None:
        if batch < 1:
            raise ArgumentError(f"a batch of {batch} rows: give 1 or more")
        self._rows = Rows(blocks, columns)
        self._blocks = blocks
        self._columns = list(blocks.columns if columns is None else columns)
        self._batch = batch
        self._seed = seed
        sizes = [blocks.empty(name).element_size() * int(np.prod(blocks.columns[name][1])) for name in self._columns]
        self._in_memory = max(
            batch, int(min(memory / (2 * max(1, sum(sizes))), blocks.rows))
        )  # half for what was read, half for its next mixture
        self._ranks = _ranks((0, 1))
        self._epoch = loaded_torch().zeros(1, dtype=loaded_torch().int64).share_memory_()  # workers that live on read it, too
        loaded_torch().utils.data.IterableDataset.register(Shuffled)

    def __getstate__(self) -> dict[str, Any]:
        """Return this for a worker, which is of no group of ranks itself."""
        return self.__dict__ | {"_ranks": _ranks(self._ranks)}

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration have the order of this epoch, as ``DistributedSampler`` has it."""
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        share, shares = self._share()
        chance = np.random.default_rng([self._seed, int(self._epoch), share])
        torch, left = loaded_torch(), 0
        held: dict[str, Any] = {}  # one memory for all mixtures: new pages cost more than the copy
        for pieces in self._windows(share, shares):
            count = left + sum(end - first for _, first, end in pieces)
            for name in self._columns:
                parts = [self._blocks.tensor(block, name)[first:end] for block, first, end in pieces]
                if name not in held or len(held[name]) < count:
                    rest = [held[name][:left]] if left else []
                    held[name] = torch.cat([*rest, *parts])
                else:
                    torch.cat(parts, out=held[name][left:count])
            order = torch.from_numpy(chance.permutation(count))
            whole, left = count - count % self._batch, count % self._batch
            for first in range(0, whole, self._batch):
                yield {name: tensor.index_select(0, order[first : first + self._batch]) for name, tensor in held.items()}
            for tensor in held.values():
                tensor[:left] = tensor.index_select(0, order[whole:])
        if left:
            yield {name: tensor[:left].clone() for name, tensor in held.items()}

    def _windows(self, share: int, shares: int) -> Iterator[list[tuple[int, int, int]]]:
        """Yield what is read and mixed at once: parts of shards, of this share of all rows."""
        rows = self._blocks.rows
        piece = max(1, min(self._in_memory // _PIECES, rows // (16 * shares)))
        starts = np.arange(0, rows, piece)
        np.random.default_rng([self._seed, int(self._epoch)]).shuffle(starts)
        lengths = np.minimum(starts + piece, rows) - starts
        ends = np.cumsum(lengths)  # of the pieces, laid one behind the other
        first, last = rows * share // shares, rows * (share + 1) // shares
        window: list[tuple[int, int, int]] = []
        taken = 0
        for at in range(int(ends.searchsorted(first, "right")), len(starts)):
            begins = int(ends[at] - lengths[at])
            if begins >= last:
                break
            offset = int(starts[at]) - begins
            a, b = max(begins, first) + offset, min(int(ends[at]), last) + offset
            window += self._blocks.pieces(a, b)
            taken += b - a
            if taken >= self._in_memory:
                yield window
                window, taken = [], 0
        if window:
            yield window

    def _share(self) -> tuple[int, int]:
        """The number of this worker of this rank among all workers of all ranks, and how many there are."""
        rank, ranks = _ranks(self._ranks)
        worker = loaded_torch().utils.data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return rank * workers + number, ranks * workers

    def __repr__(self) -> str:
        return f"Shuffled({self._rows!r} in batches of {self._batch:,}, seed {self._seed}, epoch {int(self._epoch)})"


def _ranks(otherwise: tuple[int, int]) -> tuple[int, int]:
    """This rank and how many there are; *otherwise* where no group of ranks was made in this process."""
    distributed = loaded_torch().distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return otherwise
