"""Read a run: tables, series, heat-maps and SQL over the recorded rows. No model is needed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.answer import Verdict
from sonde.errors import ArgumentError, MissingExtraError, StoreError, UnknownSiteError
from sonde.escape import encodable, escape_html, printable
from sonde.number import described as described_numbers
from sonde.number import number_of
from sonde.paths import absolute_path, short_path
from sonde.rows import KEYS
from sonde.run.coverage_document import is_coverage, joined
from sonde.run.exporting import export
from sonde.run.folder.duckdb_sql import (
    Database,
    answer_to,
    check_query,
    condition,
    connect,
    first_rank,
    literal,
    numbers_of,
    of_rank,
    quoted,
)
from sonde.run.folder.end import End, State
from sonde.run.folder.files import TENSORS, within
from sonde.run.folder.run_json import Description, copied
from sonde.run.folder.source import Answer, Ask, DiskSource, Source
from sonde.run.graph.plain_graph import PlainGraph
from sonde.run.heatmap import Heatmap, Reduce, heatmap_of
from sonde.run.record import Record, counted, lines_of
from sonde.run.run_lines import family_cells, history, of_ranks
from sonde.run.run_settings import joined_settings
from sonde.run.run_state import state_of, why_empty
from sonde.run.run_summary import RunSummary, keep_summary, kept_summary, of_source
from sonde.run.schema import READ_ORDER, main_families
from sonde.run.sending import Beginning, Receiver, send
from sonde.run.tensors.store import TensorStore, open_tensors
from sonde.schedule import Steps
from sonde.site import Site
from sonde.suggest import unknown_name

if TYPE_CHECKING:
    import duckdb
    import pandas
    import pyarrow

    from sonde.rules import Finding


_MESSAGES = 2  # of findings in the text of a run
_NUMERIC = ("INT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN")


class Run:
    """The rows and documents that one training recorded, open for reading; :func:`open_run` makes one.

    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> run = writer.run()
    >>> run.families, run.sql("SELECT count(*) FROM moments").fetchall()
    (('moments',), [(2,)])

    Each answer shows the run at that moment: a run can be read while it is written.
    """

    def __init__(self, source: Source, *, threads: int | None = None) -> None:
        self._source = source
        self._database = Database([self.path] if self.path else (), threads)
        source.describe()

    def _ask(self, question: Ask[Answer], *, callers_sql: str | None = None) -> Answer:
        """Return the answer to *question*. An error of DuckDB's is the caller's own only where the caller gave SQL."""
        import duckdb

        try:
            return self._database.ask(lambda connection: self._source.ask(connection, question))
        except duckdb.Error as error:
            if callers_sql:
                raise
            raise StoreError(f"{self._source.name} cannot be read: {error}") from error

    # What there is

    @property
    def path(self) -> Path | None:
        """The run's folder; None for one in memory."""
        return self._source.path if isinstance(self._source, DiskSource) else None

    @property
    def info(self) -> Mapping[str, Any]:
        """The description in run.json, the caller's own: the modules of the model, the environment, how lenses are shown."""
        held: Mapping[str, Any] = copied(self._about)
        return held

    @property
    def _about(self) -> Mapping[str, Any]:
        """:attr:`info` as the source holds it, to be read alone: it may list thousands of modules."""
        return self._source.describe().about

    @property
    def config(self) -> Mapping[str, Any]:
        """The hyperparameters and notes that were given to ``sonde.watch(..., config=)``; empty without any."""
        config = self._about.get("config")
        return copied(config) if isinstance(config, Mapping) else {}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, as plain data: ``config``, with dots for mappings inside it, then ``environment.*``.

        The first value of each scalar ``lr`` or ``lr/...`` is there, too, unless the configuration has an ``lr`` of its own.
        """

        def rates(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> dict[str, float]:
            if "scalars" not in families:
                return {}
            found = "SELECT name, arg_min(value, step) FROM scalars WHERE name = 'lr' OR starts_with(name, 'lr/')"
            return dict(connection.execute(f"{found} GROUP BY name ORDER BY name").fetchall())

        return joined_settings(self.config, self._ask(rates), copied(self._about.get("environment")))

    @property
    def description(self) -> Description:
        """The attempts that wrote this run, and ``info``."""
        return replace(self._source.describe(), about=self.info)

    @property
    def version(self) -> str:
        """A text that changes whenever there is something new to read."""
        return self._source.version

    @property
    def lost(self) -> Mapping[str, tuple[str, ...]]:
        """By family, in words, the parts that were found damaged or missing so far; their rows are not in any answer."""
        return {family: tuple(said) for family, said in self._source.lost.items()}

    @property
    def state(self) -> State:
        """``running``, ``ended``, ``failed`` (by an error), ``interrupted``, or ``lost``: its process is gone without an end."""
        return state_of(self._source)[0]

    @property
    def end(self) -> End | None:
        """The error or interrupt that ended the run, of several ranks on that where it came first; None if there was none."""
        return state_of(self._source)[1]

    @property
    def ends(self) -> tuple[End, ...]:
        """The errors and interrupts that ended attempts of this run, of every rank; ``end`` is one of them."""
        return tuple(self._source.ends)

    @property
    def times(self) -> tuple[tuple[int, float], ...]:
        """Steps, ascending, and seconds since 1970: when each attempt began, and when the rows up to a step came to the disk.

        >>> from sonde.run import memory_run
        >>> memory_run().run().times
        ()

        Rows have no time of their own. A run in memory has none of these.
        """
        noted = tuple(self._source.times)
        begun = [(each.first_step, each.started) for each in self._source.describe().attempts] if noted else []
        found: list[tuple[int, float]] = []
        for step, seconds in sorted([*noted, *begun], key=lambda each: each[::-1]):
            while found and found[-1][0] >= step:  # superseded by an attempt that began anew from there
                found.pop()
            found.append((step, seconds))
        return tuple(found)

    @property
    def families(self) -> tuple[str, ...]:
        """The statistics recorded so far, and ``scalars`` where there are any."""
        return self._ask(lambda connection, families: families)

    @property
    def main_families(self) -> tuple[str, ...]:
        """The families of numbers that stand alone: none of evaluation passes, of single backward passes, of each rank."""
        return tuple(main_families(self.numbers))

    @property
    def numbers(self) -> Mapping[str, tuple[str, ...]]:
        """By family, the columns that hold a number."""
        return self._ask(lambda connection, families: {f: _numbers(connection, f) for f in families if f not in _SINGLE})

    @property
    def ports(self) -> Mapping[str, tuple[str, ...]]:
        """By family, the ports that have a row, in alphabetical order."""

        def question(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
            found = {}
            for family in families:
                if family not in _SINGLE:
                    rows = connection.execute(f"SELECT DISTINCT port FROM {quoted(family)} ORDER BY port").fetchall()
                    found[family] = tuple([port for (port,) in rows])
            return found

        return self._ask(question)

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that has a row in any family, in the order of execution."""

        def question(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> tuple[str, ...]:
            place: dict[str, int] = {}
            for family in families:
                if family not in _SINGLE:
                    rows = connection.execute(f'SELECT site, min("order") FROM {quoted(family)} GROUP BY site').fetchall()
                    place |= {site: min(order, place.get(site, order)) for site, order in rows}
            return tuple(sorted(place, key=lambda site: (place[site], site)))

        return self._ask(question)

    @property
    def last_step(self) -> int:
        """The last step that has a row; -1 before the first."""

        def question(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> int:
            found = [connection.execute(f"SELECT max(step) FROM {quoted(family)}").fetchall()[0][0] for family in families]
            return max((step for step in found if step is not None), default=-1)

        return self._ask(question)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The processes that have written rows so far. A row that joins several processes is written by the first of them."""
        return tuple(self._source.ranks)

    @property
    def described_ranks(self) -> str:
        """What the numbers of a run of several processes mean, in words; ``""`` for a run of one process."""
        return of_ranks(self._about.get("ranks"))

    @property
    def pruned(self) -> str:
        """What ``sonde.run.prune`` has taken out of the run, in words; ``""`` for a run that is whole."""
        return self._source.describe().pruned_words

    @property
    def record(self) -> Record:
        """The record of findings: what was found, and up to which step by which rules; that of all ranks. Nothing is judged.

        It is empty where none was written: of a run that another program wrote. ``sonde.check`` judges the rows.
        """
        return Record.merged(list(self._source.records().values()))

    def records(self) -> Mapping[int, Record]:
        """Return the record of findings of each rank that wrote one.

        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().records()
        {}
        """
        return self._source.records()

    def keep_records(self, records: Mapping[int, Record]) -> str:
        """Put *records* in place of those of the run, under its locks; return in words why not, ``""`` where that is done.

        >>> from sonde.run import Record, memory_run
        >>> writer = memory_run()
        >>> writer.scalar("loss", 1.5, step=0)
        >>> run = writer.run()
        >>> print(run.keep_records({0: Record(step=0, steps=1)}))
        the run is being written
        """
        why = self._source.keep_records(records)
        if not why and self.path is not None:
            keep_summary(self.path)
        return why

    @property
    def summary(self) -> RunSummary:
        """What a list shows of the run: as it was kept with the run, or, where it was not or is older than the files, made anew.

        >>> from sonde.run import memory_run
        >>> writer = memory_run()
        >>> writer.scalar("loss", 1.5, step=0)
        >>> writer.run().summary.loss
        1.5
        """
        kept = None if self.path is None else kept_summary(self.path)
        return of_source(self._source) if kept is None else kept

    @property
    def findings(self) -> list[Finding]:
        """The findings in the record as a story, one of each rule and model: a root, then what follows from it; the gravest first.

        What several ranks have found is one.
        """
        return self.record.findings

    @property
    def verdict(self) -> Verdict:
        """The gravest of the findings: ``"bad"``, ``"warn"``, ``"note"``, or ``"ok"``; ``"unknown"`` where nothing was judged."""
        return self.record.verdict

    @property
    def shortfalls(self) -> list[str]:
        """What the findings leave out, in words: steps that were not judged, rows that are lost. Nothing where they are of all."""
        records = self._source.records()
        last = self.last_step  # which reads, and so finds damage
        damaged = sum(len(said) for said in self._source.lost.values())
        return Record.merged(list(records.values())).shortfalls(last, damaged)

    @property
    def graph(self) -> PlainGraph | None:
        """The execution graph, or None.

        Raises:
            StoreError: the run's document is no graph.
        """
        held = self.document("graph")
        return None if held is None else PlainGraph.from_data(held)

    @property
    def coverage(self) -> Any:
        """Which sites delivered, and why others did not, as plain data, or None. Of several ranks: on any of them.

        Of a pruned run, ``pruned`` says what was taken out.
        """
        parts = [self.document("coverage", rank=rank) for rank in sorted({0, *self.ranks})]
        there = [part for part in parts if part is not None]
        found = joined(there, self.sites) if len(there) > 1 and all(map(is_coverage, there)) else next(iter(there), None)
        return {**found, "pruned": self.pruned} if isinstance(found, dict) and self.pruned else found

    @property
    def tensors(self) -> TensorStore | None:
        """The tensors that lie in the run's folder ``tensors``, as :func:`sonde.open_tensors` gives them, or None.

        Raises:
            StoreError: they cannot be read; the message says why.
        """
        folder = None if self.path is None else self.path / TENSORS
        if folder is None or not folder.is_dir():
            return None
        try:
            return open_tensors(within(folder.parent, folder))
        except OSError as error:
            raise StoreError(f"{folder} cannot be read: {error}") from None

    def document(self, name: str, *, rank: int = 0) -> Any:
        """A document as one rank wrote it, as plain data; None where there is none.

        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.document("coverage", {"0:output": 1})
        >>> writer.run().document("coverage")
        {'0:output': 1}
        """
        return self._source.document(name, rank)

    # Reading

    def table(self, family: str) -> pyarrow.Table:
        """All rows of a family, in order of step, micro-step, rank and execution.

        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().table("moments").select(["site", "step", "rms"]).to_pylist()
        [{'site': '0:output', 'step': 0, 'rms': 1.0}, {'site': '1:output', 'step': 0, 'rms': 0.5}]

        Raises:
            UnknownSiteError: there is no such family.
        """

        def question(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> pyarrow.Table:
            return _all(connection, self._known(family, families))

        return self._ask(question)

    def to_pandas(self, family: str) -> pandas.DataFrame:
        """:meth:`table` as a pandas table.

        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().to_pandas("moments")[["site", "rms"]].values.tolist()
        [['0:output', 1.0], ['1:output', 0.5]]

        Raises:
            MissingExtraError: pandas is not installed.
            UnknownSiteError: there is no such family.
        """
        table = self.table(family)
        try:
            frame: pandas.DataFrame = table.to_pandas()
        except ImportError:
            raise MissingExtraError.of("to_pandas()", "pandas", "frame") from None
        return frame

    def series(
        self, site: Any, number: str, *, family: str | None = None, where: str | None = None, rank: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """One number of one site over time: ``(steps, values)``.

        >>> from sonde.run import Layout, memory_run
        >>> with memory_run() as writer:
        ...     for step, death in enumerate((0.1, 0.2, 1.0)):
        ...         writer.append("activation", Layout(["1:output"]), {"call_death": [death]}, step=step)
        >>> steps, values = writer.run().series("1", "call_death")
        >>> steps.tolist(), values.tolist()
        ([0, 1, 2], [0.1, 0.2, 1.0])

        A step appears once for each row that the site has in it, in order of micro-step and call. Rows in which the
        number was not recorded are left out. Where each row has a list of k numbers, the values are of shape (rows, k).

        Args:
            site: a site, its text, or the name of a module as the model has it; the port is ``output`` where none is written.
            number: a column, as ``rms``.
            family: needed where several families have a number of this name.
            where: an SQL condition on the rows, as ``"call = 0 AND epoch > 3"``.
            rank: the process that wrote the rows; by default, at each moment the first that has one which *where* allows.

        Raises:
            UnknownSiteError: there is no such family, number or site; the message names the nearest.
            ArgumentError: several families have the number.
            SiteError: the text is the site of one module and the name of another.
        """

        def question(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> tuple[Any, Any]:
            chosen = self._family_of(connection, families, number, family)
            chosen_rank = first_rank(chosen) if rank is None else f"AND rank = {literal(rank)}"
            asked = {encodable(str(each)): each for each in ([site] if isinstance(site, Site) else Site.readings(str(site)))}
            of_site = f"FROM {quoted(chosen)} WHERE site IN ({', '.join(literal(text) for text in asked)})"
            there = [name for (name,) in connection.execute(f"SELECT DISTINCT site {of_site}").fetchall()]
            if len(there) > 1:
                raise Site.unclear(str(site), map(asked.__getitem__, there))
            if not there:
                known = connection.execute(f"SELECT DISTINCT site FROM {quoted(chosen)} ORDER BY site").fetchall()
                raise unknown_name("site", next(iter(asked)), (name for (name,) in known), f"{chosen} in {self._source.name}")
            rows = connection.sql(
                f"SELECT step, {quoted(number)} {of_site} AND {quoted(number)} IS NOT NULL{condition(where)} {chosen_rank} "
                "ORDER BY step, micro_step, call"
            ).to_arrow_table()
            return _values(rows.column(0)), _values(rows.column(1))

        return self._ask(question, callers_sql=where)

    def scalar(self, name: str, *, rank: int | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """One scalar over time: ``(steps, values)``.

        >>> from sonde.run import memory_run
        >>> with memory_run() as writer:
        ...     writer.scalar("loss", 1.5, step=0)
        >>> steps, values = writer.run().scalar("loss")
        >>> steps.tolist(), values.tolist()
        ([0], [1.5])

        Args:
            name: of the scalar.
            rank: the process that wrote it; by default, at each step the first that has it.

        Raises:
            UnknownSiteError: no scalar of this name was recorded; the message names the nearest.
        """

        def question(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> tuple[Any, Any]:
            if "scalars" not in families:
                raise self._unknown("scalar", name, "scalars", families)
            rows = connection.sql(
                f"SELECT step, value FROM {of_rank('scalars', rank, self.ranks)} WHERE name = $name ORDER BY step, rank",
                params={"name": encodable(name)},
            ).to_arrow_table()
            if not rows.num_rows:
                known = connection.execute("SELECT DISTINCT name FROM scalars ORDER BY name").fetchall()
                if (encodable(name),) not in known:
                    raise unknown_name("scalar", name, (each for (each,) in known), self._source.name)
            return _values(rows.column(0)), _values(rows.column(1))

        return self._ask(question)

    def heatmap(
        self,
        number: str,
        port: str = "output",
        *,
        family: str | None = None,
        reduce: Reduce = "worst",
        where: str | None = None,
        exact: float = math.inf,
    ) -> Heatmap:
        """One number of all layers over all steps, as a matrix: sites in the order of execution, times steps.

        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> found = writer.run().heatmap("rms")
        >>> found.sites, found.steps.tolist(), found.values.tolist()
        (('0:output', '1:output'), [0], [[1.0], [0.5]])

        Args:
            number: a column, as ``rms``.
            port: which tensor of a layer.
            family: needed where several families have a number of this name.
            reduce: how the value of a cell is formed where a site has several rows in a step (calls, micro-steps, ranks). By
                default the worst, for numbers that have one (the greatest share of dead units, the greatest magnitude), and
                the mean of others.
            where: an SQL condition on the rows, as ``"rank = 0"``.
            exact: cells up to which the values are float64. Of more they are float32, with seven digits and half the memory, unless
                one of them is beyond the range of a float32.

        Raises:
            UnknownSiteError: there is no such family, number, or port; the message names the nearest.
            ArgumentError: several families have the number, or each row has a list of them.
        """

        def question(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> Heatmap:
            chosen = self._family_of(connection, families, number, family)
            about = described_numbers(self._about, chosen).get(number) or number_of(number)
            return heatmap_of(connection, chosen, about, port, reduce, condition(where), self._source.name, exact)

        return self._ask(question, callers_sql=where)

    export = export

    def send_to(self, *targets: Receiver | Callable[[Run], object], every: Steps | None = None, rank: int | None = None) -> None:
        """Send the run to sinks and visualizers, in the order in which it was recorded, as the training did.

        >>> from sonde.inspector import Sink
        >>> class Names(Sink):
        ...     def write(self, rows):
        ...         print(rows.family, rows.step, rows.columns()["site"])
        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().send_to(Names())
        moments 0 ['0:output', '1:output']

        A visualizer is shown the run as it was at the end of each epoch, and at the end. How often a row was added to is not in a
        run: ``Rows.counts`` is NaN.

        Args:
            targets: sinks (:class:`sonde.inspector.Sink`), which are opened and closed; and callables that take a run.
            every: only these of the recorded steps, as in ``watch``: every n-th, a range, a list, a callable. Visualizers are then
                shown the run after each of them.
            rank: the process whose rows are sent; by default, of each place at each step the first that has rows of it.

        Raises:
            ArgumentError: there is no target, a target is neither sink nor visualizer, or *every* is a time.
        """
        place = None if self.path is None else str(self.path)
        send(self, targets, every, rank, place, lambda step: Run(Beginning(self, self._source, step, rank)))

    def sql(self, query: str, params: Mapping[str, object] | None = None) -> duckdb.DuckDBPyRelation:
        """Return the answer to a query; every family is a table of its name. Note that ``"order"`` needs quotes in SQL.

        >>> from sonde.run import Layout, memory_run
        >>> with memory_run() as writer:
        ...     for step, death in enumerate((0.1, 0.2, 1.0)):
        ...         writer.append("activation", Layout(["1:output"]), {"call_death": [death]}, step=step)
        >>> writer.run().sql("SELECT site, max(call_death) FROM activation GROUP BY site").fetchall()
        [('1:output', 1.0)]

        A query reads the rows of this run and nothing else: no other file, no setting of DuckDB, no Python variable. For
        everything else use :meth:`connection`.

        Args:
            query: one statement that only reads; ``$name`` stands for a value in *params*.
            params: values by name, as ``{"site": "layers.0:output"}``: whatever a text holds, it is no SQL.

        Returns:
            A DuckDB relation over the answer, which is in memory: it prints as a table and has ``fetchall()``, ``df()``,
            ``to_arrow_table()``.

        Raises:
            ArgumentError: the query is not one statement that only reads.
            UnknownSiteError: the query names a table that is no family of this run.
            duckdb.Error: DuckDB refuses the query.
        """
        with self._database:
            check_query(query)
            return self._database.relation(self._ask(partial(answer_to, query, params, self._unknown_family), callers_sql=query))

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Return a new DuckDB connection with a view of each family, for all that :meth:`sql` refuses.

        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> with writer.run().connection() as connection:
        ...     connection.sql("SELECT site, rms FROM moments WHERE rms < 1").fetchall()
        [('1:output', 0.5)]

        The connection may do everything that DuckDB can: write files, read others, attach databases. The views show the parts
        that the run has now; call again for later ones. Close the connection after use.
        """
        connection = connect({"python_enable_replacements": True})
        self._source.ask(connection, lambda _, families: families)
        return connection

    def _unknown_family(self, family: str, families: tuple[str, ...]) -> UnknownSiteError:
        gone = next((each.words for each in self._source.describe().pruned if family in each.dropped), "")
        return UnknownSiteError(f"{self._source.name}: {gone}") if gone else self._unknown("family", family, family, families)

    def _known(self, family: str, families: tuple[str, ...]) -> str:
        if family not in families:
            raise self._unknown_family(family, families)
        return family

    def _unknown(self, kind: str, asked: str, family: str, families: tuple[str, ...]) -> UnknownSiteError:
        """Return the error for *asked*, a *kind* that *family* would hold: the family is damaged, or is not there, or not yet."""
        lost = self._source.lost.get(family, ())
        if lost:
            more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
            return UnknownSiteError(f"{family} cannot be read from {self._source.name}: no part of it is left; {lost[0]}{more}")
        if not families:
            return UnknownSiteError(f"{asked!r} is no {kind} of {self._source.name}: {why_empty(self._source)}")
        there = families if kind == "family" else ()
        return unknown_name(kind, asked, there, self._source.name)

    def _family_of(self, connection: duckdb.DuckDBPyConnection, families: tuple[str, ...], number: str, family: str | None) -> str:
        """The family that has *number*: *family* if given, otherwise the only one, of the main families first."""
        searched = [self._known(family, families)] if family is not None else [f for f in families if f not in _SINGLE]
        columns = {each: _numbers(connection, each) for each in searched}
        having = [each for each, names in columns.items() if number in names]
        having = [each for each in having if each in main_families(families)] or having
        if len(having) == 1:
            return having[0]
        if having:
            raise ArgumentError(f"{' and '.join(having)} each have a number {number!r}: say which with family=")
        where = f"{family} in {self._source.name}" if family is not None else self._source.name
        raise unknown_name("number", number, (name for names in columns.values() for name in names), where)

    def __repr__(self) -> str:
        return printable("\n".join(self._lines()))

    def _repr_html_(self) -> str:
        head, *rest = map(escape_html, self._lines())
        return "<pre><b>" + head + "</b>\n" + "\n".join(rest) + "</pre>"

    def _lines(self) -> list[str]:
        """A line for the run and one for each family."""
        described = self._ask(lambda connection, families: [family_cells(connection, family) for family in families])
        widths = [max((len(row[place]) for row in described), default=0) for place in range(3)]
        rows = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in described]
        (state, end), path, past = state_of(self._source), self.path, history(self._source.describe())
        head = ["Run in memory", state + past] if path is None else [f"Run {path.name}", state + past, short_path(path)]
        said = [line for line in (end.words if end else "", self.described_ranks, self.pruned) if line]
        found = self.findings
        told = lines_of(found)
        messages = ", ".join(f"“{each}”" for each in told[:_MESSAGES]) + (", ..." if len(told) > _MESSAGES else "")
        judged = [f"{counted(found)}: {messages}"] if found else []
        return [" · ".join(head), *said, *(rows or ["nothing recorded yet"]), *judged]


_SINGLE = ("scalars",)


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run for reading. It may be written at the same time.

    >>> import sonde, tempfile
    >>> from sonde.run import start_run
    >>> folder = tempfile.mkdtemp() + "/first"
    >>> with start_run(folder) as writer:
    ...     writer.scalar("loss", 1.5, step=0)
    >>> sonde.open_run(folder).families
    ('scalars',)

    Args:
        path: the run's folder; ``~`` is the home folder.

    Raises:
        ArgumentError: *path* cannot be a path.
        StoreError: there is no run there, or one in another version of the format.
    """
    folder = absolute_path(path)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file; a run is a folder with a run.json in it")
    return Run(DiskSource(folder))


def _columns(connection: duckdb.DuckDBPyConnection, family: str) -> dict[str, str]:
    return {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE {quoted(family)}").fetchall()}


def _numbers(connection: duckdb.DuckDBPyConnection, family: str) -> tuple[str, ...]:
    columns = _columns(connection, family)
    return tuple([name for name, kind in columns.items() if name not in KEYS and any(part in kind for part in _NUMERIC)])


def _all(connection: duckdb.DuckDBPyConnection, family: str) -> pyarrow.Table:
    columns = _columns(connection, family)
    order = ", ".join(quoted(name) for name in READ_ORDER if name in columns)
    return connection.sql(f"SELECT * FROM {quoted(family)} ORDER BY {order}").to_arrow_table()


def _values(column: pyarrow.ChunkedArray) -> npt.NDArray[Any]:
    values = numbers_of(column)
    if values.dtype == object and len({len(row) for row in values}) == 1:  # lists of one length
        return np.stack(list(values))
    return values
