"""Run a model once on a batch and summarise every module: shapes, parameters, numbers of its output and gradient."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef

from sonde.checked import checked
from sonde.engine import (
    Event,
    LayerAxes,
    check_loss,
    check_loss_fn,
    check_model,
    flops,
    gradients_put_aside,
    graph_nodes,
    observe,
    own_loss,
    set_apart,
    version_of,
    versions,
    walk,
)
from sonde.errors import ArgumentError
from sonde.keep import Layer, Tally, first_measurable
from sonde.model_summary.rows import Outcome, Seen, assemble
from sonde.model_summary.table import Shapes, Summary


@checked("model", "loss_fn")
def summary(
    model: nn.Module,
    *batch: Any,
    loss_fn: Callable[[Any], Tensor] | None = None,
    depth: int | None = None,
    on_error: Literal["raise", "partial"] = "raise",
    **kwargs: Any,
) -> Summary:
    """Run *model* once on a batch and list its modules: shapes, parameters, activation scale, gradient size, and words.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    >>> found = sonde.summary(model, torch.ones(2, 4))
    >>> [(row.name, row.output_shapes[0], row.params) for row in found.rows]
    [('', (2, 3), 15), ('0', (2, 3), 15), ('1', (2, 3), 0)]

    A copy of the model runs, on a copy of the batch, unseen by other observers: nothing of the model, its hooks, the batch and the
    random state of torch (the CPU's and the accelerator's), NumPy and Python changes. The model runs in the mode it is in;
    compiled modules run as plain Python. The copy takes as much memory as the model (parameters that would take more than a
    quarter of the memory are shared).

    A copy has the class of the model: what a forward writes into attributes of the class, or into globals, stays. Two things hold
    for the whole process until the summary returns: compiled code of other threads runs as plain Python, and at the end the
    random generators go back to where they were, also for threads that drew from them meanwhile.

    Args:
        model: any module.
        *batch: the positional arguments of the call; keyword arguments other than those named here are handed on too.
        loss_fn: from the model's output to a scalar, which is sent backward for the column of gradients. Without it, the
            output's own ``loss`` (an attribute or a key) is sent backward, if it is a scalar that requires a gradient.
        depth: fold rows deeper than this where the summary is shown; the model itself is at depth 0.
        on_error: what to do with an exception of the model, the loss or the backward pass: ``"raise"`` it, unchanged but
            for a note that holds the table up to the failing call; or return that ``"partial"`` summary, with the
            exception as its ``error`` and the failing module marked.

    Raises:
        ModelError: *model* is no module.
        ArgumentError: *loss_fn*, *depth* or *on_error* cannot be used, or what *loss_fn* returned is no scalar with a
            gradient.
        SelectionError: *model* holds no module that can be observed.
    """
    check_model(model)
    _check_arguments(loss_fn, depth, on_error)
    with set_apart(model, batch, kwargs) as apart:
        model, given = apart.model, [tensor for _, tensor in walk((apart.args, apart.kwargs))]
        watcher = _Watcher(set(_memory_of((*given, *model.parameters(), *model.buffers()))))
        with observe(model, watcher, ports=("input", "output", "grad_output")) as probe:
            before = versions(model)
            outcome = _run(model, apart.args, apart.kwargs, loss_fn, watcher.count_flops)
            outcome.running = [call.name for call in watcher.running]
            outcome.written = [name for name, version in versions(model).items() if version != before.get(name, version)]
            outcome.undone = apart.undoes_writes
            found = assemble(model, watcher.records, outcome, probe, watcher.output_bytes, watcher.flops, depth)
    if outcome.error is not None and on_error == "raise":
        outcome.error.add_note(found.as_note())
        raise outcome.error
    return found


def _check_arguments(loss_fn: Any, depth: Any, on_error: Any) -> None:
    check_loss_fn(loss_fn)
    if depth is not None and (not isinstance(depth, int) or depth < 0):
        raise ArgumentError(f"depth={depth!r}: give the depth of the deepest rows to show, 0 for the model alone")
    if on_error not in ("raise", "partial"):
        raise ArgumentError(f'on_error={on_error!r}: give "raise" or "partial"')


# Running


def _run(
    model: nn.Module,
    batch: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss_fn: Callable[[Any], Tensor] | None,
    count_flops: Callable[[int], None],
) -> Outcome:
    outcome = Outcome()
    try:
        with torch.enable_grad() if loss_fn is not None else contextlib.nullcontext():
            with flops.FlopCounter(count_flops):
                output = model(*batch, **kwargs)
            outcome.stage = "loss_fn"
            loss = own_loss(output) if loss_fn is None else loss_fn(output)
    except Exception as error:
        outcome.error = error
        return outcome
    if loss_fn is not None:
        loss = _check_loss(loss)
    if loss is None or not loss.requires_grad:
        return outcome
    outcome.stage = "backward"
    outcome.loss = float(loss.detach()) if not loss.is_meta else None
    try:
        _backward(loss, model, [tensor for _, tensor in walk((batch, kwargs))])
    except Exception as error:
        outcome.error = error
    return outcome


def _check_loss(returned: Any) -> Tensor:
    loss = check_loss(returned)
    if not loss.requires_grad:
        raise ArgumentError(
            "the tensor that loss_fn returned does not require a gradient: no parameter that was used does, or the loss was "
            "detached on the way. Leave loss_fn out for a summary without gradients."
        )
    return loss


def _backward(loss: Tensor, model: nn.Module, given: list[Tensor]) -> None:
    """Compute the gradients of all that *loss* depends on, without accumulating any: no hook on an accumulation runs (as an
    optimizer's step), and no graph that was made before the batch is freed. The model's parameters hold their gradients for the
    moment, in ``.grad``, where coverage looks for them.
    """
    starts = [get_gradient_edge(tensor) for tensor in given if tensor.requires_grad]
    nodes = list(graph_nodes.nodes_before(get_gradient_edge(loss).node, ends={edge.node for edge in starts}))
    leaves = [node for node in nodes if hasattr(node, "variable")]
    own = set(map(id, model.parameters()))
    if any(node.name() == "CheckpointFunctionBackward" for node in nodes):  # refuses anything but a plain backward pass
        with gradients_put_aside([node.variable for node in leaves if id(node.variable) not in own]):
            torch.autograd.backward(loss)
        return
    edges = {edge.node: edge for edge in (*(GradientEdge(node, 0) for node in leaves), *starts)}
    formed = torch.autograd.grad(loss, list(edges.values()), allow_unused=True)
    for node, gradient in zip(edges, formed, strict=True):
        if hasattr(node, "variable") and id(node.variable) in own:
            node.variable.grad = gradient


# Watching


@dataclass
class _Running:
    """A module call that was entered and not left."""

    name: str
    calls_others: bool = False


@dataclass
class _Watcher:
    """The subscriber: keeps the record of every module, the stack of running calls, and the memory that outputs take.

    The weak reference to a storage keeps the identity of the storage from being used again, but frees its memory.
    """

    memory: set[StorageWeakRef]
    records: dict[str, Seen] = field(default_factory=dict)
    running: list[_Running] = field(default_factory=list)
    output_bytes: int = 0
    flops: int = 0
    _owners: dict[int, tuple[weakref.ref[Tensor], int, str]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        record = self.records.get(event.name)
        if record is None:
            kind: Any = event.type  # a module's, since no port of parameters is observed
            record = self.records[event.name] = Seen(Tally(Layer(event.name, kind)))
        if event.grad:
            self._returned_gradient(event, record)
        elif event.site.port == "input":
            self._entered(event, record)
        else:
            self._left(event, record)

    def _entered(self, event: Event, record: Seen) -> None:
        if self.running:
            self.running[-1].calls_others = True
        self.running.append(_Running(event.name))
        if event.phase == "forward":
            record.inputs = _shapes(event)

    def _left(self, event: Event, record: Seen) -> None:
        call = _Running(event.name)
        while self.running:
            call = self.running.pop()
            if call.name == event.name:  # others raised, and their exception was caught
                break
        layer = record.tally.layer
        if event.phase == "recompute":
            layer.recomputed += 1
            return
        layer.calls += 1
        layer.passthrough |= event.passthrough
        shapes = _shapes(event)
        record.varies |= layer.calls > 1 and shapes != record.outputs
        record.outputs = shapes
        floating = first_measurable(event.leaves)
        if floating is not None:
            axes = LayerAxes.of(floating, event.module)
            record.tally.add_output(floating.detach(), axes, event.call)  # detached: the statistics are no part of the graph
            layer.same_as = self._owner(floating, layer.name)
        if not call.calls_others:
            made = sum(map(self._new_bytes, (tensor for _, tensor in event.leaves)))
            self.output_bytes += made
            for name in {event.name, *(call.name for call in self.running)}:
                self.records[name].output_bytes += made

    def count_flops(self, flops: int) -> None:
        """Add the FLOPs of a function to the modules that run now, each once."""
        self.flops += flops
        for name in {call.name for call in self.running}:
            self.records[name].flops += flops

    def _returned_gradient(self, event: Event, record: Seen) -> None:
        floating = first_measurable(event.leaves)
        if floating is not None:
            record.tally.add_gradient(floating)

    def _owner(self, tensor: Tensor, name: str) -> str:
        """The module that returned this very tensor first, unwritten since; ``""`` if it is *name* itself."""
        if tensor.is_inference():  # has no version by which an in-place change would show
            return ""
        known = self._owners.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version_of(tensor):
            return known[2] if known[2] != name else ""
        self._owners[id(tensor)] = (weakref.ref(tensor), version_of(tensor), name)
        return ""

    def _new_bytes(self, tensor: Tensor) -> int:
        memory = _memory_of([tensor])
        if not memory:
            return tensor.numel() * tensor.element_size()
        new = [storage for reference, storage in memory.items() if reference not in self.memory]
        self.memory |= memory.keys()
        return sum(storage.nbytes() for storage in new)


def _shapes(event: Event) -> Shapes:
    return tuple(tuple(tensor.shape) for _, tensor in event.leaves)


def _memory_of(tensors: Iterable[Tensor]) -> dict[StorageWeakRef, torch.UntypedStorage]:
    """Each piece of memory that *tensors* lie in; tensors without memory of their own (sparse, nested, wrapped) are left out."""
    found: dict[StorageWeakRef, torch.UntypedStorage] = {}
    for tensor in tensors:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            storage = tensor.untyped_storage()
            found[StorageWeakRef(storage)] = storage  # type: ignore[no-untyped-call]
    return found
