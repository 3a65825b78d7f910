"""Sum, mean and max: element by element over the calls, and over axes of each value as well."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.keep.reductions.base import Running, State, shape_text

__all__ = ["Max", "Mean", "Sum"]

Axes = int | tuple[int, ...] | None


@dataclass
class _Totals(State):
    """Per tensor: the total, how many values each of its elements is of, and the type that is shown."""

    totals: list[Tensor]
    weights: list[int]
    dtypes: list[torch.dtype]


@dataclass(frozen=True)
class _Fold(Running):
    """What sum, mean and max have in common: element by element over the calls, and over *axis* of each value as well.

    Args:
        axis: axes of the value to reduce too. With ``axis=0``, the samples, batches may differ in size.
    """

    axis: Axes = None
    sums = _Totals

    def _start(self, tensors: list[Tensor]) -> _Totals:
        folded = [self._folded(tensor) for tensor in tensors]
        return _Totals(
            [torch.clone(each) if each is tensor else each for each, tensor in zip(folded, tensors, strict=True)],
            [self._weight(tensor) for tensor in tensors],
            [tensor.dtype for tensor in tensors],
        )

    def _add(self, state: _Totals, tensors: list[Tensor]) -> None:
        added = [self._folded(tensor) for tensor in tensors]
        for total, each, tensor in zip(state.totals, added, tensors, strict=True):
            if total.shape != each.shape:
                cure = "" if self.axis is not None else f", or reduce the samples as well with {type(self).__name__}(axis=0)"
                raise ArgumentError(
                    f"a value of shape {shape_text(tensor)} cannot be added element by element to {shape_text(total)}: keep the "
                    f"shapes alike{cure}"
                )
        for position, (tensor, each) in enumerate(zip(tensors, added, strict=True)):
            state.totals[position] = self._joined(state.totals[position], each)
            state.weights[position] += self._weight(tensor)

    def _axes(self, tensor: Tensor) -> tuple[int, ...]:
        if self.axis is None:
            return ()
        axes = (self.axis,) if isinstance(self.axis, int) else self.axis
        for axis in axes:
            if not -tensor.ndim <= axis < tensor.ndim:
                raise ArgumentError(f"{self} reduces axis {axis}, and a value of shape {shape_text(tensor)} has none")
        return axes

    def _weight(self, tensor: Tensor) -> int:
        """How many elements of *tensor* come together in one of the total."""
        return 1 if self.axis is None else math.prod(tensor.shape[axis] for axis in self._axes(tensor))

    @abstractmethod
    def _folded(self, tensor: Tensor) -> Tensor:
        """*tensor* reduced over the axes."""

    @abstractmethod
    def _joined(self, total: Tensor, added: Tensor) -> Tensor:
        """The total with one more value in it; *total* may be written into, *added* not."""


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

    def _start(self, tensors: list[Tensor]) -> _Totals:
        state = super()._start(tensors)
        state.totals = [total.to(_wide(total)) for total in state.totals]
        return state

    def _joined(self, total: Tensor, added: Tensor) -> Tensor:
        return total.add_(added)

    def _finish(self, state: _Totals) -> list[Tensor]:
        return [total.to(_shown(dtype), copy=True) for total, dtype in zip(state.totals, state.dtypes, strict=True)]


@dataclass(frozen=True)
class Mean(Sum):
    """The exact mean: the sum over the number of values, divided once when it is looked at; of integers in float64.

    With ``axis=0`` it is the mean over all samples, each counting once however they were batched.

    >>> from functools import reduce
    >>> reduce(Mean(axis=0), [torch.tensor([[1.0], [2.0]]), torch.tensor([[6.0]])]).value
    tensor([3.])
    """

    def _finish(self, state: _Totals) -> list[Tensor]:
        found = []
        for total, weight, dtype in zip(state.totals, state.weights, state.dtypes, strict=True):
            wide = total if total.is_floating_point() or total.is_complex() else total.to(_wide_float(total))
            mean = wide / weight if weight else torch.full_like(wide, math.nan)
            found.append(mean.to(_shown(dtype)) if dtype.is_floating_point or dtype.is_complex else mean)
        return found


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

    def _finish(self, state: _Totals) -> list[Tensor]:
        return [total.clone() for total in state.totals]


def _wide(tensor: Tensor) -> torch.dtype:
    """The type that sums over *tensor* are formed in."""
    if tensor.is_complex():
        return torch.complex128 if tensor.device.type != "mps" else torch.complex64
    return _wide_float(tensor) if tensor.is_floating_point() else torch.int64


def _wide_float(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.device.type != "mps" else torch.float32


def _shown(dtype: torch.dtype) -> torch.dtype:
    """The type that a sum over values of *dtype* is shown in."""
    if dtype.is_complex:
        return dtype
    if dtype.is_floating_point:
        return dtype if dtype.itemsize >= 4 else torch.float32
    return torch.int64
