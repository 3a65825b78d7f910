"""``sonde prune`` says what would go, and does it with ``--yes``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from sonde.cli import main
from sonde.cli.prune import _moment
from sonde.run import open_run, start_run


def files_in(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".lock")}


def test_nothing_is_changed_without_yes(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    before = files_in(project)
    assert main(["prune", "quiet-otter", "--every", "4"]) == 0
    assert files_in(project) == before
    out = capsys.readouterr().out
    assert "would go of" in out
    assert ["moments", "3", "→", "2"] in [line.split()[:4] for line in out.splitlines()]
    assert out.splitlines()[-1] == "nothing was changed: --yes does it"
    assert main(["prune", "quiet-otter", "--every", "4", "--yes"]) == 0
    said = capsys.readouterr().out
    assert " went of " in said
    assert "about" not in said
    assert open_run("runs/quiet-otter").pruned
    assert main(["list"]) == 0
    assert "ended, pruned" in capsys.readouterr().out


def test_all_runs_of_a_folder_but_those_that_are_written_or_younger(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start_run(project / "runs" / "now") as writer:
        writer.scalar("loss", 1.0, step=0)
        writer.flush()
        assert main(["prune", "runs", "--every", "4", "--yes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dry_run"] is False
    assert [Path(each["path"]).name for each in found["runs"]] == ["calm-heron", "quiet-otter"]
    assert all(each["families"][0].keys() == {"family", "steps", "rows", "size"} for each in found["runs"])
    assert "is being written" in found["skipped"][str(project / "runs" / "now")]
    assert main(["prune", "runs", "--every", "4", "--before", "1h", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], len(found["skipped"])) == ([], 3)


def test_a_date_or_an_age() -> None:
    assert _moment("2026-01-31") == time.mktime((2026, 1, 31, 0, 0, 0, 0, 0, -1))
    assert abs(_moment("2d") - (time.time() - 2 * 86400)) < 60


WRONG = {
    "say what is to be taken out": ["quiet-otter"],
    "write a date, as 2026-01-31": ["runs", "--every", "2", "--before", "yesterday"],
    "Nearest: moments": ["runs", "--every", "2", "--families", "moment"],
    "there is no run": ["nowhere", "--every", "2"],
    "leaves all steps": ["quiet-otter", "--every", "1", "--yes"],
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_done_is_one_line(words: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", *WRONG[words]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="needs a user whose rights are checked")
def test_a_run_that_cannot_be_written_is_one_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "runs" / "quiet-otter").chmod(0o500)
    try:
        assert main(["prune", "quiet-otter", "--every", "4", "--yes"]) == 2
    finally:
        (project / "runs" / "quiet-otter").chmod(0o700)
    assert "sonde prune: " in capsys.readouterr().err
