"""Apply the rules that take numbers of one row at a port of the network, or scalars of one step: sonde's own and the user's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sonde.rows import RowBlock
from sonde.rules.chosen import Chosen
from sonde.rules.finding import Finding, Rule
from sonde.rules.layer_groups import joined
from sonde.rules.model_facts import ModelFacts
from sonde.rules.place_history import History
from sonde.rules.window import Held, Mask, Numbers, extended
from sonde.site import PORTS

_ALL, _ONCE = 0b11111, 1  # the last five values; at how many of them what has passed may still hold


class PortFindings:
    """The findings of the rules whose ``at`` is a port or ``scalars``.

    >>> from sonde.rules import Chosen, ModelFacts, PortFindings
    >>> found = PortFindings(ModelFacts({}), Chosen())
    >>> found.look_at_scalar("loss", 1.5, epoch=0, step=0)
    >>> list(found.findings())
    []

    Args:
        facts: about the layers.
        chosen: the rules that are applied.
    """

    def __init__(self, facts: ModelFacts, chosen: Chosen) -> None:
        self._facts = facts
        self._chosen = chosen
        self._of_rows = [rule for rule in chosen.applied().values() if rule.at in PORTS]
        self._scalars = {rule.name: _Own(rule, chosen) for rule in chosen.applied().values() if rule.at == "scalars"}
        self._latest: dict[str, tuple[int, float]] = {}
        self._histories: dict[tuple[str, str], History] = {}
        self._records: dict[tuple[str, str, str], _Own] = {}  # by family, model and rule

    def look(self, block: RowBlock) -> None:
        """Judge the rows of *block* that have the numbers of a rule.

        >>> from sonde.inspector import Sink
        >>> from sonde.rules import Chosen, LayerFindings, ModelFacts, PortFindings
        >>> class Judge(Sink):
        ...     def write(self, rows):
        ...         found = PortFindings(ModelFacts({}), Chosen())
        ...         found.look(rows.block())
        ...         print(list(found.findings()))
        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().send_to(Judge())
        []
        """
        wanted = [rule for rule in self._of_rows if block.numbers.keys() >= rule.required]
        if not wanted:
            return
        family, model = block.family, next(iter(block.layout.model), "")
        history = self._histories.setdefault((family, model), History(wanted[0].reads[0], self._facts))
        history.add(block)
        for rule in wanted:
            record = self._records.get((family, model, rule.name))
            if record is None:
                kind = _Own if rule.measure is None else _BuiltIn
                record = self._records[family, model, rule.name] = kind(rule, self._chosen)
            numbers = [np.where(history.at(rule.at), history.of(name), np.nan) for name in rule.reads]
            record.add(numbers, block.moments)

    def look_at_scalar(self, name: str, value: float, epoch: int, step: int) -> None:
        """Judge the scalars of *step* by the rules that take *name*, once all that they take were there."""
        if not self._scalars:
            return
        self._latest[name] = step, value
        for record in self._scalars.values():
            known = [self._latest.get(each) for each in record.rule.reads]
            if name in record.rule.reads and all(each is not None and each[0] == step for each in known):
                numbers = [np.array([[each[1]]]) for each in known if each is not None]
                record.add(numbers, np.array([[epoch, step, 0]]))

    def findings(self) -> Iterator[Finding]:
        """Yield one finding for each rule and model, and one for the places about which there is a note alone."""
        for (family, model, _), record in self._records.items():
            history = self._histories[family, model]
            for found in record.findings():
                found.sort(key=lambda each: (each[1].first_step or 0, history.rank(each[0])))
                yield from joined(history, found)
        for record in self._scalars.values():
            for _, each in (each for found in record.findings() for each in found):
                yield replace(each, message=f"{each.message}, from step {each.first_step:,} on")


class _Own:
    """The places at which a rule of the user's own finds something often enough. Its function takes the numbers of one row."""

    def __init__(self, rule: Rule, chosen: Chosen) -> None:
        self.rule = rule
        self._chosen = chosen
        self._held = chosen.held(rule.name)
        self._noted = chosen.held(rule.name) if rule.note_until else None
        self._first: dict[int, Finding] = {}

    def add(self, numbers: list[Numbers], moments: npt.NDArray[np.int64]) -> None:
        """Add numbers of shape ``(moments, columns)``."""
        known: Mask = np.logical_not(np.isnan(np.stack(numbers)).any(axis=0))
        for line, (epoch, step) in enumerate(moments[:, :2].tolist()):
            columns = np.flatnonzero(known[line]).tolist()
            judged = {
                each: self._chosen.judge(self.rule.name, *[float(number[line, each]) for number in numbers]) for each in columns
            }
            holds = np.array([[judged.get(each) is not None for each in range(known.shape[1])]])
            self._held.add(holds, np.where(known[[line]], 0.0, np.nan), np.array([step]))
            for column, found in judged.items():
                if found is not None and column not in self._first and self._held.since[column] >= 0:
                    first = int(self._held.since[column])
                    self._first[column] = replace(found, epoch=epoch, step=step, first_step=first)

    def findings(self) -> Iterator[list[tuple[int, Finding]]]:
        """Yield the findings by their columns."""
        yield list(self._first.items())


class _BuiltIn(_Own):
    """The places at which a built-in rule holds often enough, and those at which it does as far as a note.

    Where there is a note, what does not hold any more is taken back to it, or, where that does not hold any more either, as a
    whole: units that lived again were not dead.
    """

    _lately: npt.NDArray[np.int64] | None = None  # by column, of the note and of more, a bit for each last value: whether it held

    def add(self, numbers: list[Numbers], moments: npt.NDArray[np.int64]) -> None:
        """Add numbers of shape ``(moments, columns)``."""
        with np.errstate(invalid="ignore"):
            holds, values = self._chosen.measure(self.rule.name, *numbers)
            if self._noted is not None:
                self._noted.add(holds, values, moments[:, 1], *numbers)
                noted, holds = holds, holds & (values > self._chosen.limit(self.rule.name, self.rule.note_until))
                before = np.empty((2, 0), np.int64) if self._lately is None else self._lately
                before = extended(before, holds.shape[1], _ALL)
                for held, seen in zip(np.stack([noted, holds], 1), np.isfinite(values), strict=True):
                    before = np.where(seen, (before << 1 | held) & _ALL, before)
                self._lately = before
            self._held.add(holds, values, moments[:, 1], *numbers)

    def findings(self) -> Iterator[list[tuple[int, Finding]]]:
        """Yield the findings by their columns, and then the notes about other columns."""
        lately = () if self._lately is None else np.bitwise_count(self._lately)
        noted, held = ({*np.flatnonzero(counts <= _ONCE).tolist()} for counts in lately) if len(lately) else (set(), set())
        found = [each for each in self._found(self._held) if each[0] not in held]
        yield found
        if self._noted is not None:
            known = noted.union(column for column, _ in found)
            yield [(column, replace(each, severity="note")) for column, each in self._found(self._noted) if column not in known]

    def _found(self, record: Held) -> Iterator[tuple[int, Finding]]:
        for column in record.columns().tolist():
            each = self._chosen.judge(self.rule.name, *[float(number[column]) for number in record.others])
            if each is not None:
                step, first = int(record.last[column]), int(record.since[column])
                yield column, replace(each, step=step, first_step=first, last_step=int(record.last.max()))
