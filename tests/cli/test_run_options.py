"""The run that a command is given: a folder, a name below runs, a folder of runs, or nothing."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest

from sonde.cli.run_options import between, expect_steps, find_run
from sonde.errors import ArgumentError, StoreError
from sonde.run import open_run


def test_a_run_is_a_folder_a_name_or_the_newest(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest is the one whose training began last, whatever was written since."""
    runs = project / "runs"
    for given in ("runs/quiet-otter", "quiet-otter", str(runs / "quiet-otter"), "runs/quiet-otter/"):
        assert find_run(given) == runs / "quiet-otter"
    assert capsys.readouterr().err == ""
    (runs / "quiet-otter" / "coverage.json").touch()
    assert find_run("runs") == runs / "calm-heron"
    assert capsys.readouterr().err == "calm-heron: the newest of 2 runs in runs\n"


def test_a_name_may_be_the_end_of_a_path_if_one_run_has_it(project: Path) -> None:
    shutil.copytree(project / "runs" / "quiet-otter", project / "runs" / "sweep" / "lr-0.1")
    assert find_run("lr-0.1") == project / "runs" / "sweep" / "lr-0.1"
    assert find_run("sweep") == project / "runs" / "sweep" / "lr-0.1"
    shutil.copytree(project / "runs" / "quiet-otter", project / "runs" / "again" / "lr-0.1")
    with pytest.raises(ArgumentError, match=r"'lr-0.1' is the name of 2 runs: runs/again/lr-0.1, runs/sweep/lr-0.1"):
        find_run("lr-0.1")


def test_the_newest_of_runs_that_cannot_be_read_says_why(project: Path) -> None:
    (project / "runs" / "calm-heron" / "run.json").write_text("{")
    assert find_run("runs") == project / "runs" / "quiet-otter"
    (project / "runs" / "quiet-otter" / "run.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(StoreError, match="is not a run"):
        open_run(find_run("runs"))


def test_steps_are_a_condition_with_both_ends() -> None:
    parser = argparse.ArgumentParser()
    expect_steps(parser)
    assert between(parser.parse_args([])) is None
    assert between(parser.parse_args(["--from", "3"])) == "step >= 3"
    assert between(parser.parse_args(["--from", "3", "--to", "9"])) == "step >= 3 AND step <= 9"
    with pytest.raises(ArgumentError, match="the first step comes after the last"):
        between(parser.parse_args(["--from", "9", "--to", "3"]))
