"""Draw update / weight: the share of its size by which each step moves a parameter, beside the usual 1e-3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.number import number_of
from sonde.rules import UPDATE_USUAL as USUAL
from sonde.run import Run
from sonde.view.plots.canvas import ZERO, Look, Theme, by_depth, canvas, legend, mark_defects, mark_steps, subtitle
from sonde.view.plots.layer_names import Include, chosen, labels, name_at, prefix_fact, spread_apart
from sonde.view.plots.layer_series import Known, Matrix, matrix
from sonde.view.scales import logarithmic

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from sonde.view.plots.picture import Picture


_NAMED = 14  # lines; of more, only the outer ones are named
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

    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0.weight:update", "0.weight:param"]), {"rms": [0.25, 2.0]}, step=0)
    >>> plots.update_ratio(writer.run()).texts[0].get_text()
    'Update / weight'

    The ratio is that of the root mean squares of the ports ``update`` and ``param`` in ``moments``, or ``ratio`` of
    ``lens.ParameterUpdateGeometry()``. A parameter that is all zeros has no ratio. The axis holds all logged steps. Steps at which
    a parameter or its update has NaN elements are red ticks on the axis, and triangles where it has infinite ones, with a cross at
    the last point before; steps at which an update is exactly zero are circles on the axis.

    Args:
        run: the run.
        include, exclude: a choice of parameters; by default those with ``weight`` in their name, since biases often begin at zero.
        where, theme: see :func:`~sonde.view.plots.heatmap`.

    Raises:
        UnknownSiteError: updates were not recorded; the message names the lens that records them.
        SelectionError: no parameter is selected.
        MissingExtraError: matplotlib is not installed.
    """
    found = ratio_of(run, where=where)
    weights = [place for place, name in enumerate(found.names) if "weight" in name]
    only_weights = include is None and exclude is None and 0 < len(weights) < len(found.names)
    found = found.rows(weights if only_weights else chosen(found.names, include, exclude))
    facts = (
        f"{len(found.names):,} {'weights' if only_weights else 'parameters'}",
        "rms of the update / rms of the parameter",
        prefix_fact(found.names),
    )
    with canvas(9.0, 4.9, theme, "Update / weight", subtitle(run, *facts)) as (figure, look):
        axes = figure.subplots()
        colours = by_depth(len(found.names), look)
        kept = np.where(found.finite > 0, found.values, np.nan)
        for row, colour in zip(kept, colours, strict=True):
            axes.plot(found.steps, row, color=colour, linewidth=1.2, marker="o" if len(found.steps) == 1 else None)
        there = kept[np.isfinite(kept)]
        axes.set_ylim(min(there.min(initial=USUAL) / 1.5, USUAL / 20), max(there.max(initial=USUAL) * 1.5, USUAL * 20))
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
        axes.set_xlim(*_ends(found))
        axes.grid(axis="y")
        marks = mark_defects(axes, found.steps, found.defects, look) + _crosses(axes, kept, found, look)
        legend(figure, [*marks, *mark_steps(axes, found.steps[found.zero.any(axis=0)], ZERO, look)])
        _name_lines(axes, replace(found, values=kept), colours)
    return figure


def ratio_of(run: Run, *, where: str | None = None) -> Matrix:
    """Read update / weight of every parameter over the steps.

    Raises:
        UnknownSiteError: updates were not recorded.
    """
    known = Known.of(run)
    if known.has("rms", "update") and known.has("rms", "param"):
        update, weight = (matrix(run, "rms", port, where=where, known=known) for port in ("update", "param"))
        weight = weight.like(update)
        values = np.divide(update.values, weight.values, out=np.full(weight.values.shape, np.nan), where=weight.values > 0)
        return replace(
            update, values=values, defects=np.maximum(update.defects, weight.defects), number="ratio", described=number_of("ratio")
        )
    return matrix(run, "ratio", "update", where=where, known=known)


def _ends(found: Matrix) -> tuple[float, float]:
    """Return the ends of the axis: the first and the last logged step."""
    first, last = float(found.steps[0]), float(found.steps[-1])
    return (first, last) if first < last else (first - 0.5, last + 0.5)


def _crosses(axes: Axes, kept: npt.NDArray[np.float64], found: Matrix, look: Look) -> list[Artist]:
    """Put a red cross on the last point of each line before a stretch of NaN or infinite elements."""
    rows, columns = np.nonzero(~found.broken[:, :-1] & found.broken[:, 1:] & np.isfinite(kept[:, :-1]))
    if not len(rows):
        return []
    style: dict[str, Any] = {"color": look.defect, "markersize": 5, "markeredgewidth": 1.4, "label": "last step before them"}
    return list(axes.plot(found.steps[columns], kept[rows, columns], "x", zorder=5, **style))


def _name_lines(axes: Axes, found: Matrix, colours: Sequence[Any]) -> None:
    """Name the lines at their right ends; of many, the outermost."""
    short, _ = labels(found.names, 26)
    ends: list[tuple[float, int, float]] = []
    for row, values in enumerate(found.values):
        there = np.flatnonzero(np.isfinite(values))
        if len(there):
            ends.append((float(values[there[-1]]), row, float(found.steps[there[-1]])))
    ends.sort()
    if len(ends) > _NAMED:
        ends = ends[:_OUTER] + ends[-_OUTER:]
    if not ends:
        return
    low, high = np.log10(axes.get_ylim())
    places = spread_apart([(np.log10(value) - low) / (high - low) for value, _, _ in ends], 0.042)
    for place, (value, row, step) in zip(places, ends, strict=True):
        name_at(axes, short[row], place, (step, value), colours[row])
