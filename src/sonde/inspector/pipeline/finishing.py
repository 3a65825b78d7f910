"""Finish batches: the rows of one measurement at several moments become numbers in one call of its statistic."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sonde.inspector.measurement.row_index import RowIndex
from sonde.inspector.pipeline.batch import NORMS, Batch, Join, PendingScalar, RawRows
from sonde.inspector.sinks.base import LoggedRows
from sonde.rows import RowBlock, Scalar, Scope

_UNSCALED = (
    "gradients are multiplied by the scale of the loss; {} of {} in {} is NaN, since the statistic does not declare how a factor "
    "changes it: numbers = (Number(name, scaling=1), ...)"
)

Arrays = Sequence[npt.NDArray[np.float64]]
"""The arrays of a batch's copy."""

_RAW = "raw"
_NORMS: Mapping[str, str] = {"grad": "grad_norm", _RAW: "grad_norm_raw", "param": "param_norm", "update": "update_norm"}
"""Of each port of parameters, and of gradients before clipping, the name of the norm over all of them."""

_Moment = tuple[RowBlock, int, dict[str, float]]
"""The rows of one measurement at one moment: a block, the moment's position in it, and by port the sum of squares for the norms."""


class Finishing:
    """Finishes batches, one piece of a training after the other.

    However the batches are cut into pieces, the rows are the same, and so is their order: that in which the batches came; the
    norms of a step come before the rows of the next.

    Args:
        failed: called with the row index of a statistic that has raised, its error, and the site at which alone it has raised;
            ``""`` if it has raised for all rows, which are tried again at the next moment.
        note: called with a problem in words that loses no rows.
        aside: called with rows that are not written, and their role: ``start`` or ``raw``.
        scope: how much of the training the numbers are of that no other rank has joined.
        shares_norms: the norms are those of this rank's part, and are taken with :meth:`norms_before`.
    """

    def __init__(
        self,
        failed: Callable[[RowIndex, Exception, str], None],
        note: Callable[[str], None],
        aside: Callable[[str, RowBlock], None] = lambda role, block: None,
        scope: Scope = "global",
        *,
        shares_norms: bool = False,
    ) -> None:
        self._failed = failed
        self._note = note
        self._aside = aside
        self._norms = _Norms()
        self._scope = scope
        self._shares_norms = shares_norms
        self._stopped: set[tuple[str, str]] = set()  # family and site, where the statistic has raised

    def norms_before(self, batches: Iterable[Batch] | None) -> list[PendingScalar]:
        """Return the norms of the steps before *batches*, which are complete now that the rows of these come; None: all norms."""
        norms = self._norms.copy()
        if batches is None:
            found = norms.finish_all()
        else:
            steps = {next(iter(raw.index.layout.model), ""): raw.step for batch in batches for raw in batch.rows}
            found = [norm for model, step in steps.items() for norm in norms.before(model, step)]
        self._norms = norms
        return found

    def finish(self, batches: Sequence[tuple[Batch, Arrays]]) -> tuple[LoggedRows, list[RowIndex]]:
        """Return the rows and scalars of *batches*, and the row index of each block, without rows whose statistic raises.

        If this raises, it is as if nothing had been asked: *batches* can be finished again.
        """
        norms, beside = self._norms.copy(), list[tuple[str, RowBlock]]()
        try:
            found = self._finish(batches, beside)
        except BaseException:
            self._norms = norms
            raise
        for role, block in beside:
            self._aside(role, block)
        return found

    def _finish(
        self, batches: Sequence[tuple[Batch, Arrays]], beside: list[tuple[str, RowBlock]]
    ) -> tuple[LoggedRows, list[RowIndex]]:
        """As :meth:`finish`; add to *beside* the rows that are not written."""
        together: dict[RowIndex, list[tuple[RawRows, Arrays]]] = {}
        for batch, arrays in batches:
            for raw in batch.rows:
                together.setdefault(raw.index, []).append((raw, arrays))
        moments = {index: iter(self._moments(parts)) for index, parts in together.items()}
        logged, indices = LoggedRows([], [], []), []
        for batch, arrays in batches:
            for raw in batch.rows:
                model = next(iter(raw.index.layout.model), "")
                if not self._shares_norms:
                    logged.add_scalars([norm.read(arrays, self._scope) for norm in self._norms.before(model, raw.step)])
                moment = next(moments[raw.index])
                if moment is None:
                    continue
                block, position, squares = moment
                if raw.role != "hooks":
                    beside.append((raw.role, block.between(position, position + 1)))
                if raw.norms:
                    found = {_RAW: squares["grad"]} if raw.role == "raw" else squares
                    is_alone = "rank" in raw.index.layout.scope[:1]
                    self._norms.add(model, raw.epoch, raw.step, found, raw.alone if is_alone else "sum")
                if not raw.hidden:
                    logged.add_moment(block, position)
                    if position == 0:
                        indices.append(raw.index)
            logged.add_scalars([each if isinstance(each, Scalar) else each.read(arrays, self._scope) for each in batch.scalars])
        return logged, indices

    def rest(self) -> LoggedRows:
        """Return the norms of the last steps. No more rows may come for these steps."""
        logged = LoggedRows([], [], [])
        if not self._shares_norms:
            norms = self._norms.copy()
            logged.add_scalars([norm.read((), self._scope) for norm in norms.finish_all()])
            self._norms = norms
        return logged

    def _moments(self, parts: Sequence[tuple[RawRows, Arrays]]) -> list[_Moment | None]:
        """Return the rows of each part, or None. The statistic is called once for all; if it raises, once for each."""
        parts = [self._without_stopped(*part) for part in parts] if self._stopped else parts
        try:
            return _finished(parts, self._note)
        except Exception:
            return [self._alone(self._without_stopped(*part)) for part in parts]

    def _alone(self, part: tuple[RawRows, Arrays], *, is_again: bool = False) -> _Moment | None:
        """Return the rows of *part* without those whose statistic raises; None if it raises for all, and again."""
        try:
            return _finished([part], self._note)[0]
        except Exception as error:
            if self._stop_some(*part):
                return self._alone(self._without_stopped(*part))
            if not is_again:
                return self._alone(part, is_again=True)
            self._failed(part[0].index, error, "")
            return None

    def _stop_some(self, raw: RawRows, arrays: Arrays) -> bool:
        """Stop at the sites whose rows the statistic cannot finish; return whether these are some of the rows, and not all."""
        index = raw.index
        failing = index.unfinished(arrays[raw.blocks])
        if not failing or len(failing) == np.count_nonzero(index.rows_in(arrays[raw.blocks])[:, 0]):
            return False
        for place, error in failing.items():
            self._stopped.add((index.family, index.layout.site[place]))
            self._failed(index, error, index.layout.site[place])
        return True

    def _without_stopped(self, raw: RawRows, arrays: Arrays) -> tuple[RawRows, Arrays]:
        """Return *raw* and its *arrays* without the rows of sites that have stopped."""
        places = [place for place, site in enumerate(raw.index.layout.site) if (raw.index.family, site) in self._stopped]
        if not places:
            return raw, arrays
        made = [*arrays, raw.index.without(places, arrays[raw.blocks])]
        return replace(raw, index=raw.index.alone, blocks=slice(len(arrays), len(made))), made


def _finished(parts: Sequence[tuple[RawRows, Arrays]], note: Callable[[str], None]) -> list[_Moment | None]:
    """Return the rows of each part of one measurement, or None where nothing was added to any row."""
    first = parts[0][0]
    index = first.index
    seen, counts, numbers = index.finish([arrays[raw.blocks] for raw, arrays in parts])
    moment, rows = np.nonzero(seen)
    scales = _scales(parts, moment, rows)
    if scales is not None:
        unknown = index.unscale(numbers, scales)
        if unknown:
            note(_UNSCALED.format(", ".join(unknown), index.statistic, index.family))
    lengths = seen.sum(axis=1)
    some = np.flatnonzero(lengths)
    when = np.array([(raw.epoch, raw.step, raw.micro_step) for raw, _ in parts], np.int64)
    edges = np.concatenate([[0], np.cumsum(lengths[some])])
    of_ranks = [raw.ranks for raw, _ in parts if raw.ranks is not None]
    joined = np.stack(of_ranks)[seen].astype(np.int32) if of_ranks else None
    block = RowBlock(index.family, index.layout, rows, when[some], edges, counts, numbers, joined)
    squares = _squares(block, index, first.norms) if first.norms and len(some) else [{}] * len(some)
    found: list[_Moment | None] = [None] * len(parts)
    for position, place in enumerate(some.tolist()):
        found[place] = block, position, squares[position]
    return found


def _scales(
    parts: Sequence[tuple[RawRows, Arrays]], moment: npt.NDArray[np.intp], rows: npt.NDArray[np.intp]
) -> npt.NDArray[np.float64] | None:
    """The factor by which each row's tensor was multiplied; None if none was."""
    if not any(raw.scales for raw, _ in parts):
        return None
    ports = np.array(parts[0][0].index.ports)
    table = np.ones((len(parts), len(ports)))
    for place, (raw, arrays) in enumerate(parts):
        for port, where in raw.scales.items():
            table[place, ports == port] = float(arrays[where])
    return table[moment, rows]


def _squares(block: RowBlock, index: RowIndex, ports: Collection[str]) -> list[dict[str, float]]:
    """Return for each moment, by port, the sum of the squares of the parameters' norms, where there are any at these *ports*.

    The norm of all parameters is the root of the sum of the squares of their norms. If any element was NaN, so is the
    norm; if any was infinite, it is infinite: a norm over the rest would hide what matters. There is none of updates where a
    parameter that has a row was stepped and could not be copied before.
    """
    places = {port: place for place, port in enumerate(dict.fromkeys(port for port in index.ports if port in ports))}
    of_site = np.array([places.get(port, -1) for port in index.ports])
    squares = np.square(block.numbers["norm"])
    squares = np.where(block.numbers["inf"] > 0, np.inf, squares)
    squares = np.where(block.numbers["nan"] > 0, np.nan, squares)
    place = of_site[block.rows]
    wanted = place >= 0
    moment = np.repeat(np.arange(len(block)), np.diff(block.edges))
    cell = (moment * len(places) + place)[wanted]
    shape = len(block), len(places)
    sums = np.bincount(cell, squares[wanted], math.prod(shape)).reshape(shape)
    counts = np.bincount(cell, minlength=math.prod(shape)).reshape(shape)
    param, update = places.get("param", -1), places.get("update", -1)
    if param >= 0 and update >= 0:
        counts[counts[:, update] < counts[:, param], update] = 0
    return [
        {port: square for port, square, count in zip(places, row, often, strict=True) if count}
        for row, often in zip(sums.tolist(), counts.tolist(), strict=True)
    ]


class _Norms:
    """Adds up the squares of steps until each step is complete: its rows may come from several measurements and optimizers."""

    def __init__(self) -> None:
        # by model: epoch, step, and the sum so far, by port and by whether it is of this rank alone
        self._open: dict[str, tuple[int, int, dict[tuple[str, Join], float]]] = {}

    def copy(self) -> _Norms:
        """The same sums; adding to one changes nothing in the other."""
        made = _Norms()
        made._open = {model: (epoch, step, dict(sums)) for model, (epoch, step, sums) in self._open.items()}
        return made

    def before(self, model: str, step: int) -> list[PendingScalar]:
        """The norms of the step before *step*, which is complete now that rows of *step* come."""
        known = self._open.get(model)
        return [] if known is None or known[1] == step else self._norms([model])

    def add(self, model: str, epoch: int, step: int, squares: Mapping[str, float], join: Join) -> None:
        """Add the squares of one moment of *step*."""
        sums = self._open[model][2] if model in self._open else {}
        self._open[model] = epoch, step, sums
        for port, square in squares.items():
            sums[port, join] = sums.get((port, join), 0.0) + square

    def finish_all(self) -> list[PendingScalar]:
        """All norms that there are."""
        return self._norms(sorted(self._open))

    def _norms(self, models: Iterable[str]) -> list[PendingScalar]:
        found = []
        for model in models:
            epoch, step, sums = self._open.pop(model)
            for join in NORMS:
                for port, name in _NORMS.items():
                    if (port, join) in sums:
                        named = f"{model}/{name}" if model else name
                        found.append(PendingScalar(named, epoch, step, sums[port, join], join=join))
        return found
