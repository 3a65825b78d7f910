"""Tell the findings of one training as a story: which of them explains which others, by what each rule is about.

A step of a training goes through its quantities in one order: an input, the weights, outputs from the first layer to the last,
a loss, gradients, an update, the weights after it. What is *large* makes what comes behind it large, and goes round: weights that
were moved too far make the outputs of the next step large. What is *small*, or has *lost* all information (dead, zero, saturated),
makes gradients and updates of the same step small, or loses them, and the loss stand *still*; it does not go round, since a small
update changes nothing. What is large comes to lose information, too: units that are far beyond their range have no slope. A
rule says what it is about (:data:`About`); nothing here knows a rule by its name.

A finding explains another one if it is about the same model, comes first in steps and in this order, can bring about what the other
one says, and was still there when that began. A link needs two findings: nothing is explained by what was not found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from sonde.rules.finding import RULES, About, Finding, Quantity
from sonde.rules.place_history import RECENT
from sonde.site import GRADIENT_PORTS

_GRAVEST = ("bad", "warn", "note")
_ORDER = ("setup", "input", "initialisation", "output", "loss", "gradient", "update", "weight")
"""The quantities in the order of a step. An initialisation is the weights before the first step."""
_GROWING = frozenset((quantity, way) for quantity in _ORDER[3:] for way in ("large", "jump")) | {
    ("output", "lost"),
    ("gradient", "lost"),
}
_LESS = frozenset({("gradient", "small"), ("gradient", "lost")})
_BRINGS: dict[str, frozenset[tuple[str, str]]] = {
    "large": _GROWING | {("loss", "still")},
    "jump": _GROWING | {("loss", "still")},
    "small": frozenset({("output", "small"), ("output", "lost"), ("update", "small"), ("loss", "still")}) | _LESS,
    "lost": frozenset({("output", "lost"), ("output", "small"), ("update", "small"), ("loss", "still")}) | _LESS,
    "still": frozenset({("loss", "still")}),
    "broken": frozenset(),
}
"""Which findings can follow from what is large, small, ...; a NaN follows from what grows, and everything after it from a NaN."""
_AT_PORT = {"param": "initialisation", "update": "update"} | dict.fromkeys(GRADIENT_PORTS, "gradient")
"""Which quantity holds a NaN, by the port of its site. A parameter may have held it when the step began. That no size can explain
it, as a logarithm of 0, the finding itself says: its quantity is ``setup``."""
_GOES_ROUND = ("large", "jump", "still", "broken")
_SUDDEN = ("jump", "broken")
_BEFORE = (("weight", "jump"),)  # what was done between two steps, and is seen in the later one: all of that meets it
_MOVED = 5  # times as long as others an update that was too large explains what comes: the weights stay where it has moved them
_MOVING = ("setup", "input", "update", "weight")  # a loss may excuse the large steps that an input has led to, not what came of it
_UNKNOWN = "nothing recorded says why:"  # in an advice, where another finding may say it
_THIRD = 3  # of the span in which a loss stands still: it is compared in thirds


def told(findings: Iterable[Finding], gap: int = 1) -> list[Finding]:
    """Return *findings* in the order of their story: a root, behind it what follows from it, then the next root; the gravest first.

    >>> from sonde.rules import Finding, told
    >>> late, bad = Finding("dead", "dead", step=9), Finding("nonfinite", "a NaN", step=20, severity="bad")
    >>> [each.rule for each in told([late, bad])]
    ['nonfinite', 'dead']

    A root is what no other finding explains: its ``follows`` is empty. That of another finding names the rules of its roots, joined
    by ``or`` where several can explain it, the nearest in time first.

    Args:
        findings: of one run.
        gap: how many steps lie between two that are logged.
    """
    alone = (replace(each, follows="") for each in findings)
    listed = sorted(alone, key=lambda each: (*gravity(each), _moment(each), each.rule, each.site))
    causes = [
        [at for at, cause in enumerate(listed) if _explains(cause, each, gap, is_graver=at < place)]
        for place, each in enumerate(listed)
    ]
    found: dict[int, list[Finding]] = {}
    for place, each in enumerate(listed):
        roots = _roots(place, causes)
        near = sorted(roots, key=lambda root: (-min(listed[root].begun, each.begun), root))
        names = " or ".join(dict.fromkeys(listed[root].rule for root in near)) if near != [place] else ""
        why = names or " or ".join(dict.fromkeys(note.rule for note in listed if _may_explain(note, each)))
        advice = each.advice.replace(_UNKNOWN, f"{why} may say why: else") if why else each.advice
        found.setdefault(near[0], []).append(replace(each, follows=names, advice=advice))
    chapters = [sorted(held, key=lambda each: (bool(each.follows), *_moment(each))) for held in found.values()]
    chapters.sort(
        key=lambda held: (
            held[0].severity == "note",
            _is_symptom(held[0]),
            not (held[0].severity == "bad" and held[0].begun < _AT_FIRST),
            min(map(gravity, held))[:2],
            gravity(held[0]),
        )
    )
    return [each for held in chapters for each in held]


_AT_FIRST = 20
"""Steps within which what is surely wrong stands before what begins later, whatever comes of that."""


def _is_symptom(each: Finding) -> bool:
    """Return whether a finding says what is seen, and nothing of why."""
    return each.rule in RULES and RULES[each.rule].symptom


def chapters(findings: Iterable[Finding]) -> Iterator[tuple[Finding, list[Finding]]]:
    """Yield of findings in the order of :func:`told` each root with what follows from it.

    >>> from sonde.rules import Finding, chapters, told
    >>> found = [Finding("dead", "half of the units are dead", "1:output", step=20)]
    >>> [(root.rule, len(behind)) for root, behind in chapters(told(found))]
    [('dead', 0)]
    """
    root: Finding | None = None
    behind: list[Finding] = []
    for each in findings:
        if root is not None and each.follows:
            behind.append(each)
            continue
        if root is not None:
            yield root, behind
        root, behind = each, []
    if root is not None:
        yield root, behind


def gravity(each: Finding) -> tuple[int, bool, int]:
    """Return a key that sorts the gravest findings first, of these a NaN, then by step.

    >>> from sonde.rules import Finding, gravity
    >>> late, bad = Finding("dead", "dead", step=9), Finding("nonfinite", "a NaN", step=20, severity="bad")
    >>> [each.rule for each in sorted([late, bad], key=gravity)]
    ['nonfinite', 'dead']
    """
    return _GRAVEST.index(each.severity), each.rule != "nonfinite", each.begun


def related(one: Finding, other: Finding) -> bool:
    """Return whether two findings can be about one model.

    >>> from sonde.rules import Finding, related
    >>> related(Finding("dead", "dead", "G/0:output"), Finding("dead", "dead", "D/0:output"))
    False
    """
    return one.model == other.model or "" in (one.model, other.model)


def implied(each: Finding, there: Iterable[Finding]) -> bool:
    """Return whether *each* says nothing beside a finding in *there*, and so is none of its own.

    >>> from sonde.rules import Finding, implied
    >>> implied(Finding("dead", "dead", "0:output"), [])
    False

    A NaN implies all that was first seen at a later step; others imply what their rules bring.
    """
    return any(
        cause.identity != each.identity and cause.severity != "note" and related(cause, each) and _implies(cause, each)
        for cause in there
    )


def _implies(cause: Finding, each: Finding) -> bool:
    if cause.rule in RULES and each.rule in RULES[cause.rule].brings:
        runs_before = cause.begun == each.begun and 0 <= each.order < cause.order
        return not (runs_before and (_about(each) or ("",))[0] == "output")
    return cause.rule == "nonfinite" != each.rule and (each.first_step or 0) > (cause.first_step or 0)


def _about(each: Finding) -> About | None:
    """Return what a finding is about; None where its rule does not say that."""
    about = RULES[each.rule].about if each.rule in RULES else None
    if about is None:
        return None
    quantity = each.quantity
    if about[1] == "broken" and not quantity:
        place, _, port = each.site.rpartition(":")
        is_batch = port.startswith("input") and place.rpartition("/")[2] == "(root)"
        quantity = "input" if is_batch else _AT_PORT.get(port.partition("[")[0], "output")
    return (cast("Quantity", quantity), about[1]) if quantity in _ORDER else about


def _explains(cause: Finding, each: Finding, gap: int, *, is_graver: bool) -> bool:
    """Return whether *cause* explains *each*; *is_graver* decides between two that are about one thing at one moment.

    A note does not: it is nothing wrong, and as likely to be there for another reason.
    """
    if cause.identity == each.identity or "note" in (cause.severity, each.severity) or not related(cause, each):
        return False
    rule, other = RULES.get(cause.rule), RULES.get(each.rule)
    if rule is None or other is None or (cause.rule in other.brings and each.begun <= cause.begun):
        return False
    if _implies(cause, each) and cause.begun <= each.begun:
        return True
    first, second = _about(cause), _about(each)
    if first is None or second is None or not (_can_bring(first, second) or _is_part(cause, each, first, second)):
        return False
    if second in _BEFORE and rule.symptom:
        return False  # that something grows is no reason why something else has written into it
    return _comes_first(cause, each, first, second, is_graver=is_graver) and _is_there(cause, each, first, second, gap)


def _may_explain(note: Finding, each: Finding) -> bool:
    """Return whether a *note* can bring about what another finding says.

    It is about how a training is set up, or its rule brings that; but units that are dead, or saturated, are so in good ones, too.
    """
    first, second = _about(note), _about(each)
    if note.severity != "note" or each.severity == "note" or first is None or second is None or not related(note, each):
        return False
    if first[0] == "setup":
        return _can_bring(first, second)
    return first[0] in ("input", "gradient") and each.rule in RULES[note.rule].brings


def _can_bring(cause: About, about: About) -> bool:
    (quantity, way), (other, _) = cause, about
    if about[1] == "broken":
        return way in ("large", "jump") and other not in ("setup", "input")
    if about == ("weight", "small"):
        return (quantity, way) in _LESS  # a decay goes on where no gradient stands against it
    if about not in _BRINGS[way] or (other == "weight" and quantity not in _MOVING):
        return False  # nothing but an update moves a weight, and where it was found small, something else has
    start = "initialisation" if quantity == "weight" else quantity
    return way in _GOES_ROUND or about == ("loss", "still") or _ORDER.index(start) <= _ORDER.index(other)


def _is_part(cause: Finding, each: Finding, about: About, other: About) -> bool:
    """Return whether an update is small beside the weight of *cause* alone: the ratio of the two is what is judged."""
    is_weight = about in (("initialisation", "large"), ("weight", "large"))
    return is_weight and other == ("update", "small") and set(each.places) <= set(cause.places)


def _moment(each: Finding) -> tuple[float, int, float]:
    """Return what sorts findings by the moment at which they begin: the step, the quantity in it, the layer."""
    about = _about(each) or ("output",)
    return each.begun, _ORDER.index("initialisation" if about in _BEFORE else about[0]), math.inf if each.order < 0 else each.order


def _comes_first(cause: Finding, each: Finding, about: About, other: About, *, is_graver: bool) -> bool:
    """Return whether *cause* is what comes first: by steps, and within one by quantities and layers."""
    if about[0] == "setup":  # it is so from the beginning, whenever it is seen; its first step is its first effect
        is_of_step = other[0] == "update" or other == ("initialisation", "broken")  # a parameter is looked at behind the step, too
        return each.begun > 0 or other[1] == "still" or about[1] != "large" or is_of_step
    if other[1] == "still":
        span = each.step - each.begun
        return cause.begun <= each.begun + (span if about == ("weight", "jump") else span // _THIRD)  # a jump takes all back
    if cause.begun != each.begun:
        between = each.begun - cause.begun
        is_near = between == 1 and about[0] in ("update", "weight") and other[0] == "output"
        return between > 0 and not (is_near and 0 <= each.order < cause.order)  # the next forward meets it from there on
    first, second = (_ORDER.index("initialisation" if each in _BEFORE else each[0]) for each in (about, other))
    if first != second:
        is_before = about[0] == "initialisation" and 0 <= each.order < cause.order and other[0] == "output"
        return first < second and not is_before
    if other[1] == "broken":
        return False
    if other[0] == "output" and cause.order >= 0 <= each.order and cause.order != each.order:
        return cause.order < each.order
    return is_graver if "jump" not in (about[1], other[1]) or about[1] == other[1] else other[1] == "jump"


def _is_there(cause: Finding, each: Finding, about: About, other: About, gap: int) -> bool:
    """Return whether *cause* was there when *each* began, as far as that is known: what is judged over windows begins later."""
    if other[1] == "still" or about[0] == "setup":
        return True
    if other[1] in _SUDDEN:
        last = cause.begun if cause.last_step is None else cause.last_step
        return last >= each.begun - gap
    since = RECENT * gap if about != ("update", "large") else _MOVED * RECENT * gap
    return cause.last_step is None or cause.last_step >= each.begun - since


def _roots(place: int, causes: Sequence[Sequence[int]]) -> list[int]:
    """Return the places of the findings behind that at *place* which nothing explains; itself where nothing explains it."""
    seen, found, ahead = {place}, [], [place]
    while ahead:
        at = ahead.pop()
        if not causes[at]:
            found.append(at)
        for cause in causes[at]:
            if cause not in seen:
                seen.add(cause)
                ahead.append(cause)
    return found or [place]
