"""Statistics of a tensor and the tensor before, whose rows depend on the order and therefore never merge."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from sonde.stats.statistic import RowStatistic, dense


class PairStatistic(RowStatistic):
    """A statistic, without state, of pairs: each tensor with its predecessor.

    >>> import torch
    >>> from sonde.stats import Cosine, PairStatistic
    >>> statistic = Cosine()
    >>> isinstance(statistic, PairStatistic), dict(statistic.layout())
    (True, {'pairs': 1, 'skipped': 1, 'elements': 1, 'nonfinite': 1, 'defined': 1, 'cosines': 1})
    >>> row = statistic.row_of(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]))
    >>> statistic.measure(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0])).equal(row[2:])
    True
    >>> other = statistic.row_of(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]))
    >>> statistic.finish(statistic.columns(statistic.merged(row, other)[None]))["cosine"].tolist()
    [0.5]
    >>> statistic.merged(row, statistic.empty(1)[0]).equal(row)
    True

    A row belongs to one sequence of tensors. The row begins with the number of ``pairs`` added and the number ``skipped``; the
    ``sums`` that a subclass names follow, which add up over the pairs of that sequence only. Rows of several sequences do not
    merge: the cosine of gradients on one rank does not determine the cosine of their mean. ``Accumulator.merge`` and
    :func:`~sonde.stats.reduce` refuse pair statistics, and a type checker does too.

    Two tensors of different shapes are no pair, even if they broadcast: they are counted as skipped, and nothing raises.

    Attributes:
        compares_updates: at the port ``update`` a pair is the update of a step and of the step before; otherwise the parameter
            after and before one step.
    """

    sums: ClassVar[tuple[str, ...]]
    compares_updates: ClassVar[bool] = False

    @abstractmethod
    def measure(self, tensor: Tensor, previous: Tensor) -> Tensor:
        """Return the addition of a pair of dense tensors of one shape on one device to ``sums``: float64, shape ``(len(sums),)``.

        Traceable, without a host sync.
        """

    def layout(self) -> tuple[tuple[str, int], ...]:
        return tuple([(name, 1) for name in ("pairs", "skipped", *self.sums)])

    def empty(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        with torch.inference_mode(False):  # otherwise a row made under inference mode could not be written to in training
            return torch.zeros(rows, self.width, dtype=torch.float64, device=device)

    def row_of(self, tensor: Tensor, previous: Tensor | None = None) -> Tensor:
        """Return the row of one pair: with ``skipped`` 1 if the shapes differ, empty if *tensor* has no predecessor."""
        row = self.empty(1, tensor.device)[0]
        if previous is None:
            return row
        tensor, previous = dense(tensor), dense(previous)
        if tensor.shape != previous.shape:
            row[1] = 1
            return row
        measure = self.measure(tensor, previous.to(tensor.device))
        return torch.cat([torch.ones_like(measure[:1]), torch.zeros_like(measure[:1]), measure])

    def merged(self, row: Tensor, other: Tensor) -> Tensor:
        """Return the sum of both rows, which must be of one sequence of tensors."""
        return row + other

    def _cuts(self) -> tuple[int, int]:
        return self.width, self.width


def real_parts(tensor: Tensor) -> Tensor:
    """Return the elements as float64, flat and without a graph; a complex element as its real and its imaginary part."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float64).flatten()


def both_finite(tensor: Tensor, previous: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the real parts of both tensors, with 0 where one of them is not finite, and the mask where both are finite."""
    if tensor.is_complex() != previous.is_complex():
        tensor, previous = tensor.to(torch.complex128), previous.to(torch.complex128)
    one, other = real_parts(tensor), real_parts(previous)
    finite = one.isfinite() & other.isfinite()
    return torch.where(finite, one, 0.0), torch.where(finite, other, 0.0), finite
