"""Last, first n, and concatenation: values kept as they are, all or some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.keep.reductions.base import Reduction, Running, State, own, shape_text

__all__ = ["Concatenate", "First", "Last"]


@dataclass(frozen=True)
class Last(Reduction):
    """The value that came last, whatever it is."""

    def begin(self, first: Any) -> Any:
        return own(first)

    def __call__(self, so_far: Any, new: Any) -> Any:
        return own(new)


@dataclass
class _Chunks(State):
    """Per tensor: pieces to be joined, the first of length 0; and how much was taken and left."""

    pieces: list[list[Tensor]]
    nbytes: int = 0
    dropped: int = 0


class _Joining(Running):
    """What the reductions have in common that join values along an axis; a scalar is joined as a vector of one element."""

    axis: int  # a field of both
    sums = _Chunks

    def _start(self, tensors: list[Tensor]) -> _Chunks:
        state = _Chunks([[self._lined_up(tensor).narrow(self.axis, 0, 0).clone()] for tensor in tensors])
        self._add(state, tensors)
        return state

    def _lined_up(self, tensor: Tensor) -> Tensor:
        tensor = tensor.reshape(1) if tensor.ndim == 0 else tensor
        if not -tensor.ndim <= self.axis < tensor.ndim:
            raise ArgumentError(f"{self} joins along axis {self.axis}, and a value of shape {shape_text(tensor)} has none")
        return tensor

    def _fitting(self, state: _Chunks, tensors: list[Tensor]) -> list[Tensor]:
        """*tensors* lined up, each of which fits to its pieces."""
        found = [self._lined_up(tensor) for tensor in tensors]
        for tensor, pieces in zip(found, state.pieces, strict=True):
            same = [list(each.shape) for each in (tensor, pieces[0])]
            for shape in same:
                if len(shape) == pieces[0].ndim:
                    shape[self.axis] = 0
            if same[0] != same[1]:
                raise ArgumentError(
                    f"a value of shape {shape_text(tensor)} cannot be joined along axis {self.axis} to values of shape "
                    f"{shape_text(pieces[-1])}"
                )
        return found

    def _finish(self, state: _Chunks) -> list[Tensor]:
        for pieces in state.pieces:
            if len(pieces) > 2:  # so that looking again is cheap
                pieces[1:] = [torch.cat(pieces[1:], self.axis)]
        return [torch.cat(pieces, self.axis) for pieces in state.pieces]


@dataclass(frozen=True)
class Concatenate(_Joining):
    """All values in order, joined along *axis*, until *max_bytes* are kept for a slot; then no more are, and it says so.

    Args:
        axis: 0 is the samples.
        max_bytes: of each slot, all tensors of its values together.

    >>> from functools import reduce
    >>> reduce(Concatenate(), [torch.tensor([1, 2]), torch.tensor([3])]).value
    tensor([1, 2, 3])
    """

    axis: int = 0
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ArgumentError(f"max_bytes={self.max_bytes}: nothing could be kept")

    def _add(self, state: _Chunks, tensors: list[Tensor]) -> None:
        if state.dropped:
            state.dropped += 1
            return
        found = self._fitting(state, tensors)
        nbytes = sum(tensor.nbytes for tensor in found)
        if state.nbytes + nbytes > self.max_bytes:
            state.dropped = 1
            return
        state.nbytes += nbytes
        for pieces, tensor in zip(state.pieces, found, strict=True):
            pieces.append(tensor.clone())

    def _note(self, state: _Chunks) -> str:
        return f"max_bytes={self.max_bytes:,} reached: the last {state.dropped} not kept" if state.dropped else ""


@dataclass(frozen=True)
class First(_Joining):
    """The first *n* samples (along *axis*) of all that come.

    >>> from functools import reduce
    >>> reduce(First(3), [torch.tensor([1, 2]), torch.tensor([3, 4])]).value
    tensor([1, 2, 3])
    """

    n: int
    axis: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ArgumentError(f"First({self.n}): give the number of samples to keep, 1 or more")

    def _add(self, state: _Chunks, tensors: list[Tensor]) -> None:
        left = [self.n - sum(piece.shape[self.axis] for piece in pieces) for pieces in state.pieces]
        if not any(left):
            return
        for pieces, tensor, room in zip(state.pieces, self._fitting(state, tensors), left, strict=True):
            if room:
                pieces.append(tensor.narrow(self.axis, 0, min(room, tensor.shape[self.axis])).clone())
