"""A real browser for the tests of pages and notebook tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real chromium; skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()
