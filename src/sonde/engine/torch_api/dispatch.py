"""See each operation below autograd, forward and backward: the dispatch mode, an operator's schema, what a node saved."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sonde.engine.torch_api.autograd_state import current_node, sequence_of_node


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operator that is called.

    Attributes:
        function: the operator.
        args, kwargs: its arguments.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Return the result of the operator."""
        return self.function(*self.args, **self.kwargs)

    @property
    def names(self) -> list[str]:
        """The names of the arguments, in order; empty for what has no schema."""
        schema = getattr(self.function, "_schema", None)
        return [] if schema is None else [argument.name for argument in schema.arguments]

    @property
    def given(self) -> dict[str, Any]:
        """The arguments by name."""
        return dict(zip(self.names, self.args, strict=False)) | self.kwargs

    @property
    def defaults(self) -> dict[str, Any]:
        """The arguments that may be left out, by name, with what stands for them then."""
        schema = getattr(self.function, "_schema", None)
        return {} if schema is None else {each.name: each.default_value for each in schema.arguments if each.has_default_value()}

    @property
    def written(self) -> set[str]:
        """The names of the arguments that the operator writes into."""
        schema = getattr(self.function, "_schema", None)
        if schema is None:
            return set()
        if schema.name in _UNDECLARED:
            return {"running_mean", "running_var"}
        return {argument.name for argument in schema.arguments if argument.alias_info is not None and argument.alias_info.is_write}

    @property
    def is_view(self) -> bool:
        """Whether the operator returns its argument's memory without writing into it, as ``view``, ``detach`` and ``t`` do."""
        schema = getattr(self.function, "_schema", None)
        if schema is None:
            return False
        return any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)

    @property
    def is_unfinished(self) -> bool:
        """Whether what the operator returns may not be there yet: a collective writes it, until somebody waits for its end."""
        schema = getattr(self.function, "_schema", None)
        if schema is None or not schema.returns:
            return False
        namespace, _, name = schema.name.partition("::")
        return namespace in _OF_RANKS and name != "wait_tensor"


class OperatorMode(TorchDispatchMode, ABC):
    """Calls :meth:`operator` in place of each operator that runs while the mode is entered.

    This holds also for threads that run a backward pass for the one that entered. Autograd, autocast and composite functions
    have done their work before: ``operator`` meets kernels alone, and what it computes itself is seen by no mode.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return self.operator(OperatorCall(func, args, kwargs or {}))

    @abstractmethod
    def operator(self, call: OperatorCall) -> Any:
        """Return the result of the operator."""

    @staticmethod
    def unseen() -> AbstractContextManager[Any]:
        """Return a context in which no dispatch mode of this thread sees an operator."""
        context: AbstractContextManager[Any] = _disable_current_modes()
        return context

    @staticmethod
    def with_memory(tensor: Tensor) -> Tensor:
        """Return *tensor*; zeros in its place if autograd made it without memory, where a read within a mode ends the process."""
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device) if tensor._is_zerotensor() else tensor


_OF_RANKS = ("c10d", "_c10d_functional", "fsdp")
"""Where torch keeps collectives, and what FSDP2 prepares for them."""

_UNDECLARED = {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}
"""Operators that write the running statistics, which their schemas do not declare."""


@dataclass(frozen=True, slots=True)
class Derivative:
    """The autograd node whose derivative a backward pass computes now.

    Attributes:
        name: of its class, as ``SqrtBackward0``, with the namespace that autograd gives it.
        sequence: the number by which the operation of the forward is known that made the node.
    """

    name: str
    sequence: int
    _node: Any

    @classmethod
    def now(cls) -> Derivative | None:
        """Return the node that runs in this thread; None outside of backward passes."""
        node: Any = current_node()
        if node is None:
            return None
        name = type(node).__name__ if isinstance(node, torch.autograd.Function) else node.name()
        return cls(name, sequence_of_node(node), node)

    def saved(self) -> dict[str, Any]:
        """Return what the node has saved for its backward, by name: ``result``, ``self``, ``exponent``."""
        found: dict[str, Any] = {}
        for name in dir(self._node):
            if name.startswith("_saved_"):
                with contextlib.suppress(RuntimeError):  # freed
                    found[name.removeprefix("_saved_")] = getattr(self._node, name)
        return found
