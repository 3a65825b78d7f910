"""Name what comes nearest to a name that is not there: the library's one "did you mean"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from sonde.errors import UnknownSiteError

_SHOWN = 8
_OF_REGEX = re.compile(r"[\\^$()?*+|\[\]{}]")


def nearest(asked: str, names: Iterable[str], *, count: int = 4) -> str:
    """A sentence with the *names* that come nearest to *asked*, or with the first few where none is near.

    Case does not matter, nor do the special characters of a regular expression. Where no whole name is near, the last part
    of *asked* is compared with the last parts of the names. An empty name is the model itself, ``(root)``. *asked* itself is
    not named, and a name that is no plain line of text is quoted.

    >>> nearest("layers.0.mpl", ["layers.0.mlp", "layers.0.norm"], count=1)
    'Nearest: layers.0.mlp.'
    >>> nearest("xyz", ["loss", "accuracy"])
    'There are 2: loss, accuracy.'
    """
    known = [(name if name.isprintable() else repr(name)) or "(root)" for name in dict.fromkeys(names) if name != asked or not name]
    close = _closest(_OF_REGEX.sub("", asked).lower(), known, count)
    if close:
        return f"Nearest: {', '.join(close)}."
    if not known:
        return "There are none."
    return f"There are {len(known)}: {', '.join(known[:_SHOWN])}{', ...' if len(known) > _SHOWN else ''}."


def _closest(asked: str, known: list[str], count: int) -> list[str]:
    by_lower: dict[str, str] = {}
    for name in known:
        by_lower.setdefault(name.lower(), name)
    close = get_close_matches(asked, by_lower, n=count, cutoff=0.5)
    tail = asked.rpartition(".")[2]
    if not close and tail:
        close = [name for name in by_lower if tail in name or get_close_matches(tail, [name.rpartition(".")[2]], cutoff=0.6)]
    return [by_lower[name] for name in close[:count]]


def nearest_steps(asked: int, logged: Iterable[int], *, count: int = 4) -> str:
    """The *logged* steps that come nearest to *asked*, as text.

    >>> nearest_steps(11, [0, 10, 20, 30, 40], count=3)
    '0, 10, 20'
    """
    near = sorted(logged, key=lambda step: abs(step - asked))[:count]
    return ", ".join(map(str, sorted(near)))


def unknown_name(kind: str, asked: str, there: Iterable[str], where: str) -> UnknownSiteError:
    """The error for *asked*, which is no *kind* (family, number, ...) of *where*; its message names the nearest of *there*."""
    return UnknownSiteError(f"{asked!r} is no {kind} of {where}. {nearest(asked, there)}")
