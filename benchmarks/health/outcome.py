"""Train a case, and compare the findings with the truth."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from benchmarks.health import baselines
from benchmarks.health.case import Case, Truth
from benchmarks.health.symptoms import symptom_of
from benchmarks.health.training import run

from sonde.site import Site

SPARSE = {"dead": 10}
"""Symptoms whose lens looks at one of so many logged steps."""


@dataclass(frozen=True)
class Alarm:
    """One finding of sonde, or of a baseline.

    Attributes:
        rule, symptom: which rule spoke, and of what.
        site: where; ``""`` is no place in the network.
        step: the first step at which it was seen; None if the judge does not say.
        message: in words.
    """

    rule: str
    symptom: str
    site: str = ""
    step: int | None = None
    message: str = ""


@dataclass
class Outcome:
    """What a judge found in one training.

    Attributes:
        case, kind, seed, every, judge: which training, at which interval of logged steps, and who judged.
        healthy: whether any alarm is false.
        hidden: why the fault cannot be seen; ``""`` if it can.
        alarms: all findings.
        found: whether one of them shows the fault.
        placed, timed: whether the first of those names the right layer, and the right step; None where the truth has none.
        false: the rules that spoke of what is not there.
        expected: the symptoms of the truth that show the fault.
        seconds: of the whole training, at all intervals.
        error: the exception that ended the training, if there was one.
    """

    case: str
    kind: str
    seed: int
    every: int
    judge: str
    healthy: bool
    hidden: str = ""
    alarms: list[Alarm] = field(default_factory=list)
    found: bool = False
    placed: bool | None = None
    timed: bool | None = None
    false: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, known: dict[str, Any]) -> Outcome:
        """Return the outcome that :meth:`as_dict` gave."""
        return cls(**{**known, "alarms": [Alarm(**each) for each in known["alarms"]]})


def measure(case: Case, seed: int, intervals: Sequence[int]) -> list[Outcome]:
    """Train *case* once, and judge the rows of every interval; one outcome for each interval and judge."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    start = time.perf_counter()
    known = {"case": case.name, "kind": case.kind, "seed": seed, "healthy": case.healthy}
    try:
        training, truth = case.build(case.kind, seed)
        inspectors = run(training, intervals)
        alarms: dict[tuple[int, str], list[Alarm]] = {}
        for every, inspector in zip(intervals, inspectors, strict=True):
            alarms[every, "sonde"] = of_sonde(inspector.findings)
            recorded = baselines.Recorded(inspector.run)
            for tool in baselines.NAMES:
                alarms[every, tool] = [Alarm(*each) for each in baselines.alarms(tool, recorded)]
    except Exception:  # a case that breaks is shown as such, and the others go on
        return [Outcome(**known, every=every, judge="sonde", error=traceback.format_exc()) for every in intervals]
    seconds = time.perf_counter() - start
    return [
        judged(Outcome(**known, every=every, judge=judge, alarms=found, seconds=seconds), truth)
        for (every, judge), found in alarms.items()
    ]


def of_sonde(findings: Sequence[Any]) -> list[Alarm]:
    """Return findings of sonde as alarms."""
    return [
        Alarm(
            each.rule, symptom_of(each.rule), each.site, each.first_step if each.first_step is not None else each.step, each.message
        )
        for each in findings
        if each.severity != "note"
    ]


def judged(outcome: Outcome, truth: Truth) -> Outcome:
    """Compare the alarms of *outcome* with the truth; return it filled in."""
    outcome.hidden, outcome.expected = truth.hidden, sorted(truth.expected)
    outcome.false = [
        each.rule for each in outcome.alarms if each.symptom not in truth.expected and each.symptom not in truth.allowed
    ]
    right = [each for each in outcome.alarms if each.symptom in truth.expected]
    if outcome.healthy or truth.hidden or not right:
        return outcome
    first = right[0]
    outcome.found = True
    place = truth.expected[first.symptom]
    if place and not (truth.spreads and truth.step is not None and truth.step % outcome.every):
        outcome.placed = bool(first.site) and re.fullmatch(place, Site.parse(first.site).path) is not None
    if truth.step is not None:
        latest = (truth.step if truth.until is None else truth.until) + outcome.every * SPARSE.get(first.symptom, 1)
        outcome.timed = first.step is not None and truth.step <= first.step <= latest
    return outcome
