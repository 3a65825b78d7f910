"""Find the site of ``b`` that belongs to a site of ``a``: the same name, or a name that patterns give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sonde.errors import ArgumentError
from sonde.site import PARAMETER_PORTS, Site
from sonde.suggest import nearest

_ROOT = "(root)"


class Names:
    """Map names of modules and parameters of ``a`` to those of ``b``.

    Args:
        match: from patterns of names in ``a`` to names in ``b``. Each ``*`` stands for any text, the same on both sides;
            ``(root)`` is the model itself. The first pattern that gives a name of ``b`` counts; names without one stay.
        a, b: the names that are there. A name of ``b`` belongs to one of ``a`` alone: to the first that a pattern leads to it.
    """

    def __init__(self, match: Mapping[str, str] | None, a: Iterable[str], b: Iterable[str]) -> None:
        self.match = dict(match or {})
        self._a = dict.fromkeys(a)
        self._b = dict.fromkeys(b)
        self._rules = [(_as_regex(one), other) for one, other in self.match.items()]
        self._found: dict[str, str] = {}
        self._parameters: dict[str, str] = {}
        taken: set[str] = set()
        for name in self._a:
            made = self.by_pattern(name)
            if made is not None and made not in taken:
                self._found[name] = made
                taken.add(made)
        for name in self._a:
            if name not in self._found and name in self._b and name not in taken:
                self._found[name] = name
                taken.add(name)

    def add(self, pairs: Mapping[str, str]) -> None:
        """Let more modules belong together."""
        self._a |= dict.fromkeys(pairs)
        self._b |= dict.fromkeys(pairs.values())
        self._found |= pairs

    def add_parameters(self, pairs: Mapping[str, str]) -> None:
        """Let parameters belong together whose own names differ."""
        self._parameters |= pairs

    def of_b(self, name: str) -> str | None:
        """Return the name in ``b`` of the module *name* of ``a``; None if there is none."""
        if name in self._a:
            return self._found.get(name)
        made = self.by_pattern(name)
        return made if made is not None else name if name in self._b and name not in self._found.values() else None

    def parameter_of_b(self, name: str, there: Iterable[str]) -> str | None:
        """Return the name in ``b``, among *there*, of the parameter *name* of ``a``; None if there is none."""
        known = set(there)
        if self._parameters.get(name) in known:
            return self._parameters[name]
        for rule, other in self._rules:
            made = _renamed(name, rule, other)
            if made is not None and made in known:
                return made
        layer, rest = name, ""
        while layer:  # modules that hold parameters for another one do not run themselves
            layer, _, own = layer.rpartition(".")
            rest = f"{own}.{rest}" if rest else own
            mapped = self.of_b(layer)
            if mapped is not None:
                made = f"{mapped}.{rest}" if mapped else rest
                return made if made in known else None
        return None

    def site_of_b(self, site: Site, there: Iterable[str]) -> Site | None:
        """Return the site in ``b``, one of a parameter among *there*, of *site* of ``a``; None if there is none."""
        path = self.parameter_of_b(site.path, there) if site.port in PARAMETER_PORTS else self.of_b(site.path)
        return None if path is None else Site(path, site.port)

    def pairs(self) -> list[tuple[str, str]]:
        """Return the modules that are in both, by their names in ``a`` and in ``b``."""
        return [(name, other) for name in self._a if (other := self.of_b(name)) is not None]

    def only_b(self) -> list[str]:
        """Return the names of ``b`` that no name of ``a`` has."""
        used = {other for _, other in self.pairs()}
        return [name for name in self._b if name not in used]

    def only_a(self) -> list[str]:
        """Return the names of ``a`` that have none in ``b``."""
        return [name for name in self._a if name not in self._found]

    def by_pattern(self, name: str) -> str | None:
        """Return the name in ``b`` to which a pattern leads *name*; None if none does."""
        for rule, other in self._rules:
            made = _renamed(name or _ROOT, rule, other) if name or rule.pattern == re.escape(_ROOT) else _renamed("", rule, other)
            if made is not None:
                made = "" if made == _ROOT else made.strip(".")
                if made in self._b:
                    return made
        return None


def _as_regex(pattern: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _renamed(name: str, rule: re.Pattern[str], other: str) -> str | None:
    found = rule.fullmatch(name)
    if found is None:
        return None
    parts = other.split("*")
    texts = found.groups()
    return "".join(part + (texts[place] if place < len(parts) - 1 else "") for place, part in enumerate(parts))


def check_match(match: Any, a: Iterable[str], b: Iterable[str]) -> None:
    """Raise if *match* cannot be used, or names nothing.

    Raises:
        ArgumentError: it is no mapping of texts, the two sides of a pattern have different numbers of ``*``, or a pattern fits no
            name; the message names the nearest.
    """
    if not isinstance(match, Mapping) or not all(isinstance(part, str) for pair in match.items() for part in pair):
        raise ArgumentError(
            f'match={match!r}: give a dict from names in a to names in b, as {{"layers.*": "blocks.*"}}; * stands for any text'
        )
    here, there = list(a), list(b)
    for one, other in match.items():
        if one.count("*") != other.count("*"):
            raise ArgumentError(
                f"match: {one!r} has {one.count('*')} times *, and {other!r} {other.count('*')} times: give as many"
            )
        for side, pattern, names in (("a", one, here), ("b", other, there)):
            rule = _as_regex(pattern)
            if pattern != _ROOT and not any(rule.fullmatch(name) for name in names):
                raise ArgumentError(f"match: {pattern!r} fits no module or parameter of {side}. {nearest(pattern, names)}")
