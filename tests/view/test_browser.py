"""What notebooks and pages show, in a real browser: no text of a model or a run becomes markup, and tables keep their form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.answer import Cell, Grid
from sonde.escape import escape_html
from sonde.graph import capture
from sonde.recorders import ForwardOutput
from sonde.rules import Finding
from sonde.run import Layout, start_run
from sonde.view import plots

HOSTILE = "\"'><img src=x onerror=alert(1)></script><script>alert(2)</script>"
"""Ends an attribute, an element and a script. (A module's name may hold no dot.)"""


def hostile_model() -> nn.Module:
    """Hostile as the name of a module, of a parameter, of a class, and in an exception."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        if x.shape[0] == 13:
            raise ValueError(HOSTILE)
        out: Tensor = nn.functional.pad(x, (0, 0), mode="constant")
        return out

    model = nn.Sequential()
    model.add_module(HOSTILE, nn.Linear(3, 3))
    model.add_module("own", type(HOSTILE, (nn.Module,), {"forward": forward})())
    model[0].register_parameter(HOSTILE, nn.Parameter(torch.ones(1)))
    return model


def shown(folder: Path) -> Iterator[tuple[str, Any]]:
    """Everything that a notebook shows, with hostile text in every string that it can hold."""
    model, x = hostile_model(), torch.ones(2, 3)
    with sonde.track(model) as tracker:
        model(x).sum().backward()
    yield "tracker", tracker
    yield "coverage", tracker.coverage()
    with sonde.track(model, stash_value=lambda tensor: HOSTILE) as texts:
        model(x)
    yield "tracker of texts", texts
    recorder = ForwardOutput().modules(model)
    model(x)
    yield "recorder", recorder
    yield "summary", sonde.summary(model, x)
    yield "summary of a failure", sonde.summary(model, torch.ones(13, 3), on_error="partial")
    probe = sonde.observe(model, sonde.stats.Moments())
    model(x)
    yield "probe", probe
    other = hostile_model()
    other.load_state_dict({name: 2 * held for name, held in model.state_dict().items()})
    yield "comparison", sonde.compare(model, other, x)
    yield "comparison with a failure", sonde.compare(model, other, torch.ones(13, 3))
    yield "non-finite", sonde.why_nan(model, torch.full((2, 3), torch.inf), lambda y: y.sum())
    yield "preflight", sonde.preflight(model, x, lambda y: y.square().mean(), steps=2)
    graph = capture(model, x)
    yield "graph", graph
    yield "graph of a failure", capture(model, torch.ones(13, 3), on_error="partial")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run_folder = folder / HOSTILE.replace("/", "")
    with sonde.watch(model, optimizer, every=1, to=run_folder, verbose=False, graph=x) as inspector:
        model(x).sum().backward()
        optimizer.step()
        inspector.push_metric(HOSTILE, 1.0)
    yield "inspector", inspector
    yield "coverage of an inspector", inspector.coverage()
    yield "run", inspector.run
    yield "table", plots.table(inspector.run)
    yield "page", plots.graph_page(inspector.run)
    with start_run(folder / "written", about={"model": [{"name": HOSTILE, "type": HOSTILE}], HOSTILE: HOSTILE}) as writer:
        site = sonde.Site(HOSTILE)
        writer.append("moments", Layout([site]), {"rms": [1.0]}, step=0)
        writer.alert(HOSTILE, step=0, severity=HOSTILE, rule=HOSTILE, site=str(site))
        writer.scalar(HOSTILE, 1.0, step=0)
        writer.document("graph", graph.to_data())
        written = writer.run()
        yield "written run", written
        yield "written table", plots.table(written)
        yield "written page", plots.graph_page(written)
    yield "finding", Grid(HOSTILE, [HOSTILE], [[Cell(Finding(HOSTILE, HOSTILE).message)]], [HOSTILE])
    yield "nothing", Grid(HOSTILE, [HOSTILE], [], empty=HOSTILE)


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page without a network; a dialog, which hostile text would open, fails the test."""
    opened: list[str] = []
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    made = context.new_page()
    made.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
    yield made
    context.close()
    assert opened == []


@pytest.mark.slow
def test_no_text_of_a_model_or_a_run_becomes_markup(page: Any, tmp_path: Path) -> None:
    """All of it in one notebook, frames with their scripts too."""
    pytest.importorskip("easydot")
    parts, frames = [], 0
    for name, held in shown(tmp_path):
        html = held._repr_html_()
        assert html, name
        frames += html.startswith("<iframe")
        drawn_at_once = html.replace(' loading="lazy"', "")
        parts.append(f"<section id={escape_html(name.replace(' ', '-'))}>{drawn_at_once}</section>")
    (tmp_path / "all.html").write_text("<!doctype html><meta charset=utf-8>" + "".join(parts), encoding="utf-8")
    page.goto((tmp_path / "all.html").as_uri())
    found = page.frames
    assert len(found) == 1 + frames == 5
    for frame in found[1:]:
        frame.locator("html[data-ready]").wait_for(state="attached")
        frame.locator("#depth").evaluate("one => { one.value = one.max; one.dispatchEvent(new Event('input')); }")
        frame.locator("html[data-ready]").wait_for(state="attached")
        asked = "one.dispatchEvent(new MouseEvent('contextmenu', { bubbles: true, cancelable: true })), document.body.innerText"
        details = f"[...document.querySelectorAll('#canvas g.node')].map((one) => ({asked})).join()"  # of every node
        assert "onerror=alert(1)" in frame.evaluate(details)
    assert "onerror=alert(1)" in page.locator("body").inner_text()
    for frame in found:
        assert frame.locator("img").count() == 0
    assert page.locator("section script").count() == 0


NOTEBOOK = """
.jp-OutputArea.jp-RenderedHTMLCommon:not(.none) td, .jp-OutputArea.jp-RenderedHTMLCommon:not(.none) th {
  text-align: right; vertical-align: middle; white-space: normal; padding: 0.5em 0.5em; max-width: none }
"""
"""Heavier than the style of JupyterLab and nbconvert for tables, which has a class and an element more than a class alone."""


def test_a_notebook_s_own_style_changes_neither_alignment_nor_indentation(page: Any) -> None:
    rows = [
        [Cell("(root)"), Cell("12", align="right"), Cell("words " * 30)],
        [Cell("    inner  name"), Cell("1,234", align="right"), Cell("")],
    ]
    html = Grid("title", ["layer", "count", ""], rows, ["footer"]).to_html()
    page.set_content(f'<style>{NOTEBOOK}</style><div class="jp-OutputArea jp-RenderedHTMLCommon">{html}</div>')
    aligned = page.locator("th, td").evaluate_all("all => all.map((one) => getComputedStyle(one).textAlign)")
    assert aligned == ["left", "right", "left"] * 3 + ["left"]
    first, second = (page.locator("tbody tr").nth(row).locator("td").first for row in range(2))
    select = "const range = document.createRange(); range.selectNodeContents(one)"
    start = f"one => {{ {select}; return range.getBoundingClientRect().left }}"
    assert second.inner_text().replace("\xa0", " ") == "    inner  name"
    assert first.evaluate(start) == second.evaluate(start)  # both at the left edge; the indentation is in the text
    assert page.locator("table").bounding_box()["width"] <= 1200
