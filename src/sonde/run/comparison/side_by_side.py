"""Read two runs side by side: of each place and number one row for each run, over the steps that both have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.number import Kind, described, number_of
from sonde.run.comparison.parting import Values
from sonde.run.folder.duckdb_sql import literal, of_rank, quoted
from sonde.run.run import Run
from sonde.run.schema import main_families
from sonde.site import Site

Rename: TypeAlias = Callable[[Site], Site | None]
"""Gives the site of the second run for one of the first; None if it has none."""

COLUMNS = 512
"""Logged steps up to which each is a column; of more, intervals of equally many steps are."""
_INTERVALS = 256
_FEWEST = 16  # intervals of runs that were logged at different steps
_SIZES = ("rms", "norm", "std", "absmax")  # of these, the first that a family has is compared
_SHARES = ("call_death", "death")
_DEFECTS = ("nan", "inf", "nonfinite")
_ASIDE = ("overhead", "lr", "epoch", "loss_scale")
RATIO = "update / param"
"""The number that is made of an update and its parameter."""
LOWEST = -800.0
"""In place of the logarithm of 0."""


@dataclass(frozen=True)
class Axis:
    """The columns over which two runs are compared.

    Attributes:
        first: the first step.
        width: how many steps a column joins.
        steps: the first step of each column.
        only: the steps whose rows are read; None: all between.
        words: how the steps were chosen, where that is notable; else empty.
        same_steps: whether all runs have rows of the steps that are read; else columns are intervals.
    """

    first: int
    width: int
    steps: npt.NDArray[np.int64]
    only: npt.NDArray[np.int64] | None
    words: str = ""
    same_steps: bool = True

    @property
    def condition(self) -> str:
        """SQL for the steps that are read."""
        if self.only is None:
            return f"step BETWEEN {literal(self.first)} AND {literal(int(self.steps[-1]) + self.width - 1)}"
        return f"step IN ({', '.join(literal(step) for step in self.only.tolist())})"

    @property
    def column(self) -> str:
        """SQL for the column of a row, counted from 0 in units of ``width`` steps."""
        return f"(step - {literal(self.first)}) // {literal(self.width)}"


@dataclass(frozen=True)
class SharedNumber:
    """One number of one place in both runs.

    Attributes:
        site, other: the site in the first run, and in the second; ``""`` for a scalar.
        call: which call of the module.
        number: the name of the number: ``rms``, ``update / param``, or a scalar's name.
        kind: of its scale.
        order: place in the order of execution.
        count: how many elements the tensor has; infinite if that is not known.
    """

    site: str
    other: str
    call: int
    number: str
    kind: Kind
    order: int = 0
    count: float = math.inf

    @property
    def port(self) -> str:
        """The port of the site; ``""`` of a scalar."""
        return Site.parse(self.site).port if self.site else ""


@dataclass
class Series:
    """Rows of two or more runs: ``values[run][place, column]`` as recorded, NaN where nothing was.

    ``marks`` are checksums over all numbers of a place in the rows of a column, 0 where there is no row; ``broken`` tells which
    columns have elements that are not finite.
    """

    places: list[SharedNumber] = field(default_factory=list)
    values: list[list[Values]] = field(default_factory=list)
    marks: list[list[npt.NDArray[np.uint64]]] = field(default_factory=list)
    broken: list[list[npt.NDArray[np.bool_]]] = field(default_factory=list)
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)


def axis_of(runs: Sequence[Run]) -> Axis:
    """Return the columns over which *runs* are compared: the steps that all of them logged.

    Raises:
        ArgumentError: one has no rows, or no step lies in all of them.
    """
    logged = [_steps(run) for run in runs]
    for run, steps in zip(runs, logged, strict=True):
        if not len(steps):
            raise ArgumentError(f"{_name(run)} cannot be compared: nothing was recorded in it yet")
    common = logged[0]
    for steps in logged[1:]:
        common = np.intersect1d(common, steps)
    fewest = min(map(len, logged))
    first, last = max(int(steps[0]) for steps in logged), min(int(steps[-1]) for steps in logged)
    if 2 * len(common) >= fewest:
        same = all(len(steps) == len(common) for steps in logged)
        words = "" if same else f"steps that both have: {len(common):,} of {fewest:,}"
        only = None if same else common
    else:  # each was logged when its own budget allowed
        if last <= first:
            spans = " and ".join(f"{_name(run)} has {each[0]:,} to {each[-1]:,}" for run, each in zip(runs, logged, strict=True))
            raise ArgumentError(f"the runs have no steps in common: {spans}")
        count = max(min(fewest // 2, _INTERVALS), min(_FEWEST, fewest))
        width = max(-(-(last - first + 1) // count), 1)
        starts = np.arange(first, last + 1, width)
        return Axis(first, width, starts, None, f"logged at different steps: compared in intervals of {width:,} steps", False)
    if len(common) <= COLUMNS:
        return Axis(int(common[0]), 1, common, only, words)
    width = -(-int(common[-1] - common[0] + 1) // _INTERVALS)
    starts = np.unique((common - common[0]) // width) * width + common[0]
    return Axis(int(common[0]), width, starts, only, words)


def _steps(run: Run) -> npt.NDArray[np.int64]:
    """Return the steps that have rows; of a pruned run, those that have all the rows which they had."""
    families = list(run.families)
    families = main_families([family for family in families if family != "scalars"]) or families
    union = " UNION ".join(f"SELECT DISTINCT step FROM {quoted(family)}" for family in families)
    steps = np.sort(np.asarray(run.sql(union).fetchnumpy()["step"], np.int64)) if union else np.empty(0, np.int64)
    for pruning in run.description.pruned:  # at other steps, what was thinned lacks rows that it had
        thinned = [family for family in pruning.steps if family in run.families]
        left = " UNION ".join(f"SELECT DISTINCT step FROM {quoted(family)}" for family in thinned)
        whole = run.sql(left).fetchnumpy()["step"] if left else steps
        steps = steps[np.isin(steps, whole) | (steps > pruning.last)]
    return steps


def _name(run: Run) -> str:
    return f"the run {run.path.name}" if run.path is not None else "the run in memory"


def places_of(runs: Sequence[Run], axis: Axis, rename: Rename | None = None) -> Series:
    """Read the numbers of places of *runs*; names of the second one are those that *rename* gives, of others those of the first."""
    found = Series(values=[[] for _ in runs], marks=[[] for _ in runs], broken=[[] for _ in runs])
    tables = [run.numbers for run in runs]
    shared = [family for family in main_families(tables[0]) if all(family in table for table in tables)]
    for family in shared:
        names = [name for name in tables[0][family] if all(name in table[family] for table in tables)]
        known = described(runs[0].info, family)
        number = next((name for name in (*_SIZES, *_SHARES) if name in names), None)
        number = number or next((name for name in names if _kind_of(known, name) in ("size", "share")), None)
        if number is None:
            continue
        kind = _kind_of(known, number)
        read = [_rows(run, axis, family, number, names) for run in runs]
        renamed = [lambda site: site, rename or (lambda site: site), *([lambda site: site] * (len(runs) - 2))]
        _join(found, read, renamed, number, kind, axis)
    _add_ratios(found)
    return found


def _kind_of(known: Mapping[str, object], name: str) -> Kind:
    about = known.get(name) or number_of(name)
    return about.kind  # type: ignore[attr-defined,no-any-return]


@dataclass(frozen=True)
class _NumberRows:
    """The rows of one number in one run: of each place (site, call) its column's values."""

    places: dict[tuple[str, int], int]
    values: Values
    marks: npt.NDArray[np.uint64]
    broken: npt.NDArray[np.bool_]
    order: Values
    count: Values


def _rows(run: Run, axis: Axis, family: str, number: str, names: Sequence[str]) -> _NumberRows:
    """Read one family of one run."""
    all_numbers = ", ".join(quoted(name) for name in names)
    defects = " + ".join(quoted(name) for name in _DEFECTS if name in names) or "0"
    count = quoted("count") if "count" in names else "NULL"
    rows = run.sql(
        f'SELECT site, call, {axis.column} AS place, median({quoted(number)})::DOUBLE AS value, min("order") AS placed, '
        f"max({count})::DOUBLE AS elements, bit_xor(hash(step, micro_step, {all_numbers})) AS mark, sum({defects}) > 0 AS broken "
        f"FROM {of_rank(family, None, run.ranks)} WHERE {axis.condition} GROUP BY ALL"
    ).fetchnumpy()
    columns = {int(step - axis.first) // axis.width: place for place, step in enumerate(axis.steps)}
    at = np.array([columns.get(int(place), -1) for place in rows["place"]], np.intp)
    places: dict[tuple[str, int], int] = {}
    lines = np.array(
        [places.setdefault(key, len(places)) for key in zip(rows["site"], rows["call"].tolist(), strict=True)], np.intp
    )
    shape = (len(places), len(axis.steps))
    values, marks, broken = np.full(shape, np.nan), np.zeros(shape, np.uint64), np.zeros(shape, np.bool_)
    kept = at >= 0
    values[lines[kept], at[kept]] = np.ma.filled(np.ma.asarray(rows["value"], np.float64), np.nan)[kept]
    marks[lines[kept], at[kept]] = np.asarray(rows["mark"], np.uint64)[kept]
    broken[lines[kept], at[kept]] = np.ma.filled(np.ma.asarray(rows["broken"]), False).astype(bool)[kept]
    order, elements = np.zeros(shape[0]), np.zeros(shape[0])
    np.maximum.at(order, lines, np.asarray(rows["placed"], np.float64))
    np.maximum.at(elements, lines, np.ma.filled(np.ma.asarray(rows["elements"], np.float64), np.inf))
    return _NumberRows(places, values, marks, broken, order, elements)


def _join(found: Series, read: Sequence[_NumberRows], renamed: Sequence[Rename], number: str, kind: Kind, axis: Axis) -> None:
    """Add the places that the first two runs have; a run beyond these that lacks one has NaN there."""
    used = set()
    empty = np.full(len(axis.steps), np.nan)
    for (site, call), row in read[0].places.items():
        parsed = Site.parse(site)
        others = [new(parsed) for new in renamed]
        keys = [None if other is None else (str(other), call) for other in others]
        of_b = keys[1]
        if of_b is None or of_b not in read[1].places:
            found.only_a.append(site)
            continue
        used.add(of_b)
        place = SharedNumber(site, of_b[0], call, number, kind, int(read[0].order[row]), float(read[0].count[row]))
        found.places.append(place)
        for run, (rows, key) in enumerate(zip(read, keys, strict=True)):
            at = rows.places.get(key, -1) if key else -1
            found.values[run].append(rows.values[at] if at >= 0 else empty)
            found.marks[run].append(rows.marks[at] if at >= 0 else np.zeros(len(empty), np.uint64))
            found.broken[run].append(rows.broken[at] if at >= 0 else np.zeros(len(empty), np.bool_))
    found.only_b += [site for site, call in read[1].places if (site, call) not in used]


def _add_ratios(found: Series) -> None:
    """Add the ratio of each update to its parameter, where both are there as one kind of size."""
    rows = {(place.site, place.number): row for row, place in enumerate(found.places)}
    for row, place in enumerate(list(found.places)):
        if place.port != "update" or place.kind != "size":
            continue
        beside = rows.get((str(Site.parse(place.site).port_of("param")), place.number))
        if beside is None:
            continue
        found.places.append(SharedNumber(place.site, place.other, place.call, RATIO, "size", place.order, place.count))
        for run in range(len(found.values)):
            update, weight = found.values[run][row], found.values[run][beside]
            found.values[run].append(np.divide(update, weight, out=np.full(len(update), np.nan), where=weight > 0))
            found.marks[run].append(found.marks[run][row])
            found.broken[run].append(np.zeros(len(update), np.bool_))  # said of the update itself


def scalars_of(runs: Sequence[Run], axis: Axis) -> Series:
    """Read the scalars that the first two runs have, but learning rates and what says nothing of the training."""
    found = Series(values=[[] for _ in runs], marks=[[] for _ in runs], broken=[[] for _ in runs])
    if not all("scalars" in run.families for run in runs[:2]):
        return found
    columns = {int(step - axis.first) // axis.width: place for place, step in enumerate(axis.steps)}
    read: list[dict[str, tuple[Values, npt.NDArray[np.uint64]]]] = []
    for run in runs:
        rows = (
            run.sql(
                f"SELECT name, {axis.column} AS place, median(value) AS value, bit_xor(hash(step, value)) AS mark "
                f"FROM {of_rank('scalars', None, run.ranks)} WHERE {axis.condition} GROUP BY ALL"
            ).fetchall()
            if "scalars" in run.families
            else []
        )
        of_run: dict[str, tuple[Values, npt.NDArray[np.uint64]]] = {}
        for name, at, value, mark in rows:
            if at in columns and name.partition("/")[0] not in _ASIDE:
                empty = np.full(len(axis.steps), np.nan), np.zeros(len(axis.steps), np.uint64)
                values, marks = of_run.setdefault(name, empty)
                values[columns[at]], marks[columns[at]] = value, mark
        read.append(of_run)
    nothing = np.full(len(axis.steps), np.nan), np.zeros(len(axis.steps), np.uint64)
    for name in sorted(read[0], key=lambda name: ("loss" not in name, name)):
        if name in read[1]:
            positive = all(not np.any(each[name][0] <= 0) for each in read if name in each)
            found.places.append(SharedNumber("", "", -1, name, "size" if positive else "signed"))
            for at_run, of_run in enumerate(read):
                values, marks = of_run.get(name, nothing)
                found.values[at_run].append(values)
                found.marks[at_run].append(marks)
                found.broken[at_run].append((np.isnan(values) & (marks != 0)) | np.isinf(values))
    found.only_a = sorted(set(read[0]) - set(read[1]))
    found.only_b = sorted(set(read[1]) - set(read[0]))
    return found


PHASES = {port: rank for rank, port in enumerate(("input", "output", "grad_output", "grad_input", "grad", "update", "param"))}
"""The order in which the ports of one step happen: forward, backward, and the step of the optimizer."""
