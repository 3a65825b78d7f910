"""Record in ``run.json`` what was pruned: which steps are left, and which families are gone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sonde.escape import with_null
from sonde.run import form
from sonde.run.form import Absent

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
    def read(cls, given: Any, where: str) -> Pruning:
        """Return the pruning that *given*, out of a file, describes. What a later version has added is left out.

        Raises:
            StoreError: a field is missing, or of another type.
        """
        return cls(**_PRUNING(given, where))

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


_COUNT = form.whole(-1)
_PAIR = form.row(before=_COUNT, after=_COUNT)
_PRUNING = form.members(
    when=form.time,
    every=Absent(form.optional(_COUNT)),
    keep_last=Absent(_COUNT, 0),
    last=_COUNT,
    steps=Absent(form.named(_PAIR), {}),
    rows=Absent(form.named(_PAIR), {}),
    dropped=Absent(form.listed(form.text), ()),
    size=Absent(_PAIR, (0, 0)),
    finished=Absent(form.flag, False),
)
