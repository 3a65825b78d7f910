"""Compare two recorded trainings: where they first differ at all, and where they part beyond what seeds and noise explain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.run.comparison.parting import HELD, WINDOW, Values, allowance, part, repeats_differ
from sonde.run.comparison.side_by_side import (
    LOWEST,
    PHASES,
    RATIO,
    Axis,
    Rename,
    Series,
    SharedNumber,
    axis_of,
    places_of,
    scalars_of,
)
from sonde.run.run import Run
from sonde.run.run_settings import differing
from sonde.site import Site
from sonde.suggest import nearest
from sonde.words import names_text

SEEDS = {"update": 1.5, "": 1.5}
"""The factor by which healthy seeds may differ, by port; ``""`` is a scalar. It is our own: in 250 pairs of seeds of eleven small
trainings (MLP, CNN, ResNet, LSTM, GPT; SGD, Adam, AdamW; constant and cosine rates) large tensors came to 1.3 for updates, 1.5 for
scalars, and 1.9 for others, beyond scatter and pace."""
_OTHER_SEEDS = 2.2
_SEEDS_OF_SHARES = 0.4
_NOTHING, _LITTLE = (
    1e-5,
    1e-2,
)  # of the median at its port: a number below the one, and in the other run below the other, is rounding
_FEWEST = 4  # elements; the size of fewer says more of the seed than of the training
_NAMED = 4  # modules in a line
_CURVES = 2  # partings whose numbers are kept over all steps
_LENGTHS = ("rms", "norm")
_ROUNDING = 0.01  # distance of logarithms: numbers of other weights, or other data, are farther apart


@dataclass(frozen=True)
class Difference:
    """The first step at which any recorded number of two runs differs, to the last bit.

    >>> from sonde.run import Layout, compare_rows, memory_run
    >>> one, other = memory_run(), memory_run()
    >>> for step in range(20):
    ...     one.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=step)
    ...     other.append("moments", Layout(["0:output"]), {"rms": [1.0 + (step > 9)]}, step=step)
    >>> found = compare_rows(one.run(), other.run()).difference
    >>> found.step, found.site, found.a, found.b
    (10, '0:output', 1.0, 2.0)

    Attributes:
        step: the step.
        site, call: the first place of that step that differs; where all layers do, which they have since an earlier step that was
            not logged, the one that differs most.
        a, b: the main number there (``number``) in both runs.
        number: its name.
        places, of: how many places differ in that step, of how many.
        since: the last step before it, in which all numbers are equal; None if it is the first step.
    """

    step: int
    site: str
    call: int
    a: float
    b: float
    number: str
    places: int
    of: int
    since: int | None


@dataclass(frozen=True)
class Parting:
    """One number of one place, and where the two runs part in it.

    >>> from sonde.run import Layout, compare_rows, memory_run
    >>> one, other = memory_run(), memory_run()
    >>> for step in range(20):
    ...     one.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=step)
    ...     other.append("moments", Layout(["0:output"]), {"rms": [1.0 + (step > 9)]}, step=step)
    >>> [(found.site, found.number, found.step) for found in compare_rows(one.run(), other.run()).partings]
    []

    Attributes:
        site, call: the place, as the first run names it; ``""`` for a scalar.
        number: ``rms``, ``update / param``, ``call_death``, ..., or the name of the scalar.
        step: from which on the runs are apart.
        a, b: the medians of the number in both runs over the steps from there on.
        kind: ``apart``; ``not finite``, elements of one run are NaN or infinite; ``no rows``, one run records the place no longer.
        gap, allowed: how far they are apart beyond pace and what scatter and seed allow: differences of natural logarithms, of
            shares plain ones.
    """

    site: str
    call: int
    number: str
    step: int
    a: float
    b: float
    kind: Literal["apart", "not finite", "no rows"] = "apart"
    gap: float = math.inf
    allowed: float = 0.0

    @property
    def factor(self) -> float:
        """B / a; NaN without a finite quotient."""
        return self.b / self.a if self.a else math.nan


@dataclass(frozen=True, eq=False)
class Curve:
    """One number of one place in both runs, over the steps that were compared; NaN where a run has no row.

    >>> from sonde.run import Layout, compare_rows, memory_run
    >>> one, other = memory_run(), memory_run()
    >>> for step in range(20):
    ...     one.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=step)
    ...     other.append("moments", Layout(["0:output"]), {"rms": [1.0 + (step > 9)]}, step=step)
    >>> parts = compare_rows(one.run(), other.run())
    >>> [(curve.site, curve.number) for curve in parts.curves]
    []

    Attributes:
        site, call, number: as of a :class:`Parting`.
        a, b: the values, of shape (steps,).
    """

    site: str
    call: int
    number: str
    a: Values
    b: Values


@dataclass(frozen=True)
class Parts:
    """The answer of :func:`compare_rows`.

    >>> from sonde.run import compare_rows
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> parts = compare_rows(writer.run(), writer.run())
    >>> parts.identical, parts.partings, parts.steps.tolist()
    (True, (), [0])

    Attributes:
        partings: of places, the earliest first; of one step in the order forward, backward, update.
        scalars: of scalars, the earliest first.
        difference: the first difference at all, where the runs were equal before it; else None.
        identical: whether all numbers of all places and scalars of the common steps are equal.
        settings: settings that differ, with both values.
        layers: how the lists of modules differ, in words.
        steps: the steps that were compared.
        resolution: how many steps a value stands for.
        places: how many numbers of places were compared.
        only_a, only_b: sites that one run alone has rows of.
        notes: what else should be known.
        curves: the numbers of the first partings over the steps: of places, then of the scalar that parts first, or of the loss.
    """

    partings: tuple[Parting, ...]
    scalars: tuple[Parting, ...]
    difference: Difference | None
    identical: bool
    settings: Mapping[str, tuple[Any, ...]]
    layers: tuple[str, ...]
    steps: npt.NDArray[np.int64]
    resolution: int
    places: int
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    curves: tuple[Curve, ...] = field(default=(), compare=False)


def compare_rows(
    a: Run, b: Run, *, baseline: Sequence[Run] = (), rename: Rename | None = None, names: Sequence[str] = ("a", "b")
) -> Parts:
    """Compare the rows of two runs at their common steps.

    >>> from sonde.run import compare_rows
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> compare_rows(writer.run(), writer.run()).identical
    True

    Args:
        a, b: the runs.
        baseline: repeats of the setting of *a*: what these differ by is what seeds may differ by.
        rename: gives the site of *b* for one of *a*.
        names: what *a* and *b* are called in words.

    Raises:
        ArgumentError: a run is empty, or the two have no step or no place in common.
    """
    runs = (a, b, *baseline)
    axis = axis_of(runs)
    places = places_of(runs, axis, rename)
    scalars = scalars_of(runs, axis)
    if not places.places and not scalars.places:
        raise ArgumentError(_nothing_common(places))
    partings = _partings(places, axis)
    if axis.width > 1 and axis.same_steps and partings:
        partings = _refined(partings, runs, axis, rename)
    notes = [axis.words] if axis.words else []
    if not places.places:
        notes.append(_nothing_common(places))
    if len(axis.steps) < HELD + WINDOW:
        notes.append(f"{len(axis.steps)} steps in common are few: what scatters from step to step is hardly known")
    scopes = [run.described_ranks or "one process" for run in (a, b)]
    if scopes[0] != scopes[1]:
        notes.append("; ".join(f"{name}: {scope}" for name, scope in zip(names, scopes, strict=True)))
    notes += [f"{name}: {run.pruned}" for name, run in zip(names, (a, b), strict=True) if run.pruned]
    difference = _difference(places, axis, runs, rename, partings)
    of_scalars = _partings(scalars, axis)
    return Parts(
        tuple(partings),
        tuple(of_scalars),
        difference,
        _first_column(places) is None and _first_column(scalars) is None and not places.only_a and not places.only_b,
        differing([a.settings, b.settings]),
        tuple(_layers(a, b, names)),
        axis.steps,
        axis.width,
        len(places.places),
        tuple(dict.fromkeys(places.only_a)),
        tuple(dict.fromkeys(places.only_b)),
        tuple(notes),
        (*_curves(partings[:_CURVES], places), *(_curves(of_scalars[:1], scalars) or _first_curve(scalars))),
    )


def _curves(partings: Sequence[Parting], series: Series) -> list[Curve]:
    """Return the values of both runs at the places of *partings*."""
    rows = {(place.site, place.call, place.number): row for row, place in enumerate(series.places)}
    found = [(each, rows[each.site, each.call, each.number]) for each in partings]
    return [Curve(each.site, each.call, each.number, *[series.values[run][row] for run in (0, 1)]) for each, row in found]


def _first_curve(scalars: Series) -> list[Curve]:
    """Return the values of the first scalar, which is the loss if there is one."""
    return [Curve("", -1, place.number, *[scalars.values[run][0] for run in (0, 1)]) for place in scalars.places[:1]]


def _nothing_common(places: Series) -> str:
    if not places.only_a or not places.only_b:
        return "the runs have no place in common: one of them has no rows of layers"
    names = [list(dict.fromkeys(Site.parse(site).name for site in sites)) for sites in (places.only_a, places.only_b)]
    near = nearest(names[0][0], names[1], count=1)
    return (
        f"the runs have no place in common: a has {len(names[0])}, as {names[0][0]}, and b {len(names[1])}. {near} "
        'match={"layers.*": "blocks.*"} maps names of a to those of b'
    )


# Beyond noise


def _partings(series: Series, axis: Axis) -> list[Parting]:
    """Return where each place parts, the earliest first."""
    if not series.places:
        return []
    scaled = [_scaled(series, run) for run in range(len(series.values))]
    nothing = _is_rounding(series) | np.array([place.count < _FEWEST for place in series.places])
    for values in scaled:
        values[nothing] = np.nan
    seed = _seeds(series, scaled, axis)
    parted = part([scaled[0], *scaled[2:]], scaled[1], axis.steps, seed)
    found = []
    for row, place in enumerate(series.places):
        broken = _first_broken(series, row)
        ended = _first_ended(series, row)
        if ended >= 0 and not _others_go_on(series, row, ended):
            ended = -1
        columns = {"not finite": broken, "no rows": ended, "apart": int(parted.column[row])}
        known = {kind: column for kind, column in columns.items() if column >= 0}
        if not known:
            continue
        kind = min(known, key=lambda each: known[each])
        column = known[kind]
        one, other = (_median(series.values[run][row][column : column + WINDOW]) for run in (0, 1))
        gap, allowed = (float(parted.gap[row]), float(parted.allowed[row])) if kind == "apart" else (math.inf, 0.0)
        step = int(axis.steps[column])
        found.append((column, place, Parting(place.site, place.call, place.number, step, one, other, kind, gap, allowed)))  # type: ignore[arg-type]
    begun = {place for column, place, _ in found if column == 0 and _began_apart(series, place)}

    def order(each: tuple[int, SharedNumber, Parting]) -> tuple[int, tuple[float, int, int], float]:
        column, place, parting = each
        return column, _causal(place, is_start=place in begun, is_lost=parting.kind == "no rows"), -place.count

    found.sort(key=order)
    return [each for _, _, each in found]


def _began_apart(series: Series, place: SharedNumber) -> bool:
    """Return whether a parameter differs at the first step by more than the first update moved it: it began with other values."""
    if place.port != "param" or place.number not in _LENGTHS:
        return False
    rows = {(each.site, each.number): row for row, each in enumerate(series.places)}
    row, update = rows[place.site, place.number], rows.get((str(Site.parse(place.site).port_of("update")), place.number))
    one, other = (series.values[run][row][0] for run in (0, 1))
    moved = max(series.values[run][update][0] for run in (0, 1)) if update is not None else 0.0
    return bool(abs(one - other) > 2 * moved)


def _scaled(series: Series, run: int) -> Values:
    """Return the values of one run on the scale on which they are compared: logarithms of sizes, others in their own unit."""
    values = np.array(series.values[run])
    values[~np.isfinite(values)] = np.nan
    for row, place in enumerate(series.places):
        if place.kind in ("size", "count", "power"):
            with np.errstate(divide="ignore", invalid="ignore"):
                values[row] = np.where(values[row] == 0, LOWEST, np.log(values[row]))
        elif place.kind == "signed":
            unit = _median(np.abs(np.concatenate([series.values[0][row], series.values[1][row]])))
            values[row] /= unit if unit > 0 else 1.0
    return values


def _is_rounding(series: Series) -> npt.NDArray[np.bool_]:
    """Return which places have numbers that are nothing beside others of their port, in both runs: they are rounding errors."""
    levels = np.array([[_median(run[row]) for row in range(len(series.places))] for run in series.values[:2]])
    found = np.zeros(len(series.places), np.bool_)
    kinds: dict[tuple[str, str], list[int]] = {}
    for row, place in enumerate(series.places):
        if place.kind == "size" and place.site:
            kinds.setdefault((place.port, place.number), []).append(row)
    for rows in kinds.values():
        typical = _median(levels[:, rows].ravel())
        known = np.nan_to_num(levels[:, rows], nan=0.0)
        found[rows] = (known.max(axis=0) > 0) & (known.min(axis=0) < _NOTHING * typical) & (known.max(axis=0) < _LITTLE * typical)
    return found


def _seeds(series: Series, scaled: Sequence[Values], axis: Axis) -> Values:
    """Return what seeds may differ by in each place."""
    if len(scaled) > 2:
        kinds = [(place.port, place.number if place.site else "") for place in series.places]
        return repeats_differ([scaled[0], *scaled[2:]], axis.steps, kinds)
    found = np.empty(len(series.places))
    for row, place in enumerate(series.places):
        factor = SEEDS.get(place.port, _OTHER_SEEDS)
        found[row] = _SEEDS_OF_SHARES if place.kind in ("share", "cosine") else allowance(factor, np.array(place.count))
    return found


def _first_broken(series: Series, row: int) -> int:
    """Return the first column in which elements are not finite in one run alone; -1 for none."""
    one, other = series.broken[0][row], series.broken[1][row]
    column = int((one != other).argmax())
    return column if one[column] != other[column] and not np.any(one[:column]) else -1


def _first_ended(series: Series, row: int) -> int:
    """Return the column from which one run has no rows of the place any more, while the other goes on; -1 for none."""
    there = [series.marks[run][row] != 0 for run in (0, 1)]
    if not (there[0][0] or there[1][0]):
        return -1
    for one, other in (there, there[::-1]):
        last = int(np.flatnonzero(one)[-1]) if one.any() else -1
        if last >= 0 and other[last + 1 :].sum() >= HELD:
            return last + 1
    return -1


def _others_go_on(series: Series, row: int, column: int) -> bool:
    """Return whether both runs have rows of other places of the same port behind *column*."""
    port = series.places[row].port
    same = [each for each, place in enumerate(series.places) if place.port == port and each != row]
    return all(any(np.any(series.marks[run][each][column:] != 0) for each in same) for run in (0, 1))


def _median(values: Values) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


def _causal(place: SharedNumber, *, is_start: bool = False, is_lost: bool = False) -> tuple[float, int, int]:
    """Return a key that sorts the places of one step as they happen; parameters at the start of a run were there before.

    Gradients that one run has no more begin with those of parameters: where the first layers are frozen, outputs lose theirs, too.
    """
    phase: float = -1 if is_start and place.port == "param" else PHASES.get(place.port, -1) + (2 if place.number == RATIO else 0)
    if is_lost and place.port == "grad":
        phase = PHASES["grad_output"] - 0.5
    backward = place.port in ("grad_output", "grad_input", "grad")
    return phase, -place.order if backward else place.order, -place.site.count(".")


def _refined(partings: list[Parting], runs: Sequence[Run], axis: Axis, rename: Rename | None) -> list[Parting]:
    """Give the partings in the earliest interval the very step, from the rows of that interval and those beside it."""
    first = partings[0].step
    near = [parting for parting in partings if parting.step == first and parting.kind == "apart"]
    fine = _steps_about(runs, axis, first)
    rows = places_of(runs[:2], fine, rename)
    scaled = [_scaled(rows, run) for run in (0, 1)]
    at = {(place.site, place.call, place.number): row for row, place in enumerate(rows.places)}
    refined = {}
    for parting in near:
        row = at.get((parting.site, parting.call, parting.number))
        if row is not None:
            apart = np.nan_to_num(np.abs(scaled[1][row] - scaled[0][row]) >= (parting.gap + parting.allowed) / 2, nan=0)
            later = np.cumsum(apart[::-1])[::-1] >= 0.8 * np.arange(len(apart), 0, -1)  # nearly all from there on
            hits = np.flatnonzero(apart & later)
            refined[parting] = int(fine.steps[hits[0]]) if len(hits) else first
    moved = [_at_step(each, refined.get(each, each.step)) for each in partings]
    order = {(place.site, place.call, place.number): _causal(place) for place in rows.places}
    unknown = (9, 0, 0)
    return sorted(moved, key=lambda each: (each.step, order.get((each.site, each.call, each.number), unknown), -each.gap))


def _at_step(parting: Parting, step: int) -> Parting:
    from dataclasses import replace

    return replace(parting, step=step)


def _steps_about(runs: Sequence[Run], axis: Axis, step: int) -> Axis:
    """Return every step of the column that begins at *step*, of the one before, and of the one behind."""
    low, high = max(step - axis.width, axis.first), step + 2 * axis.width - 1
    steps = np.arange(low, high + 1) if axis.only is None else axis.only[(axis.only >= low) & (axis.only <= high)]
    return Axis(low, 1, steps, None if axis.only is None else steps)


# To the last bit


def _first_column(series: Series) -> int | None:
    """Return the first column with rows that are not equal in the first two runs; None if all are."""
    if not series.places:
        return None
    differ = np.array(series.marks[0]) != np.array(series.marks[1])
    return int(differ.any(axis=0).argmax()) if differ.any() else None


def _difference(
    series: Series, axis: Axis, runs: Sequence[Run], rename: Rename | None, partings: Sequence[Parting]
) -> Difference | None:
    """Return the first difference to the last bit; None if there is none, or if all places differ from the first step on."""
    column = _first_column(series) if axis.same_steps else None
    if column is None:
        return None
    if axis.width > 1:  # the very step
        first = int(axis.steps[column])
        inner = _steps_about(runs, axis, first)
        return _difference(places_of(runs[:2], inner, rename), inner, runs, rename, partings)
    rows = [row for row, place in enumerate(series.places) if place.number != RATIO]
    differ = [row for row in rows if series.marks[0][row][column] != series.marks[1][row][column]]
    there = [row for row in rows if series.marks[0][row][column] or series.marks[1][row][column]]
    first = min(there, key=lambda row: _causal(series.places[row]))
    far = [_distance(series, row, column) for row in there]
    if column == 0 and first in differ and not _began_alike([row for row in there if row in differ], series):
        return None
    since = int(axis.steps[column - 1]) if column else None
    step = int(axis.steps[column])
    same_step = [each for each in partings if each.step == step and each.kind == "apart"]
    chosen = min(differ, key=lambda row: _causal(series.places[row]))
    is_later = since is not None and step - since > 1 and first in differ and far[there.index(first)] < _ROUNDING
    if is_later:  # every layer has changed a little in the steps between
        at = {(series.places[row].site, series.places[row].call): row for row in differ}
        parted = next((at[each.site, each.call] for each in same_step if (each.site, each.call) in at), None)
        chosen = max(differ, key=lambda row: _distance(series, row, column)) if parted is None else parted
    place = series.places[chosen]
    one, other = (float(series.values[run][chosen][column]) for run in (0, 1))
    return Difference(step, place.site, place.call, one, other, place.number, len(differ), len(there), since)


def _began_alike(rows: Sequence[int], series: Series) -> bool:
    """Return whether the outputs and parameters of the first step differ by rounding, as of two runs of one seed."""
    far = sorted(_distance(series, row, 0) for row in rows if series.places[row].port in ("input", "output", "param"))
    return bool(far) and far[-(-4 * (len(far) - 1) // 5)] < _ROUNDING


def _distance(series: Series, row: int, column: int) -> float:
    """Return the distance of the logarithms of a number in two runs; infinite where one has none."""
    one, other = (series.values[run][row][column] for run in (0, 1))
    if not (one > 0 and other > 0):
        return 0.0 if one == other else math.inf
    return abs(math.log(other / one))


# What was trained


def _layers(a: Run, b: Run, names: Sequence[str]) -> list[str]:
    """Return how the lists of modules of two runs differ, in words: a line for those of one run alone, and one for each changed.

    Args:
        a, b: the runs.
        names: what they are called.
    """
    one, other = (_modules(run) for run in (a, b))
    if not one or not other:
        return []
    found = []
    for called, here, beside in zip(names, (one, other), (other, one), strict=True):
        alone = [f"{name or '(root)'} ({kind})" for name, (kind, _) in here.items() if name not in beside]
        found += [f"modules of {called} alone: {names_text(alone, _NAMED)}"] if alone else []
    for name, (kind, count) in one.items():
        if name in other and other[name] != (kind, count):
            there, counted = other[name]
            pair = (kind, there) if kind != there else (f"{count:,} parameters", f"{counted:,}")
            words = ", ".join(f"{what} in {called}" for what, called in zip(pair, names, strict=True))
            found.append(f"{name or '(root)'}: {words}")
    return found


def _modules(run: Run) -> dict[str, tuple[str, int]]:
    """Return the class and the number of parameters of each module, if the run lists them."""
    listed = run.info.get("model")
    lines = [line for line in listed if isinstance(line, Mapping)] if isinstance(listed, list) else []
    return {str(line.get("name", "")): (str(line.get("type", "")), _whole(line.get("parameters"))) for line in lines}


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
