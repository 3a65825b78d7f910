"""Check that an execution graph is whole, and follow its edges: order, reach, unused module calls."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from sonde.errors import GraphError
from sonde.run.graph.data import SOURCES, GraphData, Node


def check_graph(graph: GraphData) -> None:
    """Raise if *graph* contradicts itself.

    Numbers are unique and rise; parents are module calls that come before their children, and calls nest like brackets; every
    edge joins two nodes and carries a tensor that its source gave; only nodes that hold no others have edges; no edge leads into
    a source or out of an output; there is no cycle; and every output has a source.

    Raises:
        GraphError: one of these does not hold; the message names the node.
    """
    graph.check_references()
    frames = {node.parent for node in graph.nodes if node.kind in ("operation", "module")}
    for edge in graph.edges:
        source, target = graph.by_id[edge.source], graph.by_id[edge.target]
        if edge.value not in source.outputs:
            ends = graph.describe([edge.source, edge.target])
            raise GraphError(f"the edge between {ends} carries value {edge.value}, which its source did not give")
        if target.kind in SOURCES or source.kind == "output":
            raise GraphError(f"an edge runs backwards, from {graph.describe([edge.source])} to {graph.describe([edge.target])}")
        for end in (edge.source, edge.target):
            if end in frames:
                raise GraphError(f"{graph.describe([end])} holds other nodes and has an edge of its own")
    order(graph)
    fed = {edge.target for edge in graph.edges}
    for node in graph.nodes:
        if node.kind == "output" and node.id not in fed:
            raise GraphError(f"nothing flows into {graph.describe([node.id])}")


def order(graph: GraphData) -> list[int]:
    """Return the numbers of all nodes in an order in which every node comes after those it reads.

    Raises:
        GraphError: there is none, since edges form a cycle; the message names its nodes.
    """
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(graph.by_id, ()))
    for edge in graph.edges:
        sorter.add(edge.target, edge.source)
    try:
        return list(sorter.static_order())
    except CycleError as error:
        raise GraphError(f"the graph has a cycle: {graph.describe(error.args[1])}") from error


def reach(graph: GraphData, start: Iterable[int], *, backwards: bool = False) -> set[int]:
    """Return the nodes that data from *start* flows to, with *start*; *backwards*: the nodes that data in *start* comes from."""
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


def unused(graph: GraphData) -> tuple[Node, ...]:
    """Return the module calls that gave a tensor and lie on no path to an output of the model: their result was not used."""
    useful = reach(graph, [node.id for node in graph.nodes if node.kind == "output"], backwards=True)
    frames = {frame for node in useful for frame in (node, *graph.above(node))}
    return tuple([node for node in graph.modules() if node.outputs and node.id not in frames])
