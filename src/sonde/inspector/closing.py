"""What is said when a training ends: where the run is, what it found, what it cost. Few and plain rules, over the last rows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.inspector.sink import Rows, Scalar

if TYPE_CHECKING:
    from sonde.inspector.measuring import Rowed

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
        self._recent: dict[int, tuple[Rowed, deque[Rows]]] = {}
        self._broken: Finding | None = None

    def look(self, rows: Rows, rowed: Rowed) -> None:
        """Rows that were logged."""
        self._recent.setdefault(id(rowed), (rowed, deque(maxlen=_RECENT)))[1].append(rows)
        if self._broken is None or (rows.step == self._broken.step and self._broken.site):
            self._look_for_defects(rows)

    def look_at_scalar(self, scalar: Scalar) -> None:
        """A scalar that was logged."""
        if self._broken is None and not math.isfinite(scalar.value):
            message = f"{scalar.name} is {scalar.value} from step {scalar.step:,} on"
            self._broken = Finding("nonfinite", message, "", scalar.epoch, scalar.step, scalar.value)

    def _look_for_defects(self, rows: Rows) -> None:
        """Remember the first place, by step and then in the order of execution, forward before backward."""
        found = [rows.numbers[name] for name in _DEFECTS if name in rows.numbers]
        bad = np.flatnonzero(sum(found)) if found else np.empty(0, np.intp)
        if not len(bad):
            return
        order = np.asarray(rows.layout.order)[rows.rows[bad]]
        forward = np.array([":output" in rows.layout.site[row] for row in rows.rows[bad]])
        first = bad[np.lexsort((order, ~forward))[0]]
        site, amount = rows.layout.site[rows.rows[first]], float(sum(column[first] for column in found))
        message = f"{site} has {amount:,.0f} NaN or infinite elements at step {rows.step:,}, the first logged step with any"
        self._broken = self._broken or Finding("nonfinite", message, site, rows.epoch, rows.step, amount)

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
            if weights.get(place := site.replace(":update", ":param"), 0.0) > 0 and site.replace(":update", ":grad") in trained
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
        for rowed, recent in self._recent.values():
            wanted = np.array([each == port for each in rowed.ports]) & (rowed.matrices if matrices else True)
            for rows in recent:
                if number in rows.numbers and not rows.family.endswith(("_eval", "_micro")):
                    for row, value in _picked(rows, rows.numbers[number], wanted):
                        values.setdefault(rows.layout.site[row], []).append(value)
                        order[rows.layout.site[row]] = int(np.asarray(rows.layout.order)[row])
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
        last = max((rows for _, recent in self._recent.values() for rows in recent), key=lambda rows: rows.step)
        return Finding(rule, message, site, last.epoch, last.step, values[site])


def _picked(rows: Rows, column: npt.NDArray[np.float64], wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, float]]:
    for row, value in zip(rows.rows.tolist(), column.tolist(), strict=True):
        if wanted[row] and math.isfinite(value):
            yield row, value


def _name(site: str) -> str:
    return site.rpartition(":")[0]


def _small_gradient(ratio: float) -> str:
    return f"gradient 1/{1 / ratio:,.0f} of the median" if ratio > 0 else "its gradient is zero"


def _small_update(ratio: float) -> str:
    return f"each step moves it by no more than {ratio:.0e} of its size" if ratio > 0 else "no step moves it"
