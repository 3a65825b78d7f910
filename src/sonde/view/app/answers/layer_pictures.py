"""Answer what pictures of layers show: a heat-map of layers x steps, lines, the depth at one step, update / weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from sonde.errors import ArgumentError
from sonde.rules import UPDATE_USUAL
from sonde.view.app.answers.opened_run import BINS, RATIO, OpenedRun, StepGrid, chosen_rows
from sonde.view.app.answers.reduction import REDUCTION, Bins, listed, packed
from sonde.view.plots.layer_names import spaced

_CELLS = 2_000_000  # of a heat-map, at most: of more sites there are fewer columns
_SITES = 200  # lines of one answer
_STEPS = 400  # of a slider


def heatmap(
    opened: OpenedRun, number: str, *, first: int | None = None, last: int | None = None, columns: int = 400, layers: str = ""
) -> dict[str, Any]:
    """Return one number of all sites, in the order of execution, over bins of steps.

    Args:
        opened: the run.
        number: its id, or a name and perhaps a port, as ``rms@grad``.
        first, last: the steps, both inclusive; None: from the first, to the last.
        columns: the most bins; of many sites there are fewer.
        layers: a subtree of modules by its name, or a regular expression that is searched in the names.

    Returns:
        ``sites``, ``layers`` (their names without the port) and ``kinds`` (classes), one for each row; ``steps`` (the edges of
        the columns) and ``ends`` (the last logged step in each); ``values`` (float32) and ``marks`` (uint8) as base64, row by row;
        ``spikes``: positions in them (uint32) and values (float32), as base64, where one step of a column stands out of the others;
        ``scale``, label and unit of the number; ``logged`` and ``range`` of the steps.

    Raises:
        UnknownSiteError: the run has no such number.
        SelectionError: *layers* selects nothing.
        ArgumentError: no step between *first* and *last* was logged.
    """
    return _heatmap(opened.grid(number), first, last, columns, layers)


def _heatmap(grid: StepGrid, first: int | None, last: int | None, columns: int, layers: str) -> dict[str, Any]:
    rows = chosen_rows(grid, layers)
    found = grid.matrix
    most = max(min(columns, _CELLS // len(rows)), 1)
    picked = slice(None) if len(rows) == len(found.sites) else rows
    if first is None and last is None and most == BINS:
        bins, reduced = grid.whole
        reduced = reduced[picked]
    else:
        bins = Bins.of(found.steps, first, last, most)
        reduced = bins.reduced(found.values[picked], grid.marks[picked])
    at, spikes = reduced.spikes(grid.scale)
    return {
        **grid.described(),
        "sites": [str(found.sites[row]) for row in rows],
        "layers": [found.sites[row].name for row in rows],
        "kinds": [grid.kinds[row] for row in rows],
        "steps": bins.edges.tolist(),
        "ends": bins.ends.tolist(),
        "values": packed(reduced.middle, "f4"),
        "marks": packed(reduced.marks, "u1"),
        "spikes": {"at": packed(at, "u4"), "values": packed(spikes, "f4")},
        **_span(grid, bins),
    }


def _span(grid: StepGrid, bins: Bins) -> dict[str, Any]:
    steps = grid.matrix.steps
    return {
        "logged": bins.within.stop - bins.within.start,
        "range": [int(steps[bins.within.start]), int(steps[bins.within.stop - 1])],
        "all": [int(steps[0]), int(steps[-1])],
        "reduction": "" if bins.are_single else REDUCTION,
    }


def ratio(
    opened: OpenedRun, *, first: int | None = None, last: int | None = None, columns: int = 400, layers: str = ""
) -> dict[str, Any]:
    """Return update / weight of every parameter over bins of steps, as :func:`heatmap`, with the usual value and a band about it.

    Raises:
        UnknownSiteError: updates were not recorded; the message names the lens that records them.
        SelectionError, ArgumentError: see :func:`heatmap`.
    """
    found = _heatmap(opened.grid(RATIO), first, last, columns, layers)
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
