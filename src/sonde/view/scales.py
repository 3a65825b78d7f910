"""Choose a scale for values: logarithmic for sizes, symmetric about zero for signed numbers, 0 to 1 for shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.number import Kind

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.colors import Normalize


SEQUENTIAL, DIVERGING = "viridis", "PRGn_r"
"""Both change evenly in lightness (the second from its middle), so that a grey print shows them; neither has the red of NaN."""

ScaleName = Literal["auto", "log", "linear", "signed"]

_WIDE = 4.0  # the ratio of the largest to the smallest value from which on a size is shown on a logarithmic scale
_OUTER = 0.5  # percent of the cells at each end that may lie beyond the scale
_NEAR = 0.15  # values that are closer to an end than this share of the scale are no outliers
_REACH = 3.0  # a logarithmic scale ends so many spans of the middle half above and below it, a span being a decade or more


@dataclass(frozen=True)
class Scale:
    """The colours of cells.

    Attributes:
        colours: the name of a matplotlib colour map.
        low, high: its ends.
        log: whether it is logarithmic; zeros are not on it.
        extend: which ends have values beyond them, in the words of matplotlib's colour bars.
    """

    colours: str
    low: float
    high: float
    log: bool
    extend: Literal["neither", "min", "max", "both"]

    def norm(self) -> Normalize:
        """Return the same for matplotlib."""
        from matplotlib.colors import LogNorm, Normalize

        return LogNorm(self.low, self.high) if self.log else Normalize(self.low, self.high)


def scale_for(
    values: npt.NDArray[np.float64], kind: Kind, scale: ScaleName = "auto", limits: tuple[float, float] | None = None
) -> Scale:
    """Return the scale for finite *values* of a *kind*.

    Args:
        values: NaN are left out.
        kind: of the number.
        scale: ``"auto"`` chooses by the kind and the values.
        limits: the ends. By default half a percent of the cells on each side may lie beyond them if they lie far off; on a
            logarithmic scale also cells that are three times the span of the middle half of all (at least three decades) beyond
            that half, so that a run that diverges in some steps does not push all others into one colour.

    Raises:
        ArgumentError: there is no such scale, or the limits do not ascend, or are not above 0 on a logarithmic scale.
    """
    if scale not in ("auto", "log", "linear", "signed"):
        raise ArgumentError(f"scale={scale!r}: it is 'auto', 'log', 'linear' or 'signed'")
    there = values[np.isfinite(values)]
    if scale == "auto":
        scale = _fitting(there, kind)
    if limits is None:
        limits = _limits(there, kind, scale)
    elif not limits[0] < limits[1] or (scale == "log" and limits[0] <= 0):
        above = " and above 0 on a logarithmic scale" if scale == "log" else ""
        raise ArgumentError(f"limits={limits!r}: the two ends ascend{above}")
    low, high = map(float, limits)
    shown = there[there > 0] if scale == "log" else there
    under, over = bool((shown < low).any()), bool((shown > high).any())
    extend: Literal["neither", "min", "max", "both"] = (
        "both" if under and over else "min" if under else "max" if over else "neither"
    )
    return Scale(DIVERGING if scale == "signed" else SEQUENTIAL, low, high, scale == "log", extend)


def is_wide(values: npt.NDArray[np.float64]) -> bool:
    """Whether *values* are sizes so far apart that only a logarithmic axis shows them all."""
    there = values[np.isfinite(values)]
    positive = there[there > 0]
    return not (there < 0).any() and len(positive) > 0 and positive.max() > _WIDE * positive.min()


def logarithmic(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic *axis* from *low* to *high*: by powers of ten, or within two decades by plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high > 4 * low else range(1, 10)))
        axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _fitting(there: npt.NDArray[np.float64], kind: Kind) -> Literal["log", "linear", "signed"]:
    if kind in ("share", "power"):
        return "linear"
    if kind == "cosine" or (there < 0).any():
        return "signed"
    return "log" if is_wide(there) else "linear"


def _limits(there: npt.NDArray[np.float64], kind: Kind, scale: ScaleName) -> tuple[float, float]:
    if kind == "cosine":
        return -1.0, 1.0
    if kind == "share":
        return 0.0, 1.0
    if scale == "signed":
        _, largest = _robust(np.abs(there)) if len(there) else (0.0, 1.0)
        return (-largest, largest) if largest > 0 else (-1.0, 1.0)
    shown = there[there > 0] if scale == "log" else there
    if not len(shown):
        return (0.1, 1.0) if scale == "log" else (0.0, 1.0)
    if scale == "log":
        powers = np.log10(shown)
        low, high = _robust(powers, least=1.0)
        low = float(shown.min()) if low == powers.min() else 10**low  # exact: 10 ** log10(x) may be more than x
        high = float(shown.max()) if high == powers.max() else 10**high
    else:
        low, high = _robust(shown)
    if low < high:
        return low, high
    return (low / 2, low * 2) if low > 0 else (low - 0.5, low + 0.5)


def _robust(values: npt.NDArray[np.float64], least: float | None = None) -> tuple[float, float]:
    """Return ends that leave out far outliers: see ``limits`` of :func:`scale_for`. Values near an end move the end.

    Args:
        values: in the coordinates of the scale.
        least: cells may also lie beyond three times the span of the middle half, the span being *least* or more.
    """
    low, lower, upper, high = map(float, np.percentile(values, (_OUTER, 25, 75, 100 - _OUTER)))
    if least is not None:
        reach = _REACH * max(upper - lower, least)
        low, high = max(low, lower - reach), min(high, upper + reach)
    near = _NEAR * (high - low)
    smallest, largest = float(values.min()), float(values.max())
    return smallest if low - smallest <= near else low, largest if largest - high <= near else high
