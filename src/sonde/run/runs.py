"""Open all runs below a folder: their table, tables and SQL over all of them with a column ``run``, and choices among them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError, MissingExtraError, StoreError, UnknownSiteError
from sonde.escape import encodable, escape_html, printable, printable_line, shortened
from sonde.paths import absolute_path, short_path
from sonde.run.folder.duckdb_sql import Database, answer_to, check_query, quoted
from sonde.run.folder.end import STATES, State
from sonde.run.folder.files import FILE, runs_below
from sonde.run.folder.source import Answer, Ask, DiskSource, JoinedSource
from sonde.run.run import Run
from sonde.run.run_settings import differing, joined_settings, setting_text
from sonde.run.run_summary import RunSummary
from sonde.run.schema import READ_ORDER
from sonde.suggest import unknown_name
from sonde.words import many

if TYPE_CHECKING:
    import duckdb
    import pandas
    import pyarrow


_SHOWN_SETTINGS = 5
_LONGEST = 24  # characters of a setting in the table


class Runs(Sequence[Run]):
    """Several runs on disk, in the order of their names; :func:`open_runs` makes one.

    >>> import sonde, tempfile
    >>> from sonde.run import Layout, start_run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, loss in (("wide", 1.5), ("deep", 0.5)):
    ...         with start_run(f"{folder}/{name}", about={"arguments": {"lr": loss / 10}}) as writer:
    ...             writer.append("moments", Layout(["0:output"]), {"rms": [loss]}, step=0)
    ...             writer.scalar("loss", loss, step=0)
    ...     runs = sonde.open_runs(folder)
    ...     {name: values.tolist() for name, (steps, values) in runs.scalars("loss").items()}
    ...     runs.table("moments")["run"].to_pylist(), runs.frame("moments")["rms"].tolist()
    ...     runs.sql("SELECT run, rms FROM moments WHERE rms < 1").fetchall()
    ...     list(runs.select("d*").summaries()), runs.summaries()["wide"].loss
    {'deep': [0.5], 'wide': [1.5]}
    (['deep', 'wide'], [0.5, 1.5])
    [('deep', 0.5)]
    (['deep'], 1.5)

    ``runs[0]`` and ``runs["name"]`` are one :class:`Run`, ``runs[2:5]`` and :meth:`select` some of them. As a text, a table with a
    row for each run.

    Attributes:
        names: of the runs: the path of each folder, seen from the opened one.
        unreadable: by name, why a folder with a ``run.json`` was left out: damaged, or of another version of the format.
    """

    def __init__(self, runs: Mapping[str, Run], unreadable: Mapping[str, str] | None = None, *, within: str = "") -> None:
        self._runs = dict(runs)
        self._within = within
        self.names = tuple(self._runs)
        self.unreadable: Mapping[str, str] = dict(unreadable or {})
        sources = {name: DiskSource(run.path) for name, run in self._runs.items() if run.path is not None}
        self._source = JoinedSource(sources)
        self._paths = [source.path for source in sources.values()]
        self._database = Database(self._paths)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    @overload
    def __getitem__(self, key: int | str) -> Run: ...

    @overload
    def __getitem__(self, key: slice) -> Runs: ...

    def __getitem__(self, key: int | str | slice) -> Run | Runs:
        if isinstance(key, str):
            ends = [name for name in self.names if name == key or name.endswith(f"/{key}")]
            if key in self._runs or len(ends) == 1:
                return self._runs[key if key in self._runs else ends[0]]
            if key in self.unreadable:
                raise StoreError(f"the run {key!r} cannot be read: {self.unreadable[key]}")
            if ends:
                raise ArgumentError(f"{key!r} is the name of {len(ends)} runs: {', '.join(ends)}; give more of the path")
            raise unknown_name("run", key, self.names, self._within or "these runs")
        if isinstance(key, slice):
            return self._some(self.names[key])
        return self._runs[self.names[key]]

    def _some(self, names: Collection[str]) -> Runs:
        return Runs({name: self._runs[name] for name in names}, within=self._within)

    def select(self, pattern: str = "*", *, state: State | None = None, **settings: Any) -> Runs:
        """Return the runs that fit all conditions; :attr:`unreadable` ones are left out.

        Args:
            pattern: of the name or of its last part, with ``*``, ``?`` and ``[...]``, as ``"lr-*"``.
            state: ``"running"``, ``"ended"``, ``"failed"``, ``"interrupted"`` or ``"lost"``, as :attr:`Run.state`.
            settings: names and values in :attr:`settings`, as ``lr=0.03``; dots are written as two underscores.

        Raises:
            UnknownSiteError: no run fits; the message names the nearest names, or the values that a setting has.
            ArgumentError: there is no such state.
        """
        if state is not None and state not in STATES:
            raise ArgumentError(f"state={state!r}: a run is {', '.join(map(repr, STATES[:-1]))} or {STATES[-1]!r}")
        fitting = [name for name in self.names if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern)]
        if not fitting:
            raise unknown_name("run", pattern, self.names, self._within or "these runs")
        kept = [name for name in fitting if state in (None, self._runs[name].state)]
        for written, value in settings.items():
            setting = written.replace("__", ".")
            held = {name: self._settings[name].get(setting) for name in kept}
            if not any(setting in self._settings[name] for name in fitting):
                raise unknown_name("setting", setting, {key for each in self._settings.values() for key in each}, "these runs")
            kept = [name for name in kept if held[name] == value]
            if not kept and held:
                there = ", ".join(sorted({setting_text(each) for each in held.values()}))
                raise UnknownSiteError(f"no run has {setting}={value!r}; it is {there}")
        if not kept:
            raise UnknownSiteError(f"none of {len(fitting)} runs is {state!r}")
        return self._some(kept)

    @cached_property
    def _settings(self) -> dict[str, dict[str, Any]]:
        known = self.summaries()
        return {name: joined_settings(known[name].settings, {}, run.info.get("environment")) for name, run in self._runs.items()}

    @property
    def settings(self) -> dict[str, tuple[Any, ...]]:
        """The settings that differ between the runs, each with its value in every run; None where a run has none.

        They are the hyperparameters that were given to ``sonde.watch(config=)``, the first learning rates if no ``lr`` was given,
        and the versions and devices in ``run.info["environment"]``.
        """
        return differing(list(self._settings.values()))

    # Reading

    def _ask(self, question: Ask[Answer], *, only: Collection[str] | None = None, callers_sql: bool = False) -> Answer:
        import duckdb

        try:
            return self._database.ask(lambda connection: self._source.ask(connection, question, only=only))
        except duckdb.Error as error:
            if callers_sql:
                raise
            raise StoreError(f"the runs in {self._within} cannot be read: {error}") from error

    @property
    def families(self) -> tuple[str, ...]:
        """The families that any of the runs has."""
        return tuple(sorted(self._ask(lambda connection, families: families)))

    def table(self, family: str) -> pyarrow.Table:
        """Return all rows of a family, led by the column ``run``, in order of run, step, micro-step, rank and execution.

        Raises:
            UnknownSiteError: no run has such a family; the message names the nearest.
        """

        def question(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> pyarrow.Table:
            if family not in families:
                raise self._unknown_family(family, families)
            columns = [name for name, *_ in connection.execute(f"DESCRIBE {quoted(family)}").fetchall()]
            order = ", ".join(quoted(name) for name in ("run", *READ_ORDER) if name in columns)
            return connection.sql(f"SELECT * FROM {quoted(family)} ORDER BY {order}").to_arrow_table()

        return self._ask(question, only=None if self._is_new(family) else (family,))

    def _is_new(self, family: str) -> bool:
        """Whether the error for *family* needs the names of all."""
        return family not in {name for path in self._paths for name in _folders_in(path)}

    def frame(self, family: str) -> pandas.DataFrame:
        """Return :meth:`table` as a pandas table.

        Raises:
            MissingExtraError: pandas is not installed.
            UnknownSiteError: no run has such a family; the message names the nearest.
        """
        table = self.table(family)
        try:
            found: pandas.DataFrame = table.to_pandas()
        except ImportError:
            raise MissingExtraError.of("frame()", "pandas", "frame") from None
        return found

    def scalars(self, name: str, *, rank: int | None = None) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Return one scalar over time, ``(steps, values)``, by the name of each run that has it.

        Args:
            name: of the scalar, as ``"loss"``.
            rank: the process that wrote it; by default, at each step the first that has it.

        Raises:
            UnknownSiteError: no run has the scalar; the message names the nearest.
        """
        found = {}
        for each, run in self._runs.items():
            try:
                found[each] = run.scalar(name, rank=rank)
            except UnknownSiteError:
                continue
        if not found:
            raise unknown_name("scalar", name, self._scalar_names, self._within or "these runs")
        return found

    @property
    def _scalar_names(self) -> list[str]:
        def question(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> list[str]:
            return [name for (name,) in connection.execute("SELECT DISTINCT name FROM scalars ORDER BY name").fetchall()]

        return self._ask(lambda duck, families: question(duck, families) if "scalars" in families else [], only=("scalars",))

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return the answer to a query over all runs; every family is a table of its name, with a column ``run``.

        As in :meth:`Run.sql`, a query reads the rows of these runs and nothing else.

        Raises:
            ArgumentError: the query is not one statement that only reads.
            UnknownSiteError: the query names a table that no run has.
            duckdb.Error: DuckDB refuses the query.
        """
        with self._database:
            check_query(query)
            return self._database.relation(self._ask(partial(answer_to, query, None, self._unknown_family), callers_sql=True))

    def _unknown_family(self, family: str, families: tuple[str, ...]) -> UnknownSiteError:
        return unknown_name("family", family, families, self._within or "these runs")

    def summaries(self) -> dict[str, RunSummary]:
        """Return :attr:`Run.summary` by run. No other rows are read, and nothing is judged."""
        return {name: run.summary for name, run in self._runs.items()}

    # Showing

    def __repr__(self) -> str:
        return printable("\n".join(self._lines()))

    def _repr_html_(self) -> str:
        head, *rest = map(escape_html, self._lines())
        return "<pre><b>" + head + "</b>\n" + "\n".join(rest) + "</pre>"

    def _lines(self) -> list[str]:
        """A headline, a line for each run, the settings that all share in number, and the folders that were left out."""
        known = self.summaries()
        settings = {name: self.settings[name] for name in list(self.settings)[:_SHOWN_SETTINGS]}
        rows = [["run", "state", "steps", "findings", "loss", *settings]]
        for place, (name, run) in enumerate(self._runs.items()):
            about = known[name]
            steps = "none" if about.last is None else f"{about.last + 1:,}"
            row = [name, run.state, steps, _found(about), setting_text(about.loss)]
            rows.append([*row, *(shortened(setting_text(values[place]), _LONGEST) for values in settings.values())])
        cells = [[printable_line(cell) for cell in row] for row in rows]
        widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
        head = many(len(self), "run") + (f" in {self._within}" if self._within else "")
        more = len(self.settings) - len(settings)
        tail = [f"{more} more settings differ: runs.settings"] if more > 0 else []
        tail += [f"{name}: {end.words}" for name, run in self._runs.items() if (end := run.end) is not None]
        tail += [f"{name}: {run.pruned}" for name, run in self._runs.items() if run.pruned]
        tail += [f"not read: {name}: {why}" for name, why in self.unreadable.items()]
        return [head, *(lines if self._runs else []), *tail]


def _found(about: RunSummary) -> str:
    """Return how many findings there are, and the rule of the first; ``?`` where there are none, and not all rows were judged."""
    return f"{about.findings} {about.root}".rstrip() if about.findings else "?" if about.shortfalls else ""


def names_apart(runs: Sequence[Run]) -> list[str]:
    """Return what *runs* are called where several are shown: the names of their folders, with as many above as tell them apart.

    >>> from sonde.run import memory_run, names_apart
    >>> len(names_apart([memory_run().run(), memory_run().run()]))
    2

    Runs that no name tells apart, in memory or twice the same, are numbered.
    """
    parts = [("in memory",) if run.path is None else run.path.parts for run in runs]
    names = ["/".join(each[-1:]) for each in parts]
    for length in range(2, max(map(len, parts), default=0) + 1):
        if len(set(names)) == len(set(parts)):
            break
        names = ["/".join(each[-length:]) for each in parts]
    return [f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name for place, name in enumerate(names)]


def _folders_in(path: Path) -> list[str]:
    try:
        return [encodable(entry.name) for entry in path.iterdir() if entry.is_dir()]
    except OSError:
        return []


def open_runs(folder: str | os.PathLike[str]) -> Runs:
    """Open all runs below a folder for reading, however deep; they may be written at the same time.

    >>> import sonde, tempfile
    >>> from sonde.run import start_run
    >>> folder = tempfile.mkdtemp()
    >>> for name in ("first", "second"):
    ...     with start_run(f"{folder}/{name}") as writer:
    ...         writer.scalar("loss", 1.5, step=0)
    >>> sorted(run.path.name for run in sonde.open_runs(folder))
    ['first', 'second']

    A run is a folder with a ``run.json``. Links are not followed. A damaged run, or one of another version of the format, is left
    out and named in ``unreadable`` and in the table.

    Args:
        folder: the folder that holds them, or one run; ``~`` is the home folder.

    Raises:
        ArgumentError: *folder* cannot be a path.
        StoreError: there is no such folder, or no run below it.
    """
    top = absolute_path(folder)
    if not top.is_dir():
        what = "is a file" if top.exists() else "does not exist"
        raise StoreError(f"no runs can be opened in {top}: it {what}; give the folder that holds the folders of runs, as 'runs'")
    found: dict[str, Run] = {}
    unreadable: dict[str, str] = {}
    for path in runs_below(top):
        name = path.relative_to(top).as_posix() if path != top else path.name
        try:
            found[name] = Run(DiskSource(path))
        except StoreError as error:
            unreadable[name] = str(error)
    if not found and not unreadable:
        raise StoreError(f"there is no run below {top}: none of its folders holds a {FILE}")
    return Runs(found, unreadable, within=short_path(top))
