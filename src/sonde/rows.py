"""Finished rows: the one form in which numbers of places in a network travel to disk, to sinks, to rules and to pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.escape import encodable
from sonde.site import Site

Column = npt.NDArray[Any] | list[str]
"""The values of a column: numbers of shape (rows,), lists of k numbers of shape (rows, k), or texts."""

_KEY_BYTES = 40  # of a row's keys in a table

Scope = Literal["rank", "data-parallel", "global"]
"""How much of a training a number is of, where several processes train together: of one process alone; of the batches of all
processes of a data-parallel group, joined; or of the whole. In a training of one process every number is of the whole."""

SCOPES: tuple[Scope, ...] = ("rank", "data-parallel", "global")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column that every family of numbers has.

    Attributes:
        name: of the column.
        kind: its Arrow type; texts are dictionary-encoded.
        given: the source of its values: the ``moment`` at which rows were taken, the ``process`` that writes, the ``place`` in
            the network (a row of a :class:`Layout`), or the ``row`` itself.
        of_site: derives the value from the site; None where it is given.
    """

    name: str
    kind: Literal["int64", "int32", "string"]
    given: Literal["moment", "process", "place", "row"]
    of_site: Callable[[Site], str] | None = None


KEY_COLUMNS = (
    KeyColumn("epoch", "int64", "moment"),
    KeyColumn("step", "int64", "moment"),
    KeyColumn("micro_step", "int32", "moment"),
    KeyColumn("rank", "int32", "process"),
    KeyColumn("scope", "string", "place"),
    KeyColumn("ranks", "int32", "row"),
    KeyColumn("model", "string", "place", lambda site: site.model),
    KeyColumn("site", "string", "place", str),
    KeyColumn("layer", "string", "place", lambda site: site.layer),
    KeyColumn("port", "string", "place", lambda site: site.port),
    KeyColumn("leaf", "string", "place", lambda site: site.leaf),
    KeyColumn("call", "int32", "place"),
    KeyColumn("order", "int32", "place"),
)
"""The columns that lead every family of numbers, in this order. A column in every row is an entry here, and nothing else."""

KEYS = tuple([key.name for key in KEY_COLUMNS])
"""Their names."""


class Layout:
    """Which place in the network each row belongs to. Make one and give it with every block of numbers.

    >>> from sonde.run import Layout
    >>> layout = Layout(["0:output", "1:output"], call=[0, 1])
    >>> layout.site, layout.columns["layer"], len(layout.of_scope("rank"))
    (('0:output', '1:output'), ('0', '1'), 2)

    Args:
        sites: of each row its site, or the text of it, as ``layers.3.mlp:output``.
        call: of each row which call of the module within one forward, or one number for all.
        order: of each row its site's place in the order of execution; by default the order of the rows.
        scope: of each row how much of the training it is of, or one scope for all.

    Attributes:
        site, model, port, scope: of each row the text of its site, the model and the port in it, and its scope.
        columns: of each column in ``KEY_COLUMNS`` that is given by the place, the value of each row.
        rows: the indices of all rows.

    Raises:
        ArgumentError: these are not equally long, or a scope is none of ``SCOPES``.
        SiteError: a text does not name a site.
    """

    def __init__(
        self,
        sites: Sequence[str | Site],
        call: int | Sequence[int] | npt.NDArray[Any] = 0,
        order: Sequence[int] | npt.NDArray[Any] | None = None,
        scope: Scope | Sequence[Scope] = "global",
    ) -> None:
        if isinstance(sites, str):
            raise ArgumentError(f"a layout takes a sequence of sites, one for each row, not the text {sites!r}")
        parsed = [site if isinstance(site, Site) else Site.parse(site) for site in sites]
        texts = {
            key.name: tuple([encodable(key.of_site(site)) for site in parsed]) for key in KEY_COLUMNS if key.of_site is not None
        }
        whole = {
            "call": np.full(len(parsed), call, np.int32) if isinstance(call, int) else np.array(call, np.int32),
            "order": np.arange(len(parsed), dtype=np.int32) if order is None else np.array(order, np.int32),
        }
        self.scope: tuple[Scope, ...] = (scope,) * len(parsed) if isinstance(scope, str) else tuple(scope)
        if strange := set(self.scope) - set(SCOPES):
            raise ArgumentError(f"{strange.pop()!r} is no scope of a row: it is one of {', '.join(map(repr, SCOPES))}")
        for name, values in (*whole.items(), ("scope", self.scope)):
            if len(values) != len(parsed):
                raise ArgumentError(f"a layout of {len(parsed)} sites has {len(values)} of {name!r}: give one for each row")
        self.site, self.model, self.port = texts["site"], texts["model"], texts["port"]
        self.columns: Mapping[str, tuple[str, ...] | npt.NDArray[np.int32]] = {**texts, **whole, "scope": self.scope}
        self.rows: npt.NDArray[np.intp] = np.arange(len(parsed))

    def of_scope(self, scope: Scope | Sequence[Scope]) -> Layout:
        """Return a layout of the same places, whose rows are of *scope*."""
        made = copy(self)
        made.scope = (scope,) * len(self) if isinstance(scope, str) else tuple(scope)
        made.columns = {**self.columns, "scope": made.scope}
        return made

    @property
    def order(self) -> npt.NDArray[np.int32]:
        """Of each row its site's place in the order of execution."""
        return np.asarray(self.columns["order"])

    def __len__(self) -> int:
        return len(self.site)


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows of one family at several moments, one moment after the other.

    >>> from sonde.inspector import Sink
    >>> class Blocks(Sink):
    ...     def write_all(self, entries):
    ...         for block in entries.blocks:
    ...             print(block.family, len(block.moments), block.numbers["rms"].tolist())
    ...             print(block.between(0, 1).numbers["rms"].tolist(), block.last(1).numbers["rms"].tolist())
    ...             print(block.last(1).followed_by([block]).moments.shape[0], len(list(block.pieces(1))), block.nbytes > 0)
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> writer.run().send_to(Blocks())
    moments 1 [1.0, 0.5]
    [1.0, 0.5] [1.0, 0.5]
    2 1 True

    Attributes:
        family: as ``moments``.
        layout: all sites that could have a row.
        rows: of each row its index into *layout*.
        moments: epoch, step and micro-step of each moment, of shape ``(moments, 3)``.
        edges: where the rows of each moment begin, and at last the number of all rows: of shape ``(moments + 1,)``.
        counts: how often something was added to each row; NaN where this is not known.
        numbers: by name, float64 of the shape of *rows*; or of shape ``(rows, k)`` for a list in each row.
        ranks: of each row the number of processes whose tensors are in it, of the shape of *rows*; None: one.
    """

    family: str
    layout: Layout
    rows: npt.NDArray[np.intp]
    moments: npt.NDArray[np.int64]
    edges: npt.NDArray[np.intp]
    counts: npt.NDArray[np.float64]
    numbers: Mapping[str, Any]
    ranks: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.moments)

    @cached_property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory, their keys in a table included."""
        columns = sum(column.nbytes if isinstance(column, np.ndarray) else 8 * len(column) for column in self.numbers.values())
        return columns + _KEY_BYTES * len(self.rows)

    @property
    def lines(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def between(self, first: int, last: int) -> RowBlock:
        """The moments from *first* up to *last*, exclusive. The arrays are views."""
        start, end = self.edges[first], self.edges[last]
        numbers = {name: column[start:end] for name, column in self.numbers.items()}
        return RowBlock(
            self.family,
            self.layout,
            self.rows[start:end],
            self.moments[first:last],
            self.edges[first : last + 1] - start,
            self.counts[start:end],
            numbers,
            None if self.ranks is None else self.ranks[start:end],
        )

    def followed_by(self, others: Sequence[RowBlock]) -> RowBlock:
        """The moments of this block and then those of *others*, which have the same family, layout and names of numbers."""
        blocks = [self, *others]
        starts = np.cumsum([0, *(block.lines for block in blocks)])
        edges = [block.edges[:-1] + start for block, start in zip(blocks, starts[:-1].tolist(), strict=True)]
        ranks = None
        if any(block.ranks is not None for block in blocks):
            ranks = np.concatenate([np.ones(block.lines, np.int32) if block.ranks is None else block.ranks for block in blocks])
        return RowBlock(
            self.family,
            self.layout,
            np.concatenate([block.rows for block in blocks]),
            np.concatenate([block.moments for block in blocks]),
            np.concatenate([*edges, starts[-1:]]),
            np.concatenate([block.counts for block in blocks]),
            {name: np.concatenate([block.numbers[name] for block in blocks]) for name in self.numbers},
            ranks,
        )

    def last(self, moments: int) -> RowBlock:
        """The last so many moments, or all if there are no more."""
        return self if moments >= len(self) else self.between(len(self) - moments, len(self))

    def pieces(self, most: int) -> Iterator[RowBlock]:
        """The same rows in blocks of no more than *most* bytes, and of one moment or more."""
        if len(self) < 2 or self.nbytes <= most:
            yield self
            return
        fitting = most * self.lines // self.nbytes  # rows
        first = 0
        while first < len(self):
            last = max(first + 1, int(np.searchsorted(self.edges, self.edges[first] + fitting, "right")) - 1)
            yield self.between(first, last)
            first = last


@dataclass(frozen=True, eq=False)
class Rows:
    """The numbers of one family at one moment: a row for each site at which something was added.

    >>> from sonde.inspector import Sink
    >>> class Largest(Sink):
    ...     def write(self, rows):
    ...         columns = rows.columns()
    ...         print(rows.family, rows.step, columns["site"][columns["rms"].argmax()])
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> writer.run().send_to(Largest())
    moments 0 0:output

    Attributes:
        family: as ``moments``.
        layout: all sites that could have a row.
        rows: the sites that have a row: indices into *layout*.
        epoch, step, micro_step: when.
        counts: how often something was added to each row.
        numbers: by name, float64 of the shape of *rows*.
        ranks: of each row the number of processes whose tensors are in it; None: one.
    """

    family: str
    layout: Layout
    rows: npt.NDArray[np.intp]
    epoch: int
    step: int
    micro_step: int
    counts: npt.NDArray[np.float64]
    numbers: Mapping[str, npt.NDArray[np.float64]]
    ranks: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, block: RowBlock, moment: int) -> Rows:
        """The rows of one moment of *block*, by its position.

        >>> from sonde.inspector import Rows, Sink
        >>> class First(Sink):
        ...     def write_all(self, entries):
        ...         rows = Rows.of(entries.blocks[0], 0)
        ...         print(rows.step, rows.sites, rows.block().lines)
        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().send_to(First())
        0 ['0:output', '1:output'] 2
        """
        epoch, step, micro_step = block.moments[moment].tolist()
        start, end = block.edges[moment : moment + 2].tolist()
        numbers = {name: column[start:end] for name, column in block.numbers.items()}
        ranks = None if block.ranks is None else block.ranks[start:end]
        return cls(
            block.family, block.layout, block.rows[start:end], epoch, step, micro_step, block.counts[start:end], numbers, ranks
        )

    def block(self) -> RowBlock:
        """The same rows as a block of one moment."""
        moments = np.array([[self.epoch, self.step, self.micro_step]], np.int64)
        edges = np.array([0, len(self.rows)], np.intp)
        return RowBlock(self.family, self.layout, self.rows, moments, edges, self.counts, self.numbers, self.ranks)

    @property
    def sites(self) -> list[str]:
        """The text of each row's site."""
        return [self.layout.site[row] for row in self.rows]

    @property
    def models(self) -> list[str]:
        """Each row's model."""
        return [self.layout.model[row] for row in self.rows]

    def columns(self) -> dict[str, Any]:
        """The columns that the family has in a run, keys first, without those of the process."""
        keys: dict[str, Any] = {}
        for key in KEY_COLUMNS:
            if key.given == "moment":
                keys[key.name] = getattr(self, key.name)
            elif key.given == "row":
                keys[key.name] = np.ones(len(self.rows), np.int32) if self.ranks is None else self.ranks
            elif key.given == "place":
                values = self.layout.columns[key.name]
                keys[key.name] = [values[row] for row in self.rows] if isinstance(values, tuple) else values[self.rows]
        return {**keys, **self.numbers}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that belongs to no site.

    >>> from sonde.inspector import Scalar
    >>> Scalar("loss", 1.5, epoch=0, step=20).scope
    'global'

    Attributes:
        name: as ``loss``.
        value: the number.
        epoch, step: when.
        scope: how much of the training it is of.
        ranks: the number of processes that it is of.
    """

    name: str
    value: float
    epoch: int
    step: int
    scope: Scope = "global"
    ranks: int = 1
