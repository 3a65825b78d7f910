"""Read the alerts of a run: what several ranks have found is said once, and evidence is read as numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sonde.run.schema import ALERTS

__all__ = ["alerts_in"]


def alerts_in(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the alerts that *rows* of the family ``alerts`` hold, in their order.

    What several ranks have found by the same rule at the same site is that of the first. ``evidence`` becomes a dict of numbers, in
    which a NaN or infinity is NaN. What the rows of an older run do not have is None, ``{}`` or ``""``.
    """
    first: dict[Any, int] = {}
    for row in sorted(rows, key=lambda row: int(row["rank"])):
        first.setdefault(_subject(row), row["rank"])
    return [_decoded(row) for row in rows if first[_subject(row)] == row["rank"]]


def _subject(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what an alert is about: on another rank the same is no other."""
    return row["rule"], row["site"], *(() if row["rule"] else (row["step"], row["message"]))


def _decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {**dict.fromkeys(ALERTS), **row}
    try:
        known = json.loads(found["evidence"] or "{}")
    except ValueError:  # another program may have written it
        known = {}
    numbers = known.items() if isinstance(known, dict) else ()
    found["evidence"] = {name: _number(value) for name, value in numbers if value is None or isinstance(value, int | float)}
    found["advice"] = found["advice"] or ""
    return found


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
