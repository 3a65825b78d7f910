"""``capture``: run a model once, and give back what ran and what flowed where."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Literal

from torch import nn
from torch.nn.parameter import is_lazy

from sonde.engine import structure
from sonde.engine.selection import Where, check_model
from sonde.engine.torch_api.restore import left_as_it_was, plain_python
from sonde.errors import ArgumentError
from sonde.graph.graph import Graph
from sonde.graph.recording import Recording

__all__ = ["capture"]


def capture(
    model: nn.Module,
    *args: Any,
    operations: bool | Where = True,
    compute: bool = True,
    on_error: Literal["raise", "partial"] = "raise",
    **kwargs: Any,
) -> Graph:
    """Run *model* once and return its execution graph: module calls, the operations in and between them, tensors, edges.

    >>> import sonde.graph, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    >>> graph = sonde.graph.capture(model, torch.ones(2, 4))
    >>> [node.name for node in graph.nodes if node.kind == "operation"]
    ['linear', 'relu']
    >>> graph.values[graph["0"][0].outputs[0]].shape
    (2, 3)

    The graph is what was executed, so that control flow is followed and a module that is called twice is there twice. The
    model is as it was afterwards: parameters, gradients, buffers, flags, random state, and the tensors it was called with. It
    runs in the mode it is in, with or without gradients as the caller has it. A model with lazy modules is copied first.

    A tensor is known by its identity. Where a function returns the very tensor it was given (``Identity``, ``Dropout`` in
    evaluation, ``x.contiguous()``), what reads it later in the same module call is drawn after that function.

    Args:
        model: any module; compiled ones run as plain Python.
        *args: what it is called with; keyword arguments other than those named here are handed on too.
        operations: True for all; a selection (as ``include=`` of ``observe``) for those inside the modules it means and
            what is below them; False for none, so that modules are joined directly.
        compute: False runs on tensors without memory, so that shapes and edges are found but no number. Times are then those of
            Python alone, and a model whose path depends on numbers raises torch's own error.
        on_error: what to do with an exception of the model: ``"raise"`` it, with the graph up to the failing call as its
            attribute ``graph``; or return that ``"partial"`` graph, with the failing calls flagged and ``error`` set.

    Raises:
        ModelError: *model* is no module, or one of TorchScript.
        SelectionError: *operations* cannot be read or selects nothing.
        ArgumentError: *on_error* cannot be used, or the model returned no tensor.
    """
    check_model(model)
    if on_error not in ("raise", "partial"):
        raise ArgumentError(f'on_error={on_error!r}: give "raise" or "partial"')
    if any(is_lazy(held) for held in (*model.parameters(), *model.buffers())):  # its first call would make its parameters
        model = copy.deepcopy(model)
    recording = Recording(model, operations)
    error = _run(recording, model, args, kwargs, compute=compute)
    if recording.graph is None:
        if error is not None:
            raise error  # before the forward began, as in a hook of somebody else
        raise ArgumentError(f"{type(model).__name__} was called, and its forward did not run: nothing is captured")
    graph = Graph.of(recording.graph)
    if error is not None and on_error == "raise":
        with contextlib.suppress(AttributeError):  # of exceptions that take no attributes
            error.graph = graph  # type: ignore[attr-defined]
        failed = next((node for node in reversed(graph.nodes) if "failed" in node.flags and node.kind == "module"), None)
        where = f" in {failed.site}, call {failed.call}" if failed is not None else ""
        error.add_note(f"sonde recorded {len(graph)} nodes up to this{where}: they are in the attribute 'graph' of this exception")
        raise error
    if error is None and on_error == "raise" and not any(node.kind == "output" for node in graph.nodes):
        raise ArgumentError(
            f"{type(model).__name__} returned {recording.returned}, in which there is no tensor: a graph needs one to end in"
        )
    return graph


def _run(
    recording: Recording, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, compute: bool
) -> Exception | None:
    given = [tensor for _, tensor in structure.walk((args, kwargs))]
    with contextlib.ExitStack() as stack:
        stack.enter_context(left_as_it_was(model, given))
        stack.enter_context(plain_python())
        if not compute:
            args, kwargs = _without_memory(stack, model, args, kwargs)
        stack.callback(recording.detach)
        recording.attach()
        try:
            model(*args, **kwargs)
        except Exception as error:
            return error
    return None


def _without_memory(
    stack: contextlib.ExitStack, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as tensors without memory, and the mode entered in which functions compute none."""
    if any(parameter.is_meta for parameter in model.parameters()):
        moved: tuple[tuple[Any, ...], dict[str, Any]] = structure.remap((args, kwargs), lambda tensor: tensor.to("meta"))
        return moved
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
    made: tuple[tuple[Any, ...], dict[str, Any]] = structure.remap((args, kwargs), mode.from_tensor)
    return made
