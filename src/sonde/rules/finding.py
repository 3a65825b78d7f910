"""The finding, the list of all rules, and the decorator that puts a function on the list."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Literal, ParamSpec

from sonde.errors import ArgumentError
from sonde.site import PORTS

__all__ = [
    "RULES",
    "Finding",
    "Rule",
    "Severity",
    "rule",
]

Severity = Literal["note", "warn", "bad"]
"""``note``: worth a look, shown in tables; ``warn``: unusual; ``bad``: wrong in any training. Findings are ``warn`` and ``bad``."""


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

    @property
    def identity(self) -> tuple[str, str, int]:
        """What tells alarms apart: the rule, the model of the site, and of a NaN or infinity the step too."""
        return self.rule, self.site.partition("/")[0] if "/" in self.site else "", self.step if self.rule == "nonfinite" else -1

    def at(self, site: str, epoch: int, step: int, message: str = "") -> Finding:
        """The same finding at a place and a time, with *message* if one is given."""
        return replace(self, site=site, epoch=epoch, step=step, message=message or self.message)


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of ``RULES``.

    Attributes:
        name: of the function.
        condition: under which the function finds something, in words.
        source: of the threshold.
        advice: one line on what to do.
        judge: the function.
        thresholds: the names of its keyword-only arguments that are numbers, with their defaults.
        needs: what must be recorded to judge a run by this rule: numbers at a port, as ``rms:output``, or the name of a scalar.
            Where one rule can do with either of two, they stand in one text, as ``loss|val_loss``. Empty for a rule of tables.
        at: the port at whose rows a rule of the user's own is judged, or ``scalars``; ``""`` for a built-in rule.
        reads: of a rule of the user's own, the numbers that it takes.
    """

    name: str
    condition: str
    source: str
    advice: str
    judge: Callable[..., Finding | None]
    thresholds: Mapping[str, float] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    at: str = ""
    reads: tuple[str, ...] = ()


RULES: dict[str, Rule] = {}
"""Every rule by its name."""

_Numbers = ParamSpec("_Numbers")
Said = Finding | str | bool | None
"""What a rule's function returns: a finding, its message alone, or whether the condition holds."""


def rule(
    condition: str, source: str = "", advice: str = "", *, needs: tuple[str, ...] = (), at: str = ""
) -> Callable[[Callable[_Numbers, Said]], Callable[_Numbers, Finding | None]]:
    """List the decorated function as a rule, under its own name: every ``watch`` and ``check`` after that applies the rule.

    The function takes numbers of one row by their names (``rms``, ``absmax``, whatever a lens records), and returns whether
    something is wrong: True, a message, or a :class:`Finding`. Keyword-only arguments are thresholds, which ``rules=`` can set::

        @sonde.rule("an output is far off zero", at="output", advice="normalise it")
        def off_centre(mean, rms, *, share=0.9):
            return abs(mean) > share * rms

    A rule alarms at a place where it finds something in 3 of the last 5 logged steps that have these numbers.

    Args:
        condition: under which the function finds something, in words.
        source: of the threshold.
        advice: one line on what to do.
        needs: of a built-in rule, see :class:`Rule`.
        at: the port at whose rows the function is called, as ``"output"`` or ``"grad"``; or ``"scalars"``: its arguments are then
            names of pushed values or norms, as ``loss``. Built-in rules have none: their callers know their numbers.

    Raises:
        ArgumentError: *at* is no port, or the function takes no number; or a built-in rule has the same name.
    """

    def listed(judge: Callable[_Numbers, Said]) -> Callable[_Numbers, Finding | None]:
        name = judge.__name__
        given = inspect.signature(judge).parameters.values()
        thresholds = {
            each.name: each.default
            for each in given
            if each.kind is each.KEYWORD_ONLY and isinstance(each.default, int | float) and not isinstance(each.default, bool)
        }
        reads = tuple(each.name for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD))

        @wraps(judge)
        def judged(*args: _Numbers.args, **kwargs: _Numbers.kwargs) -> Finding | None:
            said = judge(*args, **kwargs)
            if said is None or said is False:
                return None
            if not isinstance(said, Finding):
                numbers: tuple[Any, ...] = args
                seen = {key: float(value) for key, value in zip(reads, numbers, strict=False)} if at else {}
                message = said if isinstance(said, str) else condition
                said = Finding("", message, value=next(iter(seen.values()), math.nan), evidence=seen)
            return replace(said, rule=name, advice=said.advice or advice)

        if at:
            _check_own(name, at, reads)
            wanted = reads if at == "scalars" else tuple(f"{number}:{at}" for number in reads)
            RULES[name] = Rule(name, condition, source, advice, judged, MappingProxyType(thresholds), wanted, at, reads)
        else:
            RULES[name] = Rule(name, condition, source, advice, judged, MappingProxyType(thresholds), needs)
        return judged

    return listed


def _check_own(name: str, at: str, reads: tuple[str, ...]) -> None:
    if at not in (*PORTS, "scalars"):
        raise ArgumentError(f"the rule {name!r} is judged at={at!r}: give a port ({', '.join(PORTS)}), or 'scalars'")
    if not reads:
        raise ArgumentError(f"the rule {name!r} takes no number: name those that it judges, as in def {name}(rms): ...")
    if name in RULES and not RULES[name].at:
        raise ArgumentError(
            f"{name!r} is a rule of sonde: give yours another name, or set its thresholds with rules={{{name!r}: ...}}"
        )
