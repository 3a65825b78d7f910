"""Write numbers, sizes, times, shapes, shares, counts and lists of names for people: each in one way, everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_LARGE = 1e6  # from here on a number has an exponent


def number_text(value: float | complex, digits: int = 4) -> str:
    """Return a number with *digits* significant digits; one from 1,000 to 999,999, and a whole one below, with all its digits.

    >>> [number_text(value) for value in (0, -0.3125, 0.123456, 65504.0, 3.4e38, float("nan"))]
    ['0', '-0.3125', '0.1235', '65,504', '3.4e+38', 'NaN']
    """
    if isinstance(value, complex):
        sign = "+" if value.imag >= 0 or math.isnan(value.imag) else ""
        return f"({number_text(value.real, digits)}{sign}{number_text(value.imag, digits)}j)"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if abs(value) < _LARGE and (value == int(value) or abs(value) >= 10 ** min(digits, 3) - 0.5):
        return f"{int(value) if value == int(value) else value:,.0f}"
    return f"{value:.{digits}g}"


def short(value: float) -> str:
    """Return a number as a sentence has it, with two digits.

    >>> short(0.123456), short(899.4)
    ('0.12', '899')
    """
    return number_text(value, 2)


def large_text(number: float) -> str:
    """Return a count that may be large with three digits and a power of a thousand.

    >>> large_text(950), large_text(12_345), large_text(4.56e6)
    ('950', '12.3 k', '4.56 M')
    """
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if abs(number) >= 999.5 * 1000 ** (power - 1):
            return f"{number / 1000**power:#.3g} {letter}".replace(". ", " ")
    return f"{number:.3g}"


def size_text(count: float) -> str:
    """Return a number of bytes in decimal units, as disks and most papers have it.

    >>> size_text(950), size_text(12_345), size_text(2e9)
    ('950 B', '12.3 kB', '2.0 GB')
    """
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if count < 999.5:
            break
        count, unit = count / 1000, larger
    return f"{count:.{1 if unit != 'B' and count < 99.95 else 0}f} {unit}"


def time_text(seconds: float) -> str:
    """Return a time with three digits.

    >>> time_text(0.00123456)
    '1.23 ms'
    """
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def percent(share: float, decimals: int = 0) -> str:
    """Return a share, 1 for all, as percent with *decimals*; 100 % and 0 % only where they are exact.

    >>> percent(0.25), percent(0.001), percent(0.999), percent(0.0123, 1)
    ('25 %', '<1 %', '99 %', '1.2 %')
    """
    scaled, step = share * 100, 10.0**-decimals
    if not math.isfinite(scaled):
        return f"{number_text(scaled)} %"
    if 0 < scaled < step:
        return f"<{step:.{decimals}f} %"
    if 100 - step / 2 <= scaled < 100:
        return f"{100 - step:.{decimals}f} %"
    return f"{math.floor(scaled / step + 0.5) * step:.{decimals}f} %"


def shape_text(shape: Sequence[int | str]) -> str:
    """Return the shape of a tensor; ``scalar`` for one without dimensions.

    >>> shape_text((2, 64)), shape_text(())
    ('2×64', 'scalar')
    """
    return "×".join(map(str, shape)) or "scalar"


def many(number: int, one: str, several: str = "") -> str:
    """Return a count and its noun, *one* or *several* (by default *one* with an s).

    >>> many(1, "site"), many(1_200, "site"), many(0, "entry", "entries")
    ('1 site', '1,200 sites', '0 entries')
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def names_text(names: Iterable[object], most: int = 3) -> str:
    """Return the first *most* names, and how many there are besides.

    >>> names_text(["a", "b"]), names_text("abcde", 2)
    ('a, b', 'a, b and 3 more')
    """
    shown = [str(name) for name in names]
    more = f" and {len(shown) - most:,} more" if len(shown) > most else ""
    return f"{', '.join(shown[:most])}{more}"
