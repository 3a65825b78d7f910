"""The reduction that a user gives as a plain function of two arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sonde.engine import name_of, version_of, walk
from sonde.recorders.reductions.base import Accumulated, Running, State, own, value_text
from sonde.words import shape_text

Reducer: TypeAlias = Callable[[Any, Any], Any]
"""From the result so far and a new tensor to the next result, as for ``functools.reduce``."""


@dataclass
class _Value(State):
    """The result of the function so far."""

    value: Any


class FunctionReduction(Running):
    """Call a function of the user's own with the result so far and a new tensor; for a structured value, tensor by tensor.

    The first tensor is kept as it is. Both arguments are copies that the function may change or keep.

    Attributes:
        function: the function.
        on_broadcast: called once, with a text, when a result has been broadcast to a shape that one argument did not have.
    """

    sums = _Value

    def __init__(self, function: Reducer) -> None:
        self.function = function
        self.on_broadcast: Callable[[str], None] | None = None

    def __repr__(self) -> str:
        return name_of(self.function)

    def begin(self, first: Any) -> Any:
        return own(first) if _is_whole(first) else Accumulated.of(self, first)

    def __call__(self, so_far: Any, new: Any) -> Any:
        if isinstance(so_far, Accumulated):
            so_far.add(new)
            return so_far
        if _is_whole(new):
            return self._combined(so_far, new)
        sums = Accumulated.of(self, so_far)  # a structured value that the user assigned
        sums.add(new)
        return sums

    def _start(self, tensor: Tensor) -> _Value:
        return _Value(own(tensor))

    def _fit(self, state: _Value, tensor: Tensor) -> Any:
        return self._combined(state.value, tensor)

    def _add(self, state: _Value, fitted: Any) -> None:
        state.value = fitted

    def _finish(self, state: _Value) -> Any:
        return state.value

    def _combined(self, kept: Any, new: Any) -> Any:
        new = own(new)
        tensors = isinstance(kept, Tensor) and isinstance(new, Tensor) and not kept.is_inference()
        watched = self.on_broadcast is not None and tensors and kept.shape != new.shape
        before = (version_of(kept), version_of(new), kept.shape) if watched else None
        with torch.no_grad():
            result = self.function(kept, new)
        if before is not None and isinstance(result, Tensor):
            self._look_for_broadcast(before, kept, new, result)
        return result

    def _look_for_broadcast(self, before: tuple[int, int, torch.Size], kept: Tensor, new: Tensor, result: Tensor) -> None:
        *versions, shape = before
        given_back = any(
            result is each and version_of(each) == version for each, version in zip((kept, new), versions, strict=True)
        )
        if self.on_broadcast is None or given_back or not _is_broadcast(shape, new.shape, result.shape):
            return
        self.on_broadcast(
            f"has combined values of the shapes {shape_text(shape)} and {value_text(new)} into {value_text(result)}, as "
            "broadcasting does. If batches differ in size, reduce the samples too: sonde.recorders.reductions.Sum(axis=0) or "
            "Mean(axis=0)"
        )
        self.on_broadcast = None


def _is_whole(value: Any) -> bool:
    """Whether the function takes *value* itself, and not the tensors in it."""
    return isinstance(value, Tensor) or not walk(value)


def _is_broadcast(one: torch.Size, other: torch.Size, result: torch.Size) -> bool:
    """Whether *result* is the shape that broadcasting makes of *one* and *other*, with an argument repeated."""
    sizes = list(zip_longest(reversed(one), reversed(other), fillvalue=1))
    if any(1 not in pair and pair[0] != pair[1] for pair in sizes):
        return False
    wide = [pair[0] if pair[1] == 1 else pair[1] for pair in reversed(sizes)]
    return list(result) == wide and result.numel() > min(one.numel(), other.numel())
