"""``Graph``: the execution graph as plain data, with passes, pictures and files as methods."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sonde.answer import in_frame
from sonde.errors import MissingExtraError
from sonde.paths import absolute_path
from sonde.run import Node, PlainGraph
from sonde.view import Series, drawn
from sonde.view import save as save_graph
from sonde.words import large_text

if TYPE_CHECKING:
    import networkx


class Graph(PlainGraph):
    """One forward of a model: module calls, operations, tensors and edges; see :func:`sonde.capture`.

    >>> import sonde, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> captured = sonde.capture(net, torch.ones(1, 2))
    >>> [node.site for node in captured.nodes if node.kind == "module"]
    ['(root):output', '0:output', '1:output']
    >>> small = captured.collapse(depth=1).hide(parameters=True)
    >>> [node.name for node in small.nodes]
    ['input', 'Sequential', '0', '1', 'output']
    >>> small.check()
    >>> "digraph" in small.to_dot(), "<svg" in small.to_html() or "<script" in small.to_html()
    (True, True)

    A graph is immutable: equal graphs compare equal (times apart), and every pass returns a new graph. ``Graph.load`` reads an
    equal graph back from ``save("graph.json")``. A notebook shows a graph as a page.
    """

    @classmethod
    def of(cls, plain: PlainGraph | Mapping[str, Any]) -> Self:
        """Return the same graph with these methods; ``open_run(path).graph`` has no pictures.

        >>> import sonde, torch
        >>> from sonde import graph
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> captured = sonde.capture(net, torch.ones(1, 2))
        >>> graph.Graph.of(captured) == captured
        True

        Raises:
            StoreError: *plain* is no graph.
        """
        if not isinstance(plain, PlainGraph):
            return cls.from_data(plain)
        return cls(plain.model, plain.nodes, plain.edges, plain.values, plain.error)

    # Pictures and files

    def to_dot(self, depth: int | None = None) -> str:
        """Return Graphviz source: modules as clusters, tensors with their shapes. The text is the same in every run.

        Args:
            depth: modules are open down to here; 0 draws the model as one box, None opens all.

        Raises:
            ArgumentError: *depth* is no number from 0.
        """
        return drawn(self, "dot", depth).decode()

    def to_html(self, depth: int | None = None, *, values: Series | None = None, title: str | None = None) -> str:
        """Return a self-contained HTML page: no file beside it, no network.

        Args:
            depth: modules are open down to here at first, and layers, which hold operations only, at the depth of the graph; the
                default opens as many as can be read.
            values: numbers over steps that colour the nodes, ``{"rms": {"layers.0:output": [(step, value), ...]}}``, or, instead
                of pairs, the result of ``run.series(site, "rms")``. A site is that of a module, with any port and leaf, or of a
                parameter; a path alone is enough.
            title: the page's title; the default is the model's class.

        Raises:
            ArgumentError: *depth* is no number from 0, or *values* cannot be read.
            UnknownSiteError: *values* names sites, and none of them is in this graph.
            MissingExtraError: the package easydot, whose layout engine the page carries, is not installed.
        """
        return drawn(self, "html", depth, values=values, title=title).decode()

    def save(self, path: str | os.PathLike[str], depth: int | None = None, *, values: Series | None = None) -> Path:
        """Write the graph to a file: as data (``.json``), a page (``.html``), Graphviz source (``.dot``, ``.gv``), or a picture
        (``.svg`` without any program; ``.png`` and ``.pdf`` where a program for them is installed). Return the file's path.

        >>> import sonde, tempfile, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sonde.capture(net, torch.ones(1, 2)).save(f"{folder}/net.dot", depth=1).name
        'net.dot'

        Missing parent folders are made, and an existing file is replaced.

        Args:
            path: of the file; its ending chooses the format.
            depth: modules are open down to here; data (``.json``) is written whole by default.
            values: see :meth:`to_html`; for pages only.

        Raises:
            ArgumentError: the ending is unknown, or *values* is given for another format than a page.
            MissingExtraError: the program or package for this format is not installed; the message names it.
        """
        return save_graph(self, absolute_path(path), depth, values=values)

    def to_networkx(self) -> networkx.MultiDiGraph[int]:
        """Return a networkx ``MultiDiGraph``; fields of nodes and edges, shape and dtype are attributes.

        >>> import sonde, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> sorted(sonde.capture(net, torch.ones(1, 2)).to_networkx().nodes)[:3]
        [0, 1, 2]

        Raises:
            MissingExtraError: networkx is not installed.
        """
        made = MissingExtraError.import_or_raise("networkx", "to_networkx", "graph").MultiDiGraph(
            model=self.model, error=self.error
        )
        for node in self.nodes:
            made.add_node(node.id, **{name: getattr(node, name) for name in Node.__dataclass_fields__ if name != "id"})
        for number, edge in enumerate(self.edges):
            value = self.values[edge.value]
            made.add_edge(
                edge.source, edge.target, key=number, order=number, seconds=edge.seconds, shape=value.shape, dtype=value.dtype
            )
        digraph: networkx.MultiDiGraph[int] = made
        return digraph

    def __repr__(self) -> str:
        calls, operations = len(self.modules()), sum(node.kind == "operation" for node in self.nodes)
        parts = [f"{calls} module calls", f"{operations} operations", f"{len(self.edges)} edges"]
        flops = sum(node.flops for node in self.children.get(None, ()))
        if flops:
            parts.append(f"{large_text(flops)} FLOP" if flops < 999.5 else f"{large_text(flops)}FLOP")
        if self.error:
            parts.append(f"ended by {self.error.splitlines()[0][:60]}")
        return f"Graph of {self.model}: {', '.join(parts)}"

    def _repr_html_(self) -> str | None:
        try:
            return in_frame(self.to_html(), self.model, 560)
        except MissingExtraError:
            return None
