"""Apply the rules to the rows of a run that was recorded, whether it ended or was killed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sonde import rules
from sonde.rows import Layout, RowBlock
from sonde.rules import DEFECTS, Chosen, Finding
from sonde.run.findings import Findings
from sonde.run.folder.duckdb_sql import literal, of_rank
from sonde.site import Site

if TYPE_CHECKING:
    from sonde.run.run import Run

__all__ = ["chosen_in", "findings_in", "judged", "with_alerts", "with_pruned"]

_AT_ONCE = 256  # steps that are read together
_READ = ("rms", "mean", "std", "absmax", "zeros", "call_death", "effective_rank", "vectors", "count", *DEFECTS)
_LEFT_OUT = ("unmoved", "unreached", "gradient_kept")
_OF_THE_LOOP = ("nonfinite", "no_training_forward", *_LEFT_OUT)  # of these the training itself knew more than the rows say


def findings_in(run: Run, *, rank: int | None = None) -> list[Finding]:
    """Return what the rules of ``sonde.rules`` find in a run so far, the gravest first. The rows are read once.

    They are the rules that a training applies to itself: a run that was killed, or that another program wrote, has findings, too.

    Args:
        run: on disk or in memory.
        rank: the process whose rows are judged; by default, of each place at each step the first that has rows of it.
    """
    chosen = chosen_in(run)
    found = with_alerts(judged(run, chosen, rank=rank)[0].all(), run, rank, chosen)
    return found if rank is not None else with_pruned(found, run, chosen)


def chosen_in(run: Run) -> Chosen:
    """Return the rules that the training applied, as far as this process has them."""
    given = run.info.get("rules")
    if isinstance(given, Mapping):
        return Chosen.of({name: wanted for name, wanted in given.items() if name in rules.RULES})
    return Chosen.of(False if given is False else None)


def judged(run: Run, chosen: Chosen, *, rank: int | None = None) -> tuple[Findings, int]:
    """Return what the rules *chosen* find in the rows and scalars of a run, and in how many logged steps. They are read once."""
    findings = Findings(run.info, chosen)
    wanted = {*_READ, *(name for rule in chosen.applied().values() if rule.at for name in rule.reads)}
    having = {family: [name for name in names if name in wanted] for family, names in run.numbers.items()}
    families = [_Family(run, family, names, rank) for family, names in having.items() if set(names) - {"count"}]
    scalars = deque(_scalars(run, rank))
    steps = sorted({step for family in families for step in family.steps})
    for start in range(0, len(steps), _AT_ONCE):
        first, last = steps[start], steps[min(start + _AT_ONCE, len(steps)) - 1]
        for family in families:
            for block in family.between(first, last):
                findings.look(block)
        while scalars and scalars[0][3] <= last:
            findings.look_at_scalar(*scalars.popleft())
    for scalar in scalars:
        findings.look_at_scalar(*scalar)
    return findings, len(steps)


def _scalars(run: Run, rank: int | None) -> list[tuple[str, float, int, int]]:
    if "scalars" not in run.families:
        return []
    rows = of_rank("scalars", rank, run.ranks)
    found: list[tuple[str, float, int, int]]
    found = run.sql(f"SELECT name, value, epoch, step FROM {rows} ORDER BY step, epoch, name").fetchall()
    return found


def with_alerts(found: list[Finding], run: Run, rank: int | None, chosen: Chosen) -> list[Finding]:
    """Add what only the training could see: the beginning of a NaN between logged steps, steps without a training forward."""
    for alert in run.alerts:
        rule = alert["rule"]
        if rule not in _OF_THE_LOOP or not chosen.is_on(rule) or (rank is not None and alert["rank"] != rank):
            continue
        same = next((each for each in found if each.rule == rule), None)
        if same is None or same.step == alert["step"]:
            told = (same or _known(alert)).at(alert["site"], alert["epoch"], alert["step"], alert["message"])
            found = [told, *(each for each in found if each is not same)]
    return found


def with_pruned(found: Sequence[Finding], run: Run, chosen: Chosen) -> list[Finding]:
    """Return what the rules found in all rows of a run before it was pruned, and what they find in later rows, the gravest first.

    What a rule that judged all rows finds in the rows that are left alone is none: they are too few to see what lies between.
    """
    last = run.description.pruned[-1] if run.description.pruned else None
    if last is None:
        return list(found)
    before = [each for data in last.findings if (each := _read(data)) is not None and chosen.is_on(each.rule)]
    known = {(each.rule, each.site, each.call) for each in before}
    later = [
        each
        for each in found
        if (each.rule, each.site, each.call) not in known
        and (each.rule not in last.judged or (each.step if each.first_step is None else each.first_step) > last.last)
    ]
    return sorted([*before, *later], key=lambda each: each.severity != "bad")


def _read(data: Mapping[str, Any]) -> Finding | None:
    """Return the finding that was written to run.json; None for another thing, or a rule that this process does not have."""
    numbers = {name: float("nan") for name in ("value",) if data.get(name) is None}
    try:
        evidence = {str(name): float("nan") if value is None else float(value) for name, value in dict(data["evidence"]).items()}
        found = Finding(**{**data, **numbers, "evidence": evidence})
        texts = (found.message, found.site, found.advice)
        counts = (found.epoch, found.step, found.call, 0 if found.first_step is None else found.first_step)
    except (KeyError, TypeError, ValueError):
        return None
    plain = all(isinstance(text, str) for text in texts) and all(type(count) is int for count in counts)
    return found if plain and found.rule in rules.RULES and found.severity in ("note", "warn", "bad") else None


def _known(alert: Mapping[str, Any]) -> Finding:
    """Return the finding that an alert was written for; a run of an older version has no more than its value."""
    rule, value = alert["rule"], alert["value"]
    first = alert["first_step"]
    if first is None and rule in _LEFT_OUT:
        first = alert["step"]
    return Finding(
        rule,
        alert["message"],
        value=float("nan") if value is None else value,
        severity="bad",
        call=-1 if alert["call"] is None else alert["call"],
        first_step=first,
        evidence=alert["evidence"],
        advice=alert["advice"] or rules.RULES[rule].advice,
    )


class _Family:
    """The rows of one family of numbers, to be read in spans of steps.

    Attributes:
        steps: those that have rows.
    """

    def __init__(self, run: Run, family: str, names: Sequence[str], rank: int | None) -> None:
        self._run, self._family, self._names = run, family, names
        self._rows = of_rank(family, rank, run.ranks)
        places = run.sql(f'SELECT site, call, max("order") FROM {self._rows} GROUP BY site, call ORDER BY 3, 1, 2').fetchall()
        self.steps = [step for (step,) in run.sql(f"SELECT DISTINCT step FROM {self._rows} ORDER BY step").fetchall()]
        models = {site: Site.parse(site).model for site, *_ in places}
        self._layouts: list[tuple[Layout, dict[tuple[str, int], int]]] = []
        for model in dict.fromkeys(models.values()):
            own = [place for place in places if models[place[0]] == model]
            layout = Layout([site for site, *_ in own], [call for _, call, _ in own], [order for *_, order in own])
            self._layouts.append((layout, {place[:2]: row for row, place in enumerate(own)}))

    def between(self, first: int, last: int) -> Iterator[RowBlock]:
        """Yield the rows of the steps from *first* to *last*, both inclusive, a block for each model."""
        between = f"step BETWEEN {literal(first)} AND {literal(last)}"
        table = self._run.sql(f"SELECT * FROM {self._rows} WHERE {between} ORDER BY step, epoch, micro_step").to_arrow_table()
        keys = list(zip(table.column("site").to_pylist(), table.column("call").to_pylist(), strict=True))
        numbers = {name: np.asarray(table.column(name).to_numpy(), np.float64) for name in self._names}
        every = np.column_stack([table.column(name).to_numpy() for name in ("epoch", "step", "micro_step")])
        for layout, row_of in self._layouts:
            kept = np.array([key in row_of for key in keys], bool)
            if not kept.any():
                continue
            rows = np.array([row_of[key] for key in keys if key in row_of], np.intp)
            when = every[kept]
            edges = np.flatnonzero((np.diff(when, axis=0) != 0).any(axis=1)) + 1
            edges = np.concatenate([[0], edges, [len(when)]])
            own = {name: np.nan_to_num(column[kept]) if name in DEFECTS else column[kept] for name, column in numbers.items()}
            counts = np.full(len(rows), np.nan)
            yield RowBlock(self._family, layout, rows, when[edges[:-1]].astype(np.int64), edges, counts, own)
