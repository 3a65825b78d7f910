"""Sum, mean and max over calls, element by element, and over axes of each value as well."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.recorders.reductions.base import Running, State, value_text

Axes = int | tuple[int, ...] | None


@dataclass
class _Total(State):
    """The total, the number of values in each of its elements, and the type of the values."""

    total: Tensor
    weight: int
    dtype: torch.dtype


@dataclass(frozen=True)
class _Fold(Running):
    """The base of sum, mean and max: element by element over the calls, and over *axis* of each value as well.

    Args:
        axis: axes of the value to reduce too. With ``axis=0``, the samples, batches may differ in size.
    """

    axis: Axes = None
    sums = _Total

    def _start(self, tensor: Tensor) -> _Total:
        folded = self._folded(tensor)
        return _Total(torch.clone(folded) if folded is tensor else folded, self._weight(tensor), tensor.dtype)

    def _fit(self, state: _Total, tensor: Tensor) -> tuple[Tensor, int]:
        folded = self._folded(tensor)
        if state.total.shape != folded.shape:
            cure = "" if self.axis is not None else f", or reduce the samples as well with {type(self).__name__}(axis=0)"
            raise ArgumentError(
                f"a value of shape {value_text(tensor)} cannot be added element by element to {value_text(state.total)}: keep the "
                f"shapes alike{cure}"
            )
        return folded, self._weight(tensor)

    def _add(self, state: _Total, fitted: tuple[Tensor, int]) -> None:
        added, weight = fitted
        state.total = self._joined(state.total, added)
        state.weight += weight

    def _axes(self, tensor: Tensor) -> tuple[int, ...]:
        if self.axis is None:
            return ()
        axes = (self.axis,) if isinstance(self.axis, int) else self.axis
        for axis in axes:
            if not -tensor.ndim <= axis < tensor.ndim:
                raise ArgumentError(f"{self} reduces axis {axis}, and a value of shape {value_text(tensor)} has none")
        return axes

    def _weight(self, tensor: Tensor) -> int:
        """The number of elements of *tensor* in one element of the total."""
        return 1 if self.axis is None else math.prod(tensor.shape[axis] for axis in self._axes(tensor))

    @abstractmethod
    def _folded(self, tensor: Tensor) -> Tensor:
        """Return *tensor* reduced over the axes."""

    @abstractmethod
    def _joined(self, total: Tensor, added: Tensor) -> Tensor:
        """Return *total* combined with *added*. *total* may be written into, *added* not."""


@dataclass(frozen=True)
class Sum(_Fold):
    """The sum, formed in float64 (float32 where a device has none) and shown in float32 or better; integers in int64.

    >>> from functools import reduce
    >>> reduce(Sum(axis=0), [torch.ones(5, 2), torch.ones(3, 2)]).value
    tensor([8., 8.])
    """

    def _folded(self, tensor: Tensor) -> Tensor:
        axes = self._axes(tensor)
        if axes:
            return tensor.sum(dim=axes, dtype=_wide(tensor))
        return tensor.to(_wide(tensor)) if tensor.dtype.itemsize == 1 else tensor  # which float8 needs, to be added

    def _start(self, tensor: Tensor) -> _Total:
        state = super()._start(tensor)
        state.total = state.total.to(_wide(state.total))
        return state

    def _joined(self, total: Tensor, added: Tensor) -> Tensor:
        return total.add_(added)

    def _finish(self, state: _Total) -> Tensor:
        return state.total.to(_shown(state.dtype), copy=True)


@dataclass(frozen=True)
class Mean(Sum):
    """The exact mean: the sum divided by the number of values, once, when it is read; of integers in float64.

    With ``axis=0`` it is the mean over all samples, each counting once however they were batched.

    >>> from functools import reduce
    >>> reduce(Mean(axis=0), [torch.tensor([[1.0], [2.0]]), torch.tensor([[6.0]])]).value
    tensor([3.])
    """

    def _finish(self, state: _Total) -> Tensor:
        total, dtype = state.total, state.dtype
        wide = total if total.is_floating_point() or total.is_complex() else total.to(_wide_float(total))
        mean = wide / state.weight if state.weight else torch.full_like(wide, math.nan)
        return mean.to(_shown(dtype)) if dtype.is_floating_point or dtype.is_complex else mean


@dataclass(frozen=True)
class Max(_Fold):
    """The largest value; NaN where one was NaN. ``Max()`` is element by element, ``Max(axis=0)`` over all samples.

    >>> from functools import reduce
    >>> reduce(Max(), [torch.tensor([1, 5]), torch.tensor([2, 3])]).value
    tensor([2, 5])
    """

    def _folded(self, tensor: Tensor) -> Tensor:
        axes = self._axes(tensor)
        return tensor.amax(dim=axes) if axes else tensor

    def _joined(self, total: Tensor, added: Tensor) -> Tensor:
        return torch.maximum(total, added)

    def _finish(self, state: _Total) -> Tensor:
        return state.total.clone()


def _wide(tensor: Tensor) -> torch.dtype:
    """The type in which sums over *tensor* are formed."""
    if tensor.is_complex():
        return torch.complex128 if tensor.device.type != "mps" else torch.complex64
    return _wide_float(tensor) if tensor.is_floating_point() else torch.int64


def _wide_float(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.device.type != "mps" else torch.float32


def _shown(dtype: torch.dtype) -> torch.dtype:
    """The type in which a sum over values of *dtype* is shown."""
    if dtype.is_complex:
        return dtype
    if dtype.is_floating_point:
        return dtype if dtype.itemsize >= 4 else torch.float32
    return torch.int64
