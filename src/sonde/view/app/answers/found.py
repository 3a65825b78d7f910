"""Answer what was found in a run, by its record: the findings, how many, and what they leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sonde.rules import RULES, Finding
from sonde.run import Run, check, counted
from sonde.site import Site
from sonde.view.app.answers.opened_run import OpenedRun, site_or_none


def findings(opened: OpenedRun, *, every: bool = False) -> dict[str, Any]:
    """Return the findings in the record of a run, as it tells them, and what they leave out.

    Args:
        opened: the run.
        every: judge every row now. Of a run that has ended the record holds what is found from then on.

    Returns:
        ``findings``: of each ``rule``, ``severity``, ``message``, ``site``, ``layer``, ``call``, ``step``, ``first_step``,
        ``last_step``, ``evidence`` (names and numbers), ``condition``, ``advice``, ``source``, ``follows``, and ``link``, the
        picture that shows it; ``not_judged``: rules and what they need; ``applied``: how many rules there were; and what
        :func:`standing` says.
    """
    if every:
        checked = check(opened.run)
        found, missing, applied = list(checked.findings), checked.not_judged, checked.applied
        said = {**standing(opened.run), "counted": counted(found)}
    else:
        record = opened.run.record
        found, missing, applied, said = record.findings, dict(record.not_judged), len(record.rules), standing(opened.run)
    return {
        **said,
        "findings": [_data(opened, each) for each in found],
        "not_judged": [{"rule": rule, "needs": needs} for rule, needs in missing.items()],
        "applied": applied,
    }


def standing(run: Run) -> dict[str, Any]:
    """Return how a run is by its record of findings.

    Returns:
        ``health``: the verdict, and ``unknown`` in place of ``ok`` where ``shortfalls`` (in words) say what the findings leave out;
        ``counted``: how many findings there are, in words; ``judged``: the last step that was judged, or None.
    """
    record, doubts = run.record, run.shortfalls
    return {
        "health": record.health(doubts),
        "shortfalls": doubts,
        "counted": counted(record.findings),
        "judged": record.step if record.step >= 0 else None,
    }


def findings_data(opened: OpenedRun) -> list[dict[str, Any]]:
    """Return the findings in the record: a root, then what follows from it."""
    return [_data(opened, each) for each in opened.run.findings]


def _data(opened: OpenedRun, found: Finding) -> dict[str, Any]:
    site = site_or_none(found.site)
    return {
        "rule": found.rule,
        "severity": found.severity,
        "message": found.message,
        "site": found.site,
        "layer": "" if site is None else site.owner.name,
        "call": found.call,
        "step": found.step,
        "first_step": found.begun,
        "last_step": found.last_step,
        "evidence": [{"name": name, "value": _finite(value)} for name, value in _evidence(found).items()],
        "condition": found.condition,
        "advice": found.advice,
        "source": found.source,
        "follows": found.follows,
        "link": _link(opened, found.rule, site, found.begun),
    }


def _evidence(found: Finding) -> Mapping[str, float]:
    return found.evidence or ({} if math.isnan(found.value) else {"value": found.value})


def _finite(value: float) -> float | str:
    """Return *value*, or the text of a NaN or an infinity, for which JSON has no numbers."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"


def _link(opened: OpenedRun, rule: str, site: Site | None, step: int) -> dict[str, Any]:
    """Return the view that shows a finding: its number at its site, or the overview where it is of no place."""
    if site is None:
        return {"view": "overview", "step": step}
    needs = RULES[rule].needs if rule in RULES else ()
    wanted = [need.partition(":") for text in needs for need in text.split("|")]
    names = [f"{number}@{port}" for number, _, port in wanted if port == site.port]
    for name in [*names, f"rms@{site.port}"]:
        found = next((each for each in opened.drawable if each.partition(".")[2] == name), None)
        if found is not None:
            return {"view": "layers", "number": found, "site": str(site.at("")), "step": step}
    return {"view": "layer", "layer": site.owner.name, "step": step}
