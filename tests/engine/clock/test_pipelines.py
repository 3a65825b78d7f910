"""Models that a pipeline calls: its micro-batches are one step, and the call by which it learns shapes is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from torch import nn

import sonde
from sonde.recorders import ForwardOutput
from sonde.stats import Moments

MICRO_BATCHES, STEPS, ROWS = 4, 3, 8


def piped(schedule: str) -> dict[str, Any]:
    """Train one stage of two with every instrument on it; return what each has seen."""
    from torch.distributed import pipelining

    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) if rank == 0 else nn.Sequential(nn.Linear(4, 2))
    stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
    run = getattr(pipelining, schedule)(stage, MICRO_BATCHES, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = sonde.observe(model, Moments(), ports=("input", "output", "grad_output", "grad", "update"), strict=True)
    tracker = sonde.track(model, strict=True)
    recorder = ForwardOutput(strict=True).modules(model)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        x, y = torch.randn(ROWS, 4, generator=generator), torch.randint(2, (ROWS,), generator=generator)
        optimizer.zero_grad()
        run.step(x) if rank == 0 else run.step(target=y)
        optimizer.step()
    rows = {row["site"]: row for row in probe.rows()}
    found = {
        "counts": {site: (rows[site]["calls"], rows[site]["count"]) for site in ("0:input", "0:output", "0:grad_output")},
        "updates": rows["0.weight:update"]["calls"],
        "micro": rows["0.weight:grad"]["calls"],
        "ticks": [tuple(stash.tick) for stash in tracker["0:output"]],
        "samples": recorder.samples("0"),
        "missing": [str(line) for line in probe.coverage().missing],
    }
    for each in (probe, tracker, recorder):
        each.detach()
    return found


def piped_in_a_list(schedule: str) -> dict[str, float]:
    """Train one stage of two, of which a list is observed, which is never called: as of a rank with several stages."""
    from torch.distributed import pipelining

    rank = torch.distributed.get_rank()
    model = nn.Sequential(nn.Linear(4, 4 if rank == 0 else 2))
    stages = nn.ModuleList([model])
    run = getattr(pipelining, schedule)(
        pipelining.PipelineStage(model, rank, 2, torch.device("cpu")), MICRO_BATCHES, loss_fn=nn.functional.cross_entropy
    )
    found: dict[str, float] = {"events": 0}

    def count(event: sonde.types.Event) -> None:
        found["events"] += 1

    with (
        sonde.observe(stages, Moments(), include="0.0", ports=("input", "output", "grad_output"), strict=True) as probe,
        sonde.observe(stages, count, include="0.0", strict=True),
    ):
        x, y = torch.randn(ROWS, 4), torch.randint(2, (ROWS,))
        run.step(x) if rank == 0 else run.step(target=y)
        for row in probe.rows():
            found[row["site"]] = found.get(row["site"], 0) + row["count"]
    return found


def both(schedule: str) -> dict[str, Any]:
    return piped(schedule) | {"in a list": piped_in_a_list(schedule)}


@pytest.mark.parametrize("schedule", [pytest.param("ScheduleGPipe", marks=pytest.mark.slow), "Schedule1F1B"])
def test_the_call_by_which_a_pipeline_learns_shapes_is_not_seen(schedule: str) -> None:
    for rank, seen in enumerate(values(on_ranks(2, both, schedule))):
        calls = STEPS * MICRO_BATCHES
        width = (4, 2)[rank]
        assert seen["counts"] == {
            "0:input": (calls, STEPS * ROWS * 4),
            "0:output": (calls, STEPS * ROWS * width),
            "0:grad_output": (calls, STEPS * ROWS * width),
        }
        assert seen["updates"] == STEPS
        assert seen["micro"] == calls
        assert [tick[1] for tick in seen["ticks"]] == [step for step in range(STEPS) for _ in range(MICRO_BATCHES)]
        assert [tick[3] for tick in seen["ticks"]] == list(range(calls))
        assert seen["samples"] == calls
        assert seen["missing"] == []
        in_list = {"0.0:input": ROWS * 4, "0.0:output": ROWS * width, "0.0:grad_output": ROWS * width}
        assert seen["in a list"] == {"events": MICRO_BATCHES, **in_list}
