"""Read the settings of a run as a flat table: hyperparameters, learning rates, and where it ran; and find those that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sonde.words import number_text

_DEEPEST = 6  # mappings inside each other that are told apart


def joined_settings(config: Mapping[str, Any], rates: Mapping[str, float], environment: Any) -> dict[str, Any]:
    """Return the settings of a run by name: *config* and learning *rates*, unless it has an ``lr``; then the *environment*."""
    found = dict(flat(config))
    if "lr" not in found:
        found |= rates
    if isinstance(environment, Mapping):
        found |= {f"environment.{name}": value for name, value in flat(environment).items()}
    return found


def flat(given: Mapping[str, Any], deep: int = _DEEPEST) -> dict[str, Any]:
    """Return *given* with the members of mappings inside it under dotted names.

    >>> from sonde.run import flat
    >>> flat({"optimizer": {"lr": 0.1}, "seed": 3})
    {'optimizer.lr': 0.1, 'seed': 3}
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and value and deep > 1:
            found |= {f"{name}.{inner}": held for inner, held in flat(value, deep - 1).items()}
        else:
            found[str(name)] = value
    return found


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the settings that are not the same everywhere, each with its value in every run; None where a run has none."""
    names = dict.fromkeys(name for each in settings for name in each)
    values = {name: tuple([each.get(name) for each in settings]) for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def setting_text(value: Any) -> str:
    """Return a value of a setting in few characters; a dash for None.

    >>> from sonde.run import setting_text
    >>> setting_text(0.1), setting_text(None)
    ('0.1', '–')
    """
    return "–" if value is None else number_text(value) if isinstance(value, float) else str(value)
