"""Paper and ink: two themes, with colours that a reader with any colour vision can tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sonde.errors import ArgumentError

__all__ = ["DIVERGING", "SEQUENTIAL", "Look", "Theme", "look_of", "settings_of"]

Theme = Literal["light", "dark"]

SEQUENTIAL, DIVERGING = "viridis", "PRGn_r"
"""Both change evenly in lightness (the second from its middle), so that a grey print shows them; neither has a defect's red."""


@dataclass(frozen=True)
class Look:
    """The colours of a theme.

    Attributes:
        paper, ink, quiet, faint: background, text, secondary text, grid lines.
        void: of what was not recorded.
        defect: of NaN and infinity.
        first: where on the sequential scale the first of many lines is.
        lines: told apart by readers with any colour vision (M. Okabe and K. Ito, "Color universal design").
    """

    paper: str
    ink: str
    quiet: str
    faint: str
    void: str
    defect: str
    first: float
    lines: tuple[str, ...]

    @property
    def defect_mark(self) -> dict[str, Any]:
        """How a patch looks that stands for NaN or infinity."""
        return {"facecolor": self.defect, "edgecolor": self.paper, "hatch": "xxxxx", "linewidth": 0}

    @property
    def zero_mark(self) -> dict[str, Any]:
        """How a patch looks that stands for exactly zero, on a scale that has none."""
        return {"facecolor": self.paper, "edgecolor": self.quiet, "hatch": "////", "linewidth": 0}


_LOOKS: dict[Theme, Look] = {
    "light": Look(
        paper="#ffffff",
        ink="#1f2328",
        quiet="#636c76",
        faint="#d8dde3",
        void="#eceff2",
        defect="#e0301e",
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
        first=0.25,
        lines=("#56b4e9", "#e69f00", "#2dbd94", "#dd94bd", "#f0e442", "#e8731c"),
    ),
}


def look_of(theme: Theme) -> Look:
    """The colours of *theme*.

    Raises:
        ArgumentError: there is no such theme.
    """
    if theme not in _LOOKS:
        raise ArgumentError(f"theme={theme!r}: it is one of {', '.join(map(repr, _LOOKS))}")
    return _LOOKS[theme]


def settings_of(look: Look) -> dict[Any, Any]:
    """The rcParams of a picture: all of them, for it does not depend on the style that the user has chosen for other figures."""
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
