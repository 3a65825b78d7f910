"""Name the numbers of rows as charts: the number first, then the layer, the same for every program that draws them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from sonde.errors import ArgumentError
from sonde.number import Number, described, number_of
from sonde.rows import Rows
from sonde.site import OTHER_CALLS, PARAMETER_PORTS, Site

Numbers = Collection[str] | Literal["all"] | None
"""Which numbers of a layer are drawn; None: those of :class:`Charts` by default."""

_SHARED = frozenset(["moments", "output_gradient", "parameter_gradient", "parameter_norm", "parameter_update"])
"""Families whose norms and rms of the same tensor are the same number, and so have the same chart."""

_DEFECTS = ("nan", "inf", "nonfinite")


class Point(NamedTuple):
    """One value of one layer: the name of its chart, as ``grad_norm``, the layer, the value, and the number that it is."""

    chart: str
    layer: str
    value: float
    number: Number

    @property
    def tag(self) -> str:
        """Chart and layer in one text, as ``grad_norm/layers.3.weight``."""
        return f"{self.chart}/{self.layer}"


class Charts:
    """Makes points of rows.

    Args:
        numbers: which numbers of a layer: names, or ``"all"``. By default of moments the norm of what belongs to parameters and the
            rms of other tensors, and of other lenses all but the minor ones: counts and outer percentiles.
        about: the description of the run, with the numbers of each lens.

    Raises:
        ArgumentError: *numbers* is a text other than ``"all"``.
    """

    def __init__(self, numbers: Numbers = None, about: Mapping[str, Any] | None = None) -> None:
        if isinstance(numbers, str) and numbers != "all":
            raise ArgumentError(f"numbers={numbers!r}: give names, as ('rms', 'mean'), or 'all'")
        self.about: Mapping[str, Any] = about or {}
        self._numbers = numbers
        self._owners: dict[str, str] = {}
        self._described: dict[str, dict[str, Number]] = {}

    def points(self, rows: Rows) -> Iterator[Point]:
        """Yield the points of *rows* in their order. Of two families that have the same chart, the first keeps it."""
        for point in self._points(rows):
            if self._owners.setdefault(point.tag, rows.family) == rows.family:
                yield point

    def _points(self, rows: Rows) -> Iterator[Point]:
        family = "" if rows.family in _SHARED else f"{rows.family}."
        columns = {name: column for name, column in rows.numbers.items() if np.ndim(column) == 1}
        defects = sum((columns[name] for name in _DEFECTS if name in columns), np.zeros(len(rows.rows)))
        norms = dict(zip(rows.sites, columns["norm"].tolist(), strict=True)) if "norm" in columns else {}
        for row, (site, name) in enumerate(zip(rows.sites, layer_names(rows), strict=True)):
            place = Site.parse(site)
            port = place.port
            for number, column in columns.items():
                if self._wants(number, port, rows.family):
                    yield Point(f"{family}{port}_{number}", name, float(column[row]), self._number(number, rows.family))
            nonfinite = Point(f"{family}{port}_nonfinite", name, float(defects[row]), number_of("nonfinite"))
            if defects[row] > 0 or nonfinite.tag in self._owners:
                yield nonfinite
            weight = norms.get(str(place.port_of("param")), 0.0) if port == "update" else 0.0
            if weight != 0:  # NaN if no element is finite, and then the ratio too
                yield Point("update_ratio", name, norms[site] / weight, number_of("ratio"))

    def _wants(self, number: str, port: str, family: str) -> bool:
        if self._numbers is not None:
            return self._numbers == "all" or number in self._numbers
        if family in _SHARED:
            return number == ("norm" if port in PARAMETER_PORTS else "rms")
        return not self._number(number, family).is_minor

    def _number(self, number: str, family: str) -> Number:
        if family not in self._described:
            self._described[family] = described(self.about, family)
        return self._described[family].get(number) or number_of(number)


def layer_names(rows: Rows) -> list[str]:
    """Return the name of each row's layer, with the number of the call where the layer is called more than once."""
    calls = np.asarray(rows.layout.columns["call"])[rows.rows].tolist()
    called = Counter(rows.sites)
    return [
        Site.parse(site).name
        + ("" if call == 0 or called[site] == 1 else ".other_calls" if call == OTHER_CALLS else f".call_{call}")
        for site, call in zip(rows.sites, calls, strict=True)
    ]
