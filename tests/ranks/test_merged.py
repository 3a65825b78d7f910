"""``probe.merged()`` gives the rows of one process on the joined batch, in every training of several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from tests.quick import quick
from tests.ranks.oracle import EXACT, MODULE_PORTS, PARAMETER_PORTS, TOLERANCE, expected
from tests.ranks.trainings import TRAININGS
from torch import distributed as dist

import sonde
from sonde.stats import Moments, Norm

PORTS = MODULE_PORTS + PARAMETER_PORTS
EXCEPT = ("one process", "plain ranks", "local SGD", "pipeline", "DDP, compiled")
"""Of models of their own see the merger's tests; a stage has its own sites."""
NAMES = [name for name in TRAININGS if not name.startswith(EXCEPT)]


def observed(name: str) -> list[list[dict[str, Any]]]:
    training = TRAININGS[name][1]()
    probe = sonde.observe(training.model, Moments(), ports=PORTS, passes="training", grad_at_step=True, strict=True)
    found = []
    for step in range(2):
        training.step(step)
        found.append(probe.merged().to_dict("records"))
        probe.reset()
    return found


@pytest.mark.parametrize("name", quick(NAMES, "DDP"))
def test_merged_rows_are_those_of_one_process(name: str) -> None:
    """On every rank: sizes, extremes and counts of all ports; and what the rows speak of."""
    ranks = TRAININGS[name][0]
    wanted = expected(name, ranks).rows
    compared = 0
    for rank, steps in enumerate(values(on_ranks(ranks, observed, name))):
        for step, rows in enumerate(steps):
            for row in rows:
                (one,) = [each for each in wanted[step][row["site"]] if rank_has(each, row, rank)]
                numbers = one.numbers()
                assert (row["scope"], row["ranks"]) == (one.scope, one.ranks), row["site"]
                assert row["count"] == numbers["count"], row["site"]
                for number in ("norm", "min", "max", "mean"):
                    size = max(numbers["norm"], numbers["absmax"], 1e-12)
                    assert abs(row[number] - numbers[number]) <= TOLERANCE[name] * size, (row["site"], number)
                    compared += 1
    assert compared >= ranks * 2 * 4 * 20


def rank_has(row: Any, found: dict[str, Any], rank: int) -> bool:
    """Whether the expected *row* is the one that *rank* has found, of those of several groups or ranks."""
    return bool(row.rank == (rank if found["scope"] == "rank" else found["rank"]))


def refused() -> list[str]:
    model = torch.nn.Linear(3, 2)
    rank = dist.get_rank()
    said = []
    for observer in (lambda event: None, Moments() if rank else Norm()):
        probe = sonde.observe(model, observer)
        with pytest.raises(sonde.errors.SondeError) as raised:
            probe.merged(seconds=20)
        said.append(f"{type(raised.value).__name__}: {raised.value}")
        probe.detach()
    probe = sonde.observe(model, Moments())
    if rank == 0:
        with pytest.raises(sonde.errors.RankError, match="only rank 0 of 2 called probe"):
            probe.merged(seconds=0.2)
    dist.barrier()
    model(torch.ones(4, 3) * rank)
    frame = probe.merged()
    assert frame["count"].tolist() == [16]
    assert frame["ranks"].tolist() == [2]
    assert probe.rows()[0]["count"] == 8  # unchanged
    return said


def test_ranks_that_cannot_merge_are_told_why() -> None:
    """The same on each; and the next call finds all ranks again."""
    first, second = values(on_ranks(2, refused))
    assert first == second
    assert first[0].startswith(
        "ArgumentError: merged() cannot join what ranks have of refused.<locals>.<lambda>: it is no statistic"
    )
    assert first[1] == (
        "RankError: the ranks do not agree on the statistic: rank 0 has Norm(), rank 1 has Moments(); give all ranks the same"
    )


def test_one_process_has_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    model = torch.nn.Linear(3, 2)
    with sonde.observe(model, Moments()) as probe:
        model(torch.ones(4, 3))
    (row,) = probe.merged().to_dict("records")
    assert {name: row.pop(name) for name in ("scope", "ranks")} == {"scope": "global", "ranks": 1}
    assert row == probe.to_frame().to_dict("records")[0]


def watched(folder: str) -> None:
    training = TRAININGS["plain ranks"][1]()
    with sonde.watch(training.model, training.optimizer, every=1, to=folder, verbose=False):
        training.step(0)


@pytest.mark.slow
def test_norms_of_models_of_their_own_are_each_ranks_own(tmp_path: Path) -> None:
    """Also those before clipping: no number mixes the gradients of two models."""
    values(on_ranks(2, watched, str(tmp_path / "run")))
    rows = sonde.open_run(tmp_path / "run").table("scalars").to_pylist()
    found = {name: [row["value"] for row in rows if row["name"] == name] for name in ("grad_norm", "grad_norm_raw")}
    assert len(found["grad_norm"]) == 2
    assert found["grad_norm_raw"] == pytest.approx(found["grad_norm"], rel=EXACT)
