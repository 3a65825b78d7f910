"""The answer: its verdict is the worst of its findings, and it is neither true nor false, nor a list."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from sonde.answer import Answer, Cell, Check, Grid, ModelChecks, Part, Report, Verdict, worst_first
from sonde.errors import ArgumentError, UnknownSiteError
from sonde.rules import Finding, Severity


def finding(severity: Severity, rule: str = "dead") -> Finding:
    return Finding(rule, f"a {severity} thing", "fc:output", value=math.inf, severity=severity)


@dataclass(repr=False)
class Found(Answer):
    """An answer with these findings."""

    held: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    judged: bool = True

    @property
    def findings(self) -> tuple[Finding, ...]:
        return worst_first(self.held)

    @property
    def _has_judged(self) -> bool:
        return self.judged

    def _content(self) -> dict[str, Any]:
        return {"own": math.nan}

    def _grid(self) -> Grid:
        return Grid("found", ["rule"], [[Cell(each.rule)] for each in self.findings])

    def _report(self) -> Report:
        return Report("sonde.test", "Net", self.verdict, "a headline", [Part("", self._grid())])


@pytest.mark.parametrize(
    ("severities", "judged", "verdict", "ok"),
    [
        ([], True, "ok", True),
        (["note"], True, "note", True),
        (["note", "warn"], True, "warn", False),
        (["warn", "bad", "note"], True, "bad", False),
        ([], False, "unknown", False),
        (["note"], False, "unknown", False),
        (["bad"], False, "bad", False),
    ],
)
def test_the_verdict_is_the_worst_finding_or_unknown_where_nothing_was_judged(
    severities: list[Severity], judged: bool, verdict: Verdict, ok: bool
) -> None:
    found = Found([*map(finding, severities)], judged=judged)
    assert (found.verdict, found.ok) == (verdict, ok)


def test_an_answer_is_neither_true_nor_false() -> None:
    """It meant "bad" of one class and "something found" of another: the message says what to ask."""
    with pytest.raises(ArgumentError, match=r"a Found is neither true nor false: ask \.ok .*\.verdict or \.findings"):
        bool(Found())


def test_an_answer_is_no_list() -> None:
    for name in ("__iter__", "__len__", "__getitem__", "__contains__"):
        assert not hasattr(Answer, name)


def test_the_worst_finding_comes_first_and_equal_ones_stay_in_order() -> None:
    found = [finding("note", "a"), finding("bad", "b"), finding("warn", "c"), finding("bad", "d")]
    assert [each.rule for each in worst_first(found)] == ["b", "d", "c", "a"]


def test_data_hold_the_verdict_and_what_is_the_answers_own() -> None:
    found = Found([finding("warn")], ["a note"])
    plain = json.loads(found.to_json())
    assert plain == found.to_dict()
    assert list(plain) == ["answer", "schema", "verdict", "ok", "own", "findings", "unjudged", "notes"]
    assert (plain["verdict"], plain["ok"], plain["own"], plain["notes"]) == ("warn", False, None, ["a note"])
    assert (plain["findings"][0]["rule"], plain["findings"][0]["value"]) == ("dead", None)  # JSON has no infinity
    pytest.importorskip("pandas")
    assert list(found.to_frame()["rule"]) == ["dead"]


def test_a_page_is_green_with_notes_alone_and_never_where_nothing_was_judged() -> None:
    tones = {each: Report("s", "Net", each, "h", []).to_fragment() for each in ("ok", "note", "warn", "bad", "unknown")}
    assert {name for name, text in tones.items() if 'class="verdict good"' in text} == {"ok", "note"}
    for name, text in tones.items():
        assert f'aria-label="{name}"' in text


class Checks(ModelChecks):
    """Two checks, one of which could not be made."""

    _source, _about = "sonde.test", "Test of"
    _headlines = dict.fromkeys(("ok", "note", "warn", "bad", "unknown"), "said")

    def __init__(self, *checks: Check) -> None:
        self.model, self.checks, self.seconds, self.notes = "Net", checks, 0.1, ()

    def _more_parts(self) -> list[Part]:
        return []


def test_a_check_that_could_not_be_made_is_unknown_and_says_why() -> None:
    found = Checks(Check("labels", "3 labels"), Check("loss", "needs a loss", judged=False))
    assert (found.verdict, found.unjudged) == ("ok", {"loss": "needs a loss"})
    assert [each.verdict for each in found.checks] == ["ok", "unknown"]
    assert found.to_text().splitlines()[0] == "Test of Net: 1 ok, 1 unknown"
    assert Checks(found["loss"]).verdict == "unknown"
    with pytest.raises(UnknownSiteError, match=r"'lables' was not checked\. .*labels"):
        found["lables"]


def test_the_table_of_checks_names_the_worst_findings_of_each() -> None:
    found = Checks(Check("units", "4 layers", tuple(finding(each) for each in ("note", "note", "warn", "note", "bad"))))
    lines = found.to_text(80).splitlines()
    assert lines[0] == "Test of Net: 1 bad"
    assert [line.strip() for line in lines[4:]] == [
        "fc:output: a bad thing",
        "fc:output: a warn thing",
        "fc:output: a note thing",
        "and 2 more",
    ]
