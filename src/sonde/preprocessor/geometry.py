"""Length of tensors that come one after the other, and the angle between each and the one before it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, NamedTuple

from torch import Tensor

from sonde.engine.clock.loss_scale import unscaled
from sonde.errors import ArgumentError
from sonde.preprocessor.aggregates import Aggregate
from sonde.preprocessor.interval import NumberSpec
from sonde.preprocessor.measured import Measured
from sonde.stats import Cosine, Norm
from sonde.stats.history import History

__all__ = ["Geometry", "SequenceGeometry"]

_NORM, _CORRELATION = 0, 1  # positions of the specs


class Geometry(NamedTuple):
    """Length of tensors over an interval, and the cosine of each to the one before it, from -1 to 1."""

    norm: Aggregate
    correlation: Aggregate


class SequenceGeometry(Measured):
    """Norm, and correlation with the tensor before, of one tensor after the other of each name.

    *Tensor to number*: ``norm`` is the Euclidean norm, with *normalize* divided by the root of the number of elements
    (:class:`sonde.stats.Norm`); ``correlation`` is the cosine of the angle to the tensor before
    (:class:`sonde.stats.Cosine`). Both are formed in float64. *Numbers to aggregates*: unweighted over calls.

    Differences from the fifth seed, each of which makes its numbers wrong: a first tensor has no correlation, where the
    seed counts one of 0; and *eps* is not added to the product of the norms, where two equal gradients of norm 1e-5 get a
    correlation of 0.0099. A tensor that is zero, or of another shape than the one before it, has no correlation either. ``reset``
    keeps the tensor before, so that a new interval does not begin with a gap.

    An empty tensor gives no number; one with a NaN or an infinity is counted as ``nonfinite`` in the aggregates. Sparse
    tensors are made dense. Of complex tensors the correlation is the real part of the Hermitian product over the norms.

    Args:
        correlation: also give the correlation, for which a copy of the last tensor is kept: ``value`` then has a
            :class:`Geometry` for each name, otherwise the aggregate of the norm.
        normalize: divide norms by the root of the number of elements.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
        eps: as in the seed's signature; not needed, and not used.
        scaler: the ``GradScaler`` of the training, so that norms are those of the unscaled gradients.

    Raises:
        ArgumentError: *eps* is negative, infinite or NaN.
    """

    def __init__(
        self,
        correlation: bool = True,
        normalize: bool = False,
        inplace: bool = True,
        eps: float = 1e-8,
        *,
        scaler: Any = None,
    ) -> None:
        if not 0 <= eps < math.inf:
            raise ArgumentError(f"eps must be 0 or more and finite, not {eps}")
        number = "rms" if normalize else "norm"
        specs = [NumberSpec(Norm(), {number: number}), NumberSpec(Cosine(), {"correlation": "cosine"})]
        super().__init__(specs if correlation else specs[:1], inplace, Geometry if correlation else None)
        self._history = History() if correlation else None
        self._scaler = scaler

    def _add(self, name: str, tensor: Tensor, *, before_of: Hashable = None, step: int | None = None) -> None:
        """Measure *tensor*.

        Args:
            name: under which its numbers stand.
            tensor: it.
            before_of: which tensors of that name follow each other, if not all do.
            step: if given, this is a later version of what came at the same step, in whose place it stands.
        """
        self._interval.add(name, unscaled(tensor, self._scaler), spec=_NORM, step=step)
        if self._history is not None:
            key = (name, before_of)
            previous = self._history.previous(key, step)
            if previous is not None:
                self._interval.add(name, tensor, previous, spec=_CORRELATION, step=step)
            self._history.remember(key, tensor, step)

    def clear(self) -> None:
        super().clear()
        if self._history is not None:
            self._history.clear()
