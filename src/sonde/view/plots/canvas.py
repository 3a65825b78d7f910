"""The empty figure that every picture is drawn on: theme, headline, legend, and the marks of NaN and exact zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError, MissingExtraError
from sonde.run import Run, names_apart
from sonde.view.plots.layer_names import plain
from sonde.view.scales import SEQUENTIAL

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from sonde.view.plots.picture import Picture


Theme = Literal["light", "dark"]

NAN, INFINITE, BROKEN = "NaN elements", "infinite elements", "NaN or infinite elements"
"""The names of the marks of elements that a number leaves out; the third where the run counts both kinds as one."""
ZERO = "exactly 0"
"""The name of the mark of zero."""
DEFECTS = (INFINITE, BROKEN, NAN)
"""The names by the codes 1, 2 and 3 in ``Matrix.defects``; a tensor with several has the highest."""

_HEADER = 0.62  # inches above the axes, for two lines
_DPI = 150


@dataclass(frozen=True)
class Look:
    """The colours of a theme.

    Attributes:
        paper, ink, quiet, faint: background, text, secondary text, grid lines.
        void: cells that were not recorded.
        defect: NaN.
        infinite: infinity.
        first: where on the sequential scale the first of many lines is.
        lines: colours that readers with any colour vision can distinguish (M. Okabe and K. Ito, "Color universal design").
    """

    paper: str
    ink: str
    quiet: str
    faint: str
    void: str
    defect: str
    infinite: str
    first: float
    lines: tuple[str, ...]

    def colour_of(self, defect: str) -> str:
        """The colour of a mark in ``DEFECTS``."""
        return self.infinite if defect == INFINITE else self.defect

    def defect_mark(self, defect: str) -> dict[str, Any]:
        """The look of a patch for a mark in ``DEFECTS``."""
        hatch = {NAN: "xxxxx", INFINITE: "+++++", BROKEN: "/////"}[defect]
        return {"facecolor": self.colour_of(defect), "edgecolor": self.paper, "hatch": hatch, "linewidth": 0}

    @property
    def zero_mark(self) -> dict[str, Any]:
        """The look of a patch for exactly zero, on a scale that has no zero."""
        return {"facecolor": self.paper, "edgecolor": self.quiet, "hatch": "////", "linewidth": 0}

    def clipped_mark(self, colour: Any) -> dict[str, Any]:
        """The look of a patch for values beyond an end of the scale, which has *colour*."""
        light = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
        return {"facecolor": colour, "edgecolor": "#000000" if light > 0.5 else "#ffffff", "hatch": "....", "linewidth": 0}


_LOOKS: dict[Theme, Look] = {
    "light": Look(
        paper="#ffffff",
        ink="#1f2328",
        quiet="#636c76",
        faint="#d8dde3",
        void="#eceff2",
        defect="#e0301e",
        infinite="#d06f00",
        first=0.1,
        lines=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    ),
    "dark": Look(
        paper="#14171b",
        ink="#dfe4ea",
        quiet="#98a2ad",
        faint="#363c44",
        void="#262b31",
        defect="#ff5a47",
        infinite="#ffa62b",
        first=0.25,
        lines=("#56b4e9", "#e69f00", "#2dbd94", "#dd94bd", "#f0e442", "#e8731c"),
    ),
}


def look_of(theme: Theme) -> Look:
    """Return the colours of *theme*.

    Raises:
        ArgumentError: there is no such theme.
    """
    if theme not in _LOOKS:
        raise ArgumentError(f"theme={theme!r}: it is one of {', '.join(map(repr, _LOOKS))}")
    return _LOOKS[theme]


def by_depth(count: int, look: Look) -> list[Any]:
    """Return *count* colours from the first layer to the last, all visible on the paper."""
    import matplotlib as mpl

    colours = mpl.colormaps[SEQUENTIAL]
    return [colours(look.first + 0.75 * place / max(count - 1, 1)) for place in range(count)]


@contextmanager
def canvas(
    width: float, height: float, theme: Theme, title: str, subtitle: str, *, header: float = _HEADER
) -> Iterator[tuple[Picture, Look]]:
    """Yield an empty figure with a headline, in inches; draw within the block.

    Raises:
        ArgumentError: there is no such theme.
        MissingExtraError: matplotlib is not installed.
    """
    look = look_of(theme)
    need_matplotlib()
    import matplotlib as mpl
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from sonde.view.plots.picture import Picture

    settings = _settings(look)
    with mpl.rc_context(settings):
        layout = ConstrainedLayoutEngine(rect=(0.0, 0.0, 1.0, 1.0 - header / height), w_pad=0.08, h_pad=0.06)
        figure = Picture(figsize=(width, height), dpi=_DPI, layout=layout)
        figure.settings = settings
        left = 0.12 / width
        figure.text(left, 1 - 0.11 / height, plain(title), fontsize=12.5, fontweight="bold", va="top", color=look.ink)
        figure.text(left, 1 - 0.37 / height, subtitle, fontsize=8.5, va="top", color=look.quiet)
        yield figure, look


def legend(figure: Picture, handles: Sequence[Artist]) -> None:
    """Name below the axes what *handles* stand for; equal names once."""
    named = {str(handle.get_label()): handle for handle in handles}
    if named:
        needed = sum(0.5 + 0.062 * len(name) for name in named)  # inches
        rows = -(-needed // figure.get_figwidth())
        figure.legend(
            handles=list(named.values()),
            loc="outside lower right",
            ncols=-(-len(named) // int(rows)),
            borderaxespad=0.1,
            handlelength=1.4,
            columnspacing=1.4,
        )


def mark_steps(axes: Axes, steps: npt.NDArray[np.int64], what: str, look: Look) -> list[Artist]:
    """Mark *steps* on the lower edge of *axes*: a circle for ``ZERO``, else a mark in ``DEFECTS``. Return the legend's handle."""
    from matplotlib.lines import Line2D

    if not len(steps):
        return []
    marker = {"marker": "o", "color": look.quiet, "markersize": 3.5}
    if what != ZERO:
        marker = {"marker": "^" if what == INFINITE else "|", "color": look.colour_of(what), "markersize": 5.0}
    style: dict[str, Any] = {"linestyle": "", "markerfacecolor": "none", **marker}
    axes.plot(steps, np.zeros(len(steps)), transform=axes.get_xaxis_transform(), clip_on=False, zorder=5, **style)
    return [Line2D([], [], label=what, **style)]


def mark_defects(axes: Axes, steps: npt.NDArray[np.int64], defects: npt.NDArray[np.int8], look: Look) -> list[Artist]:
    """Mark the *steps* with NaN or infinite elements, in any row of *defects*, on the lower edge of *axes*."""
    rows = np.atleast_2d(defects)
    return [
        handle for code, name in enumerate(DEFECTS, 1) for handle in mark_steps(axes, steps[(rows == code).any(axis=0)], name, look)
    ]


def subtitle(run: Run | Sequence[Run], *facts: str) -> str:
    """Return the headline's second line: the name of the run, or the number of runs, and *facts*; empty ones are left out."""
    runs = [run] if isinstance(run, Run) else run
    name = f"run {plain(names_apart(runs)[0])}" if len(runs) == 1 else f"{len(runs)} runs"
    return "  ·  ".join([name, *(fact for fact in facts if fact)])


def runs_of(given: Any) -> list[Run]:
    """Return one run, or several in a sequence, as a list.

    Raises:
        ArgumentError: there is none, or something else.
    """
    runs = [given] if isinstance(given, Run) else list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not runs or not all(isinstance(run, Run) for run in runs):
        raise ArgumentError(f"{given!r:.80} cannot be drawn: give a run, as sonde.open_run(path) returns it, or a list of runs")
    return runs


def colours_of_runs(runs: Sequence[Run], look: Look) -> list[Any]:
    """Return a colour for each of several runs; of more than there are different colours, shades from the first to the last."""
    return list(look.lines[: len(runs)]) if len(runs) <= len(look.lines) else by_depth(len(runs), look)


def run_handles(runs: Sequence[Run], look: Look) -> list[Artist]:
    """Return the handles of a legend that names each of several runs; none for a single one."""
    from matplotlib.lines import Line2D

    if len(runs) < 2:
        return []
    pairs = zip(names_apart(runs), colours_of_runs(runs, look), strict=True)
    return [Line2D([], [], color=colour, linewidth=1.8, label=plain(name)) for name, colour in pairs]


def need_matplotlib() -> None:
    """Import matplotlib.

    Raises:
        MissingExtraError: it is not installed.
    """
    MissingExtraError.import_or_raise("matplotlib", "a picture of a run", "plots")


def _settings(look: Look) -> dict[Any, Any]:
    """Return all rcParams of a picture, so that it does not depend on the user's style."""
    import matplotlib as mpl

    settings: dict[Any, Any] = dict(mpl.rcParamsDefault)
    for name in ("backend", "backend_fallback", "interactive", "toolbar", "webagg.port", "webagg.address"):
        settings.pop(name, None)
    return settings | {
        "font.size": 9.0,
        "axes.titlesize": 9.0,
        "axes.labelsize": 9.0,
        "axes.labelcolor": look.ink,
        "axes.edgecolor": look.quiet,
        "axes.facecolor": look.paper,
        "axes.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": False,
        "axes.formatter.use_mathtext": True,
        "figure.facecolor": look.paper,
        "grid.color": look.faint,
        "grid.linewidth": 0.6,
        "hatch.linewidth": 0.5,
        "legend.fontsize": 8.0,
        "legend.frameon": False,
        "lines.linewidth": 1.4,
        "text.color": look.ink,
        "xtick.color": look.quiet,
        "ytick.color": look.quiet,
        "xtick.labelcolor": look.ink,
        "ytick.labelcolor": look.ink,
        "xtick.labelsize": 8.0,
        "ytick.labelsize": 8.0,
        "xtick.major.width": 0.7,
        "ytick.major.width": 0.7,
    }
