"""Open a graph's page in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.view.graph.opened_page import settle

from sonde.graph import Graph


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a graph's page from a file, without a network; anything on the page's console fails the test."""
    said: list[str] = []
    contexts = []

    def open_page(
        graph: Graph, depth: int | None = None, scheme: str = "light", size: tuple[int, int] = (1300, 850), **kwargs: Any
    ) -> Any:
        path = tmp_path / "graph.html"
        path.write_text(graph.to_html(depth, **kwargs), encoding="utf-8")
        context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": size[0], "height": size[1]})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
        page.goto(path.as_uri())
        settle(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
