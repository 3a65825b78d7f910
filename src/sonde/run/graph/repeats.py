"""Find the blocks of a graph that repeat: equal module calls, and equal groups of calls and operations, in a row."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from sonde.run.graph.data import GraphData, Node

_LONGEST_PERIOD = 8  # calls and operations of one parent that may repeat as a group


@dataclass
class Repeats:
    """The blocks that repeat.

    Attributes:
        stands_for: for each node of a later copy, the same node of the first copy.
        copy_of: for each node of a copy, the number of its group of copies, and of the copy in the group.
        counts: the number of copies, by each outermost node of the first copy.
    """

    stands_for: dict[int, int] = field(default_factory=dict)
    copy_of: dict[int, tuple[int, int]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


def repeats(graph: GraphData, least: int) -> Repeats:
    """Return the outermost blocks that come *least* times in a row or more."""
    found = Repeats()
    blocks = _Blocks(graph)
    for parent in (None, *(node.id for node in graph.modules())):
        if parent in found.copy_of:
            continue  # inside a block that repeats as a whole: found in the next round
        for run, period in _runs(graph, parent, least, blocks):
            _note(found, blocks, run, period)
    return found


def repeated(graph: GraphData) -> Iterator[tuple[list[Node], int]]:
    """Yield the outermost nodes of equal blocks in a row, copy after copy, and the number of copies; also of blocks inside copies.

    A block of several siblings counts from three copies on.
    """
    blocks = _Blocks(graph)
    for parent in (None, *(node.id for node in graph.modules())):
        for run, period in _runs(graph, parent, 2, blocks):
            if period == 1 or len(run) >= 3 * period:
                yield run, len(run) // period


def _runs(graph: GraphData, parent: int | None, least: int, blocks: _Blocks) -> Iterator[tuple[list[Node], int]]:
    """Yield the siblings of each repetition directly in *parent*, and the number of siblings of one copy."""
    siblings = [node for node in graph.children.get(parent, ()) if node.kind in ("operation", "module")]
    at = 0
    while at < len(siblings):
        period, count = _longest(siblings, at, blocks)
        if count < least:
            at += 1
            continue
        yield siblings[at : at + period * count], period
        at += period * count


def _longest(siblings: list[Node], start: int, blocks: _Blocks) -> tuple[int, int]:
    """Return period and count of the longest repetition from *start*; a group needs a module call in it."""
    best = (1, 1)
    for period in range(1, min(_LONGEST_PERIOD, (len(siblings) - start) // 2) + 1):
        group = siblings[start : start + period]
        if all(node.kind != "module" for node in group):
            continue
        keys = [blocks.key(node) for node in group]
        count = 1
        while [blocks.key(node) for node in siblings[start + count * period : start + (count + 1) * period]] == keys:
            count += 1
        if count > 1 and period * count > best[0] * best[1]:
            best = (period, count)
    return best


def _note(found: Repeats, blocks: _Blocks, run: list[Node], period: int) -> None:
    group = len(found.counts)
    first = [node for block in run[:period] for node in blocks.inside(block)]
    for copy in range(len(run) // period):
        nodes = [node for block in run[copy * period : (copy + 1) * period] for node in blocks.inside(block)]
        for node, like in zip(nodes, first, strict=True):
            found.copy_of[node.id] = (group, copy)
            if copy:
                found.stands_for[node.id] = like.id
    for block in run[:period]:
        found.counts[block.id] = len(run) // period


class _Blocks:
    """The nodes inside each node, and a key that equal blocks share."""

    def __init__(self, graph: GraphData) -> None:
        self._graph = graph
        self._at = {node.id: index for index, node in enumerate(graph.nodes)}
        self._size = dict.fromkeys(self._at, 1)
        for node in reversed(graph.nodes):
            if node.parent is not None:
                self._size[node.parent] += self._size[node.id]
        self._read: dict[int, list[tuple[int, int]]] = {}
        for edge in graph.edges:
            self._read.setdefault(edge.target, []).append((edge.source, edge.value))
        self._keys: dict[int, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def inside(self, node: Node) -> tuple[Node, ...]:
        """Return the node and all nodes that ran in it."""
        start = self._at[node.id]
        return self._graph.nodes[start : start + self._size[node.id]]

    def key(self, node: Node) -> int:
        """Return a number that is equal for two nodes if they hold equal nodes with equal edges."""
        known = self._keys.get(node.id)
        if known is None:
            described = tuple([self._describe(inner, node) for inner in self.inside(node)])
            known = self._keys[node.id] = self._numbers.setdefault(described, len(self._numbers))
        return known

    def _describe(self, node: Node, block: Node) -> Hashable:
        start, size = self._at[block.id], self._size[block.id]
        reads = [(self._at[source] - start, self._graph.values[value]) for source, value in self._read.get(node.id, ())]
        inner = tuple([(at if 0 <= at < size else None, value) for at, value in reads])
        parent = None if node is block or node.parent is None else self._at[node.parent] - start
        values = tuple([self._graph.values[value] for value in node.outputs])
        name = "" if node is block and node.kind == "module" else node.name
        return node.kind, name, node.type, node.arguments, node.flags, node.repeat, values, parent, inner
