"""Exported files hold the rows of the run, as pyarrow and pandas read them back."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from sonde.errors import ArgumentError, UnknownSiteError
from sonde.rows import Layout
from sonde.run import Run, memory_run, start_run
from sonde.run import exporting as sut

SITES = ("a:output", "b.c:output", "b.c.weight:grad")


@pytest.fixture
def run() -> Run:
    writer = memory_run({"model": ["a"]})
    for step in range(6):
        numbers = {"rms": [float(step), np.nan, 0.1], "norm": [1.0, 2.0, np.inf]}
        writer.append("moments", Layout(SITES), numbers, step=step, epoch=step // 3)
        writer.append("exponents", Layout(SITES[:1]), {"powers": np.full((1, 3), step)}, step=step)
        writer.scalar("loss", 1 / (step + 1), step=step)
    return writer.run()


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("at_once", [pytest.param(1, marks=pytest.mark.slow), 5, 10_000])
def test_parquet_files_are_the_tables(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """However few rows are read at a time."""
    monkeypatch.setattr(sut, "_AT_ONCE", at_once)
    written = run.export(tmp_path / "out")
    assert set(written) == set(run.families)
    for family, path in written.items():
        assert path == tmp_path / "out" / f"{family}.parquet"
        found = pyarrow.parquet.read_table(path)
        assert found.column_names == run.table(family).column_names
        assert repr(found.to_pylist()) == repr(run.table(family).to_pylist())
    assert not list(tmp_path.glob("out/.*"))


def test_csv_has_every_value_in_full(run: Run, tmp_path: Path) -> None:
    written = run.export(tmp_path, "csv")
    rows = read(written["moments"])
    assert [(int(row["step"]), row["site"], float(row["norm"])) for row in rows[:3]] == [
        (0, "a:output", 1.0),
        (0, "b.c:output", 2.0),
        (0, "b.c.weight:grad", np.inf),
    ]
    assert np.isnan(float(rows[1]["rms"]))
    assert rows[2]["rms"] == "0.1"
    assert [json.loads(row["powers"]) for row in read(written["exponents"])] == [[step] * 3 for step in range(6)]
    assert [float(row["value"]) for row in read(written["scalars"])] == [1 / (step + 1) for step in range(6)]


def test_numbers_ports_layers_and_steps_choose_rows(run: Run, tmp_path: Path) -> None:
    written = run.export(tmp_path / "rms.csv", number="rms", port="output", layers="^b", first=2, last=3)
    assert written == {"moments": tmp_path / "rms.csv"}
    rows = read(tmp_path / "rms.csv")
    assert [(row["step"], row["layer"]) for row in rows] == [("2", "b.c"), ("3", "b.c")]
    assert "norm" not in rows[0]
    assert {"epoch", "order", "rms"} <= rows[0].keys()
    assert set(run.export(tmp_path / "some", families=["scalars", "moments"], number="norm")) == {"scalars", "moments"}
    assert set(run.export(tmp_path / "grad", port="grad")) == {"moments"}
    assert pyarrow.parquet.read_table(run.export(tmp_path / "none.parquet", number="rms", first=99)["moments"]).num_rows == 0


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"path": "x.csv"}, ArgumentError, "3 families are to be written"),
        ({"path": "x.csv", "form": "parquet"}, ArgumentError, "end it with .parquet"),
        ({"path": "x", "form": "xlsx"}, ArgumentError, "give 'csv' or 'parquet'"),
        ({"path": "x", "number": "rmss"}, UnknownSiteError, "Nearest: rms"),
        ({"path": "x", "families": ["moment"]}, UnknownSiteError, "moments"),
        ({"path": "x", "port": "grads"}, UnknownSiteError, "no row has port 'grads'. Nearest: grad"),
        ({"path": "x", "layers": "head"}, UnknownSiteError, "no row has layers 'head'"),
        ({"path": "x", "layers": "("}, ArgumentError, "no regular expression"),
    ],
)
def test_what_does_not_fit_is_said_and_writes_nothing(
    run: Run, tmp_path: Path, given: dict[str, Any], error: type[Exception], words: str
) -> None:
    path = tmp_path / given.pop("path")
    with pytest.raises(error, match=words):
        run.export(path, **given)
    assert not list(tmp_path.iterdir())


def test_a_run_on_disk_and_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, step=0)
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="cannot be written"):
        writer.run().export(tmp_path / "file" / "out")
    assert writer.run().export(tmp_path / "loss.csv")["scalars"].read_text().splitlines()[1].endswith('"loss",1')
