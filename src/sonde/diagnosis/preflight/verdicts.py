"""The result of a pre-flight: a verdict of each check, with its findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from sonde.answer import Cell, Chart, Fact, Grid, Line, Part, Report, ShownAsReport, Tone, frame
from sonde.errors import PreflightError, UnknownSiteError
from sonde.escape import readable_json
from sonde.rules import Finding
from sonde.suggest import nearest

if TYPE_CHECKING:
    import pandas

__all__ = ["Preflight", "Result", "Verdict", "counts_of", "facts_of", "rows_of", "verdict_on", "worst_of"]

Result = Literal["ok", "note", "warn", "bad", "skipped"]
_ORDER: tuple[Result, ...] = ("skipped", "ok", "note", "warn", "bad")
_TONES: dict[str, Tone] = {"ok": "good", "note": "plain", "warn": "warn", "bad": "bad", "skipped": "quiet"}
_MOST = 3
_MOST_FACTS = 8
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Verdict:
    """What one check says.

    Attributes:
        check: its name.
        words: what was measured; where the check was skipped, why.
        findings: what is wrong, worst first.
        skipped: the check could not be made.
    """

    check: str
    words: str
    findings: tuple[Finding, ...] = ()
    skipped: bool = False

    @property
    def result(self) -> Result:
        """``ok``, ``note``, ``warn``, ``bad`` or ``skipped``: the worst severity of the findings."""
        if self.skipped:
            return "skipped"
        return max((each.severity for each in self.findings), key=_ORDER.index, default="ok")


@dataclass(repr=False)
class Preflight(ShownAsReport):
    """The verdicts of all checks on a model before its training; printed as a table.

    Attributes:
        model: class of the model.
        verdicts: one of each check, in the order in which the checks ran.
        curve: the losses of the training on the one batch, step by step; empty if there was none.
        seconds: how long the checks took.
        notes: what else the reader must know.
    """

    model: str
    verdicts: list[Verdict]
    curve: list[float] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the worst first."""
        return worst_of(self.verdicts)

    @property
    def result(self) -> Result:
        """The worst result of all verdicts."""
        return max((each.result for each in self.verdicts), key=_ORDER.index, default="skipped")

    def __getitem__(self, check: str | int) -> Verdict:
        """The verdict of a check, by its name, or by position.

        Raises:
            UnknownSiteError: there is no such verdict; the message names the nearest check.
        """
        return verdict_on(check, self.verdicts, "checked")

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def raise_if_bad(self) -> Preflight:
        """Return this result if no verdict is ``bad``.

        Raises:
            PreflightError: one is; the message holds all bad findings.
        """
        bad = [each for each in self.findings if each.severity == "bad"]
        if bad:
            lines = [f"{len(bad)} checks of {self.model} are bad:" if len(bad) > 1 else f"a check of {self.model} is bad:"]
            raise PreflightError("\n".join([*lines, *(f"  {each.rule}: {_said(each)}" for each in bad)]))
        return self

    def to_frame(self) -> pandas.DataFrame:
        """A pandas table with a row for each verdict.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        rows = [{"check": each.check, "result": each.result, "words": each.words} for each in self.verdicts]
        return frame([{**row, "findings": len(each.findings)} for row, each in zip(rows, self.verdicts, strict=True)])

    def to_json(self) -> str:
        """The verdicts, findings and the loss curve as JSON; a number that is not finite is null."""
        rows = [{**asdict(each), "result": each.result} for each in self.verdicts]
        held = {"model": self.model, "result": self.result, "verdicts": rows, "curve": self.curve, "notes": self.notes}
        return readable_json(held)

    def _grid(self) -> Grid:
        shown = [
            replace(each, words=f"{each.words} {sparkline(self.curve)}".rstrip()) if each.check == "overfit" else each
            for each in self.verdicts
        ]
        return Grid(
            f"Preflight of {self.model}: {counts_of(self.verdicts)}", ["check", "verdict", ""], rows_of(shown), footer=self.notes
        )

    def _report(self) -> Report:
        facts = facts_of(self.findings)
        parts = [Part("", facts)] if facts else []
        parts.append(Part("All checks", self._grid()))
        if len(self.curve) > 1:
            losses = Line("loss", self.curve)
            log = min(self.curve) > 0 and max(self.curve) > 4 * min(self.curve)
            chart = Chart(range(len(self.curve)), [losses], "step", "loss", log=log)
            parts.append(
                Part(
                    "One batch, learnt again and again",
                    chart,
                    "A model that can learn at all brings the loss of one batch near zero.",
                )
            )
        tone = _TONES[self.result] if self.result != "note" else "good"
        verdict = {"bad": "not ready to be trained", "warn": "look at the warnings first"}.get(self.result, "nothing is wrong")
        return Report(
            "sonde.preflight",
            self.model,
            tone,
            f"{verdict}: {counts_of(self.verdicts)}",
            parts,
            [*self.notes, f"{len(self.verdicts)} checks in {self.seconds:.1f} s"],
        )


def counts_of(verdicts: Iterable[Verdict]) -> str:
    """Return how many of *verdicts* have each result, in words."""
    results = [each.result for each in verdicts]
    return ", ".join(f"{number} {result}" for result in reversed(_ORDER) if (number := results.count(result)))


def facts_of(findings: Iterable[Finding]) -> list[Fact]:
    """Return the facts of a report on *findings*, the worst first: what is wrong, and after each rule what to do."""
    worst = [each for each in findings if each.severity in ("warn", "bad")]
    facts = []
    for place, each in enumerate(worst[:_MOST_FACTS]):
        before, behind = ([other.rule for other in worst[at : at + 1]] for at in (max(place - 1, 0), place + 1))
        facts.append(Fact("" if place and before == [each.rule] else each.rule, _said(each), _TONES[each.severity]))
        facts += [Fact("", each.advice, "quiet")] if each.advice and behind != [each.rule] else []
    return facts + ([Fact("", f"and {len(worst) - _MOST_FACTS} more", "quiet")] if len(worst) > _MOST_FACTS else [])


def verdict_on(check: str | int, verdicts: Sequence[Verdict], done: str) -> Verdict:
    """Return the verdict named *check*, or at this position; *done* is the verb for what was done with all of them.

    Raises:
        UnknownSiteError: there is none; the message names the nearest.
    """
    if isinstance(check, int):
        return verdicts[check]
    for each in verdicts:
        if each.check == check:
            return each
    raise UnknownSiteError(f"{check!r} was not {done}. {nearest(check, [each.check for each in verdicts])}")


def worst_of(verdicts: Iterable[Verdict]) -> tuple[Finding, ...]:
    """Return all findings of *verdicts*, the worst first."""
    found = [each for verdict in verdicts for each in verdict.findings]
    return tuple(sorted(found, key=lambda each: -_ORDER.index(each.severity)))


def rows_of(verdicts: Iterable[Verdict]) -> list[list[Cell]]:
    """Return the rows of a table of *verdicts*: the name, the result, and the words, with a row for each of the worst findings."""
    rows = []
    for verdict in verdicts:
        worst = worst_of([verdict])
        lines = [(_said(each), _TONES[each.severity]) for each in worst[:_MOST]]
        lines += [(f"and {len(worst) - _MOST} more", "quiet")] if len(worst) > _MOST else []
        advice = next((each.advice for each in worst if each.severity in ("warn", "bad") and each.advice), "")
        lines += [(f"to do: {advice}", "quiet")] if advice else []
        tone: Tone = "quiet" if verdict.result in ("ok", "skipped") else "plain"
        rows.append([Cell(verdict.check), Cell(verdict.result, _TONES[verdict.result]), Cell(verdict.words, tone)])
        rows += [[Cell(""), Cell(""), Cell(text, mark)] for text, mark in lines]
    return rows


def sparkline(curve: list[float], width: int = 12) -> str:
    """Return the curve in *width* characters, the largest finite value as a full block; ``""`` of fewer than two values."""
    finite = [each for each in curve if math.isfinite(each)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    taken = [finite[round(place * (len(finite) - 1) / (width - 1))] for place in range(width)]
    return "".join(_BLOCKS[round((each - low) / (high - low) * (len(_BLOCKS) - 1)) if high > low else 0] for each in taken)


def _said(finding: Finding) -> str:
    return f"{finding.site}: {finding.message}" if finding.site else finding.message
