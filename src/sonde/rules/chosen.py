"""Which rules are applied, and with which thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sonde.errors import ArgumentError
from sonde.rules.finding import RULES, Finding, Rule
from sonde.rules.window import Held
from sonde.suggest import nearest

Given = Mapping[str, bool | Mapping[str, float]] | bool | None
"""The argument ``rules=``: by rule False to leave it out, or its thresholds by name; False alone leaves out all."""


@dataclass(frozen=True)
class Chosen:
    """The rules that are applied.

    >>> from sonde.rules import Chosen
    >>> chosen = Chosen.of({"dead": False, "update_large": {"most": 0.5}})
    >>> chosen.is_on("dead"), chosen.limit("update_large", "most"), "update_large" in chosen.applied()
    (False, 0.5, True)
    >>> Chosen.of(chosen.described()) == chosen
    True

    Attributes:
        off: the names of the rules that are not.
        thresholds: by rule the thresholds that replace the defaults.
        none: no rule is applied.
    """

    off: frozenset[str] = frozenset()
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    none: bool = False

    @staticmethod
    def of(given: Given) -> Chosen:
        """Return the rules that ``rules=`` names.

        Raises:
            ArgumentError: there is no such rule or threshold, or a threshold is no number; the message names the nearest.
        """
        if given is None or given is True:
            return Chosen()
        if given is False:
            return Chosen(none=True)
        if not isinstance(given, Mapping):
            raise ArgumentError(f'rules={given!r}: give a mapping, as {{"dead": False, "spike": {{"deviations": 6}}}}, or False')
        off, thresholds = set(), {}
        for name, wanted in given.items():
            if name not in RULES:
                raise ArgumentError(f"rules= names {name!r}, which is no rule. {nearest(str(name), RULES)}")
            if wanted is False:
                off.add(name)
            elif isinstance(wanted, Mapping):
                thresholds[name] = {key: _checked(name, key, value) for key, value in wanted.items()}
            elif wanted is not True:
                raise ArgumentError(
                    f"rules={{{name!r}: {wanted!r}}}: give False, or the rule's thresholds by name. {_of_rule(name)}"
                )
        return Chosen(frozenset(off), thresholds)

    def described(self) -> Any:
        """Return plain data that :meth:`of` accepts."""
        return (
            False if self.none else {**dict.fromkeys(sorted(self.off), False), **{n: dict(t) for n, t in self.thresholds.items()}}
        )

    def is_on(self, name: str) -> bool:
        """Return whether the rule *name* is applied."""
        return not self.none and name not in self.off and name in RULES

    def applied(self) -> dict[str, Rule]:
        """Return the rules that are applied to runs, by name."""
        return {name: rule for name, rule in RULES.items() if rule.needs and self.is_on(name)}

    def limit(self, name: str, threshold: str) -> float:
        """Return the *threshold* of the rule *name*."""
        return self.thresholds.get(name, {}).get(threshold, RULES[name].thresholds[threshold])

    def judge(self, name: str, /, *numbers: Any, **more: Any) -> Finding | None:
        """Return what the rule *name* finds in *numbers*; None if it is not applied."""
        if not self.is_on(name):
            return None
        return RULES[name].judge(*numbers, **more, **self.thresholds.get(name, {}))

    def measure(self, name: str, *numbers: Any) -> tuple[Any, Any]:
        """Return of arrays of *numbers* where the built-in rule *name* holds, and the values."""
        measure = RULES[name].measure
        assert measure is not None
        return measure(*numbers, **self.thresholds.get(name, {}))

    def held(self, name: str) -> Held:
        """Return an empty record of how often the rule *name* holds."""
        window = RULES[name].window
        assert window is not None
        return Held(window)

    def least(self, name: str) -> int:
        """Return without how many logged steps, or values of a scalar, the rule *name* cannot find anything."""
        least = RULES[name].least
        return int(self.limit(name, least)) if isinstance(least, str) else least


def judge(name: str, /, *numbers: Any, **more: Any) -> Finding | None:
    """Return what the rule *name* finds in *numbers*, with its own thresholds; None if nothing is wrong.

    >>> from sonde.rules import RULES, judge
    >>> sorted(RULES)[:3]
    ['all_linear', 'all_zero', 'attention_large']
    >>> judge("update_large", 0.5).rule
    'update_large'
    """
    return RULES[name].judge(*numbers, **more)


def _checked(name: str, key: str, value: Any) -> float:
    if key not in RULES[name].thresholds:
        raise ArgumentError(f"rules={{{name!r}: {{{key!r}: ...}}}}: the rule has no such threshold. {_of_rule(name)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentError(f"rules={{{name!r}: {{{key!r}: {value!r}}}}}: a threshold is a number")
    return float(value)


def _of_rule(name: str) -> str:
    known = RULES[name].thresholds
    return f"It has {', '.join(f'{key}={value:g}' for key, value in known.items())}." if known else "It has no threshold."
