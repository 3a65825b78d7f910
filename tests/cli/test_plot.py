"""``sonde plot`` draws pictures of a run to files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sonde.cli import main

pytest.importorskip("matplotlib")


@pytest.mark.slow
def test_one_picture_is_a_file_whose_ending_chooses_the_form(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "quiet-otter", "--picture", "scalars", "-o", "deep/loss.svg"]) == 0
    assert capsys.readouterr().out == "deep/loss.svg\n"
    assert "<svg" in (project / "deep" / "loss.svg").read_text()


def test_a_number_is_drawn_of_some_layers_and_steps(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default as a heat-map, in the current folder, named after the run."""
    words = ["--number", "rms", "--port", "grad", "--layers", "layers", "--from", "2", "--json"]
    assert main(["plot", "quiet-otter", *words]) == 0
    file = project / "quiet-otter-heatmap.png"
    assert json.loads(capsys.readouterr().out) == {"files": {"heatmap": str(file)}}
    assert file.read_bytes().startswith(b"\x89PNG")


def test_the_pictures_of_a_run_are_listed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "quiet-otter", "--list"]) == 0
    names = capsys.readouterr().out.split()
    assert {"scalars", "moments-output", "gradient_flow-grad", "update_ratio"} <= set(names)
    assert main(["plot", "quiet-otter", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pictures": names}


@pytest.mark.slow
def test_without_a_name_all_are_drawn_to_a_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "quiet-otter", "--list"]) == 0
    names = capsys.readouterr().out.split()
    assert main(["plot", "quiet-otter", "--format", "svg", "--dark", "--layers", "layers"]) == 0
    assert capsys.readouterr().out.split() == [f"quiet-otter-pictures/{name}.svg" for name in names]
    assert sorted(file.stem for file in (project / "quiet-otter-pictures").iterdir()) == sorted(names)


WRONG = {
    "Nearest: heatmap": ["--picture", "heatmpa"],
    "the run has no 'rmss'": ["--number", "rmss"],
    "selects none of": ["--picture", "heatmap", "--layers", "blocks"],
    "--number says nothing to the picture sheet": ["--picture", "sheet", "--number", "rms"],
    "'x.gif': pictures are written as": ["--picture", "scalars", "-o", "x.gif"],
    "'x.png' is one file": ["-o", "x.png"],
    "the first step comes after the last": ["--picture", "heatmap", "--from", "5", "--to", "2"],
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_drawn_is_one_line(words: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "quiet-otter", *WRONG[words]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
