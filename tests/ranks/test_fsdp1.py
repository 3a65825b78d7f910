"""FSDP1, which torch has deprecated: what is joined is right, and what is not is said."""

from __future__ import annotations

import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from tests.ranks.oracle import EXACT, MODULE_PORTS, PARAMETER_PORTS, expected
from tests.ranks.trainings import STEPS, Training, net, sgd
from torch import distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

import sonde
from sonde import lens
from sonde.stats import Moments


def watched(folder: str, use_orig_params: bool) -> tuple[list[str], dict[str, str]]:
    model = net()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, block in model.blocks.items():
            model.blocks[number] = FullyShardedDataParallel(block, use_orig_params=use_orig_params, device_id=torch.device("cpu"))
        wrapped = FullyShardedDataParallel(model, use_orig_params=use_orig_params, device_id=torch.device("cpu"))
        training = Training(wrapped, sgd(wrapped.parameters()), (dist.get_rank(), dist.get_world_size()))
        lenses = lens.Lens("moments", Moments(), MODULE_PORTS + PARAMETER_PORTS)
        with sonde.watch(wrapped, training.optimizer, every=1, lenses=lenses, to=folder, verbose=False) as inspector:
            for step in range(STEPS):
                training.step(step)
            notes = {
                str(line.site): line.reason for line in inspector.coverage() if line.site.port in PARAMETER_PORTS and line.count
            }
    return [str(each.message) for each in caught if "FSDP2" in str(each.message)], notes


@pytest.mark.slow
@pytest.mark.parametrize("use_orig_params", [True, False], ids=["original parameters", "flat parameters"])
def test_outputs_are_those_of_all_ranks_and_parameters_are_said_to_be_those_of_each(use_orig_params: bool, tmp_path: Path) -> None:
    """Every row of a module's tensors equals that of one process on the joined batch; there is no norm over all parameters."""
    (said, notes), (said_elsewhere, _) = values(on_ranks(2, watched, str(tmp_path / "run"), use_orig_params))
    assert (len(said), said_elsewhere) == (1, [])
    assert said[0].startswith("FullyShardedDataParallel (FSDP1, deprecated in torch) keeps the parameters of this model in flat")
    assert notes
    assert all("what FSDP1 keeps of it on this rank alone" in note for note in notes.values())
    run = sonde.open_run(tmp_path / "run")
    there: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in run.table("moments").to_pylist():
        there[row["step"], row["site"]].append(row)
    compared = 0
    for step, sites in enumerate(expected("DDP", 2).rows):
        for site, wanted in sites.items():
            if site.rpartition(":")[2] not in MODULE_PORTS:
                continue
            (row,), numbers = there[step, site], wanted[0].numbers()
            assert (row["rank"], row["scope"], row["ranks"]) == (0, "data-parallel", 2), site
            for name in ("count", "norm", "min", "max"):
                assert abs(row[name] - numbers[name]) <= EXACT * max(numbers["norm"], numbers["absmax"]), (site, name)
                compared += 1
    assert compared >= 2 * 4 * 30
    assert {row["scope"] for (_, site), rows in there.items() if site.endswith(":param") for row in rows} == {"rank"}
    assert not {row["name"] for row in run.table("scalars").to_pylist()} & {
        "grad_norm",
        "grad_norm_raw",
        "param_norm",
        "update_norm",
    }
