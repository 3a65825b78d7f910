"""Draw gradient flow: how large the gradients are from the first layer to the last, and how much they vary over the steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.run import Run
from sonde.site import PARAMETER_PORTS, Site
from sonde.suggest import nearest_steps
from sonde.view.plots.canvas import DEFECTS, INFINITE, ZERO, Look, Theme, canvas, legend, subtitle
from sonde.view.plots.layer_names import Include, label_layers, plain, prefix_fact
from sonde.view.plots.layer_series import Matrix, matrix
from sonde.view.plots.number_names import of_port, unit_of
from sonde.view.scales import logarithmic

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from sonde.view.plots.picture import Picture


_ROW = 0.21
_MARKERS = ("o", "D", "s", "^")
_FIRST = ("weight", "bias")


def gradient_flow(
    run: Run,
    port: str = "grad",
    number: str = "rms",
    *,
    step: int | None = None,
    family: str | None = None,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    theme: Theme = "light",
) -> Picture:
    """Draw the size of the gradients through the depth: a row for each layer, the first at the top.

    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0.weight:grad", "1.weight:grad"]), {"rms": [0.5, 0.25]}, step=0)
    >>> plots.gradient_flow(writer.run()).texts[0].get_text()
    'Gradient flow through depth'

    A dot is the chosen step, the thick bar spans the middle half of all logged steps, the thin one all of them. Parameters of one
    layer share its row. Gradients that are exactly zero, NaN or infinite at the chosen step have no place on the logarithmic axis;
    they are marked at its left end and named in the legend.

    Args:
        run: the run.
        port: ``grad``, of parameters, or ``grad_output``, of the layers' outputs.
        number: ``rms`` compares layers of different sizes; ``norm`` does not divide by the size.
        step: the step of the dots; the default is the last.
        family, include, exclude, where, theme: see :func:`~sonde.view.plots.heatmap`.

    Raises:
        UnknownSiteError: gradients were not recorded; the message names the lens that records them.
        ArgumentError: the step was not logged, or another argument cannot be used.
        SelectionError: no layer is selected.
        MissingExtraError: matplotlib is not installed.
    """
    if not port.startswith("grad"):
        raise ArgumentError(
            f"port={port!r}: gradients are at the ports 'grad' and 'grad_output'; for others draw lines() or heatmap()"
        )
    found = matrix(run, number, port, family=family, include=include, exclude=exclude, where=where)
    column = _column(found, step)
    rows = _rows(found.sites)
    layers = tuple(dict.fromkeys(row.layer for row in rows))
    kinds = sorted({row.kind for row in rows}, key=lambda kind: (_FIRST.index(kind) if kind in _FIRST else len(_FIRST), kind))
    height = min(max(_ROW * len(layers), 1.2), 8.5)
    facts = (
        f"{len(layers):,} layers, first on top",
        f"dots: step {found.steps[column]:,}",
        f"bars: {len(found.steps):,} steps from {found.steps[0]:,} to {found.steps[-1]:,}",
        prefix_fact(layers),
    )
    with canvas(8.0, height + 1.2, theme, "Gradient flow through depth", subtitle(run, *facts)) as (figure, look):
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_ylim(len(layers), 0)
        label_layers(axes, layers, height)
        place = {layer: number for number, layer in enumerate(layers)}
        handles: list[Artist] = []
        for number_of_kind, kind in enumerate(kinds):
            chosen = [position for position, row in enumerate(rows) if row.kind == kind]
            heights = np.array([place[rows[position].layer] + rows[position].offset for position in chosen])
            style = _Style(look.lines[number_of_kind % len(look.lines)], _MARKERS[number_of_kind % len(_MARKERS)], look)
            _series(axes, found.rows(chosen), column, heights, style, min(4.0 * height / (_ROW * len(layers)), 4.0))
            handles += axes.plot([], [], style.marker, color=style.colour, markersize=4.5, label=plain(kind))
        logarithmic(axes.xaxis, *axes.get_xlim())
        axes.set_xlabel(f"{found.described.short} of {of_port(port)}, {unit_of(found.described, port)}")
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        from matplotlib.lines import Line2D

        marks: list[Artist] = []
        if found.zero[:, column].any():
            marks.append(Line2D([], [], marker="$0$", markeredgewidth=0.2, linestyle="", color=look.ink, label=ZERO))
        for code, name in enumerate(DEFECTS, 1):
            if (found.defects[:, column] == code).any():
                text, colour = f"${_short(name)}$", look.colour_of(name)
                marks.append(
                    Line2D([], [], marker=text, markersize=13, markeredgewidth=0.2, linestyle="", color=colour, label=name)
                )
        legend(figure, [*(handles if len(handles) > 1 else []), *marks])
    return figure


@dataclass(frozen=True)
class _Row:
    """The place of one bar: the row of a layer, and beside the layer's other parameters."""

    layer: str
    kind: str
    offset: float


@dataclass(frozen=True)
class _Style:
    """The look of the bars and dots of one kind of parameter."""

    colour: str
    marker: str
    look: Look


def _column(found: Matrix, step: int | None) -> int:
    if step is None:
        return len(found.steps) - 1
    logged = found.steps.tolist()
    if step not in logged:
        raise ArgumentError(f"step={step} was not logged; the nearest are {nearest_steps(step, logged)}")
    return int(logged.index(step))


def _rows(sites: tuple[Site, ...]) -> list[_Row]:
    if any(site.port not in PARAMETER_PORTS for site in sites):
        return [_Row(site.name, "", 0.5) for site in sites]
    owners = [site.owner.name for site in sites]
    seen: Counter[str] = Counter()
    rows = []
    for owner, site in zip(owners, sites, strict=True):
        own = site.path.rpartition(".")[2]
        kind = next((kind for kind in _FIRST if kind in own), own)
        seen[owner] += 1
        rows.append(_Row(owner, kind, seen[owner] / (owners.count(owner) + 1)))
    return rows


def _series(axes: Axes, found: Matrix, column: int, heights: npt.NDArray[np.float64], style: _Style, thickness: float) -> None:
    """Draw bars and dots of one kind of parameter."""
    kept = np.where(found.finite > 0, found.values, np.nan)
    colour, look = style.colour, style.look
    for row, height in zip(kept, heights, strict=True):
        there = row[np.isfinite(row)]
        if len(there):
            low, lower, upper, high = np.percentile(there, (0, 25, 75, 100))
            axes.plot([low, high], [height, height], color=colour, alpha=0.3, linewidth=1.0, solid_capstyle="butt")
            axes.plot([lower, upper], [height, height], color=colour, alpha=0.45, linewidth=thickness, solid_capstyle="butt")
    axes.plot(kept[:, column], heights, style.marker, color=colour, markersize=4.5, markeredgecolor=look.paper, markeredgewidth=0.5)
    for row, height in enumerate(heights):
        if found.broken[row, column]:
            name = DEFECTS[found.defects[row, column] - 1]
            _aside(axes, height, _short(name), look.colour_of(name))
        elif found.zero[row, column]:
            _aside(axes, height, "0", colour)


def _short(defect: str) -> str:
    return "inf" if defect == INFINITE else "NaN"


def _aside(axes: Axes, height: float, text: str, colour: str) -> None:
    """Write at the left end what has no place on the axis."""
    axes.text(0.004, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=6.5, color=colour, fontweight="bold")
