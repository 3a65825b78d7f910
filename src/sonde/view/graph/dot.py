"""Write Graphviz source for an execution graph: text only, no program needed, equal for equal graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sonde.escape import printable
from sonde.run import Kind, Node, PlainGraph
from sonde.words import large_text

FONT = "Helvetica,Arial,sans-serif"

_FILLS: dict[Kind, tuple[str, str]] = {
    "input": ("#d7e8fb", "#3b78b8"),
    "output": ("#d7e8fb", "#3b78b8"),
    "parameter": ("#dcefdc", "#4b8b53"),
    "buffer": ("#ececec", "#8a8a8a"),
    "constant": ("#ececec", "#8a8a8a"),
    "module": ("#e8e4f6", "#7666b0"),
    "operation": ("#ffffff", "#777777"),
}
_SPACE = "\N{NO-BREAK SPACE}"
"""Behind a cluster's title, as many as letters: Graphviz makes the cluster as wide, and the edge that comes in at its middle runs
beside the title."""
_FAILED = ("#fbdcd9", "#c23b31")
_COLOURED = ("module", "parameter", "buffer")
_SHAPES: dict[Kind, str] = {"input": "ellipse", "output": "ellipse", "parameter": "note", "buffer": "note", "constant": "note"}


def to_dot(graph: PlainGraph, fills: Mapping[str, str] | None = None, caption: str = "") -> str:
    """Return *graph* as Graphviz source: module calls that hold others as clusters, all else as nodes. Collapse it first for less.

    Nodes are named ``n`` and clusters ``cluster_`` with the node's number; both have their kind as class, so that an SVG of
    them can be styled and searched.

    Args:
        graph: what is drawn.
        fills: colours, as ``#440154``, by ``module PATH`` (one that holds no module) and ``tensor PATH``; the others have that of
            their kind.
        caption: stands below the drawing.
    """
    lines = [
        f"digraph {quoted(graph.model)} {{",
        f"  graph [rankdir=TB, ranksep=0.35, nodesep=0.25, fontname={quoted(FONT)}, fontsize=11, bgcolor=transparent];",
        f'  node [shape=box, style="rounded,filled", fontname={quoted(FONT)}, fontsize=10, margin="0.1,0.05", height=0.3];',
        '  edge [color="#666666", arrowsize=0.6];',
    ]
    lines += _body(graph, fills or {})
    joined = dict.fromkeys((edge.source, edge.target) for edge in graph.edges)
    lines += [f"  n{source} -> n{target};" for source, target in joined]
    if caption:  # at the end, since clusters take on what stands before them
        lines.append(f"  label={quoted(caption)}; labelloc=b;")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _body(graph: PlainGraph, fills: Mapping[str, str]) -> Iterator[str]:
    """Yield clusters and nodes, nested as they ran; without recursion, since modules may be nested very deep."""
    open_calls: list[int] = []
    for node in graph.nodes:
        while open_calls and open_calls[-1] != node.parent:
            open_calls.pop()
            yield "  " * (len(open_calls) + 1) + "}"
        indent = "  " * (len(open_calls) + 1)
        if node.kind == "module" and _is_frame(graph, node):
            open_calls.append(node.id)
            color = _FAILED[1] if "failed" in node.flags else "#9d93c4"
            title = " ".join(label_lines(graph, node)[: 2 if node.path else 1])
            label = quoted(title + _SPACE * (len(title) + 4)).removesuffix('"') + '\\l"'
            yield f"{indent}subgraph cluster_{node.id} {{"
            fill = None if _holds_modules(graph, node) else fills.get(f"module {node.path}")
            style = "style=rounded" if fill is None else f'style="rounded,filled", fillcolor="{fill}"'
            font = "#55488c" if fill is None else "#ffffff" if _is_dark(fill) else "#000000"
            look = f'labeljust=l, {style}, color="{color}", fontcolor="{font}", class=module'
            yield f"{indent}  graph [label={label}, {look}];"
            continue
        yield f"{indent}n{node.id} [{_attributes(graph, node, fills)}];"
    while open_calls:
        open_calls.pop()
        yield "  " * (len(open_calls) + 1) + "}"


def _is_frame(graph: PlainGraph, node: Node) -> bool:
    return any(child.kind in ("operation", "module") for child in graph.children.get(node.id, ()))


def _attributes(graph: PlainGraph, node: Node, fills: Mapping[str, str]) -> str:
    fill, line = _FAILED if "failed" in node.flags else _FILLS[node.kind]
    given = fills.get(f"{'module' if node.kind == 'module' else 'tensor'} {node.path}") if node.kind in _COLOURED else None
    found = [
        f"label={quoted(chr(10).join(label_lines(graph, node)))}",
        f'fillcolor="{given or fill}"',
        f'color="{line}"',
        f"class={node.kind}",
    ]
    if given is not None and _is_dark(given):
        found.append('fontcolor="#ffffff"')
    if node.kind in _SHAPES:
        found += [f"shape={_SHAPES[node.kind]}", "style=filled"]
    return ", ".join(found)


def _holds_modules(graph: PlainGraph, node: Node) -> bool:
    return any(child.kind == "module" for child in graph.children.get(node.id, ()))


def _is_dark(colour: str) -> bool:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140


def label_lines(graph: PlainGraph, node: Node) -> list[str]:
    """Return the text on a node: name, class, and the shapes of its outputs."""
    times = f" × {node.repeat}" if node.repeat > 1 else ""
    call = f" (call {node.call})" if node.call else ""
    if node.kind == "module":
        lines = [f"{node.path}{call}{times}", node.type] if node.path else [f"{node.type}{call}{times}"]
    else:
        lines = [node.name + times]
    shapes = [str(graph.values[value]) for value in node.outputs]
    if node.kind == "output":
        return lines
    if node.kind == "parameter" and node.parameters:
        return [*lines, f"{shapes[0]}"]
    if shapes:
        lines.append(", ".join(shapes[:3]) + (f", … {large_text(len(shapes))}" if len(shapes) > 3 else ""))
    return lines


def quoted(text: str) -> str:
    """Return *text* as a Graphviz string."""
    escaped = printable(text.replace("\r", "")).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n") + '"'
