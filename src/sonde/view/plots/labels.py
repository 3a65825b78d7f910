"""Names and numbers beside what is drawn: lines named at their ends, logarithmic axes labelled, colours from first to last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sonde.view.plots.theme import SEQUENTIAL, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

__all__ = ["by_depth", "logarithmic", "name_at", "spread_apart"]


def by_depth(count: int, look: Look) -> list[Any]:
    """*count* colours from the first layer to the last, all to be seen on the paper."""
    import matplotlib as mpl

    colours = mpl.colormaps[SEQUENTIAL]
    return [colours(look.first + 0.75 * place / max(count - 1, 1)) for place in range(count)]


def spread_apart(places: Sequence[float], gap: float) -> list[float]:
    """*places* between 0 and 1, ascending, moved as little as it takes for each to be *gap* from the next: for labels beside lines.

    Where they do not all fit between 0 and 1, they are as far apart as they can be.
    """
    gap = min(gap, 1 / max(len(places) - 1, 1))
    groups: list[tuple[float, int]] = []  # of labels that touch: where the first would best be, summed, and how many they are
    for index, place in enumerate(places):
        groups.append((place - index * gap, 1))
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, count = groups.pop()
            groups[-1] = groups[-1][0] + total, groups[-1][1] + count
    firsts = [total / count for total, count in groups for _ in range(count)]
    room = max(1 - gap * (len(places) - 1), 0.0)
    return [min(max(first, 0.0), room) + index * gap for index, first in enumerate(firsts)]


def name_at(axes: Axes, text: str, place: float, value: float, colour: Any) -> None:
    """Write *text* to the right of *axes*, at *place* of its height, with a stroke to the *value* at its right edge."""
    axes.annotate(
        text,
        (1, value),
        (1.03, place),
        xycoords=("axes fraction", "data"),
        textcoords="axes fraction",
        fontsize=7.5,
        va="center",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.9, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
    )


def logarithmic(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic *axis* from *low* to *high*: by powers of ten, or within two decades by plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high > 4 * low else range(1, 10)))
        axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
