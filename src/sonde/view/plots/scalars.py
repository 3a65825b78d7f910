"""Draw loss, metrics and the norms over all parameters: numbers that belong to no layer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.run import Run
from sonde.suggest import unknown_name
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
from sonde.view.plots.layer_names import plain
from sonde.view.scales import is_wide, logarithmic

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from sonde.view.plots.picture import Picture


_SPLITS = re.compile(r"(?:^|[_/ ])(?:non_train|train|training|val|valid|validation|eval|evaluation|test)(?=$|[_/ ])[_/ ]?")
_ASIDE = ("overhead",)
_SMOOTH = 60  # points; more get a running mean over them
_INTERVALS = 40
_DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
_LOSS, _METRIC, _NORM = 0, 1, 2  # kinds of scalars, in the order of their panels
_KINDS: tuple[Literal["loss", "metric", "norm"], ...] = ("loss", "metric", "norm")


Style: TypeAlias = tuple[Sequence[str], Sequence[str]]
"""The aggregates of an interval that are drawn as lines, and as bands."""


def scalars(
    run: Run | Sequence[Run],
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

    >>> from sonde.view import plots
    >>> from sonde.run import memory_run
    >>> writer = memory_run()
    >>> for step in range(3):
    ...     writer.scalar("loss", 1.0 / (1 + step), step=step)
    >>> plots.scalars(writer.run()).texts[0].get_text()
    'Loss, metrics and norms'

    A series of 60 values or more is drawn faintly, under its running mean, or under the aggregates of 40 intervals of equally many
    values that are asked for. Several runs share each panel: a colour for each run, and dashes for each scalar. A value that is NaN
    is a red tick on the axis, an infinite one a triangle; on a logarithmic axis an exact zero is a circle.

    Args:
        run: the run, or several: a list, or what :func:`sonde.open_runs` returns.
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
    runs = runs_of(run)
    of_runs = [_names_in(each) for each in runs]
    there = list(dict.fromkeys(name for names_there in of_runs for name in names_there))
    if not there:
        raise unknown_name("scalar", "loss", (), "the run: push_loss() and push_metric() record scalars, and watch() the norms. It")
    chosen = sorted(there, key=_order) if names is None else [names] if isinstance(names, str) else list(names)
    if names is None:
        chosen = [name for name in chosen if name not in _ASIDE] or chosen
    if not chosen:
        raise ArgumentError("names=[] asks for no scalar; None draws all")
    if len(runs) > 1 and (unknown := [name for name in chosen if name not in there]):
        raise unknown_name("scalar", unknown[0], there, "these runs")
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
        4.5 * columns + (0.0 if columns > 1 else 2.0), 1.9 * rows + 1.0, theme, "Loss, metrics and norms", subtitle(runs)
    ) as (
        figure,
        look,
    ):
        marks: list[Artist] = []
        grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
        for spare in grid.flat[len(panels) :]:
            spare.remove()
        for axes, (stem, members) in zip(grid.flat, panels.items(), strict=False):
            curves = _curves(runs, of_runs, members, rank, look, {name: styles.get(_kind(_stem(name))) for name in members})
            marks += _panel(axes, curves, log, look)
            if len(runs) > 1 and len(members) > 1:
                axes.legend(handles=_dashed(members, look), loc="best", fontsize=7.5)
            axes.set_title(plain(stem), loc="left", fontweight="bold")
        for axes in grid.flat[max(len(panels) - columns, 0) : len(panels)]:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("step")
        legend(figure, [*run_handles(runs, look), *marks])
    return figure


def _names_in(run: Run) -> set[str]:
    """Return the names of the scalars of *run*."""
    if "scalars" not in run.families:
        return set()
    return {name for (name,) in run.sql("SELECT DISTINCT name FROM scalars").fetchall()}


def _stem(name: str) -> str:
    return _SPLITS.sub(lambda found: "" if found.start() == 0 or found.end() == len(name) else "_", name) or name


def kind_of(name: str) -> Literal["loss", "norm", "metric"]:
    """Return the kind of the scalar *name*, by its name."""
    return _KINDS[_kind(_stem(name))]


def phase_of(name: str) -> Literal["training", "evaluation"]:
    """Return the phase of the scalar *name*, by its name."""
    found = _SPLITS.search(name)
    return "training" if found is None or found[0].strip("_/ ") in ("train", "training") else "evaluation"


def _is_norm(name: str) -> bool:
    return name.endswith(("_norm", "_norm_raw"))


def _kind(stem: str) -> int:
    return _LOSS if "loss" in stem else _NORM if _is_norm(stem) else _METRIC


def _order(name: str) -> tuple[int, str, str]:
    stem = _stem(name)
    return _kind(stem), stem, name


@dataclass(frozen=True)
class _Curve:
    """One scalar of one run: its name for the legend (empty: in none), how it is drawn, and its values."""

    name: str
    label: str
    colour: Any
    dashes: str
    style: Style | None
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


def _curves(
    runs: Sequence[Run],
    of_runs: Sequence[Collection[str]],
    members: Sequence[str],
    rank: int | None,
    look: Look,
    styles: Mapping[str, Style | None],
) -> list[_Curve]:
    """Read the scalars of one panel: of one run a colour for each, of several a colour for each run."""
    found = []
    several = len(runs) > 1
    for run, names, of_run in zip(runs, of_runs, colours_of_runs(runs, look), strict=True):
        for place, name in enumerate(members):
            if several and name not in names:
                continue
            colour = of_run if several else look.lines[place % len(look.lines)]
            dashes = _DASHES[place % len(_DASHES)] if several else "-"
            label = "" if several else name
            found.append(_Curve(name, label, colour, dashes, styles[name], *run.scalar(name, rank=rank)))
    return found


def _dashed(members: Sequence[str], look: Look) -> list[Artist]:
    """Return the handles of a legend that names the scalars of a panel of several runs."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=look.quiet, linestyle=dashes, linewidth=1.4, label=plain(name))
        for dashes, name in zip(cycle(_DASHES), members, strict=False)
    ]


def _panel(axes: Axes, curves: Sequence[_Curve], log: bool | None, look: Look) -> list[Artist]:
    """Draw scalars on one panel; return the legend of the marks."""
    together = np.concatenate([curve.values[np.isfinite(curve.values)] for curve in curves])
    log = _is_logarithmic(curves[0].name, together) if log is None else log
    marks: list[Artist] = []
    for curve in curves:
        steps, values = curve.steps, curve.values
        finite = np.isfinite(values)
        kept = np.where(finite & ((values != 0) | (not log)), values, np.nan)
        is_long = len(values) >= _SMOOTH
        few = len(values) < 2
        label = plain(curve.label) if curve.label else None
        axes.plot(
            steps,
            kept,
            "o" if few else curve.dashes,
            color=curve.colour,
            markersize=4,
            alpha=0.3 if is_long else 1.0,
            linewidth=0.9 if is_long else 1.4,
            label=None if is_long else label,
        )
        if is_long and curve.style is not None:
            _draw_aggregates(axes, curve, kept)
        elif is_long:
            smooth = _running_mean(kept, max(len(kept) // 30, 3))
            axes.plot(steps, smooth, curve.dashes, color=curve.colour, linewidth=1.6, label=label)
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


def _draw_aggregates(axes: Axes, curve: _Curve, values: npt.NDArray[np.float64]) -> None:
    """Draw the lines and bands of intervals over *values*, those of *curve* that can be drawn."""
    assert curve.style is not None
    points, bands = curve.style
    starts = starts_of(len(values), _INTERVALS)
    middles = mean_of(curve.steps.astype(np.float64), starts)
    for band in bands:
        axes.fill_between(middles, *band_of(values, starts, band), color=curve.colour, alpha=0.16, linewidth=0)
    for dashes, each in zip(cycle(("-", "--", ":", "-.")), points, strict=False):
        text = plain(curve.label if len(points) == 1 and each == "mean" else f"{curve.label} {each}")
        label = text if curve.label else None
        axes.plot(middles, point_of(values, starts, each), dashes, color=curve.colour, linewidth=1.6, label=label)


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
