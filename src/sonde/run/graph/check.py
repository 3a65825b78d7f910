"""Whether a graph is whole: what must hold of every execution graph, said where it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sonde.errors import GraphError
from sonde.run.graph.data import SOURCES, PlainGraph

__all__ = ["check", "order", "reach", "unused"]


def check(graph: PlainGraph) -> None:
    """Raise if *graph* contradicts itself.

    Numbers are unique and rise; parents are module calls that come before their children, and calls nest like brackets; every
    edge joins two nodes and carries a tensor that its source gave; only nodes that hold no others have edges; nothing flows into
    a source or out of an output; there is no cycle; and every output has a source.

    Raises:
        GraphError: it does, and where.
    """
    _check_nodes(graph)
    _check_edges(graph)
    in_order = order(graph)
    if len(in_order) != len(graph.nodes):
        left = sorted(set(graph.by_id) - set(in_order))
        raise GraphError(f"the graph has a cycle, among {_described(graph, left)}")
    _check_flow(graph)


def _check_nodes(graph: PlainGraph) -> None:
    open_calls: list[int] = []
    last = -1
    for node in graph.nodes:
        if node.id <= last:
            raise GraphError(f"the numbers of nodes must rise: {node.id} comes after {last}")
        last = node.id
        if node.parent is not None:
            if node.parent not in graph.by_id or graph.by_id[node.parent].kind != "module":
                raise GraphError(
                    f"{_described(graph, [node.id])} lies in node {node.parent}, which is no module call of this graph"
                )
            while open_calls and open_calls[-1] != node.parent:
                open_calls.pop()
            if not open_calls:
                raise GraphError(f"{_described(graph, [node.id])} lies in module call {node.parent}, which had ended before")
        else:
            open_calls.clear()
        if node.kind == "module":
            open_calls.append(node.id)
        if any(not 0 <= value < len(graph.values) for value in node.outputs):
            raise GraphError(f"{_described(graph, [node.id])} gave values that the graph does not hold")


def _check_edges(graph: PlainGraph) -> None:
    frames = {node.parent for node in graph.nodes if node.kind in ("operation", "module")}
    for edge in graph.edges:
        ends = [edge.source, edge.target]
        if edge.source not in graph.by_id or edge.target not in graph.by_id:
            raise GraphError(f"an edge joins {edge.source} and {edge.target}, which are not both nodes of this graph")
        source, target = graph.by_id[edge.source], graph.by_id[edge.target]
        if edge.value not in source.outputs:
            raise GraphError(
                f"the edge between {_described(graph, ends)} carries value {edge.value}, which its source did not give"
            )
        if target.kind in SOURCES or source.kind == "output":
            raise GraphError(
                f"an edge runs backwards, from {_described(graph, [edge.source])} to {_described(graph, [edge.target])}"
            )
        for end in ends:
            if end in frames:
                raise GraphError(f"{_described(graph, [end])} holds other nodes and has an edge of its own")


def _check_flow(graph: PlainGraph) -> None:
    fed = {edge.target for edge in graph.edges}
    for node in graph.nodes:
        if node.kind == "output" and node.id not in fed:
            raise GraphError(f"nothing flows into {_described(graph, [node.id])}")


def order(graph: PlainGraph) -> list[int]:
    """The numbers of all nodes, sources first (Kahn); nodes on a cycle, and what follows them, are left out."""
    waiting = dict.fromkeys(graph.by_id, 0)
    readers: dict[int, list[int]] = {}
    for edge in graph.edges:
        waiting[edge.target] += 1
        readers.setdefault(edge.source, []).append(edge.target)
    ready = [node for node, count in waiting.items() if not count]
    for node in ready:  # grows
        for reader in readers.get(node, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return ready


def reach(graph: PlainGraph, start: Iterable[int], *, backwards: bool = False) -> set[int]:
    """Everything that data from *start* flows to, *start* included; or with *backwards*, comes from."""
    following: dict[int, list[int]] = {}
    for edge in graph.edges:
        one, other = (edge.target, edge.source) if backwards else (edge.source, edge.target)
        following.setdefault(one, []).append(other)
    found = set(start)
    pending = list(found)
    while pending:
        for node in following.get(pending.pop(), ()):
            if node not in found:
                found.add(node)
                pending.append(node)
    return found


def unused(graph: PlainGraph) -> tuple[int, ...]:
    """The module calls that gave a tensor and lie on no path to an output: what they computed was thrown away."""
    useful = reach(graph, [node.id for node in graph.nodes if node.kind == "output"], backwards=True)
    frames = {frame for node in useful for frame in (node, *graph.above(node))}
    return tuple(node.id for node in graph.modules() if node.outputs and node.id not in frames)


def _described(graph: PlainGraph, numbers: list[int]) -> str:
    known: Mapping[int, object] = graph.by_id
    texts = []
    for number in numbers[:4]:
        node = graph.by_id.get(number)
        where = f" at {node.site}" if node is not None and node.site else ""
        texts.append(f"node {number}" + (f" ({node.kind} {node.name!r}{where})" if node is not None else ""))
    more = f" and {len(numbers) - 4} more" if len(numbers) > 4 else ""
    return ", ".join(texts) + more if known else "an empty graph"
