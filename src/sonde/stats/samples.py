"""Statistics that are computed per sample or per call: norms of samples, single numbers, the condition of a matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sonde.number import STANDARD, Number, count
from sonde.stats.statistic import Column, Field, Statistic, elements


@dataclass(frozen=True)
class SampleNorm(Statistic):
    """Euclidean norm and root mean square of each sample, averaged over samples.

    A tensor is read as ``(sample, ...)``, a scalar as one sample. With ``n_b = |x_b|`` over all other dimensions, ``norm`` is
    the mean of ``n_b`` and ``rms`` the mean of ``n_b / sqrt(elements of a sample)``: the mean of the samples' root mean
    squares, not the root mean square of all elements. ``nonfinite`` elements are counted and left out; without
    samples both numbers are NaN.

    Args:
        sample_axis: the axis of the samples in tensors of three dimensions: 0, or 1 for ``(time, sample, feature)``.
    """

    sample_axis: int = 0

    is_of_every_leaf: ClassVar[bool] = False
    fields: ClassVar[tuple[Field, ...]] = (Field("nonfinite"), Field("samples"), Field("norms"), Field("rms"))
    numbers: ClassVar[tuple[Number, ...]] = (
        replace(STANDARD["norm"], title="Euclidean norm per sample", growth=None),
        replace(STANDARD["rms"], title="Root mean square per sample", growth=None),
        count("samples", unit="samples"),
        STANDARD["nonfinite"],
    )

    def takes_part(self, whole: tuple[int, ...], part: tuple[int, ...]) -> bool:
        """Return whether the part has whole samples: their norms add up over ranks."""
        samples = self.sample_axis if len(whole) == 3 else 0
        return all(size == held for axis, (size, held) in enumerate(zip(whole, part, strict=True)) if axis != samples)

    def measure(self, tensor: Tensor) -> Tensor:
        values = elements(tensor)
        if self.sample_axis and values.dim() == 3:
            values = values.transpose(0, 1)
        matrix = values.reshape(values.shape[0] if values.dim() else 1, math.prod(values.shape[1:]))
        finite = matrix.isfinite()
        norms = torch.linalg.vector_norm(torch.where(finite, matrix, 0.0), dim=1)
        kept = finite.sum(1, dtype=torch.float64)
        samples = torch.where(kept > 0, 1.0, 0.0).to(torch.float64).sum()
        rms = norms / kept.clamp(min=1).sqrt()
        return torch.stack([matrix.numel() - kept.sum(), samples, norms.sum(), rms.sum()])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        samples = np.where(columns["samples"] > 0, columns["samples"], np.nan)
        return {
            "nonfinite": columns["nonfinite"],
            "samples": columns["samples"],
            "norm": columns["norms"] / samples,
            "rms": columns["rms"] / samples,
        }


@dataclass(frozen=True)
class Single(Statistic):
    """Mean of numbers that were measured elsewhere, such as a loss: ``value``, in their unit.

    A tensor of one element is one number; of a larger tensor each element is one. No number is left out of the mean: if a number
    is infinite, ``value`` is infinite; if a number is NaN, or infinities have both signs, ``value`` is NaN. ``nonfinite`` counts
    such numbers. Without a number ``value`` is NaN.
    """

    fields: ClassVar[tuple[Field, ...]] = (Field("count"), Field("nan"), Field("above"), Field("below"), Field("sum"))
    numbers: ClassVar[tuple[Number, ...]] = (
        Number("value", "value", "Value", "signed", None, 1.0, 0.0),
        STANDARD["count"],
        STANDARD["nonfinite"],
    )

    def measure(self, tensor: Tensor) -> Tensor:
        values = elements(tensor)
        total = torch.where(values.isfinite(), values, 0.0).sum()
        counts = [found.sum(dtype=torch.float64) for found in (values.isnan(), values == torch.inf, values == -torch.inf)]
        return torch.stack([torch.full_like(total, values.numel()), *counts, total])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        nan, above, below = columns["nan"], columns["above"], columns["below"]
        value = columns["sum"] / np.where(columns["count"] > 0, columns["count"], np.nan)
        value = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, value))
        value = np.where((nan > 0) | ((above > 0) & (below > 0)), np.nan, value)
        return {"count": columns["count"], "value": value, "nonfinite": nan + above + below}


@dataclass(frozen=True)
class MatrixCondition(Statistic):
    """Condition number and stable rank of each matrix W, averaged over the tensors added.

    The singular values of W are ``s_1 >= ... >= s_k``, k the shorter side. A tensor of more than two dimensions is read as a matrix
    with a row per index of the first axis; a vector or a scalar as one row.

    ``condition`` is ``s_1 / s_k`` (the 2-norm condition number: Golub and Van Loan, Matrix Computations, 4th ed., 2.6.2), from 1
    for orthonormal rows or columns to infinity. Where ``s_k`` is no larger than its own rounding, ``max(rows, columns) * 2^-52 *
    s_1`` (the tolerance of numpy's and torch's ``matrix_rank``), the matrix is singular and the number infinite.
    ``stable_rank`` is ``|W|_F^2 / s_1^2`` (Rudelson and Vershynin: Sampling from large matrices, 2007), from 1 to the rank.
    Neither has a unit. ``matrices`` counts the matrices in both means: a zero or empty matrix has neither number.
    ``nonfinite`` elements are counted and read as 0. On an accelerator the decomposition waits for the device.
    """

    fields: ClassVar[tuple[Field, ...]] = (
        Field("nonfinite"),
        Field("matrices", per="call"),
        Field("conditions", per="call"),
        Field("stable_ranks", per="call"),
    )
    numbers: ClassVar[tuple[Number, ...]] = (
        Number("condition", "condition", "Condition number", "size", "no unit", 0.0),
        Number("stable_rank", "stable rank", "Stable rank", "size", "no unit", 0.0),
        count("matrices", unit="matrices", growth=0.0),
        STANDARD["nonfinite"],
    )

    def takes_part(self, whole: tuple[int, ...], part: tuple[int, ...]) -> bool:
        return False

    def rounding(self, row: Tensor) -> Tensor:
        """Return the bound: singular values are off by a few roundings of the largest, a condition by that times itself or more."""
        magnified = 100 * torch.finfo(torch.float64).eps * row.square()
        return torch.maximum(super().rounding(row), torch.where(magnified < row, magnified, torch.inf))

    def measure(self, tensor: Tensor) -> Tensor:
        values = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
        matrix = values.flatten(1) if values.dim() > 1 else values.reshape(1, -1)
        finite = matrix.isfinite()
        nonfinite = (~finite).sum(dtype=torch.float64)
        if matrix.numel() == 0:
            return torch.stack([nonfinite, nonfinite, nonfinite, nonfinite])
        singular = torch.linalg.svdvals(torch.where(finite, matrix, 0.0))
        largest = singular[0]
        some = largest > 0
        shares = singular / torch.where(some, largest, 1.0)
        rounding = max(matrix.shape) * torch.finfo(torch.float64).eps
        condition = torch.where(shares[-1] > rounding, 1.0 / shares[-1], torch.inf)
        return torch.stack(
            [
                nonfinite,
                some.to(torch.float64),
                torch.where(some, condition, 0.0),
                torch.where(some, shares.square().sum(), 0.0),
            ]
        )

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        matrices = np.where(columns["matrices"] > 0, columns["matrices"], np.nan)
        return {
            "nonfinite": columns["nonfinite"],
            "matrices": columns["matrices"],
            "condition": columns["conditions"] / matrices,
            "stable_rank": columns["stable_ranks"] / matrices,
        }
