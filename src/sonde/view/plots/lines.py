"""Draw lines: one number of each layer over the steps, with the range of its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.run import Run
from sonde.view.aggregation import BANDS, POINTS, band_of, checked, mean_of, point_of, starts_of
from sonde.view.plots.canvas import (
    ZERO,
    Look,
    Theme,
    canvas,
    colours_of_runs,
    legend,
    mark_defects,
    mark_steps,
    run_handles,
    runs_of,
    subtitle,
)
from sonde.view.plots.layer_names import Include, labels, prefix_fact, spaced
from sonde.view.plots.layer_series import Matrix, epochs_of, matrix
from sonde.view.plots.number_names import axis_of, title_of
from sonde.view.scales import is_wide, logarithmic

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from sonde.view.plots.picture import Picture


Range = Literal["std", "min-max", "Q1-Q3"]
"""A band of the values in an interval: a standard deviation to each side of the mean, least to greatest, between the quartiles."""

_COLUMNS = 4
_OPACITY: dict[str, float] = {"std": 0.35, "min-max": 0.16, "Q1-Q3": 0.28}
_STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")


def lines(
    run: Run | Sequence[Run],
    number: str = "rms",
    port: str = "output",
    *,
    aggregates: Sequence[str] = ("mean",),
    ranges: Sequence[Range] = ("std", "min-max"),
    intervals: int | Literal["epoch"] = 40,
    most: int = 16,
    log: bool | None = None,
    family: str | None = None,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    theme: Theme = "light",
) -> Picture:
    """Draw one number of each layer as a line over the steps: a panel for each layer, all on one scale.

    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> plots.lines(writer.run(), "rms").texts[0].get_text()
    'Root mean square of outputs'

    A line is the mean, or another aggregate, over the logged steps of an interval, and the bands show how far the number varied
    within it. Steps with NaN or infinite elements are left out, and marked on the axis: by red ticks and by triangles. On a
    logarithmic axis exact zeros are left out, and marked by circles. Several runs share each panel and have a colour each.

    Args:
        run: the run, or several: a list, or what :func:`sonde.open_runs` returns. Layers are joined by name.
        number, port, family, include, exclude, where, theme: see :func:`~sonde.view.plots.heatmap`.
        aggregates: the lines to draw: of ``"mean"``, ``"median"``, ``"min"``, ``"max"``, ``"std"``, ``"Q1"``, ``"Q3"``, ``"IQR"``.
        ranges: the bands to draw.
        intervals: how many, of equally many logged steps each; or ``"epoch"``, one for each epoch.
        most: the number of panels; of more layers, this many are drawn, evenly through the depth.
        log: whether the axis is logarithmic; None chooses by the values.

    Raises:
        UnknownSiteError: the number was not recorded; the message names the lens that records it.
        ArgumentError: several families have it, or an argument cannot be used.
        SelectionError: no layer is selected.
        MissingExtraError: matplotlib is not installed.
    """
    if isinstance(ranges, str):
        raise ArgumentError(f"ranges={ranges!r}: give a sequence of {', '.join(map(repr, BANDS))}, or ()")
    checked("ranges", ranges, BANDS)
    if not checked("aggregates", aggregates, POINTS) or isinstance(aggregates, str):
        raise ArgumentError(f"aggregates={aggregates!r}: give a sequence of one or more of {', '.join(map(repr, POINTS))}")
    if most < 2:
        raise ArgumentError(f"most={most}: at least two panels are drawn")
    runs = runs_of(run)
    read = [matrix(each, number, port, family=family, include=include, exclude=exclude, where=where) for each in runs]
    found, names = read[0], list(dict.fromkeys(name for each in read for name in each.names))
    shown_names = [names[place] for place in spaced(len(names), most)]
    drawn = [_of_names(each, shown_names) for each in read]
    intervals_of = [_intervals(one, each, intervals) for one, each in zip(runs, drawn, strict=True)]
    every = intervals_of[0][1]
    is_joined = any(len(starts) < len(each.steps) for (starts, _), each in zip(intervals_of, drawn, strict=True))
    count = len(shown_names)
    columns = min((_COLUMNS, _COLUMNS - 1), key=lambda width: -count % width) if count > _COLUMNS else count
    rows = -(-count // columns)
    short, _ = labels(shown_names, 34)
    if log is None:
        log = is_wide(np.concatenate([each.finite.ravel() for each in drawn]))
    facts = (
        f"{count} of {len(names)} layers" if count < len(names) else "",
        f"{' and '.join(aggregates)} over {every}" if is_joined else "",
        prefix_fact(shown_names),
    )
    width = 9.0 if columns > 1 else 6.0
    with canvas(width, rows * 1.35 + 1.3, theme, title_of(found.described, port), subtitle(runs, *facts)) as (figure, look):
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for panel in panels.flat[count:]:
            panel.remove()
        marks: list[Artist] = []
        for each, (starts, _), colour in zip(drawn, intervals_of, colours_of_runs(runs, look), strict=True):
            shown = replace(each, values=np.where(each.zero, np.nan, each.values)) if log else each
            at = {name: row for row, name in enumerate(each.names)}
            for name, panel in zip(shown_names, panels.flat, strict=False):
                if name in at:
                    _panel(panel, shown, at[name], starts, aggregates, ranges, colour, len(runs))
                    marks += mark_defects(panel, each.steps, each.defects[at[name]], look)
                    marks += mark_steps(panel, each.steps[each.zero[at[name]]], ZERO, look) if log else []
        for text, panel in zip(short, panels.flat, strict=False):
            panel.set_title(text, loc="left", fontsize=8, pad=3)
        if log:
            panels[0, 0].set_yscale("log")
            logarithmic(panels[0, 0].yaxis, *panels[0, 0].get_ylim())
        elif found.described.kind == "share":
            panels[0, 0].set_ylim(0, 1)
        for panel in panels.flat[max(count - columns, 0) : count]:
            panel.tick_params(labelbottom=True)
            panel.set_xlabel("step", fontsize=8)
        figure.supylabel(axis_of(found.described, port), fontsize=9)
        several = _lines(aggregates, look, len(runs)) if len(aggregates) > 1 else []
        bands = _bands(ranges if is_joined else (), look, len(runs))
        legend(figure, [*run_handles(runs, look), *several, *bands, *marks])
    return figure


def _of_names(found: Matrix, names: Sequence[str]) -> Matrix:
    """Return the rows of *found* that *names* has, in the order of *names*."""
    at = {name: row for row, name in enumerate(found.names)}
    return found.rows([at[name] for name in names if name in at])


def _panel(
    axes: Axes,
    drawn: Matrix,
    row: int,
    starts: npt.NDArray[np.intp],
    aggregates: Sequence[str],
    ranges: Sequence[Range],
    colour: Any,
    runs: int,
) -> None:
    """Draw the lines and the bands of one layer of one of so many *runs*; bands of several are paler."""
    values = drawn.finite[row]
    steps = mean_of(drawn.steps.astype(np.float64), starts)
    if len(starts) < len(values):
        for band in sorted(ranges, key=_OPACITY.__getitem__):  # the widest below
            opacity = _OPACITY[band] / runs**0.5
            axes.fill_between(steps, *band_of(values, starts, band), color=colour, alpha=opacity, linewidth=0)
    for style, each in zip(cycle(_STYLES), aggregates, strict=False):
        axes.plot(steps, point_of(values, starts, each), style, color=colour, linewidth=1.2)
    axes.grid(axis="y")
    axes.tick_params(labelsize=7.5)


def _intervals(run: Run, drawn: Matrix, intervals: int | Literal["epoch"]) -> tuple[npt.NDArray[np.intp], str]:
    """Return the position of the first step of each interval, and in words how long an interval is."""
    count = len(drawn.steps)
    if intervals == "epoch":
        return np.flatnonzero(np.diff(epochs_of(run, drawn), prepend=-1)), "each epoch"
    if intervals < 1:
        raise ArgumentError(f"intervals={intervals!r}: give how many, or 'epoch'")
    return starts_of(count, intervals), f"{-(-count // intervals)} logged steps"


def _lines(aggregates: Sequence[str], look: Look, runs: int) -> list[Artist]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=look.lines[0] if runs == 1 else look.quiet, linestyle=style, label=each)
        for style, each in zip(cycle(_STYLES), aggregates, strict=False)
    ]


def _bands(ranges: Sequence[Range], look: Look, runs: int) -> list[Artist]:
    from matplotlib.patches import Patch

    colour = look.lines[0] if runs == 1 else look.quiet
    return [Patch(color=colour, alpha=_OPACITY[each] / runs**0.5, linewidth=0, label=BANDS[each]) for each in ranges]
