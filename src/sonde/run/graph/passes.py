"""Pure functions from a graph to a graph: collapse, hide, fold, select. Nodes keep their numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TypeVar

from sonde.errors import ArgumentError
from sonde.run.graph.check import order, reach
from sonde.run.graph.data import SOURCES, Edge, GraphData, Node, Value
from sonde.run.graph.repeats import Repeats, ranged, repeats
from sonde.suggest import unknown_name

AnyGraph = TypeVar("AnyGraph", bound=GraphData)


def find(graph: GraphData, where: str) -> tuple[Node, ...]:
    """Return the nodes of a module, parameter, input or output, by its site or its path; every call of a module.

    Raises:
        UnknownSiteError: there is none; the message names the nearest.
    """
    found = tuple([node for node in graph.nodes if node.kind not in ("operation", "constant") and where in _names(node)])
    if found:
        return found
    raise unknown_name("site", where, (name for node in graph.nodes for name in _names(node)), "this graph")


def _names(node: Node) -> tuple[str, ...]:
    """Return the names by which a node is found: its site and its path."""
    if node.kind == "module":
        return (node.site, node.path or "(root)")
    if node.kind in ("parameter", "buffer"):
        return (node.site, node.path)
    return (node.site,) if node.kind in ("input", "output") else ()


def collapse(graph: AnyGraph, depth: int | None = None, at: str | Iterable[str] = ()) -> AnyGraph:
    """Return the graph with module calls as single nodes: those at *depth* (the model itself is at 0), and those *at* the sites.

    The nodes inside are removed, and their edges become the module's. *depth* None leaves every depth open.

    Raises:
        ArgumentError: *depth* is no number from 0.
        UnknownSiteError: a site is none of this graph's modules.
    """
    if depth is not None and (type(depth) is not int or depth < 0):
        raise ArgumentError(f"depth={depth!r}: give how many levels of modules to open, 0 for the model as one node, None for all")
    closed = {node.id for name in ([at] if isinstance(at, str) else at) for node in find(graph, name)}
    stands_for: dict[int, int] = {}
    for node in graph.nodes:  # parents come before their children
        inside = None if node.parent is None else stands_for[node.parent]
        if inside is not None and (inside != node.parent or inside in closed or graph.depths[inside] == depth):
            stands_for[node.id] = inside
        else:
            stands_for[node.id] = node.id
    return _merge(graph, stands_for)


def _merge(graph: AnyGraph, stands_for: dict[int, int]) -> AnyGraph:
    """Return the graph with each node replaced by the node that *stands_for* it, without inner edges, equal edges once."""
    edges: dict[tuple[int, int, int], Edge] = {}
    gave: dict[int, list[int]] = {}
    for edge in graph.edges:
        source, target = stands_for[edge.source], stands_for[edge.target]
        if source != target:
            edges.setdefault((source, target, edge.value), Edge(source, target, edge.value, edge.seconds))
            gave.setdefault(source, []).append(edge.value)
    nodes = [
        replace(node, outputs=tuple(dict.fromkeys((*node.outputs, *gave.get(node.id, ())))))
        for node in graph.nodes
        if stands_for[node.id] == node.id
    ]
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges.values()))


def hide(
    graph: AnyGraph,
    *,
    views: bool = False,
    constants: bool = False,
    parameters: bool = False,
    operations: bool = False,
) -> AnyGraph:
    """Return the graph without some nodes: edges bridge removed operations; sources are removed with their edges.

    A module without any other node left becomes a single node.

    Args:
        views: remove operations whose output shares an input's memory, or is the input itself.
        constants: remove constants and buffers, and operations on these alone (``arange``, a mask).
        parameters: remove parameters.
        operations: remove all operations, so that modules are left; but keep those that join several flows and are read by
            several nodes (the additions of a residual network), since each layer would then have an edge to every later one.
    """
    gone: set[int] = set()
    made_of_constants = _constant_operations(graph) if constants else set()
    for node in graph.nodes:
        if (
            (views and node.kind == "operation" and {"view", "same"} & set(node.flags) and "inplace" not in node.flags)
            or (constants and (node.kind in ("constant", "buffer") or node.id in made_of_constants))
            or (parameters and node.kind == "parameter")
            or (operations and node.kind == "operation")
        ):
            gone.add(node.id)
    return without(graph, gone, keep_joins=operations)


def _constant_operations(graph: GraphData) -> set[int]:
    """Return the operations that read constants and buffers only."""
    variable = reach(graph, [node.id for node in graph.nodes if node.kind in ("input", "parameter")])
    return {node.id for node in graph.nodes if node.kind == "operation" and node.id not in variable}


def without(graph: AnyGraph, gone: Collection[int], *, keep_joins: bool = False) -> AnyGraph:
    """Return the graph without the operations and sources numbered in *gone*; see :func:`hide`.

    With *keep_joins*, an operation that joins several flows and is read by several nodes stays: without the additions of a
    residual network, each layer would have an edge to every later one.
    """
    gone = {number for number in gone if graph.by_id[number].kind in ("operation", *SOURCES)}
    if not gone:
        return graph
    emptied = _emptied(graph, gone)
    graph = _merge(graph, {node.id: _stands_for(graph, node, gone, emptied) for node in graph.nodes})
    gone = {number for number in gone if number in graph.by_id}
    into: dict[int, list[Edge]] = {}
    for edge in graph.edges:
        into.setdefault(edge.target, []).append(edge)
    readers = {source: len({edge.target for edge in edges}) for source, edges in _by_source(graph).items()}
    origins: dict[int, dict[tuple[int, int], None]] = {}

    def origins_of(edge: Edge) -> Iterable[tuple[int, int]]:
        """Return the remaining nodes whose data flows along *edge*, and the values."""
        return origins[edge.source] if edge.source in gone else ((edge.source, edge.value),)

    for number in order(graph):
        if number in gone:
            found = {origin: None for edge in into.get(number, ()) for origin in origins_of(edge)}
            if keep_joins and readers.get(number, 0) > 1 and len({source for source, _ in found}) > 1:
                gone.discard(number)
            else:
                origins[number] = found
    edges: dict[tuple[int, int, int], Edge] = {}
    for edge in graph.edges:
        if edge.target not in gone:
            for source, value in origins_of(edge):
                edges.setdefault((source, edge.target, value), Edge(source, edge.target, value, edge.seconds))
    starved = {target for target in into if target not in gone} - {target for _, target, _ in edges}
    needed = _beginnings(graph, into, starved & {node.id for node in graph.nodes if node.kind in ("output", "module")})
    if needed:
        return without(graph, gone - needed)
    kept = tuple([node for node in graph.nodes if node.id not in gone])
    return replace(graph, nodes=kept, edges=tuple(edges.values()))


def _by_source(graph: GraphData) -> dict[int, list[Edge]]:
    found: dict[int, list[Edge]] = {}
    for edge in graph.edges:
        found.setdefault(edge.source, []).append(edge)
    return found


def _beginnings(graph: GraphData, into: dict[int, list[Edge]], targets: set[int]) -> set[int]:
    """Return the nodes without an incoming edge whose data flows to *targets*."""
    return {number for number in reach(graph, targets, backwards=True) - targets if number not in into} if targets else set()


def _emptied(graph: GraphData, gone: set[int]) -> set[int]:
    """Return the module calls that held operations and now hold sources only."""
    emptied: set[int] = set()
    for node in reversed(graph.nodes):
        inner = [child for child in graph.children.get(node.id, ()) if child.kind in ("operation", "module")]
        if inner and all(child.id in gone for child in inner):
            emptied.add(node.id)
    return emptied


def _stands_for(graph: GraphData, node: Node, gone: set[int], emptied: set[int]) -> int:
    if node.kind == "operation" and node.parent is not None and node.parent in emptied:
        return node.parent
    return node.id


def between(graph: AnyGraph, start: str, end: str) -> AnyGraph:
    """Return the nodes on a path from one site to another, with the sources that they read.

    Raises:
        UnknownSiteError: a site is none of this graph's; the message names the nearest.
        ArgumentError: no data flows from *start* to *end*.
    """
    first, last = find(graph, start), find(graph, end)
    inside = _frames_of(graph, first), _frames_of(graph, last)
    on_path = reach(graph, inside[0]) & reach(graph, inside[1], backwards=True)
    if not on_path:
        raise ArgumentError(
            f"no data flows from {start!r} to {end!r}" + (", but it does the other way" if _flows(graph, *inside) else "")
        )
    feeding = {edge.source for edge in graph.edges if edge.target in on_path and graph.by_id[edge.source].kind in SOURCES}
    kept = on_path | {number for number in feeding if graph.by_id[number].kind != "input"}
    kept |= {frame for number in kept for frame in graph.above(number)}
    nodes = tuple([node for node in graph.nodes if node.id in kept])
    edges = tuple([edge for edge in graph.edges if edge.source in kept and edge.target in kept])
    return replace(graph, nodes=nodes, edges=edges)


def _flows(graph: GraphData, later: set[int], earlier: set[int]) -> bool:
    return bool(reach(graph, earlier) & later)


def _frames_of(graph: GraphData, found: Iterable[Node]) -> set[int]:
    """Return the nodes *found* and all nodes that ran in them."""
    inside: set[int] = {node.id for node in found}
    for node in graph.nodes:
        if node.parent in inside:
            inside.add(node.id)
    return inside


def fold(graph: AnyGraph, *, least: int = 2) -> AnyGraph:
    """Return the graph with equal blocks in a row as the first of them; its ``repeat`` is their number.

    Blocks are equal if they hold the same classes, operations, arguments, dtypes, parameters and inner edges. What may differ is a
    counter among the arguments (which expert, which step), and sizes: the block that is left shows both from the least to the
    most, ``0…5``. The first block may also hold what the later ones get from the block before, as a state of zeros.
    The edges from one block to the next are removed; other edges into or out of any block are edges of the one that is left.

    Raises:
        ArgumentError: *least* is below 2.
    """
    if least < 2:
        raise ArgumentError(f"least={least}: blocks are folded from 2 on")
    while (found := repeats(graph, least)).counts:
        copy_of = found.copy_of
        edges = tuple([edge for edge in graph.edges if not _joins_copies(copy_of.get(edge.source), copy_of.get(edge.target))])
        values, same_value = _together(graph, found)
        edges = tuple([replace(edge, value=same_value.get(edge.value, edge.value)) for edge in edges])
        merged = _merge(
            replace(graph, edges=edges, values=values), {number: found.stands_for.get(number, number) for number in graph.by_id}
        )
        arguments: dict[int, list[str]] = {}
        for number, first in found.stands_for.items():
            arguments.setdefault(first, [graph.by_id[first].arguments]).append(graph.by_id[number].arguments)
        nodes = tuple(
            [
                replace(
                    node,
                    repeat=node.repeat * found.counts.get(node.id, 1),
                    arguments=ranged(arguments.get(node.id, [node.arguments])),
                    outputs=tuple(dict.fromkeys([same_value.get(value, value) for value in node.outputs])),
                )
                for node in merged.nodes
            ]
        )
        graph = replace(merged, nodes=nodes)
    return graph


def _together(graph: GraphData, found: Repeats) -> tuple[tuple[Value, ...], dict[int, int]]:
    """Return the values, those of a first copy with the sizes of all copies, and, for each value of a later copy, the first's."""
    maker: dict[int, int] = {}
    for edge in graph.edges:
        maker[edge.value] = min(edge.source, maker.get(edge.value, edge.source))  # later ones have handed it on
    values, same_value = list(graph.values), {}
    for number, first in found.stands_for.items():
        for value, like in zip(graph.by_id[number].outputs, graph.by_id[first].outputs, strict=False):
            if found.stands_for.get(maker.get(value, number)) == maker.get(like, first):  # and not handed on from elsewhere
                same_value[value] = like
                values[like] = values[like].or_as(values[value])
    return tuple(values), same_value


def _joins_copies(one: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    """Whether an edge between nodes of these copies runs from one copy of a group to another of the same."""
    return one is not None and other is not None and one != other and one[0] == other[0]
