"""``sonde info`` says what a run holds, ``sonde export`` writes its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

import sonde
from sonde.cli import main
from sonde.run import open_run


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_the_facts_are_those_of_the_files(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(printed(capsys, "info", "quiet-otter", "--json"))
    folder = project / "runs" / "quiet-otter"
    run = open_run(folder)
    assert (
        found["bytes"] == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) == sum(found["files"].values())
    )
    assert set(found["families"]) == set(run.families)
    for family, about in found["families"].items():
        table = run.table(family)
        size = sum(file.stat().st_size for file in (folder / family).iterdir())
        assert about["rows"] == table.num_rows
        assert about["bytes"] == size
        assert about["bytes_per_row"] == size / table.num_rows
        assert about["steps"] == len(set(table.column("step").to_pylist()))
    assert found["steps"] == {"logged": 4, "first": 0, "last": 5}  # the last loss comes after the last logged step
    assert found["settings"]["seed"] == 0
    assert found["settings"]["environment.torch"]
    assert found["sites"] == len(run.sites)
    assert found["findings"] == len(run.findings)
    assert found["documents"] == ["graph", "coverage"]
    assert (found["state"], len(found["attempts"])) == ("ended", 1)


def test_the_screen_fits_eighty_columns(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(capsys, "info", "calm-heron").splitlines()
    assert lines[0].startswith("calm-heron · ended · 4 logged steps (0 to 5) · ")
    assert any(line.startswith("moments") for line in lines)
    assert any(line.split() == ["seed", "1"] for line in lines)
    assert any(line.startswith("run.json") for line in lines)
    assert all(len(line) <= 80 for line in lines[1:])


def test_files_are_named_with_their_size_and_hold_the_rows(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "export", "quiet-otter", "-o", "out", "--json"))["files"]
    run = open_run(project / "runs" / "quiet-otter")
    assert set(found) == set(run.families)
    for family, file in found.items():
        assert Path(file["path"]).stat().st_size == file["bytes"]
        assert repr(pyarrow.parquet.read_table(file["path"]).to_pylist()) == repr(run.table(family).to_pylist())
    out = printed(capsys, "export", "quiet-otter", "--number", "rms", "--layers", "head", "--from", "2", "-o", "rms.csv")
    assert out.startswith("rms.csv: ")
    assert Path("rms.csv").read_text().count("head") > 1


def test_tensorboard_gets_the_steps_and_numbers_that_were_asked_for(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    printed(capsys, "export", "quiet-otter", "--format", "tensorboard", "--number", "rms", "--from", "2", "--to", "4", "-o", "tb")
    events = EventAccumulator("tb").Reload()
    run = open_run(project / "runs" / "quiet-otter")
    steps, values = run.series("head:output", "rms", where="step BETWEEN 2 AND 4")
    assert [(event.step, event.value) for event in events.Scalars("output_rms/head")] == [
        (step, pytest.approx(value)) for step, value in zip(steps.tolist(), values.tolist(), strict=True)
    ]
    assert {event.step for event in events.Scalars("loss")} == {2, 4}
    assert not any("norm/" in tag for tag in events.Tags()["scalars"])


def test_what_cannot_be_done_has_exit_code_2(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--number", "rmss"], "Nearest: rms"),
        (["-o", "x.csv"], "one file"),
        (["--from", "4", "--to", "2"], "comes after the last"),
        (["--format", "tensorboard", "--layers", "head"], "--layers chooses rows"),
    ):
        assert main(["export", "quiet-otter", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_folder_of_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What extract() has written, and what a tracker has."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    sonde.extract(model, [torch.randn(8, 4)] * 5, "0", tmp_path / "acts", columns={"at": lambda batch: batch[:, 0]}, progress=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    lines = printed(capsys, "info", "acts").splitlines()
    assert "acts · complete · 40 rows, items 0 to 39 · 1 shard · " in lines[0]
    assert ["0:output", "float32", "3"] in [line.split() for line in lines]
    assert any("torch.nn.modules.container.Sequential" in line for line in lines)
    found = json.loads(printed(capsys, "info", "acts", "--json"))
    assert (found["rows"], found["items"], found["columns"]["0:output"]) == (40, [0, 39], {"type": "float32", "row": [3]})
    with sonde.track(model, grad=False) as tracker:
        model(torch.randn(2, 4))
    tracker.save(tmp_path / "kept")
    lines = printed(capsys, "info", "kept").splitlines()
    assert "kept · complete · 3 tensors, 3 records · 1 shard" in lines[0]
