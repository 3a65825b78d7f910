"""The record of the findings of a run: what every list, line, page and report says of it.

A rank that writes rows writes one such document, with each flush of its rows. It has two parts: *seen* is what the training knew
and no row holds, and is never made again; *judged* is what the rules found in the rows, step by step, and can be made again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sonde.answer import Verdict, verdict_of
from sonde.rules import RULES, Chosen, Finding, Severity, chapters, gravity, told
from sonde.run.findings import Findings, combined, grown, located, stands_for
from sonde.words import many, names_text

_SEVERITIES: Mapping[object, Severity] = {"note": "note", "warn": "warn", "bad": "bad", "warning": "warn", "error": "bad"}
_LARGEST = 2**62
_NAMED = 3  # of the findings that follow from one


def severity_of(given: object) -> Severity:
    """Return the severity that *given* names; ``warn`` for another word."""
    return _SEVERITIES.get(given, "warn")


@dataclass(frozen=True)
class Record:
    """The findings of a run, and up to which step its rows were judged, by which rules.

    >>> from sonde.rules import Finding
    >>> from sonde.run import Record
    >>> record = Record(seen=(Finding("dead", "0 is dead", "0:output", step=3),), step=9, steps=10)
    >>> Record.read(record.to_data()).steps, record.health([]), record.shortfalls(9, 0), record.losses()
    (10, 'warn', [], [])
    >>> len(record.up_to(2).seen), record.tells_more_than(Record()), len(Record.merged([record, record]).seen)
    (0, True, 1)

    Attributes:
        seen: what the training knew and no row holds.
        judged: what the rules found in the rows.
        step: the last step that was judged; -1 where none was.
        steps: how many logged steps were judged.
        rules: the thresholds of each rule that was applied.
        not_judged: by rule, what was not recorded that the rule needs.
        too_early: by rule, how many logged steps it needs, where there were fewer.
        fixed: up to this step rows were taken out, and the findings stay as they are; -1 where all rows are there.
        rows: how many rows were to be written.
        lost_rows, lost_steps: how many of them, and how many logged steps, could not be.
        failed: in words, why some rows were not judged; ``""`` where all were.
    """

    seen: tuple[Finding, ...] = ()
    judged: tuple[Finding, ...] = ()
    step: int = -1
    steps: int = 0
    rules: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    not_judged: Mapping[str, str] = field(default_factory=dict)
    too_early: Mapping[str, int] = field(default_factory=dict)
    fixed: int = -1
    rows: int = 0
    lost_rows: int = 0
    lost_steps: int = 0
    failed: str = ""

    @staticmethod
    def of(findings: Findings, seen: Sequence[Finding] = (), *, judged: Sequence[Finding] | None = None) -> Record:
        """Return the record of what *findings* has found so far, and of what the training has *seen*.

        >>> from sonde.run import Findings, Record
        >>> Record.of(Findings()).seen
        ()
        """
        of_rows, beyond = findings.judged() if judged is None else judged, findings.beyond()
        seen = [located(each, [*of_rows, *beyond]) for each in seen]
        return Record(
            (*seen, *[each for each in beyond if not any(stands_for(known, each) for known in seen)]),
            tuple(of_rows),
            findings.step,
            findings.steps,
            {name: thresholds_of(name, findings.chosen) for name in findings.chosen.applied()},
            findings.not_judged(),
            findings.too_early(),
        )

    @property
    def findings(self) -> list[Finding]:
        """All of them, as a story: what explains others before these, of what nothing explains the gravest first.

        Every list, line, page and report shows them in this order; ``follows`` says what explains a finding.
        """
        gap = math.ceil((self.step + 1) / self.steps) if self.steps else 1
        return told(combined(self.seen, self.judged), gap)

    def tells_more_than(self, other: Record) -> bool:
        """Return whether it has rows, losses, or a finding or a place of one that *other* does not have."""
        known = {_key(each): {each.site, *each.places} for each in (*other.seen, *other.judged)}
        found = any(not {each.site, *each.places} <= known.get(_key(each), set()) for each in (*self.seen, *self.judged))
        return bool(found or self.rows or self.lost_rows or self.lost_steps or self.failed)

    @property
    def able(self) -> int:
        """How many rules could find something."""
        return len(self.rules) - len(self.not_judged) - len(self.too_early)

    @property
    def verdict(self) -> Verdict:
        """The gravest of the findings; ``unknown`` where nothing was judged and nothing is worse than a note."""
        worst = verdict_of(self.findings)
        return worst if worst in ("bad", "warn") or (self.steps > 0 and self.able > 0) else "unknown"

    def shortfalls(self, last: int, damaged: int) -> list[str]:
        """Return in words what the findings leave out: steps that were not judged, and rows that are lost.

        Args:
            last: the last step with rows on disk; -1 without any.
            damaged: how many parts of the run cannot be read.
        """
        said = []
        if last >= 0 and not self.steps:
            said.append("no step was judged")
        elif self.step < last:
            said.append(f"judged up to step {self.step:,} of {last:,}")
        if self.failed:
            said.append(self.failed)
        return [*said, *self.losses(), *damage_told(damaged)]

    def losses(self) -> list[str]:
        """Return in words how many steps and rows could not be written."""
        said = [f"{many(self.lost_steps, 'logged step')} lost"] if self.lost_steps else []
        if self.lost_rows:
            share = self.lost_rows / max(self.rows, self.lost_rows)
            said.append(f"{100 if share == 1 else min(max(math.floor(share * 100 + 0.5), 1), 99)} % of rows lost")
        return said

    def health(self, doubts: Sequence[str]) -> Verdict:
        """Return the verdict as a list shows it: ``ok`` only where no shortfalls leave it in doubt."""
        return health_of(self.verdict, doubts)

    def up_to(self, step: int) -> Record:
        """Return the record without what came after *step*."""
        seen, judged = (tuple([each for each in part if each.found_at <= step]) for part in (self.seen, self.judged))
        return replace(self, seen=seen, judged=judged, step=min(self.step, step))

    @staticmethod
    def merged(records: Sequence[Record]) -> Record:
        """Return the records of several ranks, in their order, as one.

        What several ranks have found by one rule in one model is that of the rank that saw it first, with the places of all.
        Judged is what every rank has judged.
        """
        if len(records) == 1:
            return records[0]
        if not records:
            return Record()
        judging = [each for each in records if each.steps] or list(records)
        missing = {name: words for name, words in judging[0].not_judged.items() if all(name in each.not_judged for each in judging)}
        early = {
            name: least
            for each in judging
            for name, least in each.too_early.items()
            if all(name in other.too_early or name in other.not_judged for other in judging)
        }
        return Record(
            _one_of_each([each.seen for each in records]),
            _one_of_each([each.judged for each in records]),
            min(each.step for each in judging),
            max(each.steps for each in judging),
            {name: held for each in reversed(records) for name, held in each.rules.items()},
            missing,
            {name: least for name, least in early.items() if name not in missing},
            max(each.fixed for each in records),
            sum(each.rows for each in records),
            sum(each.lost_rows for each in records),
            sum(each.lost_steps for each in records),
            next((each.failed for each in records if each.failed), ""),
        )

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "step": self.step,
            "steps": self.steps,
            "fixed": self.fixed,
            "rows": {"all": self.rows, "lost": self.lost_rows},
            "lost_steps": self.lost_steps,
            "failed": self.failed,
            "seen": [data_of(each) for each in self.seen],
            "judged": [data_of(each) for each in self.judged],
            "rules": {name: {each: _written(number) for each, number in held.items()} for name, held in self.rules.items()},
            "not_judged": dict(self.not_judged),
            "too_early": dict(self.too_early),
        }

    @staticmethod
    def read(given: Any) -> Record | None:
        """Return the record that *given*, out of a file, holds; None where it holds none. What cannot be used in it is left out."""
        if not isinstance(given, Mapping) or not all(isinstance(given.get(name), list) for name in ("seen", "judged")):
            return None
        seen, judged = ((*filter(None, map(read_finding, given[name])),) for name in ("seen", "judged"))
        rows, rules = given.get("rows"), given.get("rules")
        rows = rows if isinstance(rows, Mapping) else {}
        return Record(
            seen,
            judged,
            _count(given.get("step"), -1),
            _count(given.get("steps")),
            {str(name): _numbers(held) for name, held in (rules if isinstance(rules, Mapping) else {}).items()},
            {str(name): str(words) for name, words in _items(given.get("not_judged"))},
            {str(name): _count(number) for name, number in _items(given.get("too_early"))},
            _count(given.get("fixed"), -1),
            _count(rows.get("all")),
            _count(rows.get("lost")),
            _count(given.get("lost_steps")),
            str(given.get("failed") or ""),
        )


def health_of(verdict: Verdict, doubts: Sequence[str]) -> Verdict:
    """Return the *verdict* as a list shows it: ``ok`` only where no *doubts* are left."""
    return "unknown" if doubts and verdict == "ok" else verdict


def damage_told(parts: int) -> list[str]:
    """Return in words that so many *parts* of a run cannot be read; nothing for none."""
    return [f"{many(parts, 'part')} of the run cannot be read"] if parts else []


def _one_of_each(parts: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    found: dict[Any, Finding] = {}
    for each in (each for part in parts for each in part):
        key = _key(each)
        known = found.get(key)
        first = each if known is None or each.begun < known.begun else known
        found[key] = first if known is None else grown(first, each if first is known else known)
    return tuple(sorted(found.values(), key=gravity))


def _key(each: Finding) -> tuple[object, ...]:
    """Return what tells a finding apart from others; one without a rule is known by its words and its place."""
    return each.identity if each.rule else (each.message, each.step, each.site)


def counted(findings: Sequence[Finding]) -> str:
    """Return how many findings there are, in words, notes apart: ``"2 findings and 1 note"``.

    >>> from sonde.rules import Finding
    >>> from sonde.run import counted
    >>> counted([Finding("dead", "dead")]), counted([])
    ('1 finding', 'no findings')
    """
    notes = sum(each.severity == "note" for each in findings)
    others = len(findings) - notes
    words = [many(number, what) for number, what in ((others, "finding"), (notes, "note")) if number]
    return " and ".join(words) or "no findings"


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each finding that none explains, with the names of those that follow from it.

    >>> from sonde.rules import Finding
    >>> from sonde.run import lines_of
    >>> lines_of([Finding("dead", "0 is dead", "0:output", step=3)])
    ['0 is dead']
    """
    lines = []
    for root, behind in chapters(findings):
        broken = [each for each in behind[_NAMED:] if each.rule == "nonfinite"]  # the end of a training is always named
        named = [_named(each, root) for each in [*behind[: _NAMED - len(broken[:1])], *broken[:1]]]
        rest = [f"{len(behind) - _NAMED:,} more"] if len(behind) > _NAMED else []
        verb = "follows" if len(behind) == 1 else "follow"
        lines.append(root.message + (f"; from it {verb} {', '.join([*named, *rest])}" if behind else ""))
    return lines


def _named(each: Finding, root: Finding) -> str:
    others = [name for name in each.follows.split(" or ") if name != root.rule]
    return f"{each.rule} (step {each.begun:,}{f', or from {names_text(others)}' if others else ''})"


def thresholds_of(rule: str, chosen: Chosen) -> dict[str, float]:
    """Return the thresholds by which *rule* is applied."""
    return {**RULES[rule].thresholds, **chosen.thresholds.get(rule, {})}


# Findings as plain data


def data_of(each: Finding) -> dict[str, Any]:
    """Return a finding as plain data for JSON; a number that is not finite is a text, as ``"inf"``."""
    held = {
        name: getattr(each, name) for name in Finding.__dataclass_fields__ if name not in ("follows", "proof")
    }  # which are no part of it
    evidence = {name: _written(number) for name, number in each.evidence.items()}
    return {**held, "value": _written(each.value), "evidence": evidence, "places": list(each.places)}


def read_finding(given: Any) -> Finding | None:
    """Return the finding that *given*, out of a file, describes; None for another thing."""
    if not isinstance(given, Mapping):
        return None
    texts = {name: given.get(name, "") for name in ("rule", "message", "site", "advice", "condition", "source", "quantity")}
    counts = {name: given.get(name) for name in ("epoch", "step", "first_step", "opened", "last_step")}
    call, value, evidence, places = given.get("call", -1), given.get("value"), given.get("evidence"), given.get("places")
    order = given.get("order", -1)
    if not all(isinstance(text, str) for text in texts.values()) or type(call) is not int or not -1 <= call < _LARGEST:
        return None
    if not all(_is_count(count) or (count is None and name not in ("epoch", "step")) for name, count in counts.items()):
        return None
    if given.get("severity") not in ("note", "warn", "bad"):
        return None
    return Finding(
        **texts,
        **counts,  # type: ignore[arg-type]  # checked above
        call=call,
        order=order if _is_count(order) else -1,
        severity=given["severity"],
        value=math.nan if (number := _number(value)) is None else number,
        evidence=_numbers(evidence),
        places=(*map(str, places),) if isinstance(places, list) else (),
    )


def _items(given: Any) -> list[tuple[Any, Any]]:
    return list(given.items()) if isinstance(given, Mapping) else []


def _numbers(given: Any) -> dict[str, float]:
    """Return numbers by name; what is none is left out."""
    return {str(name): number for name, value in _items(given) if (number := _number(value)) is not None}


def _written(number: float) -> float | str:
    return float(number) if math.isfinite(number) else str(float(number))


def _number(given: Any) -> float | None:
    if given in ("nan", "inf", "-inf"):
        return float(given)
    return float(given) if isinstance(given, int | float) and not isinstance(given, bool) else None


def _is_count(given: Any) -> bool:
    return type(given) is int and -1 <= given < _LARGEST


def _count(given: Any, other: int = 0) -> int:
    return given if _is_count(given) else other
