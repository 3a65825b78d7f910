"""Apply the rules to the rows of a run that was recorded, whether it ended or was killed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sonde import rules
from sonde.rows import Layout, RowBlock
from sonde.rules import DEFECTS, Chosen, gravity
from sonde.run.findings import Findings
from sonde.run.folder.duckdb_sql import literal, numbers_of, of_rank
from sonde.run.record import Record
from sonde.site import Site

if TYPE_CHECKING:
    from sonde.run.run import Run

_AT_ONCE = 256  # steps that are read together
_READ = ("rms", "mean", "std", "absmax", "zeros", "call_death", "effective_rank", "vectors", "count", *DEFECTS)
_SCALARS_AT_ONCE = 4096


def chosen_in(run: Run) -> Chosen:
    """Return the rules that the training applied, as far as this process has them."""
    given = run.info.get("rules")
    if isinstance(given, Mapping):
        return Chosen.of({name: wanted for name, wanted in given.items() if name in rules.RULES})
    return Chosen.of(False if given is False else None)


def judge_rows(run: Run, findings: Findings, *, rank: int | None = None, before: int | None = None) -> None:
    """Judge the rows and scalars of a run, step by step. They are read once.

    >>> from sonde.run import Findings, judge_rows
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> findings = Findings()
    >>> judge_rows(writer.run(), findings)
    >>> findings.judged()
    []

    Args:
        run: on disk or in memory.
        findings: judges them.
        rank: the process whose rows are judged; None: of each place at each step the first that has rows of it.
        before: judge the steps before this one alone.
    """
    wanted = {*_READ, *(name for rule in findings.chosen.applied().values() if rule.at for name in rule.reads)}
    having = {family: [name for name in names if name in wanted] for family, names in run.numbers.items()}
    families = [_Family(run, family, names, rank, before) for family, names in having.items() if set(names) - {"count"}]
    scalars = deque(_scalars(run, rank, before))
    steps = sorted({step for family in families for step in family.steps})
    for start in range(0, len(steps), _AT_ONCE):
        first, last = steps[start], steps[min(start + _AT_ONCE, len(steps)) - 1]
        blocks = [block for family in families for block in family.between(first, last)]
        of_these = []
        while scalars and scalars[0][3] <= last:
            of_these.append(scalars.popleft())
        findings.judge(blocks, of_these)
    while scalars:  # of a run without rows, or later than all rows
        findings.judge([], [scalars.popleft() for _ in range(min(len(scalars), _SCALARS_AT_ONCE))])


def _scalars(run: Run, rank: int | None, before: int | None) -> list[tuple[str, float, int, int]]:
    if "scalars" not in run.families:
        return []
    rows = of_rank("scalars", rank, run.ranks)
    where = "" if before is None else f"WHERE step < {literal(before)}"
    found: list[tuple[str, float, int, int]]
    found = run.sql(f"SELECT name, value, epoch, step FROM {rows} {where} ORDER BY step, epoch, name").fetchall()
    return found


def judged_again(run: Run, chosen: Chosen, *, rank: int | None = None, own: bool = True) -> dict[int, Record]:
    """Return by rank the records of a run, with what the rules *chosen* find in its rows in place of what was judged before.

    What the training has seen stays. So does what was found in rows that were taken out, and what a rule has found that this
    process does not have.

    Args:
        run: on disk or in memory.
        chosen: the rules that are applied.
        rank: the process whose rows are judged; None: each that has written rows, by itself.
        own: whether the rules are those of the training. By others, what was found in rows that are gone is left out.
    """
    known = run.records()
    found = {}
    for each in run.ranks or (0,) if rank is None else (rank,):
        before = known.get(each, Record())
        fixed = before.fixed if own else -1
        kept = [one for one in before.judged if one.found_at <= fixed]
        strange = [one for one in before.judged if one.rule not in rules.RULES and one not in kept] if own else []
        findings = Findings(run.info, chosen, kept, fixed)
        judge_rows(run, findings, rank=each if rank is not None or len(run.ranks) > 1 else None)
        findings.end()
        now = Record.of(findings)
        missing, early = dict(now.not_judged), dict(now.too_early)
        if fixed >= 0:  # what could be judged in all rows was
            missing = {name: needs for name, needs in missing.items() if name in before.not_judged or name in before.too_early}
            early = {name: least for name, least in early.items() if name in before.not_judged or name in before.too_early}
        found[each] = replace(
            before,
            seen=tuple([one for one in before.seen if one.rule not in rules.RULES or chosen.is_on(one.rule)]),
            judged=tuple(sorted([*now.judged, *strange], key=gravity)),
            step=max(now.step, fixed),
            steps=max(now.steps, before.steps if fixed >= 0 else 0),
            rules={**{name: held for name, held in before.rules.items() if own and name not in rules.RULES}, **now.rules},
            not_judged=missing,
            too_early=early,
            failed="",
        )
    return found


class _Family:
    """The rows of one family of numbers, to be read in spans of steps.

    Attributes:
        steps: those that have rows.
    """

    def __init__(self, run: Run, family: str, names: Sequence[str], rank: int | None, before: int | None) -> None:
        self._run, self._family, self._names = run, family, names
        rows = of_rank(family, rank, run.ranks)
        self._rows = rows if before is None else f"(FROM {rows} WHERE step < {literal(before)})"
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
        numbers = {name: np.asarray(numbers_of(table.column(name)), np.float64) for name in self._names}
        every = np.column_stack([numbers_of(table.column(name)) for name in ("epoch", "step", "micro_step")])
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
