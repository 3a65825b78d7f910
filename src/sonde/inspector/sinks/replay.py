"""Play a finished run to sinks and visualizers, as if the training went on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, starmap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.inspector.sinks.base import Rows, RunSink, Scalar, Sink, memory
from sonde.rows import KEYS, Layout
from sonde.rules import Finding
from sonde.run import Run, alerts_in, literal, of_rank, quoted
from sonde.schedule import EverySeconds, Steps, Tick, schedule_of

if TYPE_CHECKING:
    import pyarrow

__all__ = ["play"]

_AT_ONCE = 256  # steps that are read together


def play(run: Run, *targets: Sink | Callable[[Run], object], every: Steps | None = None, rank: int | None = None) -> None:
    """Play a finished run to sinks and visualizers, in the order in which it was recorded.

    A visualizer is shown the run as it was at the end of each epoch, and at the end. How often a row was added to is not in a run:
    ``Rows.counts`` is NaN.

    Args:
        run: to play, on disk or in memory.
        targets: sinks, which are opened and closed; and callables that take a run.
        every: only these of the recorded steps, as in ``watch``: every n-th, a range, a list, a callable. Visualizers are then
            shown the run after each of them.
        rank: the process whose rows are played; by default, of each place at each step the first that has rows of it.

    Raises:
        ArgumentError: there is no target, a target is neither sink nor visualizer, or *every* is a time.
    """
    schedule = None if every is None else schedule_of(every)
    if isinstance(schedule, EverySeconds):
        raise ArgumentError(f"every={every!r}: a run is played by its steps; give a number, a range or steps")
    sinks, visualizers = _sorted(targets)
    recorded = memory()
    playing: list[Sink] = [*sinks, *([recorded] if visualizers else [])]
    shown: int | None = None
    try:
        _begin(run, playing)
        epoch = None
        for moment in _moments(run, rank):
            if schedule is not None and not schedule.wants(Tick(moment.epoch, moment.step, 0, 0), float("inf")):
                continue
            if epoch not in (None, moment.epoch) and schedule is None:
                _show(visualizers, recorded)
            moment.give(playing)
            epoch, shown = moment.epoch, moment.step
            if schedule is not None:
                _show(visualizers, recorded)
        if shown is not None and schedule is None:
            _show(visualizers, recorded)
        for sink in playing:
            sink.finish(run, failed=False)
    finally:
        for sink in playing:
            sink.close()


class _Moment:
    """The rows, scalars and alerts of one step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.epoch = 0
        self.rows: list[Rows] = []
        self.scalars: list[Scalar] = []
        self.alerts: list[Mapping[str, Any]] = []

    def give(self, sinks: Sequence[Sink]) -> None:
        for sink in sinks:
            for rows in self.rows:
                sink.write(rows)
            for scalar in self.scalars:
                sink.scalar(scalar)
            for alert in self.alerts:
                if isinstance(sink, RunSink):
                    sink.writer.alert(**{name: value for name, value in alert.items() if name != "rank"})
                else:
                    sink.alert(Finding(**{name: value for name, value in alert.items() if name != "rank" and value is not None}))


def _sorted(targets: Sequence[object]) -> tuple[list[Sink], list[Callable[[Run], object]]]:
    sinks = [target for target in targets if isinstance(target, Sink)]
    others = [target for target in targets if not isinstance(target, Sink)]
    for target in others:
        if isinstance(target, type) or not callable(target):
            hint = f": make one, {target.__name__}(...)" if isinstance(target, type) else ""
            raise ArgumentError(f"a run is played to sinks and to callables that take a run, and {target!r} is neither{hint}")
    if not targets:
        raise ArgumentError("play(run, target, ...): give a sink or a visualizer to play to")
    return sinks, [target for target in others if callable(target)]


def _begin(run: Run, sinks: Sequence[Sink]) -> None:
    for sink in sinks:
        sink.prepare()
        path = {} if isinstance(sink, RunSink) else {"path": None if run.path is None else str(run.path)}
        sink.open({**run.info, **path})
        if isinstance(sink, RunSink):
            for name in ("graph", "coverage"):
                document = run.document(name)
                if document is not None:
                    sink.writer.document(name, document)


def _show(visualizers: Sequence[Callable[[Run], object]], recorded: RunSink) -> None:
    for visualizer in visualizers:
        visualizer(recorded.run())


def _moments(run: Run, rank: int | None) -> Iterator[_Moment]:
    """Yield the moments in order; read many steps at a time."""
    families = run.families
    layouts = {family: _layout(run, family, rank) for family in run.numbers}
    of_one = "" if rank is None else f" WHERE rank = {literal(rank)}"
    union = " UNION ".join(f"SELECT step FROM {quoted(family)}{of_one}" for family in families)
    steps = [step for (step,) in run.sql(f"SELECT DISTINCT step FROM ({union}) ORDER BY step").fetchall()] if families else []
    for start in range(0, len(steps), _AT_ONCE):
        chosen = steps[start : start + _AT_ONCE]
        moments = {step: _Moment(step) for step in chosen}
        where = f"step BETWEEN {literal(chosen[0])} AND {literal(chosen[-1])}"
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
        if "alerts" in families:
            chosen_rank = "" if rank is None else f" AND rank = {literal(rank)}"
            query = f"SELECT * FROM alerts WHERE {where}{chosen_rank}"
            for alert in alerts_in(run.sql(query).to_arrow_table().to_pylist()):
                moments[alert["step"]].alerts.append(alert)
                moments[alert["step"]].epoch = max(moments[alert["step"]].epoch, alert["epoch"])
        yield from moments.values()


def _layout(run: Run, family: str, rank: int | None) -> tuple[Layout, dict[tuple[str, int, str], int]]:
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
    keys = zip(*(table.column(name).to_pylist() for name in ("site", "call", "scope")), strict=True)
    rows = np.array([row_of[key] for key in keys], np.intp)
    when = np.column_stack([table.column(name).to_numpy() for name in ("epoch", "step", "micro_step")])
    numbers = {name: _numbers(table.column(name)) for name in table.column_names if name not in KEYS}
    known = {name: column for name, column in numbers.items() if column is not None}
    ranks = table.column("ranks").to_numpy()
    edges = [0, *(np.flatnonzero((np.diff(when, axis=0) != 0).any(axis=1)) + 1).tolist(), len(when)]
    for start, end in pairwise(edges):
        epoch, step, micro_step = when[start].tolist()
        columns = {name: column[start:end] for name, column in known.items()}
        counts = np.full(end - start, np.nan)
        yield Rows(family, layout, rows[start:end], epoch, step, micro_step, counts, columns, ranks[start:end])


def _numbers(column: pyarrow.ChunkedArray) -> npt.NDArray[np.float64] | None:
    """Return the column as float64, of two dimensions if each row has a list of one length; None if it holds text."""
    values = column.to_numpy()
    if values.dtype != object:
        return np.asarray(values, np.float64)
    lengths = {len(value) for value in values if value is not None and not isinstance(value, str)}
    if len(lengths) != 1:
        return None
    empty = np.full(lengths.pop(), np.nan)
    return np.stack([empty if value is None else np.asarray(value, np.float64) for value in values])
