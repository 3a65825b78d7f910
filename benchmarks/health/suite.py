"""Choose cases and measure them, in one process or several."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from benchmarks.health import controls, failures
from benchmarks.health.case import CONTROLS, FAILURES, Case, Truth
from benchmarks.health.outcome import Outcome, judged, measure
from benchmarks.health.symptoms import symptom_of

assert controls
assert failures  # imported to list their cases


def chosen(only: str, *, healthy: bool | None = None) -> list[Case]:
    """Return the cases whose name matches *only*, a regular expression."""
    cases = [*FAILURES, *CONTROLS]
    return [each for each in cases if re.search(only, str(each)) and healthy in (None, each.healthy)]


def _measured(name: str, kind: str, healthy: bool, seed: int, intervals: Sequence[int], kept: Path | None) -> list[Outcome]:
    """Measure a case by its name: functions made inside others do not travel between processes."""
    held = CONTROLS if healthy else FAILURES
    return measure(next(each for each in held if (each.name, each.kind) == (name, kind)), seed, intervals, kept)


def outcomes_of(
    cases: Sequence[Case], seeds: Sequence[int], intervals: Sequence[int], processes: int = 1, kept: Path | None = None
) -> Iterator[list[Outcome]]:
    """Yield the outcomes of each case and seed, as they end, one seed of all cases after the other.

    *kept* is the folder that keeps their runs.
    """
    if processes == 1:
        for seed in seeds:
            for case in cases:
                yield measure(case, seed, intervals, kept)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [
            pool.submit(_measured, each.name, each.kind, each.healthy, seed, intervals, kept) for seed in seeds for each in cases
        ]
        for done in as_completed(waiting):
            yield done.result()


def judged_anew(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Yield outcomes that were kept, compared with the truths as they are now; without those of cases that are gone."""
    truths: dict[tuple[str, str, int], Truth] = {}
    cases = {(each.name, each.kind): each for each in [*FAILURES, *CONTROLS]}
    for outcome in outcomes:
        case, key = cases.get((outcome.case, outcome.kind)), (outcome.case, outcome.kind, outcome.seed)
        if case is None:
            continue
        if key not in truths:
            truths[key] = Truth() if case.healthy else case.build(case.kind, outcome.seed)[1]
        alarms = outcome.alarms
        if outcome.judge == "sonde":
            alarms = [replace(each, symptom=symptom_of(each.rule)) for each in alarms]
        yield judged(replace(outcome, alarms=alarms, found=False, placed=None, timed=None), truths[key])
