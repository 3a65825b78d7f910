"""Updates of a parameter: how far it moved, also relative to its norm, and which elements rounding kept in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.number import STANDARD, Number, count
from sonde.stats.pair import PairStatistic, both_finite
from sonde.stats.statistic import Column, dense


@dataclass(frozen=True)
class Updates(PairStatistic):
    """Update norm, update / weight ratio and the share of elements that did not move, from a parameter before and after.

    >>> import torch
    >>> from sonde.stats import Accumulator, Updates
    >>> seen = Accumulator(Updates()).update(torch.tensor([3.0, 4.0])).update(torch.tensor([3.0, 9.0])).compute()
    >>> seen.update_norm, seen.weight_norm
    (5.0, 5.0)

    ``Accumulator(Updates()).update(after, before)`` adds a pair; ``update(parameter)`` after each step compares with the last
    call. All numbers are over the elements that are finite in both, computed in float64:

    * ``update_norm``, ``|after - before|``, and ``weight_norm``, ``|before|``, in the unit of the parameter; ``ratio``, the
      first over the second, no unit. Each is the mean over pairs; a pair without a finite element has neither, and one
      of a weight of zero no ratio.
      (A healthy ratio is usually near 1e-3.)
    * ``unchanged``: share of elements with ``after == before``. Elements whose wanted update was zero are included.
    * ``vanished``: share of elements whose update the parameter's precision loses: ``after != before``, but both are equal when
      rounded to that precision. NaN unless *after* is given in a higher precision than the parameter's.
    * ``pairs``, ``skipped`` (of different shapes), ``elements`` compared, ``nonfinite`` elements left out.

    Norms beyond 1e154 are infinite, and their pair has no ratio.

    Args:
        precision: the floating-point type that the parameter is kept in, as ``torch.bfloat16`` where *after* and *before*
            are float32 master weights. By default the coarser of the types of the two tensors: give
            ``update(before.float() + wanted, before)`` for a bfloat16 parameter ``before``.

    Raises:
        ArgumentError: *precision* is not a floating-point type.
    """

    precision: torch.dtype | None = None

    sums: ClassVar[tuple[str, ...]] = (
        "elements",
        "nonfinite",
        "update_norms",
        "weight_norms",
        "with_norm",
        "ratios",
        "with_ratio",
        "unchanged",
        "vanished",
        "judged",
    )

    numbers: ClassVar[tuple[Number, ...]] = (
        STANDARD["ratio"],
        Number("update_norm", "update", "Euclidean norm of the update", "size", None, 1.0, 0.5),
        Number("weight_norm", "weight", "Euclidean norm before the update", "size", None, 1.0, 0.5),
        STANDARD["unchanged"],
        STANDARD["vanished"],
        *(count(name, unit="pairs", growth=0.0) for name in ("pairs", "skipped")),
        STANDARD["elements"],
        STANDARD["nonfinite"],
    )

    def __post_init__(self) -> None:
        if self.precision is not None and not self.precision.is_floating_point:
            raise ArgumentError(f"precision must be a floating-point type such as torch.bfloat16, not {self.precision}")

    def measure(self, tensor: Tensor, previous: Tensor) -> Tensor:
        after, before, finite = both_finite(tensor, previous)
        elements = finite.sum(dtype=torch.float64)
        update, weight = torch.linalg.vector_norm(after - before), torch.linalg.vector_norm(before)
        ratio = update / weight
        same = (after == before) & finite
        precision = self._precision(tensor, previous)
        if precision is None:
            vanished = judged = torch.zeros_like(elements)
        else:
            vanished = (~same & (after.to(precision) == before.to(precision)) & finite).sum(dtype=torch.float64)
            judged = elements
        return torch.stack(
            [
                elements,
                finite.numel() - elements,
                update,
                weight,
                (elements > 0).double() if finite.numel() else torch.ones_like(elements),
                torch.where(ratio.isfinite(), ratio, 0.0),
                ratio.isfinite().to(torch.float64),
                same.sum(dtype=torch.float64),
                vanished,
                judged,
            ]
        )

    def _precision(self, after: Tensor, before: Tensor) -> torch.dtype | None:
        """Return the type to round to; None if *after* is no finer."""
        types = [dtype for dtype in (after.dtype, before.dtype) if dtype.is_floating_point or dtype.is_complex]
        if len(types) < 2:
            return None
        precision = self.precision or max(types, key=_coarseness)
        return precision if _coarseness(types[0]) < _coarseness(precision) else None

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        with_norm = _or_nan(columns["with_norm"])
        return {
            "pairs": columns["pairs"],
            "skipped": columns["skipped"],
            "elements": columns["elements"],
            "nonfinite": columns["nonfinite"],
            "update_norm": columns["update_norms"] / with_norm,
            "weight_norm": columns["weight_norms"] / with_norm,
            "ratio": columns["ratios"] / _or_nan(columns["with_ratio"]),
            "unchanged": columns["unchanged"] / _or_nan(columns["elements"]),
            "vanished": columns["vanished"] / _or_nan(columns["judged"]),
        }


def vanished_share(after: Tensor, before: Tensor, wanted: Tensor) -> Tensor:
    """Return the share of the finite elements that should have moved and did not: ``wanted != 0`` and ``after == before``.

    >>> import torch
    >>> from sonde.stats import vanished_share
    >>> before = torch.tensor([1.0, 1.0], dtype=torch.float16)
    >>> wanted = torch.tensor([1e-8, 0.5])
    >>> vanished_share(before + wanted.half(), before, wanted).item()
    0.5

    Use this where *after* has the parameter's own precision: there :class:`Updates` gives ``unchanged`` only. *wanted* is any
    tensor that is zero exactly where no update was wanted, such as the gradient given to an optimizer without weight decay or
    momentum.

    Returns:
        A float64 scalar on the tensors' device; NaN without a finite element. No host sync.

    Raises:
        ArgumentError: the three tensors have different shapes.
    """
    after, before, wanted = dense(after), dense(before), dense(wanted)
    if not after.shape == before.shape == wanted.shape:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (after, before, wanted))
        raise ArgumentError(f"after, before and wanted must have one shape, not {shapes}")
    one, other, finite = both_finite(after, before)
    moving = wanted.detach().flatten() != 0
    if len(one) != len(moving):  # two parts per complex element
        moving = moving.repeat_interleave(2)
    lost = (one == other) & moving & finite
    return lost.sum(dtype=torch.float64) / finite.sum(dtype=torch.float64)


def _coarseness(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps  # for a complex type, the eps of its parts


def _or_nan(column: Column) -> Column:
    return np.where(column > 0, column, np.nan)
