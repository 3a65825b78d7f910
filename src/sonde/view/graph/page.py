"""The page of an execution graph: data, style, script and layout engine in one file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from sonde.answer import html_page
from sonde.errors import MissingExtraError
from sonde.number import Number
from sonde.run import PlainGraph
from sonde.view.graph.series import Series, join


def to_html(
    graph: PlainGraph,
    depth: int | None = None,
    *,
    values: Series | None = None,
    title: str | None = None,
    described: Mapping[str, Number] | None = None,
) -> str:
    """Return the page; see :meth:`sonde.graph.Graph.to_html`. *described* describes numbers in *values* that are not standard ones.

    The layout is computed in the browser by the WebAssembly build of Graphviz in the package easydot; its file is part of the
    page, unchanged.
    """
    graph.collapse(depth)  # raises if the depth cannot be used
    name = title or graph.model
    return html_page(
        name,
        "graph.html",
        texts={"model": name},
        styles=("../app/common.css", "graph.css"),
        module="main.js",
        assets=Path(__file__).parents[1] / "assets" / "graph",
        data={"graph": _data(graph) | {"depth": depth, "series": [] if values is None else join(graph, values, described)}},
        libraries={"engine": _engine()},
    )


def _data(graph: PlainGraph) -> dict[str, Any]:
    """Return the graph as the page's script reads it: as ``to_data``, without the times of edges."""
    held, repeated = graph.to_data(), list(graph.repeated())
    return {
        "model": graph.model,
        "error": graph.error,
        "values": held["values"],
        "nodes": held["nodes"],
        "edges": [edge[:3] for edge in held["edges"]],
        "repeats": [[len(run.copies), *(node.id for node in run.outermost)] for run in repeated],
        "alone": [node.id for run in repeated for node in run.alone],
    }


def _engine() -> str:
    try:
        package = resources.files("easydot")
    except ModuleNotFoundError:
        raise MissingExtraError.of("the page of a graph", "easydot", "graph") from None
    return (package / "assets" / "index.js").read_text(encoding="utf-8")
