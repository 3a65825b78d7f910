"""Pages in a browser that lacks what they need say so, and what to do; nothing stays empty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.view.app import made_runs
from torch import nn

from sonde.graph import capture
from sonde.run.run import open_run

pytestmark = pytest.mark.slow


@contextmanager
def opened(browser: Any, file: Path, script: str = "", *, scripts: bool = True) -> Iterator[Any]:
    """The page of a file; *script* runs before its own."""
    context = browser.new_context(offline=True, java_script_enabled=scripts)
    page = context.new_page()
    if script:
        page.add_init_script(script)
    page.goto(file.as_uri())
    yield page
    context.close()


def test_a_graph_without_workers_or_webassembly_says_what_it_needs(browser: Any, tmp_path: Path) -> None:
    """Without WebAssembly as where a policy forbids it, which is the one way to take it from a worker."""
    pytest.importorskip("easydot")
    expect = pytest.importorskip("playwright.sync_api").expect
    text = capture(nn.Linear(2, 2), torch.ones(1, 2)).to_html()
    assert "'wasm-unsafe-eval'" in text
    for script, left in (("delete globalThis.Worker", text), ("", text.replace("'wasm-unsafe-eval'", ""))):
        (tmp_path / "graph.html").write_text(left, encoding="utf-8")
        with opened(browser, tmp_path / "graph.html", script) as page:
            said = page.locator("#busy.error")
            expect(said).to_contain_text("The page needs WebAssembly and workers")
            assert len(said.inner_text()) < 350


def test_a_report_without_decompression_says_which_browser_can_open_it(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    from sonde.view.app.report_file import save_report

    made_runs.small_run(tmp_path / "run")
    file = save_report(open_run(tmp_path / "run"), tmp_path / "report.html")
    with opened(browser, file, "delete globalThis.DecompressionStream") as page:
        page.locator(".notice").wait_for()
        assert "Open the report in a browser of 2023 or newer" in page.locator(".notice").inner_text()
    with opened(browser, file, scripts=False) as page:
        assert "sonde show RUN" in page.locator("main").inner_text()
