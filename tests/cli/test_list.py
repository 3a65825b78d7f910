"""``sonde list`` prints the runs of a folder, sorted, and those that meet conditions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sonde.cli import main
from sonde.run import start_run


def names(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["list", *words, "--json"]) == 0
    return [entry["name"] for entry in json.loads(capsys.readouterr().out)["runs"]]


@pytest.fixture
def runs(project: Path) -> Path:
    """Beside the two: ``long``, which nobody has closed, with 30 steps and a loss of 0.01."""
    writer = start_run(project / "runs" / "long")
    for step in range(30):
        writer.scalar("loss", 0.01, step=step)
    writer.flush()
    yield project / "runs"
    writer.close()


def test_runs_are_sorted_and_chosen(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert names(capsys) == ["calm-heron", "long", "quiet-otter"]
    assert names(capsys, "--sort", "steps")[0] == "long"
    assert names(capsys, "--sort", "loss")[0] == "long"
    assert names(capsys, "--sort", "size")[-1] == "long"
    assert names(capsys, "--sort", "findings")[0] == "quiet-otter"
    assert names(capsys, "--sort", "changed")[0] == "long"
    assert names(capsys, "--state", "running") == ["long"]
    assert names(capsys, "--health", "bad") == ["quiet-otter"]
    assert names(capsys, "--name", "*-heron", "--state", "ended") == ["calm-heron"]


def test_the_table_says_state_steps_health_and_size_in_eighty_columns(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list"]) == 0
    head, columns, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("3 runs in runs, ")
    assert columns.split()[:6] == ["run", "state", "steps", "findings", "loss", "size"]
    assert rows[1].split()[:3] == ["long", "running", "30"]
    assert "1 bad" in rows[2]
    assert all(len(line) <= 80 for line in rows)
    assert main(["list", "--state", "lost"]) == 0
    assert "no run meets these conditions" in capsys.readouterr().out
