"""An execution graph as one self-contained page: data, style, script and layout engine in a single file."""

from __future__ import annotations

import html
import json
import math
from importlib import resources
from string import Template
from typing import Any

from sonde.errors import ArgumentError, MissingExtraError
from sonde.run.graph.data import PlainGraph
from sonde.run.graph.passes import collapse
from sonde.view.graph.series import Series, join

__all__ = ["in_notebook", "to_html"]

_SCRIPTS = ("model.js", "drawing.js", "colours.js", "panel.js", "main.js")


def to_html(graph: PlainGraph, depth: int | None = None, *, values: Series | None = None, title: str | None = None) -> str:
    """The page; see :meth:`sonde.graph.Graph.to_html`.

    The layout is made in the browser, by the WebAssembly build of Graphviz that the package easydot carries: its file is put
    into the page as it is. A content security policy in the page keeps it from loading anything.
    """
    collapse(graph, depth)  # raises if the depth cannot be used
    data = _data(graph) | {"depth": depth, "series": [] if values is None else join(graph, values)}
    assets = resources.files("sonde.view") / "assets"
    page = Template((assets / "graph.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=html.escape(title or graph.model),
        style=(assets / "graph.css").read_text(encoding="utf-8"),
        data=_embedded(data),
        engine=_engine(),
        script="\n".join((assets / name).read_text(encoding="utf-8") for name in _SCRIPTS),
    )


def in_notebook(graph: PlainGraph, height: int = 560) -> str:
    """The page in a frame of its own, whose scripts and styles cannot touch the notebook's."""
    frame = "width:100%;border:1px solid rgba(128,128,128,.35);border-radius:8px"
    return (
        f'<iframe title="{html.escape(graph.model)}" sandbox="allow-scripts" loading="lazy" style="{frame};height:{height}px" '
        f'srcdoc="{html.escape(to_html(graph))}"></iframe>'
    )


def _data(graph: PlainGraph) -> dict[str, Any]:
    """The graph as the page's script reads it: that of ``to_json``, without times of edges."""
    held = graph.to_data()
    return {
        "model": graph.model,
        "error": graph.error,
        "values": held["values"],
        "nodes": held["nodes"],
        "edges": [edge[:3] for edge in held["edges"]],
    }


def _embedded(data: Any) -> str:
    """JSON that can stand in a script element, whatever texts it holds."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _finite(data: Any) -> Any:
    """The same with NaN and infinities as text, which JSON has no numbers for."""
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "∞" if data > 0 else "−∞"
    if isinstance(data, dict):
        return {key: _finite(held) for key, held in data.items()}
    return [_finite(held) for held in data] if isinstance(data, list | tuple) else data


def _engine() -> str:
    try:
        package = resources.files("easydot")
    except ModuleNotFoundError:
        raise MissingExtraError.of("the page of a graph", "easydot", "graph") from None
    text = (package / "assets" / "index.js").read_text(encoding="utf-8")
    if "</script" in text.lower():
        raise ArgumentError("the installed easydot carries an engine that cannot stand in a page: install easydot 0.4")
    return text
