"""Keep a random sample of all samples, each as likely as any other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.recorders.reductions.base import Running, State, lined_up, value_text


@dataclass
class _Sample(State):
    """The kept rows; the number of rows seen, the place of the next to take, and the state of the random numbers."""

    rows: Tensor
    seen: int = 0
    following: int = 0
    share: float = 1.0
    draws: int = 0


@dataclass(frozen=True)
class Reservoir(Running):
    """A random sample of *n* of all samples that come, each as likely as any other, however they are batched.

    Slots that see the same batches keep the same samples, in the same order. Random numbers come from *seed* alone; those of
    the program are not touched. Algorithm L of Kim-Hung Li, "Reservoir-Sampling Algorithms of Time Complexity
    O(n(1 + log(N/n)))", ACM Transactions on Mathematical Software 20 (1994).

    Args:
        n: the number of samples to keep.
        seed: decides the choice.
        axis: the axis of the samples; in the result they lie along the first axis.

    >>> from functools import reduce
    >>> reduce(Reservoir(3, seed=1), torch.arange(100).split(10)).value.shape
    torch.Size([3])
    """

    n: int
    seed: int = 0
    axis: int = 0
    sums = _Sample
    starts_empty = True

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ArgumentError(f"Reservoir({self.n}): give the number of samples to keep, 1 or more")

    def _start(self, tensor: Tensor) -> _Sample:
        return _Sample(lined_up(self, tensor)[:0].clone())

    def _fit(self, state: _Sample, tensor: Tensor) -> Tensor:
        rows = lined_up(self, tensor)
        if rows.shape[1:] != state.rows.shape[1:]:
            raise ArgumentError(f"samples of shape {value_text(rows[0])} came after samples of shape {value_text(state.rows[0])}")
        return rows

    def _admits(self, states: list[_Sample], fitted: list[Tensor]) -> bool:
        if len(set(map(len, fitted))) > 1:
            shapes = ", ".join(value_text(rows.movedim(0, self.axis)) for rows in fitted)
            raise ArgumentError(f"{self} chooses samples along axis {self.axis}, where the tensors of a value differ: {shapes}")
        return True

    def _add(self, state: _Sample, fitted: Tensor) -> None:
        filling = min(len(fitted), self.n - len(state.rows))
        if filling > 0:
            state.rows = torch.cat((state.rows, fitted[:filling]))
        for place, row in self._chosen(state, len(fitted)).items():
            state.rows[place].copy_(fitted[row])

    def _chosen(self, state: _Sample, size: int) -> dict[int, int]:
        """Draw the rows to take of *size* new ones: from the place in the full reservoir to the row."""
        if len(state.rows) == self.n and not state.following:
            state.following = self.n - 1
            self._skip(state)
        chosen: dict[int, int] = {}
        while state.following and state.following < state.seen + size:
            chosen[int(self._draw(state) * self.n)] = state.following - state.seen
            self._skip(state)
        state.seen += size
        return chosen

    def _skip(self, state: _Sample) -> None:
        """Move on to the next row to take."""
        state.share *= self._draw(state) ** (1 / self.n)
        state.following += int(math.log(self._draw(state)) / math.log1p(-state.share)) + 1

    def _draw(self, state: _Sample) -> float:
        """The next number between 0 and 1, both excluded: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
        state.draws += 1
        bits = (self.seed + state.draws * 0x9E3779B97F4A7C15) & _MASK
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
        return (((bits ^ (bits >> 31)) >> 12) + 0.5) / 2**52

    def _finish(self, state: _Sample) -> Tensor:
        return state.rows.clone()


_MASK = (1 << 64) - 1
