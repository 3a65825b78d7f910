"""The page of a run's graph with the run's numbers on it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import ArgumentError, UnknownSiteError
from sonde.run import Layout, Run, memory_run
from sonde.view import plots

pytest.importorskip("easydot")


class Block(nn.Module):
    """Two layers in a container that no lens looks at, and one that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.again = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.again(self.again(self.inner(x)))
        return out


def trained(steps: int = 4) -> Run:
    model = nn.Sequential(Block(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, graph=torch.randn(3, 4)) as inspector:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    return inspector.run


def series_of(page: plots.GraphPage) -> dict[str, Any]:
    found = re.search(r'<script id="graph" type="application/json">(.*?)</script>', page.html, re.DOTALL)
    assert found is not None
    return {entry["name"]: entry for entry in json.loads(found[1])["series"]}


def test_one_call_puts_every_main_number_on_the_graph() -> None:
    """Also with containers inside, which have no rows; numbers are those of the run."""
    run = trained()
    page = plots.graph_page(run)
    found = series_of(page)
    assert list(found) == ["rms (output)", "rms (grad_output)", "rms (grad)", "rms (param)", "rms (update)", "call_death"]
    assert found["rms (output)"]["steps"] == [0, 1, 2, 3]
    assert found["rms (output)"]["of"]["module 0.inner.0"] == pytest.approx(run.series("0.inner.0:output", "rms")[1].tolist())
    assert found["rms (grad)"]["of"]["tensor 1.weight"] == pytest.approx(run.series("1.weight:grad", "rms")[1].tolist())
    assert "module 0.inner" not in found["rms (output)"]["of"]
    assert page.numbers == ("rms", "call_death")


def test_chosen_numbers_at_one_port() -> None:
    assert list(series_of(plots.graph_page(trained(1), ["norm", "mean"], "grad_output", only=True))) == ["norm", "mean"]


def test_nan_and_infinite_elements_are_marked_though_the_number_is_finite() -> None:
    run = trained(1)
    writer = memory_run(run.info)
    writer.document("graph", run.document("graph"))
    layout = Layout(["0.inner.0:output", "0.again:output", "1:output"])
    for step in range(3):
        writer.append("moments", layout, {"rms": [1.0, 2.0, 3.0], "nan": [step == 1, 0, 0], "inf": [0, step == 1, 0]}, step=step)
    (found,) = series_of(plots.graph_page(writer.run())).values()
    assert found["of"] == {
        "module 0.inner.0": [1.0, "NaN", 1.0],
        "module 0.again": [2.0, "∞", 2.0],
        "module 1": [3.0, 3.0, 3.0],
    }


def test_of_very_many_steps_some_are_on_the_page_with_the_first_and_the_last() -> None:
    run = trained(1)
    writer = memory_run(run.info)
    writer.document("graph", run.document("graph"))
    for step in range(1_000):
        writer.append("moments", Layout(["1:output"]), {"rms": [1.0 + step]}, step=step)
    (found,) = series_of(plots.graph_page(writer.run())).values()
    assert len(found["steps"]) == 400
    assert (found["steps"][0], found["steps"][-1]) == (0, 999)


def test_it_is_saved_and_shown_in_a_notebook(tmp_path: Path) -> None:
    page = plots.graph_page(trained(1), "rms")
    assert page.save(tmp_path / "new" / "page.html").read_text(encoding="utf-8") == page.html
    assert page._repr_html_().startswith("<iframe")
    assert len(repr(page)) < 200
    with pytest.raises(ArgumentError, match=r"written as \.html"):
        page.save(tmp_path / "page.png")


def test_errors_name_the_cure() -> None:
    run = trained(1)
    with pytest.raises(UnknownSiteError, match="ExponentHistogram"):
        plots.graph_page(run, "p50")
    with pytest.raises(ArgumentError, match=r"watch\(\.\.\., graph=\.\.\.\)"):
        plots.graph_page(memory_run().run())


def test_a_run_gives_its_page_with_all_main_numbers_and_the_chosen_one_first() -> None:
    run = trained()
    page = plots.graph_page(run, "norm", "grad")
    found = series_of(page)
    assert next(iter(found)) == "norm (grad)"
    assert page.numbers == ("norm", "rms", "call_death")
    assert found["rms (output)"] == series_of(plots.graph_page(run))["rms (output)"]
    assert next(iter(series_of(plots.graph_page(run)))) == "rms (output)"
    assert list(series_of(plots.graph_page(run, "norm", only=True))) == [
        "norm (output)",
        "norm (grad_output)",
        "norm (grad)",
        "norm (param)",
        "norm (update)",
    ]
    with pytest.raises(UnknownSiteError, match="ExponentHistogram"):
        plots.graph_page(run, "p50")
    with pytest.raises(UnknownSiteError, match="no 'norm' at port 'input'"):
        plots.graph_page(run, "norm", "input")


def test_the_legend_has_the_label_and_the_unit_of_each_number() -> None:
    found = series_of(plots.graph_page(trained(1)))
    assert {name: (entry["label"], entry["unit"]) for name, entry in found.items()} == {
        "rms (output)": ("rms of outputs", "unit of the output"),
        "rms (grad_output)": ("rms of gradients of outputs", "loss / unit of the output"),
        "rms (grad)": ("rms of gradients of parameters", "loss / unit of the parameter"),
        "rms (param)": ("rms of parameters", "unit of the parameter"),
        "rms (update)": ("rms of updates of parameters", "unit of the parameter"),
        "call_death": ("dead in outputs", "share of units"),
    }
