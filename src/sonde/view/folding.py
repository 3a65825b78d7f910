"""Fold the rows of blocks that repeat, as the graph does: the first block in full, and one row for those that are alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from sonde.run import Node, PlainGraph

LEAST = 8
"""Rows that a fold saves at least."""


class Named(Protocol):
    """A row of a layer."""

    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=Named)


def folded(
    rows: Sequence[Row],
    key: Callable[[Row], str],
    is_alike: Callable[[Row, Row], bool],
    has_finding: Callable[[Row], bool],
    fold: Callable[[Row, str, str], Row],
) -> list[Row]:
    """Return *rows* with one row in place of those of blocks that are alike: ``h.1 to 11``, after all rows of ``h.0``.

    Blocks are numbered neighbours with equal rows in equal order, as :meth:`sonde.run.PlainGraph.repeated` finds them. A block with
    a finding, or that is not like the last one that is shown, is shown.

    Args:
        rows: in any order in which the rows of a block follow each other.
        key: a text that the same row of two blocks has in common.
        is_alike: whether the numbers of two such rows may stand for each other.
        has_finding: whether a row says something that must not be folded away.
        fold: makes the row for a fold, of the first row of its first block, the name of the blocks, and the name of the one shown.
    """
    graph, inside = _tree(rows, key)
    hidden: set[int] = set()
    instead: dict[int, Row] = {}
    for repeated in graph.repeated():
        run = repeated.outermost
        blocks = [run[at : at + repeated.period] for at in range(0, len(run), repeated.period)]
        if not all(node.name.isdecimal() for node in run) or any(at in hidden for node in run for at in inside[node.id]):
            continue
        held = [[at for node in block for at in inside[node.id]] for block in blocks]
        for like, first, last in _alike(rows, held, is_alike, has_finding):
            away = [at for each in held[first : last + 1] for at in each]
            if len(away) > LEAST:
                name = _span(blocks[first][0], blocks[last][-1])
                instead[min(away)] = fold(rows[min(away)], name, _span(blocks[like][0], blocks[like][-1]))
                hidden.update(away)
    return [instead.get(at, row) for at, row in enumerate(rows) if at not in hidden or at in instead]


def _span(first: Node, last: Node) -> str:
    return first.path if first is last else f"{first.path} to {last.name}"


def _alike(
    rows: Sequence[Row], held: list[list[int]], is_alike: Callable[[Row, Row], bool], has_finding: Callable[[Row], bool]
) -> Iterator[tuple[int, int, int]]:
    """Yield the number of a block that is shown, and of the first and the last of those that follow and are like it."""
    like, first = -1, -1
    for number, block in enumerate(held):
        found = any(has_finding(rows[at]) for at in block)
        joins = not found and like >= 0 and all(is_alike(rows[one], rows[at]) for one, at in zip(held[like], block, strict=True))
        if joins and first < 0:
            first = number
        if not joins and first >= 0:
            yield like, first, number - 1
            first = -1
        if not joins and not found:
            like = number
    if first >= 0:
        yield like, first, len(held) - 1


def _tree(rows: Sequence[Row], key: Callable[[Row], str]) -> tuple[PlainGraph, Mapping[int, list[int]]]:
    """Return the modules of *rows* as a graph without edges, and by node the places of the rows in it, in their order."""
    children: dict[str, dict[str, None]] = {}
    own: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        own.setdefault(row.name, []).append(at)
        parts = row.name.split(".")
        for end in range(1, len(parts) + 1):
            children.setdefault(".".join(parts[: end - 1]), {})[".".join(parts[:end])] = None
    nodes: list[Node] = []
    inside: dict[int, list[int]] = {}

    def add(path: str, parent: int | None) -> list[int]:
        number = len(nodes)
        said = " ".join(key(rows[at]) for at in own.get(path, ()))
        nodes.append(Node(number, "module", path.rpartition(".")[2], said, path, parent=parent))
        below = [at for child in children.get(path, {}) if child for at in add(child, number)]
        inside[number] = sorted([*own.get(path, ()), *below])
        return inside[number]

    for path in children.get("", {}):
        if path:
            add(path, None)
    return PlainGraph("", tuple(nodes), (), ()), inside
