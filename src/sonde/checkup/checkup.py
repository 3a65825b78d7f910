"""The result of ``sonde.doctor``: a verdict on each question, and what each lens costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sonde.answer import Cell, Grid, Part, Report, ShownAsReport, Tone
from sonde.checkup.examination import Cost
from sonde.checkup.words import seconds_in_words
from sonde.diagnosis.preflight.verdicts import Verdict, counts_of, facts_of, rows_of, verdict_on, worst_of
from sonde.escape import readable_json, with_null
from sonde.rules import Finding
from sonde.view import size

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["Checkup"]


@dataclass(repr=False)
class Checkup(ShownAsReport):
    """What observing does to one model, a verdict on each question; printed as a table.

    Attributes:
        model: class of the model.
        verdicts: one on each question.
        costs: what each lens costs at each port.
        numbers: by verdict, what was measured, in seconds, bytes and counts.
        seconds: how long the examination took.
        notes: what else the reader must know.
    """

    model: str
    verdicts: list[Verdict]
    costs: list[Cost] = field(default_factory=list)
    numbers: dict[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the gravest first."""
        return worst_of(self.verdicts)

    @property
    def ok(self) -> bool:
        """Whether no finding is ``bad``: observing changes nothing that the model does, and no observer failed."""
        return not any(each.severity == "bad" for each in self.findings)

    def __getitem__(self, check: str | int) -> Verdict:
        """The verdict on a question, by its name, or by position.

        Raises:
            UnknownSiteError: there is no such verdict; the message names the nearest.
        """
        return verdict_on(check, self.verdicts, "examined")

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """The verdicts, findings, numbers and costs as plain data; a number that is not finite is None."""
        verdicts = [{**asdict(each), "result": each.result} for each in self.verdicts]
        held = {"model": self.model, "ok": self.ok, "verdicts": verdicts, "numbers": self.numbers}
        found: Any = with_null(
            {**held, "costs": [asdict(each) for each in self.costs], "notes": self.notes, "seconds": self.seconds}
        )
        return dict(found)

    def to_json(self) -> str:
        """The content of :meth:`to_dict` as JSON."""
        return readable_json(self.to_dict())

    def to_text(self, width: int | None = None) -> str:
        """The tables as plain text, at most *width* characters wide; None is the width of the terminal."""
        return "\n\n".join(grid.to_text(width) for grid in self._grids())

    def __repr__(self) -> str:
        return self.to_text()

    def __rich__(self) -> Group:  # type: ignore[override]  # two tables
        from rich.console import Group

        first, *others = self._grids()
        return Group(first, *(part for grid in others for part in ("", grid)))

    def _report(self) -> Report:
        facts = facts_of(self.findings)
        parts = [Part("", facts)] if facts else []
        parts.append(Part("All questions", self._grid()))
        parts += [Part("Each lens at each port", self._cost_grid())] if self.costs else []
        worst = next((each.severity for each in self.findings), "ok")
        tone: Tone = "bad" if worst == "bad" else "warn" if worst == "warn" else "good"
        said = {"bad": "observing is not safe here", "warn": "observing has an effect"}.get(worst, "observing changes nothing")
        headline = f"{said}: {counts_of(self.verdicts)}"
        return Report("sonde.doctor", self.model, tone, headline, parts, [*self.notes, f"examined in {self.seconds:.1f} s"])

    def _grid(self) -> Grid:
        return Grid(
            f"What observing does to {self.model}: {counts_of(self.verdicts)}",
            ["question", "verdict", ""],
            rows_of(self.verdicts),
            footer=self.notes,
        )

    def _grids(self) -> list[Grid]:
        return [self._grid(), *([self._cost_grid()] if self.costs else [])]

    def _cost_grid(self) -> Grid:
        rows = []
        for cost in self.costs:
            apart = cost.difference
            often = "" if cost.one_in == 1 else f"in one of {cost.one_in} logged steps"
            each = "" if apart is None or not cost.rows else seconds_in_words(apart.seconds / cost.rows)
            if apart is not None and apart.is_noise:
                each, often = "", "; ".join(filter(None, [f"below its noise, {seconds_in_words(apart.noise)} a step", often]))
            rows.append(
                [
                    Cell(cost.lens, "strong"),
                    Cell(cost.port),
                    Cell(f"{cost.rows:,}", align="right"),
                    Cell(each, align="right"),
                    Cell(size(cost.bytes / cost.rows) if cost.rows else "", align="right"),
                    Cell(often, "quiet"),
                ]
            )
        measured = any(cost.difference is not None for cost in self.costs)
        footer = ["time: what a step saves without the lens at the port, divided by its rows"] if measured else []
        return Grid("Each lens at each port", ["lens", "port", "rows", "time a row", "bytes a row", ""], rows, footer)
