"""Draw a heat-map: one number of every layer, in the order of execution, at every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.run import Reduce, Run
from sonde.site import PARAMETER_PORTS
from sonde.view.plots.canvas import DEFECTS, ZERO, Look, Theme, canvas, legend, subtitle
from sonde.view.plots.layer_names import Include, label_layers, prefix_fact
from sonde.view.plots.layer_series import Matrix, matrix
from sonde.view.plots.number_names import axis_of, title_of
from sonde.view.scales import Scale, ScaleName, logarithmic, scale_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.patches import Patch

    from sonde.view.plots.picture import Picture


_ROW = 0.185  # inches
_COLUMNS = 600  # a screen has no room for more; columns beyond are joined
_SLIVER = 0.004  # a mark of NaN is at least this share of the picture wide


def heatmap(
    run: Run,
    number: str = "rms",
    port: str = "output",
    *,
    family: str | None = None,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    reduce: Reduce = "worst",
    scale: ScaleName = "auto",
    limits: tuple[float, float] | None = None,
    theme: Theme = "light",
) -> Picture:
    """Draw one number of all layers over all steps: the first layer at the top, a column for each step.

    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> plots.heatmap(writer.run(), "rms").texts[0].get_text()
    'Root mean square of outputs'

    Sizes are coloured logarithmically, numbers with a sign symmetrically about zero, shares from 0 to 1. Cells with NaN
    elements are red and crossed, cells with infinite elements orange and gridded, also if the number itself, which leaves them
    out, is finite. Cells beyond an end of the scale have the colour of that end, and dots; the legend names every mark.

    Args:
        run: the run.
        number: as ``rms``, ``mean``, ``call_death``, ``p50``.
        port: the tensors, as ``output``, ``grad_output``, ``grad``, ``param``, ``update``.
        family: needed if several families have the number; ``moments`` goes before others.
        include, exclude: a regular expression that is searched in the layers' names, or exact names.
        where: an SQL condition on the rows, as ``"rank = 0"``.
        reduce: how several rows of a layer in one step (its calls, say) become one cell: ``"mean"``, ``"min"``, ``"max"``,
            ``"sum"``; by default the worst of numbers that have one, as the share of dead units, and the mean of others.
        scale: ``"log"``, ``"linear"`` or ``"signed"``; the default fits the number.
        limits: the ends of the scale; the default leaves out at most half a percent of the cells on each side, if they lie far
            off, and on a logarithmic scale cells that are decades away from most others.
        theme: ``"light"`` (also for print) or ``"dark"``.

    Raises:
        UnknownSiteError: the number was not recorded; the message names the lens that records it.
        ArgumentError: several families have it, or an argument cannot be used.
        SelectionError: no layer is selected.
        MissingExtraError: matplotlib is not installed.
    """
    found = matrix(run, number, port, family=family, include=include, exclude=exclude, where=where, reduce=reduce)
    chosen = scale_for(found.finite, found.described.kind, scale, limits)
    height = min(max(_ROW * len(found.names), 1.5), 8.0) + 1.35
    facts = (
        f"{len(found.names):,} {'parameters' if port in PARAMETER_PORTS else 'layers'} × {len(found.steps):,} steps",
        "first layer on top",
        prefix_fact(found.names),
    )
    with canvas(9.0, height, theme, title_of(found.described, port), subtitle(run, *facts)) as (figure, look):
        axes = figure.subplots()
        mesh, joined, marks = cells(axes, found, chosen, look)
        label_layers(axes, found.names, height - 1.35)
        axes.set_xlabel("step" if joined == 1 else f"step (each column: the largest of {joined} steps)")
        bar = figure.colorbar(mesh, ax=axes, extend=chosen.extend, pad=0.015, fraction=0.035, aspect=24)
        bar.set_label(axis_of(found.described, port))
        if chosen.log:
            logarithmic(bar.ax.yaxis, chosen.low, chosen.high)
        bar.outline.set_visible(False)
        legend(figure, marks)
    return figure


def cells(axes: Axes, found: Matrix, scale: Scale, look: Look) -> tuple[QuadMesh, int, list[Patch]]:
    """Draw the cells of *found* on *axes*. Return the mesh, how many steps a column joins, and the legend of the marks."""
    from matplotlib.patches import Patch

    values, defects, edges, joined = _joined(found)
    broken = defects > 0
    axes.set_facecolor(look.void)
    rows = np.arange(len(values) + 1)
    there = np.isfinite(values) & ~broken
    on_scale = there & (values > 0) if scale.log else there
    shown = np.ma.masked_where(~on_scale, values)
    mesh = axes.pcolormesh(edges, rows, shown, norm=scale.norm(), cmap=scale.colours, rasterized=True, edgecolors="none")
    marks: list[Patch] = []
    for text, marked, mark, least in (
        (
            f"below the scale, down to {_least(values, on_scale):.2g}",
            on_scale & (values < scale.low),
            look.clipped_mark(mesh.cmap(0.0)),
            0.0,
        ),
        (
            f"above the scale, up to {_most(values, on_scale):.2g}",
            on_scale & (values > scale.high),
            look.clipped_mark(mesh.cmap(1.0)),
            0.0,
        ),
        (ZERO, there & ~on_scale, look.zero_mark, 0.0),
        *((name, defects == code, look.defect_mark(name), _SLIVER) for code, name in enumerate(DEFECTS, 1)),
    ):
        if marked.any():
            _bars(axes, edges, marked, mark, least)
            marks.append(Patch(**mark, label=text))
    if (~there & ~broken).any():
        marks.append(Patch(facecolor=look.void, edgecolor=look.quiet, linewidth=0.5, label="not recorded"))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(len(values), 0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return mesh, joined, marks


def _least(values: npt.NDArray[np.float64], where: npt.NDArray[np.bool_]) -> float:
    return float(values.min(initial=np.inf, where=where))


def _most(values: npt.NDArray[np.float64], where: npt.NDArray[np.bool_]) -> float:
    return float(values.max(initial=-np.inf, where=where))


def _joined(found: Matrix) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int8], npt.NDArray[np.float64], int]:
    """Return values and codes of columns that fit on a screen, their edges in steps, and how many steps a column joins."""
    size = -(-len(found.steps) // _COLUMNS)
    starts = np.arange(0, len(found.steps), size)
    values, defects = found.values, found.defects
    if size > 1:  # the largest magnitude, with its sign: a rare value must be seen
        high, low = np.fmax.reduceat(values, starts, axis=1), np.fmin.reduceat(values, starts, axis=1)
        values = np.where(-low > high, low, high)
        defects = np.maximum.reduceat(defects, starts, axis=1)
    return values, defects, edges_of(found.steps[starts]), size


def edges_of(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return where the columns of *steps* begin and end: half-way between them."""
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middles = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([[2 * steps[0] - middles[0]], middles, [2 * steps[-1] - middles[-1]]])


def _bars(
    axes: Axes, edges: npt.NDArray[np.float64], marked: npt.NDArray[np.bool_], mark: Mapping[str, Any], sliver: float
) -> None:
    """Draw a bar over each run of marked cells in a row, at least *sliver* of the picture wide, so that it is seen."""
    least = sliver * (edges[-1] - edges[0])
    for row in np.flatnonzero(marked.any(axis=1)):
        change = np.flatnonzero(np.diff(np.concatenate([[False], marked[row], [False]]).astype(np.int8)))
        spans = []
        for start, end in zip(edges[change[::2]], edges[change[1::2]], strict=True):
            spare = max(least - (end - start), 0.0) / 2
            spans.append((start - spare, end - start + 2 * spare))
        axes.broken_barh(spans, (float(row), 1.0), **mark)
