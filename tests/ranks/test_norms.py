"""Norms over all parameters, of one model in parts on the ranks and of models of their own, against squares that ranks add up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import sonde

STEPS = 3
NAMES = ("grad_norm", "param_norm", "update_norm")


class Mixture(nn.Module):
    """A trunk that all ranks have, and an expert of this rank's."""

    def __init__(self, expert: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(4, 4)
        torch.manual_seed(1 + expert)
        self.expert = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.expert(self.trunk(x).tanh())
        return out


def trained(how: str, folder: str, experts: int) -> dict[str, Any]:
    """Train this rank, watched; return by norm and step the squares of the trunk's parameters and the expert's, and the notes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Mixture(rank % experts)
    own = set(model.expert.parameters())
    watched: nn.Module = model
    if how == "ignored by DDP":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, [f"expert.{name}" for name in ("weight", "bias")]
        )
        watched = DistributedDataParallel(model)
    elif how == "ignored by FSDP2":
        fully_shard(model, ignored_params=own)
    elif how == "marked":
        for parameter in own:
            parameter.allreduce = False  # type: ignore[attr-defined]
    elif how == "frozen trunk":
        model.trunk.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    groups = [dist.new_group([each for each in range(size) if each % experts == expert]) for expert in range(experts)]
    found: dict[str, Any] = {name: [] for name in NAMES}
    with sonde.watch(watched, optimizer, every=1, to=folder, verbose=False) as inspector:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(100 * (rank % experts) + step)
            loss = (watched(torch.randn(8, 4, generator=generator)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            if how in ("marked", "unmarked"):
                for name, parameter in model.named_parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad, group=groups[rank % experts] if "expert" in name else None)
                    parameter.grad /= size // experts if "expert" in name else size
            before = [parameter.detach().clone() for parameter in model.parameters()]
            optimizer.step()
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]
            updates = [after.detach() - each for after, each in zip(model.parameters(), before, strict=True)]
            for name, tensors in zip(NAMES, (gradients, list(model.parameters()), updates), strict=True):
                whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in tensors]
                squares = [each.detach().double().square().sum().item() for each in whole]
                found[name].append((sum(squares[:2]), sum(squares[2:])))
            if how == "averaged now and then" and step == 1:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.data)
                    parameter.data /= size
    found["notes"] = {str(line.site): line.reason for line in inspector.coverage() if line.site.port == "param"}
    return found


def recorded(folder: Path, name: str) -> list[list[tuple[int, str, int, float]]]:
    """Return of each step who wrote which norms: rank, scope, how many ranks, value."""
    rows = sonde.open_run(folder).table("scalars").to_pylist()
    chosen = [row for row in rows if row["name"] == name]
    return [
        sorted((row["rank"], row["scope"], row["ranks"], row["value"]) for row in chosen if row["step"] == step)
        for step in range(STEPS)
    ]


def norm(*squares: float) -> Any:
    return pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-6)  # gradients are averaged in float32


@pytest.mark.parametrize(
    ("how", "ranks", "experts"),
    [
        ("marked", 2, 2),
        pytest.param("marked", 4, 2, marks=pytest.mark.slow),
        pytest.param("ignored by DDP", 2, 2, marks=pytest.mark.slow),
        pytest.param("ignored by FSDP2", 2, 2, marks=pytest.mark.slow),
    ],
)
def test_the_norm_of_a_model_with_experts_on_its_ranks_is_of_all_its_parameters(
    how: str, ranks: int, experts: int, tmp_path: Path
) -> None:
    """Each once, also where several ranks have copies of an expert; one value a step."""
    found = values(on_ranks(ranks, trained, how, str(tmp_path / "run"), experts))
    for name in NAMES:
        for step, rows in enumerate(recorded(tmp_path / "run", name)):
            trunk, _ = found[0][name][step]
            wanted = norm(trunk, *(found[rank][name][step][1] for rank in range(experts)))
            assert [(rank, scope, value) for rank, scope, _, value in rows] == [(0, "global", wanted)], (name, step)
    assert "Norms over all parameters are of all" in found[0]["notes"]["expert.weight:param"]
    assert not found[0]["notes"]["trunk.weight:param"]


@pytest.mark.parametrize(
    ("how", "ranks", "experts"),
    [
        ("local", 2, 2),
        pytest.param("local", 4, 2, marks=pytest.mark.slow),
        pytest.param("averaged now and then", 3, 3, marks=pytest.mark.slow),
        pytest.param("frozen trunk", 2, 2, marks=pytest.mark.slow),
        pytest.param("unmarked", 2, 2, marks=pytest.mark.slow),
    ],
)
def test_norms_of_models_of_their_own_are_one_for_each_group_of_alike_ranks(
    how: str, ranks: int, experts: int, tmp_path: Path
) -> None:
    """Of all parameters of each: never of a mixture, though some may be alike on all ranks."""
    found = values(on_ranks(ranks, trained, how, str(tmp_path / "run"), experts))
    for name in NAMES:
        for step, rows in enumerate(recorded(tmp_path / "run", name)):
            wanted = [(rank, "rank", ranks // experts, norm(*found[rank][name][step])) for rank in range(experts)]
            assert rows == wanted, (name, step)
    assert "Norms over all parameters are each rank's own" in found[0]["notes"]["expert.weight:param"]


def trained_in_pairs(folder: str, apart: bool) -> list[dict[str, float]]:
    """Train on pairs of ranks that share a model by FSDP2, each pair on its own batches; return the squares of this rank's part."""
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("machines", "ranks"))
    rank, pair = dist.get_rank(), dist.get_rank() // 2
    model = Mixture(0)
    with torch.no_grad():
        model.expert.weight[0, :2] = torch.tensor([5.0, -5.0])  # the extremes, which stay
    model.expert.requires_grad_(False)
    fully_shard(model, mesh=pairs["ranks"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = []
    with sonde.watch(model, optimizer, every=1, to=folder, verbose=False):
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(100 * (pair if apart else 0) + 10 * (rank % 2) + step)
            loss = (model(torch.randn(8, 4, generator=generator)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            parts = {name: parameter.to_local() for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]
            found.append({name: each.detach().double().square().sum().item() for name, each in parts.items()})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False], ids=["each its own", "alike"])
def test_pairs_of_ranks_that_share_a_model_have_a_row_of_each_part_where_the_pairs_differ(apart: bool, tmp_path: Path) -> None:
    """As in DiLoCo on machines: the parts of one pair do not stand for those of the other."""
    found = values(on_ranks(4, trained_in_pairs, str(tmp_path / "run"), apart))
    run = sonde.open_run(tmp_path / "run")
    for step in range(STEPS):
        rows = run.sql(
            f"SELECT rank, scope, norm FROM moments WHERE site = 'trunk.weight:param' AND step = {step} ORDER BY rank"
        ).fetchall()
        parts = [each[step]["trunk.weight"] for each in found]
        if apart:
            assert rows == [(rank, "rank", norm(part)) for rank, part in enumerate(parts)]
        else:
            assert rows == [(0, "global", norm(*parts[:2]))]
        norms = recorded(tmp_path / "run", "param_norm")[step]
        wholes = [sum(each[step].values()) for each in found]
        if not apart:
            assert [(rank, scope, value) for rank, scope, _, value in norms] == [(0, "global", norm(*wholes[:2]))]
        else:
            assert not norms
