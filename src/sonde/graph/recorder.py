"""``Recorder``: hooks, a run of your own, and nodes and edges (the fourth seed)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sonde.engine.selection import check_model, members
from sonde.errors import ArgumentError
from sonde.graph.graph import Graph
from sonde.graph.nodes import BaseNode, LayerNode, OpNode, ParamNode, TensorNode
from sonde.graph.recording import Recording
from sonde.run.graph.data import Edge, Node, PlainGraph, Value

__all__ = ["Recorder"]

AnyNode = TypeVar("AnyNode", bound=BaseNode)


class Recorder:
    """Records how a model is executed: register the hooks, run it yourself, remove them.

    >>> import sonde.graph, torch
    >>> net, recorder = torch.nn.Linear(4, 3), sonde.graph.Recorder()
    >>> recorder.register_hooks(net)
    >>> _ = net(torch.ones(2, 4))
    >>> recorder.remove_hooks()
    >>> [node.name for node in recorder.nodes.values()]
    ['ContextDummy', 'Tensor', 'Linear', 'weight', 'bias', 'linear', 'Tensor-2']

    Nothing that the model computes is changed, and no tensor of the run is held. Each forward of the model is recorded anew, in
    the place of the one before.

    Attributes:
        nodes: the nodes by key, a number; the key None is the context that the model runs in.
        edges: ``(from, to, timestamp)``: keys, and seconds since the first edge.
        fn_types: how many there are of each class of module, each operation, of "Tensor" and "Parameter".
        graph: the same forward as a :class:`Graph`; None before the first.
    """

    def __init__(self) -> None:
        self.nodes: OrderedDict[int | None, BaseNode] = OrderedDict()
        self.edges: set[tuple[int, int, float]] = set()
        self.fn_types: dict[str, int] = {}
        self.graph: Graph | None = None
        self._recording: Recording | None = None
        self._name: str | None = None
        self._start_time: float | None = None
        self._begin()

    @property
    def fn_set(self) -> set[int | None]:
        """The keys of all nodes."""
        return set(self.nodes)

    def _begin(self) -> None:
        self.nodes.clear()
        self.edges.clear()
        self.fn_types.clear()
        self._start_time = None
        self.nodes[None] = BaseNode("ContextDummy")

    # Hooks

    def register_hooks(self, net: nn.Module, depth: int = 0, parent: int | None = None, name: str | None = None) -> None:
        """Put hooks on *net* and all its modules; its forwards are recorded until :meth:`remove_hooks`.

        Args:
            net: the model.
            depth: the depth of its node.
            parent: the key of the node that it lies in.
            name: what it is called in pictures; the default is its class.

        Raises:
            ModelError: *net* is no module.
            ArgumentError: hooks are registered already.
        """
        check_model(net)
        if self._recording is not None:
            raise ArgumentError("this recorder has hooks on a model: remove_hooks() first, or use another recorder")
        self._begin()
        self._name = name
        keys: dict[str, int] = {}
        for item in members(net):
            below = item.name.count(".") + 1 if item.name else 0
            outer = keys.get(item.name.rpartition(".")[0], parent) if item.name else parent
            keys[item.name] = self._layer(item.module, item.name, depth + below, outer)
        self._recording = Recording(net)
        self._recording.on_end = self._ended
        self._recording.attach()

    def remove_hooks(self) -> None:
        """Take the hooks out. What was recorded stays."""
        if self._recording is not None:
            self._recording.detach()
            self._recording = None

    def _ended(self) -> None:
        if self._recording is not None and self._recording.graph is not None:
            self.graph = Graph.of(self._recording.graph)
            modules = {item.name: item.module for item in self._recording.members.values()}
            _Reading(self, self.graph, modules).read()

    # Nodes and edges

    def add_node(self, net: Any, depth: int = 0, parent: int | None = None, name: str | None = None) -> int:
        """Add a node for a module, parameter, tensor or operation (anything with ``next_functions``), and return its key.

        Raises:
            ArgumentError: *net* is none of them, or *parent* is no key.
        """
        if isinstance(net, nn.Module):
            return self._layer(net, name or "", depth, parent)
        if isinstance(net, nn.Parameter):
            return self._add(ParamNode, name, "Parameter", net, depth, parent)
        if isinstance(net, Tensor):
            return self._add(TensorNode, name, "Tensor", _stand_in(Value(tuple(net.shape), str(net.dtype)[6:])), depth, parent)
        if hasattr(net, "next_functions"):
            return self._add(OpNode, name, type(net).__name__, None, depth, parent)
        raise ArgumentError(f"Cannot create node for {net!r:.80}: it is no module, parameter, tensor or operation")

    def add_edge(self, _from: int, _to: int) -> None:
        """Add an edge between two nodes, by their keys, with the present time.

        Raises:
            ArgumentError: one of them is no key of a node.
        """
        for key in (_from, _to):
            if self.nodes.get(key) is None or key is None:
                raise ArgumentError(f"Cannot draw edge involving {(_from, _to)}: {key!r} is no key of a node")
        now = time.perf_counter()
        self._start_time = now if self._start_time is None else self._start_time
        self.edges.add((_from, _to, round(now - self._start_time, 6)))

    def _layer(self, module: nn.Module, path: str, depth: int, parent: int | None, call: int = 0) -> int:
        kind = type(module).__name__
        again = f" (call {call})" if call else ""
        name = f"{path.rpartition('.')[2]}{again}\n({kind})" if depth > 0 and path else (self._name or None)
        key = self._add(LayerNode, name + again if name and not path else name, kind, module, depth, parent)
        layer = self.nodes[key]
        assert isinstance(layer, LayerNode)
        layer.call = call
        return key

    def _add(self, kind: Callable[..., BaseNode], name: str | None, counted: str, fn: Any, depth: int, parent: int | None) -> int:
        """A node under the next free key; without a *name* it is called as it is *counted*, with a number from the second on."""
        outer = self.nodes.get(parent)
        if outer is None:
            raise ArgumentError(f"parent={parent!r} is no key of a node")
        self.fn_types[counted] = number = self.fn_types.get(counted, 0) + 1
        key = len(self.nodes) - 1  # beside the context
        self.nodes[key] = kind(name or (f"{counted}-{number}" if number > 1 else counted), fn, depth, parent, key)
        if isinstance(outer, LayerNode):
            outer.subnets.append(key)
        return key


class _Reading:
    """Turns a graph into the nodes and edges of a recorder: tensors that cross the edge of a module become nodes."""

    def __init__(self, recorder: Recorder, graph: PlainGraph, modules: dict[str, nn.Module]) -> None:
        self.recorder = recorder
        self.graph = graph
        self.modules = modules
        self.keys: dict[int, int] = {}
        self.tensors: dict[tuple[int, int], int] = {}  # of tensors that nodes stand for, by node and value
        self.given: set[int] = set()  # those of them that an edge leads to

    def read(self) -> None:
        """Fill the recorder."""
        recorder, graph = self.recorder, self.graph
        recorder._begin()
        readers: dict[tuple[int, int], list[Edge]] = {}
        for edge in graph.edges:
            readers.setdefault((edge.source, edge.value), []).append(edge)
        for node in graph.nodes:
            if node.kind != "output":
                self._give(node, readers)
        start = graph.edges[0].seconds if graph.edges else 0.0
        for edge in graph.edges:
            self._connect(edge, round(edge.seconds - start, 6))

    def _node(self, node: Node) -> None:
        parent = None if node.parent is None else self.keys[node.parent]
        depth = self.graph.depths[node.id]
        recorder = self.recorder
        if node.kind == "module":
            self.keys[node.id] = recorder._layer(self.modules[node.path], node.path, depth, parent, node.call)
        elif node.kind == "parameter":
            module, _, name = node.path.rpartition(".")
            self.keys[node.id] = recorder._add(ParamNode, name, "Parameter", getattr(self.modules[module], name), depth, parent)
        elif node.kind == "operation":
            self.keys[node.id] = recorder._add(OpNode, None, node.name, node, depth, parent)
        else:
            tensor = _stand_in(self.graph.values[node.outputs[0]])
            called = None if node.kind in ("input", "output") else node.name
            self.keys[node.id] = recorder._add(TensorNode, called, "Tensor", tensor, depth, parent)

    def _give(self, node: Node, readers: dict[tuple[int, int], list[Edge]]) -> None:
        """Add *node*, and a node for each tensor that it gave to another module call or to the model's caller."""
        self._node(node)
        if node.kind != "operation":
            return
        for value in node.outputs:
            frames = [self.graph.by_id[edge.target].parent for edge in readers.get((node.id, value), ())]
            if any(frame != node.parent for frame in frames):
                frame = self._around([node.parent, *frames])
                depth = 0 if frame is None else self.graph.depths[frame] + 1
                parent = None if frame is None else self.keys[frame]
                tensor = _stand_in(self.graph.values[value])
                self.tensors[node.id, value] = self.recorder._add(TensorNode, None, "Tensor", tensor, depth, parent)

    def _around(self, frames: list[int | None]) -> int | None:
        """The innermost module call around all of *frames*."""
        common: list[int | None] | None = None
        for frame in frames:
            chain: list[int | None] = [None] if frame is None else [frame, *self.graph.above(frame), None]
            common = chain if common is None else [held for held in common if held in chain]
        return common[0] if common else None

    def _connect(self, edge: Edge, seconds: float) -> None:
        source, target = self.graph.by_id[edge.source], self.graph.by_id[edge.target]
        tensor = self.tensors.get((edge.source, edge.value))
        begin = self.keys[edge.source]
        edges = self.recorder.edges
        if tensor is not None:
            if tensor not in self.given:
                self.given.add(tensor)
                edges.add((begin, tensor, seconds))
            begin = tensor
        if target.kind != "output":
            edges.add((begin, self.keys[target.id], seconds))
        elif tensor is None and source.kind != "operation":
            end = self.recorder._add(TensorNode, None, "Tensor", _stand_in(self.graph.values[edge.value]), 0, None)
            edges.add((begin, end, seconds))


def _stand_in(value: Value) -> Tensor:
    """A tensor of that shape and dtype, without memory."""
    return torch.empty(value.shape, dtype=getattr(torch, value.dtype), device="meta")
