"""Answer what the rules have found in a run: what the training wrote down, and what all rules find in all rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sonde.errors import SiteError
from sonde.rules import RULES, Finding
from sonde.run import check
from sonde.site import Site
from sonde.view.app.answers.opened_run import OpenedRun

__all__ = ["alerts_data", "findings"]

_FEW, _FEW_OF_MANY = 1_000_000, 150_000  # rows that are judged in seconds; of a run that goes on, each time it has grown
_GRAVEST = ("bad", "error", "warn", "warning", "note")


def findings(opened: OpenedRun, *, every: bool | None = None) -> dict[str, Any]:
    """Return what the rules find in a run, the gravest first, and which could not judge it.

    Args:
        opened: the run.
        every: whether the rules look at every row now; otherwise the answer is what the training has written down, without the
            numbers that the rules compared. None: yes, unless the run has so many rows that a reader would wait.

    Returns:
        ``complete``: whether the rules have looked at every row;
        ``findings``: of each ``rule``, ``severity``, ``message``, ``site``, ``layer``, ``call``, ``step``, ``first_step``,
        ``evidence`` (names and numbers), ``condition``, ``advice``, ``source``, and ``link``, the picture that shows it;
        ``not_judged``: rules and what they need; ``applied``: how many rules there were; ``told``: alerts of the training itself
        that are of no rule.
    """
    if every is False or (every is None and opened.rows > (_FEW if opened.run.state != "running" else _FEW_OF_MANY)):
        told = alerts_data(opened)
        by_rule = [each for each in told if each["rule"] in RULES]
        return {"complete": False, "findings": by_rule, "not_judged": [], "told": [each for each in told if each not in by_rule]}
    found = check(opened.run)
    return {
        "complete": True,
        "findings": [_data(opened, each) for each in found],
        "not_judged": [{"rule": rule, "needs": needs} for rule, needs in found.not_judged.items()],
        "applied": found.applied,
        "told": [each for each in alerts_data(opened) if each["rule"] not in RULES],
    }


def alerts_data(opened: OpenedRun) -> list[dict[str, Any]]:
    """Return what the training has written down, each rule at each site once, the gravest first."""
    found: dict[tuple[str, str, str], Finding] = {}
    for alert in opened.run.alerts:
        rule, site = alert["rule"] or "", alert["site"] or ""
        value = math.nan if alert["value"] is None else float(alert["value"])
        known = Finding(
            rule,
            alert["message"] or "",
            site,
            alert["epoch"],
            alert["step"],
            value,
            severity=alert["severity"],
            call=-1 if alert["call"] is None else alert["call"],
            first_step=alert["first_step"],
            evidence=alert["evidence"] or {},
            advice=alert["advice"] or "",
        )
        found.setdefault((rule, site, "" if rule else known.message), known)
    return sorted((_data(opened, each) for each in found.values()), key=lambda each: _grave(each["severity"]))


def _grave(severity: str) -> int:
    return _GRAVEST.index(severity) if severity in _GRAVEST else len(_GRAVEST)


def _data(opened: OpenedRun, found: Finding) -> dict[str, Any]:
    rule = RULES.get(found.rule)
    site = _parsed(found.site)
    first = found.step if found.first_step is None else found.first_step
    return {
        "rule": found.rule,
        "severity": {"error": "bad", "warning": "warn"}.get(found.severity, found.severity),
        "message": found.message,
        "site": found.site,
        "layer": "" if site is None else site.owner.name,
        "call": found.call,
        "step": found.step,
        "first_step": first,
        "evidence": [{"name": name, "value": _finite(value)} for name, value in _evidence(found).items()],
        "condition": "" if rule is None else rule.condition,
        "advice": found.advice or ("" if rule is None else rule.advice),
        "source": "" if rule is None else rule.source,
        "link": _link(opened, found.rule, site, first),
    }


def _evidence(found: Finding) -> Mapping[str, float]:
    return found.evidence or ({} if math.isnan(found.value) else {"value": found.value})


def _finite(value: float) -> float | str:
    """Return *value*, or the text of a NaN or an infinity, for which JSON has no numbers."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"


def _parsed(text: str) -> Site | None:
    try:
        return Site.parse(text) if text else None
    except SiteError:  # what another program wrote
        return None


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
