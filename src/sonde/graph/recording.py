"""Put hooks on a model that turn each of its forwards into a graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sonde.engine import Named, Where, children_of, class_of, hooks, members, select, torch_tensors, unseen, unwrap
from sonde.errors import ModelError
from sonde.graph.forward import ForwardGraph, in_backward
from sonde.run import PlainGraph
from sonde.warn import warn_user


class Recording:
    """Hooks on a model that turn each of its forwards into a graph.

    Args:
        model: to record; a wrapper (``torch.compile``, ``DataParallel``) is taken off.
        operations: True records all operations; a selection, those in the selected modules; False, none.

    Attributes:
        members: the modules, each with its names.
        graph: the last forward; None before the first has ended.
        returned: what the last forward returned, in words.
        inputs: of the last forward, the node of each tensor that the model was called with, by ``id(tensor)``.
        on_end: called when a forward has ended.
        error: raised by the recording itself, which has stopped then.
    """

    def __init__(self, model: nn.Module, operations: bool | Where = True) -> None:
        self.root = unwrap(model)
        if isinstance(self.root, torch.jit.ScriptModule):
            raise ModelError(
                "a TorchScript module runs outside Python, where nothing can be recorded: capture the module it was made from"
            )
        self.members = {item.module: item for item in members(model)}
        self.graph: PlainGraph | None = None
        self.returned = ""
        self.inputs: dict[int, int] = {}
        self.on_end: Callable[[], None] | None = None
        self.error: Exception | None = None
        self._all_operations = operations is True
        self._chosen = _chosen(list(self.members.values()), operations)
        self._forward: ForwardGraph | None = None
        self._handles: list[hooks.Handle] = []
        self._number = unseen.next_number()

    def call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put the hooks in and call *model*, which is the recorded one or a wrapper of it.

        Where its class has a ``__call__`` of its own, which may call no hooks, all that this call does is the forward.
        """
        is_plain = type(self.root).__call__ is nn.Module.__call__
        self.detach()
        self.attach(but=None if is_plain else self.root)
        if is_plain:
            model(*args, **kwargs)
            return
        enter, leave = _Enter(self), _Leave(self)
        enter(self.root, args, kwargs)
        try:
            output = model(*args, **kwargs)
        except BaseException:
            leave(self.root, args, kwargs, None)  # reads what was raised
            raise
        leave(self.root, args, kwargs, output)

    def attach(self, but: nn.Module | None = None) -> None:
        """Put two hooks on every module that can be called, *but* this one. Idempotent."""
        if self._handles:
            return
        self._number = unseen.next_number()
        for module in self.members:
            if module is but or isinstance(module, torch.jit.ScriptModule) or type(module).forward is nn.Module.forward:
                continue
            self._handles.append(hooks.on_forward_pre(module, _Enter(self)))
            self._handles.append(hooks.on_forward(module, _Leave(self), always=True))

    def detach(self) -> None:
        """Remove the hooks. Idempotent."""
        if self._forward is not None:  # an interrupt ended the forward without a call of the hooks
            self._end(self._forward, None, sys.exc_info()[1])
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a call of *module*; a call of the model itself begins a forward."""
        if self._forward is None:
            if module is not self.root or in_backward() or (unseen.blocks and unseen.is_quiet(self._number, module)):
                return
            self.graph = None
            self._forward = ForwardGraph(self.root, self.members, self._is_open)
            self.inputs = self._forward.begin(args, kwargs)
        if self._forward.concerns_this_call():
            self._forward.enter(module, args, kwargs)

    def leave(self, module: nn.Module, output: Any) -> None:
        """End a call of *module*, which has returned *output* or raised."""
        forward = self._forward
        if forward is None or not forward.concerns_this_call() or not forward.is_running(module):
            return
        error = sys.exc_info()[1] if output is None else None
        forward.leave(module, output, error)
        if not forward.builder.running:
            self._end(forward, output, error)

    def failed(self, error: Exception) -> None:
        """Stop to record: the recording itself has raised *error*, which must not reach the forward."""
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.give_up()
        self.detach()
        self.error = error
        warn_user(f"sonde stopped recording the graph: {type(error).__name__}: {error}. The forward goes on.")

    def _is_open(self, module: nn.Module) -> bool:
        """Whether operations in *module* are recorded: it was chosen, or holds other modules."""
        return self._all_operations or module in self._chosen or bool(children_of(module))

    def _end(self, forward: ForwardGraph, output: Any, error: BaseException | None) -> None:
        self._forward = None
        forward.end(output, error)
        self.returned = "None" if output is None else f"a {type(output).__name__}"
        text = "" if error is None else f"{type(error).__name__}: {error}"
        graph = forward.builder.finish(class_of(self.root).__name__, text)
        if not self._all_operations:
            chosen = {self.members[module].name for module in self._chosen}
            unwanted = [node.id for node in graph.nodes if node.kind == "operation" and node.path not in chosen]
            graph = graph.without(unwanted, keep_joins=True)
        self.graph = graph
        if self.on_end is not None:
            self.on_end()


class _Enter(hooks.Hook):
    __slots__ = ("recording",)

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            with torch_tensors.without_overrides():
                self.recording.enter(module, args, kwargs)
        except Exception as error:
            self.recording.failed(error)


class _Leave(hooks.Hook):
    __slots__ = ("recording",)

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        try:
            with torch_tensors.without_overrides():
                self.recording.leave(module, output)
        except Exception as error:
            self.recording.failed(error)


def _chosen(found: list[Named], operations: bool | Where) -> set[nn.Module]:
    """Return the modules that *operations* selects, and all modules below them."""
    if isinstance(operations, bool):
        return {item.module for item in found} if operations else set()
    aliases = {item.name: item.aliases for item in found if item.aliases}
    positions = select([(item.name, item.module) for item in found], operations, aliases=aliases)
    return {below for position in positions for below in found[position].module.modules()}
