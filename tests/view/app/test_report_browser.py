"""A report in a real browser, without any network: every view is drawn, the graph too, and the console stays empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde.run.run import Run
from sonde.view.app.report_file import save_report


def trained(folder: Path) -> Run:
    """The run of a small training with a graph and counts of powers of two."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = [sonde.lens.moments(), sonde.lens.Lens("exponents", sonde.stats.ExponentHistogram(), ("output",))]
    with sonde.watch(model, optimizer, every=1, to=folder, verbose=False, graph=torch.ones(3, 4), lenses=lenses) as inspector:
        tracker = sonde.track(model)
        for _ in range(5):
            loss = model(torch.randn(3, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)
            tracker.detach()
        tracker.save(folder / "tensors")
    del loss  # and with it what the last backward pass has left
    return inspector.run


@pytest.mark.slow
def test_a_report_shows_every_view_offline(browser: Any, tmp_path: Path) -> None:
    file = save_report(trained(tmp_path / "run"), tmp_path / "report.html")
    context = browser.new_context(offline=True)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    page.locator("nav#views a").first.wait_for()
    for name in page.locator("nav#views a").all_inner_texts():
        page.locator("nav#views a", has_text=name).first.click()
        page.locator("#view .busy").wait_for(state="detached")
        assert "does not hold" not in page.locator("#view").inner_text()
        if name == "Graph":
            page.frame_locator("iframe").locator("svg text").first.wait_for()
    page.evaluate("location.hash = `${location.hash.split('/').slice(0, 3).join('/')}/layer/1?step=3`")
    page.locator("figure.stored", has_text="of step 0, the last before 3").locator(".legend", has_text="exactly 0").wait_for()
    context.close()
    assert said == []


@pytest.mark.slow
def test_a_report_against_another_run_opens_on_the_differences(browser: Any, tmp_path: Path) -> None:
    runs = [trained(tmp_path / name) for name in ("own", "other")]
    file = save_report(runs[0], tmp_path / "report.html", against=runs[1])
    context = browser.new_context(offline=True)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    page.locator("#against", has_text="own against other").wait_for()
    for name in ("Layers", "Flow", "Updates", "Findings"):
        page.locator("nav#views a", has_text=name).first.click()
        page.locator("#view .busy").wait_for(state="detached")
        assert "against=" in page.url
        assert "does not hold" not in page.locator("#view").inner_text()
    page.get_by_role("button", name="this run alone").click()
    page.locator("#against").wait_for(state="hidden")
    context.close()
    assert said == []
