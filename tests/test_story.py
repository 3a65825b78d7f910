"""The findings of a training as a story: by what a rule is about, and by steps, layers and models, one finding explains another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sonde.rules import RULES, Finding, chapters, told

SEPARATE = {"frozen", "overfitting"}
"""Rules whose findings explain nothing, and that nothing explains."""


def found(rule: str, step: int, *, bad: bool = False, **more: Any) -> Finding:
    """A finding that begins at *step*."""
    given = {"last_step": step, **more}
    return Finding(rule, f"words of {rule}", step=step, first_step=step, severity="bad" if bad else "warn", **given)


def follows(*findings: Finding, gap: int = 1) -> dict[str, str]:
    """By rule, what a finding follows from."""
    return {each.rule: each.follows for each in told(findings, gap)}


def test_every_rule_of_a_run_says_what_it_is_about() -> None:
    assert {name for name, rule in RULES.items() if rule.needs and rule.about is None} == SEPARATE


def test_a_step_that_is_too_large_explains_all_that_grows_after_it_up_to_the_nan() -> None:
    findings = [
        found("nonfinite", 9, bad=True, site="4:output"),
        found("output_growth", 3, bad=True, last_step=8),
        found("update_huge", 0, last_step=8),
        found("loss_rising", 5, bad=True),
    ]
    assert [each.rule for each in told(findings)] == ["update_huge", "output_growth", "loss_rising", "nonfinite"]
    assert follows(*findings) == {"update_huge": "", **dict.fromkeys(("output_growth", "loss_rising", "nonfinite"), "update_huge")}


def test_a_gradient_that_is_lost_after_steps_were_too_large_follows_from_them() -> None:
    """Units far beyond their range have no slope. Weights stay where they were moved, after the steps have become small."""
    findings = [found("gradient_zero", 60, bad=True, last_step=99), found("update_huge", 0, last_step=1)]
    assert follows(*findings) == {"update_huge": "", "gradient_zero": "update_huge"}
    assert follows(found("gradient_zero", 130, bad=True), found("update_huge", 0, last_step=1)) == {
        "update_huge": "",
        "gradient_zero": "",
    }
    assert follows(found("gradient_zero", 60, bad=True), found("output_growth", 0, last_step=1))["gradient_zero"] == ""
    assert follows(found("gradient_zero", 0, bad=True), found("update_huge", 1)) == {"gradient_zero": "", "update_huge": ""}


def test_the_same_findings_in_any_order_tell_the_same_story() -> None:
    findings = [
        found("update_huge", 0),
        found("spike", 1),
        found("dead", 2, bad=True),
        found("unmoved", 0),
        found("weight_growth", 1),
    ]
    stories = [told(findings[at:] + findings[:at]) for at in range(len(findings))]
    assert all(each == stories[0] for each in stories)
    assert told(stories[0]) == stories[0]


def test_parameters_that_were_written_into_between_two_steps_explain_what_jumps_in_the_later_one() -> None:
    findings = [found("spike", 80), found("overwritten", 80), found("loss_rising", 84, bad=True)]
    assert follows(*findings) == {"overwritten": "", "spike": "overwritten", "loss_rising": "overwritten"}
    assert follows(found("spike", 79), found("overwritten", 80)) == {"spike": "", "overwritten": ""}


def test_within_a_step_an_output_comes_before_the_loss_its_gradient_and_the_update() -> None:
    findings = [found(rule, 7) for rule in ("update_huge", "gradient_growth", "spike", "output_growth")]
    assert follows(*findings) == {
        "output_growth": "",
        **dict.fromkeys(("spike", "gradient_growth", "update_huge"), "output_growth"),
    }


def test_a_jump_of_the_update_norm_follows_from_the_update_that_it_shows() -> None:
    jump = found("spike", 7, quantity="update")
    assert follows(jump, found("update_huge", 7)) == {"update_huge": "", "spike": "update_huge"}
    assert follows(replace(jump, quantity="loss"), found("update_huge", 7)) == {"spike": "", "update_huge": "spike"}


def test_what_is_small_explains_what_is_small_behind_it_in_a_step_and_nothing_before_it() -> None:
    assert follows(found("gradient_vanishing", 0), found("update_small", 0)) == {
        "gradient_vanishing": "",
        "update_small": "gradient_vanishing",
    }
    assert follows(found("update_small", 0), found("gradient_vanishing", 5)) == {"update_small": "", "gradient_vanishing": ""}


def test_two_faults_of_other_kinds_stay_apart() -> None:
    dead, spike = found("dead", 0, bad=True, last_step=99), found("spike", 60)
    assert follows(dead, spike, found("gradient_growth", 60)) == {"dead": "", "spike": "", "gradient_growth": "spike"}
    assert follows(found("update_huge", 0), found("unmoved", 0)) == {"update_huge": "", "unmoved": ""}
    assert follows(found("update_huge", 0), found("overfitting", 50)) == {"update_huge": "", "overfitting": ""}


def test_where_two_faults_can_explain_a_third_both_are_named_the_nearer_first() -> None:
    alike, huge = found("constant_weight", 0, bad=True, last_step=20), found("update_huge", 4, last_step=4)
    assert follows(alike, huge, found("dead", 5, bad=True))["dead"] == "update_huge or constant_weight"


def test_a_jump_or_a_nan_long_after_a_fault_has_ended_does_not_follow_from_it() -> None:
    early = found("update_large", 0, last_step=5)
    assert follows(early, found("spike", 60)) == {"update_large": "", "spike": ""}
    assert follows(early, found("nonfinite", 60, bad=True)) == {"update_large": "", "nonfinite": ""}
    assert follows(replace(early, last_step=59), found("nonfinite", 60, bad=True))["nonfinite"] == "update_large"
    assert follows(replace(early, last_step=50), found("nonfinite", 60, bad=True), gap=10)["nonfinite"] == "update_large"


def test_a_nan_in_the_forward_of_a_step_does_not_follow_from_the_update_of_this_step() -> None:
    for site, cause in (("1:output", ""), ("1.weight:param", ""), ("", "")):
        assert follows(found("update_huge", 3), found("nonfinite", 3, bad=True, site=site))["nonfinite"] == cause
    assert follows(found("output_growth", 3), found("nonfinite", 3, bad=True, site="1.weight:grad"))["nonfinite"] == "output_growth"


def test_a_nan_in_the_batch_or_of_an_operation_on_zero_does_not_follow_from_what_is_large() -> None:
    huge = found("update_large", 3, last_step=9)
    for more in ({"site": "(root):input"}, {"site": "G/(root):input[0]"}, {"site": "4:output", "quantity": "setup"}):
        assert follows(huge, found("nonfinite", 9, bad=True, **more))["nonfinite"] == ""
    assert follows(huge, found("nonfinite", 9, bad=True, site="4:input"))["nonfinite"] == "update_large"


def test_the_next_forward_meets_a_large_update_from_its_layer_on() -> None:
    huge = found("update_huge", 4, order=5)
    assert follows(huge, found("output_growth", 5, order=7))["output_growth"] == "update_huge"
    assert follows(huge, found("output_growth", 5, order=2))["output_growth"] == ""
    assert follows(huge, found("output_growth", 6, order=2))["output_growth"] == "update_huge"


def test_in_one_forward_the_first_layer_explains_those_behind_it() -> None:
    dead, constant = found("dead", 3, bad=True, order=4), found("flat", 3, order=2)
    assert follows(dead, constant) == {"flat": "", "dead": "flat"}


def test_a_weight_grows_by_updates_alone() -> None:
    assert follows(found("output_growth", 9), found("weight_growth", 9)) == {"output_growth": "", "weight_growth": ""}
    assert follows(found("update_large", 8), found("weight_growth", 9))["weight_growth"] == "update_large"


def test_a_loop_that_adds_up_gradients_explains_what_grows_later_and_not_what_was_there_at_first() -> None:
    kept = found("gradient_kept", 0, bad=True)
    assert follows(kept, found("update_large", 40), found("flat", 0)) == {
        "gradient_kept": "",
        "update_large": "gradient_kept",
        "flat": "",
    }


def test_a_loss_that_stands_still_follows_from_what_began_in_its_first_third() -> None:
    stuck = replace(found("loss_stuck", 0), step=90)
    for step, cause in ((30, "gradient_zero"), (31, "")):
        assert follows(found("gradient_zero", step, bad=True), stuck)["loss_stuck"] == cause


def test_a_model_explains_nothing_of_another_and_the_loss_of_the_training_belongs_to_both() -> None:
    huge = found("update_huge", 0, site="G/0.weight:update")
    assert follows(huge, found("output_growth", 1, site="D/0:output"))["output_growth"] == ""
    assert follows(huge, found("loss_rising", 9))["loss_rising"] == "update_huge"


def test_a_note_explains_nothing_and_nothing_explains_it() -> None:
    note = replace(found("dead", 0), severity="note")
    assert follows(note, found("loss_stuck", 0), found("update_huge", 0))["dead"] == ""
    assert follows(note, found("gradient_zero", 1, bad=True))["gradient_zero"] == ""


def test_chapters_are_the_roots_with_what_follows_the_gravest_first() -> None:
    findings = [found("unmoved", 0), found("update_huge", 0), found("output_growth", 1, bad=True)]
    read = [(root.rule, [each.rule for each in behind]) for root, behind in chapters(told(findings))]
    assert read == [("update_huge", ["output_growth"]), ("unmoved", [])]
    assert list(chapters([])) == []


@pytest.mark.parametrize("rule", ["a rule of another process", ""])
def test_a_rule_that_is_not_known_here_is_a_root(rule: str) -> None:
    assert follows(found("update_huge", 0), found(rule, 5))[rule] == ""


def test_a_symptom_that_nothing_explains_stands_behind_a_root_that_names_a_cause() -> None:
    """However grave it is; a note stands last."""
    symptom = Finding("gradient_growth", "grew", step=30, severity="bad")
    cause = Finding("eps_large", "eps is 10", step=50, first_step=50)
    note = Finding("dead", "half", "3:output", step=0, severity="note")
    assert [(each.rule, each.follows) for each in told([note, symptom, cause])] == [
        ("eps_large", ""),
        ("gradient_growth", ""),
        ("dead", ""),
    ]


def test_what_a_note_may_explain_is_not_said_to_be_unknown() -> None:
    """A note about how a training is set up, or what goes in, explains nothing, and is named; so is what a finding follows from."""
    stuck = Finding(
        "loss_stuck", "the loss does not fall", step=120, first_step=0, advice="nothing recorded says why: look at the data"
    )
    note, other = (Finding(rule, "a note", "0:param", severity="note", step=5, first_step=0) for rule in ("unmoved", "dead"))
    assert told([note, stuck])[0].advice == "unmoved may say why: else look at the data"
    for rule in ("few_indices", "gradient_vanishing"):
        assert told([replace(note, rule=rule), stuck])[0].advice == f"{rule} may say why: else look at the data"
    assert told([other, stuck])[0].advice == told([stuck])[0].advice == stuck.advice
    cause, each = told([replace(note, severity="warn"), stuck])
    assert (cause.rule, each.follows, each.advice) == ("unmoved", "unmoved", "unmoved may say why: else look at the data")


def test_gradients_that_vanish_from_the_beginning_are_the_root_of_outputs_that_come_to_be_alike() -> None:
    alike = Finding("outputs_alike", "outputs are alike", step=13, first_step=8)
    early, late = (Finding("gradient_vanishing", "gradients vanish", "0.weight:grad", step=20, first_step=at) for at in (2, 15))
    assert told([alike, early])[0] == early
    assert told([alike, late])[0] == alike


@pytest.mark.parametrize(("severity", "first"), [("bad", "no_training_forward"), ("warn", "update_huge")])
def test_what_is_surely_wrong_from_the_first_step_on_stands_before_what_begins_later(severity: Any, first: str) -> None:
    setup = Finding("no_training_forward", "no step in training mode", step=124, first_step=0, severity=severity)
    grown = [found("update_huge", 108, last_step=109), found("nonfinite", 110, bad=True, site="0:output")]
    assert next(iter(told([setup, *grown]))).rule == first
