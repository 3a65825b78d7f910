"""Draw shares: the part of each layer in the sum of a number over the layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sonde.errors import ArgumentError
from sonde.run import Run
from sonde.view.aggregation import POINTS, checked, mean_of, point_of, starts_of
from sonde.view.plots.canvas import Theme, by_depth, canvas, legend, mark_defects, subtitle
from sonde.view.plots.layer_names import Include, labels, name_at, prefix_fact, spread_apart
from sonde.view.plots.layer_series import matrix
from sonde.view.plots.number_names import title_of
from sonde.words import percent

if TYPE_CHECKING:
    from sonde.view.plots.picture import Picture


_NAMED = 26  # layers
_EDGED = 40  # layers; of more, the edges between them would hide them
_COLUMNS = 400  # of more steps, several are averaged
_INTERVALS = 40


def shares(
    run: Run,
    number: str = "norm",
    port: str = "output",
    *,
    aggregate: str | None = None,
    family: str | None = None,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    theme: Theme = "light",
) -> Picture:
    r"""Draw the share of each layer in the sum over the layers, stacked in the order of execution, the first at the top.

    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"norm": [3.0, 1.0]}, step=0)
    >>> plots.shares(writer.run()).texts[0].get_text()
    'Euclidean norm of outputs: share of each layer'

    The share of layer i is ``v_i / sum(v)`` at each step, for a number that is not negative. A layer that holds others of the
    chosen layers is left out, since its tensors are counted with theirs: choose ``include=r"blocks\.\d+$"`` to compare blocks. A
    value of NaN or infinite elements counts as 0; its step is marked on the axis.

    Args:
        run: the run.
        aggregate: compare aggregates over 40 intervals of logged steps: ``"mean"``, ``"median"``, ``"min"``,
            ``"max"``, ``"std"``, ``"Q1"``, ``"Q3"`` or ``"IQR"``; None compares the values of each step.
        number, port, family, include, exclude, where, theme: see :func:`~sonde.view.plots.heatmap`.

    Raises:
        UnknownSiteError: the number was not recorded; the message names the lens that records it.
        ArgumentError: it is negative somewhere, or several families have it.
        SelectionError: no layer is selected.
        MissingExtraError: matplotlib is not installed.
    """
    selected = matrix(run, number, port, family=family, include=include, exclude=exclude, where=where)
    found = selected.innermost()
    held = len(selected.names) - len(found.names)
    values = np.nan_to_num(found.finite, nan=0.0)
    if (values < 0).any():
        raise ArgumentError(
            f"{number!r} at port {port!r} is negative somewhere, so that layers have no shares in its sum: draw lines()"
        )
    checked("aggregate", aggregate, POINTS)
    starts = starts_of(len(found.steps), _COLUMNS if aggregate is None else _INTERVALS)
    size = int(starts[1]) if len(starts) > 1 else len(found.steps)
    if aggregate is not None:
        values = np.nan_to_num(point_of(found.finite, starts, aggregate), nan=0.0)
    total = values.sum(axis=0)
    parts = np.divide(values, total, out=np.full_like(values, np.nan), where=total > 0)
    parts = mean_of(parts, starts) if aggregate is None else parts
    steps = mean_of(found.steps.astype(np.float64), starts)
    short, _ = labels(found.names, 28)
    facts = (
        f"{len(found.names):,} layers, first on top",
        f"without {held} that hold others" if held else "",
        "share in the sum over all of them" + (f", {aggregate or 'mean'} over {size} logged steps" if size > 1 else ""),
        prefix_fact(found.names),
    )
    height = min(max(0.16 * min(len(found.names), _NAMED), 2.6), 6.5) + 1.3
    title = f"{title_of(found.described, port)}: share of each layer"
    with canvas(9.0, height, theme, title, subtitle(run, *facts)) as (figure, look):
        axes = figure.subplots()
        colours = by_depth(len(parts), look)
        edged = len(parts) <= _EDGED  # otherwise no seam between them
        axes.stackplot(
            steps, np.nan_to_num(parts), colors=colours, edgecolor=look.paper, linewidth=0.4 if edged else 0, antialiased=edged
        )
        axes.set_ylim(1, 0)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        axes.margins(x=0)
        axes.set_xlabel("step")
        axes.set_ylabel("share, from the first layer down")
        there = np.flatnonzero(np.isfinite(parts).all(axis=0))
        column = there[-1] if len(there) else -1
        last = np.nan_to_num(parts[:, column])
        middles = last.cumsum() - last / 2
        largest = sorted(np.argsort(last, kind="stable")[::-1][:_NAMED].tolist())
        places = spread_apart([float(middles[row]) for row in largest], 0.16 / (height - 1.3))
        for place, row in zip(places, largest, strict=True):
            end = float(steps[column]), float(middles[row])
            name_at(axes, f"{short[row]}  {percent(last[row])}", 1 - place, end, colours[row])
        legend(figure, mark_defects(axes, found.steps, found.defects, look))
    return figure
