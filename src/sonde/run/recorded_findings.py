"""Apply the rules to the rows of a run that was recorded, whether it ended or was killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sonde import rules
from sonde.rules import Finding
from sonde.run.findings import Findings
from sonde.run.folder.duckdb_sql import literal, of_rank
from sonde.run.place_history import DEFECTS
from sonde.run.schema import Layout
from sonde.run.store.rows import RowBlock
from sonde.site import Site

if TYPE_CHECKING:
    from sonde.run.run import Run

__all__ = ["findings_in"]

_AT_ONCE = 256  # steps that are read together
_READ = ("rms", "call_death", "count", *DEFECTS)
_OF_THE_LOOP = ("nonfinite", "no_training_forward")  # of these the training itself knew more than the rows say


def findings_in(run: Run, *, rank: int | None = None) -> list[Finding]:
    """Return what the rules of ``sonde.rules`` find in a run so far, the gravest first. The rows are read once.

    They are the rules that a training applies to itself: a run that was killed, or that another program wrote, has findings, too.

    Args:
        run: on disk or in memory.
        rank: the process whose rows are judged; by default, of each place at each step the first that has rows of it.
    """
    findings = Findings()
    matrices = _Matrices(run.info)
    for family, numbers in run.numbers.items():
        wanted = [name for name in _READ if name in numbers]
        if set(wanted) - {"count"}:
            for block in _blocks(run, family, wanted, rank):
                findings.look(block, matrices.in_layout(block.layout))
    if "scalars" in run.families:
        of_ranks = of_rank("scalars", rank, run.ranks)
        for name, value, epoch, step in run.sql(f"SELECT name, value, epoch, step FROM {of_ranks} ORDER BY step, epoch").fetchall():
            findings.look_at_scalar(name, value, epoch, step)
    return _with_alerts(findings.all(), run, rank)


def _with_alerts(found: list[Finding], run: Run, rank: int | None) -> list[Finding]:
    """Add what only the training could see: the beginning of a NaN between logged steps, steps without a training forward."""
    for alert in run.alerts:
        rule = alert["rule"]
        if rule not in _OF_THE_LOOP or (rank is not None and alert["rank"] != rank):
            continue
        same = next((each for each in found if each.rule == rule), None)
        if same is None or same.step == alert["step"]:
            value = float("nan") if alert["value"] is None else alert["value"]
            known = Finding(rule, "", severity="bad", value=value, advice=rules.RULES[rule].advice)
            told = (same or known).at(alert["site"], alert["epoch"], alert["step"], alert["message"])
            found = [told, *(each for each in found if each is not same)]
    return found


class _Matrices:
    """Which parameters have two dimensions or more, as run.json says; in a run that does not say, those that are no bias."""

    def __init__(self, about: Mapping[str, object]) -> None:
        lines = about.get("model")
        lines = [line for line in lines if isinstance(line, Mapping)] if isinstance(lines, Sequence) else []
        self._known = {
            (str(line.get("model", "")), f"{line.get('name')}.{name}" if line.get("name") else str(name))
            for line in lines
            if isinstance(line.get("matrices"), list)
            for name in line["matrices"]
        }
        self._is_said = any("matrices" in line for line in lines)
        self._layout: tuple[Layout | None, npt.NDArray[np.bool_]] = (None, np.empty(0, bool))

    def in_layout(self, layout: Layout) -> npt.NDArray[np.bool_]:
        """Return which rows of *layout* belong to such parameters."""
        if self._layout[0] is not layout:
            self._layout = layout, np.array([self._is_matrix(Site.parse(text)) for text in layout.site], bool)
        return self._layout[1]

    def _is_matrix(self, site: Site) -> bool:
        return (site.model, site.path) in self._known if self._is_said else site.path.rpartition(".")[2] != "bias"


def _blocks(run: Run, family: str, names: Sequence[str], rank: int | None) -> Iterator[RowBlock]:
    """Yield the rows of a family, model by model, in order of their steps."""
    rows_of_rank = of_rank(family, rank, run.ranks)
    places = run.sql(f'SELECT site, call, max("order") FROM {rows_of_rank} GROUP BY site, call ORDER BY 3, 1, 2').fetchall()
    steps = [step for (step,) in run.sql(f"SELECT DISTINCT step FROM {rows_of_rank} ORDER BY step").fetchall()]
    models = {site: Site.parse(site).model for site, *_ in places}
    for model in dict.fromkeys(models.values()):
        own = [place for place in places if models[place[0]] == model]
        layout = Layout([site for site, *_ in own], [call for _, call, _ in own], [order for *_, order in own])
        row_of = {place[:2]: row for row, place in enumerate(own)}
        for start in range(0, len(steps), _AT_ONCE):
            chosen = steps[start : start + _AT_ONCE]
            between = f"step BETWEEN {literal(chosen[0])} AND {literal(chosen[-1])}"
            table = run.sql(f"SELECT * FROM {rows_of_rank} WHERE {between} ORDER BY step, epoch, micro_step").to_arrow_table()
            keys = list(zip(table.column("site").to_pylist(), table.column("call").to_pylist(), strict=True))
            kept = np.array([key in row_of for key in keys], bool)
            if not kept.any():
                continue
            rows = np.array([row_of[key] for key in keys if key in row_of], np.intp)
            when = np.column_stack([table.column(name).to_numpy() for name in ("epoch", "step", "micro_step")])[kept]
            edges = np.flatnonzero((np.diff(when, axis=0) != 0).any(axis=1)) + 1
            edges = np.concatenate([[0], edges, [len(when)]])
            numbers = {name: np.asarray(table.column(name).to_numpy(), np.float64)[kept] for name in names}
            numbers |= {name: np.nan_to_num(numbers[name]) for name in DEFECTS if name in numbers}
            counts = np.full(len(rows), np.nan)
            yield RowBlock(family, layout, rows, when[edges[:-1]].astype(np.int64), edges, counts, numbers)
