"""``extract``: run models over data and store what passes at chosen sites, so that it can be continued and checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import nn

from sonde.checked import checked
from sonde.engine import Where
from sonde.errors import ArgumentError, StoreError
from sonde.extraction.asked import Asked, Beside
from sonde.extraction.crew import Crew, Together
from sonde.extraction.digest import Weights, digest, weights_together
from sonde.extraction.estimate import Estimate
from sonde.extraction.extraction import Extraction, Held
from sonde.extraction.forwards import Call, Forwards
from sonde.extraction.manifest import KIND, differences, in_words, manifest
from sonde.extraction.rows import Positions
from sonde.extraction.spread import whole
from sonde.extraction.stored_forms import Transform
from sonde.paths import absolute_path, short_path
from sonde.run import (
    Existing,
    RowWriter,
    TensorStore,
    numbered_folder,
    open_tensors,
    remove_tensors,
    settle_rows,
    written_rows,
)
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
    ranks: Together = ...,
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
    ranks: Together = ...,
) -> Estimate: ...
@checked("model", "include", "exclude", "exists", "shard")
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
    shard: str | float = "128 MB",
    max_bytes: str | float | None = None,
    dry_run: bool = False,
    call: Call = None,
    progress: bool = True,
    ranks: Together = "together",
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

    Where torch.distributed is initialised, as under ``torchrun``, all ranks call this, and fill one store: each runs the batches
    whose turn is its own, or those that a ``DistributedSampler`` gives it, and writes shards of its own; the first rank makes the
    index. An item has the number, and the rows, that it has in the store of one process; of a ``DistributedSampler``'s data its
    index in the data set. Any number of ranks, also one process, goes on with what others began. Models may be spread over ranks.

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
        ranks: which ranks fill the store: ``"together"``, all of them; ``"alone"``, this process runs all batches, and waits for no
            other; a process group or ``DeviceMesh``, its ranks.

    Raises:
        RankError: ranks differ in what they give, one has not come, is lost, or has raised. Whole shards stay.
        ModelError, SelectionError, ArgumentError: an argument cannot be used, a selected site does not run in the first batch, or
            tensors of a site cannot be rows of one column.
        StoreError: *to* holds something else, or was begun from something else (the message says what differs), another program
            writes to it, or it cannot be written. Whole shards stay.
        Exception: what the model, the data or a given function has raised, with a note of the batch. Whole shards stay.
    """
    with Crew.gathered(ranks) as crew:
        asked = Asked(model, batches, include, exclude, ports, positions, columns, dtype, transform, call, order)
        if exists not in _EXISTING:
            raise ArgumentError(f"exists={exists!r}: it is one of {', '.join(map(repr, _EXISTING))}")
        size, most = bytes_of(shard, "shard", "of a file"), bytes_of(max_bytes, "max_bytes", "that a store may take")
        if size == inf:
            raise ArgumentError(f'shard={shard!r}: a file is held in memory before it is written; give its size, as "128 MB"')
        options = {
            "positions": positions,
            "columns": asked.beside,
            "dtype": dtype,
            "transform": transform,
            "order": order,
            "shard": size,
            "call": call,
        }
        crew.share(asked.models.values())
        if not crew.is_alone:
            asked.forwards.whole = partial(whole, crew.partners)
        facts = manifest(asked.models, asked.sites, options, batches, crew)

        def extraction(held: Held, open_writer: Callable[[Mapping[str, Any]], RowWriter]) -> Extraction:
            return Extraction(asked, crew, order, size, most, facts, held, open_writer)

        if dry_run:
            estimate = extraction(Held(Path(), {}, []), partial(RowWriter, Path())).estimate(batches)
            crew.all(0)  # so that none leaves before all have come
            return estimate
        return _stored(crew, asked, batches, facts, extraction, absolute_path(to), exists, verbose=progress)


_Extracting: TypeAlias = Callable[[Held, Callable[[Mapping[str, Any]], RowWriter]], Extraction]


def _stored(
    crew: Crew,
    asked: Asked,
    batches: Iterable[Any],
    facts: dict[str, Any],
    extraction: _Extracting,
    to: Path,
    exists: Existing,
    *,
    verbose: bool,
) -> TensorStore:
    """Make or continue the store in the folder *to*, and return it."""
    if not crew.is_alone:
        if facts["options"]["order"] is not None and len({digest(each) for each in crew.all(facts["data"])}) > 1:
            del facts["data"]  # each process reads data of its own, and ids say which
        crew.agree({**in_words(facts), "to=": str(to), "exists=": exists}, lambda: None)
        facts["weights"] = weights_together(asked.models, asked.forwards.buffers, crew)
    folder = Path(crew.agree({}, partial(_prepared, to, exists)))
    is_begun = (folder / "index.json").exists()
    whole = _whole(folder) if is_begun else None
    held = _held(folder) if is_begun else Held(folder, {}, [])
    crew.agree({f"the number of shards in {folder}, which all ranks have to see": len(held.lines)}, lambda: None)
    if whole is not None:
        _check(folder, whole.about, facts)
        if crew.is_alone:
            _check_weights(folder, whole.about, asked.models, asked.forwards)
        return whole
    _check(folder, {"kind": KIND, **held.about}, facts if held.lines else {})
    was_there = folder.exists()
    writers: list[RowWriter] = []

    def open_writer(about: Mapping[str, Any]) -> RowWriter:
        begins = crew.is_first and not is_begun
        writers.append(RowWriter(folder, about if begins else None, rank=None if crew.is_alone else crew.number, resume=not begins))
        return writers[-1]

    if crew.is_alone:
        opened = open_writer(facts)
    running = extraction(held, (lambda about: opened) if crew.is_alone else open_writer)
    try:
        running.run(batches, verbose=verbose)
    finally:
        running.close()
        for writer in writers:
            writer.close(complete=False)
        if crew.is_alone and not writers[0].shards and not is_begun:
            remove_tensors(folder)
            _leave(folder, was_there)
    return open_tensors(folder)


def _prepared(folder: Path, exists: Existing) -> str:
    """Let the store be made or continued in *folder*, as *exists* says, and return where it is to be. On the first process alone.

    Raises:
        StoreError: it is not to be, or something else is there.
    """
    if exists == "unique":
        folder = numbered_folder(folder)
    elif exists == "replace":
        remove_tensors(folder)
    if (folder / "index.json").exists():
        if exists == "error":
            raise StoreError(
                f"{folder} holds a store already: exists='resume' continues it, 'replace' deletes it, 'unique' writes beside it"
            )
        found = written_rows(folder)
        _check(folder, found.about, {})
        if not found.complete:
            settle_rows(folder)
        elif any(folder.glob("shards*.jsonl")):  # the program was killed as it closed the store: its journal is not needed any more
            RowWriter(folder, None, resume=True).close()
    return str(folder)


def _held(folder: Path) -> Held:
    found = written_rows(folder)
    return Held(folder, found.about, found.shards)


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
