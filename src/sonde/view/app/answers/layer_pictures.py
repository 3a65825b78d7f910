"""Answer what pictures of layers show: a heat-map of layers x steps, lines, the depth at one step, update / weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.rules import UPDATE_USUAL
from sonde.view.app.answers.alike_rows import ShownRow, put_together, shown_rows
from sonde.view.app.answers.opened_run import BINS, RATIO, OpenedRun, StepGrid, chosen_rows
from sonde.view.app.answers.reduction import REDUCTION, Bins, listed, packed
from sonde.view.plots.layer_names import spaced

_CELLS = 2_000_000  # of a heat-map, at most: of more sites there are fewer columns
_ROUNDED = 80_000  # cells; of more the values can be rounded, to
_KEPT = 12  # binary digits
_ROWS = 64  # of the grid, reduced at once
_SITES = 200  # lines of one answer
_STEPS = 400  # of a slider


def heatmap(
    opened: OpenedRun,
    number: str,
    *,
    first: int | None = None,
    last: int | None = None,
    columns: int = 400,
    layers: str = "",
    rounded: bool = False,
    fold: bool = False,
) -> dict[str, Any]:
    """Return one number of all sites, in the order of execution, over bins of steps.

    Args:
        opened: the run.
        number: its id, or a name and perhaps a port, as ``rms@grad``.
        first, last: the steps, both inclusive; None: from the first, to the last.
        columns: the most bins; of many sites there are fewer.
        layers: a subtree of modules by its name, or a regular expression that is searched in the names.
        rounded: round the values of more than 80,000 cells to three and a half digits, see :func:`values_data`.
        fold: put rows of blocks that are alike into one, where no *layers* are chosen: see :func:`shown_rows`. Its values are the
            largest change of any of them, as a share of the median of that row.

    Returns:
        ``sites``, ``layers`` (their names without the port) and ``kinds`` (classes), one for each row; ``steps`` (the edges of
        the columns) and ``ends`` (the last logged step in each); ``values`` (float32) and ``marks`` (uint8) as base64, row by row;
        ``spikes``: positions in them (uint32) and values (float32), as base64, where one step of a column stands out of the others;
        ``last`` and ``last_marks``: of each row at the last step, float32 and uint8, as base64;
        ``reference``: of each row the median over the bins of the whole run, or of those in front of the step ``before``, at which
        the first finding of the run begins; ``folds``: of each row how many it stands for, and ``like``: the block that is shown
        in place of these;
        ``scale``, label and unit of the number; ``logged`` and ``range`` of the steps.

    Raises:
        UnknownSiteError: the run has no such number.
        SelectionError: *layers* selects nothing.
        ArgumentError: no step between *first* and *last* was logged.
    """
    grid = opened.grid(number)
    shown = shown_rows(grid, opened.run.findings) if fold and not layers else None
    return _heatmap(grid, first, last, columns, layers, rounded, shown)


def _heatmap(
    grid: StepGrid,
    first: int | None,
    last: int | None,
    columns: int,
    layers: str,
    rounded: bool,
    shown: Sequence[ShownRow] | None = None,
) -> dict[str, Any]:
    found = grid.matrix
    shown = shown or [ShownRow(found.sites[row].name, (row,)) for row in chosen_rows(grid, layers)]
    rows = [row.rows[0] for row in shown]
    is_folded = any(row.like for row in shown)
    most = max(min(columns, _CELLS // len(rows)), 1)
    is_whole = first is None and last is None and most == BINS
    bins = grid.whole[0] if is_whole else Bins.of(found.steps, first, last, most)
    values, marks = np.empty((len(rows), len(bins.ends)), np.float32), np.empty((len(rows), len(bins.ends)), np.uint8)
    references = np.empty(len(rows))
    at, spikes = [], []
    begin = 0
    for piece in _pieces(shown):  # of which a few are held at once
        here = [row for each in piece for row in each.rows]
        picked = slice(here[0], here[-1] + 1) if here == list(range(here[0], here[-1] + 1)) else here
        reduced = grid.whole[1][picked] if is_whole else bins.reduced(found.values[picked], grid.marks[picked])
        reference = grid.reference[picked]
        if is_folded:
            reduced, reference = put_together(piece, here, reduced, reference)
        end = begin + len(piece)
        values[begin:end], marks[begin:end], references[begin:end] = reduced.middle, reduced.marks, reference
        places, stands = reduced.spikes(grid.scale)
        at.append(places + begin * len(bins.ends))
        spikes.append(stands)
        begin = end
    end = bins.within.stop - 1
    return {
        **grid.described(),
        "sites": [str(found.sites[row]) for row in rows],
        "layers": [row.name for row in shown],
        "kinds": ["" if row.like else grid.kinds[row.rows[0]] for row in shown],
        "reference": listed(references),
        "before": grid.before,
        "folds": [len(row.rows) for row in shown],
        "like": [row.like for row in shown],
        "steps": bins.edges.tolist(),
        "ends": bins.ends.tolist(),
        "marks": packed(marks, "u1"),
        "spikes": {"at": packed(np.concatenate(at), "u4"), "values": packed(np.concatenate(spikes), "f4")},
        "last": packed(found.values[rows, end], "f4"),
        "last_marks": packed(grid.marks[rows, end], "u1"),
        **_span(grid, bins),
        **values_data(values, "" if bins.are_single else REDUCTION, rounded=rounded),
    }


def _pieces(shown: Sequence[ShownRow]) -> Iterator[list[ShownRow]]:
    """Yield *shown* in pieces of some 64 rows of the grid."""
    piece: list[ShownRow] = []
    for each in shown:
        piece.append(each)
        if sum(len(row.rows) for row in piece) >= _ROWS:
            yield piece
            piece = []
    if piece:
        yield piece


def values_data(values: npt.NDArray[np.float32], reduction: str, *, rounded: bool) -> dict[str, Any]:
    """Return the values of a heat-map for JSON, and how steps were put together; *values* are rounded in place.

    Returns:
        Of more than 80,000 cells, if they may be rounded, ``values`` with a relative error of 2^-13 at most, in which the first
        bytes of all numbers come before the second ones, and so on: bits that no picture shows cannot be compressed. ``planes``
        says so, and ``digits`` how many can be shown.
    """
    if not rounded or values.size <= _ROUNDED:
        return {"values": packed(values, "f4"), "reduction": reduction}
    dropped, bits, finite = 23 - _KEPT, values.view(np.uint32), np.isfinite(values)
    np.add(bits, np.uint32(1 << (dropped - 1)), out=bits, where=finite)
    np.bitwise_and(bits, np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF), out=bits, where=finite)
    planes = bits.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4).T
    said = f"{reduction}; values are rounded to three and a half digits".lstrip("; ")
    return {"values": packed(planes, "u1"), "planes": True, "digits": 3, "reduction": said}


def _span(grid: StepGrid, bins: Bins) -> dict[str, Any]:
    steps = grid.matrix.steps
    return {
        "logged": bins.within.stop - bins.within.start,
        "range": [int(steps[bins.within.start]), int(steps[bins.within.stop - 1])],
        "all": [int(steps[0]), int(steps[-1])],
        "reduction": "" if bins.are_single else REDUCTION,
    }


def ratio(
    opened: OpenedRun,
    *,
    first: int | None = None,
    last: int | None = None,
    columns: int = 400,
    layers: str = "",
    rounded: bool = False,
) -> dict[str, Any]:
    """Return update / weight of every parameter over bins of steps, as :func:`heatmap`, with the usual value and a band about it.

    Raises:
        UnknownSiteError: updates were not recorded; the message names the lens that records them.
        SelectionError, ArgumentError: see :func:`heatmap`.
    """
    found = _heatmap(opened.grid(RATIO), first, last, columns, layers, rounded)
    return {**found, "usual": UPDATE_USUAL, "band": [UPDATE_USUAL / 10, UPDATE_USUAL * 10]}


def lines(
    opened: OpenedRun,
    number: str,
    site: tuple[str, ...],
    *,
    first: int | None = None,
    last: int | None = None,
    points: int = 400,
) -> dict[str, Any]:
    """Return one number of some sites over bins of steps, each with its extremes.

    Args:
        opened: the run.
        number: its id, see :func:`heatmap`.
        site: the sites; the port may be left out.
        first, last: the steps, both inclusive.
        points: the most bins.

    Returns:
        Label, unit and scale of the number, and ``lines``: of each site ``steps``, ``ends``, ``values``,
        ``low``, ``high``, ``marks``.

    Raises:
        UnknownSiteError: the run has no such number or site.
        ArgumentError: no site was named, too many were, or no step was logged there.
    """
    if not 0 < len(site) <= _SITES:
        raise ArgumentError(f"{len(site)} sites were asked for: name 1 to {_SITES}, as in site=blocks.0:output")
    grid = opened.grid(number)
    found = grid.matrix
    bins = Bins.of(found.steps, first, last, points)
    rows = [grid.row(each) for each in site]
    reduced = bins.reduced(found.values[rows], grid.marks[rows])
    drawn = [
        {
            "site": str(found.sites[row]),
            "layer": found.sites[row].name,
            "values": listed(reduced.middle[place]),
            "low": listed(reduced.low[place]),
            "high": listed(reduced.high[place]),
            "marks": reduced.marks[place].tolist(),
            **bins.plain(),
        }
        for place, row in enumerate(rows)
    ]
    return {**grid.described(), "lines": drawn, **_span(grid, bins)}


def flow(opened: OpenedRun, number: str, *, step: int | None = None, layers: str = "") -> dict[str, Any]:
    """Return one number through the depth at one step: a value for each site, with its extremes over the whole run.

    Args:
        opened: the run.
        number: its id, see :func:`heatmap`.
        step: the nearest logged step is taken; None: the last.
        layers: see :func:`heatmap`.

    Returns:
        Label, unit and scale of the number; ``sites``, ``layers``, ``kinds``, ``values``, ``marks``, ``low``, ``high``, ``middle``
        (the median over the run), one for each site; ``step``, and ``steps`` for a slider, evenly through the run.

    Raises:
        UnknownSiteError: the run has no such number.
        SelectionError: *layers* selects nothing.
    """
    grid = opened.grid(number)
    found = grid.matrix
    rows = chosen_rows(grid, layers)
    column = len(found.steps) - 1 if step is None else int(np.abs(found.steps - step).argmin())
    middle, low, high = grid.courses
    return {
        **grid.described(),
        "step": int(found.steps[column]),
        "steps": found.steps[spaced(len(found.steps), _STEPS)].tolist(),
        "sites": [str(found.sites[row]) for row in rows],
        "layers": [found.sites[row].name for row in rows],
        "kinds": [grid.kinds[row] for row in rows],
        "values": listed(found.values[rows, column]),
        "marks": grid.marks[rows, column].tolist(),
        "low": listed(low[rows]),
        "high": listed(high[rows]),
        "middle": listed(middle[rows]),
    }
