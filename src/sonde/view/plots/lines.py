"""Draw lines: one number of each layer over the steps, with the range of its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.run.run import Run
from sonde.view.plots.canvas import BROKEN, ZERO, Look, Theme, canvas, legend, mark_steps, subtitle
from sonde.view.plots.layer_names import Include, labels, prefix_fact, spaced
from sonde.view.plots.layer_series import Matrix, epochs_of, matrix
from sonde.view.plots.number_names import axis_of, title_of
from sonde.view.plots.scales import is_wide, logarithmic

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from sonde.view.plots.picture import Picture

__all__ = ["Range", "lines", "mean_of"]

Range = Literal["std", "min-max"]
"""A band of the values in an interval: the mean and a standard deviation to each side, or the least to the greatest."""

_COLUMNS = 4
_OPACITY: dict[Range, float] = {"std": 0.35, "min-max": 0.16}


def lines(
    run: Run,
    number: str = "rms",
    port: str = "output",
    *,
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

    The line is the mean over the logged steps of an interval, and the bands show how far the number varied within it. Steps with
    NaN or infinite elements are left out, and marked by red ticks on the axis; on a logarithmic axis exact zeros are left out,
    and marked by circles.

    Args:
        run: the run.
        number, port, family, include, exclude, where, theme: see :func:`~sonde.view.plots.heatmap`.
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
    unknown = [each for each in ranges if each not in _OPACITY]
    if unknown or isinstance(ranges, str):
        raise ArgumentError(f"ranges={ranges!r}: give a sequence of {' and '.join(map(repr, _OPACITY))}, or ()")
    if most < 2:
        raise ArgumentError(f"most={most}: at least two panels are drawn")
    found = matrix(run, number, port, family=family, include=include, exclude=exclude, where=where)
    drawn = found.rows(spaced(len(found.names), most))
    starts, every = _intervals(run, drawn, intervals)
    columns = (
        min((_COLUMNS, _COLUMNS - 1), key=lambda width: -len(drawn.names) % width)
        if len(drawn.names) > _COLUMNS
        else len(drawn.names)
    )
    rows = -(-len(drawn.names) // columns)
    short, _ = labels(drawn.names, 34)
    if log is None:
        log = is_wide(drawn.finite)
    shown = replace(drawn, values=np.where(drawn.zero, np.nan, drawn.values)) if log else drawn
    facts = (
        f"{len(drawn.names)} of {len(found.names)} layers" if len(drawn.names) < len(found.names) else "",
        f"mean over {every}" if len(starts) < len(found.steps) else "",
        prefix_fact(drawn.names),
    )
    width = 9.0 if columns > 1 else 6.0
    with canvas(width, rows * 1.35 + 1.3, theme, title_of(found.described, port), subtitle(run, *facts)) as (figure, look):
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for panel in panels.flat[len(drawn.names) :]:
            panel.remove()
        marks: list[Artist] = []
        for row, panel in enumerate(panels.flat[: len(drawn.names)]):
            _panel(panel, shown, row, starts, ranges, look)
            marks += mark_steps(panel, drawn.steps[drawn.broken[row]], BROKEN, look)
            marks += mark_steps(panel, drawn.steps[drawn.zero[row]], ZERO, look) if log else []
            panel.set_title(short[row], loc="left", fontsize=8, pad=3)
        if log:
            panels[0, 0].set_yscale("log")
            logarithmic(panels[0, 0].yaxis, *panels[0, 0].get_ylim())
        elif found.described.kind == "share":
            panels[0, 0].set_ylim(0, 1)
        for panel in panels.flat[max(len(drawn.names) - columns, 0) : len(drawn.names)]:
            panel.tick_params(labelbottom=True)
            panel.set_xlabel("step", fontsize=8)
        figure.supylabel(axis_of(found.described, port), fontsize=9)
        legend(figure, [*_bands(ranges if len(starts) < len(found.steps) else (), look), *marks])
    return figure


def mean_of(values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Return the means of the finite values in intervals of the last axis; NaN where there are none."""
    there = np.isfinite(values)
    counts = np.add.reduceat(there.astype(np.float64), starts, axis=-1)
    sums = np.add.reduceat(np.where(there, values, 0.0), starts, axis=-1)
    means: npt.NDArray[np.float64] = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means


def _panel(axes: Axes, drawn: Matrix, row: int, starts: npt.NDArray[np.intp], ranges: Sequence[Range], look: Look) -> None:
    """Draw the line and the bands of one layer."""
    values = drawn.finite[row]
    steps = mean_of(drawn.steps.astype(np.float64), starts)
    middle = mean_of(values, starts)
    colour = look.lines[0]
    if len(starts) < len(values):
        least = np.fmin.reduceat(values, starts)
        if "min-max" in ranges:
            axes.fill_between(steps, least, np.fmax.reduceat(values, starts), color=colour, alpha=_OPACITY["min-max"], linewidth=0)
        if "std" in ranges:
            wide = np.sqrt(mean_of((values - np.repeat(middle, np.diff([*starts, len(values)]))) ** 2, starts))
            low = np.where((least > 0) & (middle <= wide), least, middle - wide)  # a positive number stays positive, for a log axis
            axes.fill_between(steps, low, middle + wide, color=colour, alpha=_OPACITY["std"], linewidth=0)
    axes.plot(steps, middle, color=colour, linewidth=1.2)
    axes.grid(axis="y")
    axes.tick_params(labelsize=7.5)


def _intervals(run: Run, drawn: Matrix, intervals: int | Literal["epoch"]) -> tuple[npt.NDArray[np.intp], str]:
    """Return the position of the first step of each interval, and in words how long an interval is."""
    count = len(drawn.steps)
    if intervals == "epoch":
        return np.flatnonzero(np.diff(epochs_of(run, drawn), prepend=-1)), "each epoch"
    if intervals < 1:
        raise ArgumentError(f"intervals={intervals!r}: give how many, or 'epoch'")
    size = -(-count // intervals)
    return np.arange(0, count, size), f"{size} logged steps"


def _bands(ranges: Sequence[Range], look: Look) -> list[Artist]:
    from matplotlib.patches import Patch

    words = {"std": "± one standard deviation", "min-max": "least to greatest"}
    return [Patch(color=look.lines[0], alpha=_OPACITY[each], linewidth=0, label=words[each]) for each in ranges]
