"""Lines: one number of each layer over the steps, with the range that it moved in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.run.run import Run
from sonde.run.store.duckdb_sql import quoted
from sonde.view.plots.canvas import canvas, key, named
from sonde.view.plots.labels import logarithmic
from sonde.view.plots.layer_names import Include, labels, spaced
from sonde.view.plots.layer_series import Matrix, matrix
from sonde.view.plots.number_names import title_of, unit_of, words_of
from sonde.view.plots.scales import is_wide
from sonde.view.plots.theme import Look, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sonde.view.plots.figures import Picture

__all__ = ["Range", "lines", "mean_of"]

Range = Literal["std", "min-max"]
"""Of the values in an interval: the mean and a standard deviation to each side, or the least to the greatest."""

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

    The line is the mean over the logged steps of an interval, and the bands are how far the number moved within it. Steps in
    which NaN or infinite elements were met are left out, and marked by red ticks on the axis.

    Args:
        run: to read.
        number, port, family, include, exclude, where, theme: see :func:`~sonde.view.plots.heatmap`.
        ranges: the bands to draw.
        intervals: how many, of equally many logged steps each; or ``"epoch"``, one for each epoch.
        most: panels; of more layers, so many evenly through the depth are drawn.
        log: a logarithmic axis, or not; None goes by the values.

    Raises:
        UnknownSiteError: the number was not recorded; the message says which lens does.
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
    short, prefix = labels(drawn.names, 34)
    facts = (
        f"{len(drawn.names)} of {len(found.names)} layers" if len(drawn.names) < len(found.names) else "",
        f"mean over {every}" if len(starts) < len(found.steps) else "",
        f"names within {prefix.rstrip('.')}" if prefix else "",
    )
    width = 9.0 if columns > 1 else 6.0
    with canvas(width, rows * 1.35 + 1.3, theme, title_of(number, port), named(run, *facts)) as (figure, look):
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for panel in panels.flat[len(drawn.names) :]:
            panel.remove()
        for row, panel in enumerate(panels.flat[: len(drawn.names)]):
            _panel(panel, drawn, row, starts, ranges, look)
            panel.set_title(short[row], loc="left", fontsize=8, pad=3)
        if is_wide(np.where(drawn.broken, np.nan, drawn.values)) if log is None else log:
            panels[0, 0].set_yscale("log")
            logarithmic(panels[0, 0].yaxis, *panels[0, 0].get_ylim())
        elif words_of(number).kind == "share":
            panels[0, 0].set_ylim(0, 1)
        for panel in panels.flat[max(len(drawn.names) - columns, 0) : len(drawn.names)]:
            panel.tick_params(labelbottom=True)
        unit = unit_of(number, port)
        figure.supylabel(f"{words_of(number).short}, {unit}" if unit and unit != "no unit" else words_of(number).short, fontsize=9)
        figure.supxlabel("step", fontsize=9)
        _legend(figure, ranges if len(starts) < len(found.steps) else (), drawn, look)
    return figure


def mean_of(values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Means of the finite values in intervals of the last axis; NaN where there are none."""
    there = np.isfinite(values)
    counts = np.add.reduceat(there.astype(np.float64), starts, axis=-1)
    sums = np.add.reduceat(np.where(there, values, 0.0), starts, axis=-1)
    means: npt.NDArray[np.float64] = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means


def _panel(axes: Axes, drawn: Matrix, row: int, starts: npt.NDArray[np.intp], ranges: Sequence[Range], look: Look) -> None:
    values = np.where(drawn.broken[row] | ~np.isfinite(drawn.values[row]), np.nan, drawn.values[row])
    steps = mean_of(drawn.steps.astype(np.float64), starts)
    middle = mean_of(values, starts)
    colour = look.lines[0]
    if len(starts) < len(values):
        least = np.fmin.reduceat(values, starts)
        if "min-max" in ranges:
            axes.fill_between(steps, least, np.fmax.reduceat(values, starts), color=colour, alpha=_OPACITY["min-max"], linewidth=0)
        if "std" in ranges:
            wide = np.sqrt(mean_of((values - np.repeat(middle, np.diff([*starts, len(values)]))) ** 2, starts))
            low = np.where((least > 0) & (middle <= wide), least, middle - wide)  # what is positive stays so, on a log axis
            axes.fill_between(steps, low, middle + wide, color=colour, alpha=_OPACITY["std"], linewidth=0)
    axes.plot(steps, middle, color=colour, linewidth=1.2)
    defects = drawn.steps[drawn.broken[row]]
    if len(defects):
        axes.plot(defects, np.zeros(len(defects)), "|", transform=axes.get_xaxis_transform(), color=look.defect, clip_on=False)
    axes.grid(axis="y")
    axes.tick_params(labelsize=7.5)


def _intervals(run: Run, drawn: Matrix, intervals: int | Literal["epoch"]) -> tuple[npt.NDArray[np.intp], str]:
    """The position of the first step of each interval, and in words how long it is."""
    count = len(drawn.steps)
    if intervals == "epoch":
        rows = run.sql(f"SELECT step, min(epoch) FROM {quoted(drawn.family)} GROUP BY step").fetchall()
        epochs = dict(rows)
        of_step = np.array([epochs[step] for step in drawn.steps.tolist()])
        return np.flatnonzero(np.diff(of_step, prepend=-1)), "each epoch"
    if intervals < 1:
        raise ArgumentError(f"intervals={intervals!r}: give how many, or 'epoch'")
    size = -(-count // intervals)
    return np.arange(0, count, size), f"{size} logged steps"


def _legend(figure: Picture, ranges: Sequence[Range], drawn: Matrix, look: Look) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    words = {"std": "± one standard deviation", "min-max": "least to greatest"}
    handles: list[Line2D | Patch] = [
        Patch(color=look.lines[0], alpha=_OPACITY[each], linewidth=0, label=words[each]) for each in ranges
    ]
    if drawn.broken.any():
        handles.append(Line2D([], [], color=look.defect, marker="|", linestyle="", label="NaN or infinite elements"))
    key(figure, handles)
