"""Length and direction: norm and root mean square of tensors, and the cosine of each tensor to the tensor before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.number import STANDARD, Number, count
from sonde.stats.kernels import NORM, Kernel
from sonde.stats.pair import PairStatistic, both_finite
from sonde.stats.statistic import Column, Field, Statistic, dense, elements


@dataclass(frozen=True)
class Norm(Statistic):
    """Euclidean norm and root mean square of all elements added, as of one long vector.

    >>> import torch
    >>> from sonde.stats import Accumulator, Norm
    >>> seen = Accumulator(Norm()).update(torch.tensor([3.0])).update(torch.tensor([4.0])).compute()
    >>> seen.norm, seen.count
    (5.0, 2.0)

    ``norm`` is ``sqrt(sum |x|^2)`` and ``rms`` is ``norm / sqrt(finite)``, both in the unit of x; the norm of several tensors
    is the norm of their concatenation, not a mean of norms. NaN and infinities are counted (``nan``, ``inf``) and left out;
    ``count`` is the number of all elements, ``finite`` the number of finite elements. Elements without a finite one among them have
    neither norm nor rms (NaN); no element at all has the norm 0.

    Squares are computed in float64: float16 values of 300 do not overflow and float32 values of 1e-30 do not vanish. The sum of
    squares has the error that ``Moments`` states.
    Float64 values beyond 1e154 give infinity, and values below 1e-162 vanish. Integers and bools are read as numbers.
    """

    fields: ClassVar[tuple[Field, ...]] = (Field("count"), Field("nan"), Field("inf"), Field("squares"))

    kernel: ClassVar[Kernel | None] = NORM
    numbers: ClassVar[tuple[Number, ...]] = tuple([STANDARD[name] for name in ["norm", "rms", "count", "finite", "nan", "inf"]])

    def measure(self, tensor: Tensor) -> Tensor:
        values = elements(tensor).flatten()
        finite = torch.where(values.isfinite(), values, 0.0)
        nan = values.isnan().sum(dtype=torch.float64)
        return torch.stack(
            [torch.full_like(nan, values.numel()), nan, values.isinf().sum(dtype=torch.float64), finite.square().sum()]
        )

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        finite = columns["count"] - columns["nan"] - columns["inf"]
        return {
            "count": columns["count"],
            "finite": finite,
            "nan": columns["nan"],
            "inf": columns["inf"],
            "norm": np.where((finite > 0) | (columns["count"] == 0), np.sqrt(columns["squares"]), np.nan),
            "rms": np.sqrt(columns["squares"] / np.where(finite > 0, finite, np.nan)),
        }


@dataclass(frozen=True)
class Cosine(PairStatistic):
    """Cosine of the angle between each tensor and the tensor before, averaged over pairs.

    >>> import torch
    >>> from sonde.stats import Accumulator, Cosine
    >>> seen = Accumulator(Cosine())
    >>> for gradient in ([1.0, 0.0], [2.0, 0.0], [0.0, 1.0]):
    ...     _ = seen.update(torch.tensor(gradient))
    >>> seen.compute().cosine, seen.compute().pairs
    (0.5, 2.0)

    ``cos = <x, y> / (|x| |y|)``, no eps added, over the elements that are finite in both; always in [-1, 1]. The first tensor of a
    sequence has no predecessor and gives no pair (not a pair of cosine 0).

    Numbers: ``pairs``; ``skipped``, tensors whose shape differs from their predecessor's; ``undefined``, pairs in which one
    tensor is zero or no element is finite in both; ``cosine``, the mean over the other pairs, no unit
    (NaN without any); ``elements``, the elements compared, and ``nonfinite``, the elements left out, over all pairs.

    Each tensor is divided by its largest magnitude first, so that neither 1e-30 in float32 nor 1e-300 in float64
    vanishes. A complex element is two: the result is the real part of the Hermitian product over the norms.
    """

    sums: ClassVar[tuple[str, ...]] = ("elements", "nonfinite", "defined", "cosines")
    compares_updates: ClassVar[bool] = True

    numbers: ClassVar[tuple[Number, ...]] = (
        STANDARD["cosine"],
        *(count(name, unit="pairs", growth=0.0) for name in ("pairs", "skipped", "undefined")),
        STANDARD["elements"],
        STANDARD["nonfinite"],
    )

    def measure(self, tensor: Tensor, previous: Tensor) -> Tensor:
        one, other, finite = both_finite(tensor, previous)
        found = _cosine(one, other)
        defined = ~found.isnan()
        elements = finite.sum(dtype=torch.float64)
        return torch.stack([elements, finite.numel() - elements, defined.to(torch.float64), torch.where(defined, found, 0.0)])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        defined = columns["defined"]
        return {
            "pairs": columns["pairs"],
            "skipped": columns["skipped"],
            "undefined": columns["pairs"] - defined,
            "cosine": columns["cosines"] / np.where(defined > 0, defined, np.nan),
            "elements": columns["elements"],
            "nonfinite": columns["nonfinite"],
        }


def cosine(tensor: Tensor, previous: Tensor) -> Tensor:
    """Return the cosine of the angle between two tensors of one shape, over the elements that are finite in both.

    >>> import torch
    >>> from sonde.stats import cosine
    >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).item()
    0.0

    Returns:
        A float64 scalar in [-1, 1] on the tensors' device; NaN if a tensor is zero or no element is finite in both. No host sync.

    Raises:
        ArgumentError: the two tensors have different shapes.
    """
    tensor, previous = dense(tensor), dense(previous)
    if tensor.shape != previous.shape:
        raise ArgumentError(f"the cosine of {tuple(tensor.shape)} to {tuple(previous.shape)}: two tensors need one shape")
    one, other, _ = both_finite(tensor, previous)
    return _cosine(one, other)


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    one, other = _scaled(one), _scaled(other)
    product = torch.linalg.vector_norm(one) * torch.linalg.vector_norm(other)
    return torch.where(product > 0, (one * other).sum() / product, torch.nan).clamp(-1.0, 1.0)


def _scaled(values: Tensor) -> Tensor:
    """Return *values* divided by their largest magnitude, or all zeros."""
    largest = values.abs().amax() if values.numel() else values.new_zeros(())
    return values / torch.where(largest > 0, largest, 1.0)
