"""What records one forward of a model: hooks on its modules, and a function mode between them."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine import structure
from sonde.engine.selection import Named, Where, members, select, unwrap
from sonde.engine.torch_api import hooks
from sonde.errors import ModelError
from sonde.graph.building import Builder, Draft
from sonde.graph.operations import OperationMode
from sonde.graph.tensors import version_of
from sonde.run.graph import passes
from sonde.run.graph.data import Kind, PlainGraph
from sonde.site import Site

__all__ = ["Recording"]

_transforms: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
_graph_task: Callable[[], int] = torch._C._current_graph_task_id


class Recording:
    """Hooks on a model that turn each of its forwards into a graph.

    Attributes:
        graph: the last forward; None before the first.
        error: the exception with which it ended.
        returned: what the model returned, in words.
        on_end: called when a forward has ended.
        overhead: seconds spent on recording so far.
    """

    def __init__(self, model: nn.Module, operations: bool | Where = True) -> None:
        self.root = unwrap(model)
        if isinstance(self.root, torch.jit.ScriptModule):
            raise ModelError(
                "a TorchScript module runs outside Python, where nothing can be recorded: capture the module it was made from"
            )
        self.members = {item.module: item for item in members(model)}
        self._whole = operations is True
        self._chosen = _chosen(list(self.members.values()), operations)
        self.mode = OperationMode(self)
        self.builder = Builder(())
        self.graph: PlainGraph | None = None
        self.error: BaseException | None = None
        self.overhead = 0.0
        self.returned = ""
        self.on_end: Callable[[], None] | None = None
        self._calls: dict[nn.Module, int] = {}
        self._sizes: dict[nn.Module, int] = {}
        self._entered: dict[int, tuple[float, float, list[tuple[Tensor, int]]]] = {}
        self._thread = 0
        self._raised: list[tuple[BaseException, Draft]] = []
        self._handles: list[hooks.Handle] = []
        self._recording = False

    # Hooks

    def attach(self) -> None:
        """Put two hooks on every module that can be called."""
        if self._handles:
            return
        for module in self.members:
            if isinstance(module, torch.jit.ScriptModule) or type(module).forward is nn.Module.forward:
                continue
            self._handles.append(hooks.on_forward_pre(module, _Enter(self)))
            self._handles.append(hooks.on_forward(module, _Leave(self), always=True))

    def detach(self) -> None:
        """Take them out. Does nothing if they are."""
        if self._recording:  # an interrupt that hooks are not told of
            self._end(None, sys.exc_info()[1])
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _concerns(self) -> bool:
        """Whether a module call that happens now belongs to the forward."""
        return _graph_task() == -1 and _transforms() is None and threading.get_ident() == self._thread

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module call begins."""
        if not self._recording:
            if module is not self.root or _graph_task() != -1:
                return
            self._begin(args, kwargs)
        if not self._concerns():
            return
        began = time.perf_counter()
        builder = self.builder
        item = self.members[module]
        call = self._calls.get(module, 0)
        self._calls[module] = call + 1
        node = builder.add("module", item.name.rpartition(".")[2] or type(module).__name__, builder.scope)
        node.type, node.path, node.call = type(module).__name__, item.name, call
        node.site = str(Site(item.name))
        node.parameters = self._size_of(module)
        builder.running.append((module, node))
        given: list[tuple[Tensor, int]] = []
        if not self._is_open(module):
            given = [(tensor, version_of(tensor)) for _, tensor in structure.walk((args, kwargs))]
            for tensor, _ in given:
                builder.read(node, tensor)
            for held in (*module._parameters.values(), *module._buffers.values()):
                if held is not None:
                    builder.read(node, held)
            self.mode.silent += 1
        now = time.perf_counter()
        self.overhead += now - began
        self._entered[node.id] = (now, self.overhead, given)

    def leave(self, module: nn.Module, output: Any) -> None:
        """A module call ends, or has raised."""
        if not self._recording or not self._concerns() or all(module is not other for other, _ in self.builder.running):
            return
        began = time.perf_counter()
        node = self._innermost(module)
        started, overhead, given = self._entered.pop(node.id)
        node.seconds = began - started - (self.overhead - overhead)
        is_open = self._is_open(module)
        if not is_open:
            self.mode.silent -= 1
        error = sys.exc_info()[1] if output is None else None
        if error is not None:
            self.raised(error, node)
        leaves = list({id(tensor): tensor for _, tensor in structure.walk(output)}.values())
        if is_open:
            self._close(node, leaves)
        else:
            self._close_whole(node, leaves, given)
        self.builder.running.pop()
        self.builder.leave(node, leaves)
        self.overhead += time.perf_counter() - began
        if not self.builder.running:
            self._end(output, error)

    def _size_of(self, module: nn.Module) -> int:
        """Elements of all parameters in *module*."""
        if module not in self._sizes:
            parameters: list[Any] = list(module.parameters())
            self._sizes[module] = sum(parameter.numel() for parameter in parameters if not is_lazy(parameter))
        return self._sizes[module]

    def _innermost(self, module: nn.Module) -> Draft:
        """The running call of *module*; calls in it that raised in a way that hooks are not told of have ended."""
        running = self.builder.running
        while running[-1][0] is not module:
            other, node = running.pop()
            node.ended = True
            self.mode.silent -= not self._is_open(other)
        return running[-1][1]

    def _close(self, node: Draft, leaves: list[Tensor]) -> None:
        """A module in which operations were recorded has returned *leaves*."""
        builder = self.builder
        if leaves and all((giver := builder.giver_of(tensor)) is None or giver[0].id < node.id for tensor in leaves):
            reads = [builder.sources_of(tensor) for tensor in leaves]  # first, for these may be new nodes
            handed = builder.add("operation", "pass", node)
            handed.path, handed.site = node.path, node.site
            handed.flags.add("same")
            for tensor, sources in zip(leaves, reads, strict=True):
                builder.read(handed, tensor, sources)
                builder.hand_on(handed, tensor, node)
        for tensor in leaves:
            giver = builder.giver_of(tensor)
            node.outputs.append(giver[1] if giver is not None else builder.sources_of(tensor)[0][1])

    def _close_whole(self, node: Draft, leaves: list[Tensor], given: list[tuple[Tensor, int]]) -> None:
        """A module that was recorded as a whole has returned *leaves*."""
        builder = self.builder
        before = {id(tensor): version for tensor, version in given}
        for tensor, version in given:
            if version != -1 and version_of(tensor) != version:
                builder.write(node, tensor)
                node.flags.add("inplace")
        for tensor in leaves:
            if id(tensor) not in before:
                builder.give(node, tensor)
                node.bytes += tensor.numel() * tensor.element_size()
            elif (giver := builder.giver_of(tensor)) is None or giver[0] is not node:
                builder.hand_on(node, tensor, node)
                node.flags.add("same")

    def _is_open(self, module: nn.Module) -> bool:
        """Whether operations in *module* are recorded: everywhere, in what was chosen, and in what holds other modules."""
        return self._whole or module in self._chosen or bool(module._modules)

    # The forward

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._recording = True
        self._thread = threading.get_ident()
        self.builder = Builder(_owned(self.members.values()))
        self.graph, self.error, self.overhead = None, None, 0.0
        self._calls.clear()
        self._sizes.clear()
        self._entered.clear()
        self._raised.clear()
        self.mode.silent = 0
        named: dict[int, tuple[Tensor, list[str], str]] = {}
        for name, leaf, tensor in _inputs(self.root, args, kwargs):
            named.setdefault(id(tensor), (tensor, [], leaf))[1].append(name)
        for tensor, names, leaf in named.values():
            node = self.builder.add("input", ", ".join(names), None)
            node.site = str(Site("", "input", leaf))
            self.builder.give(node, tensor)
        self.mode.__enter__()

    def _end(self, output: Any, error: BaseException | None) -> None:
        self.mode.__exit__(None, None, None)
        self._recording = False
        if error is None:
            for leaf, tensor in structure.walk(output):
                node = self.builder.add("output", leaf or "output", None)
                node.site = str(Site("", "output", leaf))
                self.builder.read(node, tensor)
        else:
            for raised, node in self._raised:
                if raised is error:
                    node.flags.add("failed")
        self.error = error
        self.returned = "None" if output is None else f"a {type(output).__name__}"
        text = "" if error is None else f"{type(error).__name__}: {error}"
        graph = self.builder.finish(type(self.root).__name__, text)
        if not self._whole:
            chosen = {self.members[module].name for module in self._chosen}
            unwanted = [node.id for node in graph.nodes if node.kind == "operation" and node.path not in chosen]
            graph = passes.without(graph, unwanted, keep_joins=True)
        self.graph = graph
        if self.on_end is not None:
            self.on_end()
        self.builder = Builder(())
        self._raised.clear()
        self._entered.clear()

    def raised(self, error: BaseException, node: Draft) -> None:
        """*node* has raised; whether that ends the forward will be seen."""
        node.flags.add("raised")
        self._raised.append((error, node))


class _Enter(hooks.Hook):
    __slots__ = ("recording",)

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch._C.DisableTorchFunction():
            self.recording.enter(module, args, kwargs)


class _Leave(hooks.Hook):
    __slots__ = ("recording",)

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        with torch._C.DisableTorchFunction():
            self.recording.leave(module, output)


def _chosen(found: list[Named], operations: bool | Where) -> set[nn.Module]:
    """The modules in which operations are wanted, and all modules below them."""
    if isinstance(operations, bool):
        return {item.module for item in found} if operations else set()
    aliases = {item.name: item.aliases for item in found if item.aliases}
    positions = select([(item.name, item.module) for item in found], operations, aliases=aliases)
    return {below for position in positions for below in found[position].module.modules()}


def _owned(found: Iterable[Named]) -> Iterator[tuple[Kind, str, Tensor]]:
    for item in found:
        prefix = f"{item.name}." if item.name else ""
        for name, parameter in item.module._parameters.items():
            if parameter is not None:
                yield "parameter", prefix + name, parameter
        for name, buffer in item.module._buffers.items():
            if buffer is not None:
                yield "buffer", prefix + name, buffer


def _inputs(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, str, Tensor]]:
    """Each tensor that the model is called with: its name for people, its leaf in ``(root):input``, itself."""
    names: list[str] = []
    try:
        for parameter in inspect.signature(root.forward).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                names += [f"{parameter.name}[{index}]" for index in range(len(args) - len(names))]
            elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
    except (TypeError, ValueError):
        pass
    names += [f"argument {index}" for index in range(len(names), len(args))]
    for index, value in enumerate(args):
        for leaf, tensor in structure.walk(value):
            yield names[index] + leaf, f"[{index}]{leaf}", tensor
    for name, value in kwargs.items():
        for leaf, tensor in structure.walk(value):
            yield name + leaf, f"[{name!r}]{leaf}", tensor
