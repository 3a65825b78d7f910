"""The page on schemas lists every field of every answer with its type: a field that goes, comes or changes fails a test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde import cli
from sonde.answer import Answer
from sonde.cli import COMMANDS, main
from sonde.run import Layout, memory_run, start_run

PAGE = (Path(__file__).parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")
TYPES: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "true or false": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


@cache
def fields(heading: str) -> dict[str, str]:
    """Return the types of the fields under a *heading* of the page."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return dict(re.findall(r"^\| `(\w+)` \| ([\w ]+\??) \|", section, re.MULTILINE))


def check(held: dict[str, Any], described: dict[str, str], what: str) -> None:
    """Assert that *held*, as JSON has it, has the fields *described* and no others, each of its type."""
    held = json.loads(json.dumps(held, allow_nan=False))
    assert set(held) == set(described), what
    for name, kind in described.items():
        assert (held[name] is None and kind.endswith("?")) or TYPES[kind.removesuffix("?")](held[name]), (what, name, held[name])


def recorded(where: Any = None) -> Any:
    """Return a run with a dead layer."""
    with memory_run() if where is None else start_run(where) as writer:
        for step in range(8):
            writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 2.0 + step % 2]}, step=step)
            writer.scalars([("loss", float("nan") if step > 5 else 1.0, step, 0, "global", 1)])
    return writer.run()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))


def loss(output: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.long))


ANSWERS: dict[str, Callable[[], Answer]] = {
    "Checked": lambda: sonde.check(recorded()),
    "Preflight": lambda: sonde.preflight(model(), torch.ones(8, 4), loss, checks=["loss_input"], verbose=False),
    "NonFinite": lambda: sonde.why_nan(model(), torch.ones(8, 4), lambda p: (p - p).sqrt().sum()),
    "NonFinite without any": lambda: sonde.why_nan(model(), torch.ones(8, 4), loss),
    "Comparison": lambda: sonde.compare(model(), model().double().float(), torch.ones(8, 4), verbose=False),
    "RunComparison": lambda: sonde.compare(recorded(), recorded()),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_has_the_fields_of_the_page(name: str) -> None:
    answer = ANSWERS[name]()
    held = answer.to_dict()
    assert held["answer"] == type(answer).__name__ == name.partition(" ")[0]
    check(held, fields("Every answer") | fields(held["answer"]), name)
    assert held == json.loads(answer.to_json())
    for finding in held["findings"]:
        check(finding, fields("A finding"), name)


@pytest.mark.slow
def test_the_answer_of_the_doctor_has_the_fields_of_the_page() -> None:
    held = sonde.doctor(model(), torch.ones(8, 4), loss, compile=False, seconds=1.0, verbose=False).to_dict()
    check(held, fields("Every answer") | fields("Checkup"), "Checkup")


def test_every_class_of_answers_is_on_the_page() -> None:
    def below(kind: type) -> set[str]:
        ours = [each for each in kind.__subclasses__() if each.__module__.startswith("sonde.")]
        return {each.__name__ for each in ours} | {name for each in ours for name in below(each)}

    import sonde.cli.doctor
    import sonde.diagnosis

    for name in ("doctor", "compare", "check", "replay"):
        getattr(sonde, name)
    ours = below(Answer) - {"ModelChecks"}
    assert {name.strip("_") for name in ours} >= {"Checked", "Preflight", "NonFinite", "Tried", "Comparison", "Environment"}
    assert {name for name in (each.strip("_") for each in ours) if f"\n## {name}\n" not in PAGE} == set()


def test_tried_has_the_fields_of_the_page() -> None:
    from sonde.diagnosis import Attempt, Tried

    attempt = Attempt("", 1.0, 0.5, 2.0, float("nan"), "0.weight")
    check(Tried({"lr": 0.1}, attempt, attempt, []).to_dict(), fields("Every answer") | fields("Tried"), "Tried")


@pytest.mark.slow
def test_show_and_doctor_print_what_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "run")
    main(["show", str(tmp_path / "run"), "--json"])
    check(json.loads(capsys.readouterr().out), fields("Commands about runs"), "show")
    main(["check", str(tmp_path / "run"), "--json"])
    check(json.loads(capsys.readouterr().out), fields("Every answer") | fields("Checked"), "check")
    main(["doctor", "--json"])
    check(json.loads(capsys.readouterr().out), fields("Every answer") | fields("Environment"), "doctor")


def written() -> dict[str, dict[str, str]]:
    """Return by command the types of the fields of the commands that write."""
    (section,) = re.findall(r"^## Commands that write\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    found: dict[str, dict[str, str]] = {}
    for command, field, kind in re.findall(r"^\| `sonde ([\w -]+)` \| `(\w+)` \| ([\w ]+\??) \|", section, re.MULTILINE):
        found.setdefault(command, {})[field] = kind
    return found


def test_every_other_command_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command that has ``--json`` is run, and none is left out."""
    monkeypatch.chdir(tmp_path)
    recorded("runs/a")
    net = model()
    with sonde.watch(net, every=1, to="runs/b", graph=torch.ones(2, 4), verbose=False) as inspector:
        net(torch.ones(2, 4)).sum().backward()
        inspector.step()

    def printed(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        main([*arguments, "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    of_show = list(fields("Commands about runs"))[:6]
    held = printed("show", "runs/a", "--family", "moments")
    check(held, {name: fields("Commands about runs")[name] for name in of_show} | {"family": "text", "rows": "list"}, "family")
    for run in ("runs/a", "runs/b"):
        check(printed("info", run), fields("What a run holds"), "info")
    held = printed("list", "runs")
    check(held, {"folder": "text", "runs": "list"}, "list")
    for each in held["runs"]:
        check(each, fields("The list of runs"), "list")
    check(printed("compare", "runs/a", "runs/b"), fields("Every answer") | fields("RunComparison"), "compare")
    calls = {
        "plot": ("plot", "runs/a", "-o", "pictures"),
        "plot --list": ("plot", "runs/a", "--list"),
        "export": ("export", "runs/a", "-o", "rows"),
        "report": ("report", "runs/a"),
        "graph": ("graph", "runs/b"),
        "prune": ("prune", "runs/a", "--every", "4"),
    }
    assert set(calls) == set(written())
    for command, arguments in calls.items():
        check(printed(*arguments), written()[command], command)
    held = printed("env")
    assert all(value is None or isinstance(value, str) for value in held.values())
    assert {"torch", "sonde", "accelerator"} <= set(held)
    having = {name for name in COMMANDS if "expect_json(" in (Path(cli.__file__).parent / f"{name}.py").read_text(encoding="utf-8")}
    assert having == {call[0] for call in calls.values()} | {"show", "info", "list", "compare", "env", "check"}
