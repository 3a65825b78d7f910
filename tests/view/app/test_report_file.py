"""A report is one file below ten megabytes that holds the same answers as the page, and nothing in it can run code."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.view.app import made_runs
from tests.view.app.made_runs import HOSTILE

from sonde.cli import main
from sonde.errors import ArgumentError, MissingExtraError, StoreError
from sonde.rows import Layout
from sonde.run.run import open_run
from sonde.run.store.open import start_run
from sonde.view.app import report_file
from sonde.view.app.answers.layer_pictures import heatmap, values_data
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.app.answers.reduction import packed, unpacked
from sonde.view.app.report_file import recording, report_html, save_report


def held_in(text: str) -> Any:
    """The recording in a report."""
    found = re.search(r'<script id="recording" type="application/gzip;base64">([^<]*)</script>', text)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


@pytest.fixture(scope="module")
def small(runs: Path) -> str:
    """The report of a run, as no option asks for another."""
    return report_html(open_run(runs / "small"))


def test_a_report_holds_the_answers_of_the_page(runs: Path, small: str) -> None:
    run = open_run(runs / "small")
    (held,) = held_in(small)["runs"]
    assert held["heatmap"]["moments.rms@output"] == {**heatmap(OpenedRun(run), "rms")}
    assert (held["run"]["name"], held["run"]["state"]) == ("small", "ended")
    assert held["ratio"]["usual"] == 1e-3
    assert (held["graph"], "give one batch" in held["without_graph"]) == (None, True)
    assert {"overview", "numbers", "findings", "coverage", "distribution"} <= held.keys()


def test_a_report_of_several_runs_holds_each_and_compares_the_first_with_the_others(runs: Path, tmp_path: Path) -> None:
    """Runs of one name in several folders are told apart by their folders; runs without common layers say so."""
    made_runs.small_run(tmp_path / "small", range(0, 10, 2))
    paths = (runs / "small", tmp_path / "small", runs / "deep" / "defects")
    held = held_in(report_html(*map(open_run, paths)))
    first, second, third = (each["run"] for each in held["runs"])
    assert first["name"] != second["name"]
    assert all(name["name"].endswith("small") for name in (first, second))
    assert held["comparisons"][f"{first['id']} {second['id']}"]["identical"]
    assert "no place in common" in str(held["comparisons"][f"{first['id']} {third['id']}"])
    assert [len(each["heatmap"]) > 0 for each in held["runs"]] == [True] * 3


@pytest.mark.slow
def test_a_report_against_another_run_holds_its_differences_and_both_runs(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes of alike runs are the same: log2 of their ratio is 0. Against a run without common sites there is no report."""
    made_runs.small_run(tmp_path / "other", range(0, 10, 2))
    file = tmp_path / "report.html"
    given = ["report", str(runs / "small"), "-o", str(file), "--against"]
    assert main([*given, str(tmp_path / "other")]) == 0
    own, other = held_in(file.read_text())["runs"]
    found = own["against"][other["run"]["id"]]
    values = unpacked(found["heatmap"]["moments.rms@output"]["values"], "f4")
    assert values.tolist() == [0.0] * (3 * 5)
    assert found["numbers"]["matched"] == {"both": 5, "own": 10, "other": 5}
    assert {"overview", "numbers", "heatmap", "ratio"} == found.keys()
    assert "against" not in other
    assert len(own["heatmap"]["moments.rms@output"]["steps"]) == 11
    assert main([*given, str(runs / "deep" / "defects")]) != 0
    assert "no number at a site and step of" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="2 runs are to be shown against another one"):
        save_report([open_run(runs / "small")] * 2, file, against=open_run(runs / "small"))


def test_nothing_in_a_report_can_run_code(runs: Path) -> None:
    """The script is the page's own, by its hash; the run's text is compressed data."""
    text = report_html(open_run(runs / "hostile"))
    assert HOSTILE not in text
    assert "onerror=alert" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'; script-src 'sha256-" in policy[1]
    assert "unsafe-eval" not in policy[1]
    assert "http" not in policy[1]


def test_the_script_is_one_without_imports(small: str) -> None:
    script = small[small.rindex("<script>") :]
    assert re.search(r"^(import|export) ", script, re.MULTILINE) is None
    assert "src=" not in re.sub(r'"[^"]*"|`[^`]*`', "", small[: small.index("<body>")])


def test_no_two_modules_have_a_name_in_common() -> None:
    """In a report they share one scope."""
    declared = re.compile(r"^(?:export )?(?:async )?(?:const|let|function|class) (?:(\w+)|[\[{]([^\]}]+)[\]}] =)", re.MULTILINE)
    names = [
        name.strip()
        for file in (Path(report_file.__file__).parents[1] / "assets" / "app").glob("*.js")
        for one, several in declared.findall(file.read_text(encoding="utf-8"))
        for name in (one or several).split(",")
    ]
    assert sorted(names) == sorted(set(names))


def test_a_report_without_the_layout_engine_says_what_to_install(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(opened: OpenedRun) -> bytes:
        raise MissingExtraError.of("the page of a graph", "easydot", "graph")

    monkeypatch.setattr("sonde.view.app.report_file.graph_text", missing)
    (held,) = held_in(report_html(open_run(runs / "small")))["runs"]
    assert held["graph"] is None
    assert "sonde[graph]" in held["without_graph"]


def test_what_has_no_room_is_left_out_the_main_numbers_last(runs: Path) -> None:
    opened = OpenedRun(open_run(runs / "small"))
    everything, some = recording(opened, {}), recording(opened, {}, room=6000)
    assert next(iter(everything["heatmap"])) == "moments.rms@output"
    assert 0 < len(some["heatmap"]) < len(everything["heatmap"])
    assert list(some["heatmap"]) == list(everything["heatmap"])[: len(some["heatmap"])]


def test_large_heatmaps_are_rounded_and_say_so() -> None:
    """Each value within 2^-13 of itself; NaN stays NaN."""
    random = np.random.default_rng(0)
    values = random.lognormal(size=100_000).astype(np.float32) * random.choice(np.array([-1, 1], np.float32), 100_000)
    values[3] = np.nan
    answer = values_data(values.copy(), "bins", rounded=True)
    found = np.ascontiguousarray(unpacked(answer["values"], "u1").reshape(4, -1).T).view("<f4")[:, 0]  # all first bytes come first
    assert (answer["planes"], answer["digits"]) == (True, 3)
    assert np.isnan(found[3])
    rest = np.delete(np.arange(len(values)), 3)
    assert (np.abs(found[rest] - values[rest]) <= 2.0**-13 * np.abs(values[rest])).all()
    assert answer["reduction"] == "bins; values are rounded to three and a half digits"
    for few, rounded in ((values[:10], True), (values, False)):
        assert values_data(few, "", rounded=rounded) == {"values": packed(few, "f4"), "reduction": ""}


def test_the_command_writes_the_file(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "report.html"
    assert main(["report", str(runs / "small"), "-o", str(file)]) == 0
    assert held_in(file.read_text())["runs"][0]["run"]["name"] == "small"
    assert re.search(r"report.html: \d+ kB\n", capsys.readouterr().out)


def test_tensors_of_one_family_with_other_numbers_have_a_report(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        writer.append("moments", Layout(["a:output"]), {"rms": [1.0], "mean": [0.0]}, step=0)
        writer.append("moments", Layout(["a:grad_output"]), {"rms": [1.0]}, step=0)
    (held,) = held_in(report_html(open_run(tmp_path / "run")))["runs"]
    assert list(held["heatmap"]) == ["moments.rms@output", "moments.rms@grad_output", "moments.mean@output"]


def test_a_report_that_cannot_be_made_leaves_no_file_and_the_one_before(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*runs: Any, **more: Any) -> str:
        raise StoreError("the run cannot be read")

    save_report(open_run(runs / "small"), tmp_path / "there.html")
    before = (tmp_path / "there.html").read_bytes()
    monkeypatch.setattr("sonde.view.app.report_file.report_html", fails)
    for name in ("new", "there"):
        with pytest.raises(StoreError, match="cannot be read"):
            save_report(open_run(runs / "small"), tmp_path / f"{name}.html")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"there.html": before}


def test_a_file_of_another_kind_is_refused(runs: Path) -> None:
    with pytest.raises(ArgumentError, match=r"a report is written as \.html"):
        save_report(open_run(runs / "small"), "report.pdf")


@pytest.mark.slow
def test_a_report_of_a_large_run_is_below_ten_megabytes(tmp_path: Path) -> None:
    made_runs.large_run(tmp_path / "large", 1000, 10_000)
    file = save_report(open_run(tmp_path / "large"), tmp_path / "large.html")
    assert file.stat().st_size < 10_000_000
