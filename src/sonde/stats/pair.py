"""Statistics of a tensor and the one before it, whose rows depend on order and therefore never merge."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from sonde.stats.statistic import RowStatistic, dense

__all__ = ["PairStatistic", "both_finite", "real_parts"]


class PairStatistic(RowStatistic):
    """A statistic, without state, of pairs: each tensor with its predecessor.

    A row is about one sequence of tensors. It begins with the number of ``pairs`` added and of those ``skipped``; the
    ``sums`` that a subclass names follow, which add up over the pairs of that sequence only. There are no merge kinds:
    the cosine of gradients on one rank says nothing about the cosine of their mean, so ``Accumulator.merge`` and
    :func:`~sonde.stats.reduce` refuse pair statistics, and so does a type checker.

    Two tensors of different shapes are no pair, whatever they would broadcast to: that is counted as skipped and never raises.
    """

    sums: ClassVar[tuple[str, ...]]

    @abstractmethod
    def measure(self, tensor: Tensor, previous: Tensor) -> Tensor:
        """What a pair of dense tensors of one shape on one device adds to ``sums``: float64, shape ``(len(sums),)``.

        Traceable, without a host sync.
        """

    def layout(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, 1) for name in ("pairs", "skipped", *self.sums))

    def empty(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        with torch.inference_mode(False):  # a row made under inference mode could not be written to during training
            return torch.zeros(rows, self.width, dtype=torch.float64, device=device)

    def row_of(self, tensor: Tensor, previous: Tensor | None = None) -> Tensor:
        """Return the row of one pair; of a pair that is skipped, or of a tensor without a predecessor, the row that says so."""
        row = self.empty(1, tensor.device)[0]
        if previous is None:
            return row
        if tensor.shape != previous.shape:
            row[1] = 1
            return row
        measure = self.measure(dense(tensor), dense(previous).to(tensor.device))
        return torch.cat([torch.ones_like(measure[:1]), torch.zeros_like(measure[:1]), measure])

    def merged(self, row: Tensor, other: Tensor) -> Tensor:
        """Return the sum of both rows, which must be of one sequence of tensors."""
        return row + other

    def _cuts(self) -> tuple[int, int]:
        return self.width, self.width


def real_parts(tensor: Tensor) -> Tensor:
    """The elements as float64, flat and without a graph; a complex one as its real and its imaginary part."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float64).flatten()


def both_finite(tensor: Tensor, previous: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pair's real parts with 0 wherever either is NaN or infinite, and the mask of where neither is."""
    if tensor.is_complex() != previous.is_complex():
        tensor, previous = tensor.to(torch.complex128), previous.to(torch.complex128)
    one, other = real_parts(tensor), real_parts(previous)
    finite = one.isfinite() & other.isfinite()
    return torch.where(finite, one, 0.0), torch.where(finite, other, 0.0), finite
