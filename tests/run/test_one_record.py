"""One record behind every verdict: every place that speaks of a run says the same findings, layers, steps and numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.quick import quick
from torch import nn

import sonde
from sonde.cli import main
from sonde.rules import RULES, Finding, chapters
from sonde.run import Layout, Run, join_run, open_run, prune, start_run
from sonde.run.folder.json_file import read_json, write_json
from sonde.run.folder.run_json import Description
from sonde.view.app.answers.found import findings as findings_tab
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.app.answers.overview import overview
from sonde.view.app.followed_runs import FollowedRuns
from sonde.view.app.report_file import recording

Said = tuple[str, str, str, int, int, str, str, str]
"""Of a finding the rule, severity, site, first step, step, words, numbers, and what it follows from."""


def said(each: Finding) -> Said:
    """What a finding says."""
    first = each.step if each.first_step is None else each.first_step
    return (
        each.rule,
        each.severity,
        each.site,
        first,
        each.step,
        each.message,
        _numbers(dict(each.evidence) or {"value": each.value}),
        each.follows,
    )


def _numbers(held: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in held.items() if not math.isnan(value))


def said_on_the_page(each: dict[str, Any]) -> Said:
    """What the page shows of a finding."""
    signs = {"∞": math.inf, "−∞": -math.inf, "NaN": math.nan}
    numbers = {one["name"]: signs.get(one["value"], one["value"]) for one in each["evidence"]}
    words = each["message"], _numbers(numbers), each["follows"]
    return each["rule"], each["severity"], each["site"], each["first_step"], each["step"], *words


def printed(*words: str) -> str:
    """What a command prints."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        main(list(words))
    return out.getvalue()


@dataclass
class Told:
    """What a training has said while it ran and at its end; None of a run that no training of this process has written."""

    lines: list[str] | None = None
    closing: str | None = None
    findings: tuple[Finding, ...] | None = None


def walk(folder: Path, told: Told) -> None:
    """Compare what all places say of the run in *folder* with its record."""
    run = open_run(folder)
    wanted = list(map(said, run.findings))  # in the order of their story
    roots = list(chapters(run.findings))
    words = run.shortfalls
    if told.findings is not None:
        assert list(map(said, told.findings)) == wanted
    if told.closing is not None:
        notes = sum(each[1] == "note" for each in wanted)
        counts = [int(number) for number in re.findall(r"(\d+) (?:finding|note)s?\b", told.closing.partition(":")[0])]
        assert sum(counts) == len(wanted)
        assert (f"{notes} note" in told.closing) == bool(notes)
        for root, behind in roots[:3]:
            assert root.message in told.closing
            assert not behind or "; from it follow" in told.closing
            assert all(f"{each.rule} (step {each.begun:,}" in told.closing for each in behind[:1])
    if told.lines is not None:
        live = [line for line in told.lines if line.startswith("sonde: ")]
        judged = run.record.judged
        shown = {each.identity for each in run.findings}
        for each in judged:
            if each.identity in shown:
                bare = each.message.partition(" (also ")[0]
                told_then = [line for line in live if f"({each.rule})" in line and f"step {each.step:,}: " in line]
                [line] = [line for line in told_then if bare in line]  # what was taken back since may have been told before
                assert line.endswith(each.advice) or f"({each.rule}) follows from " in line
        kept = {each.rule for each in (*judged, *run.record.seen)}
        stay = [line for line in live if not any(f"({rule})" in line for rule in TAKEN_BACK - kept)]
        assert len(stay) <= len(judged) + len(run.record.seen)
    [listed] = FollowedRuns(folder).entries()
    assert (listed["findings"], listed["shortfalls"]) == (len(wanted), words)
    assert listed["root"] == (wanted[0][0] if wanted else "")
    assert (listed["health"] == "ok") == (run.verdict == "ok" and not words)
    walk_commands(folder, run)
    opened = OpenedRun(run)
    for answer in (overview(opened), findings_tab(opened)):
        assert list(map(said_on_the_page, answer["findings"])) == wanted
        assert (answer["health"], answer["shortfalls"], answer["counted"]) == (listed["health"], words, listed["counted"])
    report = recording(opened, listed, room=0)  # without heat-maps, which say nothing of findings
    assert list(map(said_on_the_page, report["findings"]["findings"])) == wanted
    assert list(map(said_on_the_page, report["overview"]["findings"])) == wanted
    checked = sonde.check(folder)
    if not words:  # nothing was left out: a check finds nothing else
        assert list(map(said, checked.findings)) == wanted
        lines = [line.strip() for line in checked.to_text().splitlines()]
        assert [line for line in lines if line.startswith("-> ")] == [
            f"-> {each.severity} {each.rule}, from step {each.begun:,} on, follows from {each.follows}: {each.message}"
            for each in run.findings
            if each.follows
        ]
        assert checked.verdict == run.verdict
    again = open_run(folder)
    assert list(map(said, again.findings)) == list(map(said, checked.findings))
    assert again.record.step >= again.last_step or not again.record.steps


def walk_commands(folder: Path, run: Run) -> None:
    """Compare what the commands say of a run with its record."""
    wanted, words = list(map(said, run.findings)), run.shortfalls
    held = json.loads(printed("show", str(folder), "--json"))
    assert [(each["message"], each["follows"]) for each in held["findings"]] == [
        (each.message, each.follows) for each in run.findings
    ]
    assert (held["verdict"], held["shortfalls"]) == (run.verdict, words)
    shown_lines = printed("show", str(folder))
    assert all(f"{each.severity}: {each.message}"[:60] in " ".join(shown_lines.split()) for each in run.findings)
    follow = [f"(follows from {each.follows})" for each in run.findings if each.follows]
    assert [" ".join(shown_lines.split()).count(each) for each in follow] == [follow.count(each) for each in follow]
    assert all(root.message[:60] in repr(run) for root, _ in list(chapters(run.findings))[:2])
    about = json.loads(printed("info", str(folder), "--json"))
    assert (about["findings"], about["verdict"], about["shortfalls"]) == (len(wanted), run.verdict, words)
    assert len(json.loads(printed("list", str(folder), "--json"))["runs"]) == 1
    assert not wanted or wanted[0][0] in printed("list", str(folder))


def network(kind: str) -> nn.Sequential:
    """A small network of the kinds of the health benchmark."""
    act: Callable[[], nn.Module] = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid}.get(kind, nn.ReLU)
    depth = 8 if kind in ("sigmoid", "deep") else 3
    inner = [layer for _ in range(depth) for layer in (nn.Linear(12, 12), act())]
    return nn.Sequential(nn.Linear(8, 12), act(), *inner, nn.Linear(12, 3))


FAULTS: dict[str, Callable[[nn.Sequential, int], object]] = {
    "healthy": lambda model, step: None,
    "dead": lambda model, step: step == 6 and nn.init.constant_(model[2].bias, -50.0),  # type: ignore[arg-type]
    "grown": lambda model, step: step == 9 and model[2].weight.data.mul_(3000.0),  # type: ignore[operator, union-attr]
    "broken": lambda model, step: step == 12 and nn.init.constant_(model[4].weight, math.nan),  # type: ignore[arg-type]
    "alike": lambda model, step: step == 0 and nn.init.constant_(model[2].weight, 0.1),  # type: ignore[arg-type]
}


def train(folder: Path, kind: str, fault: str, *, every: int = 1, steps: range = range(24), lr: float = 1e-3, **more: Any) -> Told:
    """Train a network with a fault; return what was said."""
    torch.manual_seed(0)
    model = network(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    err = StringIO()
    with redirect_stderr(err), redirect_stdout(err), sonde.watch(model, optimizer, every=every, to=folder, **more) as inspector:
        for step in steps:
            FAULTS[fault](model, step)
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)
    lines = err.getvalue().splitlines()
    closing = next((line for line in lines if re.match(r"(\d+ (finding|note)|no findings)", line)), "")
    return Told(lines, closing, inspector.findings)


def killed(folder: Path) -> Told:
    """A training whose last flushes came behind its record: as a kill between two files leaves it."""
    train(folder, "mlp", "dead")
    held = read_json(folder / "findings.json")
    early = {**held, "step": 10, "steps": 11, "judged": [each for each in held["judged"] if each["opened"] <= 10]}
    write_json(folder / "findings.json", early, sync=False)
    return Told()


def lossy(folder: Path) -> Told:
    """A training whose disk did not keep up."""
    train(folder, "mlp", "healthy")
    held = read_json(folder / "findings.json")
    lost = {**held, "rows": {"all": held["rows"]["all"], "lost": held["rows"]["all"] * 17 // 100}}
    write_json(folder / "findings.json", lost, sync=False)
    return Told()


def pruned(folder: Path) -> Told:
    """A training whose rows were thinned."""
    told = train(folder, "mlp", "dead")
    prune(folder, every=8)
    return Told(None, told.closing, told.findings)


def resumed(folder: Path) -> Told:
    """A training that goes on from a step before it went wrong."""
    train(folder, "mlp", "dead")
    told = train(folder, "mlp", "healthy", steps=range(5, 24), exists="resume", step=5)
    return Told(None, told.closing, told.findings)


def of_two_ranks(folder: Path) -> Told:
    """Two processes, each with rows of its own, that a check has judged."""
    layout = Layout(["0:output", "1:output", "2:output"], scope="rank")
    with start_run(folder) as first, join_run(folder, rank=1, attempt=1) as second:
        for step in range(12):
            first.append("moments", layout, {"rms": [1.0, 1.0 if step < 8 else 900.0, 1.0]}, step=step)
            second.append("moments", layout, {"rms": [1.0 if step < 4 else 700.0, 1.0, 1.0]}, step=step)
    sonde.check(folder)
    assert [each.site for each in open_run(folder).findings] == ["0:output"]
    assert open_run(folder).findings[0].places == ("0", "1")
    return Told()


def unjudged(folder: Path) -> Told:
    """The rows of another program."""
    layout = Layout(["0:output", "1:output", "2:output"])
    with start_run(folder) as writer:
        for step in range(6):
            writer.append("moments", layout, {"rms": [1.0, 1.0 if step < 3 else 1e6, 1.0]}, step=step)
        writer.alert("the disk is nearly full", step=2)
    return Told()


def with_a_rule_of_the_users_own(folder: Path) -> Told:
    """A rule that this process has only while the training runs."""

    @sonde.rule("an output is never that small", at="output", advice="look at it")
    def small_output(rms: float) -> bool:
        return rms < 100

    try:
        return train(folder, "mlp", "healthy")
    finally:
        del RULES["small_output"]


SPECIAL = {"two ranks": of_two_ranks, "resumed": resumed, "pruned": pruned, "killed": killed, "lossy": lossy, "unjudged": unjudged,
           "own rule": with_a_rule_of_the_users_own}  # fmt: skip
TRAINED = [(kind, fault, every) for kind in ("mlp", "tanh", "sigmoid", "deep") for fault in FAULTS for every in (1, 4)]
QUICK = [("mlp", "dead", 1)]
TAKEN_BACK = {
    "loss_rising",
    "loss_stuck",
    "overfitting",
    "output_growth",
    "weight_growth",
    "gradient_zero",
}  # as docs/rules.md says


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", quick(SPECIAL, "unjudged"))
def test_every_place_says_the_same_of_a_run_with_a_history(name: str, tmp_path: Path) -> None:
    walk(tmp_path / "run", SPECIAL[name](tmp_path / "run"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "fault", "every"), quick(TRAINED, *QUICK))
def test_every_place_says_the_same_of_a_training(kind: str, fault: str, every: int, tmp_path: Path) -> None:
    walk(tmp_path / "run", train(tmp_path / "run", kind, fault, every=every))


@pytest.mark.slow
def test_the_places_are_not_all_silent(tmp_path: Path) -> None:
    """What the walk compares is there: a finding, a note, and a shortfall."""
    rules: set[str] = set()
    for name in ("lossy", "unjudged", "pruned"):
        SPECIAL[name](tmp_path / name)
        run = open_run(tmp_path / name)
        rules |= {each.rule for each in run.findings} | set(run.shortfalls)
    assert {"dead", "", "no step was judged"} <= rules
    assert any(re.fullmatch(r"1\d % of rows lost", each) for each in rules)
    assert isinstance(Description.read(tmp_path / "pruned"), Description)


def test_all_runs_of_a_folder_are_listed_from_their_records_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is judged for the list."""
    for name in ("unjudged", "two ranks"):
        SPECIAL[name](tmp_path / name)

    def judging(*_: object, **__: object) -> Iterable[Finding]:
        raise AssertionError("the list judges rows")

    monkeypatch.setattr("sonde.run.findings.Findings.judge", judging)
    entries = {each["name"]: each for each in FollowedRuns(tmp_path).entries()}
    assert (entries["two ranks"]["health"], entries["two ranks"]["findings"]) == ("bad", 1)
    assert (entries["unjudged"]["health"], entries["unjudged"]["shortfalls"]) == ("warn", ["no step was judged"])
