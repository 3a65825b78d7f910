"""Which batches a process runs, which of their items it stores, and which numbers these have."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from sonde.engine import remap, walk
from sonde.errors import ArgumentError, StoreError
from sonde.extraction.crew import Crew
from sonde.extraction.digest import digest
from sonde.extraction.intake import Intake, named
from sonde.words import many

Key = int | str
"""What names a batch: its number in the data, or a digest of the indices of its items."""

CURE = "give another path, or exists='replace'"
_OTHER_ORDER = (
    "Data that come in another order each time can be continued by their ids: order=, from the beginning. Else give the data as "
    f"they were, {CURE}"
)
_OTHERWISE = (
    "Give all ranks the same batches in the same order (with a seed for the shuffle), or each a DataLoader with a "
    "DistributedSampler, or ids of the items by order="
)


class Part(NamedTuple):
    """What a process stores of a batch.

    Attributes:
        key: of the batch.
        items: how many the batch has; None if the model is to tell.
        keep: of each item, whether it is stored; None for all.
        numbers: of each item, the number that it has; or of the first of those that are stored, which follow each other.
        inputs: the digest of the batch; None where it was not formed.
    """

    key: Key
    items: int | None
    keep: Tensor | None
    numbers: Tensor | int
    inputs: str | None


class Stored(NamedTuple):
    """What a store holds of a batch: the digest, and how many items it has."""

    inputs: str
    items: int


class Sharing:
    """The batches of one process, and the numbers of their items.

    Where all processes read the same data, a batch is that of the replica whose turn it is, and an item has its number in the
    data. Where a ``DistributedSampler`` gives each replica data of its own, an item has its index in the data set, and one that
    comes twice, as the sampler repeats some, is stored once. Ids (``order``) say which items are stored, in whatever order they
    come; where each process then reads data of its own, the numbers of the replicas are interleaved.

    Attributes:
        read: batches that were read.
        new: batches that had something new for this process, or for whose turn it was.

    Args:
        crew: the processes.
        batches: as the user gives them.
        stored: what the store holds, by the key of a batch; None where there is none, and all need not be compared.
        first: a number that no stored item has, nor any behind it.
        items: the numbers of the stored items, where a ``DistributedSampler`` says which come.
        ids: of the stored items; None without ids.
        ids_of: returns the ids of the items of a batch.
    """

    def __init__(
        self,
        crew: Crew,
        batches: Any,
        stored: Mapping[Key, Stored] | None,
        first: int,
        items: Callable[[], Tensor],
        ids: set[int] | None,
        ids_of: Callable[[Any], list[int]],
    ) -> None:
        self.read = self.new = 0
        self._crew = crew
        self._stored = stored or {}
        self._compares = stored is not None and not crew.is_alone
        self._ids = ids
        self._ids_of = ids_of
        self._next = first if ids is not None else 0  # the number of the next item
        self._seen: set[Key] = set()
        self._last: Any = None
        self._differ = False  # each process reads data of its own
        self._chain = ""
        self._counts: list[str] = []  # the parts of a batch that have as many entries as it has items
        self._indices = indices_of(batches, crew)
        if self._indices is not None:
            self._wanted, self._all = _without_repeats(self._indices, crew, items())

    @property
    def items(self) -> int | None:
        """How many items there are so far, or in all where a sampler says; None where processes read data of their own."""
        return None if self._differ else self._next if self._indices is None else self._all

    def compare(self, inputs: Sequence[tuple[int, str]]) -> None:
        """Note whether all processes read the same data, as the digests of their first batches say, each with its share.

        Raises:
            ArgumentError: they do not, and nothing says which items each has.
        """
        replicas = dict(inputs)
        for number, first in inputs:
            if replicas[number] != first:
                raise ArgumentError(
                    "ranks that hold one model together (tensor parallel) read other data than each other: give them the same "
                    "batches"
                )
        self._differ = self._indices is None and len(set(replicas.values())) > 1
        if self._differ and self._ids is None:
            raise ArgumentError(f"the ranks read other data than each other, and nothing says which items each has. {_OTHERWISE}")

    def learn(self, batch: Any, items: int) -> None:
        """Learn from the first *batch*, whose *items* the model has told, which parts of a batch tell how many it has.

        Raises:
            ArgumentError: none does.
        """
        self._counts = [name for name, count in _lengths(batch).items() if count == items]
        if not self._counts and self._indices is None and self._ids is None:
            raise ArgumentError(
                f"no part of the batch has {many(items, 'item')}, so that ranks cannot number items of batches that others run: "
                "give ids of the items by order="
            )

    def rounds(self, iterator: Iterator[Any], *, full: Callable[[], bool]) -> Iterator[tuple[Any, Part | None]]:
        """Yield what this process runs, one batch after the other, each with its part; None for one that it only runs along.

        Args:
            iterator: of the batches.
            full: returns whether this process can store no more.

        Raises:
            StoreError: a batch that is stored was another one.
        """
        rounds = self._turns(iterator) if not (self._differ or self._indices is not None) else self._own(iterator)
        if not self._crew.in_step:
            yield from rounds
            return
        while True:
            batch, part = next(rounds, (self._last, None))
            some, is_full = self._crew.minimum([-(part is not None), -full()])
            if not some or is_full:
                rounds.close()
                return
            yield batch, part

    def _turns(self, iterator: Iterator[Any]) -> Generator[tuple[Any, Part | None]]:
        turn = 0
        for number, batch in enumerate(iterator):
            part = self._new(number, batch)
            if part is not None:
                if turn == self._crew.number:
                    yield batch, part  # at once: the data may use the memory of the batch for the next one
                turn = (turn + 1) % self._crew.of
        if self._crew.in_step and 0 < turn <= self._crew.number:
            yield self._last, None

    def _own(self, iterator: Iterator[Any]) -> Generator[tuple[Any, Part | None]]:
        for number, batch in enumerate(iterator):
            part = self._new(number, batch)
            if part is not None:
                yield batch, part

    def _new(self, number: int, batch: Any) -> Part | None:
        """Return what is to be stored of a batch, by whichever process; None for nothing.

        Raises:
            StoreError: it is stored, and was another one.
        """
        self._last = batch
        self.read += 1
        key: Key = number if self._indices is None else digest(self._indices[number]) if number < len(self._indices) else ""
        inputs = None
        stored = self._stored.get(key) if self._ids is None else None
        if stored is not None or self._compares:
            inputs = digest(batch)
            self._chain = digest(self._chain, inputs)
        self._seen.add(key)
        if stored is not None and stored.inputs != inputs:
            known = next((at for at, each in self._stored.items() if each.inputs == inputs and isinstance(at, int)), None)
            at = "" if known is None else f", and was batch {known:,}: they come in another order"
            raise StoreError(f"batch {number:,} of the data is not the one that is stored{at}. {_OTHER_ORDER}")
        if self._indices is not None:
            return self._of_indices(number, key, inputs, batch)
        if stored is not None:
            self._next += stored.items
            return None
        if self._ids is not None:
            return self._of_ids(key, inputs, batch)
        self.new += 1
        part = Part(key, None if self._crew.of == 1 else self._count(number, batch), None, self._next, inputs)
        self._next += part.items or 0
        return part

    def put(self, intake: Intake, batch: Any, part: Part) -> int:
        """Let *intake* run the models on *batch* and take its *part*; return how many items the batch has.

        Raises:
            ArgumentError: the model has another number of items than was counted.
        """
        if isinstance(part.numbers, int):
            intake.items = part.numbers
        intake.add(batch, part.keep, None if isinstance(part.numbers, int) else part.numbers)
        assert intake.rows is not None
        items = intake.rows.items
        if part.items is None:  # the model alone could tell
            self._next += items
        elif part.items != items:
            raise ArgumentError(f"the model was given {many(items, 'item')}, and the batch, as ranks count, has {part.items:,}")
        return items

    def _of_indices(self, number: int, key: Key, inputs: str | None, batch: Any) -> Part | None:
        assert self._indices is not None
        if number >= len(self._indices):
            raise ArgumentError(f"the loader gives more batches than its sampler has, {len(self._indices):,}")
        keep = self._wanted[number]
        if self._ids is not None:
            keep = keep & self._unknown(batch)
        if not bool(keep.any()):
            return None
        self.new += 1
        return Part(key, len(keep), None if bool(keep.all()) else keep, torch.tensor(self._indices[number], device="cpu"), inputs)

    def _of_ids(self, key: Key, inputs: str | None, batch: Any) -> Part | None:
        keep = self._unknown(batch)
        count = int(keep.sum())
        if not count:
            return None
        self.new += 1
        if not self._differ:
            first, self._next = self._next, self._next + count
            return Part(key, len(keep), keep, first, inputs)
        numbers = torch.zeros(len(keep), dtype=torch.int64, device="cpu")
        numbers[keep] = self._next + self._crew.number + self._crew.of * torch.arange(count, device="cpu")
        self._next += count * self._crew.of
        return Part(key, len(keep), keep, numbers, inputs)

    def _unknown(self, batch: Any) -> Tensor:
        assert self._ids is not None
        ids = self._ids_of(batch)
        keep = torch.tensor(
            [each not in self._ids and each not in ids[:at] for at, each in enumerate(ids)], dtype=torch.bool, device="cpu"
        )
        self._ids.update(ids)
        return keep

    def _count(self, number: int, batch: Any) -> int:
        """Return how many items a batch has that another process may run."""
        lengths = _lengths(batch)
        found = {lengths.get(name) for name in self._counts}
        if len(found) != 1 or None in found:
            raise ArgumentError(
                f"batch {number:,}: how many items it has cannot be told from it: {', '.join(self._counts)} had as many entries as "
                "items in the first batch. Ranks number the items of batches that others run: give ids of the items by order="
            )
        return int(found.pop() or 0)

    def check_end(self) -> None:
        """Check, at the end of the data, that all that is stored has come, and that all processes have read the same.

        Raises:
            StoreError: less has come than is stored.
            RankError: the processes have read other data.
        """
        if self._indices is not None or self._differ:
            return
        missing = self._stored.keys() - self._seen if self._ids is None else ()
        if missing:
            ended = f"the data end after {many(self.read, 'batch', 'batches')}, and the store holds {len(self._stored):,}"
            raise StoreError(f"{ended}. {_OTHER_ORDER}")
        if len(set(self._crew.all(self._chain))) > 1:
            raise StoreError(
                f"the ranks have read other data than each other, so that items are missing or stored twice. {_OTHERWISE}, and "
                "exists='replace'"
            )


def looked(
    iterator: Iterator[Any], intake: Intake, sharing: Sharing, crew: Crew, call: str
) -> tuple[Iterator[Any], dict[str, Tensor]]:
    """Run the first batch on each process, so that all know the columns; return the whole iterator, and the rows of the batch.

    Raises:
        ArgumentError: there is no batch, or the processes cannot share the data.
    """
    first = next(iterator, crew)
    if first is crew:
        raise ArgumentError("batches: there is none")
    inputs = digest(first)
    with crew.needed(), named(0, call):
        items, rows = intake.look(remap(first, torch.clone, objects=True))  # a model may write into it, and it is to run once more
    sharing.compare(crew.all((crew.number, inputs)))
    sharing.learn(first, items)
    return chain([first], iterator), rows


def indices_of(batches: Any, crew: Crew) -> list[list[int]] | None:
    """Return the indices of the items of each batch, where a ``DistributedSampler`` gives each replica of *crew* a share; or None.

    Raises:
        ArgumentError: it shares among others.
    """
    sampler = sampler_of(batches)
    if not isinstance(sampler, DistributedSampler) or not is_shared(batches, crew):
        if isinstance(sampler, DistributedSampler) and not crew.is_alone:
            raise ArgumentError(
                f"the DistributedSampler gives share {sampler.rank} of {sampler.num_replicas}, and this rank has share "
                f"{crew.number} of {crew.of}: give num_replicas={crew.of}, rank={crew.number}"
            )
        return None
    found = [[int(each) for each in batch] for batch in batches.batch_sampler]
    if found != [[int(each) for each in batch] for batch in batches.batch_sampler]:
        raise ArgumentError("the sampler gives another order each time: give ids of the items by order=, and another sampler")
    return found


def is_shared(batches: Any, crew: Crew) -> bool:
    """Return whether a ``DistributedSampler`` gives each replica of *crew* a share of the data, in batches."""
    sampler = sampler_of(batches)
    if not isinstance(sampler, DistributedSampler) or batches.batch_sampler is None:
        return False
    return bool(sampler.num_replicas == crew.of and sampler.rank == crew.number)


def sampler_of(batches: Any) -> Any:
    """Return the sampler of a ``DataLoader``; None for anything else."""
    return getattr(batches.batch_sampler, "sampler", batches.sampler) if isinstance(batches, DataLoader) else None


def _without_repeats(indices: list[list[int]], crew: Crew, stored: Tensor) -> tuple[list[Tensor], int]:
    """Return of each of *indices* whether this process is to store the item, and how many items there are.

    It is to store what is not stored yet, and comes to no process before.
    """
    flat = np.array([index for batch in indices for index in batch], np.int64)
    (least,) = crew.minimum([-len(flat)])
    padded = torch.full((-least,), -1, dtype=torch.int64, device="cpu")
    padded[: len(flat)] = torch.from_numpy(flat)
    told = torch.stack(crew.gathered_numbers(padded), 1).numpy()  # as the sampler deals them out
    first = np.zeros(told.size, bool)
    first[np.unique(told, return_index=True)[1]] = True
    mine = first.reshape(told.shape)[: len(flat), crew.number] & ~np.isin(flat, stored.numpy())
    kept = list(torch.split(torch.from_numpy(mine), [len(batch) for batch in indices]))
    return kept, len(np.unique(told[told >= 0]))


def _lengths(batch: Any) -> dict[str, int]:
    """Return how many entries each tensor of *batch* has, and each list at its top, by name."""
    found = {f"tensor {path or '(itself)'}": len(tensor) for path, tensor in walk(batch) if tensor.dim()}
    for key, held in batch.items() if isinstance(batch, Mapping) else [("(itself)", batch)]:
        if isinstance(held, list) and not walk(held):
            found[f"list {key}"] = len(held)
    return found
