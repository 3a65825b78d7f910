"""What changes parameters between steps is in no row, and the coverage of the updates says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard

import sonde

STEPS = 4


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))


def loss_of(model: nn.Module) -> Tensor:
    return (model(torch.randn(8, 4)) ** 2).mean()


def clamp(model: nn.Module) -> None:
    """As a critic's weights are, by ``.data``, which no version tells."""
    for parameter in model.parameters():
        parameter.data.clamp_(-0.05, 0.05)


def exchange(model: nn.Module) -> None:
    """As an outer optimizer does that holds the parameters of all workers."""
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.9


def evaluate(model: nn.Module) -> None:
    """Averages take the place of the parameters for an evaluation, and are gone before the next step."""
    own = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
        model.eval()
        model(torch.randn(8, 4))
        model.train()
        for parameter, value in zip(model.parameters(), own, strict=True):
            parameter.copy_(value)


def leave(model: nn.Module) -> None:
    """Nothing comes after the step."""


class Averaging(torch.optim.SGD):
    """Exchanges parameters for others inside its step: the update is the whole change."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(0.9)
        return loss


def notes(inspector: sonde.Inspector) -> dict[str, str]:
    return {str(line.site): line.reason for line in inspector.coverage() if line.site.port in ("update", "param")}


@pytest.mark.parametrize(
    ("change", "kind", "times"),
    [
        (clamp, torch.optim.SGD, 3),
        (exchange, torch.optim.SGD, 3),
        (evaluate, torch.optim.SGD, 0),
        (leave, torch.optim.SGD, 0),
        (leave, Averaging, 0),
    ],
)
def test_changes_between_steps_are_said_of_updates(change: Any, kind: type[torch.optim.SGD], times: int) -> None:
    """After the last step no forward comes that could tell."""
    model = net()
    optimizer = kind(model.parameters(), lr=0.1)
    wanted = []
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss_of(model).backward()
            before = model[0].weight.detach().clone()
            optimizer.step()
            wanted.append((model[0].weight.detach() - before).double().norm().item())
            change(model)
        found = notes(inspector)
    said = f"of the optimizer's step alone: after {times} of 3 logged steps parameters were changed again before the next forward"
    assert found["0.weight:update"].startswith(said) if times else not found["0.weight:update"]
    assert not found["0.weight:param"]
    rows = inspector.run.sql("SELECT norm FROM moments WHERE site = '0.weight:update' ORDER BY step").fetchall()
    assert [norm for (norm,) in rows] == pytest.approx(wanted, rel=1e-6)  # elements are rounded to float32


@pytest.mark.parametrize(("change", "times"), [(clamp, 3), (leave, 0)])
def test_steps_that_are_not_logged_are_no_change_between_steps(change: Any, times: int) -> None:
    """The pass that comes next tells, observed or not."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=2, to="memory", verbose=False) as inspector:
        for _ in range(6):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            change(model)
        found = notes(inspector)["0.weight:update"]
    assert found.startswith(f"of the optimizer's step alone: after {times} of 3 logged steps") if times else not found


def locally(folder: str, how: str) -> dict[str, str]:
    """Train with a change by other ranks' models after some steps; return the notes."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer  # warns of what torch uses, where it is imported first

    model = net()
    if how == "shards":
        fully_shard(model)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    averaging: Any = PostLocalSGDOptimizer(inner, PeriodicModelAverager(period=2, warmup_steps=0))
    optimizer = averaging if how == "averaged" else inner
    torch.manual_seed(1 + dist.get_rank())
    with sonde.watch(model, inner, every=1, to=folder, verbose=False) as inspector:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            if how == "shards" and step % 2:
                for parameter in model.parameters():
                    parameter.to_local().data.mul_(0.9)  # type: ignore[attr-defined]
        return notes(inspector)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "times"), [("averaged", 2), ("shards", 1)])
def test_averages_over_ranks_are_said_of_updates(how: str, times: int, tmp_path: Path) -> None:
    """The optimizer that averages calls the one whose steps are seen, and is none itself."""
    for found in values(on_ranks(2, locally, str(tmp_path / "run"), how)):
        said = f"of the optimizer's step alone: after {times} of 3 logged steps"
        assert all(note.startswith(said) for site, note in found.items() if site.endswith(":update"))
