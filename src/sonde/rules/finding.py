"""The finding, the entry of a rule, the list of all entries, and the decorators that put a function on the list."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Literal, ParamSpec

from sonde.errors import ArgumentError
from sonde.rules.window import Window
from sonde.site import PORTS

Quantity = Literal["setup", "input", "initialisation", "output", "loss", "gradient", "update", "weight"]
"""What a rule looks at. A ``setup`` holds from the beginning; an ``initialisation`` is weights before the first step."""
Way = Literal["large", "jump", "small", "lost", "still", "broken"]
"""How that is wrong: it is or becomes too large, jumps, is too small, holds no information, does not move, is not finite."""
About = tuple[Quantity, Way]
"""What a finding of a rule says, so that :mod:`sonde.rules.story` can tell which one explains which."""

Circumstance = Literal["helped", "low", "learnt", "falls", "converged", "in turns"]
"""What makes it right as it is: the loss fell behind the step, is well below its first values, also near its smallest one, falls
from third to third of the run, has come to its end; or the parts of the model are trained against each other, step about."""

Lowered = Literal["lr", "clip_grad_norm"]
"""A setting that an advice lowers, by its name in ``sonde.replay(change=)``; a norm that is not clipped counts as unbounded."""
_LOWER = {"lr": "lower a learning rate that is no usual one", "clip_grad_norm": "clip the gradient norm"}

Severity = Literal["note", "warn", "bad"]
"""``note``: worth a look, shown in tables; ``warn``: unusual; ``bad``: wrong in any training. Findings are ``warn`` and ``bad``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where.

    >>> from sonde.types import Finding
    >>> found = Finding("dead_units", "half of the units are dead", severity="warn")
    >>> found.at("1:output", epoch=0, step=20).site
    '1:output'

    Attributes:
        rule: its name in ``RULES``.
        message: what is wrong, in words.
        site: the first or worst place; ``""`` if it is no place in the network.
        epoch, step: when, or of the last row that was looked at.
        value: the number that the rule is about.
        severity: ``note``, ``warn`` or ``bad``.
        call: which call of the module; -1 is all calls together.
        first_step: the first step at which it was seen; None if that is not known.
        evidence: the numbers that the rule compared, by name; those that are known.
        advice: one line on what to do; may be empty.
        condition, source: those of the rule, so that a finding can be read where its rule is not known; may be empty.
        places: the names of all places, the first or worst first; empty for what is no place.
        opened: the step at which it was found; None if it was found in no training.
        last_step: the last step at which it was seen; None if that is not followed.
        follows: the rules of the findings that explain this one, as text; ``""`` of a root, which none explains.
        order: of the first of its places in the order of execution, when it was found; -1 if that is not known.
        proof: what became of its advice where it was tried: ``proved: ...`` or ``likely: ...``; ``""`` where it was not.
        quantity: what it is about, if that is another quantity than that of its rule; ``""`` if not.
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
    condition: str = ""
    source: str = ""
    places: tuple[str, ...] = ()
    opened: int | None = None
    last_step: int | None = None
    follows: str = ""
    order: int = -1
    quantity: str = ""
    proof: str = ""

    def __deepcopy__(self, memo: object) -> Finding:
        """Return this: it never changes."""
        return self

    @property
    def found_at(self) -> int:
        """The step at which it was found, as far as that is known."""
        return self.step if self.opened is None else self.opened

    @property
    def begun(self) -> int:
        """The step since which it holds, as far as that is known."""
        return self.step if self.first_step is None else self.first_step

    @property
    def model(self) -> str:
        """The name of the model of the site; ``""`` in a run of one model, and of what is no place in a network."""
        return self.site.partition("/")[0] if "/" in self.site else ""

    @property
    def identity(self) -> tuple[str, str, int, bool]:
        """What tells findings apart: the rule, the model of the site, of a NaN or infinity the step, and whether it is a note."""
        return self.rule, self.model, self.step if self.rule == "nonfinite" else -1, self.severity == "note"

    def at(self, site: str, epoch: int, step: int, message: str = "") -> Finding:
        """The same finding at a place and a time, with *message* if one is given."""
        return replace(self, site=site, epoch=epoch, step=step, message=message or self.message)


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of ``RULES``.

    >>> from sonde.rules import RULES
    >>> rule = RULES["update_large"]
    >>> rule.name, dict(rule.thresholds)
    ('update_large', {'most': 0.2})

    Attributes:
        name: of the function.
        condition: under which the function finds something, in words.
        source: of the threshold.
        advice: one line on what to do.
        judge: returns what the rule finds in the numbers of one place at one moment; None if nothing.
        thresholds: the names of its keyword-only arguments that are numbers, with their defaults.
        needs: what must be recorded to judge a run by this rule: numbers at a port, as ``rms:output``, or the name of a scalar.
            Where one rule can do with either of two, they stand in one text, as ``loss|val_loss``. Empty for a rule of tables.
        at: where rows of a run are judged: at a port, ``scalars``, or places that the room has a name for, as ``updates``; ``""``
            for a rule whose numbers another class collects.
        reads: the numbers that it takes, by the names of the arguments.
        required: those without a default.
        measure: of a built-in rule, returns of arrays where the condition holds, and the values; None for a rule of the user's own.
        window: how often the condition must hold; None: once.
        least: without so many logged steps, or values of a scalar, the rule cannot find anything; or the threshold that says it.
        brings: the rules whose findings follow from one of this rule, and are then no findings of their own.
        note_until: the threshold up to which a value is a note; ``""``: none is.
        about: the quantity of its findings, and how that is wrong; None: it explains no other finding, and none explains it.
        unless: under any of these circumstances its findings are none.
        tries: the settings that its advice lowers: what a :class:`sonde.Proof` tries.
        symptom: its findings say what is seen, and nothing of why: where they are roots, other roots stand before them.
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
    required: frozenset[str] = frozenset()
    measure: Callable[..., tuple[Any, Any]] | None = None
    window: Window | None = None
    least: int | str = 1
    brings: frozenset[str] = frozenset()
    note_until: str = ""
    about: About | None = None
    unless: tuple[Circumstance, ...] = ()
    tries: tuple[Lowered, ...] = ()
    symptom: bool = False

    def __deepcopy__(self, memo: object) -> Rule:
        """Return this: an entry never changes."""
        return self


RULES: dict[str, Rule] = {}
"""Every rule by its name."""

_Numbers = ParamSpec("_Numbers")
Said = Finding | str | bool | None
"""What the function of a user's rule returns: a finding, its message alone, or whether the condition holds."""

Judged = Iterator[bool | float | str]
"""What the function of a built-in rule yields: whether its condition holds, its value, its words, and perhaps a severity."""


def entry(
    condition: str,
    source: str,
    advice: str,
    *,
    needs: tuple[str, ...] = (),
    severity: Severity = "warn",
    note_until: str = "",
    evidence: tuple[str, ...] = (),
    at: str = "",
    window: Window | None = None,
    least: int | str = 0,
    brings: tuple[str, ...] = (),
    about: About | None = None,
    unless: tuple[Circumstance, ...] = (),
    tries: tuple[Lowered, ...] = (),
    symptom: bool = False,
) -> Callable[[Callable[_Numbers, Judged]], Callable[_Numbers, Finding | None]]:
    """List the decorated function as a built-in rule, under its own name.

    The function yields, in this order, whether something is wrong, the number that the finding is about, and the words; a fourth
    value is the severity, if it is not always the same one. Numbers of many places at many steps come as arrays: they are asked for
    the first two, which arrays must be able to answer (``&`` and ``|``, ``np.maximum``). The rest is asked for where the condition
    holds, of single numbers. Keyword-only arguments are thresholds, which ``rules=`` can set::

        @entry("an output above 1,000", "our own", "normalise it", needs=("rms:output",), at="output", window=Window(3, 5))
        def too_large(rms: float, *, most: float = 1000.0) -> Judged:
            yield rms > most
            yield rms
            yield f"its size is {short(rms)}"

    Args:
        condition, source, needs, note_until, at, window, brings, about, unless, tries, symptom: see :class:`Rule`.
        advice: see :class:`Rule`; ``{lr}`` and ``{clip_grad_norm}`` stand for the words of what it *tries*.
        severity: of its findings.
        evidence: the names under which a finding has the arguments, in their order, ``""`` for one that it has not; by default
            their own names.
        least: see :class:`Rule`; by default as many as the window asks for.
    """
    told_advice = advice.format(**{each: _LOWER[each] for each in tries}) if tries else advice

    def listed(function: Callable[_Numbers, Judged]) -> Callable[_Numbers, Finding | None]:
        name = function.__name__
        reads, thresholds, defaults = _arguments(function)

        @wraps(function)
        def judged(*args: _Numbers.args, **kwargs: _Numbers.kwargs) -> Finding | None:
            parts: Iterator[Any] = function(*args, **kwargs)
            if not next(parts):
                return None
            value, words = next(parts), next(parts)
            given: dict[str, Any] = {**defaults, **dict(zip(reads, args, strict=False)), **kwargs}
            is_note = note_until and value <= given.get(note_until, thresholds[note_until])
            shown = zip(reads, evidence or reads, strict=True)
            known = {as_what: given[read] for read, as_what in shown if as_what and not math.isnan(given[read])}
            graveness = "note" if is_note else next(parts, severity)
            told = Finding(name, words, value=float(value), severity=graveness, evidence=known, advice=told_advice)
            return replace(told, condition=condition, source=source)

        def measure(*args: Any, **limits: Any) -> tuple[Any, Any]:
            parts = function(*args, **limits)
            return next(parts), next(parts)

        lasts = least or (window.most if window is not None else 1)
        required = frozenset(reads) - defaults.keys()
        RULES[name] = Rule(
            name, condition, source, told_advice, judged, thresholds, needs, at, reads, required, measure, window, lasts,
            frozenset(brings), note_until, about, unless, tries, symptom,
        )  # fmt: skip
        return judged

    return listed


def rule(
    condition: str, source: str = "", advice: str = "", *, at: str
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
        at: the port at whose rows the function is called, as ``"output"`` or ``"grad"``; or ``"scalars"``: its arguments are then
            names of pushed values or norms, as ``loss``.

    Raises:
        ArgumentError: *at* is no port, or the function takes no number; or a built-in rule has the same name.
    """

    def listed(judge: Callable[_Numbers, Said]) -> Callable[_Numbers, Finding | None]:
        name = judge.__name__
        reads, thresholds, _ = _arguments(judge)

        @wraps(judge)
        def judged(*args: _Numbers.args, **kwargs: _Numbers.kwargs) -> Finding | None:
            said = judge(*args, **kwargs)
            if said is None or said is False:
                return None
            if not isinstance(said, Finding):
                numbers: tuple[Any, ...] = args
                seen = {key: float(value) for key, value in zip(reads, numbers, strict=False)}
                message = said if isinstance(said, str) else condition
                said = Finding("", message, value=next(iter(seen.values()), math.nan), evidence=seen)
            return replace(said, rule=name, advice=said.advice or advice, condition=condition, source=source)

        _check_own(name, at, reads)
        wanted = reads if at == "scalars" else tuple([f"{number}:{at}" for number in reads])
        RULES[name] = Rule(
            name, condition, source, advice, judged, thresholds, wanted, at, reads, frozenset(reads), window=Window()
        )
        return judged

    return listed


def _arguments(function: Callable[..., object]) -> tuple[tuple[str, ...], Mapping[str, float], Mapping[str, float]]:
    """Return the names of the numbers that *function* takes, its thresholds, and the defaults of the numbers that have one."""
    given = inspect.signature(function).parameters.values()
    reads = [each for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    thresholds = {
        each.name: each.default
        for each in given
        if each.kind is each.KEYWORD_ONLY and isinstance(each.default, int | float) and not isinstance(each.default, bool)
    }
    defaults = {each.name: each.default for each in reads if each.default is not each.empty}
    return tuple([each.name for each in reads]), MappingProxyType(thresholds), defaults


def _check_own(name: str, at: str, reads: tuple[str, ...]) -> None:
    if at not in (*PORTS, "scalars"):
        raise ArgumentError(f"the rule {name!r} is judged at={at!r}: give a port ({', '.join(PORTS)}), or 'scalars'")
    if not reads:
        raise ArgumentError(f"the rule {name!r} takes no number: name those that it judges, as in def {name}(rms): ...")
    if name in RULES and RULES[name].measure is not None:
        raise ArgumentError(
            f"{name!r} is a rule of sonde: give yours another name, or set its thresholds with rules={{{name!r}: ...}}"
        )
