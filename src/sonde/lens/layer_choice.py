"""Join the selection of an inspector, its depth and the selection of a lens into one condition on layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn

from sonde.engine import Where, class_of, condition_of, members, parameters, select
from sonde.errors import ArgumentError

Condition: TypeAlias = Callable[[str, nn.Module], bool]

RELU_LIKE: tuple[type[nn.Module], ...] = (nn.ReLU, nn.ReLU6, nn.Threshold, nn.Hardswish, nn.Hardshrink, nn.Softshrink)
"""Layers whose outputs are exactly zero over a range of inputs; of a GELU or sigmoid every output is active."""

DROPOUT: tuple[type[nn.Module], ...] = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Choice:
    """The layers of a model that an inspector observes.

    Attributes:
        include, exclude: conditions on layers, as for ``sonde.sites``.
        depth: number of levels below the root, whose children are at level 1; a module at the last level stands for all modules
            inside. -1 is all levels.

    Raises:
        ArgumentError: *depth* is no such number.
    """

    include: Where = None
    exclude: Where = None
    depth: int = -1

    def __post_init__(self) -> None:
        if isinstance(self.depth, bool) or self.depth < -1:
            raise ArgumentError(f"depth={self.depth!r}: give a number of levels below the root, or -1 for all")

    @property
    def _pair(self) -> tuple[Where, Where]:
        return self.include, self.exclude

    def admits(self, model: nn.Module, *lenses: tuple[Where, Where]) -> Condition:
        """Return the condition on layers of *model* that this choice and *lenses*, pairs of include and exclude, make together.

        The callable also works for modules that are added to the model later.

        Raises:
            SelectionError: a condition cannot be read, or alone selects nothing in *model*; the message names the nearest layers.
        """
        owned = {name: owner for name, _, owner in parameters(model)}
        candidates = [(item.name, item.module) for item in members(model)]
        candidates += [(name, owner.module) for name, owner in owned.items()]
        known = [name for name, _ in candidates]
        checks: list[tuple[bool, Condition]] = []
        for include, exclude in (self._pair, *lenses):
            select(candidates, include, exclude)
            for wanted, word, where in ((True, "include", include), (False, "exclude", exclude)):
                condition = condition_of(word, where, known)
                if condition is not None:
                    checks.append((wanted, condition))

        def admit(name: str, module: nn.Module) -> bool:
            owner = owned.get(name)
            level = _level(owner.name if owner is not None else name)
            if 0 <= self.depth < level:
                return False
            return all(
                bool(condition(name, module)) is wanted
                for wanted, condition in checks
                if not (
                    condition is is_container and level == self.depth
                )  # at the last level a container stands for the modules inside
            )

        return admit


def is_container(name: str, module: nn.Module) -> bool:
    """Return whether *module* only returns the output of its last child, and has no output of its own to show."""
    return class_of(module) in _CONTAINERS


def _level(name: str) -> int:
    return name.count(".") + 1 if name else 0
