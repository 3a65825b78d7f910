"""``sonde show`` prints the table of any run."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

from sonde import lens
from sonde.cli import main, show
from sonde.errors import ArgumentError, ObservationWarning, StoreError, UnknownSiteError
from sonde.inspector import watch
from sonde.run import Layout, start_run
from sonde.run.run import open_run
from sonde.view import plots


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test changes."""
    made = tmp_path_factory.mktemp("show") / "run"
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.constant_(model[0].bias, -100.0)  # type: ignore[arg-type]
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, every=2, to=made, verbose=False):
        for _ in range(5):
            model(torch.randn(5, 4)).sum().backward()
            optimizer.step()
    return made


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    parser = argparse.ArgumentParser()
    show.arguments(parser)
    assert show.run(parser.parse_args(list(options))) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_a_row_for_each_layer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of execution, over the logged steps; the dead layer stands out, and what was found is said."""
    out = printed(capsys, str(folder))
    rows = out[out.index("medians over steps 0 to 4") :].splitlines()
    assert [row.split()[:2] for row in rows[3:6]] == [["0", "Linear"], ["1", "ReLU"], ["2", "Linear"]]
    assert rows[4].rstrip().endswith("100 % dead")
    assert "bad: 1: 100 % dead" in out


def test_the_table_is_that_of_the_library(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``sonde show`` prints what ``plots.table(run)`` shows, line by line."""
    lines = [line.rstrip() for line in printed(capsys, str(folder)).splitlines()]
    shown = plots.table(open_run(folder)).to_text(200).splitlines()
    assert [line for line in lines if line in shown] == shown


def test_another_step_and_another_family(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All numbers of a family, site by site."""
    assert "step 2" in printed(capsys, str(folder), "--step", "2")
    out = printed(capsys, str(folder), "--family", "activation")
    assert "activation at step 0" in out
    assert "call_death" in out
    with pytest.raises(ArgumentError, match="the nearest are 0, 2, 4"):
        printed(capsys, str(folder), "--step", "3")
    with pytest.raises(ArgumentError, match="the nearest are 0"):
        printed(capsys, str(folder), "--step", "3", "--family", "activation")
    with pytest.raises(UnknownSiteError, match="Nearest: moments"):
        printed(capsys, str(folder), "--family", "moment")
    assert capsys.readouterr().out == ""  # the error stands alone


def test_scalars_are_a_family_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last value of each scalar, or those of one step."""
    rows = [line.split() for line in printed(capsys, str(folder), "--family", "scalars").splitlines()]
    assert ["4", "lr", "0.1"] in rows
    assert sum("grad_norm" in row[1:2] for row in rows) == 1
    out = printed(capsys, str(folder), "--family", "scalars", "--step", "2")
    assert "scalars at step 2" in out
    assert ["2", "lr", "0.1"] in [line.split() for line in out.splitlines()]
    with pytest.raises(ArgumentError, match="the nearest are 0, 2, 4"):
        printed(capsys, str(folder), "--family", "scalars", "--step", "3")


def test_runs_without_moments_and_without_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The columns that there are; or only the head."""
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, every=1, to=tmp_path / "norms", verbose=False, lenses=lens.ParameterNorm()):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    out = printed(capsys, str(tmp_path / "norms"))
    assert "epoch 0 · step 0" in out
    assert "weight" in out
    watch(model, to=tmp_path / "empty", verbose=False).detach()
    assert "nothing recorded yet" in printed(capsys, str(tmp_path / "empty"))
    with pytest.raises(StoreError, match="there is no run"):
        printed(capsys, str(tmp_path / "nowhere"))


def test_a_family_has_counts_in_full_keys_that_vary_and_no_empty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start_run(tmp_path / "run") as writer:
        layout = Layout(["a:output", "a:output", "b:output"], call=[0, 1, 0], order=[0, 0, 1])
        numbers = {"count": 12345, "finite": [12345, 12345, 0], "norm": [1.5, 2.5, 0.0], "nan": [0, 0, 12345], "inf": 0}
        writer.append("moments", layout, numbers, step=0)
        writer.append("moments", layout, numbers | {"finite": 12345, "nan": 0}, step=1)
    out = printed(capsys, str(tmp_path / "run"), "--family", "moments", "--step", "0")
    rows = [line.split() for line in out[out.index("moments at step 0") :].splitlines()]
    assert rows[1] == ["site", "call", "count", "finite", "norm", "nan", "inf"]
    assert rows[3:] == [
        ["a:output", "0", "12,345", "12,345", "1.5", "0", "0"],
        ["a:output", "1", "12,345", "12,345", "2.5", "0", "0"],
        ["b:output", "0", "12,345", "0", "NaN", "12,345", "0"],
    ]
    out = printed(capsys, str(tmp_path / "run"), "--family", "moments", "--step", "1")
    assert out.splitlines()[-1] == "every element is finite"
    assert "inf" not in out[out.index("moments at step 1") :].splitlines()[1]


def test_in_eighty_columns_the_table_of_layers_keeps_the_size_of_outputs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(capsys, str(folder)).splitlines()
    head = next(line for line in lines if line.startswith("layer"))
    assert "rms" in head.split()
    assert any(line.startswith("left out to fit 80 columns: weight") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_in_eighty_columns_the_main_number_stays_and_what_went_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for family, number in (("moments", "rms"), ("activation", "call_death")):
        out = printed(capsys, str(folder), "--family", family)
        lines = out[out.index(f"{family} at step") :].splitlines()
        assert number in lines[1].split()
        assert all(len(line) <= 80 for line in lines)
        assert family == "activation" or any(line.startswith("left out to fit 80 columns: zeros") for line in lines)
        assert "…" not in "".join(lines)


def test_the_numbers_of_layers_and_families_as_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal to those of the run; of the layers that were asked for."""
    assert main(["show", "quiet-otter", "--layers", "head", "--step", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {
        "run",
        "path",
        "state",
        "end",
        "config",
        "pruned",
        "scalars",
        "steps",
        "layers",
        "findings",
        "remarks",
        "verdict",
        "shortfalls",
    } == found.keys()
    (layer,) = found["layers"]
    run = open_run(project / "runs" / "quiet-otter")
    steps, values = run.series("head:output", "rms")
    assert (layer["layer"], layer["numbers"]["rms"]) == ("head", values[list(steps).index(2)])
    assert main(["show", "quiet-otter", "--family", "moments", "--layers", "head", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["step"] for row in rows} == {4}
    assert next(row["rms"] for row in rows if row["site"] == "head:output") == values[-1]
    assert main(["show", "quiet-otter", "--family", "scalars", "--json"]) == 0
    assert "loss" in {row["name"] for row in json.loads(capsys.readouterr().out)["rows"]}


def test_layers_that_look_like_a_glob_are_said_with_the_option_that_was_typed(folder: Path, tmp_path: Path) -> None:
    """``plots.table(include=)`` says the same of its argument; a pattern that finds the same either way is not spoken of."""
    with start_run(tmp_path / "run") as writer:
        layout = Layout(["h.0:output", "h.1:output", "head:output"])
        writer.append("moments", layout, {"rms": [1.0, 9.0, 4.0]}, step=0)
    run = open_run(tmp_path / "run")
    with pytest.warns(ObservationWarning, match="'h.\\*' is a regular expression, which is found in the names of 3 layers") as told:
        plots.table(run, include="h.*")
    assert str(told[0].message).startswith("include='h.*'")
    plots.table(run, include=r"^h\.")

    def telling(options: argparse.Namespace) -> int:
        shown.append(warnings.formatwarning(told[0].message, ObservationWarning, "show.py", 1))
        return 0

    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(show, "run", telling)
        main(["show", str(folder)])
    assert shown[0].startswith("sonde show: --layers 'h.*' is a regular expression")
    assert r"For these give --layers '^h\.[^.]*$'" in shown[0]
