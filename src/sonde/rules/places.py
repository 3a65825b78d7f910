"""All rules of one place together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from sonde.rules.finding import Finding
from sonde.rules.gradients import gradient_large, gradient_small, gradient_zero
from sonde.rules.health import all_zero, constant, dead, nonfinite, saturated
from sonde.rules.updates import update_large, update_small


def of_output(seen: Any, *, dead_share: float | None = None, saturated_share: float = 0.0) -> list[Finding]:
    """Return the findings about an output; *seen* has ``count``, ``nan``, ``inf``, ``zeros``, ``mean`` and ``std``.

    >>> import sonde, torch
    >>> from sonde.rules import of_output
    >>> seen = sonde.stats.Accumulator(sonde.stats.Moments()).update(torch.tensor([1.0, float("nan")])).compute()
    >>> [found.rule for found in of_output(seen)]
    ['nonfinite']
    """
    if not seen.count:
        return []
    broken = nonfinite(seen.nan, seen.inf, seen.count)
    if broken is not None:
        return [broken]
    silent = all_zero(seen.zeros, seen.count) if dead_share is None else dead(dead_share)
    return _some([silent or constant(seen.mean, seen.std, seen.count), saturated(saturated_share)])


def of_gradient(seen: Any, typical: float, *, what: str = "gradient") -> list[Finding]:
    """Return the findings about a gradient; *seen* has ``count``, ``nan``, ``inf`` and ``norm``.

    >>> import sonde, torch
    >>> from sonde.rules import of_gradient
    >>> seen = sonde.stats.Accumulator(sonde.stats.Moments()).update(torch.tensor([3e6, 4e6])).compute()
    >>> [found.rule for found in of_gradient(seen, typical=1.0)]
    ['gradient_large']

    *typical* is the median norm of the gradients, 0 if there is none.

    A gradient of one element, as that of a loss, is not compared with those of layers.
    """
    if not seen.count:
        return []
    broken = nonfinite(seen.nan, seen.inf, seen.count, what=what)
    return [broken] if broken is not None else of_size(seen.norm, typical if seen.count > 1 else 0.0)


def of_size(size: float, typical: float) -> list[Finding]:
    """Return the findings about the *size* of a gradient; *typical* is the median of its kind, 0 if there is none.

    >>> from sonde.rules import of_size
    >>> [found.rule for found in of_size(1e6, typical=1.0)], of_size(1.0, typical=1.0)
    (['gradient_large'], [])
    """
    return _some([gradient_zero(size) or gradient_large(size, typical) or gradient_small(size, typical)])


def of_update(update: float, weight: float) -> list[Finding]:
    """Return the findings about the size of an update, given the size of the weight; none if that is 0 or NaN.

    >>> from sonde.rules import of_update
    >>> [found.rule for found in of_update(0.5, weight=1.0)], of_update(0.001, weight=1.0)
    (['update_large'], [])
    """
    ratio = update / weight if weight > 0 else math.nan
    return _some([update_large(ratio) or update_small(ratio)])


def _some(found: Iterable[Finding | None]) -> list[Finding]:
    return [each for each in found if each is not None]
