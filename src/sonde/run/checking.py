"""Check a run: apply the rules to its rows, and say what they find and what they could not judge."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, overload

from sonde.errors import ArgumentError
from sonde.escape import escape_html, printable, readable_json
from sonde.rules import RULES, Chosen, Finding, Given
from sonde.run.recorded_findings import chosen_in, judged, with_alerts, with_pruned
from sonde.run.run import Run, open_run
from sonde.run.what_if import Format, WouldLose, findings_of, format_of, would_lose

__all__ = ["Checked", "check"]

_SHOWN = 8
_SOURCES = {
    **{f"underflow_{name}": "the lens exponents()" for name in ("fp16", "bf16", "e4m3", "e5m2")},
    "call_death": "the lens OutputActivation",
    "effective_rank": "the lens EffectiveRank",
    "loss": "push_loss(loss, train=True)",
    "val_loss": "push_loss(loss, train=False)",
    "grad_norm": "the lens moments()",
}


def check(run: Run | str | os.PathLike[str], *, rules: Given = None, rank: int | None = None, what_if: Any = None) -> Checked:
    """Return what the rules find in a run, the gravest first, and the rules that lack their numbers.

    They are the rules that a training applies to itself, with the same findings: also for a run that was killed, that still goes
    on, or that another program wrote.

    Args:
        run: a run, or its folder.
        rules: by name False to leave a rule out, or its thresholds, as ``{"dead": False, "spike": {"deviations": 6}}``; by
            default as the training had them.
        rank: the process whose rows are judged; by default, of each place at each step the first that has rows of it.
        what_if: a number format, as ``"float16"``, ``"bfloat16"``, ``"float8_e4m3fn"``, ``"float8_e5m2"`` or the dtype: also say
            which share of the values of each place the format would lose. It needs rows of the lens ``exponents()``.

    Raises:
        ArgumentError: *rules* names no rule or threshold, *what_if* no format, or *run* is none; the message names the nearest.
        StoreError: the folder holds no run.
    """
    opened = run if isinstance(run, Run) else _opened(run)
    chosen = chosen_in(opened) if rules is None else Chosen.of(rules)
    findings, steps = judged(opened, chosen, rank=rank)
    found, missing, early = with_alerts(findings.all(), opened, rank, chosen), findings.not_judged(), findings.too_early()
    pruned = opened.description.pruned
    note = opened.pruned
    if pruned and rules is None and rank is None:
        found = with_pruned(found, opened, chosen)
        missing = {rule: needs for rule, needs in missing.items() if rule not in pruned[-1].judged}
        early = {rule: least for rule, least in early.items() if rule not in pruned[-1].judged}
        note += "; what the rules found in all rows before is among the findings"
    elif pruned:
        note += "; the rules judge the rows that are left, and see nothing of those between"
    name = "in memory" if opened.path is None else opened.path.name
    early = {rule: least for rule, least in early.items() if rule not in {each.rule for each in found}}
    checked = Checked(found, missing, name, len(chosen.applied()), steps, note=note, too_early=early)
    return checked if what_if is None else _with_losses(checked, opened, chosen, format_of(what_if), rank)


def _with_losses(checked: Checked, run: Run, chosen: Chosen, wanted: Format, rank: int | None) -> Checked:
    lost = would_lose(run, wanted, rank)
    more = [*checked.findings, *findings_of(lost, wanted, chosen)]
    missing = {} if lost else {f"what_if={wanted.name}": f"underflow_{wanted.short}:output|underflow_{wanted.short}:grad"}
    applied = checked.applied + len(missing)
    missing = {**checked.not_judged, **missing}
    return Checked(more, missing, checked.name, applied, checked.steps, lost, wanted.name, checked.note, checked.too_early)


def _opened(run: Any) -> Run:
    if not isinstance(run, str | os.PathLike):
        raise ArgumentError(f"run={run!r}: give a run, as inspector.run, or the folder of one, as 'runs/quiet-otter'")
    return open_run(run)


class Checked(Sequence[Finding]):
    """The findings of a check, the gravest first.

    Attributes:
        findings: all of them.
        not_judged: by rule, what it needs and the run does not have.
        name: of the run.
        applied: how many rules were applied.
        steps: how many logged steps have rows that were judged.
        would_lose: of each place the values that the format of ``what_if=`` would lose, the worst first.
        what_if: the name of that format; ``""`` without one.
        too_early: by rule, how many logged steps it needs, where the run has fewer; of a rule of losses, how many values.
        note: what was taken out of the run, in words; ``""`` for a run that is whole.
    """

    def __init__(
        self,
        findings: Sequence[Finding],
        not_judged: Mapping[str, str],
        name: str,
        applied: int,
        steps: int,
        would_lose: Sequence[WouldLose] = (),
        what_if: str = "",
        note: str = "",
        too_early: Mapping[str, int] | None = None,
    ) -> None:
        self.findings = tuple(findings)
        self.not_judged = dict(not_judged)
        self.name = name
        self.applied = applied
        self.steps = steps
        self.would_lose = tuple(would_lose)
        self.what_if = what_if
        self.note = note
        self.too_early = dict(too_early or {})

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def judged(self) -> int:
        """How many rules could find something."""
        return self.applied - len(self.not_judged) - len(self.too_early)

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def to_json(self) -> str:
        """Return the findings as JSON: ``findings``, each with its rule's ``condition`` and ``source``; and what was judged."""
        listed = [
            {**asdict(each), "condition": RULES[each.rule].condition, "source": RULES[each.rule].source} for each in self.findings
        ]
        about = {"run": self.name, "steps": self.steps, "findings": listed, "not_judged": self.not_judged, "note": self.note}
        about["too_early"] = self.too_early
        if self.what_if:
            about |= {"what_if": self.what_if, "would_lose": [asdict(each) for each in self.would_lose]}
        return readable_json(about)

    def __repr__(self) -> str:
        rules = self.judged
        judged = f"{rules} rule{'s' if rules != 1 else ''} judged {self.steps:,} logged step{'s' if self.steps != 1 else ''}"
        nothing = "no findings" if rules or not self.applied else "nothing could be judged"
        many = f"{len(self.findings)} finding{'s' if len(self.findings) != 1 else ''}" if self.findings else nothing
        lines = [f"Check of run {self.name}: {many}, {judged}", *([self.note] if self.note else [])]
        for each in self.findings:
            lines += [
                f"{each.severity:<4} {each.rule}: {each.message}",
                f"     {_evidence(each)}",
                f"     {each.advice}",
            ]
        lines += self._losses()
        steps: dict[int, list[str]] = {}
        for rule, least in sorted(self.too_early.items(), key=lambda each: each[1]):
            steps.setdefault(least, []).append(rule)
        early = [f"{', '.join(rules)} (from {least:,} on)" for least, rules in steps.items()]
        lines += [f"too few logged steps for: {', '.join(early)}"] if early else []
        needs: dict[str, list[str]] = {}
        for rule, missing in self.not_judged.items():
            needs.setdefault(missing, []).append(rule)
        lines += [f"not judged: {', '.join(rules)}: needs {_in_words(missing)}" for missing, rules in needs.items()]
        return printable("\n".join(lines))

    def _losses(self) -> list[str]:
        """Return the places that the format of ``what_if=`` would harm most, a line each."""
        if not self.would_lose:
            return []
        shown = [each for each in self.would_lose if each.overflow or each.underflow][:_SHOWN]
        width = max((len(each.site) for each in shown), default=0)
        head = f"in {self.what_if}, of {len(self.would_lose):,} places" + (":" if shown else ": no value would be lost")
        return [head] + [
            f"     {each.site:<{width}}  overflow {each.overflow:.2%}, to zero {each.underflow:.2%} "
            f"({each.underflow_scaled:.2%} if scaled to fit), step {each.step:,}"
            for each in shown
        ]

    def _repr_html_(self) -> str:
        return f"<pre>{escape_html(repr(self))}</pre>"


def _evidence(found: Finding) -> str:
    since = f"from step {found.first_step:,} on" if found.first_step is not None else ""
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in found.evidence.items())
    return " · ".join(filter(None, [since, numbers, f"rule: {RULES[found.rule].condition}"]))


def _in_words(missing: str) -> str:
    """Return the numbers that are missing in words, with what records each.

    >>> _in_words("rms:grad, call_death:output|zeros:output")
    'rms of grad (the lens moments()), call_death of output (the lens OutputActivation)'
    """
    words = []
    for need in missing.split(", "):
        number, _, port = need.split("|")[0].partition(":")
        source = _SOURCES.get(number, "the lens moments()" if port else "a pushed value")
        words.append(f"{number}{f' of {port}' if port else ''} ({source})")
    return ", ".join(words)
