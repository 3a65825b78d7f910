"""The execution graph as plain data: module calls, operations, tensors, and the edges between them.

A graph holds no model and no torch object. It is written as JSON and read back equal, compared by value, and changed by the
pure functions of ``passes.py``. Nodes are numbered in the order in which they came about. An edge joins the node that gave a
tensor to a node that read it: operations, inputs, outputs, parameters, buffers and constants. A module call is a frame around
the nodes that ran in it; it has edges of its own only if nothing in it was recorded, or if it was collapsed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import gt
from typing import Any, Literal, Self, get_args

from sonde.errors import GraphError, StoreError
from sonde.paths import absolute_path
from sonde.run import form
from sonde.run.folder.json_file import json_text, parse_json, read_bytes
from sonde.run.form import Form
from sonde.words import shape_text

Kind = Literal["input", "parameter", "buffer", "constant", "module", "operation", "output"]
"""The kinds of nodes. A constant is a tensor that no recorded operation has made: one that the code holds, or one from a place
where torch reports nothing (NumPy, TorchScript)."""

KINDS: tuple[Kind, ...] = get_args(Kind)
SOURCES: tuple[Kind, ...] = ("input", "parameter", "buffer", "constant")

_FORMAT, _VERSION = "sonde.graph", 1
_MEMBERS = ("format", "version", "model", "error", "values", "nodes", "edges")


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor: its shape, dtype (``float32``) and device (``cpu``). Of alike blocks that :meth:`fold` made one, where sizes
    differ: the least sizes, and in ``most`` the largest.

    >>> import sonde, torch
    >>> sonde.capture(torch.nn.ReLU(), torch.ones(1, 2)).values[0]
    Value(shape=(1, 2), dtype='float32', device='cpu')
    >>> from sonde.graph import Value
    >>> print(Value((1, 2), "float32").or_as(Value((1, 5), "float32")))
    1×2…5
    """

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    most: tuple[int, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        sizes = [
            str(one) if one == other else f"{one}…{other}" for one, other in zip(self.shape, self.most or self.shape, strict=True)
        ]
        return shape_text(sizes)

    def or_as(self, other: Value) -> Value:
        """Return a value that stands for both: the least and the most of each size."""
        most = tuple(map(max, self.most or self.shape, other.most or other.shape))
        shape = tuple(map(min, self.shape, other.shape))
        return Value(shape, self.dtype, self.device, () if most == shape else most)


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    >>> import sonde, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> node = sonde.capture(net, torch.ones(1, 2)).nodes[0]
    >>> node.id, node.kind, node.name
    (0, 'input', 'input')

    Attributes:
        id: its number; a node that came about later has a higher one. Passes keep the numbers.
        kind: see :data:`Kind`.
        name: an operation's public name (``linear``, ``add_``); the last part of a module's or parameter's name; the
            argument that an input was passed as; the leaf of the output.
        type: a module's class.
        path: canonical name of the module, parameter or buffer; of an operation, that of the module in which it ran.
        site: the site it belongs to, written as everywhere in sonde: ``layers.0:output``, ``layers.0.weight:param``.
        call: index of the module's call within this forward, from 0, in the order in which calls begin.
        parent: number of the module call in which it ran; None at the top.
        outputs: the values it gave, as positions in ``graph.values``.
        arguments: the operation's arguments that are no tensors, as text: ``dim=1``.
        flops: multiplications and additions of matrix products and convolutions, a fused pair as two, as
            ``torch.utils.flop_counter`` counts them; of a module, the sum of all inside it.
        parameters: elements of a parameter; of a module, of all parameters in it, each once.
        bytes: memory of the new tensors it made (views and writes in place make none); of a module, the sum of all inside it.
        seconds: time on the host, without the time of recording; of a module, all inside it. Not compared.
        flags: ``view`` (its output shares memory with an input), ``inplace`` (it wrote into an input), ``same`` (it returned an
            input itself), ``read`` (it copies a value to Python), ``unseen`` (found in the autograd graph only), ``raised`` (an
            exception came out of it), ``failed`` (and that exception ended the forward).
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

    >>> import sonde, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> captured = sonde.capture(net, torch.ones(1, 2))
    >>> edge = captured.edges[0]
    >>> captured.nodes[edge.source].name, captured.nodes[edge.target].name, captured.values[edge.value]
    ('input', 'linear', Value(shape=(1, 2), dtype='float32', device='cpu'))

    Attributes:
        source: number of the node that gave the tensor.
        target: number of the node that read it.
        value: the tensor, as a position in ``graph.values``.
        seconds: time of the read since the forward began. Not compared. A graph's edges are in the order of the reads.
    """

    source: int
    target: int
    value: int
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class GraphData:
    """An execution graph: immutable, compared by value, plain data.

    Attributes:
        model: the model's class.
        nodes: by number.
        edges: in the order of the reads.
        values: the tensors.
        error: the exception that ended the forward early, as text; the failing calls have the flag ``failed``.
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
        """The number of module calls that each node lies in; 0 for the model's own call, inputs and outputs."""
        found: dict[int, int] = {}
        for node in self.nodes:  # parents come before their children
            found[node.id] = 0 if node.parent is None else found[node.parent] + 1
        return found

    @property
    def depth(self) -> int:
        """The depth of the deepest node."""
        return max(self.depths.values(), default=0)

    def above(self, node: int) -> Iterator[int]:
        """Yield the module calls around a node, innermost first."""
        parent = self.by_id[node].parent
        while parent is not None:
            yield parent
            parent = self.by_id[parent].parent

    def modules(self) -> tuple[Node, ...]:
        """The module calls, in the order in which they began."""
        return tuple([node for node in self.nodes if node.kind == "module"])

    def __len__(self) -> int:
        return len(self.nodes)

    def describe(self, numbers: Collection[int]) -> str:
        """Return the nodes with these numbers in words, for messages; after the fourth, how many there are more."""
        texts = []
        for number in list(numbers)[:4]:
            node = self.by_id.get(number)
            where = f" at {node.site}" if node is not None and node.site else ""
            texts.append(f"node {number}" + (f" ({node.kind} {node.name!r}{where})" if node is not None else ""))
        return ", ".join(texts) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")

    def check_references(self) -> None:
        """Raise if a node or edge refers to something that is not there, or module calls do not nest.

        Raises:
            GraphError: it does; the message names the node.
        """
        open_calls: list[int] = []
        last = -1
        for node in self.nodes:
            if node.id <= last:
                raise GraphError(f"the numbers of nodes must rise: {node.id} comes after {last}")
            last = node.id
            if node.parent is None:
                open_calls.clear()
            elif node.parent not in self.by_id or self.by_id[node.parent].kind != "module":
                raise GraphError(f"{self.describe([node.id])} lies in node {node.parent}, which is no module call of this graph")
            while open_calls and open_calls[-1] != node.parent:
                open_calls.pop()
            if node.parent is not None and not open_calls:
                raise GraphError(f"{self.describe([node.id])} lies in module call {node.parent}, which had ended before")
            if node.kind == "module":
                open_calls.append(node.id)
            if any(not 0 <= value < len(self.values) for value in node.outputs):
                raise GraphError(f"{self.describe([node.id])} gave values that the graph does not hold")
        for edge in self.edges:
            if edge.source not in self.by_id or edge.target not in self.by_id:
                raise GraphError(f"an edge joins {edge.source} and {edge.target}, which are not both nodes of this graph")
            if not 0 <= edge.value < len(self.values):
                raise GraphError(f"an edge carries value {edge.value}, which the graph does not hold")

    # Files

    def to_data(self) -> dict[str, Any]:
        """Return the graph as dicts, lists, texts and numbers, with the version of this form; a run keeps it so."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "model": self.model,
            "error": self.error,
            "values": [
                [list(value.shape), value.dtype, value.device, *([list(value.most)] if value.most else [])] for value in self.values
            ],
            "nodes": [_node_to_json(node) for node in self.nodes],
            "edges": [[edge.source, edge.target, edge.value, round(edge.seconds, 7)] for edge in self.edges],
        }

    def to_json(self) -> str:
        """Return the graph as JSON text, in ASCII, with a checksum. No pickle."""
        return json_text(self.to_data(), indent=None)

    @classmethod
    def from_data(cls, held: Any) -> Self:
        """Return the graph that ``to_data`` gave. Every type, range and reference is checked first.

        Raises:
            StoreError: *held* is no graph, is damaged, or has another version; the message names the field.
        """
        if not isinstance(held, Mapping) or "format" not in held or "version" not in held:
            raise StoreError("this is no graph that sonde has written: it has no format and version")
        if unknown := [name for name in held if name not in (*_MEMBERS, "checksum")]:
            raise StoreError(f"this is no graph that sonde has written: it has a member {unknown[0]!r:.60}, which no graph has")
        if held["format"] != _FORMAT or held["version"] != _VERSION:
            raise StoreError(
                f"this is {held['format']!r:.40} of version {held['version']!r:.40}; "
                f"this sonde reads {_FORMAT!r} of version {_VERSION}"
            )
        try:
            graph = cls(**_GRAPH(held, ""))
            graph.check_references()
        except (GraphError, StoreError) as error:
            raise StoreError(f"this is no graph that sonde has written: {error}") from error
        return graph

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the graph that ``to_json`` wrote.

        Raises:
            StoreError: see :meth:`from_data`.
        """
        return cls._parsed(text.encode("utf-8", "replace"), "this text", ("",))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the graph in a JSON file.

        Raises:
            StoreError: there is no such file, or see :meth:`from_data`.
        """
        file = absolute_path(path)
        try:
            return cls._parsed(read_bytes(file), str(file), ("", file.name))
        except FileNotFoundError as error:
            raise StoreError(f"{str(file)!r} cannot be read: {error.strerror}") from error

    @classmethod
    def _parsed(cls, written: bytes, shown: str, names: tuple[str, ...]) -> Self:
        data, fits = parse_json(written, shown, names)
        if fits is False:
            raise StoreError(f"{shown} is damaged or was changed after it was written: its checksum does not fit")
        return cls.from_data(data)


_PLAIN = Node(0, "module", "")
_OPTIONAL = tuple([item.name for item in fields(Node) if item.name not in ("id", "kind", "name")])


def _node_to_json(node: Node) -> dict[str, Any]:
    held: dict[str, Any] = {"id": node.id, "kind": node.kind, "name": node.name}
    for name in _OPTIONAL:
        value = getattr(node, name)
        if value != getattr(_PLAIN, name):
            held[name] = round(value, 7) if name == "seconds" else value
    return held


_NODE: Mapping[str, Form] = {
    **dict.fromkeys(("name", "type", "path", "site", "arguments"), form.text),
    **dict.fromkeys(("id", "call", "parameters", "bytes"), form.count),
    "flops": form.whole(most=10**30),
    "kind": form.one_of(*KINDS),
    "parent": form.optional(form.count),
    "outputs": form.listed(form.count),
    "seconds": form.number,
    "flags": form.listed(form.text),
    "repeat": form.whole(1),
}
_REQUIRED = form.members(**{name: _NODE[name] for name in ("id", "kind", "name")})
_EDGE = form.row(source=form.count, target=form.count, value=form.count, seconds=form.number)
_TENSOR: Mapping[str, Form] = {"shape": form.listed(form.count), "dtype": form.text, "device": form.text}
_VALUE, _RANGE = form.row(**_TENSOR), form.row(**_TENSOR, most=form.listed(form.count))


def _value(held: Any, where: str) -> Value:
    value = Value(*(_RANGE if isinstance(held, list | tuple) and len(held) == 4 else _VALUE)(held, where))
    if value.most and (len(value.most) != len(value.shape) or any(map(gt, value.shape, value.most))):
        raise StoreError(f"{where}.most holds no largest sizes for the least sizes {value.shape}")
    return value


def _node(held: Any, where: str) -> Node:
    _REQUIRED(held, where)
    for name in held:
        if name not in _NODE:
            raise StoreError(f"{where} has a field {name!r:.40}, which no node has")
    return Node(**{name: _NODE[name](value, f"{where}.{name}") for name, value in held.items()})


_GRAPH = form.members(
    model=form.text,
    nodes=form.listed(_node),
    edges=form.listed(lambda held, where: Edge(*_EDGE(held, where))),
    values=form.listed(_value),
    error=form.text,
)
