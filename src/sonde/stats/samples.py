"""The first level, tensor to number, where ``sonde.stats`` has no such statistic: samples, matrices, single numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sonde.stats import Field, RowStatistic, Statistic
from sonde.stats.statistic import Column, numbers

__all__ = ["MatrixCondition", "SampleNorm", "Single"]


@dataclass(frozen=True)
class SampleNorm(Statistic):
    """Euclidean norm and root mean square of each sample, averaged over samples.

    A tensor is read as ``(sample, ...)``, a scalar as one sample. With ``n_b = |x_b|`` over all other dimensions, ``norm`` is
    the mean of ``n_b`` and ``rms`` the mean of ``n_b / sqrt(elements of a sample)``: the mean of the samples' root mean
    squares, not that of all elements. ``nonfinite`` elements are counted and left out; without samples both are NaN.
    """

    fields: ClassVar[tuple[Field, ...]] = (Field("nonfinite"), Field("samples"), Field("norms"), Field("rms"))

    def measure(self, tensor: Tensor) -> Tensor:
        values = numbers(tensor)
        matrix = values.reshape(values.shape[0] if values.dim() else 1, math.prod(values.shape[1:]))
        finite = matrix.isfinite()
        norms = torch.linalg.vector_norm(torch.where(finite, matrix, 0.0), dim=1)
        elements = finite.sum(1, dtype=torch.float64)
        samples = torch.where(elements > 0, 1.0, 0.0).to(torch.float64).sum()
        rms = norms / elements.clamp(min=1).sqrt()
        return torch.stack([matrix.numel() - elements.sum(), samples, norms.sum(), rms.sum()])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        samples = np.where(columns["samples"] > 0, columns["samples"], np.nan)
        return {
            "nonfinite": columns["nonfinite"],
            "samples": columns["samples"],
            "norm": columns["norms"] / samples,
            "rms": columns["rms"] / samples,
        }


@dataclass(frozen=True)
class Single(RowStatistic):
    """A number that was measured elsewhere: ``value``, and whether it is ``nonfinite``."""

    def layout(self) -> tuple[tuple[str, int], ...]:
        return (("value", 1),)

    def empty(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        with torch.inference_mode(False):
            return torch.full((rows, 1), torch.nan, dtype=torch.float64, device=device)

    def measure(self, number: Tensor) -> Tensor:
        """The row of a tensor of one element."""
        return number.detach().to(torch.float64, copy=True).reshape(1)

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        return {"value": columns["value"], "nonfinite": (~np.isfinite(columns["value"])).astype(np.float64)}


@dataclass(frozen=True)
class MatrixCondition(RowStatistic):
    """Condition number and stable rank of a matrix W, from its singular values ``s_1 >= ... >= s_k``, k the shorter side.

    ``condition`` is ``s_1 / s_k`` (the 2-norm condition number: Golub and Van Loan, Matrix Computations, 4th ed., 2.6.2), from 1
    for orthonormal rows or columns to infinity; float64 rounds it, so that beyond 1e15 it says no more than "singular".
    ``stable_rank`` is ``|W|_F^2 / s_1^2`` (Rudelson and Vershynin: Sampling from large matrices, 2007), from 1 to the rank.
    Neither has a unit. Of a zero matrix both are NaN; ``nonfinite`` elements are counted and read as 0.
    """

    def layout(self) -> tuple[tuple[str, int], ...]:
        return (("nonfinite", 1), ("largest", 1), ("least", 1), ("squares", 1))

    def empty(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        with torch.inference_mode(False):
            return torch.zeros(rows, self.width, dtype=torch.float64, device=device)

    def measure(self, matrix: Tensor) -> Tensor:
        """The row of a matrix that is not empty. On an accelerator the decomposition itself waits for the device."""
        values = matrix.detach().to(torch.complex128 if matrix.is_complex() else torch.float64)
        finite = values.isfinite()
        singular = torch.linalg.svdvals(torch.where(finite, values, 0.0))
        nonfinite = (~finite).sum(dtype=torch.float64)
        return torch.stack([nonfinite, singular[0], singular[-1], singular.square().sum()])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        largest = np.where(columns["largest"] > 0, columns["largest"], np.nan)
        with np.errstate(divide="ignore"):
            condition = largest / columns["least"]
        return {
            "nonfinite": columns["nonfinite"],
            "condition": condition,
            "stable_rank": columns["squares"] / largest / largest,
        }
