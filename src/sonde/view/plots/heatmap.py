"""The heat-map: one number of every layer, in the order of execution, at every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.run.heatmap import Reduce
from sonde.run.run import Run
from sonde.view.plots.canvas import canvas, key, named
from sonde.view.plots.labels import logarithmic
from sonde.view.plots.layer_names import Include, labels
from sonde.view.plots.layer_series import Matrix, matrix
from sonde.view.plots.number_names import title_of, unit_of, words_of
from sonde.view.plots.scales import Scale, ScaleName, scale_for
from sonde.view.plots.theme import Look, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.patches import Patch

    from sonde.view.plots.figures import Picture

__all__ = ["cells", "edges_of", "heatmap", "label_layers", "marks_of"]

_ROW = 0.185  # inches
_LABEL = 0.15  # inches that a label needs
_COLUMNS = 600  # more are joined: a screen has no more room
_SLIVER = 0.004  # of the width of the picture: a defect is at least so wide


def heatmap(
    run: Run,
    number: str = "rms",
    port: str = "output",
    *,
    family: str | None = None,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    reduce: Reduce = "mean",
    scale: ScaleName = "auto",
    limits: tuple[float, float] | None = None,
    theme: Theme = "light",
) -> Picture:
    """Draw one number of all layers over all steps: the first layer at the top, a column for each step.

    Sizes are coloured logarithmically, numbers with a sign about zero, shares from 0 to 1. Cells in which NaN or infinite
    elements were met are red and hatched, also where the number itself, which leaves them out, is finite.

    Args:
        run: to read.
        number: as ``rms``, ``mean``, ``call_death``, ``p50``.
        port: of which tensors, as ``output``, ``grad_output``, ``grad``, ``param``, ``update``.
        family: where several families have the number; ``moments`` goes before others.
        include, exclude: a regular expression that is searched in the layers' names, or exact names.
        where: an SQL condition on the rows, as ``"rank = 0"``.
        reduce: what a cell shows where a layer has several rows in a step.
        scale: ``"log"``, ``"linear"`` or ``"signed"`` in place of what fits the number.
        limits: the ends of the scale.
        theme: ``"light"`` (also for print) or ``"dark"``.

    Raises:
        UnknownSiteError: the number was not recorded; the message says which lens does.
        ArgumentError: several families have it, or an argument cannot be used.
        SelectionError: no layer is selected.
        MissingExtraError: matplotlib is not installed.
    """
    found = matrix(run, number, port, family=family, include=include, exclude=exclude, where=where, reduce=reduce)
    words = words_of(number)
    chosen = scale_for(np.where(found.broken, np.nan, found.values), words.kind, scale, limits)
    _, prefix = labels(found.names)
    height = min(max(_ROW * len(found.names), 1.5), 8.0) + 1.35
    facts = (
        f"{len(found.names):,} {'parameters' if port in ('param', 'grad', 'update') else 'layers'} × {len(found.steps):,} steps",
        "first layer on top",
        f"names within {prefix.rstrip('.')}" if prefix else "",
    )
    with canvas(9.0, height, theme, title_of(number, port), named(run, *facts)) as (figure, look):
        axes = figure.subplots()
        mesh, joined = cells(axes, found, chosen, look)
        label_layers(axes, found.names, height - 1.35)
        axes.set_xlabel("step" if joined == 1 else f"step (each column: the largest of {joined} steps)")
        bar = figure.colorbar(mesh, ax=axes, extend=chosen.extend, pad=0.015, fraction=0.035, aspect=24)
        unit = unit_of(number, port)
        bar.set_label(f"{words.short}, {unit}" if unit and unit != "no unit" else words.short)
        if chosen.log:
            logarithmic(bar.ax.yaxis, chosen.low, chosen.high)
        bar.outline.set_visible(False)
        key(figure, marks_of(found, chosen, look))
    return figure


def cells(axes: Axes, found: Matrix, scale: Scale, look: Look) -> tuple[QuadMesh, int]:
    """Draw the cells of *found* on *axes*, and mark what has no colour; how many steps each column joins."""
    values, broken, edges, joined = _joined(found)
    axes.set_facecolor(look.void)
    rows = np.arange(len(values) + 1)
    shown = np.ma.masked_where(~np.isfinite(values) | broken | (scale.log & (values <= 0)), values)
    mesh = axes.pcolormesh(edges, rows, shown, norm=scale.norm(), cmap=scale.colours, rasterized=True, edgecolors="none")
    if scale.log:
        _bars(axes, edges, (values <= 0) & ~broken, look.zero_mark)
    _bars(axes, edges, broken, look.defect_mark, sliver=_SLIVER)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(len(values), 0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return mesh, joined


def label_layers(axes: Axes, names: tuple[str, ...], height: float) -> None:
    """Name the rows of *axes*, of which *height* inches are to be had; not all where there are many."""
    short, _ = labels(names)
    shown = range(0, len(names), -(-len(names) // max(int(height / _LABEL), 1)))
    axes.set_yticks([place + 0.5 for place in shown], [short[place] for place in shown], fontsize=7.5)
    axes.tick_params(axis="y", length=0 if len(shown) == len(names) else 3)


def _joined(found: Matrix) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.float64], int]:
    """Values and defects of columns that fit on a screen, their edges in steps, and how many steps a column joins."""
    size = -(-len(found.steps) // _COLUMNS)
    starts = np.arange(0, len(found.steps), size)
    values, broken = found.values, found.broken
    if size > 1:  # the largest magnitude, with its sign: what is rare must not drown
        high, low = np.fmax.reduceat(values, starts, axis=1), np.fmin.reduceat(values, starts, axis=1)
        values = np.where(-low > high, low, high)
        broken = np.logical_or.reduceat(broken, starts, axis=1)
    return values, broken, edges_of(found.steps[starts]), size


def edges_of(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Where the columns of *steps* begin and end: half-way between them."""
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middles = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([[2 * steps[0] - middles[0]], middles, [2 * steps[-1] - middles[-1]]])


def _bars(
    axes: Axes, edges: npt.NDArray[np.float64], marked: npt.NDArray[np.bool_], mark: Mapping[str, Any], sliver: float = 0.0
) -> None:
    """A bar over each stretch of marked cells of a row, at least *sliver* of the picture wide, to be seen."""
    least = sliver * (edges[-1] - edges[0])
    for row in np.flatnonzero(marked.any(axis=1)):
        change = np.flatnonzero(np.diff(np.concatenate([[False], marked[row], [False]]).astype(np.int8)))
        spans = []
        for start, end in zip(edges[change[::2]], edges[change[1::2]], strict=True):
            spare = max(least - (end - start), 0.0) / 2
            spans.append((start - spare, end - start + 2 * spare))
        axes.broken_barh(spans, (float(row), 1.0), **mark)


def marks_of(found: Matrix, scale: Scale, look: Look) -> list[Patch]:
    """Say what the cells without a colour of the scale are, as far as there are any."""
    from matplotlib.patches import Patch

    marks = []
    if found.broken.any():
        marks.append(Patch(**look.defect_mark, label="NaN or infinite elements"))
    if scale.log and (found.values[~found.broken] <= 0).any():
        marks.append(Patch(**look.zero_mark, label="exactly 0"))
    if (np.isnan(found.values) & ~found.broken).any():
        marks.append(Patch(facecolor=look.void, edgecolor=look.quiet, linewidth=0.5, label="not recorded"))
    return marks
