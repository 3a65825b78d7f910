"""The record of findings: what the rules find is the same live and afterwards, however many steps come at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspector.pipeline import trainings
from torch import nn

import sonde
from sonde.errors import ArgumentError
from sonde.inspector import Inspector, Sink, watch
from sonde.rows import RowBlock
from sonde.rules import RULES, Chosen, Finding, ScalarFindings
from sonde.run import Layout, memory_run, open_run, start_run
from sonde.run.findings import Findings, combined
from sonde.run.folder.json_file import read_json
from sonde.run.record import Record, data_of, read_finding
from sonde.run.recorded_findings import judge_rows
from sonde.run.store.writer import RunWriter

THREE = Layout(["0:output", "1:output", "2:output"])


def told(found: Iterable[Finding]) -> list[tuple[object, ...]]:
    """Everything that a finding says."""
    return sorted(
        (each.rule, each.site, each.step, each.severity, str(each.first_step), each.message, each.places, str(each.last_step))
        for each in found
    )


def write(writer: RunWriter, sizes: Sequence[float], *, begin: int = 0) -> None:
    """Write outputs of three layers, of which the second has *sizes* step by step."""
    for step, size in enumerate(sizes, begin):
        writer.append("moments", THREE, {"rms": [1.0, size, 1.0], "mean": 0.0}, step=step)


@pytest.fixture
def own() -> Iterator[None]:
    """Take rules of the test's own off the list again."""
    known = dict(RULES)
    yield
    RULES.clear()
    RULES.update(known)


@cache
def ended(kind: Callable[[], Inspector]) -> Inspector:
    """Return the inspector of a training that has ended."""
    torch.manual_seed(0)
    return kind()


@pytest.mark.parametrize(
    "kind", [trainings.gpt_too_fast, trainings.burst, trainings.strange_batch, trainings.exploding_rnn, trainings.dying]
)
def test_a_run_that_is_read_has_the_findings_of_its_training(kind: Callable[[], Inspector]) -> None:
    inspector = ended(kind)
    assert inspector.findings
    assert told(inspector.run.findings) == told(inspector.findings)
    assert told(sonde.check(inspector.run).findings) == told(inspector.findings)


def test_a_healthy_run_has_none() -> None:
    torch.manual_seed(0)
    run = trainings.HEALTHY["resnet, momentum"]().run
    assert not [each for each in run.findings if each.severity != "note"]
    assert sonde.check(run).ok


def a_growing_rate() -> Inspector:
    """Train at a learning rate that grows in each step: gradients of zero come and go, and norms jump with the loss."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for step in range(70):
            optimizer.param_groups[0]["lr"] = 1e-3 * 1.2**step
            x = torch.randn(32, 8)
            loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(loss, train=True)
    return inspector


@pytest.mark.parametrize("kind", [trainings.gpt_too_fast, trainings.exploding_rnn, trainings.dying, a_growing_rate])
def test_it_does_not_matter_how_many_steps_come_at_once_nor_how_often_is_asked(kind: Callable[[], Inspector]) -> None:
    """Rows one by one, and scalars behind them, seven steps together, or all: the same findings with the same words and steps."""
    run = ended(kind).run
    every: list[tuple[list[RowBlock], list[tuple[str, float, int, int]]]] = []

    class Keep(Findings):
        def judge(self, blocks: Sequence[RowBlock], scalars: Iterable[tuple[str, float, int, int]] = ()) -> None:
            every.append((list(blocks), list(scalars)))

    judge_rows(run, Keep(run.info))
    blocks = [block for some, _ in every for block in some]
    scalars = [each for _, some in every for each in some]
    steps = sorted({step for block in blocks for step in block.moments[:, 1].tolist()})
    found = []
    for size, is_asked in ((1, False), (1, True), (7, False), (7, True), (len(steps), False)):
        findings = Findings(run.info)
        for start in range(0, len(steps), size):
            first, last = steps[start], steps[min(start + size, len(steps)) - 1]
            parts = []
            for block in blocks:
                lines = np.flatnonzero((block.moments[:, 1] >= first) & (block.moments[:, 1] <= last))
                parts += [block.between(int(lines[0]), int(lines[-1]) + 1)] if len(lines) else []
            of_these = [each for each in scalars if first <= each[3] <= last]
            for rows, values in [(parts, []), ([], of_these)] if is_asked and size == 1 else [(parts, of_these)]:
                findings.judge(rows, values)
                assert not is_asked or findings.judged() is not None
        findings.end()
        found.append([(told([each]), each.opened, dict(each.evidence)) for each in findings.judged()])
    assert found[0]
    assert found == [found[0]] * len(found)


def test_a_run_that_was_never_judged_says_so_until_it_is_checked(tmp_path: Path) -> None:
    """The rows of another program: nothing is known of them, and the check is what is known from then on."""
    with start_run(tmp_path / "run") as writer:
        layout = Layout(["0:output", "1:output", "2:output"])
        for step in range(3):
            writer.append("moments", layout, {"rms": [1.0, 1.0 if step < 2 else 500.0, 1.0], "nan": 0, "inf": 0}, step=step)
        writer.scalar("loss", math.inf, step=2)
    run = open_run(tmp_path / "run")
    assert (run.findings, run.verdict, run.shortfalls) == ([], "unknown", ["no step was judged"])
    found = sonde.check(run)
    assert [(each.rule, each.site, each.first_step) for each in found.findings] == [
        ("nonfinite", "", 2),
        ("output_growth", "1:output", 2),
    ]
    assert told(run.findings) == told(open_run(tmp_path / "run").findings) == told(found.findings)
    assert (run.verdict, run.shortfalls) == ("bad", [])


def test_a_run_without_numbers_of_the_rules_is_neither_well_nor_ill() -> None:
    with memory_run() as writer:
        writer.append("other", Layout(["0:output"]), {"size": [math.nan]}, step=0)
    checked = sonde.check(writer.run())
    assert (checked.findings, checked.verdict, checked.ok) == ((), "unknown", False)


def test_what_only_the_training_knew_is_kept() -> None:
    """The parameters were NaN when a logged step began; and a forgotten model.train()."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with (
        pytest.warns(UserWarning, match="is the model in eval"),
        watch(model, every=5, to="memory", bad_steps=None, verbose=False) as inspector,
    ):
        for step in range(12):
            if step == 7:
                nn.init.constant_(model[0].weight, math.nan)
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    assert {each.rule for each in inspector.findings} >= {"nonfinite", "no_training_forward"}
    assert told(inspector.run.findings) == told(inspector.findings) == told(sonde.check(inspector.run).findings)


def test_check_keeps_the_site_of_a_nan_that_began_between_logged_steps(tmp_path: Path) -> None:
    """The step at which it began was looked at by the training alone; the rows show a later one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 30.0)
    with (
        pytest.warns(UserWarning, match="step 29"),
        watch(model, optimizer, every=10, to=tmp_path / "run", verbose=False) as inspector,
    ):
        for _ in range(60):
            x = torch.randn(64, 8)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
            optimizer.step()
    found = [(each.rule, each.site, each.step, each.advice) for each in inspector.findings]
    assert [each[:3] for each in found if each[0] == "nonfinite"] == [("nonfinite", "2:output", 29)]
    assert [(each.rule, each.site, each.step, each.advice) for each in sonde.check(tmp_path / "run").findings] == found
    assert [(each.rule, each.site, each.step, each.advice) for each in open_run(tmp_path / "run").findings] == found


@pytest.mark.parametrize("shared", [True, False])
def test_units_that_are_dead_in_part_are_a_note(shared: bool) -> None:
    """Eleven of sixteen channels without output in one ReLU: live, in the record, in a check; nothing is wrong for that alone."""
    torch.manual_seed(0)
    model = Block(shared=shared)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(30):
            loss = nn.functional.cross_entropy(model(torch.randn(16, 3, 8, 8)), torch.randint(4, (16,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    [note] = inspector.findings
    assert (note.rule, note.severity, note.site, note.evidence) == ("dead", "note", "relu:output", {"dead": 11 / 16})
    checked = sonde.check(inspector.run)
    assert told(checked.findings) == told(inspector.run.findings) == told([note])
    assert (checked.verdict, checked.ok) == ("note", True)


class Block(nn.Module):
    """Two convolutions with a ReLU each, or one that is called twice."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16)
        self.c2, self.b2 = nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.relu2 = self.relu if shared else nn.ReLU()
        self.head = nn.Linear(16, 4)
        with torch.no_grad():
            self.b1.bias[:11] = -6.0
            self.b1.weight[:11] = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.relu(self.b1(self.c1(x)))
        out: torch.Tensor = self.head(self.relu2(self.b2(self.c2(hidden))).mean((2, 3)))
        return out


def test_a_finding_stays_as_it_was_when_it_was_found() -> None:
    """A layer grows, and then another one, much further: the place, the step and the numbers are those of the first."""
    with memory_run() as writer:
        for step, sizes in enumerate([[1.0, 1.0, 1.0], [1.0, 200.0, 1.0], [1.0, 300.0, 1.0], [5000.0, 300.0, 1.0]]):
            writer.append("moments", THREE, {"rms": sizes}, step=step)
    [found] = sonde.check(writer.run()).findings
    assert (found.site, found.first_step, found.evidence["size"]) == ("1:output", 1, 200.0)
    assert found.places == ("1", "0")
    assert found.message.endswith("at step 1 (also 0)")


def test_a_finding_whose_cause_comes_later_is_not_taken_back() -> None:
    """One step makes most of a weight; five steps later they are too large in general, which explains it."""
    sites = Layout(["0.weight:param", "0.weight:grad", "0.weight:update"])
    with memory_run({"model": [{"name": "0", "type": "Linear", "shapes": {"weight": [9, 9]}}]}) as writer:
        for step in range(8):
            writer.append("moments", sites, {"rms": [1.0, 1.0, 0.7], "mean": 0.0, "std": 1.0, "zeros": 0, "count": 81}, step=step)
    found = {each.rule: each for each in sonde.check(writer.run()).findings}
    assert found["update_huge"].opened == 1  # a loss of a later step could have said that it was a good step
    assert (found["update_large"].opened, found["update_large"].follows) == (5, "")
    assert found["update_huge"].follows == "update_large"


def test_a_check_with_other_rules_leaves_the_record_and_says_how_it_differs(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        write(writer, [1.0, 1.0, 500.0])
    run = open_run(tmp_path / "run")
    sonde.check(run)
    before = (tmp_path / "run" / "findings.json").read_bytes()
    other = sonde.check(run, rules={"output_growth": False})
    assert other.findings == ()
    assert any("this check has output_growth no more" in note for note in other.notes)
    assert (tmp_path / "run" / "findings.json").read_bytes() == before
    assert [each.rule for each in run.findings] == ["output_growth"]


def test_a_run_that_is_being_written_keeps_its_record(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        writer.alert("look", step=0)
        write(writer, [1.0, 500.0])
        checked = sonde.check(writer.run())
        assert {each.rule for each in checked.findings} == {"", "output_growth"}
        assert any("the run is being written" in note for note in checked.notes)
        assert [each.message for each in writer.run().findings] == ["look"]


@pytest.mark.usefixtures("own")
def test_what_a_rule_found_that_is_not_here_any_more_is_kept(tmp_path: Path) -> None:
    """With its condition and advice; a check says that it was not judged again."""

    @sonde.rule("an output is large", at="output", advice="look at it")
    def wide(rms: float) -> bool:
        return rms > 100

    with start_run(tmp_path / "run") as writer:
        write(writer, [500.0] * 4)
    sonde.check(tmp_path / "run")
    del RULES["wide"]
    checked = sonde.check(tmp_path / "run")
    kept = next(each for each in checked.findings if each.rule == "wide")
    assert (kept.condition, kept.advice, kept.site) == ("an output is large", "look at it", "1:output")
    assert kept in open_run(tmp_path / "run").findings
    assert any("not judged again, since this process does not have these rules: wide" in note for note in checked.notes)
    assert "rule: an output is large" in repr(checked)


def trained(to: Path, steps: range, *, dead_from: int, **more: object) -> Inspector:
    """Train a small network, of which a layer is dead from a step on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, every=1, to=to, verbose=False, **more) as inspector:  # type: ignore[arg-type]  # of one test
        for step in steps:
            if step == dead_from:
                nn.init.constant_(model[0].bias, -50.0)  # type: ignore[arg-type]  # a parameter
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
    return inspector


def test_a_run_that_is_resumed_has_no_findings_of_rows_that_it_replaces(tmp_path: Path) -> None:
    """The layer died at step 12, and the run goes on from step 10 without that; what was found before step 10 stays."""
    first = trained(tmp_path / "run", range(30), dead_from=12)
    assert "dead" in {each.rule for each in first.findings}
    second = trained(tmp_path / "run", range(10, 30), dead_from=99, exists="resume", step=10)
    assert "dead" not in {each.rule for each in second.findings}
    run = open_run(tmp_path / "run")
    assert told(run.findings) == told(second.findings) == told(sonde.check(run).findings)
    assert run.record.step == 29


def test_a_run_that_is_resumed_keeps_what_was_found_before(tmp_path: Path) -> None:
    trained(tmp_path / "run", range(30), dead_from=0)
    before = [each for each in open_run(tmp_path / "run").findings if each.rule == "dead"]
    second = trained(tmp_path / "run", range(25, 40), dead_from=99, exists="resume", step=25)
    after = [each for each in second.findings if each.rule == "dead"]
    assert [(each.site, each.first_step, each.message) for each in after] == [
        (each.site, each.first_step, each.message) for each in before
    ]


def test_the_record_is_one_small_document_with_a_checksum(tmp_path: Path) -> None:
    inspector = trained(tmp_path / "run", range(12), dead_from=0)
    held = read_json(tmp_path / "run" / "findings.json")
    assert (held["step"], held["steps"]) == (11, 12)
    assert held["rules"]["dead"] == {"some": 0.25, "most": 0.9}
    record = Record.read(held)
    assert record is not None
    assert told(record.findings) == told(inspector.findings)
    (tmp_path / "run" / "findings.json").write_text("{}")
    run = open_run(tmp_path / "run")
    with pytest.warns(UserWarning, match="damaged"):
        assert run.findings == []
    assert run.verdict == "unknown"
    assert run.shortfalls[0] == "no step was judged"


def test_a_finding_of_the_programs_own_is_in_the_record(tmp_path: Path) -> None:
    """With its numbers, also infinite ones."""
    with start_run(tmp_path / "run") as writer:
        writer.alert("a new one", step=3, evidence={"size": 2.0, "before": math.inf}, advice="do this", severity="error")
        with pytest.raises(ArgumentError, match="the number 'size' is a number"):
            writer.alert("wrong", step=3, evidence={"size": "large"})  # type: ignore[dict-item]  # refused
    [found] = open_run(tmp_path / "run").findings
    assert (found.message, found.evidence, found.advice) == ("a new one", {"size": 2.0, "before": math.inf}, "do this")
    assert (found.severity, found.call, found.rule) == ("bad", -1, "")


def test_records_of_several_ranks_are_one() -> None:
    """One rule in one model is one finding: of the rank that saw it first, with the places of all."""
    first = Record(judged=(dead("1", 4),), step=9, steps=10, rules={"dead": {}}, not_judged={"spike": "loss"})
    second = Record(judged=(dead("0", 2), dead("head", 3, rule="flat")), step=8, steps=9, rules={"dead": {}})
    both = Record.merged([first, second])
    assert [(each.rule, each.site, each.first_step, each.places) for each in both.findings] == [
        ("dead", "0:output", 2, ("0", "1")),
        ("flat", "head:output", 3, ("head",)),
    ]
    assert both.findings[0].message == "0: dead (also 1)"
    assert (both.step, both.steps, both.not_judged) == (8, 10, {})


def dead(layer: str, first: int, *, rule: str = "dead") -> Finding:
    """A finding about one layer."""
    return Finding(
        rule, f"{layer}: {rule}", f"{layer}:output", 0, first, 1.0, "bad", first_step=first, opened=first, places=(layer,)
    )


def test_what_the_training_saw_stands_before_what_the_rows_show() -> None:
    """A NaN at step 3, of which the rows show step 4 and what became of it; a finding from before stays."""
    seen = Finding("nonfinite", "step 3", "a:grad", 0, 3, severity="bad", first_step=3, opened=3)
    rows = [
        Finding("nonfinite", "step 4", "b:output", 0, 4, severity="bad", first_step=4, opened=5),
        Finding("flat", "later", "c:output", 0, 6, first_step=6, opened=6),
        Finding("flat", "earlier", "m/c:output", 0, 1, first_step=1, opened=2),
    ]
    assert [each.message for each in combined([seen], rows)] == ["step 3", "earlier"]


def test_units_are_dead_once_three_looks_say_it_and_before_that_a_note() -> None:
    """Some that live again in the next look were not dead."""
    shares = {"dies": [0.5, 0.95, 0.95, 0.95], "lives again": [0.95, 0.95, 0.5, 0.5]}
    for name, deaths in shares.items():
        findings, writer = Findings(), memory_run()
        for step, death in enumerate(deaths):
            writer.append("activation", Layout(["1:output"]), {"call_death": [death]}, step=10 * step)
        judge_rows(writer.run(), findings)
        assert [each.severity for each in findings.judged()] == (["bad"] if name == "dies" else ["note"])


def test_a_note_about_a_part_of_what_is_wrong_is_left_out() -> None:
    """As that of one weight of an expert which no sample comes to; one about another layer stays."""
    lost = Finding("gradient_zero", "experts.1: no gradient", "experts.1.0.weight:grad", places=("experts.1",))
    note = Finding("gradient_zero", "zero", "experts.1.2.weight:grad", severity="note", places=("experts.1.2.weight",))
    other = Finding("gradient_zero", "zero", "out.bias:grad", severity="note", places=("out.bias",))
    assert Findings(fixed=[lost, note]).judged() == [lost]
    assert Findings(fixed=[lost, other]).judged() == [lost, other]


def test_what_is_left_out_is_said() -> None:
    whole = Record(steps=5, step=8, rules={"dead": {}})
    assert whole.shortfalls(8, 0) == []
    assert whole.shortfalls(20, 0) == ["judged up to step 8 of 20"]
    assert Record().shortfalls(3, 0) == ["no step was judged"]
    assert Record(steps=1, step=0, rows=600, lost_rows=102).shortfalls(0, 0) == ["17 % of rows lost"]
    assert Record(steps=1, step=0, lost_steps=2).shortfalls(0, 1) == ["2 logged steps lost", "1 part of the run cannot be read"]


@pytest.mark.parametrize(
    "broken",
    [{"step": "3"}, {"severity": "awful"}, {"site": 7}, {"call": 2**70}, {"first_step": 1.5}, None],
    ids=["step", "severity", "site", "call", "first step", "no object"],
)
def test_a_finding_out_of_a_file_of_a_stranger_is_checked(broken: dict[str, object] | None) -> None:
    whole = data_of(dead("0", 1))
    assert read_finding(whole) == dead("0", 1)
    assert read_finding(None if broken is None else {**whole, **broken}) is None


@pytest.mark.parametrize(("first", "is_found"), [(0.0, True), (1.0, False)])
def test_a_loss_of_zero_is_reached_only_from_above(first: float, is_found: bool) -> None:
    """Gradients of zero are meant where a margin is reached; a loss that was 0 from the first step on has never taught anything."""
    layout = Layout(["0.weight:grad", "0.weight:param"])
    writer = memory_run()
    for step in range(12):
        loss = first if step < 3 else 0.0
        writer.append("moments", layout, {"rms": [loss, 1.0], "mean": 0.0, "std": [loss, 1.0]}, step=step)
        writer.scalar("loss", loss, step=step)
    found = {each.rule for each in sonde.check(writer.run()).findings}
    assert ("gradient_zero" in found) is is_found


@pytest.mark.parametrize(("size", "is_found"), [(1.0, False), (1000.0, True)])
def test_a_loss_that_crosses_zero_falls_without_bound_where_something_grows_with_it(size: float, is_found: bool) -> None:
    """From 1 to below -10, ever faster: a density may, unless an output has grown a hundredfold."""
    writer = memory_run()
    for step in range(60):
        write(writer, [size if step > 30 else 1.0], begin=step)
        writer.scalar("loss", 1.0 - 30 * (step / 60) ** 2, step=step)
    found = {each.rule: each for each in sonde.check(writer.run()).findings}
    assert ("loss_unbounded" in found) is is_found
    assert not is_found or found["output_growth"].follows == "loss_unbounded"


@pytest.mark.parametrize(("steps", "is_found"), [(60, True), (400, False)])
def test_a_loss_that_has_fallen_without_bound_and_comes_to_an_end_is_taken_back(steps: int, is_found: bool) -> None:
    writer = memory_run()
    for step in range(steps):
        write(writer, [1000.0 if step > 30 else 1.0], begin=step)
        writer.scalar("loss", 1.0 - 30 * (min(step, 60) / 60) ** 2, step=step)
    assert ("loss_unbounded" in {each.rule for each in sonde.check(writer.run()).findings}) is is_found


@pytest.mark.parametrize(("begin", "is_first"), [(8.0, True), (40.0, False)])
def test_a_validation_loss_that_never_fell_is_told_of_how_it_is_evaluated(begin: float, is_first: bool) -> None:
    writer = memory_run()
    for step in range(100):
        writer.scalar("loss", 0.95**step, step=step)
        if step % 10 == 0:
            writer.scalar("val_loss", begin if step == 0 else 8.0 + step / 5, step=step)
    (found,) = [each for each in sonde.check(writer.run()).findings if each.rule == "overfitting"]
    assert found.advice.startswith("nothing recorded says why: look first at what differs") is is_first


@pytest.mark.parametrize(("last", "is_found"), [(0.95, True), (0.5, False)])
def test_targets_that_are_far_larger_than_outputs_are_found_where_the_loss_does_not_fall(last: float, is_found: bool) -> None:
    """The first loss is a hundred million, of 64 outputs of size 0.1; what is learnt in spite of that is healthy."""
    layout = Layout(["0:output"])
    writer = memory_run()
    for step in range(220):
        writer.append("moments", layout, {"rms": [0.1], "count": [64.0], "nan": 0, "inf": 0}, step=step)
        writer.scalar("loss", 1e8 * (1 - (1 - last) * step / 220), step=step)
    found = {each.rule: each for each in sonde.check(writer.run()).findings}
    assert ("target_large" in found) is is_found
    assert not is_found or (found["target_large"].first_step, found["target_large"].site) == (0, "0:output")


def test_what_a_loss_excuses_waits_for_the_loss_of_its_step() -> None:
    """A loss is pushed behind the step whose rows have come; a gradient is zero, and right so, once the loss is."""
    with memory_run() as writer:
        for step in range(6):
            writer.append("moments", Layout(["0.weight:grad", "0.weight:param"]), {"rms": [0.0, 1.0]}, step=step)
    for lost in (0.0, 2.0):
        findings = Findings()

        class Judge(Sink):
            """Judges each step when its rows come, and its loss behind them."""

            def write(self, rows: Any, findings: Findings = findings, lost: float = lost) -> None:
                block = rows.block()
                findings.judge([block])
                for _, step in block.moments[:, :2].tolist():
                    findings.judge([], [("loss", 2.0 if step < 2 else lost, 0, int(step))])

        writer.run().send_to(Judge())
        findings.end()
        assert ("gradient_zero" in {each.rule for each in findings.judged()}) is (lost > 0)


@pytest.mark.parametrize("falls", [True, False])
def test_a_loss_that_stood_still_and_falls_after_all_is_taken_back(falls: bool) -> None:
    """As on a plateau at the beginning of a long training, behind which it is learnt."""
    noise = np.random.default_rng(0).normal(0.0, 0.01, 1_500)
    with memory_run({"model": [{"name": "0", "type": "Linear", "shapes": {"weight": [9, 9]}}]}) as writer:
        for step in range(1_500):
            value = 1.0 + noise[step] - falls * 0.6 * max(0.0, (step - 1_100) / 400)
            writer.scalar("loss", value, step=step)
    assert [each.rule for each in sonde.check(writer.run()).findings] == ([] if falls else ["loss_stuck"])


@pytest.mark.parametrize(
    ("shares", "severity"),
    [
        ([0.1, 0.94, 0.95, *[0.96] * 10], "bad"),
        ([0.1, 0.94, 0.95, 0.92, *[0.8] * 5], "note"),
        ([0.1, 0.94, 0.95, 0.92, *[0.8] * 3], "bad"),  # may be chance so far
        ([0.1, 0.94, 0.95, *[0.2] * 5, 0.94, 0.95, 0.95], "bad"),
    ],
)
def test_dead_units_that_live_again_are_a_note(shares: list[float], severity: str) -> None:
    """One batch in which most of them are zero, or a few, do not say that they stay so."""
    writer = memory_run()
    for step, share in enumerate(shares):
        writer.append("activation", Layout(["1:output"]), {"call_death": [share], "activation": [0.1]}, step=step)
    assert [each.severity for each in sonde.check(writer.run()).findings if each.rule == "dead"][:1] == [severity]


@pytest.mark.parametrize(("most", "severity"), [(1.2, "note"), (30.0, "bad")])
def test_a_loss_of_one_of_several_optimizers_may_rise(most: float, severity: str) -> None:
    """As that of a generator against its critic; one that has lost all is told."""
    with memory_run() as writer:
        for step in range(60):
            for name in ("G/lr", "D/lr"):
                writer.scalar(name, 1e-3, step=step)
            writer.scalar("loss", 0.6 if step < 20 else most, step=step)
    found = {each.rule: each.severity for each in sonde.check(writer.run()).findings}
    assert found["loss_rising"] == severity


@pytest.mark.parametrize(("clips", "severity"), [(True, "note"), (False, "warn")])
def test_a_norm_that_clipping_cuts_is_a_note(clips: bool, severity: str) -> None:
    with memory_run() as writer:
        for step in range(60):
            norm = 60.0 if step == 40 else 0.8 + 0.1 * (step % 3)
            writer.scalar("grad_norm_raw", norm, step=step)
            writer.scalar("grad_norm", min(norm, 1.0) if clips else norm, step=step)
    assert [(each.rule, each.severity) for each in sonde.check(writer.run()).findings] == [("spike", severity)]


@pytest.mark.parametrize(("value", "severity"), [(2.3, "warn"), (0.4, "note")])
def test_a_loss_of_a_guess_at_a_tiny_rate_is_stuck_by_that(value: float, severity: str) -> None:
    """One that is far below may be that of a network that is trained a little more."""
    about = {"model": [{"name": "head", "type": "Linear", "shapes": {"weight": [10, 4]}}]}
    with memory_run(about) as writer:
        writer.append("moments", Layout(["head:output"]), {"rms": [1.0], "mean": [0.5], "count": [40.0]}, step=0)
        for step in range(150):
            writer.scalar("lr", 2e-6, step=step)
            writer.scalar("loss", value, step=step)
    stuck = [each for each in sonde.check(writer.run()).findings if each.rule == "loss_stuck"]
    assert [each.severity for each in stuck] == ([severity] if stuck else [])
    assert all(each.advice.startswith("raise the learning rate first: 2e-06 is a small one") for each in stuck)


@pytest.mark.parametrize(("first", "is_told"), [(0.8, False), (0.56, True)])
def test_a_validation_loss_that_stands_from_its_first_value_on_may_have_come_down_before(first: float, is_told: bool) -> None:
    """As of a training whose losses are first evaluated where it has ended, for the most part."""
    scalars = ScalarFindings(Chosen())
    for step in range(1_000):
        scalars.add("loss", 0.55 + (first - 0.55) * 0.9**step, epoch=0, step=step)
        if step % 100 == 99:
            scalars.add("val_loss", 0.555 + 0.001 * (step % 200 == 99), epoch=0, step=step)
    told = [each for each in scalars.findings(at_end=True) if each.message.startswith("val_loss does not fall from ")]
    assert bool(told) is is_told


@pytest.mark.parametrize(("size", "is_told"), [(1e-6, True), (1e-2, False)])
def test_gradients_that_are_zero_beside_tiny_ones_are_told_with_half_precision(size: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for _ in range(20):
            optimizer.zero_grad()
            (size * model(torch.randn(16, 4)).square().mean()).backward()
            for each in model[0].parameters():
                each.grad.zero_()  # what is smaller than the smallest number of its type
            optimizer.step()
    (told,) = [each for each in inspector.findings if each.rule == "gradient_zero"]
    assert ("torch.amp.GradScaler" in told.advice) is is_told
