"""What to say about a name that is not there: the names that come nearest to it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from sonde.errors import UnknownSiteError

__all__ = ["unknown"]

_SHOWN = 8


def unknown(kind: str, asked: str, there: Iterable[str], where: str) -> UnknownSiteError:
    """The error for *asked*, which is no *kind* (family, number, site, ...) of *where*; it names the nearest of *there*."""
    names = list(dict.fromkeys(there))
    close = get_close_matches(asked, names, n=4, cutoff=0.5) or [name for name in names if asked and asked in name][:4]
    if close:
        hint = f"Nearest: {', '.join(close)}."
    elif names:
        hint = f"There are {len(names)}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}."
    else:
        hint = "There are none."
    return UnknownSiteError(f"{asked!r} is no {kind} of {where}. {hint}")
