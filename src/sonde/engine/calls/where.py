"""``where()``: return the module call that is running, from inside any function."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sonde.engine import selection
from sonde.engine.calls.call_log import ModuleCall
from sonde.engine.calls.module_tracker import active
from sonde.engine.torch_api.autograd_state import graph_task, modules_running
from sonde.engine.torch_api.modules import class_of, unwrap
from sonde.site import Phase


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The module calls that run in this thread.

    >>> import sonde
    >>> sonde.where()
    Whereabouts(phase='forward', stack=(), known=True)

    Attributes:
        phase: ``forward``, ``backward``, or ``recompute`` (a checkpoint repeats a forward inside a backward pass).
        stack: the module calls, from the root to the innermost; empty outside of any module.
        known: the stack is complete. In a backward pass it is known only if a :class:`ModuleTracker` was entered
            before the forward.
    """

    phase: Phase
    stack: tuple[ModuleCall, ...]
    known: bool = True

    @property
    def path(self) -> str | None:
        """The canonical name of the innermost module, as in its sites; None outside of any."""
        return self.stack[-1].path if self.stack else None

    @property
    def call(self) -> int | None:
        """Index of the innermost call, where it is known."""
        return self.stack[-1].call if self.stack else None

    def __str__(self) -> str:
        if not self.stack:
            return f"{self.phase} of {'no module' if self.known else 'an unknown module: enter a ModuleTracker before the forward'}"
        innermost = self.stack[-1]
        call = "" if innermost.call is None else f" (call {innermost.call})"
        return f"{self.phase} of {innermost.name}{call}"


def where() -> Whereabouts:
    """Return the module calls that run in this thread, and in which direction.

    >>> import sonde, torch
    >>> class Says(torch.nn.Module):
    ...     def forward(self, x):
    ...         print(sonde.where())
    ...         return x
    >>> output = torch.nn.Sequential(Says())(torch.ones(1))
    forward of Sequential.0

    Works anywhere: in a forward, a hook, an autograd function, an operator, a dispatch mode. In a forward nothing needs to be set
    up: modules are found in the Python stack. The index of a call is counted by an entered :class:`ModuleTracker`; without one it
    is None. In a backward pass the modules are known if a tracker was entered before the forward.
    """
    if graph_task() != -1:
        if active:
            tracker = active[-1]
            return Whereabouts(tracker.phase, tracker.stack)
        return Whereabouts("backward", (), known=False)
    running = _unwrapped(modules_running())
    tracked = active[-1].stack if active else ()
    if running and len(running) <= len(tracked) and running[-1] is tracked[-1].module:
        return Whereabouts("forward", tracked)
    return Whereabouts("forward", tuple(_named(running)))


def _unwrapped(running: list[nn.Module]) -> list[nn.Module]:
    """Return the modules without wrappers; one that its wrapper calls comes once."""
    modules: list[nn.Module] = []
    for module in (unwrap(held) for held in running):
        if not (modules and modules[-1] is module and running.count(module) == 1):
            modules.append(module)
    return modules


def _named(modules: list[nn.Module]) -> list[ModuleCall]:
    """Return the modules by their names in the outermost; one that is no part of it begins a model of its own."""
    calls: list[ModuleCall] = []
    label, names = "", dict[nn.Module, str]()
    for module in modules:
        if module not in names:
            label, names = class_of(module).__name__, {item.module: item.name for item in selection.members(module)}
        path = names[module]
        calls.append(ModuleCall(path, module, None, f"{label}.{path}" if path else label))
    return calls
