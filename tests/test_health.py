"""The suite of failures says what is true of its trainings, and counts right."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from benchmarks.health import baselines, drawn, page, scoring, suite, symptoms
from benchmarks.health.case import CONTROLS, FAILURES, SYMPTOMS, Case, Truth, hidden, truth
from benchmarks.health.outcome import Alarm, Outcome, judged, measure

from sonde.rules import RULES
from sonde.run import Layout, memory_run

ROOT = Path(__file__).parents[1]


def of(alarms: list[Alarm], right: Truth, every: int = 1, *, healthy: bool = False) -> Outcome:
    return judged(Outcome("case", "mlp", 0, every, "sonde", healthy, alarms=alarms), right)


def test_every_rule_that_a_training_applies_has_a_symptom() -> None:
    """A new rule has a line in benchmarks/health/symptoms.py, or none of its findings can be counted."""
    assert symptoms.unknown_rules() == []
    assert set(symptoms.RULE_SYMPTOMS.values()) <= SYMPTOMS.keys()


def test_there_are_as_many_trainings_as_promised() -> None:
    assert len({each.name for each in FAILURES}) >= 40
    assert {kind for each in FAILURES for kind in [each.kind]} >= {"mlp", "cnn", "rnn", "gpt"}
    assert len(CONTROLS) >= 40
    cases = [str(each) for each in [*FAILURES, *CONTROLS]]
    assert len(cases) == len(set(cases))


@pytest.mark.slow
def test_a_truth_names_places_of_its_network() -> None:
    wrong = []
    for case in FAILURES:
        torch.manual_seed(0)
        training, right = case.build(case.kind, 0)
        names = [name for name, _ in training.model.named_modules()] + [name for name, _ in training.model.named_parameters()]
        for place in right.expected.values():
            if place and not any(re.fullmatch(place, name) for name in names):
                wrong.append(f"{case}: {place}")
        assert bool(right.hidden) != bool(right.expected), str(case)
    assert wrong == []


def test_a_finding_of_an_expected_symptom_finds_the_fault() -> None:
    right = truth({"dead": r"2|3"}, ["zero gradient"], step=40)
    behind, fault = Alarm("gradient_zero", "zero gradient", "0.weight:grad", 40), Alarm("dead", "dead", "3:output", 50)
    found = of([behind, fault], right)  # the lens of dead units looks at each tenth logged step
    assert (found.found, found.placed, found.timed, found.false) == (True, True, True, [])
    assert not of([Alarm("gradient_zero", "zero gradient", "0.weight:grad", 40)], right).found


@pytest.mark.parametrize(
    ("site", "placed"), [("3:output", True), ("2:output", True), ("2.weight:grad", False), ("23:output", False), ("", False)]
)
def test_a_place_is_right_if_the_whole_name_matches(site: str, placed: bool) -> None:
    assert of([Alarm("dead", "dead", site, 0)], truth({"dead": "2|3"})).placed is placed


@pytest.mark.parametrize(
    ("every", "step", "timed"), [(1, 50, True), (1, 51, True), (1, 52, False), (1, 49, False), (10, 60, True), (10, 61, False)]
)
def test_a_step_is_right_within_the_interval_of_logged_steps(every: int, step: int, timed: bool) -> None:
    assert of([Alarm("spike", "spike", "", step)], truth(["spike"], step=50), every).timed is timed


def test_a_fault_that_spreads_has_no_place_where_its_step_is_not_logged() -> None:
    right = truth({"not finite": "4"}, step=45, spreads=True)
    alarms = [Alarm("nonfinite", "not finite", "0:output", 50)]
    assert of(alarms, right, 10).placed is None
    assert of(alarms, right, 5).placed is False


def test_what_is_neither_expected_nor_follows_is_false() -> None:
    found = of([Alarm("spike", "spike"), Alarm("dead", "dead"), Alarm("update_large", "large steps")], truth(["spike"], ["dead"]))
    assert (found.found, found.placed, found.timed, found.false) == (True, None, None, ["update_large"])
    assert of([Alarm("spike", "spike")], Truth(), healthy=True).false == ["spike"]


def test_a_fault_that_cannot_be_seen_counts_for_nothing() -> None:
    outcomes = [of([], truth(["spike"])), of([Alarm("spike", "spike")], truth(["spike"])), of([], hidden("it trains"))]
    assert [each.found for each in scoring.countable(outcomes)] == [False, True]
    assert "0.50 (1 of 2)" in scoring.summary(outcomes)
    assert scoring.hidden_cases(outcomes) == "- case: it trains"


def test_a_symptom_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="symptoms that do not exist: sadness"):
        truth(["sadness"])


def test_a_planted_fault_is_found_and_a_healthy_training_is_not_blamed() -> None:
    [ill] = suite.chosen(r"^a NaN in the data.*\[mlp\]")
    [well] = suite.chosen(r"^as it comes: SGD \[mlp\]")
    for every, found in zip((1, 10), [each for each in measure(ill, 0, (1, 10)) if each.judge == "sonde"], strict=True):
        assert (found.every, found.found, found.placed, found.timed) == (every, True, True, True)
    assert [each.alarms for each in measure(well, 0, (1, 10)) if each.judge == "sonde"] == [[], []]


def test_a_case_that_breaks_is_shown_as_such() -> None:
    def build(kind: str, seed: int) -> tuple[object, Truth]:
        raise RuntimeError("no such network")

    [found] = measure(Case("broken", "mlp", build), 0, [1])  # type: ignore[arg-type]
    assert "no such network" in found.error
    assert "no such network" in scoring.failing([found])


def test_thresholds_of_other_tools() -> None:
    """Mean |gradient| below 1e-7 for SageMaker Debugger, and below 1e-6 for TheDeepChecker."""
    with memory_run() as writer:
        for step in range(4):
            size = 5e-7 if step < 2 else 5e-8
            writer.append("moments", Layout(["0.weight:grad"]), {"rms": [size], "nan": 0, "inf": 0}, step=step)
            writer.scalar("loss", 1.0, step=step)
    run = baselines.Recorded(writer.run())
    assert [each for each in baselines.alarms("smdebug", run) if each[0] == "vanishing_gradient"] == [
        ("vanishing_gradient", "vanishing", "0.weight:grad", 2)
    ]
    assert [each[::3] for each in baselines.alarms("TheDeepChecker", run) if each[0] == "vanishing"] == [("vanishing", 0)]


@pytest.mark.parametrize(("values", "first"), [([2.0] * 11, 10), ([2.0 - step / 20 for step in range(11)], None)])
def test_a_loss_that_is_no_lower_than_ten_steps_before(values: list[float], first: int | None) -> None:
    with memory_run() as writer:
        for step, value in enumerate(values):
            writer.scalar("loss", value, step=step)
    found = [each for each in baselines.alarms("smdebug", baselines.Recorded(writer.run())) if each[0] == "loss_not_decreasing"]
    assert [each[3] for each in found] == ([] if first is None else [first])


def test_the_page_keeps_the_part_of_the_other_command(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    page.write(path, "# Measured\n")
    page.write(path, "no finding", architectures=True)
    page.write(path, "# Measured again\n")
    page.write(path, "one finding", architectures=True)
    assert path.read_text(encoding="utf-8") == f"# Measured again\n\n{page.HEADING}\n\none finding\n"


def test_kept_outcomes_are_judged_anew() -> None:
    [case] = suite.chosen(r"^a NaN in the data.*\[mlp\]")
    kept = Outcome(case.name, case.kind, 0, 10, "sonde", False, alarms=[Alarm("nonfinite", "?", "0:output", 50)])
    gone = Outcome("a case of old", "mlp", 0, 10, "sonde", False)
    [found] = suite.judged_anew([Outcome.of(kept.as_dict()), gone])
    assert (found.found, found.placed, found.timed, found.alarms[0].symptom) == (True, True, True, "not finite")


_CHEAP = ("mlp", "cnn", "rnn", "gpt")
"""Kinds of networks, the cheapest first."""


@pytest.mark.slow
def test_the_goal_is_met_by_a_sample_of_the_suite() -> None:
    """Each kind of fault once, on its cheapest network, and all healthy trainings: every tenth step logged, with the first seed."""
    cheapest: dict[str, Case] = {}
    for case in sorted(FAILURES, key=lambda case: _CHEAP.index(case.kind) if case.kind in _CHEAP else 0):
        cheapest.setdefault(case.name, case)
    outcomes = [each for case in [*cheapest.values(), *CONTROLS] for each in measure(case, 0, [10]) if each.judge == "sonde"]
    assert [each.error for each in outcomes if each.error] == []
    assert [(each.case, each.alarms) for each in outcomes if each.healthy and each.alarms] == []
    seen = scoring.countable(outcomes)
    found = [each for each in seen if each.found]
    missed = [each.case for each in seen if not each.found]
    assert len(found) >= 0.95 * len(seen), missed
    wrong = [each.case for each in found if each.placed is False or each.timed is False]
    assert len(wrong) <= 0.1 * len(found), wrong


def test_the_measured_page_has_every_rule_that_a_training_applies() -> None:
    page_rules = re.findall(r"^\| `(\w+)` ", (ROOT / "docs" / "rules-measured.md").read_text(encoding="utf-8"), flags=re.M)
    assert page_rules == [rule for rule in symptoms.RULE_SYMPTOMS if rule in RULES]


def test_the_page_says_how_many_seeds_each_training_had() -> None:
    outcomes = [
        Outcome(case, "mlp", seed, 1, "sonde", healthy=case == "c") for case, seed in [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    ]
    assert "each with 2 seeds, 2 of them with one seed (" in page.page(outcomes)


def test_the_trainings_of_one_seed_come_before_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is cut short has all trainings of some seeds."""
    monkeypatch.setattr(suite, "measure", lambda case, seed, *_: [(case.name, seed)])
    cases = [Case(name, "mlp", lambda *_: None) for name in ("a", "b")]  # type: ignore[arg-type, return-value]
    assert [each for found in suite.outcomes_of(cases, [0, 1], [1]) for each in found] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


@pytest.mark.parametrize(
    ("learns", "losses", "has"),
    [(0.05, [1.0] * 20 + [0.9] * 20, True), (0.05, [1.0] * 20 + [0.97] * 20, False), (0.0, [-1.0] * 20 + [-2.0] * 20, True),
     (0.0, [-1.0] * 20 + [800.0] * 20, False), (None, [1.0] * 40, True), (None, [1.0, math.nan] * 20, False)],
)  # fmt: skip
def test_a_recipe_has_learnt_by_what_its_kind_asks_for(learns: float | None, losses: list[float], has: bool) -> None:
    assert drawn.Kind(lambda *_: None, learns).has_learnt(losses) is has  # type: ignore[arg-type, return-value]


def test_a_recipe_that_ends_above_a_guess_has_not_learnt() -> None:
    assert not drawn.Kind(lambda *_: None, guess=1.0).has_learnt([4.0] * 20 + [1.1] * 20)  # type: ignore[arg-type, return-value]
