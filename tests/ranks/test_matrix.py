"""Every number of a run on several ranks is that of one process on the joined batch."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.processes import on_ranks
from tests.quick import quick
from tests.ranks.oracle import EXACT, MODULE_PORTS, PARAMETER_PORTS, TOLERANCE, Row, expected
from tests.ranks.trainings import STEPS, TRAININGS

import sonde
from sonde import lens
from sonde.run import Run, open_run
from sonde.stats import Moments

PAGE = Path(__file__).parents[2] / "docs" / "ranks.md"
PORTS = MODULE_PORTS + PARAMETER_PORTS
QUICK = (
    "FSDP2, evaluated before each step",
    "plain ranks",
    "tensor parallel",
)
"""Of kinds of merging: pieces, replicas that differ, features."""


def watched(name: str, folder: Path) -> None:
    """Train on this rank, watched, with nothing said about ranks."""
    training = TRAININGS[name][1]()
    lenses = [lens.Lens("moments", Moments(), PORTS), lens.exponents(*PORTS, exclude=None), lens.LossMetrics()]
    with sonde.watch(training.model, training.optimizer, every=1, lenses=lenses, to=folder, verbose=False) as inspector:
        for step in range(STEPS):
            loss = training.step(step)
            if loss is not None:
                inspector.push_loss(loss, train=True)


@dataclass
class Comparison:
    """A run compared with the oracle.

    Attributes:
        compared: of each port, and of ``"scalars"``, how many numbers were compared.
        wrong: of each, one line for each number that differs, or row that is missing or should not be there.
    """

    compared: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def rows(self, run: Run, name: str, ranks: int) -> None:
        """Compare all rows of both families."""
        wanted = expected(name, ranks).rows
        for family in ("moments", "exponents"):
            there: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
            for one in run.table(family).to_pylist():
                there[one["step"], one["site"]].append(one)
            for step, sites in enumerate(wanted):
                for site, rows in sites.items():
                    port = site.rpartition(":")[2]
                    found = there.pop((step, site), [])
                    place = f"{family} {site} at step {step}"
                    if (writers := [one["rank"] for one in found]) != [row.rank for row in rows]:
                        self.wrong[port].append(f"{place}: rows of the ranks {writers}, not {[row.rank for row in rows]}")
                        continue
                    for one, row in zip(found, rows, strict=True):
                        for text in self._numbers(port, family, one, row, TOLERANCE[name]):
                            self.wrong[port].append(f"{place}, row of rank {row.rank}: {text}")
            for step, site in there:
                self.wrong[site.rpartition(":")[2]].append(f"{family} {site} at step {step}: a row that should not be there")

    def _numbers(self, port: str, family: str, one: dict[str, Any], row: Row, tolerance: float) -> Iterator[str]:
        """Yield what differs between a row of the run and the row that is expected."""
        for key, meaning in {"scope": row.scope, "ranks": row.ranks}.items():
            if one[key] != meaning:
                yield f"{key} {one[key]!r}, not {meaning!r}"
        if family == "exponents":
            if tolerance == EXACT:
                powers = {power: int(count) for power, count in enumerate(one["powers"], -149) if count}
                self.compared[port] += 1
                if powers != row.powers():
                    yield f"powers {powers}, not {row.powers()}"
            return
        numbers = row.numbers()
        sizes = {"count": 0.0, "zeros": 0.0, "norm": numbers["norm"], "mean": numbers["rms"], "std": numbers["rms"]}
        for key, value in numbers.items():
            if tolerance > EXACT and key == "zeros":
                continue  # other elements are rounded to zero
            self.compared[port] += 1
            if abs(one[key] - value) > tolerance * sizes.get(key, numbers["absmax"]):
                yield f"{key} {one[key]}, not {value}"

    def scalars(self, run: Run, name: str, ranks: int) -> None:
        """Compare the norms over all parameters, and the loss."""
        for step, scalars in enumerate(expected(name, ranks).scalars):
            for key, values in scalars.items():
                query = f"SELECT value FROM scalars WHERE name = '{key}' AND step = {step} ORDER BY rank"
                there = [row[0] for row in run.sql(query).fetchall()]
                self.compared["scalars"] += len(values)
                if there != pytest.approx(values, rel=TOLERANCE[name], abs=0):
                    self.wrong["scalars"].append(f"{key} at step {step}: {there}, not {values}")

    def cell(self, port: str) -> str:
        """Return the text of the table's cell: how many numbers were compared, and how many are wrong."""
        wrong = len(self.wrong[port])
        return f"{wrong} wrong of {self.compared[port]}" if wrong else str(self.compared[port])


@functools.cache
def comparison(name: str) -> Comparison:
    """Run a training on its ranks, and compare its run."""
    ranks = TRAININGS[name][0]
    found = Comparison()
    with tempfile.TemporaryDirectory() as folder:
        on_ranks(ranks, watched, name, Path(folder) / "run", limit=120)
        run = open_run(Path(folder) / "run")
        found.rows(run, name, ranks)
        found.scalars(run, name, ranks)
    return found


@pytest.mark.parametrize("name", quick(TRAININGS, *QUICK))
def test_every_number_is_that_of_one_process_on_the_joined_batch(name: str) -> None:
    lines = [line for port in comparison(name).wrong.values() for line in port]
    assert not lines, "\n".join([f"{len(lines)} are wrong:", *lines[:30]])


# The table of the page

HEAD = ["training", "ranks", *(f"`{port}`" for port in PORTS), "norms, loss"]


def table() -> list[str]:
    """Return the lines of the page's table, from runs of all trainings."""
    lines = [HEAD, ["---"] * len(HEAD)]
    for name, (ranks, _) in TRAININGS.items():
        lines.append([name, str(ranks), *(comparison(name).cell(port) for port in (*PORTS, "scalars"))])
    return [f"| {' | '.join(line)} |" for line in lines]


def table_of_the_page() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").split("\n")
    first = lines.index(f"| {' | '.join(HEAD)} |")
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    return lines[first:last]


def test_the_table_of_the_page_lists_every_training() -> None:
    listed = [line.split(" | ")[0].removeprefix("| ") for line in table_of_the_page()[2:]]
    assert listed == list(TRAININGS)
    assert not any("wrong" in line for line in table_of_the_page())


@pytest.mark.slow
def test_the_table_of_the_page_is_what_the_trainings_give() -> None:
    assert table_of_the_page() == table(), "\n".join(table())
