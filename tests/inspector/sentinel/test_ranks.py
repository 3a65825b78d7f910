"""A fault on one rank of several is kept by the ranks, and explained on the rank whose batch it is."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from tests.inspector.sentinel.faults import Planted, watched
from tests.inspector.sentinel.test_planted_faults import log_of_negative
from tests.processes import on_ranks
from tests.quick import quick
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import sonde

BAD = 5


def wrapped(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = Planted(log_of_negative)
    if kind == "DDP":
        return DistributedDataParallel(model)
    for layer in (model.before, model.after):
        fully_shard(layer)
    return fully_shard(model)


def trained(kind: str, path: str) -> tuple[list[tuple[int, str, str]], list[str]]:
    """Train with a fault in the batch of rank 1; return the findings and the warnings."""
    model = wrapped(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with watched(model, optimizer, path, ranks="each", rules=False) as inspector:
            for step in range(8):
                optimizer.zero_grad()
                switch = torch.tensor(float(step == BAD and dist.get_rank() == 1))
                model(torch.rand(3, 4), switch).square().mean().backward()
                optimizer.step()
    found = [(each.step, each.site, each.message) for each in inspector.findings]
    return found, [str(each.message) for each in warned if "step 5" in str(each.message)]


@pytest.mark.parametrize("kind", quick(["DDP", "FSDP2"], "FSDP2"))
def test_a_fault_of_one_rank_is_kept_by_all_and_explained_by_its_own(kind: str, tmp_path: Path) -> None:
    ranks = on_ranks(2, trained, kind, str(tmp_path / "run"))
    for rank in ranks:
        found, warned = rank.value
        assert [step for step, *_ in found] == [BAD]
        assert len(warned) == 1
        if kind == "DDP":
            assert ("log of" in warned[0]) is (rank.rank == 1)
        else:
            assert "on a whole model, with the parts of all ranks" in warned[0]
    folders = sorted((tmp_path / "run" / "nonfinite").iterdir())
    assert [folder.name for folder in folders] == [f"step-{BAD:08d}-rank{rank}" for rank in (0, 1)]
    reports = [sonde.replay(folder, Planted(log_of_negative)) for folder in folders]
    assert [report.operation for report in reports] == [None, "log"]
    if kind == "FSDP2":
        assert all("joined from the parts of 2 ranks" in " ".join(report.notes) for report in reports)


def explained(kind: str) -> tuple[str, str, str | None]:
    model = wrapped(kind)
    switch = torch.tensor(float(dist.get_rank() == 1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    found = sonde.why_nan(model, (torch.rand(3, 4), switch), lambda output: output.square().mean())
    assert all(torch.equal(one, other.detach()) for one, other in zip(before, model.parameters(), strict=True))
    return str(found).splitlines()[0], " ".join(found.notes), found.layer


@pytest.mark.filterwarnings("ignore:FSDPPlanted cannot be copied")
@pytest.mark.parametrize("kind", quick(["DDP", "FSDP2"], "FSDP2"))
def test_why_nan_tells_the_own_batch_from_that_of_another_rank(kind: str) -> None:
    ranks = on_ranks(2, explained, kind, check=False)
    assert [rank.error for rank in ranks] == [None, None]
    (first, note, _), (second, _, layer) = (rank.value for rank in ranks)
    assert first == f"Planted: {'nothing that is not finite' if kind == 'DDP' else 'the first NaN has come from another rank'}"
    assert "this is rank 0 of 2" in note
    assert second == "Planted: the first NaN is made by log in fault, forward"
    assert layer == "fault"
