"""Name what comes nearest to a name that is not there: the library's one "did you mean"."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import lazy_loader  # type: ignore[import-untyped]

from sonde.errors import UnknownSiteError
from sonde.words import many, names_text

_SHOWN = 8
_OF_GLOB = re.compile(r"[\w.*?]*[*?][\w.*?]*")
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


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a *package* whose names stand in the stub beside *file*.

    A name is loaded when it is first used. The ``AttributeError`` for one that is not there names the nearest.
    """
    load, listed, names = lazy_loader.attach_stub(package, file)

    def found(name: str) -> Any:
        if name not in names and not name.startswith("_"):
            raise AttributeError(f"{package} has no {name!r}. {nearest(name, names)}")
        return load(name)

    return found, listed, names


def meant_as_glob(pattern: str, names: Sequence[str]) -> tuple[str, list[str], list[str]] | None:
    r"""The expression for what *pattern* says as a glob, the *names* in which *pattern* is found, and those that fit the glob.

    None if *pattern* has nothing that globs have, or something that they have not, as an anchor; if no name fits the glob; or if
    it makes no difference. ``*`` and ``?`` stand for no dot.

    >>> meant_as_glob("h.?", ["h", "h.0", "h.0.mlp", "head"])
    ('^h\\.[^.]$', ['h', 'h.0', 'h.0.mlp', 'head'], ['h.0'])
    >>> meant_as_glob("^h.?", ["h", "h.0", "h.0.mlp"])
    """
    if not _OF_GLOB.fullmatch(pattern) or pattern[0] in "*?":
        return None
    expression = "^" + re.escape(pattern).replace(r"\*", "[^.]*").replace(r"\?", "[^.]") + "$"
    fitting = [name for name in names if re.search(expression, name)]
    found = [name for name in names if re.search(pattern, name)]
    return (expression, found, fitting) if fitting and fitting != found else None


def told_of_glob(word: str, pattern: object, names: Sequence[str], kind: str) -> str:
    """The warning where *pattern*, given as *word* and searched in the *names*, looks like a glob; else ``""``.

    Args:
        word: the argument.
        pattern: a pattern; of anything else there is no warning.
        names: of modules or layers.
        kind: what the names are of: ``module`` or ``layer``.
    """
    meant = meant_as_glob(pattern, names) if isinstance(pattern, str) else None
    if meant is None:
        return ""
    expression, found, fitting = meant
    return (
        f"{word}={pattern!r} is a regular expression, which is found in the names of {many(len(found), kind)}. As a "
        f"glob it would be {many(len(fitting), kind)}: {names_text(fitting)}. For these give {word}=r'{expression}'; "
        f"to have all of those without this warning, {word}='({pattern})'"
    )
