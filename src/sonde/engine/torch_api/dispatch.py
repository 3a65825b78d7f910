"""See each operation below autograd, forward and backward: the dispatch mode, an operator's schema, what a node saved."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

unseen_by_modes: Callable[[], AbstractContextManager[Any]] = _disable_current_modes
"""Return a context in which no dispatch mode of this thread sees an operator."""


class OperatorMode(TorchDispatchMode, ABC):
    """Calls :meth:`operator` in place of each operator that runs while the mode is entered.

    This holds also for threads that run a backward pass for the one that entered. Autograd, autocast and composite functions
    have done their work before: ``operator`` meets kernels alone, and what it computes itself is seen by no mode.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return self.operator(func, args, kwargs or {})

    @abstractmethod
    def operator(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the operator *function*."""


def argument_names(function: Any) -> list[str]:
    """Return the names of the arguments of an operator, in order; empty for what has no schema."""
    schema = getattr(function, "_schema", None)
    return [] if schema is None else [argument.name for argument in schema.arguments]


def written_names(function: Any) -> set[str]:
    """Return the names of the arguments that an operator writes into."""
    schema = getattr(function, "_schema", None)
    if schema is None:
        return set()
    if schema.name in _UNDECLARED:
        return {"running_mean", "running_var"}
    return {argument.name for argument in schema.arguments if argument.alias_info is not None and argument.alias_info.is_write}


_UNDECLARED = {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}
"""Operators that write the running statistics, which their schemas do not declare."""


def saved_by(node: Any) -> dict[str, Any]:
    """Return what an autograd node has saved for its backward, by name: ``result``, ``self``, ``exponent``."""
    found: dict[str, Any] = {}
    for name in dir(node):
        if name.startswith("_saved_"):
            with contextlib.suppress(RuntimeError):  # freed
                found[name.removeprefix("_saved_")] = getattr(node, name)
    return found


def is_view(function: Any) -> bool:
    """Return whether an operator returns its argument's memory without writing into it, as ``view``, ``detach`` and ``t`` do."""
    schema = getattr(function, "_schema", None)
    if schema is None:
        return False
    return any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)
