"""From a recorder to a picture: what every renderer does, and the one for Graphviz with its styler (the fourth seed)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any

from sonde.errors import ArgumentError, MissingExtraError
from sonde.graph.nodes import BaseNode, LayerNode, OpNode, ParamNode, TensorNode
from sonde.graph.recorder import Recorder

__all__ = ["BaseRenderer", "GraphvizRenderer", "GraphvizStyler"]


class BaseRenderer(ABC):
    """Selects the nodes and edges of a recorder that are shown at a depth, and hands each to a method of a subclass.

    Edges of deeper nodes are lifted to the module call around them that is shown; those inside one are left out, and edges that
    are equal then are one.

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
        """Put *node* into *dest*; called for each node at the top, so that what holds others can be put in with them."""

    @abstractmethod
    def render_recursive_node(self, dest: Any, node: LayerNode) -> None:
        """Put *node* and what lies in it into *dest*."""

    @abstractmethod
    def render_edge(self, dest: Any, fnode: BaseNode, tnode: BaseNode) -> None:
        """Put an edge into *dest*."""

    def __call__(self, dest: Any) -> Any:
        """Render everything into *dest*, nodes first, and return it."""
        self._select()
        for node in self.processed:
            if node.parent is None:
                self.render_node(dest, node)
        for node, targets in self.processed.items():
            for target in targets:
                self.render_edge(dest, node, target)
        return dest

    def _select(self) -> None:
        nodes = self.rec.nodes
        self.processed = OrderedDict(
            (node, []) for key, node in nodes.items() if key is not None and node.depth <= self.render_depth
        )
        joined = sorted({(self._shown(source), self._shown(target)) for source, target, _ in self.rec.edges})
        for source, target in joined:
            if source != target:
                self.processed[nodes[source]].append(nodes[target])

    def _shown(self, key: int) -> int:
        """The node that stands for the one with *key*."""
        node = self.rec.nodes[key]
        while node.depth > self.render_depth and node.parent is not None:
            key = node.parent
            node = self.rec.nodes[key]
        return key


class GraphvizStyler:
    """Says how each node and edge looks, as Graphviz attributes; override the two methods for a look of your own.

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
        """The attributes of *node*, its label among them."""
        label = f"{node.name}\n{list(node.fn.shape)}" if isinstance(node, TensorNode) else node.name
        return {**self.styles[type(node)], "label": label}

    def style_edge(self, fnode: BaseNode, tnode: BaseNode) -> dict[str, str]:
        """The attributes of an edge."""
        return {}


class GraphvizRenderer(BaseRenderer):
    """Renders into a ``graphviz.Digraph``: a module above the render depth is a cluster, everything else a node.

    Args:
        rec: the recorder.
        render_depth: nodes deeper than this are not shown.
        styler_cls: :class:`GraphvizStyler` or a subclass.
        **styler_args: what it is made with.
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
        try:
            from graphviz import Digraph
        except ImportError:
            raise MissingExtraError.of("make_dot", "graphviz", "graph") from None
        inner = Digraph(name=f"cluster_{node.key}", graph_attr={**self.styler.style_node(node), "fillcolor": "white"})
        for key in node.subnets:
            if self.rec.nodes[key] in self.processed:
                self.render_node(inner, self.rec.nodes[key])
        dest.subgraph(inner)

    def render_edge(self, dest: Any, fnode: BaseNode, tnode: BaseNode) -> None:
        dest.edge(str(fnode.key), str(tnode.key), **self.styler.style_edge(fnode, tnode))
