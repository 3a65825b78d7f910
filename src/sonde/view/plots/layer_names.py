"""Names of layers that fit beside a picture: without what all of them share, and shortened in the middle."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TypeAlias

from sonde.errors import SelectionError
from sonde.suggest import nearest

__all__ = ["Include", "chosen", "labels", "spaced"]

Include: TypeAlias = "str | re.Pattern[str] | Collection[str] | None"
"""Which layers: a regular expression that is searched in their names, or exact names."""

_LONGEST = 30


def chosen(names: Sequence[str], include: Include, exclude: Include = None) -> list[int]:
    """The positions of the names that *include* selects and *exclude* does not.

    Raises:
        SelectionError: none is left; the message names the nearest.
    """
    kept = [
        place
        for place, name in enumerate(names)
        if (include is None or _matches(name, include)) and not (exclude is not None and _matches(name, exclude))
    ]
    if not kept:
        asked = f"include={include!r}" + (f", exclude={exclude!r}" if exclude is not None else "")
        wanted = include if isinstance(include, str) else next(iter(include), "") if isinstance(include, Collection) else ""
        raise SelectionError(f"{asked} selects none of {len(names)} layers. {nearest(wanted, names)}")
    return kept


def _matches(name: str, where: str | re.Pattern[str] | Collection[str]) -> bool:
    if isinstance(where, str | re.Pattern):
        return re.search(where, name) is not None
    return name in where


def labels(names: Sequence[str], longest: int = _LONGEST) -> tuple[list[str], str]:
    """Short texts for *names*, all different where the names are, and the prefix that was taken off all of them."""
    prefix = _shared(names)
    rest = [name[len(prefix) :] for name in names]
    while True:
        short = [_shortened(name, longest) for name in rest]
        if len(set(short)) == len(set(rest)):
            return short, prefix
        longest += 6


def _shared(names: Sequence[str]) -> str:
    """The dotted beginning that all names have and that is not the whole of any."""
    if len(names) < 2:
        return ""
    paths = [name.split(".") for name in names]
    shared: list[str] = []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared) + "." if shared else ""


def _shortened(name: str, longest: int) -> str:
    if len(name) <= longest:
        return name
    head = longest // 3
    return f"{name[:head]}…{name[-(longest - head - 1) :]}"


def spaced(count: int, room: int) -> list[int]:
    """At most *room* (2 or more) of *count* positions, evenly spaced, the first and the last among them."""
    if count <= room:
        return list(range(count))
    return sorted({round(place * (count - 1) / (room - 1)) for place in range(room)})
