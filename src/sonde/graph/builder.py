"""Build a graph while a forward runs: note which node gave each tensor, through views and writes in place.

Tensors are identified by ``id``, and held by weak references only: a graph keeps no tensor alive. A tensor that is written
in place has a new value from then on. A tensor that shares its memory is then read from the write as well as from the node
that made it, if the bytes of the two overlap.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from sonde.engine import autograd_state
from sonde.graph.tensors import Span, described, span_of, storage_of, write_covers
from sonde.run import Edge, Kind, Node, PlainGraph, Value
from sonde.site import Site

Read = tuple[int, int]
"""Number of the node that gave a tensor, and number of the value."""

_BEFORE_ALL = -1


@dataclass(slots=True, eq=False)
class Draft:
    """A node under construction: the fields of :class:`~sonde.run.graph.data.Node`, and whether its module call has ended."""

    id: int
    kind: Kind
    name: str
    parent: Draft | None
    type: str = ""
    path: str = ""
    site: str = ""
    call: int = 0
    outputs: list[int] = field(default_factory=list)
    arguments: str = ""
    flops: int = 0
    parameters: int = 0
    bytes: int = 0
    seconds: float = 0.0
    flags: set[str] = field(default_factory=set)
    ended: bool = False

    def finish(self) -> Node:
        """Return the node as plain data."""
        return Node(  # positions, in the order of its fields
            self.id,
            self.kind,
            self.name,
            self.type,
            self.path,
            self.site,
            self.call,
            None if self.parent is None else self.parent.id,
            tuple(dict.fromkeys(self.outputs)),
            self.arguments,
            self.flops,
            self.parameters,
            self.bytes,
            self.seconds,
            tuple(sorted(self.flags)),
        )


@dataclass(slots=True)
class _Giver:
    """The node that gave a tensor.

    A node that returned a tensor unchanged counts as its giver while the module call around the node runs; afterwards the
    giver before it counts again. (A residual connection around a block that begins with ``x.contiguous()`` begins before
    the block.)
    """

    tensor: weakref.ref[Tensor]
    node: Draft
    value: int
    since: int  # writes by later nodes into the same memory change the tensor
    within: Draft | None = None
    before: _Giver | None = None


class _Write(NamedTuple):
    node: Draft
    value: int
    span: Span


class _Writes(NamedTuple):
    """The writes into one storage. The reference keeps the storage's identity from being used again, not its memory."""

    storage: StorageWeakRef
    writes: list[_Write]


class Builder:
    """Nodes, edges and values so far, and the node that gave each living tensor.

    Args:
        owned: kind, name and tensor of each parameter and buffer of the model.

    Attributes:
        nodes: in the order in which they were added.
        running: the module calls that have begun and not ended, innermost last, with their modules.
        overhead: seconds that recording itself has taken; not part of any node's time.
    """

    def __init__(self, owned: Iterable[tuple[Kind, str, Tensor]]) -> None:
        self.nodes: list[Draft] = []
        self.running: list[tuple[nn.Module, Draft]] = []
        self.overhead = 0.0
        self._began = time.perf_counter()
        self._edges: dict[tuple[int, int, int], float] = {}
        self._values: list[Value] = []
        self._known: dict[int, _Giver] = {}
        self._by_function: dict[tuple[int, int], Read] = {}
        self._written: dict[int, _Writes] = {}
        self._owned = {id(tensor): (kind, name, tensor) for kind, name, tensor in owned}
        self._sources: dict[tuple[int, int], _Giver] = {}

    # Nodes

    def add(self, kind: Kind, name: str, parent: Draft | None) -> Draft:
        """Add a node and return it."""
        node = Draft(len(self.nodes), kind, name, parent)
        self.nodes.append(node)
        return node

    @property
    def scope(self) -> Draft | None:
        """The innermost module call that runs; None outside all."""
        return self.running[-1][1] if self.running else None

    # What nodes give and read

    def give(self, node: Draft, tensor: Tensor) -> int:
        """Note that *node* has made *tensor*: later reads of the tensor read from this node. Return the value's number."""
        value = self._value(tensor)
        node.outputs.append(value)
        self._known[id(tensor)] = _Giver(weakref.ref(tensor), node, value, node.id)
        function = tensor.grad_fn
        if function is not None:
            self._by_function[autograd_state.sequence_of_node(function), tensor.output_nr] = node.id, value
        return value

    def hand_on(self, node: Draft, tensor: Tensor, within: Draft | None) -> None:
        """Note that *node* returned its argument *tensor* unchanged; *node* counts as giver while the call *within* runs."""
        before = self._lookup(tensor) or self._source(tensor)
        node.outputs.append(before.value)
        self._known[id(tensor)] = _Giver(weakref.ref(tensor), node, before.value, node.id, within, before)

    def follow(self, tensor: Tensor, other: Tensor) -> None:
        """Note that *tensor* is what *other* is, where a node gave *other*."""
        known = self._lookup(other)
        if known is not None:
            self._known[id(tensor)] = replace(known, tensor=weakref.ref(tensor))

    def own(self, kind: Kind, name: str, tensor: Tensor) -> None:
        """Note that *tensor* is a parameter or buffer now, as of FSDP2, which has gathered it for a call of its module."""
        if tensor.grad_fn is None:  # else an operation has made the tensor
            self._owned.setdefault(id(tensor), (kind, name, tensor))

    def leave(self, call: Draft, returned: Iterable[Tensor]) -> None:
        """End a module call; tensors in *returned* that it returned unchanged now count as given within its caller."""
        call.ended = True
        for tensor in returned:
            known = self._known.get(id(tensor))
            if known is not None and known.tensor() is tensor and known.within is call:
                known.within = call.parent

    def _lookup(self, tensor: Tensor) -> _Giver | None:
        known = self._known.get(id(tensor))
        if known is None or known.tensor() is not tensor:
            return None
        while known is not None and known.within is not None and known.within.ended:
            known = known.before
        if (
            known is None or known.since == _BEFORE_ALL
        ):  # a parameter, buffer or constant: each module call has a node of its own for it
            return None
        return known

    def _value(self, tensor: Tensor) -> int:
        self._values.append(Value(*described(tensor)))
        return len(self._values) - 1

    def write(self, node: Draft, tensor: Tensor) -> None:
        """Note that *node* has written into *tensor*, and so into all tensors that share its memory."""
        value = self.give(node, tensor)
        key = storage_of(tensor)
        if key is None:
            return
        span = span_of(tensor)
        known = self._written.get(key)
        if known is None:
            known = self._written[key] = _Writes(StorageWeakRef(tensor.untyped_storage()), [])
        known.writes[:] = [write for write in known.writes if not write_covers(span, write.span)]
        known.writes.append(_Write(node, value, span))

    def read(self, node: Draft, tensor: Tensor, sources: Iterable[Read] | None = None) -> None:
        """Note that *node* reads *tensor*: add an edge from each node whose data is in it (*sources*, where known)."""
        now = time.perf_counter() - self._began
        for source, value in self.sources_of(tensor) if sources is None else sources:
            if source != node.id:
                self._edges.setdefault((source, node.id, value), now)

    def giver_of(self, tensor: Tensor) -> tuple[Draft, int] | None:
        """Return the node that gave *tensor*, and the value's number; None if no node did."""
        known = self._lookup(tensor)
        if known is None and id(tensor) not in self._owned:
            known = self._unseen(tensor)
        return None if known is None else (known.node, known.value)

    def sources_of(self, tensor: Tensor) -> list[Read]:
        """Return the nodes whose data is in *tensor* now, with the values' numbers."""
        known = self._lookup(tensor) or self._source(tensor)
        if not self._written:
            return [(known.node.id, known.value)]
        key = storage_of(tensor)
        written = None if key is None else self._written.get(key)
        if written is None:
            return [(known.node.id, known.value)]
        span = span_of(tensor)
        later = [
            write for write in written.writes if write.node.id > known.since and write.span[0] < span[1] and span[0] < write.span[1]
        ]
        found = [(write.node.id, write.value) for write in later]
        if "view" in known.node.flags or not any(write_covers(write.span, span) for write in later):
            found.insert(0, (known.node.id, known.value))
        return found

    # Tensors that no node has given

    def _source(self, tensor: Tensor) -> _Giver:
        """Return the node for a parameter, buffer or constant in the module call that runs; add one at its first use."""
        owned = self._owned.get(id(tensor))
        scope = self.scope
        kind: Kind
        if owned is not None and owned[2] is tensor:
            kind, path, _ = owned
        elif (unseen := self._unseen(tensor)) is not None:
            return unseen
        else:
            kind, path = "constant", ""
        key = id(tensor), -1 if scope is None else scope.id
        known = self._sources.get(key)
        if known is not None and known.tensor() is tensor:
            return known
        node = self.add(kind, path.rpartition(".")[2] or kind, scope)
        node.path = path
        if path:
            node.site = str(Site(path, "param"))
        elif scope is not None:
            node.path, node.site = scope.path, scope.site
        if kind == "parameter":
            node.parameters = tensor.numel()
        value = self._value(tensor)
        node.outputs.append(value)
        known = self._sources[key] = _Giver(weakref.ref(tensor), node, value, _BEFORE_ALL)
        return known

    def _unseen(self, tensor: Tensor) -> _Giver | None:
        """Add an operation found only in the autograd graph (C++, ``autograd.Function``); None if there is none."""
        if tensor.grad_fn is None:
            return None
        reads: dict[Read, None] = {}
        pending, seen = [tensor.grad_fn], {tensor.grad_fn}
        while pending:
            for before, index in pending.pop().next_functions:
                if before is None or before in seen:
                    continue
                given = self._by_function.get((autograd_state.sequence_of_node(before), index))
                if hasattr(before, "variable"):  # a leaf
                    reads |= dict.fromkeys(self.sources_of(before.variable))
                elif given is not None:
                    reads[given] = None
                else:
                    seen.add(before)
                    pending.append(before)
        if not reads:
            return None
        node = self.add("operation", tensor.grad_fn.name().removesuffix("0").removesuffix("Backward"), self.scope)
        node.flags.add("unseen")
        if node.parent is not None:
            node.path, node.site = node.parent.path, node.parent.site
        self.read(node, tensor, reads)
        self.give(node, tensor)
        return self._known[id(tensor)]

    # The end

    def finish(self, model: str, error: str = "") -> PlainGraph:
        """Return the graph as plain data."""
        for node in reversed(self.nodes):  # children come after their parents
            if node.parent is not None and node.kind in ("operation", "module"):
                node.parent.flops += node.flops
                node.parent.bytes += node.bytes
        return PlainGraph(
            model=model,
            nodes=tuple(node.finish() for node in self.nodes),
            edges=tuple(Edge(*ends, seconds) for ends, seconds in self._edges.items()),
            values=tuple(self._values),
            error=error,
        )
