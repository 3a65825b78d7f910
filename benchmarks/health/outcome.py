"""Train a case, and compare the findings with the truth."""

from __future__ import annotations

import re
import shutil
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.health import baselines
from benchmarks.health.case import Case, Truth
from benchmarks.health.symptoms import symptom_of
from benchmarks.health.training import Training, run

from sonde.rules import Finding
from sonde.run import Run, check, open_run
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


def measure(case: Case, seed: int, intervals: Sequence[int], kept: Path | None = None) -> list[Outcome]:
    """Train *case* once, and judge the rows of every interval; return one outcome for each interval and judge.

    Args:
        case, seed, intervals: the training.
        kept: the folder that keeps its runs; None keeps none. If they are there, nothing is trained, and they are judged by the
            rules as they are now: only what a training itself can see is in their alerts as it was.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    start = time.perf_counter()
    known = {"case": case.name, "kind": case.kind, "seed": seed, "healthy": case.healthy}
    try:
        training, truth = case.build(case.kind, seed)
        found = _trained(training, intervals) if kept is None else _kept(training, intervals, kept / run_name(case, seed))
        alarms: dict[tuple[int, str], list[Alarm]] = {}
        for every, (findings, rows) in found.items():
            alarms[every, "sonde"] = of_sonde(findings)
            recorded = baselines.Recorded(rows)
            for tool in baselines.NAMES:
                alarms[every, tool] = [Alarm(*each) for each in baselines.alarms(tool, recorded)]
    except Exception:  # a case that breaks is shown as such, and the others go on
        return [Outcome(**known, every=every, judge="sonde", error=traceback.format_exc()) for every in intervals]
    seconds = time.perf_counter() - start
    return [
        judged(Outcome(**known, every=every, judge=judge, alarms=found, seconds=seconds), truth)
        for (every, judge), found in alarms.items()
    ]


Judged = dict[int, tuple[Sequence[Finding], Run]]


def _trained(training: Training, intervals: Sequence[int]) -> Judged:
    inspectors = run(training, dict.fromkeys(intervals, "memory"))
    return {every: (each.findings, each.run) for every, each in zip(intervals, inspectors, strict=True)}


def _kept(training: Training, intervals: Sequence[int], folder: Path) -> Judged:
    """Train into *folder*, unless that was done."""
    if not folder.exists():
        unfinished = folder.with_name(f".{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        run(training, {every: unfinished / f"every{every}" for every in intervals})
        unfinished.rename(folder)
    runs = {every: open_run(folder / f"every{every}") for every in intervals}
    return {every: (check(each).findings, each) for every, each in runs.items()}


def run_name(case: Case, seed: int) -> str:
    """Return the name of the folder of the runs of a training."""
    words = re.sub(r"[^a-z0-9]+", "-", str(case).lower()).strip("-")
    return f"{words}-seed{seed}"


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
