"""A training of several processes is watched as one: one run, whose numbers are those of the joined batch."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
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
from sonde import Limits, Ranks, lens
from sonde.errors import ObservationWarning
from sonde.run import open_run
from sonde.stats import Field, Moments, Statistic, Updates

STEPS = 4


def loop(steps: int = STEPS, **watched: Any) -> sonde.Inspector:
    """Train a small DDP model, watched; return the inspector."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with sonde.watch(ddp, optimizer, **{"every": 1, **watched}) as inspector:
        for step in range(steps):
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            loss = ddp(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inspector.push_loss(float(dist.get_rank() + 1), train=True)
    return inspector


def one_run(folder: Path) -> str:
    os.chdir("/" if dist.get_rank() else folder)
    return str(loop(to="run").path)


def test_ranks_write_one_run_of_the_joined_batch(tmp_path: Path) -> None:
    """A relative path is that of rank 0, wherever the others are; rank 0 alone prints."""
    first, second = on_ranks(2, one_run, tmp_path)
    assert first.value == second.value == str(tmp_path / "run")
    assert "run run · 2 ranks · 4 of 4 steps logged" in first.out
    assert second.out == ""
    run = open_run(tmp_path / "run")
    assert run.sql("SELECT DISTINCT port, rank, scope, ranks FROM moments ORDER BY port").fetchall() == [
        ("grad", 0, "global", 1),
        ("grad_output", 0, "data-parallel", 2),
        ("output", 0, "data-parallel", 2),
        ("param", 0, "global", 1),
        ("update", 0, "global", 1),
    ]
    assert run.sql("SELECT count FROM moments WHERE site = '0:output'").fetchall() == [(2 * 6 * 3,)] * STEPS
    assert run.sql("SELECT count FROM moments WHERE site = '0.weight:param'").fetchall() == [(12,)] * STEPS
    assert run.sql("SELECT value, scope, ranks FROM scalars WHERE name = 'loss'").fetchall() == [(1.5, "global", 2)] * STEPS
    assert run.sql("SELECT value, ranks FROM scalars WHERE name = 'lr'").fetchall() == [(0.1, 1)] * STEPS
    assert run.scalar("grad_norm")[0].tolist() == list(range(STEPS))
    assert run.info["ranks"] == {"size": 2, "rank": 0, "joined": True}
    assert repr(run).splitlines()[1].startswith("2 ranks: outputs of their batches joined, parameters whole")


def each(folder: Path) -> None:
    loop(to=folder / "run", ranks="each")


def test_each_rank_writes_its_own_rows_where_that_is_asked_for(tmp_path: Path) -> None:
    on_ranks(2, each, tmp_path)
    run = open_run(tmp_path / "run")
    found = run.sql("SELECT DISTINCT rank, scope, ranks, count FROM moments WHERE site = '0:output' ORDER BY rank").fetchall()
    assert found == [(0, "rank", 1, 18), (1, "rank", 1, 18)]
    assert run.sql("SELECT rank, value, scope FROM scalars WHERE name = 'loss' AND step = 0 ORDER BY rank").fetchall() == [
        (0, 1.0, "rank"),
        (1, 2.0, "rank"),
    ]


def first(folder: Path) -> tuple[bool, Any]:
    inspector = loop(to=folder / "run", ranks="first")
    return inspector.attached, inspector.path


def test_rank_0_records_alone_where_that_is_asked_for(tmp_path: Path) -> None:
    assert values(on_ranks(2, first, tmp_path)) == [(False, tmp_path / "run"), (False, None)]
    run = open_run(tmp_path / "run")
    assert run.sql("SELECT DISTINCT rank, scope, ranks FROM moments").fetchall() == [(0, "rank", 1)]
    assert "rank 0 alone of several" in repr(run)


def alone(folder: Path, rank: int) -> Any:
    if dist.get_rank() != rank:
        return None
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(ObservationWarning, match=r"called sonde.watch|did not call sonde.watch"):
        inspector = sonde.watch(model, optimizer, every=1, to=folder / "run", graph=torch.ones(1, 4))
    with inspector:
        model(torch.ones(6, 4)).sum().backward()
        optimizer.step()
    return None


@pytest.mark.slow  # it waits for the others for 20 s
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_watches_alone_records_alone(tmp_path: Path, rank: int) -> None:
    on_ranks(2, alone, tmp_path, rank)
    run = open_run(tmp_path / "run")
    for family in ("moments", "scalars"):
        assert run.sql(f"SELECT DISTINCT rank, scope, ranks FROM {family}").fetchall() == [(rank, "rank", 1)]
    assert f"rank {rank} alone of several" in repr(run)
    assert run.graph is not None


def beside(folder: Path) -> None:
    loop(to=folder / "run", ranks=Ranks(per_rank=True), gradients="both")


def test_rows_of_each_rank_are_written_beside_the_joined_ones(tmp_path: Path) -> None:
    """Rows that join none are there once: DDP has not averaged gradients after a backward pass."""
    on_ranks(2, beside, tmp_path)
    run = open_run(tmp_path / "run")
    assert run.families == ("activation", "activation_rank", "moments", "moments_micro", "moments_rank", "scalars")
    assert run.sql("SELECT DISTINCT rank, scope FROM moments_micro ORDER BY rank").fetchall() == [(0, "rank"), (1, "rank")]
    assert run.sql("SELECT DISTINCT rank, scope, count FROM moments_rank WHERE site = '0:output' ORDER BY rank").fetchall() == [
        (0, "rank", 18),
        (1, "rank", 18),
    ]
    assert run.sql("SELECT DISTINCT count FROM moments WHERE site = '0:output'").fetchall() == [(36,)]


def differently(folder: Path, given: list[dict[str, Any]]) -> str:
    with pytest.raises(sonde.errors.SondeError) as raised:
        loop(to=folder / "run", **given[dist.get_rank()])
    return str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"every": 2}, {"every": 3}], "the ranks do not agree on every=: rank 0 has 2, rank 1 has 3; "),
        ([{"lenses": lens.moments()}, {"lenses": lens.exponents()}], "the ranks do not agree on lenses="),
        ([{"include": "0"}, {"include": "2"}], "the ranks do not agree on include="),
        ([{"ranks": "merged"}, {"ranks": "each"}], "the ranks do not agree on ranks="),
    ],
)
def test_ranks_that_were_given_different_arguments_are_told(tmp_path: Path, given: list[dict[str, Any]], message: str) -> None:
    """On every rank, before the first step."""
    texts = values(on_ranks(2, differently, tmp_path, given))
    assert texts[0] == texts[1]
    assert texts[0].startswith(message)


def test_a_folder_that_rank_0_cannot_use_is_an_error_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    texts = values(on_ranks(2, differently, tmp_path, [{}, {}]))
    assert "is a file, not a folder" in texts[0]
    assert texts[1] == f"rank 0: StoreError: {texts[0]}"


def apart(folder: Path) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own = folder / f"run-{dist.get_rank()}"
        loop(to=[own, "memory"] if dist.get_rank() else own)
    return "".join(str(each.message) for each in caught)


@pytest.mark.slow
def test_a_folder_of_its_own_that_a_rank_names_is_not_used_and_the_rank_warns(tmp_path: Path) -> None:
    silent, said = values(on_ranks(2, apart, tmp_path))
    assert silent == ""
    assert said.startswith(
        f"to= names {tmp_path / 'run-1'} on rank 1, and {tmp_path / 'run-0'} on rank 0: the ranks write one run, that of rank 0. "
    )
    assert [each.name for each in tmp_path.iterdir()] == ["run-0"]


def by_time(folder: Path, given: dict[str, Any]) -> None:
    loop(40, to=folder / "run", ranks=Ranks(per_rank=True), **given)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"every": "2ms"}, {"limits": Limits(budget="5%"), "every": 2}], ids=["time", "budget"])
def test_all_ranks_log_the_steps_that_rank_0_chooses(tmp_path: Path, given: dict[str, Any]) -> None:
    on_ranks(2, by_time, tmp_path, given)
    run = open_run(tmp_path / "run")
    assert run.sql("SELECT DISTINCT ranks, count FROM moments WHERE site = '0:output'").fetchall() == [(2, 36)]
    steps = {
        rank: [row[0] for row in run.sql(f"SELECT step FROM moments_rank WHERE site = '0:output' AND rank = {rank}").fetchall()]
        for rank in (0, 1)
    }
    assert sorted(steps[0]) == sorted(steps[1]) == run.series("0", "count", family="moments")[0].tolist()


def evaluate_alone(folder: Path) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, evaluation=True, to=folder / "run") as inspector:
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(6, 4)).sum().backward()
            optimizer.step()
            if dist.get_rank() == 1:
                model.eval()
                with torch.no_grad():
                    (model if step else model.module)(torch.ones(5, 4))
                model.train()
                inspector.push_metric("accuracy", 0.5)


def test_a_rank_may_evaluate_alone(tmp_path: Path) -> None:
    """Its rows stay its own, nobody waits for it, and the steps after it are joined as before."""
    on_ranks(2, evaluate_alone, tmp_path)
    run = open_run(tmp_path / "run")
    assert run.sql("SELECT step, rank, ranks, count FROM moments_eval WHERE site = '(root):output' ORDER BY step").fetchall() == [
        (step, 1, 1, 15) for step in range(3)
    ]
    assert run.sql("SELECT step, ranks, count FROM moments WHERE site = '(root):output' ORDER BY step").fetchall() == [
        (step, 2, 36) for step in range(3)
    ]
    assert run.sql("SELECT rank, value FROM scalars WHERE name = 'accuracy'").fetchall() == [(1, 0.5)] * 3


def in_memory() -> Any:
    inspector = loop(to="memory", evaluation=True, gradients="both", calls="joined")
    if dist.get_rank() == 0:
        return inspector.run.sql("SELECT count FROM moments WHERE site = '0:output'").fetchall()
    with pytest.raises(sonde.errors.ArgumentError) as raised:
        _ = inspector.run
    return str(raised.value)


def test_a_run_in_memory_is_that_of_rank_0() -> None:
    first, second = values(on_ranks(2, in_memory))
    assert first == [(36,)] * STEPS
    assert "rank 0" in second


def sharded(folder: Path) -> list[str]:
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(4, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pairs = lens.Lens("pairs", Updates(), ("update",))
    with sonde.watch(model, optimizer, every=1, to=folder / "run", lenses=[lens.moments(), pairs], verbose=False) as inspector:
        model(torch.ones(6, 4)).sum().backward()
        optimizer.step()
    return [covered.reason for covered in inspector.coverage() if str(covered.site) in ("weight:param", "weight:update")]


def test_the_coverage_of_joined_parts_is_that_of_the_whole_parameter(tmp_path: Path) -> None:
    """Only of rows that do not join a part is named."""
    for rank, (param, update) in enumerate(values(on_ranks(2, sharded, tmp_path))):
        assert param == ""
        assert f"rank {rank}'s part" in update
        assert "pairs: numbers of this rank alone" in update
    run = open_run(tmp_path / "run")
    assert run.sql("SELECT count, ranks FROM moments WHERE site = 'weight:param'").fetchall() == [(24, 2)]
    assert {line["site"] for line in run.coverage["notes"]} == {"weight:update", "bias:update"}


def of_pairs(folder: Path) -> str:
    inspector = loop(to=folder / "run", lenses=lens.Lens("pairs", Updates(), ("update",)))
    return repr(inspector.coverage())


def test_statistics_of_pairs_stay_of_each_rank_which_the_coverage_says(tmp_path: Path) -> None:
    for text in values(on_ranks(2, of_pairs, tmp_path)):
        assert "pairs: numbers of this rank alone: the pairs of Updates do not join those of other ranks" in text
    run = open_run(tmp_path / "run")
    found = run.sql("SELECT DISTINCT rank, scope, ranks FROM pairs ORDER BY rank").fetchall()
    assert found == [(0, "rank", 1), (1, "rank", 1)]


def read_where_ranks_log_other_steps(folder: Path) -> int:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(
        model, optimizer, every=lambda tick: tick.step % 2 == rank, to=folder / "run", ranks=Ranks(timeout=1.0)
    ) as inspector:
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(6, 4)).sum().backward()
            optimizer.step()
            if step == 2 and rank == 0:
                assert inspector.run.path == folder / "run"
    return rank


@pytest.mark.slow
def test_reading_a_run_waits_for_other_ranks_no_longer_than_the_time_out(tmp_path: Path) -> None:
    """They may need this rank to come on: here each rank logs the steps that the other does not."""
    ranks = on_ranks(2, read_where_ranks_log_other_steps, tmp_path, limit=40, check=False)  # the first to end is said to have ended
    assert [(rank.hung, rank.error, rank.value) for rank in ranks] == [(False, None, 0), (False, None, 1)]
    run = open_run(tmp_path / "run")
    found = run.sql("SELECT step, ranks FROM moments WHERE site = '(root):output' ORDER BY step").fetchall()
    assert found == [(0, 1), (1, 1), (2, 1), (3, 1)]


def in_groups(folder: Path, kind: str) -> None:
    """Train one model, of which the ranks 0 and 1 see a batch of their own, and the ranks 2 and 3."""
    rank = dist.get_rank()
    if kind == "process group":
        group: Any = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])[0]
    else:
        group = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "batch"))["batch"]
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with sonde.watch(model, optimizer, every=1, lenses=lens.moments(), to=folder / "run", verbose=False, ranks=Ranks(group=group)):
        model(torch.full((rank + 1, 4), float(rank))).sum().backward()
        optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process group", "mesh"])
def test_rows_join_within_the_group_that_is_given(tmp_path: Path, kind: str) -> None:
    on_ranks(4, in_groups, tmp_path, kind)
    run = open_run(tmp_path / "run")
    rows = "SELECT rank, ranks, scope, count FROM moments WHERE site = '{}' ORDER BY rank"
    assert run.sql(rows.format("(root):output")).fetchall() == [
        (0, 2, "data-parallel", 3 * (1 + 2)),
        (2, 2, "data-parallel", 3 * (3 + 4)),
    ]
    assert run.sql(rows.format("weight:param")).fetchall() == [(0, 1, "global", 12)]


def in_halves(folder: Path) -> float:
    """Train one model on the ranks 0 and 1, and another one on 2 and 3."""
    rank = dist.get_rank()
    own, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    name = "actor" if rank < 2 else "critic"
    torch.manual_seed(rank // 2)
    model = DistributedDataParallel(nn.Linear(4, 3) if rank < 2 else nn.Linear(4, 1), process_group=own)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, lenses=lens.moments(), to=folder / name, verbose=False, ranks=own) as inspector:
        for _ in range(3 + rank // 2):
            optimizer.zero_grad()
            loss = model(torch.full((rank + 1, 4), 1.0)).sum()
            loss.backward()
            optimizer.step()
            inspector.push_loss(float(rank), train=True)
    return 0.0


@pytest.mark.slow
def test_each_half_of_the_ranks_has_a_run_of_its_own(tmp_path: Path) -> None:
    """Whose ranks are counted from 0, whose rows join those of its half alone, and which says which ranks of the job they are."""
    values(on_ranks(4, in_halves, tmp_path))
    for name, units, samples, loss, steps in (("actor", 3, 1 + 2, 0.5, 3), ("critic", 1, 3 + 4, 2.5, 4)):
        run = open_run(tmp_path / name)
        rows = run.sql("SELECT DISTINCT rank, ranks, scope, count FROM moments WHERE site = '(root):output'").fetchall()
        assert rows == [(0, 2, "data-parallel", units * samples)]
        assert run.sql("SELECT DISTINCT ranks, count FROM moments WHERE site = 'weight:param'").fetchall() == [(1, 4 * units)]
        assert run.scalar("loss")[1].tolist() == [loss] * steps
        assert run.state == "ended"
    assert open_run(tmp_path / "actor").described_ranks.startswith("2 ranks: ")
    assert run.described_ranks.startswith("2 ranks (2, 3 of the job): ")


def in_a_half_that_disagrees(folder: Path) -> None:
    """Of three ranks the last two record a run with each other, and give different schedules; the first one is not of theirs."""
    rank = dist.get_rank()
    own, (_, half) = dist.new_subgroups_by_enumeration([[0], [1, 2]])
    if rank == 0:
        with sonde.watch(nn.Linear(4, 3), to=folder / "alone", ranks=own, verbose=False):
            assert open_run(folder / "alone").described_ranks == ""
    sonde.watch(nn.Linear(4, 3), every=rank, to=folder / "run", ranks=half)


@pytest.mark.slow
def test_errors_name_ranks_of_a_group_by_their_numbers_in_the_job(tmp_path: Path) -> None:
    first, *others = on_ranks(3, in_a_half_that_disagrees, tmp_path, check=False)
    assert "or a process group or DeviceMesh that this rank belongs to" in str(first.error)
    for each in others:
        assert "the ranks do not agree on every=: rank 1 has 1, rank 2 has 2; " in str(each.error)


@dataclass(frozen=True)
class Failing(Statistic):
    """The sum of the elements; raises on rank 1 from the third tensor on."""

    fields = (Field("total"),)

    def measure(self, tensor: Tensor) -> Tensor:
        CALLS.append(0)
        if dist.get_rank() == 1 and len(CALLS) > 2:
            raise RuntimeError("of rank 1")
        return tensor.double().sum().reshape(1)

    def finish(self, columns: Any) -> Any:
        return dict(columns)


CALLS: list[int] = []


def with_a_failing_lens(folder: Path) -> list[str]:
    lenses = [lens.Lens("failing", Failing(), ("output",), include="0"), lens.Lens("moments", Moments(), ("output",), include="0")]
    return [str(error) for error in loop(to=folder / "run", lenses=lenses).errors]


def test_a_lens_that_fails_on_one_rank_goes_on_for_the_others(tmp_path: Path) -> None:
    first, second = on_ranks(2, with_a_failing_lens, tmp_path, check=False)
    assert first.is_clean, first
    assert first.value == []
    assert second.code == 0, second
    assert ["of rank 1" in error for error in second.value] == [True]
    assert len(second.warnings) == 1
    run = open_run(tmp_path / "run")
    rows = "SELECT step, rank, ranks FROM {} WHERE site = '0:output' ORDER BY step"
    assert run.sql(rows.format("failing")).fetchall() == [(0, 0, 2), (1, 0, 2), (2, 0, 1), (3, 0, 1)]
    assert run.sql(rows.format("moments")).fetchall() == [(step, 0, 2) for step in range(STEPS)]
