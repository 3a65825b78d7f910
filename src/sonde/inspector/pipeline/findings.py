"""Feed the rules with the last rows of a training, and keep the first row that held a NaN or an infinity."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sonde import rules
from sonde.inspector.sinks.base import LoggedRows, RowBlock, Rows, Scalar
from sonde.rules import Finding
from sonde.site import PORTS, Port, Site

if TYPE_CHECKING:
    from sonde.inspector.measurement.row_index import RowIndex

__all__ = ["Finding", "Findings"]

_RECENT = 20  # logged steps that medians are over
_NAMED = 3
_FEW = 3  # weights: with fewer, none can be far from the others
_DEFECTS = ("nan", "inf", "nonfinite")
_PHASES = {"forward": 0, "backward": 1, "step": 2}
_LOOKED_AT = ("call_death", "rms", *_DEFECTS)


class Findings:
    """Keeps the last rows of a training, as far as the rules need them; the thread that writes feeds it."""

    def __init__(self) -> None:
        self._recent: dict[RowIndex, deque[RowBlock]] = {}
        self._broken: Finding | None = None

    def look(self, index: RowIndex, block: RowBlock) -> None:
        """Keep the numbers of logged rows that the rules need, and forget moments that are too old."""
        numbers = {name: block.numbers[name] for name in _LOOKED_AT if name in block.numbers}
        recent = self._recent.setdefault(index, deque())
        recent.append(replace(block, numbers=numbers).last(_RECENT))
        while sum(map(len, recent)) - len(recent[0]) >= _RECENT:
            recent.popleft()

    def look_for_defects(self, entries: LoggedRows) -> None:
        """Keep the first NaN or infinity in *entries*, unless an earlier one is known."""
        if self._broken is None:
            broken = {id(block) for block in entries.blocks if np.any(_defects(block))}
            if broken or not all(math.isfinite(scalar.value) for scalar in entries.scalars):
                self._broken = _first_defect(entries, broken)

    def _last_of(self, recent: deque[RowBlock]) -> Iterator[RowBlock]:
        """The last ``_RECENT`` moments of *recent*."""
        more = sum(map(len, recent)) - _RECENT
        for block in recent:
            yield block.last(len(block) - max(more, 0))
            more = 0

    def all(self) -> list[Finding]:
        """The findings of all rules, the gravest first."""
        found = [self._broken] if self._broken is not None else []
        found += self._dead()
        found += self._gradients()
        found += self._updates()
        return found

    def _dead(self) -> Iterator[Finding]:
        yield from self._worst(self._medians("call_death", "output"), rules.dead)

    def _gradients(self) -> Iterator[Finding]:
        broken = self._broken_sites()  # the size of the finite elements alone says nothing about a gradient
        sizes = {site: size for site, size in self._medians("rms", "grad", matrices=True).items() if site not in broken}
        some = [size for size in sizes.values() if size > 0]
        if not some or len(sizes) < _FEW:
            return
        typical = float(np.median(some))
        yield from self._worst(sizes, lambda size: rules.gradient_large(size, typical))
        yield from self._worst(sizes, rules.gradient_zero)
        yield from self._worst(sizes, lambda size: rules.gradient_small(size, typical), smallest=True)

    def _updates(self) -> Iterator[Finding]:
        updates, weights = self._medians("rms", "update", matrices=True), self._medians("rms", "param", matrices=True)
        trained = self._medians("rms", "grad", matrices=True)  # a frozen layer is not meant to move
        broken = self._broken_sites()
        ratios = {
            site: size / weights[place]
            for site, size in updates.items()
            if weights.get(place := _at(site, "param"), 0.0) > 0
            and _at(site, "grad") in trained
            and not broken & {site, place}  # a weight that is not finite does not stand still
        }
        yield from self._worst(ratios, rules.update_large)
        yield from self._worst(ratios, rules.update_small, smallest=True)

    def _broken_sites(self) -> set[str]:
        """The sites with a NaN or an infinity in recent logged steps."""
        recent = (block for held in self._recent.values() for block in self._last_of(held))
        return {block.layout.site[row] for block in recent for row in block.rows[_defects(block) > 0].tolist()}

    def _medians(self, number: str, port: str, *, matrices: bool = False) -> dict[str, float]:
        """Of each site at *port* the median of a number over recent logged steps, in the order of execution."""
        values: dict[str, list[float]] = {}
        order: dict[str, int] = {}
        for index, recent in self._recent.items():
            wanted = np.array([each == port for each in index.ports]) & (index.matrices if matrices else True)
            for block in self._last_of(recent):
                if number in block.numbers and not block.family.endswith(("_eval", "_micro")):
                    for row, value in _picked(block.rows, block.numbers[number], wanted):
                        values.setdefault(block.layout.site[row], []).append(value)
                        order[block.layout.site[row]] = int(np.asarray(block.layout.order)[row])
        found = {site: float(np.median(each)) for site, each in values.items()}
        return {site: found[site] for site in sorted(found, key=lambda site: (order[site], site))}

    def _worst(
        self, values: dict[str, float], judge: Callable[[float], Finding | None], *, smallest: bool = False
    ) -> Iterator[Finding]:
        """One finding for all sites at which *judge* finds something: at the worst, with the names of others.

        The worst has the largest value, or the smallest. Notes are left to the tables.
        """
        found = {site: each for site, value in values.items() if (each := judge(value)) is not None and each.severity != "note"}
        if not found:
            return
        ordered = sorted(found, key=lambda site: values[site], reverse=not smallest)
        worst = found[ordered[0]]
        message = f"{_name(ordered[0])}: {worst.message}"
        if len(found) > 1:
            others = ", ".join(_name(each) for each in ordered[1:_NAMED])
            rest = len(found) - _NAMED
            message += f" (also {others}" + (f" and {rest} more)" if rest > 0 else ")")
        blocks = (block for recent in self._recent.values() for block in self._last_of(recent))
        moments = (moment for block in blocks for moment in block.moments[:, :2].tolist())
        epoch, step = max(moments, key=lambda moment: moment[1])
        yield worst.at(ordered[0], epoch, step, message)


def _picked(
    rows: npt.NDArray[np.intp], column: npt.NDArray[np.float64], wanted: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, float]]:
    for row, value in zip(rows.tolist(), column.tolist(), strict=True):
        if wanted[row] and math.isfinite(value):
            yield row, value


def _defects(rows: Rows | RowBlock) -> npt.NDArray[np.float64]:
    """How many elements of each row are NaN or infinite, if its family counts them."""
    return sum((rows.numbers[name] for name in _DEFECTS if name in rows.numbers), np.zeros(len(rows.rows)))


def _first_defect(entries: LoggedRows, broken: Collection[int]) -> Finding | None:
    """The first defect of the first step with one, in the blocks whose ids are in *broken*; a place goes before a scalar."""
    found: list[tuple[tuple[float, float], Finding]] = []
    for entry in entries.sequence:
        step = entry.step if isinstance(entry, Scalar) else int(entry[0].moments[entry[1]][1])
        if found and step != found[0][1].step:
            break
        if isinstance(entry, Scalar):
            if not math.isfinite(entry.value):
                message = f"{entry.name} is {entry.value} from step {entry.step:,} on"
                found.append(((math.inf, 0.0), _nonfinite(message, "", entry.epoch, entry.step, entry.value)))
        elif id(entry[0]) in broken:
            found += _first_of(Rows.of(*entry))
    return min(found, key=lambda each: each[0])[1] if found else None


def _first_of(rows: Rows) -> Iterator[tuple[tuple[float, float], Finding]]:
    """The first place with a defect at one moment: forward, then backward from the last layer, then the parameters."""
    amounts = _defects(rows)
    bad = np.flatnonzero(amounts)
    if not len(bad):
        return
    order = np.asarray(rows.layout.order)[rows.rows[bad]]
    phase = np.array([_PHASES[PORTS[Site.parse(rows.layout.site[row]).port].phase] for row in rows.rows[bad]])
    order = np.where(phase == _PHASES["backward"], -order, order)
    place = np.lexsort((order, phase))[0]
    site, amount = rows.layout.site[rows.rows[bad[place]]], float(amounts[bad[place]])
    message = f"{site} has {amount:,.0f} NaN or infinite elements at step {rows.step:,}, the first logged step with any"
    yield (float(phase[place]), float(order[place])), _nonfinite(message, site, rows.epoch, rows.step, amount)


def _nonfinite(message: str, site: str, epoch: int, step: int, value: float) -> Finding:
    return Finding("nonfinite", message, site, epoch, step, value, "bad", first_step=step)


def _name(site: str) -> str:
    return Site.parse(site).name


def _at(site: str, port: Port) -> str:
    return str(Site.parse(site).port_of(port))
