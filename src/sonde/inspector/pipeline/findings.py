"""What is said when a training ends: where the run is, what it found, what it cost. Few and plain rules, over the last rows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.inspector.sinks.base import LoggedRows, RowBlock, Rows, Scalar
from sonde.site import Port, Site

if TYPE_CHECKING:
    from sonde.inspector.measurement.measurement import RowIndex

__all__ = ["DEAD_SHARE", "GRADIENT_LARGE", "GRADIENT_SMALL", "UPDATE_LARGE", "UPDATE_SMALL", "Finding", "Findings"]

DEAD_SHARE = 0.9
"""Share of a layer's units without any output in a call, from which on it is called dead."""
GRADIENT_LARGE, GRADIENT_SMALL = 100.0, 1e-3
"""A weight's gradient (root mean square) against the median over weights that have any; the limits of ``sonde.track``'s table."""
UPDATE_LARGE, UPDATE_SMALL = 1e-1, 1e-5
"""Update / weight, both root mean squares. 1e-3 is usual (CS231n, "Babysitting the learning process": ratio of weights and
updates); torchmortem warns outside of these limits."""

_RECENT = 20  # logged steps that medians are over
_NAMED = 3
_FEW = 3  # weights, of which one can be far from the others
_DEFECTS = ("nan", "inf", "nonfinite")
_LOOKED_AT = ("call_death", "rms")  # numbers that medians are over


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with the place where it is worst.

    Attributes:
        rule: ``nonfinite``, ``dead``, ``gradient_large``, ``gradient_small``, ``update_large`` or ``update_small``.
        message: in words.
        site: the first or worst.
        step, epoch: when, or of the last row.
        value: the number that the rule is about.
    """

    rule: str
    message: str
    site: str
    epoch: int
    step: int
    value: float


class Findings:
    """Remembers what the rules need; the thread that writes feeds it."""

    def __init__(self) -> None:
        self._recent: dict[RowIndex, deque[RowBlock]] = {}
        self._broken: Finding | None = None

    def look(self, rowed: RowIndex, stretch: RowBlock) -> None:
        """Rows that were logged: keep what the rules need of them, and of those before as much as makes enough moments together."""
        numbers = {name: stretch.numbers[name] for name in _LOOKED_AT if name in stretch.numbers}
        recent = self._recent.setdefault(rowed, deque())
        recent.append(replace(stretch, numbers=numbers).last(_RECENT))
        while sum(map(len, recent)) - len(recent[0]) >= _RECENT:
            recent.popleft()

    def look_for_defects(self, entries: LoggedRows) -> None:
        """Remember the first, in the order of *entries*, unless there was one before."""
        if self._broken is None:
            sick = {id(stretch) for stretch in entries.blocks if np.any(_defects(stretch))}
            if sick or not all(math.isfinite(scalar.value) for scalar in entries.scalars):
                self._broken = _first_defect(entries, sick)

    def _last_of(self, recent: deque[RowBlock]) -> Iterator[RowBlock]:
        """The recent moments alone."""
        more = sum(map(len, recent)) - _RECENT
        for stretch in recent:
            yield stretch.last(len(stretch) - max(more, 0))
            more = 0

    def all(self) -> list[Finding]:
        """What the rules find, the gravest first."""
        found = [self._broken] if self._broken is not None else []
        found += self._dead()
        found += self._gradients()
        found += self._updates()
        return found

    def _dead(self) -> Iterator[Finding]:
        shares = self._medians("call_death", "output")
        dead = {site: share for site, share in shares.items() if share > DEAD_SHARE}
        if dead:
            yield self._finding("dead", dead, lambda share: f"{share:.0%} of its units dead", largest=True)

    def _gradients(self) -> Iterator[Finding]:
        sizes = self._medians("rms", "grad", matrices=True)
        some = [size for size in sizes.values() if size > 0]
        if not some or len(sizes) < _FEW:
            return
        typical = float(np.median(some))
        ratios = {site: size / typical for site, size in sizes.items()}
        large = {site: ratio for site, ratio in ratios.items() if ratio > GRADIENT_LARGE}
        small = {site: ratio for site, ratio in ratios.items() if ratio < GRADIENT_SMALL}
        if large:
            yield self._finding("gradient_large", large, lambda ratio: f"gradient {ratio:,.0f} x the median", largest=True)
        if small:
            yield self._finding("gradient_small", small, _small_gradient, largest=False)

    def _updates(self) -> Iterator[Finding]:
        updates, weights = self._medians("rms", "update", matrices=True), self._medians("rms", "param", matrices=True)
        trained = self._medians("rms", "grad", matrices=True)  # a frozen layer is not meant to move
        ratios = {
            site: size / weights[place]
            for site, size in updates.items()
            if weights.get(place := _at(site, "param"), 0.0) > 0 and _at(site, "grad") in trained
        }
        large = {site: ratio for site, ratio in ratios.items() if ratio > UPDATE_LARGE}
        small = {site: ratio for site, ratio in ratios.items() if ratio < UPDATE_SMALL}
        if large:
            yield self._finding("update_large", large, lambda ratio: f"each step moves it by {ratio:.0%} of its size", largest=True)
        if small:
            yield self._finding("update_small", small, _small_update, largest=False)

    def _medians(self, number: str, port: str, *, matrices: bool = False) -> dict[str, float]:
        """Of each site at *port* the median of a number over recent logged steps, in the order of execution."""
        values: dict[str, list[float]] = {}
        order: dict[str, int] = {}
        for rowed, recent in self._recent.items():
            wanted = np.array([each == port for each in rowed.ports]) & (rowed.matrices if matrices else True)
            for stretch in self._last_of(recent):
                if number in stretch.numbers and not stretch.family.endswith(("_eval", "_micro")):
                    for row, value in _picked(stretch.rows, stretch.numbers[number], wanted):
                        values.setdefault(stretch.layout.site[row], []).append(value)
                        order[stretch.layout.site[row]] = int(np.asarray(stretch.layout.order)[row])
        found = {site: float(np.median(each)) for site, each in values.items()}
        return {site: found[site] for site in sorted(found, key=lambda site: (order[site], site))}

    def _finding(self, rule: str, values: dict[str, float], words: Any, *, largest: bool) -> Finding:
        ordered = sorted(values, key=lambda site: values[site], reverse=largest)
        site = ordered[0]
        message = f"{_name(site)}: {words(values[site])}"
        if len(values) > 1:
            others = ", ".join(_name(each) for each in ordered[1:_NAMED])
            rest = len(values) - _NAMED
            message += f" (also {others}" + (f" and {rest} more)" if rest > 0 else ")")
        stretches = (stretch for recent in self._recent.values() for stretch in self._last_of(recent))
        moments = (moment for stretch in stretches for moment in stretch.moments[:, :2].tolist())
        epoch, step = max(moments, key=lambda moment: moment[1])
        return Finding(rule, message, site, epoch, step, values[site])


def _picked(
    rows: npt.NDArray[np.intp], column: npt.NDArray[np.float64], wanted: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, float]]:
    for row, value in zip(rows.tolist(), column.tolist(), strict=True):
        if wanted[row] and math.isfinite(value):
            yield row, value


def _defects(rows: Rows | RowBlock) -> npt.NDArray[np.float64]:
    """How many elements of each row are NaN or infinite, if its family counts them."""
    return sum((rows.numbers[name] for name in _DEFECTS if name in rows.numbers), np.zeros(len(rows.rows)))


def _first_defect(entries: LoggedRows, sick: Collection[int]) -> Finding | None:
    """The first defect of *entries*, where those stretches have some."""
    for entry in entries.sequence:
        if isinstance(entry, Scalar):
            if not math.isfinite(entry.value):
                message = f"{entry.name} is {entry.value} from step {entry.step:,} on"
                return Finding("nonfinite", message, "", entry.epoch, entry.step, entry.value)
        elif id(entry[0]) in sick and (found := _first_of(Rows.of(*entry))) is not None:
            return found
    return None


def _first_of(rows: Rows) -> Finding | None:
    """The first place with a defect at one moment, by the order of execution, forward before backward."""
    amounts = _defects(rows)
    bad = np.flatnonzero(amounts)
    if not len(bad):
        return None
    order = np.asarray(rows.layout.order)[rows.rows[bad]]
    forward = np.array([Site.parse(rows.layout.site[row]).port == "output" for row in rows.rows[bad]])
    first = bad[np.lexsort((order, ~forward))[0]]
    site, amount = rows.layout.site[rows.rows[first]], float(amounts[first])
    message = f"{site} has {amount:,.0f} NaN or infinite elements at step {rows.step:,}, the first logged step with any"
    return Finding("nonfinite", message, site, rows.epoch, rows.step, amount)


def _name(site: str) -> str:
    return Site.parse(site).name


def _at(site: str, port: Port) -> str:
    return str(Site.parse(site).port_of(port))


def _small_gradient(ratio: float) -> str:
    return f"gradient 1/{1 / ratio:,.0f} of the median" if ratio > 0 else "its gradient is zero"


def _small_update(ratio: float) -> str:
    return f"each step moves it by no more than {ratio:.0e} of its size" if ratio > 0 else "no step moves it"
