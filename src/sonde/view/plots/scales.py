"""From values to colours and axes: logarithmic for sizes, about zero for what has a sign, 0 to 1 for shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.view.plots.number_names import Kind
from sonde.view.plots.theme import DIVERGING, SEQUENTIAL

if TYPE_CHECKING:
    from matplotlib.colors import Normalize

__all__ = ["Scale", "ScaleName", "is_wide", "scale_for"]

ScaleName = Literal["auto", "log", "linear", "signed"]

_WIDE = 4.0  # from this ratio of the largest to the smallest on, a size is shown on a logarithmic scale
_DECADES = 12  # below the largest, no more is told apart
_OUTER = 0.5  # percent of the cells at each end that may lie beyond the scale


@dataclass(frozen=True)
class Scale:
    """How cells are coloured.

    Attributes:
        colours: the name of a matplotlib colour map.
        low, high: its ends.
        log: whether it is logarithmic; zeros are off it.
        extend: which end has values beyond it, as matplotlib's colour bars say it.
    """

    colours: str
    low: float
    high: float
    log: bool
    extend: Literal["neither", "min", "max", "both"]

    def norm(self) -> Normalize:
        """The same for matplotlib."""
        from matplotlib.colors import LogNorm, Normalize

        return LogNorm(self.low, self.high) if self.log else Normalize(self.low, self.high)


def scale_for(
    values: npt.NDArray[np.float64], kind: Kind, scale: ScaleName = "auto", limits: tuple[float, float] | None = None
) -> Scale:
    """The scale for finite *values* of a *kind*.

    Args:
        scale: ``"auto"`` goes by the kind and the values.
        limits: the ends, in place of ends that leave out half a percent of the cells on each side at most.

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
        largest = float(np.percentile(np.abs(there), 100 - _OUTER)) if len(there) else 1.0
        return (-largest, largest) if largest > 0 else (-1.0, 1.0)
    shown = there[there > 0] if scale == "log" else there
    if not len(shown):
        return (0.1, 1.0) if scale == "log" else (0.0, 1.0)
    low, high = map(float, np.percentile(shown, (_OUTER, 100 - _OUTER)))
    if scale == "log":
        low = max(low, high / 10.0**_DECADES)
    if low < high:
        return low, high
    return (low / 2, low * 2) if low > 0 else (low - 0.5, low + 0.5)
