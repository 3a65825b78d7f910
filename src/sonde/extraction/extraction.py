"""Read batches, run the models on them, and fill one shard after the other; behind those that are stored already."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sonde.engine import remap, walk
from sonde.errors import ArgumentError, RankError, StoreError
from sonde.extraction.asked import Asked
from sonde.extraction.crew import Crew
from sonde.extraction.digest import Weights, digest
from sonde.extraction.estimate import Estimate
from sonde.extraction.intake import Intake, named
from sonde.extraction.manifest import differences, length
from sonde.extraction.open_shard import OpenShard
from sonde.extraction.place import Columns
from sonde.extraction.sharing import CURE, Part, Sharing, Stored, looked
from sonde.extraction.spread import marks_of, refuse_parts
from sonde.extraction.stored_forms import summed
from sonde.run import RowWriter, open_tensors, written_rows
from sonde.view import progress
from sonde.warn import warn_user
from sonde.words import many, size_text, time_text

_CALL = "sonde.extract(); whole shards stay, and the same call goes on behind"


class _Full(Exception):  # noqa: N818  # no error: the end that max_bytes says
    """The store has no room for the next shard."""


class Held(NamedTuple):
    """What a store holds before a call goes on with it.

    Attributes:
        folder: where it is, or will be.
        about: what its index says of how it was begun; nothing where there is none.
        lines: of all whole shards.
    """

    folder: Path
    about: Mapping[str, Any]
    lines: list[dict[str, Any]]


class Extraction:
    """One call of ``extract``.

    Args:
        asked: what runs, which rows are kept, and in which form.
        crew: the processes that fill the store.
        order: the key or the function that tells ids.
        size: bytes of a shard.
        most: bytes of the store.
        facts: the manifest; of several processes, with the weights.
        held: what the store holds.
        open_writer: returns the writer of this process, given the manifest.
    """

    def __init__(
        self,
        asked: Asked,
        crew: Crew,
        order: str | Callable[[Any], Any] | None,
        size: float,
        most: float,
        facts: Mapping[str, Any],
        held: Held,
        open_writer: Callable[[Mapping[str, Any]], RowWriter],
    ) -> None:
        self._forwards = asked.forwards
        self._models = asked.models
        self._forms = asked.forms
        self._crew = crew
        self._order = order
        self._size = size
        self._most = most
        self._facts = dict(facts)
        self._held = held
        self._open_writer = open_writer
        self._writer: RowWriter | None = None
        self._before = 0  # bytes of shards that this process's part of the store had before
        self._weights: Weights | None = None
        self._shard: OpenShard | None = None
        self._in_shard: list[Part] = []  # the batches in the open shard
        self._numbers: list[int] = []  # the least and the largest numbers of items in each
        self._chain = ""
        self._began = 0.0  # when the first batch came that was not stored
        self._has_begun = False  # by this call
        self._is_full = False
        beside = asked.beside if order is None else {"id": partial(_ids, order), **asked.beside}
        self._intake = Intake(asked.forwards, asked.chooser, asked.forms, beside, self._place_for)

    # From the first batch to the last

    def run(self, batches: Iterable[Any], *, verbose: bool) -> None:
        """Store what is not stored yet of *batches*, and close the store, whole or not."""
        crew = self._crew
        with self._observed(batches, weighs=crew.is_alone) as data:
            sharing = self._sharing(batches)
            if crew.is_alone:
                self._open()
            iterator = data if crew.is_alone else self._looked(data, sharing)
            total, at = length(batches), 0.0
            with progress("extract", verbose=verbose and crew.is_first) as show:
                iterator = self._passing_by(iterator, sharing, show)
                try:
                    for done, (batch, part) in enumerate(sharing.rounds(iterator, full=lambda: self._is_full), 1):
                        crew.check()
                        self._run(batch, part, sharing)
                        if time.monotonic() - at > 0.2:
                            at = time.monotonic()
                            show(self._progress(at - self._began, done * crew.of, total, sharing))
                    if crew.is_alone:
                        sharing.check_end()
                    if not self._is_full:
                        self._cut()
                except _Full:
                    self._is_full = True
                except RankError:
                    self._keep()
                    raise
            self._end(sharing)

    def estimate(self, batches: Iterable[Any]) -> Estimate:
        """Return what the store of *batches* will take, as the first shows."""
        with self._observed(batches, weighs=False) as iterator:
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
    def _observed(self, batches: Iterable[Any], *, weighs: bool) -> Iterator[Iterator[Any]]:
        """Yield the iterator of *batches*; in the block the models are observed, and the digest of their weights may be formed."""
        with self._forwards:
            try:
                iterator = iter(batches)  # before any thread begins: it may fork
                if weighs:
                    self._weights = Weights(self._models, self._forwards.buffers)
                yield iterator
            finally:
                if self._shard is not None:
                    self._shard.stop()
                if self._weights is not None:
                    self._weights.stop()

    def _passing_by(self, batches: Iterator[Any], sharing: Sharing, show: Callable[[str], object]) -> Iterator[Any]:
        """Yield *batches*; show how many have come while all of them are stored: the time left begins behind them."""
        at, self._began = 0.0, time.monotonic()
        for batch in batches:
            yield batch
            if not sharing.new:
                self._began = time.monotonic()
                if self._began - at > 0.2:
                    at = self._began
                    show(f"batch {sharing.read:,} is stored already")

    def _progress(self, seconds: float, done: int, total: int | None, sharing: Sharing) -> str:
        shard = self._shard  # None where ids say that all so far is stored
        rate = 0.0 if shard is None else self._crew.of * shard.rows * shard.row_bytes / max(seconds, 1e-9)
        left = "" if total is None else f" · {time_text(seconds / done * max(total - sharing.read, 0))} left"
        of = "" if total is None else f" of {total:,}"
        items = "" if sharing.items is None else f"{many(sharing.items, 'item')} · "
        return f"{items}batch {sharing.read:,}{of} · {size_text(rate)}/s{left}"

    def _keep(self) -> None:
        """Write the open shard, since others have ended this call."""
        with suppress(_Full, StoreError):
            self._cut()
            if self._shard is not None:
                self._shard.wait()

    def close(self) -> None:
        """Close this process's part of the store, whatever has happened: the shards that are whole stay."""
        if self._writer is not None:
            self._writer.close(complete=False)  # does nothing where it was closed as a whole one

    # Behind what is stored

    def _sharing(self, batches: Iterable[Any]) -> Sharing:
        """Return which batches this process runs, behind those that are stored."""
        stored: dict[Any, Stored] = {}
        for line in self._held.lines:
            about = line["about"]
            stored |= dict(zip(about["batches"], map(Stored, about["inputs"], about["items"]), strict=True))
        first = max((line["about"]["next_item"] for line in self._held.lines), default=0)

        def column(name: str) -> Tensor:
            if not self._held.lines:
                return torch.zeros(0, dtype=torch.int64, device="cpu")
            return torch.as_tensor(open_tensors(self._held.folder)[name][:], device="cpu")

        ids = None if self._order is None else set(column("id").tolist())
        return Sharing(self._crew, batches, stored, first, partial(column, "item"), ids, partial(_ids, self._order or ""))

    def _looked(self, iterator: Iterator[Any], sharing: Sharing) -> Iterator[Any]:
        """Run the first batch on each process, so that all know the columns, and begin the store; return the whole iterator."""
        crew = self._crew
        whole, rows = looked(iterator, self._intake, sharing, crew, _CALL)
        if crew.size > crew.of:
            if not any(map(len, rows.values())):
                raise ArgumentError("the first batch has no row, by which ranks of one model are compared: begin with another one")
            refuse_parts(crew.all((crew.number, marks_of(rows))))
        said = {"columns": self._facts["columns"], "left_out": self._facts["left_out"]}
        crew.agree({f"what the first batch shows ({name})": each for name, each in said.items()}, self._open_first)
        if self._writer is None and crew.writes:
            self._open()
        self._has_begun = True
        crew.wait()  # all have seen what was stored before
        return whole

    def _open_first(self) -> None:
        if not self._held.lines:
            self._open().tell(self._facts)

    def _open(self) -> RowWriter:
        self._writer = writer = self._open_writer(self._facts)
        self._before = sum(line["bytes"] for line in writer.shards)
        self._chain = writer.shards[-1]["about"]["chain"] if writer.shards else ""
        return writer

    # One batch

    def _run(self, batch: Any, part: Part | None, sharing: Sharing) -> None:
        """Run the models on *batch*, and store its *part*, if this process is to store any."""
        number = part.key if part is not None and isinstance(part.key, int) else sharing.read - 1
        try:
            with self._crew.needed(), named(number, _CALL):
                if part is None:
                    self._intake.run_along(remap(batch, torch.clone, objects=True))  # a model may write into it
                elif not self._crew.writes:
                    self._intake.run_along(batch)
                else:
                    self._add(batch, part, sharing)
        except _Full:
            if not self._crew.in_step:
                raise
            self._is_full = True

    def _add(self, batch: Any, part: Part, sharing: Sharing) -> None:
        if self._shard is not None:
            self._shard.check()
        with ThreadPoolExecutor(1) if part.inputs is None and self._is_moved(batch) else _AtOnce() as pool:
            made = pool.submit(digest, batch) if part.inputs is None else None  # a model may write into what it is given
            items = sharing.put(self._intake, batch, part)
            inputs = part.inputs if made is None else made.result()
        kept = items if part.keep is None else int(part.keep.sum())
        if isinstance(part.numbers, int):
            self._numbers += [part.numbers, part.numbers + max(kept, 1) - 1]
        else:
            chosen = part.numbers if part.keep is None else part.numbers[part.keep]
            self._numbers += [int(chosen.min()), int(chosen.max())]
        self._in_shard.append(part._replace(inputs=inputs, items=items))

    def _is_moved(self, batch: Any) -> bool:
        device = self._intake.device
        return device is not None and all(tensor.device.type == "cpu" for _, tensor in walk(batch))

    def _place_for(self, columns: Columns) -> OpenShard:
        self._shard = OpenShard(columns, self._size, self._write, self._cut, self._intake.device)
        said = {
            name: {"dtype": str(dtype).removeprefix("torch."), "shape": list(shape)} for name, (dtype, shape) in columns.items()
        }
        self._facts |= {"columns": said, "left_out": self._intake.left_out}
        self._refuse(differences(self._held.about, self._facts))
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
        written = sum(line["bytes"] for line in self._writer.shards) - self._before
        before = sum(line["bytes"] for line in self._held.lines)
        if written + shard.used * shard.row_bytes > (self._most - before) / self._crew.of:
            raise _Full
        losses, self._forms.losses = self._forms.losses, {}
        shard.cut((self._in_shard, self._numbers, losses))
        self._in_shard, self._numbers = [], []

    def _write(self, columns: dict[str, Tensor], told: Any) -> None:
        """Write a shard; in the thread that writes."""
        assert self._writer is not None
        held, numbers, losses = told
        if not self._has_begun:
            self._begin_store()
        for part in held:
            self._chain = digest(self._chain, part.inputs)
        about: dict[str, Any] = {
            "batches": [part.key for part in held],
            "items": [part.items for part in held],
            "inputs": [part.inputs for part in held],
            "chain": self._chain,
            "next_item": max(numbers) + 1,
        }
        if losses:
            about["lost"] = {column: loss.numbers() for column, loss in losses.items()}
        self._writer.write(columns, items=(min(numbers), max(numbers)), about=about)

    def _begin_store(self) -> None:
        """Before the first shard: put the manifest into the store, or compare the weights with those of shards that are there."""
        assert self._writer is not None
        assert self._weights is not None
        self._facts["weights"] = self._weights.digests()
        self._refuse(differences(self._held.about, self._facts))
        if not self._held.lines:
            self._writer.tell(self._facts)
        self._has_begun = True

    def _refuse(self, found: list[str]) -> None:
        if found and self._held.lines:
            raise StoreError(
                f"{self._held.folder} was begun from something else. {'; '.join(found[:3])}. Give what it was begun from, {CURE}"
            )

    # The end

    def _end(self, sharing: Sharing) -> None:
        """Close the store: whole, if all processes have stored all that was theirs."""
        crew = self._crew
        if self._shard is not None:
            self._shard.wait()
        if not crew.is_first:
            self.close()
        (is_whole,) = crew.minimum([not self._is_full])
        if is_whole and not crew.is_alone:
            sharing.check_end()
        if not is_whole:
            if crew.is_first:
                self.close()
                self._tell_short()
            crew.all(0)  # so that none leaves before the index is written
            return
        if not self._has_begun and self._writer is not None and (self._writer.shards or self._held.lines):
            self._begin_store()
        crew.agree({}, partial(self._close_whole, sharing))

    def _close_whole(self, sharing: Sharing) -> None:
        """On the first process: make the index of the parts of all."""
        lines = written_rows(self._held.folder).shards
        if not lines:
            chosen = f"no row was kept of {many(sharing.new, 'batch', 'batches')}: positions chose none"
            raise ArgumentError(chosen if sharing.new else "batches: there is none")
        if self._order is not None:
            self._check_ids()
        about = {**(self._held.about if self._held.lines else self._facts)}
        if sharing.items is not None:
            about["items"] = sharing.items
        lost = {column for line in lines for column in line["about"].get("lost", {})}
        if lost:
            about["lost"] = {
                column: summed([line["about"]["lost"][column] for line in lines if column in line["about"].get("lost", {})])
                for column in sorted(lost)
            }
        if self._writer is None:
            self._open()
        assert self._writer is not None
        self._writer.close(complete=True, about=about)

    def _check_ids(self) -> None:
        """Check that no item was stored by two processes that read data of their own.

        Raises:
            RankError: one was.
        """
        if self._crew.of == 1 and not self._held.lines:
            return
        store = open_tensors(self._held.folder)
        stored = np.unique(np.stack([store[name].numpy() for name in ("id", "item")]), axis=1)
        twice = stored.shape[1] - len(np.unique(stored[0]))
        if twice:
            raise RankError(
                f"{many(twice, 'item')} came on several ranks, and are stored several times: give each rank items of its own, or "
                "all of them the same batches in the same order; and exists='replace'"
            )

    def _tell_short(self) -> None:
        lines = written_rows(self._held.folder).shards
        held = size_text(sum(line["bytes"] for line in lines))
        warn_user(
            f"{self._held.folder} ends at {held}, since max_bytes is {size_text(self._most)}: it holds {many(len(lines), 'shard')}"
            ", and is not complete. The same call with more max_bytes goes on"
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
