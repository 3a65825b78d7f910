"""Read batches, run the models on them, and fill one shard after the other; behind those that are stored already."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import walk
from sonde.errors import ArgumentError, SelectionError, StoreError
from sonde.extraction.digest import Weights, digest
from sonde.extraction.estimate import Estimate
from sonde.extraction.forwards import Forwards
from sonde.extraction.manifest import differences, length
from sonde.extraction.open_shard import OpenShard
from sonde.extraction.rows import Chooser, Rows
from sonde.extraction.stored_forms import Forms, summed
from sonde.run import RowWriter
from sonde.site import Site
from sonde.view import progress
from sonde.warn import warn_user
from sonde.words import many, names_text, size_text, time_text

_CURE = "give another path, or exists='replace'"
_OTHER_ORDER = (
    "Data that come in another order each time can be continued by their ids: order=, from the beginning. Else give the data as "
    f"they were, {_CURE}"
)


class _Full(Exception):  # noqa: N818  # no error: the end that max_bytes says
    """The store has no room for the next shard."""


class Extraction:
    """One call of ``extract``.

    Args:
        forwards, models, chooser, forms: what runs, which rows are kept, and in which form.
        beside: by the name of a column: a key of the batch, or a function.
        order: the key or the function that tells ids.
        size: bytes of a shard.
        most: bytes of the store.
        facts: the manifest.
        writer: of the store; None for an estimate.
    """

    def __init__(
        self,
        forwards: Forwards,
        models: Mapping[str, nn.Module],
        chooser: Chooser,
        forms: Forms,
        beside: Mapping[str, str | Callable[[Any], Any]],
        order: str | Callable[[Any], Any] | None,
        size: float,
        most: float,
        facts: Mapping[str, Any],
        writer: RowWriter | None,
    ) -> None:
        self._forwards = forwards
        self._models = models
        self._chooser = chooser
        self._forms = forms
        self._beside = beside
        self._order = order
        self._size = size
        self._most = most
        self._facts = dict(facts)
        self._writer = writer
        self._known: Mapping[str, Any] = {} if writer is None else writer.about  # what the store says of how it was begun
        self._weights: Weights | None = None
        self._shard: OpenShard | None = None
        self._device: torch.device | None = None  # an accelerator that tensors come from
        self._left_out: dict[str, str] = {}
        self._ids: set[int] = set()
        self._items = 0  # before the present batch
        self._batches = 0
        self._in_shard: list[tuple[int, str]] = []  # numbers and digests of batches in the open shard
        self._first_item = 0
        self._chain = ""
        self._has_begun = False  # by this call
        self._was_begun = False  # before
        # of the present batch
        self._batch: Any = None
        self._keep: Tensor | None = None
        self._rows: Rows | None = None
        self._has_place = False
        self._filled: dict[str, Tensor | None] = {}

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
                    with _named(number):
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
                with _named(0):
                    found = self._first(batch)
                rows = self._rows
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
        self._forwards.take = self._take
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
        return f"{many(self._items, 'item')} · batch {number:,}{of} · {size_text(rate)}/s{left}"

    # Behind what is stored

    def _continue(self) -> list[str]:
        """Go on behind the whole shards; return the digest of each batch in them, none where ids say what is stored."""
        assert self._writer is not None
        lines = self._writer.shards
        if not lines:
            return []
        last = lines[-1]["about"]
        self._items, self._chain, self._was_begun = last["next_item"], last["chain"], True
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
        shard = self._shard
        if shard is not None:
            shard.check()
        self._keep = ids = None
        if self._order is not None:
            ids = _ids(self._order, batch)
            self._keep = torch.tensor(
                [each not in self._ids and each not in ids[:at] for at, each in enumerate(ids)], dtype=torch.bool
            )
            if not self._keep.any():
                return
        with ThreadPoolExecutor(1) if self._is_moved(batch) else _AtOnce() as pool:  # a model may write into what it is given
            made = pool.submit(digest, batch)
            if shard is None:
                self._place_first(self._first(batch))
            else:
                self._begin(batch)
                self._forwards.run(batch)
                self._put_beside()
            inputs = made.result()
        rows, shard = self._rows, self._shard
        assert shard is not None
        missing = [] if rows is not None and not len(rows) else [name for name in shard.columns if name not in self._filled]
        if missing:
            raise ArgumentError(
                f"nothing came of {names_text(missing)}, which had rows in the first batch: what is stored must come in each"
            )
        assert rows is not None
        if not self._in_shard:
            self._first_item = self._items
        shard.end(len(rows) if self._has_place else 0)
        self._in_shard.append((number, inputs))
        self._items += rows.items if self._keep is None else int(self._keep.sum())
        self._ids.update(ids or ())
        self._batches += 1

    def _is_moved(self, batch: Any) -> bool:
        return self._device is not None and all(tensor.device.type == "cpu" for _, tensor in walk(batch))

    def _begin(self, batch: Any) -> None:
        self._batch, self._has_place, self._filled = batch, False, {}
        self._rows = self._chooser.rows(batch, self._keep)

    def _first(self, batch: Any) -> dict[str, Tensor]:
        """Run the first batch, whole; return the rows of each column.

        Raises:
            SelectionError: a selected site did not run.
            ArgumentError: nothing of a site has rows.
        """
        self._begin(batch)
        if self._forwards.draws(batch):
            warn_user(
                "the model draws random numbers as it runs, as dropout in training mode does: what is stored is one of many, and a "
                "store that is continued differs from one that was not interrupted. model.eval() ends that, in most models"
            )
        missing = [line for coverage in self._forwards.coverage() for line in coverage.missing]
        if missing:
            said = "; ".join(f"{line.site}: {line.reason}" for line in missing[:3])
            raise SelectionError(
                f"{many(len(missing), 'selected site')} delivered nothing in the first batch, so that nothing is written: {said}. "
                "Leave out what does not run, by exclude="
            )
        for site in self._forwards.sites:
            if not any(_is_of(column, site) for column in self._filled):
                why = next((why for column, why in self._left_out.items() if _is_of(column, site)), "it holds no tensor")
                cure = "" if self._chooser.is_by_item else ", or leave out positions="
                raise ArgumentError(f"{site} has no rows: {why}. Leave it out by exclude={cure}")
        self._forms.check(list(self._filled))
        self._put_beside()
        return {name: held for name, held in self._filled.items() if held is not None}

    def _place_first(self, found: dict[str, Tensor]) -> None:
        columns = {name: (held.dtype, tuple(held.shape[1:])) for name, held in found.items()}
        self._shard = shard = OpenShard(columns, self._size, self._write, self._device)
        said = {
            name: {"dtype": str(dtype).removeprefix("torch."), "shape": list(shape)} for name, (dtype, shape) in columns.items()
        }
        self._facts |= {"columns": said, "left_out": self._left_out}
        self._refuse(differences(self._known, self._facts))
        assert self._rows is not None
        if len(self._rows):
            self._make_place(self._rows)
            for name, held in found.items():
                shard.target(name, len(held), tuple(held.shape[1:])).copy_(held)

    def _take(self, column: str, tensor: Tensor) -> None:
        """Store what is wanted of a tensor that has come at a site; it is borrowed."""
        if column in self._left_out:
            return
        if self._rows is None:
            self._rows = self._told_by(tensor)
        rows = self._rows
        why = f"it has the shape {tuple(tensor.shape)}, and no items × positions" if rows is None else rows.why_not(tensor)
        if why or rows is None:
            if self._shard is None:
                self._left_out[column] = why
                return
            raise ArgumentError(f"{column}: {why}")
        if self._shard is None:
            if tensor.device.type != "cpu":
                self._device = tensor.device
            for name, part in self._forms.of(column, rows.of(tensor)).items():
                self._fill(name, part.to(self._forms.stored_type(part)).cpu().clone())
        elif len(rows) and self._forms.is_plain(column):
            self._fill(column, None)
            rows.into(tensor, self._target(column, tuple(tensor.shape[1 if rows.positions is None else 2 :])))
        elif len(rows):
            self._make_place(rows)  # first: what is lost by this batch counts in its shard
            for name, part in self._forms.of(column, rows.of(tensor)).items():
                self._fill(name, None)
                target = self._target(name, tuple(part.shape[1:]))
                target.copy_(part if part.device == target.device else part.to(target.dtype), non_blocking=True)

    def _told_by(self, tensor: Tensor) -> Rows | None:
        """Return the rows of the batch, as a tensor at a site tells them, and a tensor of the batch confirms."""
        rows = self._chooser.rows_like(tuple(tensor.shape), self._batch, self._keep)
        given = [held for _, held in walk(self._batch) if held.dim()]
        if rows is None or not given or any(len(held) == rows.items for held in given) or not self._forwards.passes_on:
            return rows
        raise ArgumentError(
            f"a tensor of the shape {tuple(tensor.shape)} came, and no tensor of the batch has {many(rows.items, 'item')}: axis 0 "
            "is to be that of the items. Select other sites, or give a batch whose first axis is that of the model"
        )

    def _put_beside(self) -> None:
        """Fill the columns that do not come from a model."""
        rows = self._rows
        if rows is None or (self._shard is not None and not len(rows)):
            return
        item = rows.item
        if self._keep is not None:
            item = (self._keep.cumsum(0) - 1)[item]
        found = {"item": item + self._items}
        if rows.position is not None:
            found["position"] = rows.position
        if self._order is not None:
            found["id"] = torch.tensor(_ids(self._order, self._batch))[rows.item]
        for name, given in self._beside.items():
            found[name] = rows.of_items(_column(name, given, self._batch, rows.items))
        for name, held in found.items():
            if self._shard is None:
                self._fill(name, held.detach().cpu())
            else:
                self._fill(name, None)
                self._target(name, tuple(held.shape[1:])).copy_(held)

    def _fill(self, name: str, held: Tensor | None) -> None:
        if name in self._filled:
            raise ArgumentError(f"there are two columns called {name!r}: give one another name by columns={{name: function}}")
        self._filled[name] = held

    def _target(self, column: str, shape: tuple[int, ...]) -> Tensor:
        assert self._shard is not None
        assert self._rows is not None
        self._make_place(self._rows)
        return self._shard.target(column, len(self._rows), shape)

    def _make_place(self, rows: Rows) -> None:
        """Make place for the *rows* of the present batch, in this shard or the next. Idempotent."""
        assert self._shard is not None
        if self._has_place:
            return
        if not self._shard.has_room(len(rows)):
            self._cut()
        self._shard.begin(len(rows))
        self._has_place = True

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
        shard.cut((self._first_item, self._items, self._in_shard, losses))
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
        about = {**(self._known if self._was_begun else self._facts), "items": self._items}
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


@contextmanager
def _named(number: int) -> Iterator[None]:
    """Say of an error which batch it came from."""
    try:
        yield
    except _Full:
        raise
    except ArgumentError as error:
        raise ArgumentError(f"batch {number:,}: {error}") from error.__cause__
    except (SelectionError, StoreError):
        raise
    except Exception as error:
        with suppress(TypeError):
            error.add_note(
                f"raised in batch {number:,} (from 0) of sonde.extract(); whole shards stay, and the same call goes on behind. A "
                "batch is passed as model(**batch) if it is a mapping, model(*batch) if it is a tuple or list, else model(batch): "
                "give call=lambda model, batch: ... where that does not do"
            )
        raise


def _is_of(column: str, site: Site) -> bool:
    return column == str(site) or column.startswith(tuple(f"{site}{mark}" for mark in ".[@{"))


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


def _column(name: str, given: str | Callable[[Any], Any], batch: Any, items: int) -> Tensor:
    """Return the values of one column: a row for each item of *batch*."""
    if callable(given):
        found = given(batch)
    elif isinstance(batch, Mapping) and given in batch:
        found = batch[given]
    else:
        held = names_text(batch) if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        raise ArgumentError(
            f"columns: the batch has no key {given!r}, it holds {held}; give columns={{{name!r}: function of the batch}}"
        )
    try:
        tensor = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"columns: {name!r} is a {type(found).__name__} that cannot be a tensor; give numbers") from None
    if not tensor.dim() or len(tensor) != items:
        raise ArgumentError(f"columns: {name!r} has the shape {tuple(tensor.shape)}, and the batch {many(items, 'item')}")
    return tensor
