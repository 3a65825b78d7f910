"""Count elements per power of two: how large they are, and which of them another precision would lose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sonde.number import STANDARD, Number, share
from sonde.stats.kernels import EXPONENTS, Kernel
from sonde.stats.quantiles import HIGHEST, LOWEST, PERCENTILES, magnitude_quantiles
from sonde.stats.statistic import Column, Field, Statistic, elements
from sonde.words import percent

UNDERFLOW: dict[str, int] = {"fp16": -25, "bf16": -134, "e4m3": -10, "e5m2": -17}
"""Format to power: a magnitude of at most ``2**power``, half the smallest subnormal, is rounded to zero (ties go to even)."""

OVERFLOW: dict[str, float] = {
    "fp16": 65520.0,
    "bf16": 2.0**128 - 2.0**119,
    "e4m3": float(np.nextafter(464.0, np.inf)),
    "e5m2": 61440.0,
}
"""Format to the least magnitude that is rounded beyond its greatest finite value (65504, 3.39e38, 448, 57344).

The bound is halfway to the next value that the format would have, where a tie goes to even: up for three formats, down for e4m3
(464).
"""

_SCALARS = ("zero", "nan", "inf", "negative", *(f"over_{name}" for name in OVERFLOW), "below")
_BELOW = _SCALARS.index("below")
_ABOVE = _BELOW + (HIGHEST - LOWEST + 1) + 1


def _percentile(name: str, part: float) -> Number:
    """Return a percentile described. Scaling 0: under a GradScaler the scaled magnitudes must fit into a format."""
    share = percent(part)
    return Number(name, share, f"Magnitude that {share} stay below", "size", None, 0.0, minor=part != 0.5)


@dataclass(frozen=True)
class ExponentHistogram(Statistic):
    """Counts of elements per power of two; percentiles, dynamic range, underflow and overflow from them.

    >>> import torch
    >>> from sonde.stats import Accumulator, ExponentHistogram
    >>> seen = Accumulator(ExponentHistogram()).update(torch.tensor([1.0, 1.5, 4.0, 0.0])).compute()
    >>> seen.count, seen.zeros
    (4.0, 1.0)

    **Row layout** (288 float64, all of them counts that add up; the same for every kernel):

    ======== ============ ==========================================================================
    position field        elements counted
    ======== ============ ==========================================================================
    0        ``zero``     equal to 0, of either sign
    1        ``nan``      NaN
    2        ``inf``      infinite, of either sign
    3        ``negative`` finite and less than 0
    4 to 7   ``over_*``   finite and of magnitude at least ``OVERFLOW[*]``: fp16, bf16, e4m3, e5m2
    8        ``below``    ``0 < |x| <= 2**-150``
    9 to 286 ``powers``   position ``9 + (e + 149)``: ``2**(e-1) < |x| <= 2**e``, for e from -149 to 128
    287      ``above``    finite and ``|x| > 2**128``
    ======== ============ ==========================================================================

    An element is counted in exactly one of zero, nan, inf, below, powers, above. The power of x is ``ceil(log2(|x|))``: bins are
    closed above, so that the elements that round to zero in another format fill whole bins, ties included. (For a float32
    with bits b, sign removed, normal and above 2**-126: ``e = ((b - 1) >> 23) - 126``.)

    Numbers (units in ``docs/statistics.md``): ``count``, ``finite``, ``zeros``, ``negative``, ``nan``, ``inf``;
    ``p01`` ... ``p99`` of the magnitudes of finite elements, each within a factor of sqrt(2) of the true order statistic;
    ``lowest`` and ``highest`` power of the non-zero finite elements, and ``dynamic_range``, their difference: within one
    octave of ``log2(max |x| / min |x|)``; ``underflow_*``, the share of finite elements that are not zero and would be zero in
    that format, and ``overflow_*``, the share of finite elements that would be beyond the greatest finite value of that format.
    Both are exact for one rounding to nearest (torch casts float64 in two roundings, through float32). Shares, percentiles,
    ``lowest`` and ``highest`` are NaN where there is no element to count. A run also holds the counts, beside
    the numbers, as ``powers``: 278 in each row.

    Integers and bools are read as numbers, complex tensors as their modulus.
    """

    fields: ClassVar[tuple[Field, ...]] = (
        *(Field(name) for name in _SCALARS),
        Field("powers", size=HIGHEST - LOWEST + 1),
        Field("above"),
    )

    kernel: ClassVar[Kernel] = EXPONENTS
    recorded: ClassVar[tuple[str, ...]] = ("powers",)
    numbers: ClassVar[tuple[Number, ...]] = (
        *sorted((_percentile(name, part) for name, part in PERCENTILES.items()), key=lambda number: number.minor),
        Number("dynamic_range", "dynamic range", "Dynamic range", "power", "octaves", 0.0),
        Number("lowest", "lowest power", "Lowest power of two", "power", "power of 2", 0.0, minor=True),
        Number("highest", "highest power", "Highest power of two", "power", "power of 2", 0.0, minor=True),
        *(share(f"underflow_{name}", f"underflow in {name}", f"Would be rounded to zero in {name}") for name in UNDERFLOW),
        *(share(f"overflow_{name}", f"overflow in {name}", f"Would be beyond the range in {name}") for name in OVERFLOW),
        *(STANDARD[name] for name in ("count", "finite", "zeros", "negative", "nan", "inf")),
    )

    def measure(self, tensor: Tensor) -> Tensor:
        values = elements(tensor).flatten()
        magnitudes = values.abs()
        finite = magnitudes.isfinite()
        power = ((magnitudes.view(torch.int64) - 1) >> 52) - 1022  # of the bits of a double; without the 1, bins are closed below
        place = (power - LOWEST + _BELOW + 1).clamp(_BELOW, _ABOVE)
        place = torch.where(magnitudes == 0, 0, torch.where(finite, place, torch.where(magnitudes.isnan(), 1, 2)))
        row = values.new_zeros(_ABOVE + 1).scatter_add(0, place, torch.ones_like(values))
        extra = [((values < 0) & finite).sum(dtype=torch.float64)]
        extra += [((magnitudes >= least) & finite).sum(dtype=torch.float64) for least in OVERFLOW.values()]
        return torch.cat([row[:3], torch.stack(extra), row[_BELOW:]])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        bins = np.column_stack([columns["below"], columns["powers"], columns["above"]])
        finite = columns["zero"] + bins.sum(axis=1)
        share = np.where(finite > 0, finite, np.nan)
        filled = bins > 0
        some = filled.any(axis=1)
        lowest = np.where(some, filled.argmax(axis=1) + (LOWEST - 1), np.nan)
        highest = np.where(some, HIGHEST + 1 - filled[:, ::-1].argmax(axis=1), np.nan)
        found = {
            "count": finite + columns["nan"] + columns["inf"],
            "finite": finite,
            "zeros": columns["zero"],
            "negative": columns["negative"],
            "nan": columns["nan"],
            "inf": columns["inf"],
        }
        found |= zip(PERCENTILES, magnitude_quantiles(columns, list(PERCENTILES.values())).T, strict=True)
        found |= {"lowest": lowest, "highest": highest, "dynamic_range": highest - lowest}
        for name, power in UNDERFLOW.items():
            found[f"underflow_{name}"] = bins[:, : power - LOWEST + 2].sum(axis=1) / share
        for name in OVERFLOW:
            found[f"overflow_{name}"] = columns[f"over_{name}"] / share
        return found
