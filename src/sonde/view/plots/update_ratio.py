"""Update / weight: by how much of its size each step moves a parameter, beside the 1e-3 that is usual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sonde.run.run import Run
from sonde.view.plots.canvas import canvas, named
from sonde.view.plots.labels import by_depth, logarithmic, name_at, spread_apart
from sonde.view.plots.layer_names import Include, chosen, labels
from sonde.view.plots.layer_series import Known, Matrix, matrix
from sonde.view.plots.theme import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sonde.view.plots.figures import Picture

__all__ = ["ratio_of", "update_ratio"]

USUAL = 1e-3
"""CS231n, "Babysitting the learning process", ratio of weights and updates: "this ratio should be somewhere around 1e-3"."""

_NAMED = 14  # lines; of more, the outer ones are named
_OUTER = 3


def update_ratio(
    run: Run,
    *,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    theme: Theme = "light",
) -> Picture:
    """Draw update / weight of each parameter over the steps, coloured by depth, with the line of 1e-3.

    The ratio is that of the root mean squares of the ports ``update`` and ``param`` in ``moments``, or ``ratio`` of
    ``lens.ParameterUpdateGeometry()``. Where a parameter is all zeros there is none.

    Args:
        run: to read.
        include, exclude: of parameters; by default those with ``weight`` in their name, for biases often begin at zero.
        where, theme: see :func:`~sonde.view.plots.heatmap`.

    Raises:
        UnknownSiteError: updates were not recorded; the message says which lens does.
        SelectionError: no parameter is selected.
        MissingExtraError: matplotlib is not installed.
    """
    found = ratio_of(run, where=where)
    weights = [place for place, name in enumerate(found.names) if "weight" in name]
    only_weights = include is None and exclude is None and 0 < len(weights) < len(found.names)
    found = found.rows(weights if only_weights else chosen(found.names, include, exclude))
    _, prefix = labels(found.names)
    facts = (
        f"{len(found.names):,} {'weights' if only_weights else 'parameters'}",
        "rms of the update / rms of the parameter",
        f"names within {prefix.rstrip('.')}" if prefix else "",
    )
    with canvas(9.0, 4.9, theme, "Update / weight", named(run, *facts)) as (figure, look):
        axes = figure.subplots()
        colours = by_depth(len(found.names), look)
        kept = np.where(np.isfinite(found.values) & (found.values > 0) & ~found.broken, found.values, np.nan)
        for row, colour in zip(kept, colours, strict=True):
            axes.plot(found.steps, row, color=colour, linewidth=1.2)
        axes.set_yscale("log")
        logarithmic(axes.yaxis, *axes.get_ylim())
        axes.axhspan(USUAL / 10, USUAL * 10, color=look.quiet, alpha=0.09, linewidth=0, zorder=0)
        axes.axhline(USUAL, color=look.ink, linewidth=1.0, linestyle=(0, (5, 3)), zorder=3)
        axes.annotate(
            "usual: 10⁻³",
            (0, USUAL),
            (5, 4),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=8,
            zorder=4,
            bbox={"facecolor": look.paper, "alpha": 0.75, "edgecolor": "none", "pad": 1},
        )
        axes.set_xlabel("step")
        axes.set_ylabel("update / weight, no unit")
        axes.margins(x=0)
        axes.grid(axis="y")
        _name_lines(axes, replace(found, values=kept), colours)
    return figure


def ratio_of(run: Run, *, where: str | None = None) -> Matrix:
    """Update / weight of every parameter over the steps.

    Raises:
        UnknownSiteError: updates were not recorded.
    """
    known = Known.of(run)
    if known.has("rms", "update") and known.has("rms", "param"):
        update, weight = (matrix(run, "rms", port, where=where, known=known) for port in ("update", "param"))
        sizes = weight.aligned(update.names, update.steps)
        values = np.divide(update.values, sizes, out=np.full(sizes.shape, np.nan), where=sizes > 0)
        return replace(update, values=values, number="ratio")
    return matrix(run, "ratio", "update", where=where, known=known)


def _name_lines(axes: Axes, found: Matrix, colours: Sequence[Any]) -> None:
    """Name the lines at their right ends; of many, the outermost."""
    short, _ = labels(found.names, 26)
    ends: list[tuple[float, int]] = []
    for row, values in enumerate(found.values):
        there = np.flatnonzero(np.isfinite(values))
        if len(there):
            ends.append((float(values[there[-1]]), row))
    ends.sort()
    if len(ends) > _NAMED:
        ends = ends[:_OUTER] + ends[-_OUTER:]
    if not ends:
        return
    low, high = np.log10(axes.get_ylim())
    places = spread_apart([(np.log10(value) - low) / (high - low) for value, _ in ends], 0.042)
    for place, (value, row) in zip(places, ends, strict=True):
        name_at(axes, short[row], place, value, colours[row])
