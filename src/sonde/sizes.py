"""Read a number of bytes as people write it; ``words.size_text`` writes one."""

from __future__ import annotations

import re
from math import inf

from sonde.errors import ArgumentError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", re.IGNORECASE)


def bytes_of(size: str | float | None, name: str, what: str) -> float:
    """Return the bytes that ``"1GB"``, ``"500 MiB"`` or a number stands for; None is no limit.

    Args:
        size: as given.
        name: of the argument, for the error, as ``"max_bytes"``.
        what: the bytes, in words, as ``"that a store may take"``.

    Raises:
        ArgumentError: *size* is no size, or not above 0.
    """
    if size is None:
        return inf
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    given = float(found[1]) * _UNITS[found[2].lower()] if found is not None else size
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        raise ArgumentError(f'{name}={size!r}: give the bytes {what}, as "1GB", or None for any')
    return float(given)
