"""Find the blocks of a graph that repeat: alike module calls, and alike groups of calls and operations, in a row."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import eq

from sonde.run.graph.check import reach
from sonde.run.graph.data import SOURCES, GraphData, Node, Value

_LONGEST_PERIOD = 32  # calls and operations of one parent that may repeat as a group
_WHOLE = re.compile(r"(?<![\w.'-])-?\d+(?![\w.'])")  # a whole number that is no part of a name or of another number
_PLACING = frozenset({"getitem", "setitem", "select", "narrow", "eq", "ne", "full", "full_like", "new_full", "fill_"})
"""Operations whose whole numbers say which of many, and not how."""


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


@dataclass(frozen=True, slots=True)
class Repeated:
    """Alike blocks in a row.

    Attributes:
        outermost: the module calls and operations that are the blocks, copy after copy.
        copies: for each copy all its nodes, in the order of the first one's.
        alone: what only the first copy holds: where its inputs come from, as a state of zeros.
    """

    outermost: Sequence[Node]
    copies: Sequence[Sequence[Node]]
    alone: Sequence[Node]

    @property
    def period(self) -> int:
        """The number of siblings in one copy."""
        return len(self.outermost) // len(self.copies)


def repeats(graph: GraphData, least: int) -> Repeats:
    """Return the outermost blocks that come *least* times in a row or more."""
    found = Repeats()
    blocks = _Blocks(graph)
    for parent in (None, *(node.id for node in graph.modules())):
        if parent in found.copy_of:
            continue  # inside a block that repeats as a whole: found in the next round
        for run in blocks.runs(parent):
            if len(run.copies) >= least:
                _note(found, run)
    return found


def repeated(graph: GraphData) -> Iterator[Repeated]:
    """Yield the alike blocks in a row, also those inside copies. A group of several layers counts from three copies on."""
    blocks = _Blocks(graph)
    for parent in (None, *(node.id for node in graph.modules())):
        for run in blocks.runs(parent):
            if (
                run.period == 1
                or len(run.copies) > 2
                or any(node.kind == "module" and node.parent != parent for node in run.copies[0])
            ):
                yield run


def _note(found: Repeats, run: Repeated) -> None:
    group = len(found.counts)
    for number, copy in enumerate(run.copies):
        for node, like in zip(copy, run.copies[0], strict=True):
            found.copy_of[node.id] = (group, number)
            if number:
                found.stands_for[node.id] = like.id
    found.copy_of |= dict.fromkeys([node.id for node in run.alone], (group, 0))
    found.counts |= dict.fromkeys([node.id for node in run.outermost[: run.period]], len(run.copies))


@lru_cache(10_000)
def _parsed(arguments: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the parts of a text between its whole numbers, and the numbers."""
    return tuple(_WHOLE.split(arguments)), tuple(map(int, _WHOLE.findall(arguments)))


def ranged(texts: Sequence[str]) -> str:
    """Return the arguments of one operation in all copies as one text: ``0…5`` for a number that is not the same in all."""
    parts = _parsed(texts[-1])[0]
    slots = zip(*[_parsed(text)[1] for text in texts if _parsed(text)[0] == parts], strict=True)
    ends = [sorted({min(held), max(held)}, reverse=held[0] > held[-1]) for held in slots]
    return "".join(part + "…".join(map(str, held)) for part, held in zip(parts, [*ends, ()], strict=True))


class _Blocks:
    """The nodes inside each node, a key that alike nodes share, and the blocks of each parent that repeat."""

    def __init__(self, graph: GraphData) -> None:
        self._graph = graph
        self._at = {node.id: index for index, node in enumerate(graph.nodes)}
        self._size = dict.fromkeys(self._at, 1)
        self._read: dict[int, list[tuple[int, int]]] = {number: [] for number in self._at}
        for edge in graph.edges:
            self._read[edge.target].append((edge.source, edge.value))
        variable = reach(graph, [node.id for node in graph.nodes if node.kind in ("input", "parameter")])
        self._spare: set[int] = set()
        self._own: dict[int, int] = {}
        self._keys: dict[int, int] = {}
        numbers: dict[Hashable, int] = {}
        inner: dict[int | None, list[Hashable]] = {}
        for node in reversed(graph.nodes):  # children before their parents
            own = self._own[node.id] = numbers.setdefault(self._describe(node), len(numbers))
            key = self._keys[node.id] = numbers.setdefault((own, *inner.pop(node.id, ())), len(numbers))
            if node.parent is not None:
                self._size[node.parent] += self._size[node.id]
            if node.kind == "parameter":
                is_spare = node.parent is None or node.path != f"{graph.by_id[node.parent].path}.{node.name}".lstrip(".")
            else:
                is_spare = node.kind in SOURCES or (node.kind == "operation" and node.id not in variable)
            if is_spare:
                self._spare.add(node.id)
            else:
                inner.setdefault(node.parent, []).append((key, node.name))

    def _describe(self, node: Node) -> Hashable:
        """Return what alike nodes have in common, apart from what they read, sizes of tensors, and numbers among the arguments."""
        values = [self._graph.values[value] for value in node.outputs]
        shapes = [value.shape if node.kind in ("parameter", "buffer") else len(value.shape) for value in values]
        tensors = tuple([(shape, value.dtype, value.device) for shape, value in zip(shapes, values, strict=True)])
        words = "".join(_parsed(node.arguments)[0]).replace(", ", "")
        flags = tuple([flag for flag in node.flags if flag not in ("view", "same")])  # what a size of 1 changes
        return node.kind, "" if node.kind == "module" else node.name, node.type, words, flags, node.repeat, tensors

    def runs(self, parent: int | None) -> Iterator[Repeated]:
        """Yield the blocks directly in *parent* that repeat, twice or more.

        A group of operations alone needs one that reads a parameter, and three copies.
        """
        siblings = [node for node in self._graph.children.get(parent, ()) if node.kind in ("operation", "module")]
        keys = [self._keys[node.id] if node.repeat == 1 else -node.id for node in siblings]  # what stands for many is none of many
        calls = list(accumulate([node.kind == "module" for node in siblings], initial=0))
        readers = list(accumulate([self._reads_parameter(node) for node in siblings], initial=0))

        def longest(start: int, periods: Sequence[int]) -> Repeated | None:
            best: Repeated | None = None
            most = (0, 0)  # copies, and siblings in all of them
            for period in periods:
                end = start + period
                least = 2 if calls[min(end, len(keys))] > calls[start] else 3
                if end >= len(keys) or keys[end] != keys[start] or (least == 3 and readers[end] == readers[start]):
                    continue
                while keys[end : end + period] == keys[start : start + period]:
                    end += period
                if max(most, (least, 0)) < ((end - start) // period, end - start):
                    found = self._verified(siblings[start:end], period, least)
                    if found is not None and most < (len(found.copies), len(found.outermost)):
                        best, most = found, (len(found.copies), len(found.outermost))
            return best

        at = 0
        while at < len(siblings):
            run = longest(at, range(1, _LONGEST_PERIOD + 1))
            if run is not None:
                later = [longest(at + shift, range(1, run.period + 1)) for shift in range(1, run.period)]
                if not any(other and len(other.copies) > len(run.copies) for other in later):
                    begins = [other for other in later if other and len(other.outermost) == len(run.outermost)]
                    run = min([run, *begins], key=self._joints)
                    at = siblings.index(run.outermost[-1], at)
                    yield run
            at += 1

    def _reads_parameter(self, node: Node) -> bool:
        return any(self._graph.by_id[source].kind == "parameter" for source, _ in self._read[node.id])

    def _joints(self, run: Repeated) -> tuple[int, int]:
        """Return what is least where a copy begins as its block does: tensors between two copies, and numbers of calls."""
        first = {node.id for node in run.copies[0]}
        joints = {value for node in run.copies[1] for source, value in self._read[node.id] if source in first}
        return len(joints), len({node.call for node in run.outermost[: run.period] if node.kind == "module"})

    def _inside(self, node: Node) -> tuple[Node, ...]:
        """Return the node and all nodes that ran in it."""
        start = self._at[node.id]
        return self._graph.nodes[start : start + self._size[node.id]]

    def _verified(self, outermost: list[Node], period: int, least: int) -> Repeated | None:
        """Return as many of these copies as are alike, or None if they are fewer than *least*; the first may hold more.

        What is alike: the classes and operations, which reads which inside, and the arguments, apart from counters and sizes.
        """
        blocks = [outermost[at : at + period] for at in range(0, len(outermost), period)]
        copies = [[node for block in held for node in self._inside(block)] for held in blocks]
        first: list[Node] = []
        alone: list[Node] = []
        for node in copies[0]:
            is_like = len(first) < len(copies[1]) and self._own[node.id] == self._own[copies[1][len(first)].id]
            (first if is_like else alone).append(node)
        copies[0] = first
        count = _leading([len(copy) for copy in copies])
        if count < least or any(node.id not in self._spare for node in alone):
            return None
        calls = [_leading([block[at].path for block in blocks]) for at in range(period) if blocks[0][at].kind == "module"]
        again = [times for times in calls if times > 1]  # how often the same module is called: what follows is another loop
        count, is_one = min(count, *again, len(blocks)), bool(calls) and again == calls
        places = {node.id: (number, place) for number, copy in enumerate(copies) for place, node in enumerate(copy)}
        for row in zip(*copies[:count], strict=True):
            count = min(count, self._alike(row, places, is_one))
            if count < least:
                return None
        return Repeated(outermost[: count * period], copies[:count], alone)

    def _alike(self, row: Sequence[Node], places: dict[int, tuple[int, int]], is_one: bool) -> int:
        """Return how many copies of one node, from the first on, are alike; *is_one*: the copies are calls of the same modules."""
        facts: list[Hashable] = []
        outside: list[tuple[Value, ...]] = []
        sizes: list[list[int]] = []
        for number, node in enumerate(row):
            reads = [(*places.get(source, (-1, -1)), value) for source, value in self._read[node.id]]
            inner = tuple([place for copy, place, _ in reads if copy == number])
            around = places.get(-1 if node.parent is None else node.parent, (0, -1))[1]
            facts.append((self._own[node.id], inner, around))
            outside.append(tuple([self._graph.values[value] for copy, _, value in reads if copy < 0]))
            tensors = (*node.outputs, *(value for _, _, value in reads))
            sizes.append([size for value in tensors for size in self._graph.values[value].shape])
        parsed = [_parsed(node.arguments) for node in row]
        reads_less = len(self._read[row[0].id]) < len(self._read[row[1].id])
        begin = int(reads_less and parsed[0][0] != parsed[1][0])  # the first has a number in place of a tensor
        count = min(_leading(facts), begin + _leading([parts for parts, _ in parsed[begin:]]))
        if not is_one:  # tensors of other sizes for other modules: only those that come about inside
            start = int(len(outside[0]) != len(outside[1]))  # the first reads what others have from the copy before
            count = min(count, start + _leading(outside[start:]))
        for slot in zip(*[numbers for _, numbers in parsed[begin:count]], strict=True):
            held = [_leading(slot), *(_leading([True, *map(eq, slot, axis)]) - 1 for axis in zip(*sizes[begin:], strict=False))]
            if is_one or row[0].name in _PLACING:
                held.append(1 + _leading([(one < other) - (other < one) for one, other in pairwise(slot)]))
            count = min(count, begin + max(held))
        return count


def _leading(facts: Sequence[Hashable]) -> int:
    """Return how many of *facts* are equal to the first, from there on."""
    return next((at for at, fact in enumerate(facts) if fact != facts[0]), len(facts))
