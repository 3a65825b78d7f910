"""``record``, ``make_dot`` and ``render_network``: a picture of a network in one call (the fourth seed)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sonde.engine import structure
from sonde.engine.selection import check_model
from sonde.engine.torch_api.restore import left_as_it_was, plain_python
from sonde.errors import ArgumentError, MissingExtraError
from sonde.graph.nodes import TensorNode
from sonde.graph.recorder import Recorder
from sonde.graph.rendering import GraphvizRenderer, GraphvizStyler
from sonde.view.graph.save import render

if TYPE_CHECKING:
    from graphviz import Digraph

__all__ = ["make_dot", "record", "render_network"]

Shapes = tuple[int, ...] | Sequence[tuple[int, ...]]


def record(net: nn.Module, name: str, input_shapes: Shapes | None, input_data: Any = None) -> Recorder:
    """Run *net* once and return a recorder that has recorded it. The model is as it was afterwards.

    Args:
        net: the model, on whatever device and in whatever mode it is in.
        name: what it is called in pictures.
        input_shapes: the shape of its input, or a list of shapes; the inputs are normal random numbers.
        input_data: what to call it with instead: a tensor, a tuple or list of arguments, or a dict of keyword arguments.

    Raises:
        ModelError: *net* is no module.
        ArgumentError: there are neither shapes nor data, or they cannot be read.
    """
    check_model(net)
    recorder = Recorder()
    with contextlib.ExitStack() as stack:
        stack.enter_context(left_as_it_was(net, [tensor for _, tensor in structure.walk(input_data)]))
        stack.enter_context(plain_python())
        args, kwargs = _inputs(net, input_shapes, input_data)  # whose random numbers are given back too
        recorder.register_hooks(net, name=name)
        stack.callback(recorder.remove_hooks)
        net(*args, **kwargs)
    _name_ends(recorder)
    return recorder


def _inputs(net: nn.Module, shapes: Shapes | None, data: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if data is not None:
        if isinstance(data, Mapping):
            return (), dict(data)
        return (tuple(data) if isinstance(data, tuple | list) else (data,)), {}
    if shapes is None or not isinstance(shapes, tuple | list):
        raise ArgumentError(f"input_shapes={shapes!r}: give the shape of the input, a list of shapes, or input_data=")
    each: Sequence[Any] = [shapes] if all(isinstance(size, int) for size in shapes) else shapes
    if not all(isinstance(shape, tuple | list) and all(isinstance(size, int) and size >= 0 for size in shape) for shape in each):
        raise ArgumentError(f"input_shapes={shapes!r}: a shape is a tuple of sizes, as (1, 3, 32, 32)")
    like = next((parameter for parameter in net.parameters() if parameter.is_floating_point()), torch.empty(0))
    return tuple(torch.randn(*shape, dtype=like.dtype, device=like.device) for shape in each), {}


def _name_ends(recorder: Recorder) -> None:
    """Call the tensors that come from outside Input, and those that go there Output; from the second on with a number."""
    sources = {source for source, _, _ in recorder.edges}
    top = [node for node in recorder.nodes.values() if type(node) is TensorNode and node.parent is None]
    targets = {target for _, target, _ in recorder.edges}
    for name, nodes in (
        ("Input", [node for node in top if node.key not in targets]),
        ("Output", [node for node in top if node.key in targets and (node.key not in sources or node.depth == 0)]),
    ):
        for number, node in enumerate(nodes, 1):
            node.name = f"{name}-{number}" if len(nodes) > 1 else name


def make_dot(rec: Recorder, render_depth: int = 256, styler_cls: type[GraphvizStyler] | None = None, **styler_args: str) -> Digraph:
    """A picture of what *rec* has recorded, as a ``graphviz.Digraph``. The same source for the same network in every run.

    Args:
        rec: a recorder.
        render_depth: nodes deeper than this are drawn as the module they lie in; the model itself is at 0.
        styler_cls: a subclass of :class:`GraphvizStyler` for a look of your own.
        **styler_args: Graphviz attributes of every node; ``fontname`` and ``fontsize`` hold for the graph and its edges too.

    Raises:
        ArgumentError: *render_depth* is below 0.
        MissingExtraError: the package graphviz is not installed.
    """
    try:
        from graphviz import Digraph
    except ImportError:
        raise MissingExtraError.of("make_dot", "graphviz", "graph") from None
    fonts = {name: held for name, held in styler_args.items() if name in ("fontname", "fontsize")}
    common: dict[str, str] = {"compound": "true", "ranksep": "0.5", "fontsize": "12"}
    dot = Digraph(graph_attr=common | fonts, edge_attr=fonts)
    drawn: Digraph = GraphvizRenderer(rec, render_depth, styler_cls, **styler_args)(dot)
    return drawn


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
    """Run *net* once, draw it, and write the picture to a file, whose path is returned.

    Args:
        net, name, input_shapes, input_data: see :func:`record`.
        directory: where the file goes; it is made if it is not there.
        filename: without ending; the default is ``{name}-{render_depth}``.
        fmt: ``svg`` (no program needed), ``gv`` or ``dot`` for the source, ``png``, ``pdf`` and others where Graphviz's program is.
        render_depth, styler_cls, styler_args: see :func:`make_dot`.

    Raises:
        MissingExtraError: what makes this format is not installed; the message says what does.
    """
    dot = make_dot(record(net, name, input_shapes, input_data), render_depth, styler_cls, **styler_args)
    dot.attr(label=f"{name} at depth = {render_depth}")
    written = render(dot.source, fmt)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{filename or f'{name}-{render_depth}'}.{fmt}"
    path.write_bytes(written)
    return path
