"""Record each public torch function that a forward calls as a node: a torch function mode, names, arguments as text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sonde.engine import autograd_state, flops, torch_tensors
from sonde.escape import shortened
from sonde.graph.builder import Builder, Draft
from sonde.graph.tensors import storage_of, tensors_in, version_of

# Functions that copy the contents of a tensor to Python. Other functions without a tensor in their result only ask for
# properties, and become no node.
_READS = {
    "item",
    "tolist",
    "numpy",
    "bool",
    "int",
    "float",
    "complex",
    "index",
    "contains",
    "equal",
    "allclose",
    "is_nonzero",
    "array",
}

# Functions that only read a tensor's properties. Models call them often; they are skipped before any other work.
_QUIET = {
    getattr(held, "__get__", held) if not callable(held) else held
    for name in (
        "shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad_fn", "is_cuda", "is_leaf", "is_nested", "is_sparse",
        "is_meta", "is_cpu", "is_quantized", "size", "dim", "numel", "stride", "is_floating_point", "is_complex",
        "is_contiguous", "element_size", "__len__", "storage_offset", "get_device", "type", "is_signed", "__format__", "__repr__",
    )
    for held in [getattr(Tensor, name)]
}  # fmt: skip


class OperationMode(TorchFunctionMode):
    """Add a node to *builder* for each public torch function that is called while the mode is entered.

    Args:
        builder: the graph of the forward that runs.
        on_raise: called with the exception and the node where a function raises.

    Attributes:
        silent: how many module calls that are recorded as a whole run now; above 0, no node is added.
        is_entered: the forward has entered the mode, and not left it.
        failure: raised while a node was made, which must not reach the forward; no more nodes are added.
    """

    def __init__(self, builder: Builder, on_raise: Callable[[BaseException, Draft], None]) -> None:
        super().__init__()
        self.silent = 0
        self.failure: Exception | None = None
        self.is_entered = False
        self._builder = builder
        self._on_raise = on_raise

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.silent or function in _QUIET or autograd_state.graph_task() != -1 or autograd_state.transforms() is not None:
            return function(*args, **kwargs)
        if autograd_state.is_gathering():  # of a plain parameter from its shards: no operation of the model
            result = function(*args, **kwargs)
            self._follow(tensors_in(*args, *kwargs.values()), result)
            return result
        began = time.perf_counter()
        given = tensors_in(*args, *kwargs.values())
        versions = [version_of(tensor) for tensor in given]
        started = time.perf_counter()
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            with torch_tensors.without_overrides():
                self._on_raise(error, self._node(flops.function_name(function), args, kwargs, given))
            raise
        ended = time.perf_counter()
        try:
            with torch_tensors.without_overrides():
                self._record(flops.function_name(function), args, kwargs, given, versions, result, ended - started)
        except Exception as error:
            self.failure, self.silent = error, sys.maxsize  # raised again when the module call ends, where it is contained
        self._builder.overhead += time.perf_counter() - began - (ended - started)
        return result

    def _follow(self, given: list[Tensor], result: Any) -> None:
        """Let tensors that are views of all of a known one stand for it."""
        with torch_tensors.without_overrides():
            for tensor in tensors_in(result):
                storage = storage_of(tensor)
                for other in given:
                    if storage is not None and storage_of(other) == storage and tensor.shape == other.shape:
                        self._builder.follow(tensor, other)

    def _record(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[Tensor],
        versions: list[int],
        result: Any,
        seconds: float,
    ) -> None:
        made = [result] if isinstance(result, Tensor) else tensors_in(result)
        written = _written(name, args, kwargs, given, versions)
        if not made and not written and not (given and name in _READS):
            return
        builder = self._builder
        scope = builder.scope
        node = self._node(name, args, kwargs, given)
        node.seconds = seconds
        node.flops = flops.count_flops(name, args, kwargs, result)
        known = set(map(id, given))
        memory = {storage_of(tensor) for tensor in given}
        for tensor in written:
            builder.write(node, tensor)
            node.flags.add("inplace")
        for tensor in made:
            if id(tensor) in known:
                if not any(tensor is other for other in written):
                    builder.hand_on(node, tensor, scope)
                    node.flags.add("same")
                continue
            builder.give(node, tensor)
            storage = storage_of(tensor)
            if storage is not None and storage in memory:
                node.flags.add("view")
            else:
                memory.add(storage)
                node.bytes += tensor.numel() * tensor.element_size()
        if not made and not written:
            node.flags.add("read")

    def _node(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor]) -> Draft:
        """Add an operation, with an edge from each node that gave one of the tensors *given*."""
        builder = self._builder
        scope = builder.scope
        reads = [builder.sources_of(tensor) for tensor in given]  # before the node: this may add nodes for parameters
        node = builder.add("operation", name, scope)
        if scope is not None:
            node.path, node.site = scope.path, scope.site
        node.arguments = arguments_text(args, kwargs)
        for tensor, sources in zip(given, reads, strict=True):
            builder.read(node, tensor, sources)
        return node


def _written(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor], versions: list[int]) -> list[Tensor]:
    """Return the tensors of *given* that the function has written into."""
    changed = [
        tensor
        for tensor, version in zip(given, versions, strict=True)
        if version == -1 or version_of(tensor) != version  # -1: torch does not count; the function's name decides below
    ]
    if not changed:
        return changed
    if "out" in kwargs:
        return tensors_in(kwargs["out"])
    if (name.endswith("_") or name == "setitem" or kwargs.get("inplace")) and args and isinstance(args[0], Tensor):
        return [args[0]]  # the other changed tensors only share its memory
    return [tensor for tensor in changed if not tensor.is_inference()]


def arguments_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments that are no tensors as text, ``2, dim=1``. The text is the same in every run."""
    texts = [text for value in args if (text := _text(value))]
    texts += [f"{name}={text}" for name, value in kwargs.items() if (text := _text(value))]
    return shortened(", ".join(texts), _LONGEST)


_LONGEST = 120


def _text(value: Any) -> str:
    """Return *value* as text; ``""`` for a tensor and for a container of tensors only."""
    if isinstance(value, Tensor):
        return ""
    if value is None or isinstance(value, bool | int | str | torch.dtype | torch.device):
        return str(value).removeprefix("torch.") if not isinstance(value, str) else repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is Ellipsis:
        return "…"
    if isinstance(value, slice):
        return ":".join(
            "" if part is None else _text(part) for part in (value.start, value.stop, value.step)[: 2 + bool(value.step)]
        )
    if isinstance(value, tuple | list):
        parts = [_text(part) for part in value]
        return f"({', '.join(parts)})" if any(parts) else ""
    return getattr(value, "__name__", "") or type(value).__name__
