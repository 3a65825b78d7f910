"""Draw activation and death: the share of active elements and of dead units of every layer, and the worst layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sonde.errors import UnknownSiteError
from sonde.run import Run
from sonde.view.aggregation import POINTS, checked
from sonde.view.plots.canvas import Look, Theme, canvas, legend, subtitle
from sonde.view.plots.heatmap import cells
from sonde.view.plots.layer_names import Include, label_layers, labels, prefix_fact
from sonde.view.plots.layer_series import Matrix, matrix
from sonde.view.scales import scale_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sonde.view.plots.picture import Picture


_ROW = 0.2
_INTERVALS = 40


def activation(
    run: Run,
    port: str = "output",
    *,
    worst: bool = True,
    active: str | None = None,
    dead: str | None = None,
    family: str | None = None,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    theme: Theme = "light",
) -> Picture:
    """Draw the share of active elements and the share of dead units of every layer over the steps; above, the worst layers.

    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> for step in range(2):
    ...     writer.append("activation", Layout(["1:output"]), {"call_activation": [0.5], "call_death": [0.25]}, step=step)
    >>> plots.activation(writer.run()).texts[0].get_text()
    'Active elements and dead units in outputs'

    A unit is dead in a call if it is zero for every element of the batch; :class:`sonde.stats.Activation` defines both shares.

    Args:
        run: the run.
        port: ``output`` of activation layers, or ``grad``, the gradients of parameters.
        worst: whether to draw the mean of the layers and the worst layer above the heat-maps.
        active, dead: draw an aggregate of each of 40 intervals of logged steps: ``"mean"``, ``"median"``, ``"min"``, ``"max"``,
            ``"std"``, ``"Q1"``, ``"Q3"`` or ``"IQR"``; None for each step.
        family, include, exclude, where, theme: see :func:`~sonde.view.plots.heatmap`.

    Raises:
        UnknownSiteError: the shares were not recorded; the message names the lens that records them.
        SelectionError: no layer is selected.
        MissingExtraError: matplotlib is not installed.
    """
    found = [
        matrix(run, number, port, family=family, include=include, exclude=exclude, where=where)
        for number in ("call_activation", "call_death")
    ]
    steps = len(found[0].steps)
    for place, (name, method) in enumerate({"active": active, "dead": dead}.items()):
        if checked(name, method, POINTS):
            found[place] = found[place].aggregated(_INTERVALS, str(method))
    names = found[0].names
    if found[1].names != names:
        raise UnknownSiteError(f"{found[0].family} and {found[1].family} have different layers: choose one with family=")
    height = min(max(_ROW * len(names), 0.9), 7.0)
    above = 1.15 if worst else 0.0
    of = "outputs" if port == "output" else "gradients of parameters"
    facts = (
        f"{len(names):,} {'layers' if port == 'output' else 'parameters'} × {steps:,} steps",
        f"active: {active} of each interval" if active else "",
        f"dead: {dead} of each interval" if dead else "",
        prefix_fact(names),
    )
    with canvas(9.0, height + 1.55 + above, theme, f"Active elements and dead units in {of}", subtitle(run, *facts)) as (
        figure,
        look,
    ):
        panels = figure.subplots(1 + worst, 2, sharex="col", squeeze=False, height_ratios=[above, height] if worst else [height])
        when = "for a whole batch" if port == "output" else "everywhere"
        titles = ("Active: share of elements that are not zero", f"Dead: share of units that are zero {when}")
        marks = []
        for column, (matrix_, title) in enumerate(zip(found, titles, strict=True)):
            if worst:
                _worst(panels[0, column], matrix_, look, lowest=column == 0)
            panels[0, column].set_title(title, loc="left", fontweight="bold")
            mesh, _, marked = cells(panels[-1, column], matrix_, scale_for(matrix_.values, "share"), look)
            marks += marked
            panels[-1, column].set_xlabel("step")
        label_layers(panels[-1, 0], names, height)
        label_layers(panels[-1, 1], names, height)
        panels[-1, 1].tick_params(labelleft=False)
        bar = figure.colorbar(mesh, ax=panels[-1, :], pad=0.01, fraction=0.03, aspect=22)
        bar.set_label("share")
        bar.outline.set_visible(False)
        legend(figure, marks)
    return figure


def _worst(axes: Axes, found: Matrix, look: Look, *, lowest: bool) -> None:
    """Draw the mean over layers, and the worst value of any layer; name the layer that is worst at the last step with a value."""
    values = found.finite
    there = np.isfinite(values)
    counts = there.sum(axis=0)
    filled = np.where(there, values, 0.0)
    mean = np.divide(filled.sum(axis=0), counts, out=np.full(len(counts), np.nan), where=counts > 0)
    order = np.where(there, values, np.inf if lowest else -np.inf)
    extreme = order.min(axis=0) if lowest else order.max(axis=0)
    last = int(np.flatnonzero(counts)[-1]) if counts.any() else 0
    worst = int(order[:, last].argmin() if lowest else order[:, last].argmax())
    axes.plot(found.steps, mean, color=look.quiet, linewidth=1.1, label="mean of the layers")
    axes.plot(
        found.steps,
        np.where(np.isfinite(extreme), extreme, np.nan),
        color=look.lines[1],
        linewidth=1.3,
        label=f"{'least' if lowest else 'most'} of any layer, at last {labels(found.names)[0][worst]}",
    )
    axes.set_ylim(-0.04, 1.04)  # a line at 0 or 1 stays visible
    axes.set_yticks([0, 0.5, 1])
    axes.grid(axis="y")
    axes.legend(loc="best", fontsize=7.5, borderaxespad=0.2)
