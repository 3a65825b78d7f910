"""``capture``: run a model once and return its execution graph."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

from torch import nn

from sonde.checked import checked
from sonde.engine import Where, check_model, remap, set_apart, torch_tensors
from sonde.errors import ArgumentError
from sonde.graph.graph import Graph
from sonde.graph.recording import Recording


@checked("model")
def capture(
    model: nn.Module,
    *args: Any,
    operations: bool | Where = True,
    compute: bool = True,
    on_error: Literal["raise", "partial"] = "raise",
    **kwargs: Any,
) -> Graph:
    """Run *model* once and return its execution graph: module calls, operations, tensors, and the edges between them.

    >>> import sonde.graph, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    >>> graph = sonde.capture(model, torch.ones(2, 4))
    >>> [node.name for node in graph.nodes if node.kind == "operation"]
    ['linear', 'relu']
    >>> graph.values[graph["0"][0].outputs[0]].shape
    (2, 3)

    The graph shows the executed path: a branch that was not taken is not in it, and a module that is called twice is in it
    twice. A copy of the model runs, on copies of the arguments, unseen by other observers: the model, the arguments and the random
    state stay as they are. The model runs in its present mode, with or without gradients as set by the caller.

    A copy has the class of the model: what a forward writes into attributes of the class, or into globals, stays. Two things hold
    for the whole process until the graph is returned: compiled code of other threads runs as plain Python, and at the end the
    random generators go back to where they were, also for threads that drew from them meanwhile.

    Tensors are identified by ``id``. Where a function returns its argument itself (``Identity``, ``Dropout`` in evaluation,
    ``x.contiguous()``), later reads of the tensor in the same module call are drawn after that function.

    Args:
        model: any module; compiled ones run as plain Python.
        *args: the model's arguments; keyword arguments other than those named here are passed to the model, too.
        operations: True records all operations; a selection (as ``include=`` of ``observe``) those inside the selected modules
            and the modules below them; False none, so that modules are joined directly.
        compute: False runs on tensors without memory: shapes and edges are found, no numbers. Times are then those of
            Python alone, and a model whose path depends on numbers raises torch's own error.
        on_error: ``"raise"`` lets an exception of the model through, with the graph up to the failing call as its attribute
            ``graph``; ``"partial"`` returns that graph, with the failing calls flagged and ``error`` set.

    Raises:
        ModelError: *model* is no module, or a TorchScript module.
        SelectionError: *operations* cannot be read or selects nothing.
        ArgumentError: *on_error* is neither of the two, or the model returned no tensor.
    """
    check_model(model)
    if on_error not in ("raise", "partial"):
        raise ArgumentError(f'on_error={on_error!r}: give "raise" or "partial"')
    recording, error = _run(model, args, kwargs, operations, compute=compute)
    if recording.graph is None:
        error = error or recording.error
        if error is not None:
            raise error  # raised before the forward began, as in a user's hook; or by the recording
        raise ArgumentError(f"{type(model).__name__} was called, but its forward did not run: there is no graph")
    graph = Graph.of(recording.graph)
    if error is not None and on_error == "raise":
        with contextlib.suppress(AttributeError):  # the exception takes no attributes
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
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], operations: bool | Where, *, compute: bool
) -> tuple[Recording, Exception | None]:
    """Call a copy of the model; return its recording, and the exception that came out."""
    with contextlib.ExitStack() as stack:
        apart = stack.enter_context(set_apart(model, args, kwargs))
        recording = Recording(apart.model, operations)
        args, kwargs = apart.args, apart.kwargs
        if not compute:
            args, kwargs = _without_memory(stack, apart.model, args, kwargs)
        stack.callback(recording.detach)
        try:
            recording.call(apart.model, args, kwargs)
        except Exception as error:
            return recording, error
    return recording, None


def _without_memory(
    stack: contextlib.ExitStack, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Enter the mode in which functions compute nothing, and return the arguments as tensors without memory."""
    if any(parameter.is_meta for parameter in model.parameters()):
        moved: tuple[tuple[Any, ...], dict[str, Any]] = remap((args, kwargs), lambda tensor: tensor.to("meta"))
        return moved
    mode: Any = stack.enter_context(torch_tensors.fake_tensors())
    made: tuple[tuple[Any, ...], dict[str, Any]] = remap((args, kwargs), mode.from_tensor)
    return made
