"""Apply the rules that users have written (``sonde.rule``) to the rows and scalars of a run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from sonde.rows import RowBlock
from sonde.rules.chosen import Chosen
from sonde.rules.finding import Finding
from sonde.rules.layer_groups import joined
from sonde.rules.model_facts import ModelFacts
from sonde.rules.place_history import History

_MOST, _OF = 3, 5


@dataclass
class _Record:
    """Of one rule at one place: the last judgements, and the finding once there were enough."""

    last: deque[Finding | None] = field(default_factory=lambda: deque(maxlen=_OF))
    found: Finding | None = None

    def add(self, judged: Finding | None, epoch: int, step: int) -> None:
        self.last.append(None if judged is None else replace(judged, epoch=epoch, step=step))
        held = [each for each in self.last if each is not None]
        if judged is not None and self.found is None and len(held) >= _MOST:
            self.found = replace(held[-1], first_step=held[0].step)


class OwnFindings:
    """The findings of the user's own rules.

    Args:
        facts: about the layers.
        chosen: the rules that are applied.
    """

    def __init__(self, facts: ModelFacts, chosen: Chosen) -> None:
        self._facts = facts
        self._chosen = chosen
        own = [rule for rule in chosen.applied().values() if rule.at]
        self._of_rows = [rule for rule in own if rule.at != "scalars"]
        self._of_scalars = [rule for rule in own if rule.at == "scalars"]
        self._histories: dict[tuple[str, str], History] = {}
        self._records: dict[tuple[str, str, str, int], _Record] = {}
        self._latest: dict[str, tuple[int, float]] = {}
        self._scalar_records: dict[str, _Record] = {}

    def look(self, block: RowBlock) -> None:
        """Judge the rows of *block* that have the numbers of a rule."""
        wanted = [rule for rule in self._of_rows if set(rule.reads) <= block.numbers.keys()]
        if not wanted:
            return
        family, model = block.family, next(iter(block.layout.model), "")
        history = self._histories.setdefault((family, model), History(wanted[0].reads[0], self._facts))
        history.add(block)
        for rule in wanted:
            numbers = [history.of(name) for name in rule.reads]
            at = np.flatnonzero(history.at(rule.at))
            for line, (epoch, step) in enumerate(block.moments[:, :2].tolist()):
                for column in at.tolist():
                    values = [float(number[line, column]) for number in numbers]
                    if not any(map(math.isnan, values)):
                        record = self._records.setdefault((rule.name, family, model, column), _Record())
                        record.add(self._chosen.judge(rule.name, *values), epoch, step)

    def look_at_scalar(self, name: str, value: float, epoch: int, step: int) -> None:
        """Judge the scalars of *step* by the rules that take *name*, once all that they take were there."""
        if not self._of_scalars:
            return
        self._latest[name] = step, value
        for rule in self._of_scalars:
            known = [self._latest.get(each) for each in rule.reads]
            if name in rule.reads and all(each is not None and each[0] == step for each in known):
                values = [each[1] for each in known if each is not None]
                self._scalar_records.setdefault(rule.name, _Record()).add(self._chosen.judge(rule.name, *values), epoch, step)

    def findings(self) -> Iterator[Finding]:
        """Yield one finding for each rule and model."""
        by_rule: dict[tuple[str, str, str], list[tuple[int, Finding]]] = {}
        for (rule, family, model, column), record in self._records.items():
            if record.found is not None:
                by_rule.setdefault((rule, family, model), []).append((column, record.found))
        for (_, family, model), found in by_rule.items():
            history = self._histories[family, model]
            found.sort(key=lambda each: (each[1].first_step or 0, history.rank(each[0])))
            yield from joined(history, found)
        for record in self._scalar_records.values():
            if record.found is not None:
                yield replace(record.found, message=f"{record.found.message}, from step {record.found.first_step:,} on")
