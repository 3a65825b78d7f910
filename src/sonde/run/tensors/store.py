"""Read a store of tensors: a mapping from key to tensor, each mapped into memory and checked when it is read for the first time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from sonde.errors import ArgumentError, SiteError, StoreError, UnknownSiteError
from sonde.paths import absolute_path
from sonde.run.json_tree import decode
from sonde.run.tensors.hidden_states import foreign_index
from sonde.run.tensors.index import INDEX, Index, Journal, Line, journals_in
from sonde.run.tensors.rows import Blocks, Rows, TensorRows
from sonde.run.tensors.shards import Shards
from sonde.run.tensors.shuffled import Shuffled
from sonde.site import Site
from sonde.sizes import bytes_of
from sonde.suggest import nearest
from sonde.warn import warn_user
from sonde.words import many


class TensorStore(Mapping[str, Any]):
    """A folder of tensors, open for reading. Each is mapped into memory, and checked when it is read for the first time.

    >>> import sonde, tempfile, torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> batches = [torch.tensor([[1.0, 2.0], [3.0, 4.0]])]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = sonde.extract(model, batches, None, to=f"{folder}/acts", progress=False)
    ...     store["(root):output"][:].tolist(), store.item(1)["(root):output"].tolist(), store.verify()
    ...     [batch["(root):output"].shape for batch in store.shuffled(2)], len(store.at("(root):output"))
    ([[3.0], [7.0]], [[7.0]], [])
    ([torch.Size([2, 1])], 1)

    What ``Tracker.save`` and ``Recorder.save`` wrote holds *records*: ``store["000012/layers.3.mlp:output"]`` is one tensor,
    ``store["layers.3.mlp:output"]`` the only one of a site, ``store.at("layers.3.mlp")`` every tensor of a module in the order
    they were kept, and ``store.value(12)`` the value of record 12, in its structure.

    What was extracted from many batches holds *rows*: ``store["layers.3.mlp"]`` is a column of all shards;
    ``[100:200]`` behind it reads some rows and ``.item(7)`` those of one item; ``store.rows`` is a data set of all columns, and
    ``store.shuffled(256)`` an epoch of it in another order.

    Attributes:
        path: the folder; of several that are read as one, the first.
        about: plain data about the whole store, such as the kind of probe that wrote it; of several folders, that of the first.
        records: plain data about each record: its site, its module, when it was kept. Empty where there are rows.
        complete: false if a writer did not finish; what is in the shards that it finished is there.
    """

    def __init__(self, folders: Sequence[tuple[Shards, Index]]) -> None:
        shards, first = folders[0]
        self.path = shards.folder
        self.about = first.about
        self.complete = all(index.complete for _, index in folders)
        self.records: list[dict[str, Any]] = []
        self._lines: list[tuple[Shards, Line]] = [(held, line) for held, index in folders for line in index.shards]
        self._blocks = Blocks(self._lines) if first.holds == "rows" else None
        self._values: dict[str, Any] = {}
        if self._blocks is None:
            self.records += [record for _, line in self._lines for record in line["records"]]
            self._values |= {key: (held, line) for held, line in self._lines for key in line["tensors"]}
        else:
            self._values |= {name: TensorRows(name, self._blocks) for name in self._blocks.columns}

    def __getitem__(self, key: str | Site) -> Any:
        if not (isinstance(key, str) and key in self._values):
            found = self._keys_at(key)
            if len(found) > 1:
                shown = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
                kind = "tensors" if self._blocks is None else "columns"
                raise SiteError(f"{str(key)!r} has {len(found)} {kind} in {self.path}: {shown}; store.at() gives them all")
            key = found[0]
        if self._blocks is not None:
            return self._values[key]
        shards, line = self._values[key]
        return shards.tensor(line, key).detach()

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a store of rows, in order: the sites, and what came with them; empty where there are records."""
        return () if self._blocks is None else tuple(self._values)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that have tensors, in order."""
        return tuple(dict.fromkeys(text for key in self if (text := self._site(key))))

    def _site(self, key: str) -> str:
        """The site of a key, as text; ``""`` for a column that is of none."""
        return key.partition("/")[2] if self._blocks is None else key if ":" in key else ""

    @cached_property
    def kept(self) -> dict[str, list[tuple[int | None, str]]]:
        """By site the step at which each tensor was kept, and its key; None where the record does not say, and of rows.

        >>> import sonde, tempfile, torch
        >>> model = torch.nn.Sequential(torch.nn.Identity())
        >>> with sonde.track(model, include="0", grad=False) as tracker, tempfile.TemporaryDirectory() as folder:
        ...     _ = model(torch.ones(2))
        ...     sonde.open_tensors(tracker.save(f"{folder}/seen")).kept
        {'0:output': [(0, '000000/0:output')]}
        """
        found: dict[str, list[tuple[int | None, str]]] = {site: [] for site in self._parsed}
        records = {f"{number:06d}": record for number, record in enumerate(self.records)}
        for key in self:
            match records.get(key.partition("/")[0]):
                case {"tick": {"step": int(step)}}:
                    found.get(self._site(key), []).append((step, key))
                case _:
                    found.get(self._site(key), []).append((None, key))
        return found

    def sample(self, key: str) -> dict[str, Any]:
        """Return a few values of a tensor, or of the first one of a site, without torch: of rows those of the first shard.

        >>> import sonde, tempfile, torch
        >>> model = torch.nn.Sequential(torch.nn.Identity())
        >>> with sonde.track(model, include="0", grad=False) as tracker, tempfile.TemporaryDirectory() as folder:
        ...     _ = model(torch.arange(6.0).reshape(2, 3))
        ...     found = sonde.open_tensors(tracker.save(f"{folder}/seen")).sample("0")
        ...     found["shape"], found["dtype"], found["low"], found["high"], found["values"].tolist()
        ([2, 3], 'float32', 0.0, 5.0, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])

        At most 64 ``values`` along each of the last two axes, evenly picked, at the first place of all others, and their places:
        ``rows``, ``columns``. ``low``, ``high``, ``nan`` and ``inf`` are of all values; above 256 MB they are None.

        Raises:
            StoreError: the tensor is damaged, of a type that only torch reads, or there are no rows.
            UnknownSiteError: there is no such tensor.
        """
        key = key if key in self._values else self._keys_at(key)[0]
        held = [self._values[key]] if self._blocks is None else self._blocks.held
        if not held:
            raise StoreError(f"{self.path} has no rows")
        return held[0][0].sample(held[0][1], key)

    @property
    def shards(self) -> int:
        """The number of files."""
        return len(self._lines)

    @property
    def nbytes(self) -> int:
        """The bytes of all files of tensors."""
        return sum(line["bytes"] for _, line in self._lines)

    @property
    def coverage(self) -> Any:
        """What was and was not observed, as the writer says; None where it does not."""
        return self.about.get("coverage")

    @property
    def rows(self) -> Rows:
        """All columns of each row, a data set for ``torch.utils.data.DataLoader``.

        Raises:
            StoreError: the store holds records.
        """
        return Rows(self._rows_of_all())

    def item(self, item: int) -> dict[str, Any]:
        """Return the rows of one item, as the positions of a sequence, of every column.

        Raises:
            StoreError: the store holds records.
            UnknownSiteError: there is no such item.
            ArgumentError: two of the folders have one of this number.
        """
        return self.rows[self._rows_of_all().of_item(item)]

    @property
    def item_span(self) -> tuple[int, int] | None:
        """The first and the last item; None where there are none."""
        return None if self._blocks is None else self._blocks.item_span

    def shuffled(
        self, batch: int, *, seed: int = 0, columns: Sequence[str] | None = None, memory: float | str = "256 MB"
    ) -> Shuffled:
        """Return the batches of an epoch in which each row comes once, in another order.

        A ``torch.utils.data.IterableDataset``: go through it, or give it to a ``DataLoader`` with ``batch_size=None``. The workers
        of the loader, and the ranks where torch.distributed is initialised, share the rows without overlap and without loss.
        ``set_epoch(n)`` gives the next order.

        Args:
            batch: rows of a batch; the last one of a worker may have fewer.
            seed: of the order.
            columns: those that are read; all by default.
            memory: bytes that each worker may hold, as ``"256 MB"``: more mixes better.

        Raises:
            StoreError: the store holds records, or is damaged.
        """
        return Shuffled(self._rows_of_all(), batch, seed, columns, bytes_of(memory, "memory", "that a worker may hold"))

    def _rows_of_all(self) -> Blocks:
        if self._blocks is None:
            raise StoreError(f"{self.path} holds records, each of its own shape, and no rows: use store.records and store.value(i)")
        return self._blocks

    def verify(self) -> list[str]:
        """Read everything, and return what is damaged, in words, a line for each tensor; empty where all is as it was written."""
        found = []
        for shards, line in self._lines:
            for key in line["tensors"]:
                try:
                    Shards(shards.folder).tensor(line, key)
                except StoreError as error:
                    found.append(str(error))
        return found

    def at(self, site: str | Site) -> list[Any]:
        """Every tensor of a module, of one of its ports or of one leaf, in the order they were kept; of rows, every column.

        Raises:
            UnknownSiteError: the store has no tensor there; the message names the nearest.
            SiteError: the text is the site of one module and the name of another.
        """
        return [self[key] for key in self._keys_at(site)]

    @cached_property
    def _parsed(self) -> dict[str, Site]:
        found: dict[str, Site] = {}
        for text in self.sites:
            with suppress(SiteError):
                found[text] = Site.parse(text)
        return found

    def _keys_at(self, site: str | Site) -> list[str]:
        held = self._parsed
        aliases = self.about.get("aliases")
        others = aliases if isinstance(aliases, dict) else {}
        asked, whole_module = Site.asked(site, held.values(), lambda path: str(others.get(path, path)))
        wanted = {text for text, each in held.items() if asked.covers(each, whole_module=whole_module)}
        if not wanted:
            names = [each.at("").name if whole_module and ":" not in str(site) else text for text, each in held.items()]
            names += [name for name in self.columns if name not in held]
            raise UnknownSiteError(f"{self.path} has no tensor of {str(site)!r}. {nearest(str(site), names)}")
        return [key for key in self if self._site(key) in wanted]

    def value(self, record: int) -> Any:
        """The value of a record, in its structure.

        >>> import sonde, tempfile, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with sonde.track(net, grad=False) as tracker, tempfile.TemporaryDirectory() as folder:
        ...     _ = net(torch.ones(1, 2))
        ...     store = sonde.open_tensors(tracker.save(f"{folder}/seen"))
        ...     store.value(0).shape
        torch.Size([1, 2])

        Tuples, lists, dicts and numbers come back as they were, named tuples and dataclasses as dicts of their fields, and
        what could not be written as its description in ``<...>``.

        Raises:
            StoreError: the index names a tensor that is not there, or a shard is missing or broken.
        """
        return decode(self.records[record].get("value"), self._of_value)

    def _of_value(self, key: str) -> Any:
        if key not in self:
            raise StoreError(f"{self.path} is not whole: its {INDEX} names a tensor {key!r} and no shard that holds it")
        return self[key]

    def __repr__(self) -> str:
        state = "" if self.complete else ", not complete"
        where = f"TensorStore({str(self.path)!r}"
        if self._blocks is None:
            return f"{where}: {len(self)} tensors of {len(self.sites)} sites, {len(self.records)} records{state})"
        span = self.item_span
        items = "" if span is None else f" of items {span[0]:,} to {span[1]:,}"
        shards = many(len(self._lines), "shard")
        lines = [
            f"{where}: {many(self._blocks.rows, 'row')}{items} in {shards}{state})",
            *(f"  {rows!r}" for rows in self.values()),
        ]
        return "\n".join(lines)


def holds_tensors(path: str | os.PathLike[str]) -> bool:
    """Return whether the folder *path* is one for :func:`open_tensors`, whole or not.

    >>> import tempfile
    >>> from sonde.run import holds_tensors
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     holds_tensors(folder)
    False
    """
    folder = absolute_path(path)
    return (folder / INDEX).is_file() or any(folder.glob("*.safetensors"))


def open_tensors(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, verify: bool = True) -> TensorStore:
    """Open a folder that ``Tracker.save``, ``Recorder.save`` or ``extract`` wrote; of rows, several as one.

    >>> import sonde, tempfile, torch
    >>> model = torch.nn.Linear(4, 3)
    >>> with sonde.track(model) as tracker:
    ...     output = model(torch.ones(2, 4))
    >>> folder = tracker.save(tempfile.mkdtemp() + "/kept")
    >>> sonde.open_tensors(folder).at("(root):output")[0].shape
    torch.Size([2, 3])

    Nothing in it is executed: it holds JSON and safetensors. A folder in which vLLM has put hidden states
    (``extract_hidden_states``: a safetensors file for each request) is read as a store of rows, an item for each file.

    Args:
        verify: compare the checksum of a tensor when it is read for the first time; this reads all of it, once.

    Raises:
        StoreError: a folder is no store of tensors, is not whole, or was written in another version of the format; or several hold
            something else than rows of the same columns.
    """
    folders = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not folders:
        raise ArgumentError("there is no folder to open: give one, or several")
    held = [_opened(each, verify) for each in folders]
    if len(held) > 1 and not all(index.holds == "rows" for _, index in held):
        raise StoreError("of several folders that are read as one each must hold rows: open those that hold records one by one")
    return TensorStore(held)


def _opened(path: str | os.PathLike[str], verify: bool) -> tuple[Shards, Index]:
    folder = absolute_path(path)
    if (foreign := foreign_index(folder)) is not None:
        return Shards(folder, verify=verify), foreign
    index = Index.read(folder)
    journals = [Journal.read(folder / name, index.holds) for name in journals_in(folder)]
    if not index.complete:  # a writer that closes moves the lines from its journal to the index
        index = Index.read(folder)
    for journal in journals:
        index.add(journal.lines)
        for each in journal.damage:
            warn_user(f"{each}. The shard that it names is left out; the others are read")
    if not index.complete and not index.shards:
        raise StoreError(f"{folder} is empty: the program that wrote it did not finish")
    return Shards(folder, verify=verify), index
