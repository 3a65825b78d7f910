"""Write times and counts for people."""

from __future__ import annotations

__all__ = ["many", "seconds_in_words"]


def seconds_in_words(value: float) -> str:
    """Return a time with three digits.

    >>> seconds_in_words(0.00123456)
    '1.23 ms'
    """
    size = abs(value)
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def many(number: int, one: str, several: str = "") -> str:
    """Return a number and its noun.

    >>> many(2, "site")
    '2 sites'
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
