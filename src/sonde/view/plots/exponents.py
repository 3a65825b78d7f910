"""Exponents: how large the elements are, as a histogram of powers of two over the steps, beside what each format can hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.run.run import Run
from sonde.run.store.duckdb_sql import quoted
from sonde.site import Site
from sonde.view.plots.canvas import canvas, named
from sonde.view.plots.heatmap import edges_of
from sonde.view.plots.layer_names import Include, chosen
from sonde.view.plots.layer_series import Known
from sonde.view.plots.number_names import of_port
from sonde.view.plots.theme import SEQUENTIAL, Look, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sonde.view.plots.figures import Picture

__all__ = ["FORMATS", "LOWEST", "Format", "exponents"]

LOWEST = -149
"""The power of the first of the counts in ``powers``: as in :class:`sonde.stats.ExponentHistogram`."""

_FEWEST = 1e-7  # share of elements below which cells are alike
_SHOWN = (-27, 18)  # powers that are always in the picture: the ends of float16 and both kinds of float8


@dataclass(frozen=True)
class Format:
    """What a floating-point format can hold, as powers of two.

    Attributes:
        name: of the format.
        subnormal, normal: of the least magnitude that is not zero, and of the least with full precision.
        greatest: of the greatest finite magnitude.
        vanishing: the power up to which a magnitude is rounded to zero: half of the least.
    """

    name: str
    subnormal: int
    normal: int
    greatest: float

    @property
    def vanishing(self) -> int:
        return self.subnormal - 1


FORMATS = (
    Format("bf16", -133, -126, 128 + math.log2(1 - 2**-8)),
    Format("fp16", -24, -14, math.log2(65504)),
    Format("e5m2", -16, -14, math.log2(57344)),
    Format("e4m3", -9, -6, math.log2(448)),
)
"""IEEE 754 binary16; bfloat16; the 8-bit formats of P. Micikevicius et al., "FP8 formats for deep learning"."""


def exponents(
    run: Run,
    port: str = "output",
    *,
    family: str | None = None,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    theme: Theme = "light",
) -> Picture:
    """Draw how many elements have which power of two, at every step, of the chosen layers together.

    Beside it stand the ranges of bfloat16, float16 and the two float8 formats: full where precision is full, light where it
    is not (subnormal). Below, the share of elements that is zero, and what each format would round to zero.

    Args:
        run: to read; it has ``powers``, the counts of :class:`sonde.stats.ExponentHistogram`.
        port, family, include, exclude, where, theme: see :func:`~sonde.view.plots.heatmap`.

    Raises:
        UnknownSiteError: powers were not recorded; the message says which lens does.
        ArgumentError: several families have them, or no element was finite.
        SelectionError: no layer is selected.
        MissingExtraError: matplotlib is not installed.
    """
    family = Known.of(run).family_with("powers", port, family)
    sites, layers = _chosen(run, family, port, include, exclude)
    steps, counts, zeros = _counts(run, family, sites, where)
    total = counts.sum(axis=1) + zeros
    if not counts.any():
        raise ArgumentError(f"no element was finite and not zero at port {port!r} of {', '.join(layers[:3])}: there are no powers")
    shares = np.divide(counts, total[:, None], out=np.zeros_like(counts), where=total[:, None] > 0)
    filled = np.flatnonzero((shares > _FEWEST).any(axis=0)) + LOWEST
    low, high = min(int(filled[0]) - 2, _SHOWN[0]), max(int(filled[-1]) + 2, _SHOWN[1])
    facts = (layers[0] if len(layers) == 1 else f"{len(layers):,} layers together", f"{len(steps):,} steps")
    with canvas(9.0, 6.2, theme, f"Powers of two of {of_port(port)}", named(run, *facts)) as (figure, look):
        from matplotlib.colors import LogNorm

        grid = figure.subplots(2, 2, width_ratios=[1, 0.24], height_ratios=[1, 0.24])
        main, rulers, below = grid[0, 0], grid[0, 1], grid[1, 0]
        below.sharex(main)
        main.tick_params(labelbottom=False)
        grid[1, 1].remove()
        rows = np.arange(low - 1, high + 1)
        cells = np.ma.masked_less_equal(shares[:, low - LOWEST : high - LOWEST + 1].T, 0.0)
        norm = LogNorm(max(_FEWEST, float(cells.min())), 1.0 if cells.max() > 0.5 else float(cells.max()))
        main.set_facecolor(look.void)
        mesh = main.pcolormesh(edges_of(steps), rows, cells, norm=norm, cmap=SEQUENTIAL, rasterized=True)
        main.set_ylim(low - 1, high)
        ticks = range(-8 * (-low // 8), high, 8)
        main.set_yticks(list(ticks), [f"$2^{{{power}}}$" for power in ticks])
        main.set_ylabel("magnitude, unit of the tensor")
        _rulers(main, rulers, look, low - 1, high)
        _lost(below, steps, shares, np.divide(zeros, total, out=np.zeros_like(zeros), where=total > 0), look)
        bar = figure.colorbar(mesh, ax=grid[0, :], pad=0.015, fraction=0.035, aspect=22)
        bar.set_label("share of elements")
        bar.outline.set_visible(False)
    return figure


def _chosen(run: Run, family: str, port: str, include: Include, exclude: Include) -> tuple[list[str], list[str]]:
    """The sites to draw, and their layers."""
    heat = run.heatmap("count", port, family=family)
    names = [Site.parse(site).name for site in heat.sites]
    kept = chosen(names, include, exclude)
    return [heat.sites[place] for place in kept], [names[place] for place in kept]


def _counts(
    run: Run, family: str, sites: list[str], where: str | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Steps, counts of shape (steps, powers), and counts of zeros, of all *sites* together."""
    listed = ", ".join("'" + site.replace("'", "''") + "'" for site in sites)
    rows = f"FROM {quoted(family)} WHERE site IN ({listed})" + (f" AND ({where})" if where else "")
    zeros = run.sql(f"SELECT step, sum(zeros)::DOUBLE AS zeros {rows} GROUP BY step ORDER BY step").fetchnumpy()
    steps = np.asarray(zeros["step"], np.int64)
    each = f"SELECT step, generate_subscripts(powers, 1) AS place, unnest(powers) AS amount {rows}"
    found = run.sql(
        f"SELECT step, place, sum(amount)::DOUBLE AS amount FROM ({each}) WHERE amount > 0 GROUP BY step, place"
    ).fetchnumpy()
    counts = np.zeros((len(steps), 128 - LOWEST + 1))
    counts[np.searchsorted(steps, found["step"]), np.asarray(found["place"], np.intp) - 1] = found["amount"]
    return steps, counts, np.asarray(zeros["zeros"], np.float64)


def _rulers(main: Axes, rulers: Axes, look: Look, low: float, high: float) -> None:
    """A bar for each format beside the histogram, and its limits across it."""
    for place, form in enumerate(FORMATS):
        colour = look.lines[place]
        bottom, top = max(form.normal, low), min(form.greatest, high)
        rulers.bar(place, top - bottom, 0.55, bottom, color=colour, linewidth=0)
        if form.subnormal > low:
            rulers.bar(place, form.normal - form.subnormal, 0.55, form.subnormal, color=colour, alpha=0.35, linewidth=0)
        for limit in (form.subnormal, form.greatest):
            if low < limit < high:
                main.axhline(limit, color=colour, linewidth=0.9, linestyle=(0, (4, 3)))
    rulers.set_xlim(-0.6, len(FORMATS) - 0.4)
    rulers.set_ylim(low, high)
    rulers.set_xticks(range(len(FORMATS)), [form.name for form in FORMATS], fontsize=7)
    rulers.set_yticks([])
    rulers.spines["left"].set_visible(False)
    rulers.set_title("full: normal\nlight: subnormal", fontsize=7.5, loc="left", pad=3)


def _lost(
    axes: Axes, steps: npt.NDArray[np.int64], shares: npt.NDArray[np.float64], zeros: npt.NDArray[np.float64], look: Look
) -> None:
    """What is zero, and what each format would round to it."""
    axes.plot(steps, zeros, color=look.quiet, label="zero already")
    for place, form in enumerate(FORMATS):
        lost = shares[:, : max(form.vanishing - LOWEST + 1, 0)].sum(axis=1)
        if lost.any():
            axes.plot(steps, zeros + lost, color=look.lines[place], linewidth=1.2, label=f"{form.name} rounds to zero")
    axes.set_ylim(-0.04, 1.04)
    axes.set_yticks([0, 0.5, 1])
    axes.grid(axis="y")
    axes.set_xlabel("step")
    axes.set_ylabel("share")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.08), fontsize=7.5, borderaxespad=0.0, handlelength=1.2).set_in_layout(
        False
    )
