"""Draw loss, metrics and the norms over all parameters: numbers that belong to no layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.run.run import Run
from sonde.suggest import unknown_name
from sonde.view.aggregation import BANDS, POINTS, band_of, checked, mean_of, point_of, starts_of
from sonde.view.plots.canvas import ZERO, Look, Theme, canvas, legend, mark_defects, mark_steps, subtitle
from sonde.view.plots.layer_names import plain
from sonde.view.scales import is_wide, logarithmic

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from sonde.view.plots.picture import Picture

__all__ = ["scalars"]

_SPLITS = re.compile(r"(?:^|[_/ ])(?:non_train|train|training|val|valid|validation|eval|evaluation|test)(?=$|[_/ ])[_/ ]?")
_ASIDE = ("overhead",)
_SMOOTH = 60  # points; more get a running mean over them
_INTERVALS = 40
_LOSS, _METRIC, _NORM = 0, 1, 2  # kinds of scalars, in the order of their panels


Style: TypeAlias = tuple[Sequence[str], Sequence[str]]
"""The aggregates of an interval that are drawn as lines, and as bands."""


def scalars(
    run: Run,
    names: Sequence[str] | None = None,
    *,
    loss: Style | None = None,
    metrics: Style | None = None,
    separate: bool = True,
    log: bool | None = None,
    rank: int | None = None,
    theme: Theme = "light",
) -> Picture:
    """Draw loss, metrics and global norms over the steps; names that differ only in ``train``, ``eval`` ... share a panel.

    A series of 60 values or more is drawn faintly, under its running mean, or under the aggregates of 40 intervals of equally many
    values that are asked for. A value that is NaN is a red tick on the axis, an infinite one a triangle; on a logarithmic axis an
    exact zero is a circle.

    Args:
        run: the run.
        names: the scalars; the default is all but ``overhead``.
        loss, metrics: the lines and bands of losses, and of other scalars but norms: of ``"mean"``, ``"median"``, ``"min"``,
            ``"max"``, ``"std"``, ``"Q1"``, ``"Q3"``, ``"IQR"``; and of ``"std"``, ``"min-max"``, ``"Q1-Q3"``.
        separate: draw losses and metrics on panels of their own, otherwise all on one.
        log: whether axes are logarithmic; None chooses by the values of each panel.
        rank: the process; by default, at each step the first that has the scalar.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        UnknownSiteError: there are no scalars, or none of a name; the message names the nearest.
        ArgumentError: *names* is empty, or there is no such aggregate.
        MissingExtraError: matplotlib is not installed.
    """
    there = [name for (name,) in run.sql("SELECT DISTINCT name FROM scalars").fetchall()] if "scalars" in run.families else []
    if not there:
        raise unknown_name("scalar", "loss", (), "the run: push_loss() and push_metric() record scalars, and watch() the norms. It")
    chosen = sorted(there, key=_order) if names is None else [names] if isinstance(names, str) else list(names)
    if names is None:
        chosen = [name for name in chosen if name not in _ASIDE] or chosen
    if not chosen:
        raise ArgumentError("names=[] asks for no scalar; None draws all")
    styles = {_LOSS: loss, _METRIC: metrics}
    for argument, style in (("loss", loss), ("metrics", metrics)):
        checked(f"{argument}[0]", style and style[0], POINTS)
        checked(f"{argument}[1]", style and style[1], BANDS)
    panels: dict[str, list[str]] = {}
    for name in chosen:
        is_norm = _kind(_stem(name)) == _NORM
        panels.setdefault(_stem(name) if separate or is_norm else "loss and metrics", []).append(name)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    with canvas(
        4.5 * columns + (0.0 if columns > 1 else 2.0), 1.9 * rows + 1.0, theme, "Loss, metrics and norms", subtitle(run)
    ) as (
        figure,
        look,
    ):
        marks: list[Artist] = []
        grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
        for spare in grid.flat[len(panels) :]:
            spare.remove()
        for axes, (stem, members) in zip(grid.flat, panels.items(), strict=False):
            marks += _panel(axes, run, members, rank, log, look, [styles.get(_kind(_stem(name))) for name in members])
            axes.set_title(plain(stem), loc="left", fontweight="bold")
        for axes in grid.flat[max(len(panels) - columns, 0) : len(panels)]:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("step")
        legend(figure, marks)
    return figure


def _stem(name: str) -> str:
    return _SPLITS.sub(lambda found: "" if found.start() == 0 or found.end() == len(name) else "_", name) or name


def _is_norm(name: str) -> bool:
    return name.endswith(("_norm", "_norm_raw"))


def _kind(stem: str) -> int:
    return _LOSS if "loss" in stem else _NORM if _is_norm(stem) else _METRIC


def _order(name: str) -> tuple[int, str, str]:
    stem = _stem(name)
    return _kind(stem), stem, name


def _panel(
    axes: Axes, run: Run, members: list[str], rank: int | None, log: bool | None, look: Look, styles: Sequence[Style | None]
) -> list[Artist]:
    """Draw scalars on one panel; return the legend of the marks."""
    series = {name: run.scalar(name, rank=rank) for name in members}
    together = np.concatenate([values[np.isfinite(values)] for _, values in series.values()])
    log = _is_logarithmic(members[0], together) if log is None else log
    marks: list[Artist] = []
    for place, (name, (steps, values)) in enumerate(series.items()):
        colour = look.lines[place % len(look.lines)]
        finite = np.isfinite(values)
        kept = np.where(finite & ((values != 0) | (not log)), values, np.nan)
        is_long = len(values) >= _SMOOTH
        few = len(values) < 2
        axes.plot(
            steps,
            kept,
            "o" if few else "-",
            color=colour,
            markersize=4,
            alpha=0.3 if is_long else 1.0,
            linewidth=0.9 if is_long else 1.4,
            label=None if is_long else plain(name),
        )
        style = styles[place]
        if is_long and style is not None:
            _draw_aggregates(axes, steps, kept, style, colour, name)
        elif is_long:
            axes.plot(steps, _running_mean(kept, max(len(kept) // 30, 3)), color=colour, linewidth=1.6, label=plain(name))
        marks += mark_defects(axes, steps, np.where(np.isnan(values), 3, np.where(np.isinf(values), 1, 0)).astype(np.int8), look)
        marks += mark_steps(axes, steps[values == 0], ZERO, look) if log else []
    if log:
        axes.set_yscale("log")
        logarithmic(axes.yaxis, *axes.get_ylim())
    axes.grid(axis="y")
    axes.margins(x=0.01)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(loc="best", fontsize=7.5)
    return marks


def _draw_aggregates(
    axes: Axes, steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64], style: Style, colour: str, name: str
) -> None:
    """Draw the lines and bands of intervals."""
    starts = starts_of(len(values), _INTERVALS)
    middles = mean_of(steps.astype(np.float64), starts)
    for band in style[1]:
        axes.fill_between(middles, *band_of(values, starts, band), color=colour, alpha=0.16, linewidth=0)
    for dashes, each in zip(cycle(("-", "--", ":", "-.")), style[0], strict=False):
        label = plain(name if len(style[0]) == 1 and each == "mean" else f"{name} {each}")
        axes.plot(middles, point_of(values, starts, each), dashes, color=colour, linewidth=1.6, label=label)


def _is_logarithmic(name: str, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    """Whether a scalar needs a logarithmic axis: losses and norms over a wide range; an accuracy never."""
    return is_wide(values) and ("loss" in name or _is_norm(name) or values.max() > 1000 * values.min())


def _running_mean(values: np.ndarray[tuple[int], np.dtype[np.float64]], width: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the means of the finite values in a window of *width* around each; NaN where the value itself is NaN."""
    there = np.isfinite(values)
    kernel = np.ones(width)
    sums = np.convolve(np.where(there, values, 0.0), kernel, mode="same")
    counts = np.convolve(there.astype(np.float64), kernel, mode="same")
    return np.where(there, sums / np.maximum(counts, 1.0), np.nan)
