"""The execution graph as plain data: module calls, operations, tensors, and the edges between them.

A graph knows no model and no torch: it is written as JSON, read back equal, compared, and changed by the pure functions of
``passes.py``. Nodes are numbered in the order in which they came about. Edges join what reads to what was read: operations,
inputs, outputs, parameters, buffers and constants; a module call is a frame around the nodes that ran in it, and has edges
of its own only where nothing in it was recorded or it was collapsed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

from sonde.errors import ArgumentError, StoreError

__all__ = ["KINDS", "SOURCES", "Edge", "Kind", "Node", "PlainGraph", "Value", "byte_text", "count_text", "shape_text", "time_text"]

Kind = Literal["input", "parameter", "buffer", "constant", "module", "operation", "output"]
"""What a node is. A constant is a tensor that no recorded operation has made: one that the code holds, or got where torch
does not tell (NumPy, TorchScript)."""

KINDS: tuple[Kind, ...] = get_args(Kind)
SOURCES: tuple[Kind, ...] = ("input", "parameter", "buffer", "constant")

_FORMAT, _VERSION = "sonde.graph", 1


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor: its shape, dtype (``float32``) and device (``cpu``)."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    def __str__(self) -> str:
        return shape_text(self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        id: its number; what came about later has a higher one. Passes keep the numbers of nodes that they leave.
        kind: what it is.
        name: an operation's public name (``linear``, ``add_``); the last part of a module's or parameter's name; the
            argument that an input was passed as; the leaf of the output.
        type: a module's class.
        path: canonical name of the module, parameter or buffer; of an operation, that of the module it ran in.
        site: the site it belongs to, as the rest of sonde writes it: ``layers.0:output``, ``layers.0.weight:param``.
        call: index of the module's call within this forward, from 0, as modules begin.
        parent: number of the module call it ran in; None at the top.
        outputs: the values it gave, as positions in ``graph.values``.
        arguments: what else an operation was given, as text: ``dim=1``.
        flops: multiplications and additions of matrix products and convolutions, a fused pair as two, as
            ``torch.utils.flop_counter`` counts them; of a module all inside it.
        parameters: elements of a parameter; of a module all in it, each once.
        bytes: memory of new tensors that it made (views and writes in place make none); of a module all inside it.
        seconds: time on the host without what recording took; of a module all inside it. Not compared.
        flags: ``view`` (its output shares memory with an input), ``inplace`` (it wrote into an input), ``same`` (it returned an
            input itself), ``read`` (it hands a value to Python), ``unseen`` (known from its gradient only), ``raised`` (an
            exception came out of it), ``failed`` (and that ended the forward).
        repeat: how many equal blocks in a row it stands for.
    """

    id: int
    kind: Kind
    name: str
    type: str = ""
    path: str = ""
    site: str = ""
    call: int = 0
    parent: int | None = None
    outputs: tuple[int, ...] = ()
    arguments: str = ""
    flops: int = 0
    parameters: int = 0
    bytes: int = 0
    seconds: float = field(default=0.0, compare=False)
    flags: tuple[str, ...] = ()
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Edge:
    """*target* read a tensor that *source* gave.

    Attributes:
        source, target: numbers of nodes.
        value: which tensor, as a position in ``graph.values``.
        seconds: when it was read, since the forward began. Not compared. The order of a graph's edges is the order of reading.
    """

    source: int
    target: int
    value: int
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class PlainGraph:
    """An execution graph: immutable, comparable, plain.

    Attributes:
        model: class of the model.
        nodes: by number.
        edges: in the order of reading.
        values: the tensors.
        error: what ended the forward early, as text; the failing calls carry the flag ``failed``.
    """

    model: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    values: tuple[Value, ...]
    error: str = ""

    @cached_property
    def by_id(self) -> Mapping[int, Node]:
        """The nodes by number."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def children(self) -> Mapping[int | None, tuple[Node, ...]]:
        """The nodes directly in each module call, and at the top (None), in order."""
        found: dict[int | None, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in found.items()}

    @cached_property
    def depths(self) -> Mapping[int, int]:
        """How many module calls each node lies in; the model's own call is at 0, as are inputs and outputs."""
        found: dict[int, int] = {}
        for node in self.nodes:  # parents come before their children
            found[node.id] = 0 if node.parent is None else found[node.parent] + 1
        return found

    @property
    def depth(self) -> int:
        """The depth of the deepest node."""
        return max(self.depths.values(), default=0)

    def above(self, node: int) -> Iterator[int]:
        """The module calls around a node, innermost first."""
        parent = self.by_id[node].parent
        while parent is not None:
            yield parent
            parent = self.by_id[parent].parent

    def modules(self) -> tuple[Node, ...]:
        """The module calls, in the order in which they began."""
        return tuple(node for node in self.nodes if node.kind == "module")

    def __len__(self) -> int:
        return len(self.nodes)

    # Files

    def to_data(self) -> dict[str, Any]:
        """The graph as dicts, lists, texts and numbers, with a version of its form: what a run keeps."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "model": self.model,
            "error": self.error,
            "values": [[list(value.shape), value.dtype, value.device] for value in self.values],
            "nodes": [_node_to_json(node) for node in self.nodes],
            "edges": [[edge.source, edge.target, edge.value, round(edge.seconds, 7)] for edge in self.edges],
        }

    def to_json(self) -> str:
        """The graph as JSON text. No pickle."""
        return json.dumps(self.to_data(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_data(cls, held: Any) -> Self:
        """The graph that ``to_data`` gave.

        Raises:
            StoreError: *held* is none, or of a version that this sonde does not know.
        """
        try:
            if held["format"] != _FORMAT or held["version"] != _VERSION:
                raise StoreError(
                    f"this is {held['format']!r} of version {held['version']!r}; this sonde reads {_FORMAT!r} of version {_VERSION}"
                )
            return cls(
                model=held["model"],
                nodes=tuple(map(_node_from_json, held["nodes"])),
                edges=tuple(Edge(*edge) for edge in held["edges"]),
                values=tuple(Value(tuple(shape), dtype, device) for shape, dtype, device in held["values"]),
                error=held["error"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"this is no graph that sonde has written: {type(error).__name__}: {error}") from error

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The graph that ``to_json`` wrote.

        Raises:
            StoreError: the text is none, or of a version that this sonde does not know.
        """
        try:
            held = json.loads(text)
        except ValueError as error:
            raise StoreError(f"this is no graph that sonde has written: {error}") from error
        return cls.from_data(held)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The graph in a JSON file.

        Raises:
            StoreError: there is none, or it cannot be read.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise StoreError(f"{os.fspath(path)!r} cannot be read: {error.strerror}") from error


_PLAIN = Node(0, "module", "")
_OPTIONAL = tuple(item.name for item in fields(Node) if item.name not in ("id", "kind", "name"))


def _node_to_json(node: Node) -> dict[str, Any]:
    held: dict[str, Any] = {"id": node.id, "kind": node.kind, "name": node.name}
    for name in _OPTIONAL:
        value = getattr(node, name)
        if value != getattr(_PLAIN, name):
            held[name] = round(value, 7) if name == "seconds" else value
    return held


def _node_from_json(held: dict[str, Any]) -> Node:
    if held["kind"] not in KINDS:
        raise ArgumentError(f"{held['kind']!r} is no kind of node; the kinds are {', '.join(KINDS)}")
    tuples: dict[str, Any] = {name: tuple(held[name]) for name in ("outputs", "flags") if name in held}
    return Node(**{**held, **tuples})


# Numbers for people


def shape_text(shape: tuple[int, ...]) -> str:
    """``2×64``; ``scalar`` for none."""
    return "×".join(map(str, shape)) or "scalar"


def count_text(number: float) -> str:
    """``950``, ``12.3 k``, ``4.56 M``: three digits and a power of a thousand."""
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if abs(number) >= 999.5 * 1000 ** (power - 1):
            return f"{number / 1000**power:#.3g} {letter}".replace(". ", " ")
    return f"{number:.3g}"


def byte_text(number: float) -> str:
    """``512 B``, ``1.50 MB``."""
    return f"{count_text(number)}{'B' if number >= 999.5 else ' B'}"


def time_text(seconds: float) -> str:
    """``12 µs``, ``3.4 ms``, ``1.2 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
