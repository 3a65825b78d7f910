"""``extract``: run models over data and store what passes at chosen sites, so that it can be continued and checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import nn

from sonde.engine import Where
from sonde.errors import ArgumentError, StoreError
from sonde.extraction.asked import Asked, Beside
from sonde.extraction.digest import Weights
from sonde.extraction.estimate import Estimate
from sonde.extraction.extraction import Extraction
from sonde.extraction.forwards import Call, Forwards
from sonde.extraction.manifest import KIND, differences, manifest
from sonde.extraction.rows import Positions
from sonde.extraction.stored_forms import Transform
from sonde.paths import absolute_path, short_path
from sonde.run import Existing, RowWriter, TensorStore, numbered_folder, open_tensors, remove_tensors
from sonde.site import Port
from sonde.sizes import bytes_of

_EXISTING: tuple[Existing, ...] = ("resume", "error", "replace", "unique")


@overload
def extract(
    model: nn.Module | Mapping[str, nn.Module],
    batches: Iterable[Any],
    include: Where,
    to: str | os.PathLike[str],
    *,
    exclude: Where = ...,
    ports: Iterable[Port] | Port = ...,
    positions: Positions = ...,
    columns: Beside = ...,
    dtype: torch.dtype | str | None = ...,
    transform: Transform | Mapping[str, Transform] | None = ...,
    exists: Existing = ...,
    order: str | Callable[[Any], Any] | None = ...,
    shard: str | float = ...,
    max_bytes: str | float | None = ...,
    dry_run: Literal[False] = ...,
    call: Call = ...,
    progress: bool = ...,
) -> TensorStore: ...
@overload
def extract(
    model: nn.Module | Mapping[str, nn.Module],
    batches: Iterable[Any],
    include: Where,
    to: str | os.PathLike[str],
    *,
    exclude: Where = ...,
    ports: Iterable[Port] | Port = ...,
    positions: Positions = ...,
    columns: Beside = ...,
    dtype: torch.dtype | str | None = ...,
    transform: Transform | Mapping[str, Transform] | None = ...,
    exists: Existing = ...,
    order: str | Callable[[Any], Any] | None = ...,
    shard: str | float = ...,
    max_bytes: str | float | None = ...,
    dry_run: Literal[True],
    call: Call = ...,
    progress: bool = ...,
) -> Estimate: ...
def extract(
    model: nn.Module | Mapping[str, nn.Module],
    batches: Iterable[Any],
    include: Where,
    to: str | os.PathLike[str],
    *,
    exclude: Where = None,
    ports: Iterable[Port] | Port = "output",
    positions: Positions = None,
    columns: Beside = (),
    dtype: torch.dtype | str | None = None,
    transform: Transform | Mapping[str, Transform] | None = None,
    exists: Existing = "resume",
    order: str | Callable[[Any], Any] | None = None,
    shard: str | float = "256 MB",
    max_bytes: str | float | None = None,
    dry_run: bool = False,
    call: Call = None,
    progress: bool = True,
) -> TensorStore | Estimate:
    """Run a model over *batches*, store what passes at the selected sites in the folder *to*, and return the open store.

    >>> import sonde, tempfile, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    >>> batches = [torch.randn(8, 4) for _ in range(5)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = sonde.extract(model, batches, r"^0$", to=f"{folder}/acts")
    ...     store["0:output"].shape
    (40, 3)

    A row is an item of a batch or, with *positions*, one position of an item. Beside a column for each tensor stand ``item``, the
    number of the row's item in the whole data, and ``position``. A module that is called several times in a forward has a column
    for each call: ``layer:output``, ``layer:output@1``, ... Of a structured value the tensors that begin with items (and
    positions) are stored; ``store.about["left_out"]`` names the others.

    Without gradients, in the mode the model is in, unseen by other observers; random generators, and buffers of modules in training
    mode, are put back at the end. Where that is safe, a forward ends behind the last selected site.

    A store says what it was made from: weights, code of model and functions, sites, options, data. What was begun is continued
    behind its last whole shard, if all of that is as it was: batches that are stored are read again and compared, and not run. A
    store that is complete is returned at once, and its batches are not read. Another order of the data is noticed at the first
    batch that differs; give *order* for data that have none.

    Args:
        model: a model, or several by name, which run side by side on the same batches.
        batches: a loader or any other iterable. A mapping holds keyword arguments, a tuple or list positional ones. Batches are
            moved to the device of the model.
        include, exclude: which modules, as of :func:`sonde.observe`.
        to: the folder.
        ports: ``"output"``, ``"input"``, or both.
        positions: which positions, along axis 1: the key of a mask in the batch, ``"last"``, ``"all"``, ``"-8:"``, a slice, a mask
            of items × positions, indices, or a function from the batch to a mask or indices. Names and slices count the positions
            that ``attention_mask`` admits, if the batch has one. None: a row is an item.
        columns: keys of the batch to store beside, or functions from the batch by column: values of items, or of positions.
        dtype: the floating-point type to store; ``"int8"`` for whole numbers with a column ``.scale``, a factor for each row.
        transform: from the rows of a site, on the model's device, to what is stored of them, with as many rows; several by a
            regular expression that is searched in the site. ``"top-64"`` stores the largest in magnitude, as the columns
            ``.values`` and ``.indices``. What ``"int8"`` and ``"top-64"`` lose is in ``store.about["lost"]``, by column.
        exists: what to do where *to* holds a store: ``"resume"`` continues it, ``"replace"`` deletes it, ``"unique"`` writes
            beside it, ``"error"`` raises.
        order: ids of the items, a key of the batch or a function from it: items that are stored already are skipped, in whatever
            order they come, and not compared. Stored as the column ``id``; texts as a number formed of them.
        shard: the size of a file; a shard ends with a batch.
        max_bytes: end before the store has more. It can be continued.
        dry_run: run the first batch alone, write nothing, and return how much the store will take.
        call: ``(model, batch) -> anything``, where a batch is to be passed otherwise. The forward then runs whole.
        progress: show items, speed and the time left in a terminal.

    Raises:
        ModelError, SelectionError, ArgumentError: an argument cannot be used, a selected site does not run in the first batch, or
            tensors of a site cannot be rows of one column.
        StoreError: *to* holds something else, or was begun from something else (the message says what differs), another program
            writes to it, or it cannot be written. Whole shards stay.
        Exception: what the model, the data or a given function has raised, with a note of the batch. Whole shards stay.
    """
    asked = Asked(model, batches, include, exclude, ports, positions, columns, dtype, transform, call, order)
    if exists not in _EXISTING:
        raise ArgumentError(f"exists={exists!r}: it is one of {', '.join(map(repr, _EXISTING))}")
    size, most = bytes_of(shard, "shard", "of a file"), bytes_of(max_bytes, "max_bytes", "that a store may take")
    if size == inf:
        raise ArgumentError(f'shard={shard!r}: a file is held in memory before it is written; give its size, as "256 MB"')
    models, forwards = asked.models, asked.forwards
    options = {
        "positions": positions,
        "columns": asked.beside,
        "dtype": dtype,
        "transform": transform,
        "order": order,
        "shard": size,
        "call": call,
    }
    facts = manifest(models, asked.sites, options, batches)

    def extraction(writer: RowWriter | None) -> Extraction:
        return Extraction(asked, order, size, most, facts, writer)

    if dry_run:
        return extraction(None).estimate(batches)
    folder = absolute_path(to)
    if exists == "unique":
        folder = numbered_folder(folder)
    elif exists == "replace":
        remove_tensors(folder)
    is_begun = (folder / "index.json").exists()
    if is_begun and exists == "error":
        raise StoreError(
            f"{folder} holds a store already: exists='resume' continues it, 'replace' deletes it, 'unique' writes beside it"
        )
    whole = _whole(folder) if is_begun else None
    if whole is not None:
        _check(folder, whole.about, facts)
        _check_weights(folder, whole.about, models, forwards)
        if any(folder.glob("shards*.jsonl")):  # the program was killed as it closed the store: its journal is not needed any more
            RowWriter(folder, None, resume=True).close()
        return whole
    was_there = folder.exists()
    writer = RowWriter(folder, None if is_begun else facts, resume=is_begun)
    try:
        _check(folder, writer.about, facts if writer.shards else {})
        extraction(writer).run(batches, verbose=progress)
    finally:
        writer.close(complete=False)  # does nothing where it was closed as a whole one
        if not writer.shards and not is_begun:
            remove_tensors(folder)
            _leave(folder, was_there)
    return open_tensors(folder)


def _whole(folder: Path) -> TensorStore | None:
    """Return the store in *folder*, if it is complete."""
    try:
        store = open_tensors(folder)
    except StoreError:
        return None  # the writer says what is wrong, if anything is: it may have no shard yet
    return store if store.complete else None


def _check(folder: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that the store in *folder*, made from what *was*, is one of *now*.

    Raises:
        StoreError: it is not; the message says what differs.
    """
    if was.get("kind") != KIND:
        raise StoreError(f"{folder} holds tensors that extract() has not written: give another path")
    found = differences(was, now)
    if found:
        raise StoreError(
            f"{short_path(folder)} was begun from something else. {'; '.join(found[:3])}. Give what it was begun from, another "
            "path, or exists='replace'"
        )


def _check_weights(folder: Path, was: Mapping[str, Any], models: Mapping[str, nn.Module], forwards: Forwards) -> None:
    weights = Weights(models, forwards.buffers)
    try:
        _check(folder, was, {"weights": weights.digests()})
    finally:
        weights.stop()


def _leave(folder: Path, was_there: bool) -> None:
    """Take away the folder that holds nothing, unless it was there before."""
    if not was_there and folder.exists():
        for lock in folder.glob(".lock-r*"):
            lock.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()
