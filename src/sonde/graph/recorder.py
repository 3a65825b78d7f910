"""``graph.Recorder`` of torchrecorder: nodes and edges, read off the graph of a forward."""

from __future__ import annotations

import itertools
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import check_model, class_of, members
from sonde.errors import ArgumentError
from sonde.graph.graph import Graph
from sonde.graph.recording import Recording
from sonde.graph.tensors import described
from sonde.run import Edge, Node, Value


@dataclass(eq=False, repr=False)
class BaseNode:
    """One recorded thing.

    >>> import torch
    >>> from sonde import graph
    >>> recorder = graph.record(torch.nn.Linear(2, 1), "net", (1, 2))
    >>> [(node.key, node.name, node.depth, node.parent) for node in recorder.nodes.values()][:3]
    [(None, 'ContextDummy', -1, None), (1, 'Input', 0, None), (2, 'net', 0, None)]

    Attributes:
        name: the name in a picture.
        fn: the thing itself, see the subclasses. No tensor of the run is held.
        depth: how many modules the node lies in.
        parent: the key, in ``Recorder.nodes``, of the module call that the node lies in; None at the top.
        key: the node's own key.
    """

    name: str = ""
    fn: Any = None
    depth: int = -1
    parent: int | None = None
    key: int | None = None

    def __repr__(self) -> str:
        name = self.name.replace("\n", " ")
        return f"{type(self).__name__}({name!r}, depth={self.depth}, key={self.key}, parent={self.parent})"


class TensorNode(BaseNode):
    """A tensor that was given to a module or returned by one. ``fn`` is a tensor of its shape and dtype without memory.

    >>> import torch
    >>> from sonde import graph
    >>> recorder = graph.record(torch.nn.Linear(2, 1), "net", (1, 2))
    >>> [(node.name, node.fn.shape) for node in recorder.nodes.values() if type(node) is graph.TensorNode]
    [('Input', torch.Size([1, 2])), ('Output', torch.Size([1, 1]))]
    """


class ParamNode(TensorNode):
    """A parameter; ``fn`` is the parameter.

    >>> import torch
    >>> from sonde import graph
    >>> recorder = graph.record(torch.nn.Linear(2, 1), "net", (1, 2))
    >>> [(node.name, node.fn.shape) for node in recorder.nodes.values() if isinstance(node, graph.ParamNode)]
    [('weight', torch.Size([1, 2])), ('bias', torch.Size([1]))]
    """


class OpNode(BaseNode):
    """An operation; ``fn`` is its node in the graph (:class:`sonde.run.graph.data.Node`).

    >>> import torch
    >>> from sonde import graph
    >>> recorder = graph.record(torch.nn.Linear(2, 1), "net", (1, 2))
    >>> [(node.name, node.fn.kind) for node in recorder.nodes.values() if isinstance(node, graph.OpNode)]
    [('linear', 'operation')]
    """


@dataclass(eq=False, repr=False)
class LayerNode(BaseNode):
    """A module call; ``fn`` is the module.

    >>> import torch
    >>> from sonde import graph
    >>> recorder = graph.record(torch.nn.Linear(2, 1), "net", (1, 2))
    >>> [(node.name, node.call, len(node.subnets)) for node in recorder.nodes.values() if type(node) is graph.LayerNode]
    [('net', 0, 3)]

    Attributes:
        subnets: the keys of the nodes directly in the call, in the order in which they came about.
        call: index of the module's call within the forward, from 0.
    """

    subnets: list[int] = field(default_factory=list, init=False)
    call: int = field(default=0, init=False)


class Recorder:
    """The recorder of torchrecorder: register hooks, run the model yourself, remove the hooks, read nodes and edges.

    (``sonde.recorders.Recorder``, of torchfunc, keeps tensors.)

    >>> import sonde.graph, torch
    >>> net, recorder = torch.nn.Linear(4, 3), sonde.graph.Recorder()
    >>> recorder.register_hooks(net)
    >>> _ = net(torch.ones(2, 4))
    >>> recorder.remove_hooks()
    >>> [node.name for node in recorder.nodes.values()]
    ['ContextDummy', 'Tensor', 'Linear', 'weight', 'bias', 'linear', 'Tensor-2']

    The model computes the same as without the recorder, and no tensor of the run is held. Each forward replaces the nodes of
    the forward before; nodes and edges that were added by hand stay.

    Attributes:
        nodes: the nodes by key, a number; the key None is the context in which the model runs.
        edges: ``(from, to, timestamp)``: two keys, and seconds since the first edge.
        fn_types: how many nodes there are of each module class, each operation, of "Tensor" and of "Parameter".
        graph: the same forward as a :class:`Graph`; None before the first.
    """

    def __init__(self) -> None:
        self.nodes: OrderedDict[int | None, BaseNode] = OrderedDict()
        self.edges: set[tuple[int, int, float]] = set()
        self.fn_types: dict[str, int] = {}
        self.graph: Graph | None = None
        self._recording: Recording | None = None
        self._name: str | None = None
        self._within: tuple[int, int | None] = (0, None)
        self._started: float | None = None
        self._added: dict[int, tuple[str, weakref.ref[Any] | None]] = {}  # by hand: what each counts as, and what it is of
        self._joined: set[tuple[int, int, float]] = set()
        self._begin()

    @property
    def fn_set(self) -> set[int | None]:
        """The keys of all nodes."""
        return set(self.nodes)

    def _begin(self) -> None:
        """Remove all nodes and edges but the context and those added by hand."""
        kept = [(key, self.nodes[key]) for key in self._added]
        self.nodes.clear()
        self.nodes[None] = BaseNode("ContextDummy")
        self.nodes.update(kept)
        self.edges.clear()
        self.edges |= self._joined
        self.fn_types.clear()
        for counted, _ in self._added.values():
            self.fn_types[counted] = self.fn_types.get(counted, 0) + 1
        for key, node in kept:
            node.parent = node.parent if node.parent in self._added else None
            if isinstance(node, LayerNode):
                node.subnets = [inner for inner, held in kept if held.parent == key]

    # Hooks

    def register_hooks(self, net: nn.Module, depth: int = 0, parent: int | None = None, name: str | None = None) -> None:
        """Put hooks on *net* and all its modules; forwards of *net* are recorded until :meth:`remove_hooks`.

        Args:
            net: the model.
            depth: the depth of its node.
            parent: the key of the node that it lies in.
            name: its name in pictures; the default is its class.

        Raises:
            ModelError: *net* is no module.
            ArgumentError: hooks are registered already.
        """
        check_model(net)
        if self._recording is not None:
            raise ArgumentError("this recorder has hooks on a model: remove_hooks() first, or use another recorder")
        self._begin()
        self._name = name
        self._within = depth, parent
        keys: dict[str, int] = {}
        for item in members(net):
            below = item.name.count(".") + 1 if item.name else 0
            outer = keys.get(item.name.rpartition(".")[0], parent) if item.name else parent
            keys[item.name] = self._add_layer(item.module, item.name.rpartition(".")[2] or name, depth + below, outer)
        self._recording = Recording(net)
        self._recording.on_end = self._read_graph
        self._recording.attach()

    def remove_hooks(self) -> None:
        """Remove the hooks. The recorded nodes and edges stay. Idempotent."""
        if self._recording is not None:
            self._recording.detach()
            self._recording = None

    def _run(self, net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call *net*, on which the hooks are; also where its class calls none."""
        if self._recording is not None:
            self._recording.call(net, args, kwargs)

    def _read_graph(self) -> None:
        """Replace nodes and edges by those of the forward that has ended."""
        recording = self._recording
        if recording is None or recording.graph is None:
            return
        self.graph = Graph.of(recording.graph)
        self._begin()
        own = {id(held): key for key, (_, of) in self._added.items() if of is not None and (held := of()) is not None}
        if self._within[1] not in self.nodes:
            self._within = self._within[0], None
        inputs = {node: own[tensor] for tensor, node in recording.inputs.items() if tensor in own}
        _Reading(self, self.graph, {item.name: item.module for item in recording.members.values()}, own, inputs).read()

    # Nodes and edges

    def add_node(self, net: Any, depth: int = 0, parent: int | None = None, name: str | None = None) -> int:
        """Add a node for a module, parameter, tensor or operation (anything with ``next_functions``), and return its key.

        >>> import torch
        >>> from sonde import graph
        >>> recorder = graph.Recorder()
        >>> first, second = recorder.add_node(torch.nn.ReLU()), recorder.add_node(torch.nn.Tanh())
        >>> recorder.add_edge(first, second)
        >>> [(source, target) for source, target, _ in recorder.edges] == [(first, second)]
        True

        The node stays through later forwards. A parameter of the model, or a tensor that the model is called with, keeps this
        node in them.

        Args:
            net: the module, parameter, tensor or operation. Modules and parameters are held, tensors and operations are not.
            depth: how many modules the node lies in.
            parent: the key of the node that it lies in.
            name: its name in pictures; for a module in another one, the class is added. The default is the class.

        Raises:
            ArgumentError: *net* is of none of these types, or *parent* is no key.
        """
        if isinstance(net, nn.Module):
            counted, key = class_of(net).__name__, self._add_layer(net, name, depth, parent)
        elif isinstance(net, Tensor):
            is_parameter = isinstance(net, nn.Parameter)
            counted = "Parameter" if is_parameter else "Tensor"
            fn = net if is_parameter else _without_memory(Value(*described(net)))
            key = self._add(ParamNode if is_parameter else TensorNode, name, counted, fn, depth, parent)
        elif hasattr(net, "next_functions"):
            counted = class_of(net).__name__
            key = self._add(OpNode, name, counted, None, depth, parent)
        else:
            raise ArgumentError(f"Cannot create node for {net!r:.80}: it is no module, parameter, tensor or operation")
        self._added[key] = counted, weakref.ref(net) if isinstance(net, Tensor) else None
        return key

    def add_edge(self, _from: int, _to: int) -> None:
        """Add an edge between two nodes, by their keys, with the present time.

        >>> import torch
        >>> from sonde import graph
        >>> recorder = graph.Recorder()
        >>> recorder.add_edge(recorder.add_node(torch.nn.ReLU()), recorder.add_node(torch.nn.Tanh()))
        >>> len(recorder.edges)
        1

        Raises:
            ArgumentError: one of them is no key of a node.
        """
        for key in (_from, _to):
            if self.nodes.get(key) is None or type(key) is not int:
                raise ArgumentError(f"Cannot draw edge involving {(_from, _to)}: {key!r} is no key of a node")
        now = time.perf_counter()
        self._started = now if self._started is None else self._started
        edge = _from, _to, round(now - self._started, 6)
        self.edges.add(edge)
        if _from in self._added and _to in self._added:
            self._joined.add(edge)

    def _add_layer(self, module: nn.Module, name: str | None, depth: int, parent: int | None, call: int = 0) -> int:
        kind = class_of(module).__name__
        again = f" (call {call})" if call else ""
        if name is not None:
            name = f"{name}{again}\n({kind})" if depth > 0 else name + again
        key = self._add(LayerNode, name, kind, module, depth, parent)
        layer = self.nodes[key]
        assert isinstance(layer, LayerNode)
        layer.call = call
        return key

    def _add(self, kind: type[BaseNode], name: str | None, counted: str, fn: Any, depth: int, parent: int | None) -> int:
        """Add a node under the next free key; without *name* it is called *counted*, from the second on with a number."""
        outer = self.nodes.get(parent)
        if outer is None:
            raise ArgumentError(f"parent={parent!r} is no key of a node")
        self.fn_types[counted] = number = self.fn_types.get(counted, 0) + 1
        key = next(free for free in itertools.count(len(self.nodes) - 1) if free not in self.nodes)
        self.nodes[key] = kind(name or (f"{counted}-{number}" if number > 1 else counted), fn, depth, parent, key)
        if isinstance(outer, LayerNode):
            outer.subnets.append(key)
        return key


@dataclass
class _Reading:
    """Turn a graph into nodes and edges of a recorder; tensors that are handed from one module call to another become nodes.

    Attributes:
        recorder: to fill.
        graph: to read.
        modules: by path.
        own: the keys of tensors and parameters that were added by hand, by ``id``.
        keys: the keys of the graph's nodes, by number; at first of the inputs that were added by hand.
        tensors: the keys of nodes for tensors, by the graph's node and value.
        given: the keys of the nodes in ``tensors`` that an edge leads to.
    """

    recorder: Recorder
    graph: Graph
    modules: Mapping[str, nn.Module]
    own: Mapping[int, int]
    keys: dict[int, int]
    tensors: dict[tuple[int, int], int] = field(default_factory=dict)
    given: set[int] = field(default_factory=set)

    def read(self) -> None:
        """Fill the recorder."""
        readers: dict[tuple[int, int], list[Edge]] = {}
        for edge in self.graph.edges:
            readers.setdefault((edge.source, edge.value), []).append(edge)
        for node in self.graph.nodes:
            if node.kind != "output" and node.id not in self.keys:
                self.keys[node.id] = self._add(node)
            if node.kind == "operation":
                self._add_tensors(node, readers)
        start = self.graph.edges[0].seconds if self.graph.edges else 0.0
        for edge in self.graph.edges:
            self._connect(edge, round(edge.seconds - start, 6))

    def _add(self, node: Node) -> int:
        """Add *node* and return its key."""
        recorder = self.recorder
        depth, parent = self._place_in(node.parent)
        if node.kind == "module":
            name = node.path.rpartition(".")[2] or recorder._name
            return recorder._add_layer(self.modules[node.path], name, depth, parent, node.call)
        if node.kind == "parameter":
            module, _, name = node.path.rpartition(".")
            parameter = getattr(self.modules[module], name)
            if id(parameter) in self.own:
                return self.own[id(parameter)]
            return recorder._add(ParamNode, name, "Parameter", parameter, depth, parent)
        if node.kind == "operation":
            return recorder._add(OpNode, None, node.name, node, depth, parent)
        tensor = _without_memory(self.graph.values[node.outputs[0]])
        return recorder._add(TensorNode, None if node.kind == "input" else node.name, "Tensor", tensor, depth, parent)

    def _place_in(self, frame: int | None) -> tuple[int, int | None]:
        """Return depth and parent key of a node that lies directly in the module call *frame*; None is the top."""
        top, parent = self.recorder._within
        return (top, parent) if frame is None else (top + self.graph.depths[frame] + 1, self.keys[frame])

    def _add_tensors(self, node: Node, readers: Mapping[tuple[int, int], list[Edge]]) -> None:
        """Add a node for each tensor that the operation *node* gave to another module call, or to the model's caller."""
        for value in node.outputs:
            frames = [self.graph.by_id[edge.target].parent for edge in readers.get((node.id, value), ())]
            if any(frame != node.parent for frame in frames):
                place = self._place_in(self._around([node.parent, *frames]))
                tensor = _without_memory(self.graph.values[value])
                self.tensors[node.id, value] = self.recorder._add(TensorNode, None, "Tensor", tensor, *place)

    def _around(self, frames: list[int | None]) -> int | None:
        """Return the innermost module call around all of *frames*; None for the top."""
        chains = [[*([] if frame is None else [frame, *self.graph.above(frame)]), None] for frame in frames]
        return next(frame for frame in chains[0] if all(frame in chain for chain in chains))

    def _connect(self, edge: Edge, seconds: float) -> None:
        """Add *edge*, through the node of its tensor if there is one."""
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
            returned = _without_memory(self.graph.values[edge.value])
            end = self.recorder._add(TensorNode, None, "Tensor", returned, *self._place_in(None))
            edges.add((begin, end, seconds))


def _without_memory(value: Value) -> Tensor:
    """Return a tensor of that shape and dtype on the meta device."""
    return torch.empty(value.shape, dtype=getattr(torch, value.dtype), device="meta")
