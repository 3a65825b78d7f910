"""Send a recorded run to sinks and visualizers, as if the training went on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, starmap
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.rows import KEYS, Layout, Rows, Scalar
from sonde.rules import Finding
from sonde.run.folder.duckdb_sql import ask_tables, literal, numbers_of, of_rank, quoted
from sonde.run.folder.end import End
from sonde.run.folder.run_json import Description
from sonde.run.folder.source import Answer, Ask, Source
from sonde.run.record import Record
from sonde.schedule import EverySeconds, Steps, Tick, schedule_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow

_AT_ONCE = 256  # steps that are read together


class Recorded(Protocol):
    """What is read of a :class:`sonde.run.run.Run`."""

    @property
    def families(self) -> tuple[str, ...]: ...

    @property
    def numbers(self) -> Mapping[str, Sequence[str]]: ...

    @property
    def ranks(self) -> Sequence[int]: ...

    @property
    def info(self) -> Mapping[str, Any]: ...

    def records(self) -> Mapping[int, Record]: ...

    def document(self, name: str) -> Any: ...

    def sql(self, query: str) -> duckdb.DuckDBPyRelation: ...


@runtime_checkable
class Receiver(Protocol):
    """A target that takes rows: every :class:`sonde.inspector.Sink` is one, whose methods say what they take."""

    def prepare(self) -> None: ...

    def open(self, description: Mapping[str, Any]) -> None: ...

    def document(self, name: str, data: Any) -> None: ...

    def write_step(self, rows: Sequence[Rows], scalars: Sequence[Scalar]) -> None: ...

    def alert(self, finding: Finding) -> None: ...

    def finish(self, run: Any, *, failed: bool) -> None: ...

    def close(self) -> None: ...


class Beginning:
    """The source of the beginning of a run: its rows up to a step, of one rank or of all, in memory.

    Args:
        run, source: of the whole run.
        step: the last one.
        rank: see :func:`send`.
    """

    def __init__(self, run: Recorded, source: Source, step: int, rank: int | None) -> None:
        self.name = f"{source.name} up to step {step}"
        self.version = f"{source.version}-{step}"
        self.lost: Mapping[str, Sequence[str]] = source.lost
        self.ranks: Sequence[int] = source.ranks if rank is None else (rank,)
        self.ends: Sequence[End] = ()
        self.times: Sequence[tuple[int, float]] = ()
        self._source = source
        self._step = step
        chosen = "" if rank is None else f" AND rank = {literal(rank)}"
        self._tables = {
            family: run.sql(f"SELECT * FROM {quoted(family)} WHERE step <= {literal(step)}{chosen}").to_arrow_table()
            for family in run.families
        }

    def describe(self) -> Description:
        return self._source.describe()

    def document(self, name: str, rank: int) -> Any:
        return self._source.document(name, rank) if name in _DOCUMENTS else None

    def records(self) -> Mapping[int, Record]:
        every = self._source.records()
        return {rank: record.up_to(self._step) for rank, record in every.items() if rank in self.ranks or len(every) == 1}

    def keep_records(self, records: Mapping[int, Record]) -> str:
        return "it is the beginning of a run"

    def ask(self, connection: duckdb.DuckDBPyConnection, question: Ask[Answer]) -> Answer:
        return ask_tables(connection, {family: table for family, table in self._tables.items() if table.num_rows}, question)


_DOCUMENTS = ("graph", "coverage")


def send(
    run: Recorded,
    targets: Sequence[Receiver | Callable[[Any], object]],
    every: Steps | None,
    rank: int | None,
    place: str | None,
    until: Callable[[int], Any],
) -> None:
    """Send *run* to *targets*, in the order in which it was recorded; see :meth:`sonde.Run.send_to`.

    Args:
        run: the run.
        targets: sinks, which are opened and closed; and callables that take a run.
        every: which of the recorded steps; None for all.
        rank: whose rows; None: of each place at each step the first that has rows of it.
        place: the folder of the run; None if it is in memory.
        until: returns the run as it was after a step.

    Raises:
        ArgumentError: there is no target, a target is neither sink nor visualizer, or *every* is a time.
    """
    schedule = None if every is None else schedule_of(every)
    if isinstance(schedule, EverySeconds):
        raise ArgumentError(f"every={every!r}: a run is sent by its steps; give a number, a range or steps")
    sinks, visualizers = _sorted(targets)
    shown: int | None = None
    try:
        for sink in sinks:
            sink.prepare()
            sink.open({**run.info, "path": place})
            for name in _DOCUMENTS:
                if (document := run.document(name)) is not None:
                    sink.document(name, document)
        epoch = None
        for moment in _moments(run, rank):
            if schedule is not None and not schedule.wants(Tick(moment.epoch, moment.step, 0, 0), float("inf")):
                continue
            if shown is not None and epoch != moment.epoch and schedule is None:
                _show(visualizers, until, shown)
            moment.give(sinks)
            epoch, shown = moment.epoch, moment.step
            if schedule is not None:
                _show(visualizers, until, shown)
        if shown is not None and schedule is None:
            _show(visualizers, until, shown)
        for sink in sinks:
            sink.finish(run, failed=False)
    finally:
        for sink in sinks:
            sink.close()


class _Moment:
    """The rows, scalars and findings of one step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.epoch = 0
        self.rows: list[Rows] = []
        self.scalars: list[Scalar] = []
        self.findings: list[Finding] = []

    def give(self, sinks: Sequence[Receiver]) -> None:
        for sink in sinks:
            sink.write_step(self.rows, self.scalars)
            for found in self.findings:
                sink.alert(found)


def _sorted(targets: Sequence[object]) -> tuple[list[Receiver], list[Callable[[Any], object]]]:
    sinks: list[Receiver] = []
    visualizers: list[Callable[[Any], object]] = []
    for target in targets:
        if isinstance(target, Receiver) and not isinstance(target, type):
            sinks.append(target)
        elif callable(target) and not isinstance(target, type):
            visualizers.append(target)
        else:
            hint = f": make one, {target.__name__}(...)" if isinstance(target, type) else ""
            raise ArgumentError(f"a run is sent to sinks and to callables that take a run, and {target!r} is neither{hint}")
    if not targets:
        raise ArgumentError("run.send_to(target, ...): give a sink or a visualizer")
    return sinks, visualizers


def _show(visualizers: Sequence[Callable[[Any], object]], until: Callable[[int], Any], step: int) -> None:
    if visualizers:
        run = until(step)
        for visualizer in visualizers:
            visualizer(run)


def _moments(run: Recorded, rank: int | None) -> Iterator[_Moment]:
    """Yield the moments in order; read many steps at a time."""
    families = run.families
    layouts = {family: _layout(run, family, rank) for family in run.numbers}
    of_one = "" if rank is None else f" WHERE rank = {rank:d}"
    union = " UNION ".join(f"SELECT step FROM {quoted(family)}{of_one}" for family in families)
    records = run.records()
    record = Record.merged([*records.values()]) if rank is None else records.get(rank, Record())
    logged = {step for (step,) in run.sql(f"SELECT DISTINCT step FROM ({union})").fetchall()} if families else set()
    steps = sorted(logged | {each.found_at for each in record.findings})
    for start in range(0, len(steps), _AT_ONCE):
        chosen = steps[start : start + _AT_ONCE]
        moments = {step: _Moment(step) for step in chosen}
        where = f"step BETWEEN {chosen[0]:d} AND {chosen[-1]:d}"
        for family, layout in layouts.items():
            rows_of_rank = of_rank(family, rank, run.ranks)
            query = f'SELECT * FROM {rows_of_rank} WHERE {where} ORDER BY step, epoch, micro_step, "order", site, call'
            for rows in _rows(family, layout, run.sql(query).to_arrow_table()):
                moments[rows.step].rows.append(rows)
                moments[rows.step].epoch = rows.epoch
        if "scalars" in families:
            columns = "name, value, epoch, step, scope, ranks"
            rows_of_rank = of_rank("scalars", rank, run.ranks)
            for scalar in starmap(Scalar, run.sql(f"SELECT {columns} FROM {rows_of_rank} WHERE {where}").fetchall()):
                moments[scalar.step].scalars.append(scalar)
                moments[scalar.step].epoch = max(moments[scalar.step].epoch, scalar.epoch)
        for moment in moments.values():
            moment.findings = [each for each in record.findings if each.found_at == moment.step]
            moment.epoch = max([moment.epoch, *(each.epoch for each in moment.findings)])
        yield from moments.values()


def _layout(run: Recorded, family: str, rank: int | None) -> tuple[Layout, dict[tuple[str, int, str], int]]:
    """Return all places of a family, and the row of each."""
    rows = run.sql(
        f'SELECT site, call, scope, min("order") AS place FROM {of_rank(family, rank, run.ranks)} '
        "GROUP BY site, call, scope ORDER BY place, site, call, scope"
    ).fetchall()
    sites, calls, scopes, places = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    return Layout(sites, calls, places, scopes), {row[:3]: place for place, row in enumerate(rows)}


def _rows(family: str, places: tuple[Layout, dict[tuple[str, int, str], int]], table: pyarrow.Table) -> Iterator[Rows]:
    """Yield the rows of a family, those of one moment together."""
    if not table.num_rows:
        return
    layout, row_of = places
    keys = zip(*[table.column(name).to_pylist() for name in ("site", "call", "scope")], strict=True)
    rows = np.array([row_of[key] for key in keys], np.intp)
    when = np.column_stack([numbers_of(table.column(name)) for name in ("epoch", "step", "micro_step")])
    numbers = {name: _numbers(table.column(name)) for name in table.column_names if name not in KEYS}
    known = {name: column for name, column in numbers.items() if column is not None}
    ranks = numbers_of(table.column("ranks"))
    edges = [0, *(np.flatnonzero((np.diff(when, axis=0) != 0).any(axis=1)) + 1).tolist(), len(when)]
    for start, end in pairwise(edges):
        epoch, step, micro_step = when[start].tolist()
        columns = {name: column[start:end] for name, column in known.items()}
        counts = np.full(end - start, np.nan)
        yield Rows(family, layout, rows[start:end], epoch, step, micro_step, counts, columns, ranks[start:end])


def _numbers(column: pyarrow.ChunkedArray) -> npt.NDArray[np.float64] | None:
    """Return the column as float64, of two dimensions if each row has a list of one length; None if it holds text."""
    values = numbers_of(column)
    if values.dtype != object:
        return np.asarray(values, np.float64)
    lengths = {len(value) for value in values if value is not None and not isinstance(value, str)}
    if len(lengths) != 1:
        return None
    empty = np.full(lengths.pop(), np.nan)
    return np.stack([empty if value is None else np.asarray(value, np.float64) for value in values])
