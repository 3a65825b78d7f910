"""All runs below a folder, read together: which are found, chosen, joined, and which are named as not readable."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from sonde.errors import ArgumentError, ObservationWarning, StoreError, UnknownSiteError
from sonde.rows import Layout
from sonde.run.folder import source
from sonde.run.run import Run, open_run
from sonde.run.runs import Runs, open_runs
from sonde.run.store.open import start_run

READ = source.Description.read
PLACES = Layout(["fc:output", "head:output"])


def record(folder: Path, size: float = 1.0, *, steps: int = 4, **config: object) -> None:
    with start_run(folder, about={"config": config, "environment": {"torch": "2.13"}}) as writer:
        for step in range(steps):
            writer.append("moments", PLACES, {"rms": [size, size + step]}, step=step)
            writer.scalar("loss", size / (step + 1), step=step)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    record(tmp_path / "lr" / "run-2", 2.0, lr=0.03, optimizer={"name": "adam", "eps": 1e-8})
    record(tmp_path / "lr" / "run-10", 10.0, lr=0.3, optimizer={"name": "adam", "eps": 1e-6})
    record(tmp_path / "first", 1.0, lr=0.03)
    return open_runs(tmp_path)


def test_runs_are_found_at_any_depth_in_the_order_of_names_with_numbers_as_numbers(runs: Runs) -> None:
    assert runs.names == ("first", "lr/run-2", "lr/run-10")
    assert [type(run) for run in runs] == [Run] * 3
    assert len(runs) == 3


def test_one_run_is_had_by_position_by_name_and_by_the_end_of_its_name(runs: Runs) -> None:
    for key in (1, -2, "lr/run-2", "run-2"):
        assert runs[key].path is not None
        assert runs[key].path.name == "run-2"
    assert runs[1:].names == ("lr/run-2", "lr/run-10")


def test_a_name_that_is_not_there_gets_the_nearest(runs: Runs) -> None:
    with pytest.raises(UnknownSiteError, match="Nearest: first"):
        runs["fist"]


def test_the_end_of_a_name_that_two_runs_share_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "a" / "seed-0")
    record(tmp_path / "b" / "seed-0")
    with pytest.raises(ArgumentError, match="2 runs: a/seed-0, b/seed-0"):
        open_runs(tmp_path)["seed-0"]


def test_runs_are_selected_by_pattern_and_setting(runs: Runs) -> None:
    assert runs.select("run-*").names == ("lr/run-2", "lr/run-10")
    assert runs.select("lr/*", lr=0.03).names == ("lr/run-2",)
    assert runs.select(optimizer__eps=1e-6).names == ("lr/run-10",)
    assert runs.select(state="ended").names == runs.names


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"pattern": "firts"}, UnknownSiteError, "Nearest: first"),
        ({"lr": 7}, UnknownSiteError, r"no run has lr=7; it is 0.03, 0.3"),
        ({"lrr": 7}, UnknownSiteError, "'lrr' is no setting"),
        ({"state": "open"}, ArgumentError, "'running', 'ended', 'failed', 'interrupted' or 'lost'"),
        ({"state": "failed"}, UnknownSiteError, "none of 3 runs is 'failed'"),
    ],
)
def test_a_selection_of_nothing_says_why(runs: Runs, given: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        runs.select(**given)  # type: ignore[arg-type]


def test_tables_are_those_of_each_run_behind_one_another_with_its_name(runs: Runs) -> None:
    table = runs.table("moments").to_pylist()
    expected = [{"run": name, **row} for name in sorted(runs.names) for row in runs[name].table("moments").to_pylist()]
    assert table == expected
    pytest.importorskip("pandas")
    assert runs.frame("moments")["run"].tolist() == [row["run"] for row in expected]


def test_tables_of_all_runs_leave_out_what_a_resumed_run_has_replaced(tmp_path: Path) -> None:
    """A folder's name may hold what is a pattern of files elsewhere, and a number may be called as DuckDB calls a file's path."""
    record(tmp_path / "a")
    record(tmp_path / "b [1]*?")
    for name in ("a", "b [1]*?"):
        with start_run(tmp_path / name, exists="resume", step=2) as writer:
            writer.append("moments", PLACES, {"rms": [7.0, 7.0], "filename": [1.0, 2.0]}, step=2)
            writer.scalar("loss", 7.0, step=2)
    runs = open_runs(tmp_path)
    for family in ("moments", "scalars"):
        expected = [{"run": name, **row} for name in sorted(runs.names) for row in runs[name].table(family).to_pylist()]
        assert runs.table(family).to_pylist() == expected
    assert {name: about.loss for name, about in runs.summaries().items()} == dict.fromkeys(runs.names, 7.0)
    assert runs.sql("SELECT count(*) FROM scalars").fetchall() == [(6,)]


def test_a_file_that_duckdb_cannot_read_leaves_the_other_runs_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum is right: it was written so."""
    record(tmp_path / "a")
    record(tmp_path / "b")
    (part,) = (tmp_path / "a" / "moments").glob("*.parquet")
    part.write_bytes(b"PAR1" + b"0" * 100 + b"PAR1")
    monkeypatch.setattr(source, "fault", lambda *_: "")
    with pytest.warns(ObservationWarning, match="damaged"):
        assert set(open_runs(tmp_path).table("moments").column("run").to_pylist()) == {"b"}


def test_the_description_of_a_run_is_read_again_when_it_has_changed_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    monkeypatch.setattr(source.Description, "read", classmethod(lambda _, folder: read.append(folder) or READ(folder)))
    record(tmp_path / "a")
    run = open_run(tmp_path / "a")
    read.clear()
    assert (run.info["config"], run.config, len(run.description.attempts), run.state) == ({}, {}, 1, "ended")
    assert read == []
    with start_run(tmp_path / "a", exists="resume", step=2):
        assert (len(run.description.attempts), run.state) == (2, "running")
    assert (len(run.description.attempts), run.state) == (2, "ended")


def test_a_family_or_column_that_some_runs_lack_is_null_there(tmp_path: Path) -> None:
    record(tmp_path / "a")
    with start_run(tmp_path / "b") as writer:
        writer.append("moments", PLACES, {"std": [1.0, 2.0]}, step=0)
        writer.append("sizes", PLACES, {"size": [1.0, 2.0]}, step=0)
    runs = open_runs(tmp_path)
    assert runs.families == ("moments", "scalars", "sizes")
    assert runs.sql("SELECT run, count(rms), count(std) FROM moments GROUP BY run ORDER BY run").fetchall() == [
        ("a", 8, 0),
        ("b", 0, 2),
    ]
    assert set(runs.table("sizes").column("run").to_pylist()) == {"b"}


def test_sql_over_all_runs_equals_the_answers_of_each(runs: Runs) -> None:
    query = "SELECT max(rms), count(*) FROM moments"
    expected = [(name, *runs[name].sql(query).fetchall()[0]) for name in sorted(runs.names)]
    assert runs.sql("SELECT run, max(rms), count(*) FROM moments GROUP BY run ORDER BY run").fetchall() == expected


@pytest.mark.parametrize("query", ["COPY moments TO 'x.csv'", "DROP VIEW moments", "SELECT 1; SELECT 2", "SET threads = 1", ""])
def test_sql_only_reads(runs: Runs, query: str) -> None:
    with pytest.raises((ArgumentError, duckdb.Error)):
        runs.sql(query)


def test_sql_reads_no_file_beside_the_runs(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(duckdb.Error):
        runs.sql(f"SELECT * FROM read_csv('{tmp_path / 'secret.csv'}')")
    with pytest.raises(UnknownSiteError, match="Nearest: moments"):
        runs.sql("SELECT * FROM momnts")


def test_a_selection_reads_its_own_runs_alone(runs: Runs) -> None:
    assert runs.select("first").sql("SELECT DISTINCT run FROM scalars").fetchall() == [("first",)]


def test_scalars_are_those_of_the_runs_that_have_them(runs: Runs, tmp_path: Path) -> None:
    with start_run(tmp_path / "other") as writer:
        writer.scalar("accuracy", 0.5, step=0)
    more = open_runs(tmp_path)
    found = more.scalars("loss")
    assert list(found) == list(runs.names)
    assert found["lr/run-2"][1].tolist() == runs["lr/run-2"].scalar("loss")[1].tolist()
    with pytest.raises(UnknownSiteError, match="Nearest: accuracy"):
        more.scalars("acuracy")


def test_settings_that_differ_are_shown_and_others_are_not(runs: Runs) -> None:
    assert runs.settings == {
        "lr": (0.03, 0.03, 0.3),
        "optimizer.name": (None, "adam", "adam"),
        "optimizer.eps": (None, 1e-8, 1e-6),
    }


def test_without_a_configuration_the_first_learning_rate_is_the_setting(tmp_path: Path) -> None:
    for name, rate in (("a", 0.1), ("b", 0.2)):
        with start_run(tmp_path / name) as writer:
            for step in range(3):
                writer.scalar("lr", rate / (step + 1), step=step)
    assert open_runs(tmp_path).settings == {"lr": (0.1, 0.2)}


def test_the_table_has_a_row_for_each_run_and_names_what_was_left_out(tmp_path: Path) -> None:
    record(tmp_path / "a", 2.0, lr=0.1)
    with start_run(tmp_path / "b", about={"config": {"lr": 0.2}}) as writer:
        writer.append("moments", PLACES, {"rms": [1.0, 1.0]}, step=7)
        writer.alert("92 % dead", step=7, rule="dead", site="fc:output")
        writer.flush()
        record(tmp_path / "old")
        file = tmp_path / "old" / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 1}))
        (tmp_path / "torn").mkdir()
        (tmp_path / "torn" / "run.json").write_text('{"format": "son')
        runs = open_runs(tmp_path)
        lines = repr(runs).splitlines()
    assert lines[0].startswith("2 runs in ")
    assert [line.split() for line in lines[1:4]] == [
        ["run", "state", "steps", "findings", "loss", "lr", "environment.torch"],
        ["a", "ended", "4", "?", "0.5", "0.1", "2.13"],
        ["b", "running", "8", "1", "dead", "–", "0.2", "–"],
    ]
    assert lines[4].startswith("not read: old: ")
    assert "version 1" in lines[4]
    assert lines[5].startswith("not read: torn: ")
    assert len(lines) == 6
    with pytest.raises(StoreError, match="version 1"):
        runs["old"]


def test_names_and_settings_of_a_stranger_stay_text(tmp_path: Path) -> None:
    record(tmp_path / "<b>'x'\"; DROP", note="<script>\x1b[2J")
    runs = open_runs(tmp_path)
    assert runs.sql("SELECT DISTINCT run FROM moments").fetchall() == [("<b>'x'\"; DROP",)]
    record(tmp_path / "b", note="plain")
    html = open_runs(tmp_path)._repr_html_()
    assert "<script>" not in html
    assert "<b>'x'" not in html
    assert "\x1b" not in repr(open_runs(tmp_path))


def test_a_damaged_part_is_named_and_the_other_runs_are_read(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b")
    (part,) = (tmp_path / "a" / "moments").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.warns(ObservationWarning, match="damaged"):
        assert open_runs(tmp_path).sql("SELECT DISTINCT run FROM moments").fetchall() == [("b",)]


def test_a_family_whose_columns_cannot_be_joined_is_left_out_and_named(tmp_path: Path) -> None:
    for name, value in (("a", [1.0, 2.0]), ("b", [[1.0, 2.0], [3.0, 4.0]])):
        with start_run(tmp_path / name) as writer:
            writer.append("own", PLACES, {"x": value}, step=0)
            writer.scalar("loss", 1.0, step=0)
    runs = open_runs(tmp_path)
    with pytest.warns(ObservationWarning, match="family own is left out"):
        assert runs.sql("SELECT count(*) FROM scalars").fetchall() == [(2,)]


def test_a_run_that_is_written_meanwhile_is_read_as_it_is_now(tmp_path: Path) -> None:
    record(tmp_path / "a")
    with start_run(tmp_path / "b") as writer:
        runs = open_runs(tmp_path)
        for step in range(3):
            writer.scalar("loss", 1.0, step=step)
            writer.flush()
            assert runs.sql("SELECT count(*) FROM scalars WHERE run = 'b'").fetchall() == [(step + 1,)]


def test_a_folder_that_is_a_run_is_that_run_and_its_inside_is_not_searched(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "a" / "inner")
    assert open_runs(tmp_path / "a").names == ("a",)
    assert open_runs(tmp_path).names == ("a",)
    assert open_run(tmp_path / "a").state == "ended"


@pytest.mark.parametrize(("name", "message"), [("none", "does not exist"), ("file", "is a file"), ("empty", "no run below")])
def test_a_folder_without_runs_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=message):
        open_runs(tmp_path / name)


def test_a_number_cannot_have_the_name_of_the_column_of_runs(tmp_path: Path) -> None:
    with start_run(tmp_path / "a") as writer, pytest.raises(ArgumentError, match="'run' cannot name a number"):
        writer.append("moments", PLACES, {"run": [1.0, 2.0]}, step=0)
