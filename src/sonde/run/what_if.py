"""Say which share of the values of a run another number format would lose, by the counts per power of two that the run holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from sonde.errors import ArgumentError
from sonde.rules import Chosen, Finding, among
from sonde.run.folder.duckdb_sql import of_rank, quoted
from sonde.run.schema import main_families
from sonde.site import Site
from sonde.suggest import nearest

if TYPE_CHECKING:
    from sonde.run.run import Run


_FIRST_POWER = -149  # of the column powers


@dataclass(frozen=True)
class Format:
    """A number format.

    Attributes:
        name: as in torch.
        short: as in the names of recorded numbers.
        largest: the largest number.
        zero: a magnitude of at most two to this power is rounded to zero.
    """

    name: str
    short: str
    largest: float
    zero: int


FORMATS = (
    Format("float16", "fp16", 65504.0, -25),
    Format("bfloat16", "bf16", 3.39e38, -134),
    Format("float8_e4m3fn", "e4m3", 448.0, -10),
    Format("float8_e5m2", "e5m2", 57344.0, -17),
)
"""The formats whose losses :func:`sonde.lens.exponents` records."""


def format_of(asked: Any) -> Format:
    """Return the format that *asked* names: ``"float16"``, ``"fp16"`` or ``torch.float16``.

    Raises:
        ArgumentError: no such format is known; the message names the nearest.
    """
    text = str(asked).removeprefix("torch.")
    known = {name: each for each in FORMATS for name in (each.name, each.short)}
    if text not in known:
        raise ArgumentError(f"what_if={asked!r}: give one of {', '.join(each.name for each in FORMATS)}. {nearest(text, known)}")
    return known[text]


@dataclass(frozen=True, slots=True)
class WouldLose:
    """The values of one place that a format would lose, at the logged step at which it would lose most.

    Attributes:
        site, call: the place.
        epoch, step: the moment.
        overflow: the share of finite values that would be beyond the largest number of the format.
        underflow: the share that is not zero and would be rounded to zero.
        underflow_scaled: the same, of the tensor scaled by the power of two that brings its largest magnitude up to the end of the
            format, and no further: no value overflows then. As the power is known to an octave, it may be a little less.
    """

    site: str
    call: int
    epoch: int
    step: int
    overflow: float
    underflow: float
    underflow_scaled: float


def would_lose(run: Run, wanted: Format, rank: int | None = None) -> list[WouldLose]:
    """Return what each place would lose in the format *wanted*, the worst first; nothing of a run without these counts."""
    found: dict[tuple[str, int], WouldLose] = {}
    for family in main_families(run.numbers):
        if f"underflow_{wanted.short}" in run.numbers[family] and "finite" in run.numbers[family]:
            for each in _of_family(run, family, wanted, rank):
                known = found.get((each.site, each.call))
                if known is None or _badness(each) > _badness(known):
                    found[each.site, each.call] = each
    return sorted(found.values(), key=_badness, reverse=True)


def _badness(each: WouldLose) -> tuple[float, float]:
    return each.overflow + each.underflow, each.underflow_scaled


def _of_family(run: Run, family: str, wanted: Format, rank: int | None) -> Iterator[WouldLose]:
    rows = of_rank(family, rank, run.ranks)
    over, under = quoted(f"overflow_{wanted.short}"), quoted(f"underflow_{wanted.short}")
    worst = f"row_number() OVER (PARTITION BY site, call ORDER BY {over} + {under} DESC NULLS LAST, step) = 1"
    query = (
        f"SELECT site, call, epoch, step, {over}, {under}, finite, zeros, powers FROM {rows} WHERE isfinite({over}) QUALIFY {worst}"
    )
    for site, call, epoch, step, overflow, underflow, finite, zeros, powers in run.sql(query).fetchall():
        yield WouldLose(site, call, epoch, step, overflow, underflow, _scaled(np.array(powers, float), finite, zeros, wanted))


def _scaled(powers: Any, finite: float, zeros: float, wanted: Format) -> float:
    filled = np.flatnonzero(powers)
    if not len(filled) or not finite:
        return 0.0
    shift = math.floor(math.log2(wanted.largest)) - (int(filled[-1]) + _FIRST_POWER)
    lost = max(0, min(wanted.zero - shift - _FIRST_POWER + 1, len(powers)))
    smaller_yet = max(finite - zeros - float(powers.sum()), 0.0)
    return (float(powers[:lost].sum()) + smaller_yet) / finite


def findings_of(lost: Sequence[WouldLose], wanted: Format, chosen: Chosen) -> Iterator[Finding]:
    """Yield what the two rules about other formats find, one finding each: the worst place, with the names of the others."""
    rules: dict[str, Callable[[WouldLose], float]] = {
        "would_overflow": attrgetter("overflow"),
        "would_underflow": attrgetter("underflow"),
    }
    for rule, of in rules.items():
        judged = [(each, found) for each in lost if (found := chosen.judge(rule, of(each), each.underflow_scaled)) is not None]
        judged.sort(key=lambda two: -two[1].value)
        if judged:
            (worst, found), names = judged[0], [Site.parse(each.site).name for each, _ in judged]
            message = among(list(dict.fromkeys(names)), f"{found.message} in {wanted.name}")
            yield replace(found.at(worst.site, worst.epoch, worst.step, message), call=worst.call, first_step=worst.step)
