"""The spectrum of activations over many batches, from a sketch of fixed size: effective rank and top singular value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.number import STANDARD, Number, count, share
from sonde.stats.activation import by_channel, is_whole_on
from sonde.stats.statistic import Column, Field, Statistic

_EPS = float(np.finfo(np.float64).eps)


def _signs(rows: int, columns: int, device: torch.device) -> Tensor:
    """Return a matrix of pseudo-random 1 and -1, the same on every device."""
    place = torch.arange(1, rows * columns + 1, device=device)
    for factor in (0x5DEECE66D, 0x2C1B3C6D, 0x297A2D39):  # a multiplicative hash in integers
        place = ((place ^ (place >> 15)) * factor) & ((1 << 28) - 1)
    return (1 - 2 * ((place >> 20) & 1)).to(torch.float64).reshape(rows, columns)


@cache
def _kept_signs(rows: int, columns: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _signs(rows, columns, device)


class _Spectra(NamedTuple):
    singular: Column  # (rows, sketch): estimates, none above the true singular value of its rank
    total: Column  # (rows,): the sum of all true squares
    missing: Column  # (rows,): an upper bound of the part of the total that the estimates miss


@dataclass(frozen=True)
class Spectrum(Statistic):
    """Effective rank and top singular value of all vectors added, as the rows of one matrix X of *features* columns.

    >>> import torch
    >>> from sonde.stats import Accumulator, Spectrum
    >>> statistic = Spectrum(2)
    >>> seen = Accumulator(statistic).update(torch.tensor([[3.0, 0.0], [6.0, 0.0]])).compute()
    >>> round(seen.effective_rank, 3), seen.vectors
    (1.0, 2.0)
    >>> statistic.takes_part((4, 2), (2, 2)), statistic.takes_part((4, 2), (4, 1))
    (True, False)

    A row keeps ``Y = G Q`` for the Gram matrix ``G = X^T X`` and a fixed matrix Q of *sketch* columns: Y adds up over
    batches, and takes ``features * min(features, sketch)`` numbers for any number of vectors. The estimate is the Nyström
    approximation ``Y (Q^T Y)^+ Y^T`` (Tropp, Yurtsever, Udell, Cevher: Fixed-rank approximation of a positive-semidefinite
    matrix from streaming data, 2017), which never exceeds G. The trace of G is known, and with it the part that the estimate
    misses. Each result comes with an error bound that holds for all tensors, up to rounding:

    * ``top``, the largest singular value of X, in the unit of x: the true value is from ``top`` to ``top + top_error``.
      ``top`` grows with the number of vectors; ``top / sqrt(vectors)`` does not.
    * ``effective_rank``, ``exp(-sum p log p)`` with ``p = s / sum s`` over the singular values s of X (Roy and Vetterli: The
      effective rank, 2007), from 1 to *features*, no unit: the true rank is at most ``effective_rank_error`` away.
      (The error of a singular value is at most the root of the error of its square; the bound on the entropy follows by Audenaert's
      inequality, 2007. The bound is far from sharp.)
    * ``captured``: share of the squares of X in the estimate. At 1 both errors are rounding errors of float64: with at most
      *sketch* features, or a rank of at most *sketch*. A singular value is lost in rounding if its square is below
      ``features * 2.2e-16`` of the sum of all squares (with ``centered``, of those before the mean is subtracted).
    * ``vectors``, the number of vectors; ``left_out``, vectors with a NaN or an infinity, which no other number counts;
      ``norm``, the Frobenius norm of X, in the unit of x. Where every vector was left out, ``norm`` and ``top`` are NaN.

    Without vectors, or with zeros only, the ranks and ``captured`` are NaN. All measured numbers are NaN where squares overflow
    float64, beyond 1e154. Complex elements are read as their modulus.

    Args:
        features: number of features, the length of a vector.
        sketch: columns of Q. Choose more where ``effective_rank_error`` is too large.
        axis: the axis of the features: -1 for ``(batch, tokens, features)``, 1 for ``(batch, channels, height, width)``.
        centered: first subtract the mean of all vectors, as a covariance does.

    Raises:
        ArgumentError: *features* or *sketch* is not positive; when measuring, the tensor has another number of features.
    """

    features: int
    sketch: int = 128
    axis: int = -1
    centered: bool = False

    numbers: ClassVar[tuple[Number, ...]] = (
        Number("effective_rank", "effective rank", "Effective rank", "size", "no unit", 0.0),
        Number("effective_rank_error", "error of the rank", "Error of the effective rank", "size", "no unit", 0.0, minor=True),
        Number("top", "largest singular value", "Largest singular value", "size", None, 1.0, 0.5),
        Number("top_error", "error of the largest", "Error of the largest singular value", "size", None, 1.0, minor=True),
        STANDARD["norm"],
        share("captured", "captured", "Squares in the estimate", "share of squares"),
        count("vectors", unit="vectors"),
        count("left_out", "left out", unit="vectors"),
    )

    def __post_init__(self) -> None:
        if self.features < 1 or self.sketch < 1:
            raise ArgumentError(f"features and sketch must be 1 or more, not {self.features} and {self.sketch}")

    @property
    def fields(self) -> tuple[Field, ...]:
        sizes = {"vectors": 1, "left_out": 1, "squares": 1, "sums": self.features, "sketch": self.features * self._columns}
        return tuple([Field(name, size=size) for name, size in sizes.items()])

    @property
    def _columns(self) -> int:
        return min(self.features, self.sketch)

    def takes_part(self, whole: tuple[int, ...], part: tuple[int, ...]) -> bool:
        """Return whether the part has whole vectors: their Gram matrices add up over ranks."""
        return is_whole_on(self.axis, whole, part)

    def marks(self, rows: Tensor) -> Tensor:
        return rows[:, :3]  # the other sums may cancel out

    def measure(self, tensor: Tensor) -> Tensor:
        matrix = by_channel(tensor, self.axis)
        if matrix.shape[0] != self.features:
            raise ArgumentError(
                f"a tensor of shape {tuple(tensor.shape)} has {matrix.shape[0]} features on axis {self.axis}, and {self} takes "
                f"{self.features}: give the features it has, or another axis"
            )
        kept = matrix.isfinite().all(0)
        matrix = torch.where(kept, matrix, 0.0)
        vectors = kept.sum(dtype=torch.float64)
        sketch = matrix @ (matrix.T if self._is_whole else matrix.T @ self._directions(matrix.device))
        counts = torch.stack([vectors, kept.numel() - vectors, matrix.square().sum()])
        return torch.cat([counts, matrix.sum(1), sketch.flatten()])

    @property
    def _is_whole(self) -> bool:
        return self._columns == self.features

    def _directions(self, device: torch.device) -> Tensor:
        """Return Q, of shape ``(features, columns)``. Compiled code computes Q, since it cannot keep a table of it."""
        make = _signs if torch.compiler.is_dynamo_compiling() else _kept_signs
        return make(self.features, self._columns, device)

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        spectra = self._spectra(columns)
        some = spectra.total > 0
        total = np.where(some, spectra.total, np.nan)
        is_lost = (columns["vectors"] == 0) & (columns["left_out"] > 0)
        top = np.where(is_lost, np.nan, spectra.singular.max(axis=1))
        rank, rank_error = self._effective_rank(spectra, columns["vectors"])
        return {
            "vectors": columns["vectors"],
            "left_out": columns["left_out"],
            "norm": np.where(is_lost, np.nan, np.sqrt(spectra.total)),
            "captured": np.minimum(np.square(spectra.singular).sum(axis=1) / total, 1.0),
            "top": top,
            "top_error": np.sqrt(top * top + spectra.missing) - top,
            "effective_rank": np.where(some, rank, np.nan),
            "effective_rank_error": np.where(some, rank_error, np.nan),
        }

    def _spectra(self, columns: Mapping[str, Column]) -> _Spectra:
        sketch = columns["sketch"].reshape(-1, self.features, self._columns)
        held = np.isfinite(columns["squares"]) & np.isfinite(sketch).all(axis=(1, 2))
        sketch = np.where(held[:, None, None], sketch, 0.0)
        total = np.where(held, columns["squares"], 0.0)
        directions = np.eye(self.features)
        if not self._is_whole:  # the estimate depends only on the span of the directions; an orthonormal basis rounds least
            directions, triangle = np.linalg.qr(self._directions(torch.device("cpu")).numpy())
            sketch = np.linalg.solve(triangle.T, sketch.swapaxes(1, 2)).swapaxes(1, 2)
        rounding = self.features * _EPS * total
        if self.centered:
            vectors = np.maximum(columns["vectors"], 1.0)
            mean = np.where(held[:, None], columns["sums"].reshape(-1, self.features), 0.0) / vectors[:, None]
            sketch = sketch - vectors[:, None, None] * mean[:, :, None] * (mean @ directions)[:, None, :]
            total = np.maximum(total - vectors * np.square(mean).sum(axis=1), 0.0)
            total = np.where(total > rounding, total, 0.0)  # equal vectors leave only rounding errors
        core = directions.T @ sketch
        values, axes = np.linalg.eigh((core + core.swapaxes(1, 2)) / 2)
        kept = values > rounding[:, None]  # else, where no direction meets the vectors, rounding errors alone would be an estimate
        if self._is_whole:
            squares = np.where(kept, values, 0.0)
        else:
            roots = np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0)
            squares = np.square(np.linalg.svd(sketch @ axes * roots[:, None, :], compute_uv=False))
        missing = np.maximum(total - squares.sum(axis=1), 0.0) + rounding
        singular = np.where(total[:, None] > 0, np.sqrt(squares), 0.0)
        return _Spectra(*[np.where(held if item.ndim == 1 else held[:, None], item, np.nan) for item in (singular, total, missing)])

    def _effective_rank(self, spectra: _Spectra, vectors: Column) -> tuple[Column, Column]:
        """Return the effective rank of each row of estimates, and the largest distance to the true rank."""
        singular = spectra.singular
        sums = np.where(singular.any(axis=1), singular.sum(axis=1), 1.0)
        shares = singular / sums[:, None]
        rank = np.exp(-(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1))
        most = np.clip(vectors, 1.0, self.features)  # the true rank is at most this
        rank = np.clip(rank, 1.0, most)  # rounding may carry the estimate beyond its range
        # of shares: half the sum of their errors; where there is no estimate the largest that it can be
        distance = np.where(singular.any(axis=1), np.sqrt(most * spectra.missing) / sums, 1.0)
        near = np.clip(distance, _EPS, np.maximum(1 - 1 / most, _EPS))
        entropy = near * np.log(np.maximum(most - 1, 1.0)) - near * np.log(near) - (1 - near) * np.log1p(-near)
        furthest = np.maximum(most - rank, rank - 1)
        return rank, np.minimum(rank * np.expm1(entropy), furthest)
