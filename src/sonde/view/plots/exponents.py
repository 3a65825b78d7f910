"""Draw exponents: a histogram of the elements' powers of two over the steps, beside the range of each number format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.run import Run
from sonde.view.plots.canvas import Look, Theme, canvas, legend, mark_defects, subtitle
from sonde.view.plots.heatmap import edges_of
from sonde.view.plots.layer_names import Include, plain
from sonde.view.plots.layer_series import Powers, powers
from sonde.view.plots.number_names import of_port
from sonde.view.scales import SEQUENTIAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sonde.view.plots.picture import Picture


LOWEST = -149
"""The power of the first count in ``powers``, as in :class:`sonde.stats.ExponentHistogram`."""

_FEWEST = 1e-7  # share of elements; cells below are alike
SHOWN = (-27, 18)
"""The powers that every picture shows: the ends of float16 and of both kinds of float8."""


@dataclass(frozen=True)
class Format:
    """The range of a floating-point format, as powers of two.

    Attributes:
        name: of the format.
        subnormal, normal: the power of the least magnitude that is not zero, and of the least with full precision.
        greatest: the power of the greatest finite magnitude.
        vanishing: the power up to which a magnitude is rounded to zero: half of the least magnitude.
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

    >>> import sonde, torch
    >>> from sonde import lens
    >>> from sonde.view import plots
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with sonde.watch(net, every=1, lenses=lens.exponents("output"), to="memory", verbose=False) as inspector:
    ...     net(torch.ones(1, 2)).sum().backward()
    ...     inspector.step()
    >>> plots.exponents(inspector.run).texts[0].get_text()
    'Powers of two of outputs'

    Beside it stand the ranges of bfloat16, float16 and the two float8 formats: full where precision is full, light where it
    is not (subnormal). Below stand the share of elements that are zero, the share that each format would round to zero, and red
    ticks at steps with NaN elements, triangles at steps with infinite ones.

    Args:
        run: a run with ``powers``, the counts of :class:`sonde.stats.ExponentHistogram`.
        port, family, include, exclude, where, theme: see :func:`~sonde.view.plots.heatmap`.

    Raises:
        UnknownSiteError: powers were not recorded; the message names the lens that records them.
        ArgumentError: several families have them, or no element was finite.
        SelectionError: no layer is selected.
        MissingExtraError: matplotlib is not installed.
    """
    found = powers(run, port, family=family, include=include, exclude=exclude, where=where)
    steps, layers = found.steps, found.names
    if not found.counts.any():
        raise ArgumentError(f"no element was finite and not zero at port {port!r} of {', '.join(layers[:3])}: there are no powers")
    total = found.counts.sum(axis=1) + found.zeros
    shares = np.divide(found.counts, total[:, None], out=np.zeros_like(found.counts), where=total[:, None] > 0)
    filled = np.flatnonzero((shares > _FEWEST).any(axis=0)) + LOWEST
    low, high = min(int(filled[0]) - 2, SHOWN[0]), max(int(filled[-1]) + 2, SHOWN[1])
    facts = (plain(layers[0]) if len(layers) == 1 else f"{len(layers):,} layers together", f"{len(steps):,} steps")
    with canvas(9.0, 6.2, theme, f"Powers of two of {of_port(port)}", subtitle(run, *facts)) as (figure, look):
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
        _lost(below, found, shares, np.divide(found.zeros, total, out=np.zeros_like(total), where=total > 0), look)
        legend(figure, mark_defects(below, steps, found.defects, look))
        bar = figure.colorbar(mesh, ax=grid[0, :], pad=0.015, fraction=0.035, aspect=22)
        bar.set_label("share of elements")
        bar.outline.set_visible(False)
    return figure


def _rulers(main: Axes, rulers: Axes, look: Look, low: float, high: float) -> None:
    """Draw a bar for each format beside the histogram, and the format's limits across the histogram."""
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


def _lost(axes: Axes, found: Powers, shares: npt.NDArray[np.float64], zeros: npt.NDArray[np.float64], look: Look) -> None:
    """Draw the share of elements that are zero, and the share that each format would round to zero."""
    steps = found.steps
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
