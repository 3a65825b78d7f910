"""Record in ``run.json`` what was pruned: which steps are left, and which families are gone."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sonde.escape import with_null

Pair = tuple[int, int]
"""A count before and after."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """What was taken out of a run after its end.

    Attributes:
        when: seconds since 1970.
        every: of so many steps one is left; None where steps are whole.
        keep_last: how many of the last logged steps are whole.
        last: the last step that the run had.
        steps, rows: by thinned family, how many there were and how many are left.
        dropped: the families that are gone.
        size: bytes of the run before and after.
        finished: False while it goes on, and after a kill.
    """

    when: float
    every: int | None
    keep_last: int
    last: int
    steps: Mapping[str, Pair] = field(default_factory=dict)
    rows: Mapping[str, Pair] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    size: Pair = (0, 0)
    finished: bool = False

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data: dict[str, Any] = with_null(asdict(self))
        return data

    @classmethod
    def read(cls, given: Any) -> Pruning:
        """Return the pruning that *given*, out of a file, describes. What a later version has added is left out.

        Raises:
            TypeError, ValueError: a field is missing, or of another type.
        """
        if not isinstance(given, Mapping):
            raise TypeError(f"a pruning is no {type(given).__name__}")
        every = given.get("every")
        return cls(
            when=_number(given.get("when")),
            every=None if every is None else _count(every),
            keep_last=_count(given.get("keep_last", 0)),
            last=_count(given.get("last")),
            steps={str(name): _pair(pair) for name, pair in dict(given.get("steps", {})).items()},
            rows={str(name): _pair(pair) for name, pair in dict(given.get("rows", {})).items()},
            dropped=tuple(str(name) for name in given.get("dropped", ())),
            size=_pair(given.get("size", (0, 0))),
            finished=given.get("finished") is True,
        )

    @property
    def words(self) -> str:
        """What was taken out, in words."""
        date = time.strftime("%Y-%m-%d", time.localtime(self.when))
        said = []
        if self.every is not None and self.steps:
            before, after = max(self.steps.values())
            of = f"of {', '.join(self.steps)} " if self.steps else ""
            said.append(f"{of}one step in {self.every:,} is left ({after:,} of {before:,} logged steps)")
        if self.dropped:
            said.append(f"{', '.join(self.dropped)} {'is' if len(self.dropped) == 1 else 'are'} gone")
        end = "" if self.finished else "; it was interrupted: prune it again"
        return f"pruned on {date}: {', '.join(said) or 'nothing'}{end}"


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise TypeError(f"{given!r} is no number")
    return float(given)


def _count(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not -1 <= given < 2**62:
        raise TypeError(f"{given!r} is no count")
    return given


def _pair(given: Any) -> Pair:
    before, after = given
    return _count(before), _count(after)
