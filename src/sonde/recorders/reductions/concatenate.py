"""Last, the first n samples, and all samples joined: values kept as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.recorders.reductions.base import Reduction, Running, State, lined_up, own, value_text


@dataclass(frozen=True)
class Last(Reduction):
    """The value that came last, of any kind.

    >>> import torch
    >>> from sonde.recorders import ForwardOutput
    >>> from sonde.recorders.reductions import Last
    >>> net = torch.nn.Sequential(torch.nn.Identity())
    >>> with ForwardOutput(reduction=Last()).children(net) as recorder:
    ...     for value in (1.0, 2.0):
    ...         _ = net(torch.tensor([value]))
    >>> recorder["0"]
    tensor([2.])
    """

    def begin(self, first: Any) -> Any:
        return own(first)

    def __call__(self, so_far: Any, new: Any) -> Any:
        return own(new)


@dataclass
class _Pieces(State):
    """Pieces to be joined along the first axis, the first of length 0; the bytes taken, and the number of values left out."""

    pieces: list[Tensor]
    nbytes: int = 0
    dropped: int = 0


class _Joining(Running):
    """The base of the reductions that join values along an axis; a scalar is joined as a vector of one element."""

    axis: int  # a field of both
    sums = _Pieces
    starts_empty = True

    def _start(self, tensor: Tensor) -> _Pieces:
        return _Pieces([lined_up(self, tensor)[:0].clone()])

    def _fit(self, state: _Pieces, tensor: Tensor) -> Tensor:
        rows = lined_up(self, tensor)
        if rows.shape[1:] != state.pieces[0].shape[1:]:
            before = state.pieces[-1].movedim(0, self.axis)
            raise ArgumentError(
                f"a value of shape {value_text(tensor)} cannot be joined along axis {self.axis} to values of shape "
                f"{value_text(before)}"
            )
        return rows

    def _add(self, state: _Pieces, fitted: Tensor) -> None:
        state.pieces.append(fitted.clone())
        state.nbytes += fitted.nbytes

    def _finish(self, state: _Pieces) -> Tensor:
        if len(state.pieces) > 2:  # so that reading again is cheap
            state.pieces[1:] = [torch.cat(state.pieces[1:])]
        return torch.cat(state.pieces).movedim(0, self.axis)


@dataclass(frozen=True)
class Concatenate(_Joining):
    """All values in order, joined along *axis*, until *max_bytes* are kept for a slot; no later value is kept, and the table
    names their number.

    Args:
        axis: 0 is the samples.
        max_bytes: the limit for each slot, all tensors of its values together.

    >>> from functools import reduce
    >>> reduce(Concatenate(), [torch.tensor([1, 2]), torch.tensor([3])]).value
    tensor([1, 2, 3])
    """

    axis: int = 0
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ArgumentError(f"max_bytes={self.max_bytes}: nothing could be kept")

    def _admits(self, states: list[_Pieces], fitted: list[Tensor]) -> bool:
        nbytes = sum(state.nbytes for state in states) + sum(rows.nbytes for rows in fitted)
        if not states[0].dropped and nbytes <= self.max_bytes:
            return True
        states[0].dropped += 1
        return False

    def _note(self, state: _Pieces) -> str:
        return f"max_bytes={self.max_bytes:,} reached: the last {state.dropped} not kept" if state.dropped else ""


@dataclass(frozen=True)
class First(_Joining):
    """The first *n* samples along *axis*.

    >>> from functools import reduce
    >>> reduce(First(3), [torch.tensor([1, 2]), torch.tensor([3, 4])]).value
    tensor([1, 2, 3])
    """

    n: int
    axis: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ArgumentError(f"First({self.n}): give the number of samples to keep, 1 or more")

    def _fit(self, state: _Pieces, tensor: Tensor) -> Tensor:
        room = self.n - sum(map(len, state.pieces))
        return super()._fit(state, tensor)[:room] if room else state.pieces[0]

    def _add(self, state: _Pieces, fitted: Tensor) -> None:
        if len(fitted):
            super()._add(state, fitted)
