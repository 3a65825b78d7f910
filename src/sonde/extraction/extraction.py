"""Read batches, run the models on them, and fill one shard after the other; behind those that are stored already."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from sonde.engine import walk
from sonde.errors import ArgumentError, StoreError
from sonde.extraction.asked import Asked
from sonde.extraction.digest import Weights, digest
from sonde.extraction.estimate import Estimate
from sonde.extraction.intake import Intake, named
from sonde.extraction.manifest import differences, length
from sonde.extraction.open_shard import OpenShard
from sonde.extraction.place import Columns
from sonde.extraction.stored_forms import summed
from sonde.run import RowWriter
from sonde.view import progress
from sonde.warn import warn_user
from sonde.words import many, size_text, time_text

_CURE = "give another path, or exists='replace'"
_OTHER_ORDER = (
    "Data that come in another order each time can be continued by their ids: order=, from the beginning. Else give the data as "
    f"they were, {_CURE}"
)


_CALL = "sonde.extract(); whole shards stay, and the same call goes on behind"


class _Full(Exception):  # noqa: N818  # no error: the end that max_bytes says
    """The store has no room for the next shard."""


class Extraction:
    """One call of ``extract``.

    Args:
        asked: what runs, which rows are kept, and in which form.
        order: the key or the function that tells ids.
        size: bytes of a shard.
        most: bytes of the store.
        facts: the manifest.
        writer: of the store; None for an estimate.
    """

    def __init__(
        self,
        asked: Asked,
        order: str | Callable[[Any], Any] | None,
        size: float,
        most: float,
        facts: Mapping[str, Any],
        writer: RowWriter | None,
    ) -> None:
        self._forwards = asked.forwards
        self._models = asked.models
        self._forms = asked.forms
        self._order = order
        self._size = size
        self._most = most
        self._facts = dict(facts)
        self._writer = writer
        self._known: Mapping[str, Any] = {} if writer is None else writer.about  # what the store says of how it was begun
        self._weights: Weights | None = None
        self._shard: OpenShard | None = None
        self._ids: set[int] = set()
        self._batches = 0
        self._in_shard: list[tuple[int, str]] = []  # numbers and digests of batches in the open shard
        self._first_item = 0
        self._chain = ""
        self._has_begun = False  # by this call
        self._was_begun = False  # before
        beside = asked.beside if order is None else {"id": partial(_ids, order), **asked.beside}
        self._intake = Intake(asked.forwards, asked.chooser, asked.forms, beside, self._place_for)

    # From the first batch to the last

    def run(self, batches: Iterable[Any], *, verbose: bool) -> None:
        """Store what is not stored yet of *batches*, and close the store."""
        assert self._writer is not None
        stored = self._continue()
        total = length(batches)
        with self._observed(batches) as iterator, progress("extract", verbose=verbose) as show:
            began, at = time.monotonic(), 0.0
            for number, batch in enumerate(iterator):
                if number < len(stored):
                    self._compare(number, batch, stored)
                    continue
                try:
                    with named(number, _CALL):
                        self._add(number, batch)
                except _Full:
                    break
                if time.monotonic() - at > 0.2:
                    at = time.monotonic()
                    show(self._progress(at - began, number + 1 - len(stored), total, number + 1))
            else:
                if self._batches < len(stored):
                    ended = f"the data end after {many(self._batches, 'batch', 'batches')}, and the store holds {len(stored):,}"
                    raise StoreError(f"{ended}. {_OTHER_ORDER}")
                try:
                    self._cut()
                    self._end()
                except _Full:
                    pass
                else:
                    return
            self._stop_short()

    def estimate(self, batches: Iterable[Any]) -> Estimate:
        """Return what the store of *batches* will take, as the first shows."""
        with self._observed(batches) as iterator:
            for batch in iterator:
                with named(0, _CALL):
                    found = self._intake.first(batch)
                rows = self._intake.rows
                assert rows is not None
                columns = {
                    name: (str(held.dtype).removeprefix("torch."), tuple(held.shape[1:]), held[:1].nbytes if len(held) else 0)
                    for name, held in found.items()
                }
                return Estimate(columns, len(rows), rows.items, length(batches))
        raise ArgumentError("batches: there is none")

    @contextmanager
    def _observed(self, batches: Iterable[Any]) -> Iterator[Iterator[Any]]:
        """Yield the iterator of *batches*; in the block the models are observed, and the digest of their weights is formed."""
        with self._forwards:
            try:
                iterator = iter(batches)  # before any thread begins: it may fork
                if self._writer is not None:
                    self._weights = Weights(self._models, self._forwards.buffers)
                yield iterator
            finally:
                if self._shard is not None:
                    self._shard.stop()
                if self._weights is not None:
                    self._weights.stop()

    def _progress(self, seconds: float, done: int, total: int | None, number: int) -> str:
        assert self._shard is not None
        rate = self._shard.rows * self._shard.row_bytes / max(seconds, 1e-9)
        left = "" if total is None else f" · {time_text(seconds / done * (total - number))} left"
        of = "" if total is None else f" of {total:,}"
        return f"{many(self._intake.items, 'item')} · batch {number:,}{of} · {size_text(rate)}/s{left}"

    # Behind what is stored

    def _continue(self) -> list[str]:
        """Go on behind the whole shards; return the digest of each batch in them, none where ids say what is stored."""
        assert self._writer is not None
        lines = self._writer.shards
        if not lines:
            return []
        last = lines[-1]["about"]
        self._intake.items, self._chain, self._was_begun = last["next_item"], last["chain"], True
        if self._order is not None:
            from sonde.run import open_tensors

            self._ids = set(torch.as_tensor(open_tensors(self._writer.folder)["id"][:]).tolist())
            return []
        return [each for line in lines for each in line["about"]["inputs"]]

    def _compare(self, number: int, batch: Any, stored: list[str]) -> None:
        """Compare a batch with the one of its *number* that is stored.

        Raises:
            StoreError: it is another one.
        """
        found = digest(batch)
        self._batches += 1
        if found != stored[number]:
            at = f", and was batch {stored.index(found):,}: they come in another order" if found in stored else ""
            raise StoreError(f"batch {number:,} of the data is not the one that is stored{at}. {_OTHER_ORDER}")

    # One batch

    def _add(self, number: int, batch: Any) -> None:
        if self._shard is not None:
            self._shard.check()
        keep = ids = None
        if self._order is not None:
            ids = _ids(self._order, batch)
            keep = torch.tensor([each not in self._ids and each not in ids[:at] for at, each in enumerate(ids)], dtype=torch.bool)
            if not keep.any():
                return
        first = self._intake.items
        with ThreadPoolExecutor(1) if self._is_moved(batch) else _AtOnce() as pool:  # a model may write into what it is given
            made = pool.submit(digest, batch)
            self._intake.add(batch, keep)
            inputs = made.result()
        if not self._in_shard:
            self._first_item = first
        self._in_shard.append((number, inputs))
        self._ids.update(ids or ())
        self._batches += 1

    def _is_moved(self, batch: Any) -> bool:
        device = self._intake.device
        return device is not None and all(tensor.device.type == "cpu" for _, tensor in walk(batch))

    def _place_for(self, columns: Columns) -> OpenShard:
        self._shard = OpenShard(columns, self._size, self._write, self._cut, self._intake.device)
        said = {
            name: {"dtype": str(dtype).removeprefix("torch."), "shape": list(shape)} for name, (dtype, shape) in columns.items()
        }
        self._facts |= {"columns": said, "left_out": self._intake.left_out}
        self._refuse(differences(self._known, self._facts))
        return self._shard

    # One shard

    def _cut(self) -> None:
        """Hand the open shard to the thread that writes.

        Raises:
            _Full: that would be more than the store may have.
        """
        shard = self._shard
        if shard is None or not shard.used:
            return
        assert self._writer is not None
        shard.wait()
        written = sum(line["bytes"] for line in self._writer.shards)
        if written + shard.used * shard.row_bytes > self._most:
            raise _Full
        losses, self._forms.losses = self._forms.losses, {}
        shard.cut((self._first_item, self._intake.items, self._in_shard, losses))
        self._in_shard = []

    def _write(self, columns: dict[str, Tensor], told: Any) -> None:
        """Write a shard; in the thread that writes."""
        assert self._writer is not None
        first, behind, held, losses = told
        if not self._has_begun:
            self._begin_store()
        for _, inputs in held:
            self._chain = digest(self._chain, inputs)
        about: dict[str, Any] = {
            "batches": [held[0][0], held[-1][0]],
            "inputs": [inputs for _, inputs in held],
            "chain": self._chain,
            "next_item": behind,
        }
        if losses:
            about["lost"] = {column: loss.numbers() for column, loss in losses.items()}
        self._writer.write(columns, items=(first, behind - 1), about=about)

    def _begin_store(self) -> None:
        """Before the first shard: put the manifest into the store, or compare the weights with those of shards that are there."""
        assert self._writer is not None
        assert self._weights is not None
        self._facts["weights"] = self._weights.digests()
        self._refuse(differences(self._known, self._facts))
        if not self._writer.shards:
            self._writer.tell(self._facts)
        self._has_begun = True

    def _refuse(self, found: list[str]) -> None:
        if found and self._writer is not None and self._writer.shards:
            raise StoreError(
                f"{self._writer.folder} was begun from something else. {'; '.join(found[:3])}. Give what it was begun from, {_CURE}"
            )

    def _end(self) -> None:
        """Close the store, which is whole."""
        assert self._writer is not None
        if self._shard is not None:
            self._shard.wait()
        lines = self._writer.shards
        if not lines:
            raise ArgumentError(
                "batches: there is none"
                if not self._batches
                else f"no row was kept of {many(self._batches, 'batch', 'batches')}: positions chose none"
            )
        if not self._has_begun:
            self._begin_store()
        about = {**(self._known if self._was_begun else self._facts), "items": self._intake.items}
        lost = {column for line in lines for column in line["about"].get("lost", {})}
        if lost:
            about["lost"] = {
                column: summed([line["about"]["lost"][column] for line in lines if column in line["about"].get("lost", {})])
                for column in sorted(lost)
            }
        self._writer.close(complete=True, about=about)

    def _stop_short(self) -> None:
        assert self._writer is not None
        held = sum(line["bytes"] for line in self._writer.shards)
        warn_user(
            f"{self._writer.folder} ends at {size_text(held)}, since max_bytes is {size_text(self._most)}: it holds "
            f"{many(len(self._writer.shards), 'shard')}, and is not complete. The same call with more max_bytes goes on"
        )


class _AtOnce:
    """Stands for a thread where a function is to be called at once."""

    def __enter__(self) -> _AtOnce:
        return self

    def __exit__(self, *error: object) -> None: ...

    def submit(self, function: Callable[[Any], str], value: Any) -> _AtOnce:
        self._result = function(value)
        return self

    def result(self) -> str:
        return self._result


def _ids(order: str | Callable[[Any], Any], batch: Any) -> list[int]:
    """Return the ids of the items of *batch*: whole numbers; texts as a number formed of them."""
    if callable(order):
        found = order(batch)
    elif isinstance(batch, Mapping) and order in batch:
        found = batch[order]
    else:
        raise ArgumentError(f"order={order!r}: the batch has no such key")
    listed = found.tolist() if hasattr(found, "tolist") else list(found)
    if not all(isinstance(each, int | str) for each in listed):
        raise ArgumentError(f"order={order!r}: a whole number or a text is wanted for each item")
    return [each if isinstance(each, int) else _number_of(each) for each in listed]


def _number_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
