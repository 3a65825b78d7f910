"""Find the modules of a model that are compiled together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from sonde.engine import selection
from sonde.engine.torch_api import compiler_state, modules
from sonde.engine.torch_api.modules import unwrap


@dataclass(frozen=True, slots=True)
class Region:
    """Modules that are compiled together.

    Attributes:
        top: the outermost one.
        below: all others.
    """

    top: nn.Module
    below: frozenset[nn.Module]

    @property
    def modules(self) -> frozenset[nn.Module]:
        """All modules of the region."""
        return self.below | {self.top}

    def calls_hooks_of_top(self) -> bool:
        """Return whether the hooks of ``top`` run in eager code: Dynamo traces these only around torch's own classes."""
        return not (type(self.top).forward.__module__ or "").startswith("torch.")

    def has_code(self) -> bool:
        """Return whether anything was compiled for the region, or may have been (torch's own classes cannot be asked)."""
        return not self.calls_hooks_of_top() or compiler_state.has_compiled(type(self.top).forward.__code__)


def regions(root: nn.Module, entered: Collection[nn.Module] = ()) -> list[Region]:
    """Return the compiled regions of *root*.

    A region begins at a module that is marked as compiled, and at each of *entered*, which were seen to be called by the compiler.
    """
    found: list[Region] = []
    if not entered and not modules.has_compiled_part(root):
        return found
    pending, seen = [root], set[nn.Module]()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        if not (modules.is_called_compiled(module) or modules.is_compiled_wrapper(module) or module in entered):
            pending += modules.children(module)
            continue
        below = frozenset(item.module for item in selection.members(module))
        seen.update(below)
        top = unwrap(module)
        found.append(Region(top, below - {top}))
    return found
