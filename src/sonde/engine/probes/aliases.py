"""Find the name under which a shared module was called.

A module that stands in several places has one canonical name, but each call is made from one of its parents. Marks on those
parents note which of them runs; where one parent holds the module several times (the same layer twice in a ``Sequential``), its
calls are taken to go through the names in turn.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sonde.engine.clock.clock import Clock
from sonde.engine.clock.forward import Forward
from sonde.engine.inventory import Named
from sonde.engine.torch_api import compiler_state, hooks
from sonde.engine.unseen import blocks


class ParentMark:
    """Two hooks on a module that holds a shared one: they note in the forward that the parent runs."""

    def __init__(self, clock: Clock, parent: nn.Module) -> None:
        self.parent = parent
        self._clock = clock
        self._handles: list[hooks.Handle] = []

    def attach(self) -> None:
        """Put both hooks in; before all others on the way in. Idempotent."""
        if not self._handles:
            enter, leave = _Enter(self._clock, self.parent), _Leave(self._clock, self.parent)
            self._handles = [
                # not before the clock's own hook on the root, with which a forward begins
                hooks.on_forward_pre(self.parent, enter, first=self.parent is not self._clock.root()),
                hooks.on_forward(self.parent, leave, always=True),
            ]

    def detach(self) -> None:
        """Take both hooks out. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Enter(hooks.Hook):
    __slots__ = ("clock", "parent")

    def __init__(self, clock: Clock, parent: nn.Module) -> None:
        self.clock = clock
        self.parent = parent

    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if compiler_state.is_traced() or (blocks and self.clock.is_quiet()):
            return
        try:
            self.clock.current().running.append((self.parent, {}))
        except Exception as error:
            self.clock.failed(error)


class _Leave(hooks.Hook):
    __slots__ = ("clock", "parent")

    def __init__(self, clock: Clock, parent: nn.Module) -> None:
        self.clock = clock
        self.parent = parent

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = None) -> None:
        if compiler_state.is_traced() or (blocks and self.clock.is_quiet()):
            return
        try:
            running = self.clock.current().running
            while running:  # parents that an interrupt kept from leaving go with this one
                if running.pop()[0] is self.parent:
                    break
        except Exception as error:
            self.clock.failed(error)


class Aliases:
    """The names of one shared module, by the parent that holds it.

    Attributes:
        names: the canonical one first.
    """

    def __init__(self, item: Named, by_name: dict[str, nn.Module]) -> None:
        self.names = (item.name, *item.aliases)
        self._names: dict[nn.Module, list[str]] = {}
        for name in self.names:
            parent = by_name.get(name.rpartition(".")[0])
            if parent is not None:
                self._names.setdefault(parent, []).append(name)

    @property
    def parents(self) -> list[nn.Module]:
        """The modules to mark."""
        return list(self._names)

    def used(self, forward: Forward, hook: hooks.Hook) -> str:
        """Return the name under which the call was made that *hook* sees now; ``""`` if no parent runs."""
        for parent, calls in reversed(forward.running):
            names = self._names.get(parent)
            if names is not None:
                call = calls.get(hook, 0)
                calls[hook] = call + 1
                return names[call % len(names)]
        return ""
