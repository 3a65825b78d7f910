"""``record``, ``make_dot``, ``render_network`` and renderers of torchrecorder: from a model to a picture in one call."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sonde.engine import as_arguments, check_model, set_apart, walk
from sonde.errors import ArgumentError, MissingExtraError
from sonde.escape import printable
from sonde.graph.recorder import BaseNode, LayerNode, OpNode, ParamNode, Recorder, TensorNode
from sonde.paths import absolute_path
from sonde.view import render

if TYPE_CHECKING:
    from graphviz import Digraph

Shapes = tuple[int, ...] | Sequence[tuple[int, ...]]


def record(net: nn.Module, name: str, input_shapes: Shapes | None, input_data: Any = None) -> Recorder:
    """Run *net* once and return the recorder that has recorded it. A copy of the model runs: the model stays as it is.

    >>> import torch
    >>> from sonde import graph
    >>> recorder = graph.record(torch.nn.Linear(2, 1), "net", (1, 2))
    >>> [node.name for node in recorder.nodes.values()]
    ['ContextDummy', 'Input', 'net', 'weight', 'bias', 'linear', 'Output']

    Args:
        net: the model; its device and its mode are left alone.
        name: its name in pictures.
        input_shapes: the shape of its input, or a list of shapes; the inputs are normal random numbers.
        input_data: used instead of random inputs: a tensor, a tuple or list of arguments, or a dict of keyword arguments.

    Raises:
        ModelError: *net* is no module.
        ArgumentError: there are neither shapes nor data, or they cannot be read.
    """
    check_model(net)
    recorder = Recorder()
    with contextlib.ExitStack() as stack:
        apart = stack.enter_context(set_apart(net, (input_data,)))
        args, kwargs = _inputs(net, input_shapes, *apart.args)  # inside, since the random state is restored
        recorder.register_hooks(apart.model, name=name)
        stack.callback(recorder.remove_hooks)
        inputs: list[Tensor] = list({id(tensor): tensor for _, tensor in walk((args, kwargs))}.values())
        for tensor, text in zip(inputs, _numbered("Input", len(inputs)), strict=True):
            if not isinstance(tensor, nn.Parameter):
                recorder.add_node(tensor, name=text)
        recorder._run(apart.model, args, kwargs)
        for node in recorder.nodes.values():
            node.fn = apart.original(node.fn)
    _name_outputs(recorder)
    return recorder


def _inputs(net: nn.Module, shapes: Shapes | None, data: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments to call *net* with."""
    if data is not None:
        return as_arguments(data)
    if shapes is None or not isinstance(shapes, tuple | list):
        raise ArgumentError(f"input_shapes={shapes!r}: give the shape of the input, a list of shapes, or input_data=")
    each: Sequence[Any] = [shapes] if all(isinstance(size, int) for size in shapes) else shapes
    if not all(isinstance(shape, tuple | list) and all(isinstance(size, int) and size >= 0 for size in shape) for shape in each):
        raise ArgumentError(f"input_shapes={shapes!r}: a shape is a tuple of sizes, as (1, 3, 32, 32)")
    like = next(
        (parameter for parameter in net.parameters() if parameter.is_floating_point()),
        torch.empty(0, device=torch.get_default_device()),
    )
    return tuple(torch.randn(*shape, dtype=like.dtype, device=like.device) for shape in each), {}


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]


def _name_outputs(recorder: Recorder) -> None:
    """Name the tensors that the model returned Output; from two on with a number."""
    targets = {target for _, target, _ in recorder.edges}
    found = [node for node in recorder.nodes.values() if type(node) is TensorNode and node.parent is None and node.key in targets]
    for node, name in zip(found, _numbered("Output", len(found)), strict=True):
        node.name = name


def make_dot(rec: Recorder, render_depth: int = 256, styler_cls: type[GraphvizStyler] | None = None, **styler_args: str) -> Digraph:
    """Return a picture of the recorded graph as a ``graphviz.Digraph``. The source is the same in every run.

    >>> import torch
    >>> from sonde import graph
    >>> recorder = graph.record(torch.nn.ReLU(), "net", (1, 2))
    >>> dot = graph.make_dot(recorder, render_depth=1)
    >>> type(dot).__name__, dot.source.splitlines()[0]
    ('Digraph', 'digraph {')

    Args:
        rec: a recorder.
        render_depth: nodes deeper than this are drawn as the module they lie in; the model itself is at 0.
        styler_cls: a subclass of :class:`GraphvizStyler` for a look of your own.
        **styler_args: Graphviz attributes of every node; ``fontname`` and ``fontsize`` hold for the graph and its edges too.

    Raises:
        ArgumentError: *render_depth* is below 0.
        MissingExtraError: the package graphviz is not installed.
    """
    fonts = {name: held for name, held in styler_args.items() if name in ("fontname", "fontsize")}
    common: dict[str, str] = {"compound": "true", "ranksep": "0.5", "fontsize": "12"}
    dot = _graphviz().Digraph(graph_attr=common | fonts, edge_attr=fonts)
    drawn: Digraph = GraphvizRenderer(rec, render_depth, styler_cls, **styler_args)(dot)
    return drawn


def _graphviz() -> Any:
    return MissingExtraError.import_or_raise("graphviz", "make_dot", "graph")


def _label(text: str) -> str:
    """Return *text* as a label that shows it: no HTML, no escapes, no control characters."""
    escaped: str = _graphviz().escape(printable(text))
    return escaped


def render_network(
    net: nn.Module,
    name: str,
    input_shapes: Shapes | None,
    directory: str | os.PathLike[str],
    filename: str | None = None,
    fmt: str = "svg",
    input_data: Any = None,
    render_depth: int = 1,
    styler_cls: type[GraphvizStyler] | None = None,
    **styler_args: str,
) -> Path:
    """Run *net* once, draw it, write the picture to a file, and return the file's path.

    >>> import tempfile, torch
    >>> from sonde import graph
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     str(graph.render_network(torch.nn.ReLU(), "net", (1, 2), folder, fmt="svg")).endswith(".svg")
    True

    Args:
        net, name, input_shapes, input_data: see :func:`record`.
        directory: the folder of the file; it is made if it does not exist.
        filename: without ending; the default is ``{name}-{render_depth}``.
        fmt: ``svg`` (no program needed), ``gv`` or ``dot`` for the source; ``png``, ``pdf`` and others need Graphviz's program.
        render_depth, styler_cls, styler_args: see :func:`make_dot`.

    Raises:
        MissingExtraError: the program or package for this format is not installed; the message names it.
    """
    dot = make_dot(record(net, name, input_shapes, input_data), render_depth, styler_cls, **styler_args)
    dot.attr(label=_label(f"{name} at depth = {render_depth}"))
    written = render(dot.source, fmt)
    folder = absolute_path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{filename or f'{name}-{render_depth}'}.{fmt}"
    path.write_bytes(written)
    return path


class BaseRenderer(ABC):
    """Select the nodes and edges of a recorder that are shown at a depth, and pass each to a method of a subclass.

    >>> import torch
    >>> from sonde import graph
    >>> class Names(graph.BaseRenderer):
    ...     def render_node(self, dest, node):
    ...         dest.append(node.name)
    ...     def render_edge(self, dest, fnode, tnode):
    ...         dest.append(f"{fnode.name} -> {tnode.name}")
    >>> names = []
    >>> recorder = graph.record(torch.nn.ReLU(), "net", (1, 2))
    >>> Names(recorder, render_depth=1)(names)
    ['Input', 'net', 'relu', 'Output', 'Input -> relu', 'relu -> Output']
    >>> names
    ['Input', 'net', 'relu', 'Output', 'Input -> relu', 'relu -> Output']

    Edges of deeper nodes are moved to the module call around them that is shown. Edges inside one such call are left out, and
    equal edges are drawn once.

    A subclass without :meth:`render_recursive_node` is flat: :meth:`render_node` is called for each node that is shown. One
    with it is nested: :meth:`render_node` is called for the nodes at the top, and calls :meth:`render_recursive_node` itself.

    Args:
        rec: the recorder.
        render_depth: nodes deeper than this are not shown.

    Attributes:
        processed: the nodes that are shown, each with the nodes that its edges lead to.

    Raises:
        ArgumentError: *render_depth* is below 0.
    """

    def __init__(self, rec: Recorder, render_depth: int = 256) -> None:
        if type(render_depth) is not int or render_depth < 0:
            raise ArgumentError(
                f"render_depth={render_depth!r}: give the depth of the deepest nodes to show, 0 for the model alone"
            )
        self.rec = rec
        self.render_depth = render_depth
        self.processed: OrderedDict[BaseNode, list[BaseNode]] = OrderedDict()

    @abstractmethod
    def render_node(self, dest: Any, node: BaseNode) -> None:
        """Put *node* into *dest*."""

    def render_recursive_node(self, dest: Any, node: LayerNode) -> None:
        """Put *node* and the nodes that lie in it into *dest*; a flat renderer does not define this.

        >>> import torch
        >>> from sonde import graph
        >>> class Nested(graph.BaseRenderer):
        ...     def render_node(self, dest, node):
        ...         dest.append(node.name)
        ...     def render_recursive_node(self, dest, node):
        ...         dest.append([node.name])
        ...     def render_edge(self, dest, fnode, tnode):
        ...         pass
        >>> Nested(graph.record(torch.nn.Sequential(torch.nn.ReLU()), "net", (1, 2)), render_depth=1)([])
        ['Input', 'net', 'Output']
        """
        raise NotImplementedError(f"{type(self).__name__} defines no render_recursive_node")

    @abstractmethod
    def render_edge(self, dest: Any, fnode: BaseNode, tnode: BaseNode) -> None:
        """Put an edge into *dest*."""

    def __call__(self, dest: Any) -> Any:
        """Render all nodes into *dest*, then all edges, and return *dest*."""
        self._select()
        edges = list(self.processed.items())  # a nested renderer may remove from processed the nodes that it has rendered
        is_nested = type(self).render_recursive_node is not BaseRenderer.render_recursive_node
        for node, _ in edges:
            if node in self.processed and not (is_nested and node.parent is not None):
                self.render_node(dest, node)
        for node, targets in edges:
            for target in targets:
                self.render_edge(dest, node, target)
        return dest

    def _select(self) -> None:
        nodes = self.rec.nodes
        self.processed = OrderedDict(
            (node, []) for key, node in nodes.items() if key is not None and node.depth <= self.render_depth
        )
        place = {node: position for position, node in enumerate(self.processed)}
        shown = {(self._shown(source), self._shown(target)) for source, target, _ in self.rec.edges}
        for source, target in sorted(shown, key=lambda ends: (place[ends[0]], place[ends[1]])):
            if source is not target:
                self.processed[source].append(target)

    def _shown(self, key: int) -> BaseNode:
        """Return the node that stands for the node with *key*: itself, or the module call around it that is shown."""
        node = self.rec.nodes[key]
        while node.depth > self.render_depth and node.parent is not None:
            node = self.rec.nodes[node.parent]
        return node


class GraphvizStyler:
    """Choose the Graphviz attributes of each node and edge; override the two methods for a look of your own.

    >>> import torch
    >>> from sonde import graph
    >>> class Red(graph.GraphvizStyler):
    ...     def style_node(self, node):
    ...         return super().style_node(node) | {"color": "red"}
    ...     def style_edge(self, fnode, tnode):
    ...         return super().style_edge(fnode, tnode) | {"color": "red"}
    >>> recorder = graph.record(torch.nn.ReLU(), "net", (1, 2))
    >>> "color=red" in graph.make_dot(recorder, styler_cls=Red).source
    True

    Args:
        **styler_args: attributes of every node; ``style``, ``align`` and ``color`` have defaults.

    Attributes:
        styles: the attributes of each kind of node.
    """

    def __init__(self, **styler_args: str) -> None:
        common = {"style": "filled", "align": "left", "color": "black", **styler_args}
        self.styles: dict[type[BaseNode], dict[str, str]] = {
            BaseNode: common,
            TensorNode: {"fillcolor": "lightblue", **common},
            ParamNode: {"fillcolor": "darkolivegreen", **common},
            OpNode: {"fillcolor": "orange", "shape": "box", **common},
            LayerNode: {"fillcolor": "lightgrey", "shape": "box", **common},
        }

    def style_node(self, node: BaseNode) -> dict[str, str]:
        """Return the attributes of *node*, with its label."""
        label = f"{node.name}\n{list(node.fn.shape)}" if isinstance(node, TensorNode) else node.name
        return {**self.styles[type(node)], "label": _label(label)}

    def style_edge(self, fnode: BaseNode, tnode: BaseNode) -> dict[str, str]:
        """Return the attributes of an edge."""
        return {}


class GraphvizRenderer(BaseRenderer):
    """Render into a ``graphviz.Digraph``: a module above the render depth is a cluster, every other node a node.

    >>> import torch
    >>> from sonde import graph
    >>> recorder = graph.record(torch.nn.ReLU(), "net", (1, 2))
    >>> import graphviz
    >>> type(graph.GraphvizRenderer(recorder, render_depth=1)(graphviz.Digraph("net"))).__name__
    'Digraph'

    Args:
        rec: the recorder.
        render_depth: nodes deeper than this are not shown.
        styler_cls: :class:`GraphvizStyler` or a subclass.
        **styler_args: the styler's arguments.
    """

    def __init__(
        self, rec: Recorder, render_depth: int = 256, styler_cls: type[GraphvizStyler] | None = None, **styler_args: str
    ) -> None:
        super().__init__(rec, render_depth)
        self.styler = (styler_cls or GraphvizStyler)(**styler_args)

    def render_node(self, dest: Any, node: BaseNode) -> None:
        if isinstance(node, LayerNode) and node.depth < self.render_depth and node.subnets:
            self.render_recursive_node(dest, node)
        else:
            dest.node(name=str(node.key), **self.styler.style_node(node))

    def render_recursive_node(self, dest: Any, node: LayerNode) -> None:
        inner = _graphviz().Digraph(name=f"cluster_{node.key}", graph_attr={**self.styler.style_node(node), "fillcolor": "white"})
        for key in node.subnets:
            if self.rec.nodes[key] in self.processed:
                self.render_node(inner, self.rec.nodes[key])
        dest.subgraph(inner)

    def render_edge(self, dest: Any, fnode: BaseNode, tnode: BaseNode) -> None:
        dest.edge(str(fnode.key), str(tnode.key), **self.styler.style_edge(fnode, tnode))
