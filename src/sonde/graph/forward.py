"""Record one forward of a model: module calls as frames, and the operations in and between them."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine import Named, autograd_state, buffers_of, children_of, class_of, parameters_of, walk
from sonde.graph.builder import Builder, Draft
from sonde.graph.operations import OperationMode
from sonde.graph.tensors import version_of
from sonde.run import Kind
from sonde.site import Site


def in_backward() -> bool:
    """Whether a backward pass runs in this thread; a forward in it is a repetition (activation checkpointing)."""
    return autograd_state.graph_task() != -1


class ForwardGraph:
    """One forward that runs, and the graph of it so far.

    Args:
        root: the model.
        members: its modules, each with its names.
        is_open: whether operations in a module are recorded; otherwise each call of it is recorded as a whole.

    Attributes:
        builder: the graph so far.
    """

    def __init__(self, root: nn.Module, members: Mapping[nn.Module, Named], is_open: Callable[[nn.Module], bool]) -> None:
        self.builder = Builder(_owned(members.values()))
        self._mode = OperationMode(self.builder, self._note_raise)
        self._root = root
        self._members = members
        self._is_open = is_open
        self._thread = threading.get_ident()
        self._calls: dict[nn.Module, int] = {}
        self._sizes: dict[nn.Module, int] = {}
        self._entered: dict[int, tuple[float, float, list[tuple[Tensor, int]]]] = {}
        self._raised: list[tuple[BaseException, Draft]] = []

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, int]:
        """Add the inputs and start to record functions. Return the node of each input by ``id(tensor)``."""
        named: dict[int, tuple[Tensor, list[str], str]] = {}
        for name, leaf, tensor in named_inputs(self._root, args, kwargs):
            named.setdefault(id(tensor), (tensor, [], leaf))[1].append(name)
        found: dict[int, int] = {}
        for tensor, names, leaf in named.values():
            node = self.builder.add("input", ", ".join(names), None)
            node.site = str(Site("", "input", leaf))
            self.builder.give(node, tensor)
            found[id(tensor)] = node.id
        self._mode.__enter__()
        self._mode.is_entered = True
        return found

    def end(self, output: Any, error: BaseException | None) -> None:
        """Stop to record functions. Add the outputs, or flag the calls that *error* came out of."""
        self._mode.__exit__(None, None, None)
        self._mode.is_entered = False
        if error is None:
            for leaf, tensor in walk(output):
                node = self.builder.add("output", leaf or "output", None)
                node.site = str(Site("", "output", leaf))
                self.builder.read(node, tensor)
        for raised, node in self._raised:
            if raised is error:
                node.flags.add("failed")
        self._raised.clear()
        self._entered.clear()
        del self._mode  # it holds this object

    def give_up(self) -> None:
        """Stop to record functions, and nothing else."""
        if self._mode.is_entered:
            self._mode.__exit__(None, None, None)

    def concerns_this_call(self) -> bool:
        """Whether a module call that happens now is part of this forward: same thread, no backward pass, no transform."""
        return not in_backward() and autograd_state.transforms() is None and threading.get_ident() == self._thread

    def is_running(self, module: nn.Module) -> bool:
        """Whether a call of *module* has begun and not ended."""
        return any(module is other for other, _ in self.builder.running)

    # Module calls

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a call of *module*."""
        began = time.perf_counter()
        builder = self.builder
        item = self._members[module]
        call = self._calls.get(module, 0)
        self._calls[module] = call + 1
        node = builder.add("module", item.name.rpartition(".")[2] or class_of(module).__name__, builder.scope)
        node.type, node.path, node.call = class_of(module).__name__, item.name, call
        node.site = str(Site(item.name))
        node.parameters = self._size_of(module)
        held = list(_owned([item]))
        for owned in held:
            builder.own(*owned)
        builder.running.append((module, node))
        given: list[tuple[Tensor, int]] = []
        if not self._is_open(module):
            given = [(tensor, version_of(tensor)) for _, tensor in walk((args, kwargs))]
            for tensor, _ in given:
                builder.read(node, tensor)
            for _, _, tensor in held:
                builder.read(node, tensor)
            self._mode.silent += 1
        now = time.perf_counter()
        builder.overhead += now - began
        self._entered[node.id] = (now, builder.overhead, given)

    def leave(self, module: nn.Module, output: Any, error: BaseException | None) -> None:
        """End the innermost call of *module*, which has returned *output* or raised *error*."""
        if self._mode.failure is not None:
            raise self._mode.failure
        began = time.perf_counter()
        builder = self.builder
        node = self._innermost(module)
        started, overhead, given = self._entered.pop(node.id)
        node.seconds = began - started - (builder.overhead - overhead)
        is_open = self._is_open(module)
        if not is_open:
            self._mode.silent -= 1
        if error is not None:
            self._note_raise(error, node)
        leaves = list({id(tensor): tensor for _, tensor in walk(output)}.values())
        if is_open:
            self._close(node, leaves)
        else:
            self._close_whole(node, leaves, given)
        builder.running.pop()
        builder.leave(node, leaves)
        builder.overhead += time.perf_counter() - began

    def _size_of(self, module: nn.Module) -> int:
        """Return the number of elements of all parameters in *module*."""
        if module not in self._sizes:
            held: Any = module.parameters() if children_of(module) else parameters_of(module).values()
            self._sizes[module] = sum(each.numel() for each in set(held) if each is not None and not is_lazy(each))
        return self._sizes[module]

    def _innermost(self, module: nn.Module) -> Draft:
        """Return the running call of *module*; end the calls inside it, which raised without a call of their hooks."""
        running = self.builder.running
        while running[-1][0] is not module:
            other, node = running.pop()
            node.ended = True
            self._mode.silent -= not self._is_open(other)
        return running[-1][1]

    def _close(self, node: Draft, leaves: list[Tensor]) -> None:
        """Note the tensors returned by a module call whose operations were recorded."""
        builder = self.builder
        if leaves and all((giver := builder.giver_of(tensor)) is None or giver[0].id < node.id for tensor in leaves):
            reads = [builder.sources_of(tensor) for tensor in leaves]  # before the node: this may add nodes for parameters
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
        """Note the tensors that a module call returned, or wrote into, that was recorded as a whole."""
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

    def _note_raise(self, error: BaseException, node: Draft) -> None:
        """Flag *node*, which has raised *error*. Whether the error ends the forward is known at its end."""
        node.flags.add("raised")
        self._raised.append((error, node))


def _owned(found: Iterable[Named]) -> Iterator[tuple[Kind, str, Tensor]]:
    """Yield kind, name and tensor of each parameter and buffer."""
    for item in found:
        prefix = f"{item.name}." if item.name else ""
        for name, parameter in parameters_of(item.module).items():
            if parameter is not None:
                yield "parameter", prefix + name, parameter
        for name, buffer in buffers_of(item.module).items():
            if buffer is not None:
                yield "buffer", prefix + name, buffer


def named_inputs(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, str, Tensor]]:
    """Yield each tensor that the model is called with: its name for people, its leaf in ``(root):input``, the tensor.

    >>> import torch
    >>> from sonde import graph
    >>> [(name, leaf, tensor.shape) for name, leaf, tensor in graph.named_inputs(torch.nn.ReLU(), (torch.ones(2),), {})]
    [('input', '[0]', torch.Size([2]))]
    """
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
        for leaf, tensor in walk(value):
            yield names[index] + leaf, f"[{index}]{leaf}", tensor
    for name, value in kwargs.items():
        for leaf, tensor in walk(value):
            yield name + leaf, f"[{name!r}]{leaf}", tensor
