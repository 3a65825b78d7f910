"""The execution graph that people hold: plain data, with its passes, pictures and files as methods."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sonde.errors import MissingExtraError
from sonde.run.graph import check, passes
from sonde.run.graph.data import Node, PlainGraph, count_text
from sonde.view.graph import dot, page, save
from sonde.view.graph.series import Series

if TYPE_CHECKING:
    import networkx

__all__ = ["Graph"]


class Graph(PlainGraph):
    """What ran in one forward of a model, and what flowed where; see :func:`sonde.graph.capture`.

    It is immutable and plain: equal graphs compare equal (times apart), every method that changes something returns a new
    graph, and ``save("graph.json")`` and ``Graph.load`` give an equal one back. In a notebook it shows itself as a page.
    """

    @classmethod
    def of(cls, plain: PlainGraph | Mapping[str, Any]) -> Self:
        """The same graph, with these methods: what ``open_run(path).graph`` gives is plain.

        Raises:
            StoreError: *plain* is no graph.
        """
        if not isinstance(plain, PlainGraph):
            return cls.from_data(plain)
        return cls(plain.model, plain.nodes, plain.edges, plain.values, plain.error)

    # Passes

    def collapse(self, depth: int | None = None, at: str | Iterable[str] = ()) -> Self:
        """Module calls as single nodes: those at *depth* (the model itself is at 0), and those *at* the sites named.

        Raises:
            ArgumentError: *depth* is no number from 0.
            UnknownSiteError: a site is none of this graph's modules.
        """
        return passes.collapse(self, depth, at)

    def hide(self, *, views: bool = False, constants: bool = False, parameters: bool = False, operations: bool = False) -> Self:
        """Without views, constants (and buffers and what is made of them alone), parameters or operations; data still flows
        from what is left to what is left, and a module of which nothing is left becomes a single node.
        """
        return passes.hide(self, views=views, constants=constants, parameters=parameters, operations=operations)

    def fold(self, *, least: int = 2) -> Self:
        """Equal blocks in a row as one node, whose ``repeat`` says how many they are.

        Raises:
            ArgumentError: *least* is below 2.
        """
        return passes.fold(self, least=least)

    def between(self, start: str, end: str) -> Self:
        """What lies on a path from one site to another, with the sources that flow into it.

        Raises:
            UnknownSiteError: a site is none of this graph's; the message names the nearest.
            ArgumentError: no data flows from *start* to *end*.
        """
        return passes.between(self, start, end)

    def __getitem__(self, where: str) -> tuple[Node, ...]:
        """The nodes of a module (one for each call), parameter, input or output, by site or path.

        Raises:
            UnknownSiteError: there is none; the message names the nearest.
        """
        return passes.find(self, where)

    # Questions

    def check(self) -> None:
        """Raise if the graph contradicts itself; see :func:`sonde.run.graph.check.check`.

        Raises:
            GraphError: it does, and where.
        """
        check.check(self)

    def unused(self) -> tuple[Node, ...]:
        """The module calls whose result flows into no output of the model."""
        return tuple(self.by_id[number] for number in check.unused(self))

    # Pictures and files

    def to_dot(self, depth: int | None = None) -> str:
        """The graph in Graphviz's language: modules as clusters, tensors with their shapes. The same text in every run.

        Args:
            depth: open modules down to here; 0 is the model as one box, None opens all.

        Raises:
            ArgumentError: *depth* is no number from 0.
        """
        return dot.to_dot(self.collapse(depth))

    def to_html(self, depth: int | None = None, *, values: Series | None = None, title: str | None = None) -> str:
        """One self-contained page: no file beside it, no network.

        Args:
            depth: open modules down to here at first; the default opens as much as can be read.
            values: numbers over steps to colour the nodes by, ``{"rms": {"layers.0:output": [(step, value), ...]}}``, or, in
                place of pairs, what ``run.series(site, "rms")`` returns. Sites are as everywhere in sonde: a module's, with any
                port and leaf, or a parameter's; a path alone will do.
            title: the page's title; the default is the model's class.

        Raises:
            ArgumentError: *depth* is no number from 0, or *values* cannot be read.
            UnknownSiteError: *values* names sites, and none of them is in this graph.
            MissingExtraError: the package easydot, whose layout engine the page carries, is not installed.
        """
        return page.to_html(self, depth, values=values, title=title)

    def save(self, path: str | os.PathLike[str], depth: int | None = None, *, values: Series | None = None) -> Path:
        """Write the graph: as data (``.json``), a page (``.html``), Graphviz source (``.dot``, ``.gv``), or a picture
        (``.svg`` without any other program; ``.png`` and ``.pdf`` where one is found that makes them).

        Missing parent folders are made, and an existing file is replaced.

        Args:
            path: where to; its ending says as what.
            depth: open modules down to here; for data, everything is written unless it is given.
            values: see :meth:`to_html`; for pages only.

        Raises:
            ArgumentError: the ending is unknown, or *values* is given for something else than a page.
            MissingExtraError: what would make it is not installed; the message says what does.
        """
        return save.save(self, Path(path), depth, values=values)

    def to_networkx(self) -> networkx.MultiDiGraph[int]:
        """The graph as a networkx ``MultiDiGraph``: the fields of nodes and edges are attributes, and so are shape and dtype.

        Raises:
            MissingExtraError: networkx is not installed.
        """
        try:
            import networkx
        except ImportError:
            raise MissingExtraError.of("to_networkx", "networkx", "graph") from None
        made: Any = networkx.MultiDiGraph(model=self.model, error=self.error)
        for node in self.nodes:
            made.add_node(node.id, **{name: getattr(node, name) for name in Node.__dataclass_fields__ if name != "id"})
        for number, edge in enumerate(self.edges):
            value = self.values[edge.value]
            made.add_edge(
                edge.source, edge.target, key=number, order=number, seconds=edge.seconds, shape=value.shape, dtype=value.dtype
            )
        return made

    def __repr__(self) -> str:
        calls, operations = len(self.modules()), sum(node.kind == "operation" for node in self.nodes)
        parts = [f"{calls} module calls", f"{operations} operations", f"{len(self.edges)} edges"]
        flops = sum(node.flops for node in self.children.get(None, ()))
        if flops:
            parts.append(f"{count_text(flops)} FLOP" if flops < 999.5 else f"{count_text(flops)}FLOP")
        if self.error:
            parts.append(f"ended by {self.error.splitlines()[0][:60]}")
        return f"Graph of {self.model}: {', '.join(parts)}"

    def _repr_html_(self) -> str | None:
        try:
            return page.in_notebook(self)
        except MissingExtraError:
            return None
