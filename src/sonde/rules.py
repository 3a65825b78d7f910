"""Judge numbers: every rule's threshold, its words, its severity and its source, for tables, findings and checks alike.

A rule is a small pure function: numbers in, a :class:`Finding` out, or None where nothing is wrong. Nothing here needs a model,
a tensor or a run. :data:`RULES` lists the rules; a new one is a function under ``@rule`` and a line where its numbers are known.
Sizes (norms, root mean squares) and limits have no unit: each size is compared with another one of the same unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

__all__ = [
    "DEAD_MOST",
    "DEAD_SAMPLES",
    "DEAD_SOME",
    "GRADIENT_LARGE",
    "GRADIENT_SMALL",
    "RULES",
    "SATURATED_AT",
    "UPDATE_LARGE",
    "UPDATE_SMALL",
    "UPDATE_USUAL",
    "Finding",
    "Rule",
    "Severity",
    "all_zero",
    "constant",
    "dead",
    "gradient_large",
    "gradient_small",
    "gradient_zero",
    "nonfinite",
    "of_gradient",
    "of_output",
    "of_size",
    "of_update",
    "percent",
    "saturated",
    "update_large",
    "update_small",
]

Severity = Literal["note", "warn", "bad"]
"""``note``: worth a look, shown in tables; ``warn``: unusual; ``bad``: wrong in any training. Findings are ``warn`` and ``bad``."""

DEAD_SOME, DEAD_MOST = 0.25, 0.9
"""Share of a layer's units without any output: from the first on it is a note, above the second it is bad."""
DEAD_SAMPLES = 8
"""A unit is judged from this number of samples and positions on."""
GRADIENT_LARGE, GRADIENT_SMALL = 100.0, 1e-3
"""A gradient's size against the median over its kind; behind a small initial weight, a healthy branch may get a hundredth."""
UPDATE_LARGE, UPDATE_USUAL, UPDATE_SMALL = 1e-1, 1e-3, 1e-5
"""Update / weight, both root mean squares or both norms. CS231n, "Babysitting the learning process", ratio of weights and updates:
"this ratio should be somewhere around 1e-3"; torchmortem warns outside of these limits."""
SATURATED_AT, SATURATED_SHARE = 0.99, 0.5
"""Magnitude beyond which a tanh is saturated (a sigmoid: as near to its limits); share of a layer's elements that is a note."""
CONSTANT = 1e-7
"""Standard deviation / mean of an output that is one value: the rounding of float32."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where.

    Attributes:
        rule: its name in ``RULES``.
        message: what is wrong, in words.
        site: the first or worst place; ``""`` if it is no place in the network.
        epoch, step: when, or of the last row that was looked at.
        value: the number that the rule is about.
        severity: ``note``, ``warn`` or ``bad``.
        call: which call of the module; -1 is all calls together.
        first_step: the first step at which it was seen; None if that is not known.
        evidence: the numbers that the rule compared, by name.
        advice: one line on what to do; may be empty.
    """

    rule: str
    message: str
    site: str = ""
    epoch: int = 0
    step: int = 0
    value: float = math.nan
    severity: Severity = "warn"
    call: int = -1
    first_step: int | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)
    advice: str = ""

    def at(self, site: str, epoch: int, step: int, message: str = "") -> Finding:
        """The same finding at a place and a time, with *message* if one is given."""
        return replace(self, site=site, epoch=epoch, step=step, message=message or self.message)


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of ``RULES``: the rule's name, its condition in words, the source of its threshold, and its function."""

    name: str
    condition: str
    source: str
    judge: Callable[..., Finding | None]


RULES: dict[str, Rule] = {}
"""Every rule by its name."""

_Judge = TypeVar("_Judge", bound=Callable[..., "Finding | None"])


def rule(condition: str, source: str) -> Callable[[_Judge], _Judge]:
    """List the decorated function in ``RULES``, under its own name."""

    def listed(judge: _Judge) -> _Judge:
        RULES[judge.__name__] = Rule(judge.__name__, condition, source, judge)
        return judge

    return listed


def percent(share: float) -> str:
    """A share between 0 and 1 in words; 100 % and 0 % mean exactly that."""
    if 0 < share < 0.01:
        return "<1 %"
    return f"{math.floor(share * 100 + 0.5) if share < 0.995 or share == 1 else 99} %"


# Values


@rule("any NaN or infinity", "IEEE 754: neither comes from finite numbers by a valid operation")
def nonfinite(nan: float, inf: float, count: float, *, what: str = "") -> Finding | None:
    """Judge *nan* and *inf* of *count* elements; *what* names them (``gradient``, ``weights``), ``""`` is a layer's output."""
    if not (nan or inf):
        return None
    parts = ", ".join(f"{number:,.0f} {word}" for number, word in ((nan, "NaN"), (inf, "inf")) if number)
    evidence = {"nan": nan, "inf": inf, "count": count}
    return Finding("nonfinite", f"{what} not finite: {parts}".lstrip(), value=nan + inf, severity="bad", evidence=evidence)


@rule(
    f"{percent(DEAD_SOME)} of a layer's units or more without output",
    "smdebug, DeadRelu, has 50 % of units inactive; the limits are our own",
)
def dead(share: float) -> Finding | None:
    """Judge the *share* of the units that are zero at every sample and position."""
    if not share >= DEAD_SOME:
        return None
    severity: Severity = "bad" if share > DEAD_MOST else "note"
    return Finding("dead", f"{percent(share)} dead", value=share, severity=severity, evidence={"dead": share})


@rule("all elements of an output are exactly 0", "the layers behind get the same input for every sample")
def all_zero(zeros: float, count: float) -> Finding | None:
    """Judge the number of *zeros* among *count* elements."""
    if count <= 1 or zeros < count:
        return None
    return Finding("all_zero", "all zero", value=1.0, severity="bad", evidence={"zeros": zeros, "count": count})


@rule(f"std of an output at most {CONSTANT:g} of its mean", "the rounding of float32")
def constant(mean: float, std: float, count: float) -> Finding | None:
    """Judge the mean and the standard deviation of *count* elements."""
    if count <= 1 or not std <= CONSTANT * max(abs(mean), 1e-30):
        return None
    return Finding("constant", "constant", value=mean, evidence={"mean": mean, "std": std})


@rule(f"{percent(SATURATED_SHARE)} of a tanh or sigmoid or more beyond {SATURATED_AT}", "Glorot and Bengio, 2010, section 3")
def saturated(share: float) -> Finding | None:
    """Judge the *share* of the elements that are saturated."""
    if not share >= SATURATED_SHARE:
        return None
    return Finding("saturated", f"{percent(share)} saturated", value=share, severity="note", evidence={"saturated": share})


# Gradients


@rule("a gradient that is zero throughout", "nothing before it learns")
def gradient_zero(size: float) -> Finding | None:
    """Judge the *size* of a gradient that arrived."""
    return Finding("gradient_zero", "gradient is zero", value=0.0, severity="bad", evidence={"size": size}) if size == 0 else None


@rule(f"a gradient of {GRADIENT_LARGE:g} x the median or more", "AutoTrainer has 70 x (last / first layer), torchmortem 100 x")
def gradient_large(size: float, typical: float) -> Finding | None:
    """Judge the *size* of a gradient; *typical* is the median of its kind."""
    if not (typical > 0 and size >= GRADIENT_LARGE * typical):
        return None
    evidence = {"size": size, "median": typical}
    return Finding("gradient_large", f"gradient {size / typical:,.0f} x the median", value=size / typical, evidence=evidence)


@rule(f"a gradient of {GRADIENT_SMALL:g} of the median or less, though not zero", "AutoTrainer has 1e-3 (first / last layer)")
def gradient_small(size: float, typical: float) -> Finding | None:
    """Judge the *size* of a gradient; *typical* is the median of its kind."""
    if not (typical > 0 and 0 < size <= GRADIENT_SMALL * typical):
        return None
    words = f"gradient 1/{typical / size:,.0f} of the median"
    return Finding("gradient_small", words, value=size / typical, evidence={"size": size, "median": typical})


# Updates


@rule(
    f"a step moves a weight by more than {percent(UPDATE_LARGE)} of its size",
    "CS231n, Babysitting the learning process; torchmortem",
)
def update_large(ratio: float) -> Finding | None:
    """Judge the *ratio* of the size of an update to the size of its weight."""
    if not ratio > UPDATE_LARGE:
        return None
    return Finding("update_large", f"each step moves it by {percent(ratio)} of its size", value=ratio, evidence={"ratio": ratio})


@rule(f"a step moves a weight by less than {UPDATE_SMALL:g} of its size", "CS231n, Babysitting the learning process; torchmortem")
def update_small(ratio: float) -> Finding | None:
    """Judge the *ratio* of the size of an update to the size of its weight."""
    if not ratio < UPDATE_SMALL:
        return None
    words = f"each step moves it by {ratio:.0e} of its size" if ratio > 0 else "no step moves it"
    return Finding("update_small", words, value=ratio, evidence={"ratio": ratio})


# Rules of one place together


def of_output(seen: Any, *, dead_share: float | None = None, saturated_share: float = 0.0) -> list[Finding]:
    """Return the findings about an output; *seen* has ``count``, ``nan``, ``inf``, ``zeros``, ``mean`` and ``std``."""
    if not seen.count:
        return []
    broken = nonfinite(seen.nan, seen.inf, seen.count)
    if broken is not None:
        return [broken]
    silent = all_zero(seen.zeros, seen.count) if dead_share is None else dead(dead_share)
    return _some([silent or constant(seen.mean, seen.std, seen.count), saturated(saturated_share)])


def of_gradient(seen: Any, typical: float, *, what: str = "gradient") -> list[Finding]:
    """Return the findings about a gradient; *seen* has ``count``, ``nan``, ``inf`` and ``norm``.

    *typical* is the median norm of the gradients, 0 if there is none.

    A gradient of one element, as that of a loss, is not compared with those of layers.
    """
    if not seen.count:
        return []
    broken = nonfinite(seen.nan, seen.inf, seen.count, what=what)
    if broken is not None:
        return [broken]
    return _some([gradient_zero(seen.norm)]) or of_size(seen.norm, typical if seen.count > 1 else 0.0)


def of_size(size: float, typical: float) -> list[Finding]:
    """Return the findings about the *size* of a gradient; *typical* is the median of its kind, 0 if there is none."""
    return _some([gradient_large(size, typical) or gradient_small(size, typical)])


def of_update(update: float, weight: float) -> list[Finding]:
    """Return the findings about the size of an update, given the size of the weight; none if that is 0 or NaN."""
    ratio = update / weight if weight > 0 else math.nan
    return _some([update_large(ratio) or update_small(ratio)])


def _some(found: Iterable[Finding | None]) -> list[Finding]:
    return [each for each in found if each is not None]
