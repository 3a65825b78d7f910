"""Compute quantiles of magnitudes from the counts per power of two, with an error bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sonde.errors import ArgumentError
from sonde.stats.statistic import Column

LOWEST = -149
"""The lowest power that has a bin: 2**-149 is the smallest float32."""

HIGHEST = 128
"""The highest power that has a bin: every finite float32 is below 2**128."""

ERROR_FACTOR = 2.0**0.5
"""A quantile is at most this factor above or below the true quantile."""

PERCENTILES: dict[str, float] = {"p01": 0.01, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}
"""The quantiles that every finished histogram gives, by name."""


def magnitude_quantiles(columns: Mapping[str, Column], shares: Sequence[float]) -> Column:
    """Return quantiles of ``|x|`` over the finite elements of each row of an ``ExponentHistogram``.

    >>> import torch
    >>> from sonde.stats import Accumulator, ExponentHistogram, magnitude_quantiles
    >>> seen = Accumulator(ExponentHistogram()).update(torch.tensor([1.0, 1.0, 1.0, 1.0]))
    >>> magnitude_quantiles(seen.columns(), [0.5]).shape
    (1, 1)

    The quantile of share q is the order statistic of rank ``max(1, ceil(q n))`` of n magnitudes (numpy's
    ``inverted_cdf``). The order statistic lies in a known bin ``(2**(e-1), 2**e]``; the returned ``2**(e-1/2)`` is at most a factor
    of sqrt(2) off. Zeros are exact. For float64 magnitudes outside the bins, the edge is returned: 2**-150 or 2**128.

    Args:
        columns: columns of the histogram, as from ``Accumulator(ExponentHistogram()).columns()``.
        shares: each from 0 to 1.

    Returns:
        Float64 of shape ``(rows, len(shares))``, in the unit of x; NaN for a row without a finite element.

    Raises:
        ArgumentError: a share is not between 0 and 1.
    """
    wrong = [share for share in shares if not 0 <= share <= 1]
    if wrong:
        raise ArgumentError(f"a quantile is asked for by its share from 0 to 1, not by {wrong[0]}")
    counts = np.column_stack([columns["zero"], columns["below"], columns["powers"], columns["above"]])
    middles = 2.0 ** (np.arange(LOWEST, HIGHEST + 1) - 0.5)
    values = np.concatenate([[0.0, 2.0 ** (LOWEST - 1)], middles, [2.0**HIGHEST]])
    reached = counts.cumsum(axis=1)
    total = reached[:, -1:]
    ranks = np.maximum(1.0, np.ceil(np.asarray(shares, dtype=np.float64) * total))
    places = (reached[:, None, :] < ranks[:, :, None]).sum(axis=2)
    return np.where(total > 0, values[np.minimum(places, len(values) - 1)], np.nan)
