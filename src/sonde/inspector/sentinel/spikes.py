"""Judge how far a loss or a gradient norm lies beyond those of the steps before."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import median

from sonde.rules import SPIKE_VALUES

_KEPT = 128
_LEAST_SPREAD = 0.02  # of logarithms: two per cent


@dataclass(frozen=True, slots=True)
class Spike:
    """A value that lies beyond those before it.

    Attributes:
        name: ``loss`` or ``gradient norm``.
        value: the value.
        median: of the values before it.
        deviations: so many robust deviations above the median, both of logarithms.
        largest: the name of the parameter with the largest gradient; ``""`` where that is not known.
    """

    name: str
    value: float
    median: float
    deviations: float
    largest: str = ""


class Spikes:
    """The last 128 values of each series.

    A deviation is 1.4826 times the median distance from the median, which is the standard deviation of a normal distribution; it is
    at least 2 %. A value is judged from the 25th of its series on; values that are not above 0 are not judged.

    Args:
        deviations: from so many on a value is a spike.
    """

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._series: dict[Hashable, deque[float]] = {}

    def judge(self, key: Hashable, name: str, value: float, largest: str = "") -> Spike | None:
        """Return the spike if *value* is one, and keep the value.

        Args:
            key: of the series.
            name: of the series, for people.
            largest: the name of the parameter with the largest gradient.
        """
        if not (math.isfinite(value) and value > 0):
            return None
        series = self._series.setdefault(key, deque(maxlen=_KEPT))
        log, found = math.log(value), None
        if len(series) >= SPIKE_VALUES and log > max(series):
            middle = median(series)
            spread = max(1.4826 * median(abs(each - middle) for each in series), _LEAST_SPREAD)
            away = (log - middle) / spread
            if away >= self._deviations:
                found = Spike(name, value, math.exp(middle), away, largest)
        series.append(log)
        return found
