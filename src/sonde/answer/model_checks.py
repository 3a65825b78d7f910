"""Checks: questions about a model that are judged one by one, and the answer that is a table of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sonde.answer.answer import Answer, verdict_of, worst_first
from sonde.answer.report import TONES, VERDICTS, Part, Report, Verdict, facts_of_findings, said_of
from sonde.answer.table import Cell, Grid, Tone
from sonde.errors import UnknownSiteError
from sonde.suggest import nearest

if TYPE_CHECKING:
    from sonde.rules import Finding

_MOST = 3  # findings of one check that the table shows


@dataclass(frozen=True)
class Check:
    """One question, and what was found.

    Attributes:
        name: of the question.
        words: what was measured; where the check could not be made, why.
        findings: what is wrong.
        judged: the check could be made.
    """

    name: str
    words: str
    findings: tuple[Finding, ...] = ()
    judged: bool = True

    @property
    def verdict(self) -> Verdict:
        """``bad``, ``warn``, ``note`` or ``ok``: the worst of the findings; ``unknown`` where the check could not be made."""
        return verdict_of(self.findings) if self.judged else "unknown"


class ModelChecks(Answer):
    """Several checks on one model; printed as a table.

    Attributes:
        model: class of the model.
        checks: in the order in which they were made.
        seconds: how long they took.
    """

    model: str
    checks: Sequence[Check]
    seconds: float

    _source: ClassVar[str]
    """The call that made the answer."""
    _about: ClassVar[str]
    """What the table shows of the model."""
    _headlines: ClassVar[Mapping[Verdict, str]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all checks, the worst first."""
        return worst_first(found for check in self.checks for found in check.findings)

    @property
    def unjudged(self) -> Mapping[str, str]:
        """By name of each check that could not be made, why."""
        return {check.name: check.words for check in self.checks if not check.judged}

    @property
    def _has_judged(self) -> bool:
        return any(check.judged for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        """The check with this name.

        Raises:
            UnknownSiteError: there is none; the message names the nearest.
        """
        for check in self.checks:
            if check.name == name:
                return check
        raise UnknownSiteError(f"{name!r} was not checked. {nearest(str(name), [check.name for check in self.checks])}")

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def _content(self) -> dict[str, Any]:
        checks = [{"name": each.name, "verdict": each.verdict, **asdict(each)} for each in self.checks]
        return {"model": self.model, "checks": checks, "seconds": self.seconds}

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {"check": each.name, "verdict": each.verdict, "words": each.words, "findings": len(each.findings)}
            for each in self.checks
        ]

    def _counts(self) -> str:
        """Return how many checks have each verdict, in words, the worst first."""
        verdicts = [each.verdict for each in self.checks]
        return ", ".join(f"{number} {each}" for each in reversed(VERDICTS) if (number := verdicts.count(each)))

    def _words(self, check: Check) -> str:
        """Return the words of a check in the table."""
        return check.words

    def _grid(self) -> Grid:
        title = f"{self._about} {self.model}: {self._counts()}"
        rows = [row for check in self.checks for row in _rows_of(check, self._words(check))]
        return Grid(title, ["check", "verdict", ""], rows, footer=[*self.notes])

    @abstractmethod
    def _more_parts(self) -> list[Part]:
        """Return the parts of the report below the table of checks."""

    def _report(self) -> Report:
        facts = facts_of_findings(self.findings)
        parts = [*([Part("", facts)] if facts else []), Part("All checks", self._grid()), *self._more_parts()]
        headline = f"{self._headlines[self.verdict]}: {self._counts()}"
        remarks = [*self.notes, f"{len(self.checks)} checks in {self.seconds:.1f} s"]
        return Report(self._source, self.model, self.verdict, headline, parts, remarks)


def _rows_of(check: Check, words: str) -> list[list[Cell]]:
    """Return the rows of one check: the name, the verdict and *words*, and a row for each of the worst findings."""
    worst = worst_first(check.findings)
    lines: list[tuple[str, Tone]] = [(said_of(each), TONES[each.severity]) for each in worst[:_MOST]]
    lines += [(f"and {len(worst) - _MOST} more", "quiet")] if len(worst) > _MOST else []
    advice = next((each.advice for each in worst if each.severity in ("warn", "bad") and each.advice), "")
    lines += [(f"to do: {advice}", "quiet")] if advice else []
    tone: Tone = "quiet" if check.verdict in ("ok", "unknown") else "plain"
    first = [Cell(check.name), Cell(check.verdict, TONES[check.verdict]), Cell(words, tone)]
    return [first, *([Cell(""), Cell(""), Cell(text, mark)] for text, mark in lines)]
