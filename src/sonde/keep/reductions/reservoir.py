"""A random sample of all samples that come, each as likely as any other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.keep.reductions.base import Running, State, shape_text

__all__ = ["Reservoir"]


@dataclass
class _Sample(State):
    """Per tensor the rows that are kept; how many came, which is taken next, and where the random numbers are."""

    rows: list[Tensor]
    seen: int = 0
    following: int = 0
    share: float = 1.0
    draws: int = 0


@dataclass(frozen=True)
class Reservoir(Running):
    """A random sample of *n* of all samples that come, each as likely as any other, however they are batched.

    Slots that see the same batches keep the same samples, in the same order. Random numbers come from *seed* alone; the
    program's own are not touched. Algorithm L of Kim-Hung Li, "Reservoir-Sampling Algorithms of Time Complexity
    O(n(1 + log(N/n)))", ACM Transactions on Mathematical Software 20 (1994).

    Args:
        n: how many.
        seed: of the choice.
        axis: along which the samples lie; the result has them along its first.

    >>> from functools import reduce
    >>> reduce(Reservoir(3, seed=1), torch.arange(100).split(10)).value.shape
    torch.Size([3])
    """

    n: int
    seed: int = 0
    axis: int = 0
    sums = _Sample

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ArgumentError(f"Reservoir({self.n}): give the number of samples to keep, 1 or more")

    def _start(self, tensors: list[Tensor]) -> _Sample:
        state = _Sample([self._lined_up(tensor)[:0].clone() for tensor in tensors])
        self._add(state, tensors)
        return state

    def _lined_up(self, tensor: Tensor) -> Tensor:
        tensor = tensor.reshape(1) if tensor.ndim == 0 else tensor
        if not -tensor.ndim <= self.axis < tensor.ndim:
            raise ArgumentError(f"{self} chooses along axis {self.axis}, and a value of shape {shape_text(tensor)} has none")
        return tensor.movedim(self.axis, 0)

    def _add(self, state: _Sample, tensors: list[Tensor]) -> None:
        found = [self._lined_up(tensor) for tensor in tensors]
        sizes = {len(tensor) for tensor in found}
        if len(sizes) > 1:
            shapes = ", ".join(map(shape_text, tensors))
            raise ArgumentError(f"{self} chooses samples along axis {self.axis}, where the tensors of a value differ: {shapes}")
        for tensor, rows in zip(found, state.rows, strict=True):
            if tensor.shape[1:] != rows.shape[1:]:
                raise ArgumentError(f"samples of shape {shape_text(tensor[0])} came after samples of shape {shape_text(rows[0])}")
        (size,) = sizes
        filling = min(size, self.n - len(state.rows[0]))
        if filling > 0:
            state.rows = [torch.cat((rows, tensor[:filling])) for rows, tensor in zip(state.rows, found, strict=True)]
        for place, row in self._chosen(state, size).items():
            for rows, tensor in zip(state.rows, found, strict=True):
                rows[place].copy_(tensor[row])

    def _chosen(self, state: _Sample, size: int) -> dict[int, int]:
        """Which of the *size* rows that come go to which place of the reservoir, once it is full."""
        if len(state.rows[0]) == self.n and not state.following:
            state.following = self.n - 1
            self._skip(state)
        chosen: dict[int, int] = {}
        while state.following and state.following < state.seen + size:
            chosen[int(self._draw(state) * self.n)] = state.following - state.seen
            self._skip(state)
        state.seen += size
        return chosen

    def _skip(self, state: _Sample) -> None:
        """Move on to the next row that is taken."""
        state.share *= self._draw(state) ** (1 / self.n)
        state.following += int(math.log(self._draw(state)) / math.log1p(-state.share)) + 1

    def _draw(self, state: _Sample) -> float:
        """The next number between 0 and 1, both excluded: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
        state.draws += 1
        bits = (self.seed + state.draws * 0x9E3779B97F4A7C15) & _MASK
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
        return (((bits ^ (bits >> 31)) >> 12) + 0.5) / 2**52

    def _finish(self, state: _Sample) -> list[Tensor]:
        return [rows.clone() for rows in state.rows]


_MASK = (1 << 64) - 1
