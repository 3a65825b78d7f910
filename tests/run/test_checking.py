"""Check a run: findings with their evidence, what could not be judged, thresholds, and rules of the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import sonde
from sonde.cli import main
from sonde.errors import ArgumentError
from sonde.rules import RULES
from sonde.run import Layout, memory_run, start_run
from sonde.run.store.writer import RunWriter


def write(writer: RunWriter, sizes: list[float]) -> None:
    """Write outputs of three layers, of which the second has *sizes* step by step."""
    layout = Layout(["0:output", "1:output", "2:output"])
    for step, size in enumerate(sizes):
        writer.append("moments", layout, {"rms": [1.0, size, 1.0], "mean": [0.0, size / 2, 0.0]}, step=step)


@pytest.fixture
def own() -> Iterator[None]:
    """Take rules of the test's own off the list again."""
    known = dict(RULES)
    yield
    RULES.clear()
    RULES.update(known)


def test_a_check_says_what_it_found_and_what_it_could_not_judge() -> None:
    with memory_run() as writer:
        write(writer, [1.0, 1.0, 500.0])
    found = sonde.check(writer.run())
    assert [(each.rule, each.site, each.first_step) for each in found.findings] == [("output_growth", "1:output", 2)]
    assert found.findings[0].evidence == {"size": 500.0, "before": 1.0}
    assert (found.verdict, found.ok) == ("bad", False)
    assert "dead" in found.not_judged
    assert "output_growth" not in found.not_judged
    text = repr(found)
    assert "rules judged 3 logged steps" in text
    assert "bad  output_growth: 1: output grew 500-fold, to 500 at step 2" in text
    assert "size 500, before 1" in text
    assert "overfitting: needs val_loss (push_loss(loss, train=False)), loss (push_loss(loss, train=True))" in text
    assert json.loads(found.to_json())["findings"][0]["condition"] == RULES["output_growth"].condition


def test_a_rule_can_be_left_out_or_given_another_threshold() -> None:
    with memory_run() as writer:
        write(writer, [1.0, 1.0, 500.0])
    run = writer.run()
    assert sonde.check(run, rules={"output_growth": False}).findings == ()
    assert sonde.check(run, rules=False).findings == ()
    assert sonde.check(run, rules={"output_growth": {"factor": 1000}}).findings == ()
    assert len(sonde.check(run, rules={"output_growth": {"factor": 2}}).findings) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ded": False}, "'ded', which is no rule. Nearest: dead"),
        ({"spike": {"deviation": 6}}, "no such threshold. It has deviations=10."),
        ({"spike": {"deviations": "six"}}, "a threshold is a number"),
        ({"spike": 6}, "give False, or the rule's thresholds"),
        ("spike", "give a mapping"),
    ],
)
def test_rules_that_there_are_not(given: object, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        sonde.watch(nn.Linear(2, 2), rules=given, to="memory")  # type: ignore[arg-type]  # refused
    with memory_run() as writer:
        write(writer, [1.0])
    with pytest.raises(ArgumentError, match=words):
        sonde.check(writer.run(), rules=given)  # type: ignore[arg-type]  # refused


def test_a_run_that_is_none() -> None:
    with pytest.raises(ArgumentError, match="give a run"):
        sonde.check(7)  # type: ignore[arg-type]  # refused


@pytest.mark.usefixtures("own")
def test_a_rule_of_the_users_own_is_judged_live_and_afterwards() -> None:
    """Three of five logged steps; a threshold by name; off by name."""

    @sonde.rule("an output is far off zero", at="output", advice="normalise it")
    def off_centre(mean: float, rms: float, *, share: float = 0.9) -> bool:
        return abs(mean) > share * rms

    @sonde.rule("the loss is large", at="scalars")
    def loss_large(loss: float) -> str | None:
        return f"loss {loss:g}" if loss > 10 else None

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sonde.watch(model, every=1, to="memory", verbose=False) as inspector:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
            inspector.push_loss(20.0, train=True)
    found = {each.rule: each for each in inspector.findings}
    assert (found["off_centre"].site, found["off_centre"].first_step, found["off_centre"].advice) == ("1:output", 0, "normalise it")
    assert found["off_centre"].evidence.keys() == {"mean", "rms"}
    assert found["loss_large"].message == "loss 20, from step 0 on"
    assert {"off_centre", "loss_large"} <= {each.rule for each in inspector.run.findings}
    after = {each.rule: each for each in sonde.check(inspector.run).findings}
    assert (after["off_centre"], after["loss_large"]) == (found["off_centre"], found["loss_large"])
    assert "off_centre" not in {each.rule for each in sonde.check(inspector.run, rules={"off_centre": {"share": 2.0}}).findings}


@pytest.mark.usefixtures("own")
def test_a_rule_that_cannot_be_judged_is_refused() -> None:
    with pytest.raises(ArgumentError, match="give a port"):
        sonde.rule("anything", at="outputs")(lambda rms: None)
    with pytest.raises(ArgumentError, match="takes no number"):

        @sonde.rule("anything", at="output")
        def empty() -> None: ...

    with pytest.raises(ArgumentError, match="is a rule of sonde"):

        @sonde.rule("anything", at="output")
        def dead(rms: float) -> None: ...


def test_the_command_says_by_its_exit_code_whether_a_run_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start_run(tmp_path / "run") as writer:
        write(writer, [1.0, 1.0, 500.0])
    path = str(tmp_path / "run")
    assert main(["check", path]) == 1
    assert "output_growth" in capsys.readouterr().out
    assert main(["check", path, "--rules", "output_growth=off"]) == 0
    assert "no findings" in capsys.readouterr().out
    assert main(["check", path, "--rules", "output_growth:factor=1000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert main(["check", path, "--rules", "output_growth=6"]) == 2
    assert "RULE:THRESHOLD=NUMBER" in capsys.readouterr().err


def test_an_alarm_is_printed_once_while_the_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """On the error stream, in one line; ``verbose=False`` leaves it out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(model[0].bias, -50.0)  # type: ignore[arg-type]  # a parameter
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sonde.watch(model, every=1, to="memory") as inspector:
        for step in range(30):
            if step == 20:
                _ = inspector.findings  # waits for the writing thread
                assert {each.rule for each in inspector.run.findings} == {"dead"}
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if "(dead)" in line]) == 1
    assert lines[0].startswith("sonde: step ")


def test_a_run_that_is_too_short_for_a_rule_says_how_many_steps_the_rule_needs() -> None:
    with memory_run() as writer:
        write(writer, [1.0])
        writer.scalar("loss", 1.0, step=0)
    found = sonde.check(writer.run())
    assert found.too_early["output_growth"] == 2
    assert found.too_early["attention_large"] == 3
    assert found.too_early["loss_stuck"] == 12
    assert "output_large" not in found.too_early
    assert not found.too_early.keys() & found.not_judged.keys()
    judged = found.applied - len(found.not_judged) - len(found.too_early)
    assert f"no findings, {judged} rules judged 1 logged step" in repr(found)
    assert "too few logged steps for: output_growth" in repr(found)
    assert json.loads(found.to_json())["too_early"] == found.too_early


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("output_growth", [1.0, 500.0]),
        ("gradient_growth", [1.0, 1e6]),
        ("spike", [1.0] * 8 + [100.0]),
        ("loss_unbounded", [1.0] * 12 + [-float(each**2) for each in range(1, 21)]),
    ],
)
def test_the_steps_that_a_check_names_are_those_from_which_on_a_rule_finds(rule: str, values: list[float]) -> None:
    for given in (len(values) - 1, len(values)):
        with memory_run() as writer:
            if rule == "output_growth":
                write(writer, values[:given])
            else:
                for step, value in enumerate(values[:given]):
                    writer.scalar("grad_norm" if rule == "gradient_growth" else "loss", value, step=step)
        found = sonde.check(writer.run())
        assert (rule in {each.rule for each in found.findings}) == (given == len(values))
        assert found.too_early.get(rule) == (None if given == len(values) else len(values))
