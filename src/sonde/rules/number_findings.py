"""Apply the rules that judge one number of a layer's output by itself: the share of dead units, the effective rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sonde.rows import RowBlock
from sonde.rules.chosen import Chosen
from sonde.rules.finding import Finding
from sonde.rules.layer_groups import joined
from sonde.rules.model_facts import ModelFacts
from sonde.rules.place_history import Held, History

_VECTORS = 8


@dataclass(frozen=True)
class _Judged:
    """How a number is judged: by a rule with a *threshold*, which it passes in *most* of the last *of* steps that have it."""

    rule: str
    threshold: str
    below: bool
    most: int
    of: int


JUDGED = {
    "call_death": _Judged("dead", "most", False, 2, 3),  # measured in few logged steps, and dead units stay dead
    "effective_rank": _Judged("rank_collapse", "most", True, 3, 5),
}
"""By number, how it is judged."""


class NumberFindings:
    """The findings about one number in one family and model."""

    def __init__(self, number: str, facts: ModelFacts, chosen: Chosen) -> None:
        self.history = History(number, facts)
        self._chosen = chosen
        self._judged = JUDGED[number]
        self._held = Held(self._judged.most, self._judged.of, smallest=self._judged.below)

    def add(self, block: RowBlock) -> None:
        """Add rows."""
        values = self.history.add(block)
        limit = self._chosen.limit(self._judged.rule, self._judged.threshold)
        with np.errstate(invalid="ignore"):
            holds = values <= limit if self._judged.below else values > limit
            holds &= ~(self.history.of("vectors") < _VECTORS)  # one vector has one direction
        self._held.add(holds & self.history.at("output"), values, block.moments[:, 1])

    def findings(self) -> Iterator[Finding]:
        """Yield one finding for all layers."""
        record, found = self._held, []
        for column in record.columns().tolist():
            each = self._chosen.judge(self._judged.rule, float(record.worst[column]))
            if each is not None:
                found.append((column, replace(each, step=int(record.last[column]), first_step=int(record.since[column]))))
        found.sort(key=lambda each: (each[1].first_step or 0, self.history.rank(each[0])))
        yield from joined(self.history, found)
