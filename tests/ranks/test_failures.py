"""What ranks print, how long they wait and what the run holds, where one of them dies, stalls, raises or goes its own way."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import Rank, on_ranks, torchrun, values
from tests.ranks.oracle import trained
from tests.ranks.trainings import TRAININGS, net, plain
from torch import Tensor, nn
from torch import distributed as dist

import sonde
from sonde import lens
from sonde.run import Run, open_run
from sonde.stats import Moments

STEPS, WHEN = 12, 6
TIMES = sonde.Ranks(timeout=3.0, exit_timeout=3.0)
"""Seconds without a sign of life, and at the end."""

PATIENCE = 60.0
"""Seconds after which ranks hang, by far: a time-out, an exit, and a slow machine."""


class UserError(Exception):
    """Raised by the loop of the user."""


def train(folder: Path | str, plan: dict[int, str], **options: Any) -> dict[str, Any]:
    """Train models that share nothing; at step ``WHEN`` do on each rank what *plan* says."""
    rank = dist.get_rank()
    training = plain()
    how = plan.get(rank, "")
    lenses = [lens.Lens("moments", Moments(), ("output", "grad", "param", "update")), lens.LossMetrics()]
    options = {"every": 1, "lenses": lenses, "to": folder, "verbose": False, "ranks": TIMES} | options
    with sonde.watch(training.model, training.optimizer, **options) as inspector:
        for step in range(STEPS):
            if step == WHEN:
                begin = time.monotonic()
                while inspector.run.last_step < WHEN - 2 and time.monotonic() < begin + 10:
                    time.sleep(0.1)  # until the steps before are merged
                match how:
                    case "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    case "stopped":
                        os.kill(os.getpid(), signal.SIGSTOP)
                    case "raises":
                        raise UserError("of the user")
                    case "ends early":
                        break
                    case "evaluates":
                        time.sleep(2.5 * TIMES.timeout)
                    case "interrupted":
                        os.kill(os.getpid(), signal.SIGINT)
            loss = training.step(step)
            assert loss is not None
            inspector.push_loss(loss, train=True)
            inspector.push_metric("place", 100.0 * rank + step)
        ended = time.monotonic()
    return {"steps": step + 1, "closing": time.monotonic() - ended}


def merged_and_own(run: Run, steps: dict[int, int], lost: int | None = None) -> tuple[list[int], dict[int, list[int]]]:
    """Check every row of ``embed:output``; return the steps with merged rows, and of each rank the steps with rows of its own.

    The last steps of a rank that was *lost* may be joined without it.
    """
    ranks = len(steps)
    seen = {rank: trained(net(rank), (rank, ranks), steps=count)[0] for rank, count in steps.items()}
    merged, own = [], {rank: [] for rank in steps}
    for row in run.table("moments").to_pylist():
        if row["site"] != "embed:output":
            continue
        step = row["step"]
        if row["scope"] == "data-parallel":
            who = [rank for rank, count in steps.items() if step < count]
            if lost in who and row["ranks"] < len(who):
                assert step >= steps[lost] - 2
                who.remove(lost)
            assert row["rank"] == who[0]
            assert row["ranks"] == len(who)
            merged.append(step)
        else:
            assert row["scope"] == "rank"
            assert row["ranks"] == 1
            who = [row["rank"]]
            own[row["rank"]].append(step)
        tensors = torch.cat([tensor.flatten() for rank in who for tensor in seen[rank][step]["embed:output"]])
        assert row["count"] == len(tensors)
        assert row["norm"] == pytest.approx(tensors.norm().item(), rel=1e-9)
    return merged, own


def clean_but(ranks: list[Rank], *left: int) -> str:
    """Return the only warning of the ranks that are not *left*, which all give the same one; or fail and show all ranks."""
    shown = "\n".join(map(str, ranks))
    others = [rank for rank in ranks if rank.rank not in left]
    assert all(rank.code == 0 and rank.error is None and len(rank.warnings) == 1 for rank in others), shown
    assert not any(word in rank.err for rank in others for word in ("Exception", "Error", "Gloo", "terminate")), shown
    texts = {re.sub(r"from step \d+ on", "from step 0 on", rank.warnings[0]) for rank in others}  # one may be a step ahead
    assert len(texts) == 1, shown
    return texts.pop()


@pytest.mark.slow
@pytest.mark.parametrize("who", [1, 0])
def test_a_rank_that_is_killed_leaves_the_others_joined(tmp_path: Path, who: int) -> None:
    """Also the one that wrote their rows: the next one writes them then, and they are read as before."""
    ranks = on_ranks(3, train_patiently, tmp_path / "run", {who: "killed"}, check=False, limit=PATIENCE)
    warning = clean_but(ranks, who)
    left = [rank for rank in range(3) if rank != who]
    assert ranks[who].code == -signal.SIGKILL
    assert f"rank {who}" in warning
    assert f"from step 0 on ranks {left[0]} and {left[1]} go on joined" in warning
    assert [ranks[rank].value["steps"] for rank in left] == [STEPS, STEPS]
    run = open_run(tmp_path / "run")
    merged, own = merged_and_own(run, {rank: WHEN if rank == who else STEPS for rank in range(3)}, who)
    assert own == {0: [], 1: [], 2: []}
    assert merged[-(STEPS - WHEN) :] == list(range(WHEN, STEPS))
    if who:
        assert merged == list(range(STEPS))  # what rank 0 had not written yet went with it
    assert run.series("embed", "norm")[0].tolist() == merged
    steps, places = run.scalar("place")
    expected = [100.0 * sum(left) / 2 + step for step in range(WHEN, STEPS)]
    assert dict(zip(steps.tolist(), places.tolist(), strict=True)) | dict(zip(range(WHEN, STEPS), expected, strict=True)) == dict(
        zip(steps.tolist(), places.tolist(), strict=True)
    )


@pytest.mark.slow
def test_a_rank_that_runs_fewer_steps_leaves_the_others_joined(tmp_path: Path) -> None:
    ranks = on_ranks(3, train_patiently, tmp_path / "run", {1: "ends early"}, check=False, limit=PATIENCE)
    assert f"rank 1 ended after step {WHEN - 1}: from step 0 on ranks 0 and 2 go on joined" in clean_but(ranks, 1)
    merged, own = merged_and_own(open_run(tmp_path / "run"), {0: STEPS, 1: WHEN, 2: STEPS})
    assert (merged, own) == (list(range(STEPS)), {0: [], 1: [], 2: []})


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_lost_after_the_time_out(tmp_path: Path) -> None:
    ranks = on_ranks(2, train, tmp_path / "run", {1: "stopped"}, check=False, limit=PATIENCE)
    assert [rank.hung for rank in ranks] == [False, True]
    warning = clean_but(ranks, 1)
    assert "rank 1" in warning
    merged, own = merged_and_own(open_run(tmp_path / "run"), {0: STEPS, 1: WHEN})
    assert merged + own[0] == list(range(STEPS))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "ends early"])
def test_a_rank_that_leaves_its_loop_lets_the_others_go_on(tmp_path: Path, how: str) -> None:
    """Every step of the rank that left is merged: it left in peace."""
    ranks = on_ranks(2, train, tmp_path / "run", {1: how}, check=False, limit=PATIENCE)
    assert ("UserError: of the user" in (ranks[1].error or "")) == (how == "raises")
    warning = clean_but(ranks, 1)
    assert "rank 1" in warning
    assert f"rank 1 ended after step {WHEN - 1}" in warning
    merged, own = merged_and_own(open_run(tmp_path / "run"), {0: STEPS, 1: WHEN})
    assert merged == list(range(WHEN + 1))  # with what it had left to say, it has joined the step that the other made next
    assert own == {0: list(range(WHEN + 1, STEPS)), 1: []}
    pushed = open_run(tmp_path / "run").sql("SELECT name, step, ranks, scope, value FROM scalars ORDER BY step").fetchall()
    places = [each[1:] for each in pushed if each[0] == "place"]
    common = [(step, 2, "global", 50.0 + step) for step in range(WHEN)]
    assert places == common + [(step, 1, "rank", float(step)) for step in range(WHEN, STEPS)]
    norms = {each[1:4] for each in pushed if each[0] == "param_norm"}
    assert norms == {(step, 1, "rank") for step in range(STEPS)}


def train_patiently(folder: Path, plan: dict[int, str]) -> dict[str, Any]:
    """Train as :func:`train`; a rank that has ended waits for the others."""
    return train(folder, plan, ranks=replace(TIMES, exit_timeout=PATIENCE))


@pytest.mark.slow
def test_a_rank_in_a_long_evaluation_is_waited_for(tmp_path: Path) -> None:
    ranks = on_ranks(2, train_patiently, tmp_path / "run", {1: "evaluates"}, limit=PATIENCE)
    assert [rank.value["steps"] for rank in ranks] == [STEPS, STEPS]
    assert merged_and_own(open_run(tmp_path / "run"), {0: STEPS, 1: STEPS}) == (list(range(STEPS)), {0: [], 1: []})


def breaks_early(folder: Path) -> float:
    """Leave the loop on rank 1 while rank 0 waits for its gradients; return the seconds that the end takes on rank 1."""
    training = TRAININGS["DDP"][1]()
    rank = dist.get_rank()
    with sonde.watch(training.model, training.optimizer, every=1, to=folder, verbose=False, ranks=sonde.Ranks(exit_timeout=120)):
        for step in range(4 - rank):
            training.step(step)
    if rank == 1:
        training.step(3)  # rank 0 goes on
    return rank


@pytest.mark.slow
def test_a_rank_that_leaves_early_does_not_wait_for_ranks_that_wait_for_it(tmp_path: Path) -> None:
    """They have gone on to a step that it never makes."""
    ranks = on_ranks(2, breaks_early, tmp_path / "run", check=False, limit=60)
    assert "rank 1 ended after step 2" in clean_but(ranks, 1)
    assert ranks[1].is_clean, ranks[1]
    found = open_run(tmp_path / "run").sql("SELECT step, rank, ranks FROM moments WHERE site = 'embed:output' ORDER BY step")
    assert found.fetchall() == [(0, 0, 2), (1, 0, 2), (2, 0, 2), (3, 0, 1)]


# Bad input


def mismatched(folder: Path, what: str) -> str:
    """Watch with arguments that differ from rank to rank; return the error."""
    rank = dist.get_rank()
    training = plain()
    options: dict[str, Any] = {
        "lenses": {"lenses": [lens.moments(), *([lens.exponents()] if rank else [])]},
        "schedule": {"every": 2 if rank else 1},
        "layers": {"include": "embed" if rank else "head"},
    }[what]
    with pytest.raises(sonde.errors.SondeError) as caught:
        sonde.watch(training.model, training.optimizer, to=folder, verbose=False, **options)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(("what", "named"), [("lenses", "exponents"), pytest.param("schedule", "every", marks=pytest.mark.slow)])
def test_ranks_with_different_arguments_get_one_error_that_names_the_difference(tmp_path: Path, what: str, named: str) -> None:
    errors = values(on_ranks(3, mismatched, tmp_path / "run", what))
    assert len(set(errors)) == 1
    assert named in errors[0]
    assert "rank 0" in errors[0]
    assert "ranks 1 and 2" in errors[0]
    assert not (tmp_path / "run").exists()


def refused_on_one(folder: Path, which: int) -> str:
    """Watch with a scaler, or layers, that one rank alone has wrong; return the error."""
    training = plain()
    mine = dist.get_rank() == which
    blind = lens.Lens("moments", Moments(), ("output",), include=(lambda name, module: not mine))
    with pytest.raises(sonde.errors.SondeError) as caught:
        sonde.watch(training.model, training.optimizer, to=folder, lenses=blind, verbose=False)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("which", [0, 1])
def test_a_start_that_one_rank_refuses_begins_on_none_and_leaves_no_folder(tmp_path: Path, which: int) -> None:
    errors = values(on_ranks(2, refused_on_one, tmp_path / "run", which))
    assert errors[which].startswith("SelectionError: the lens 'moments' finds nothing")
    assert errors[1 - which].startswith(f"RankError: rank {which}: SelectionError: the lens 'moments' finds nothing")
    assert not (tmp_path / "run").exists()


def on_rank_0_alone(folder: Path) -> int:
    training = TRAININGS["DDP"][1]()
    if dist.get_rank() == 0:
        with sonde.watch(training.model, training.optimizer, every=1, to=folder, verbose=False) as inspector:
            for step in range(3):
                training.step(step)
        return inspector.run.last_step
    for step in range(3):
        training.step(step)
    return -1


@pytest.mark.slow
def test_watch_on_rank_0_alone_records_rank_0(tmp_path: Path) -> None:
    """After the wait, which is said; nothing communicates."""
    ranks = on_ranks(2, on_rank_0_alone, tmp_path / "run", check=False)
    assert values(ranks) == [2, -1]
    assert ranks[1].is_clean
    assert len(ranks[0].warnings) == 1
    assert "only rank 0 of 2 called sonde.watch within" in ranks[0].warnings[0]
    rows = open_run(tmp_path / "run").sql("SELECT DISTINCT rank, scope, ranks FROM moments").fetchall()
    assert rows == [(0, "rank", 1)]


def without_a_group(folder: Path) -> str:
    training = TRAININGS["one process"][1]()
    with pytest.raises(sonde.errors.ArgumentError) as caught:
        sonde.watch(training.model, training.optimizer, to=folder, verbose=False)
    return str(caught.value)


def test_several_processes_without_a_process_group_are_an_error(tmp_path: Path) -> None:
    for error in values(on_ranks(2, without_a_group, tmp_path / "run", group=False)):
        assert "WORLD_SIZE" in error
        assert "init_process_group" in error
    assert not (tmp_path / "run").exists()


def unwritable(folder: Path) -> str:
    """Watch as a user who may not write, on rank 1."""
    rank = dist.get_rank()
    training = plain()
    if rank == 1:
        os.seteuid(65534)
    try:
        with pytest.raises(sonde.errors.SondeError) as caught:
            sonde.watch(training.model, training.optimizer, to=folder / "runs" / "run", verbose=False)
    finally:
        os.seteuid(0)
    return str(caught.value)


def in_a_folder_of_its_own(folder: Path, there: str) -> str:
    """Watch where ``runs`` leads elsewhere on rank 1: to a file, to a folder without the run, or to the run by another name."""
    rank = dist.get_rank()
    own = folder / str(rank)
    own.mkdir()
    os.chdir(own)
    if rank == 0:
        (folder / "0" / "runs").mkdir(exist_ok=True)
    dist.barrier()
    if rank == 1:
        if there == "a file":
            (own / "runs").write_text("")
        elif there == "the same folder":
            (own / "runs").symlink_to(folder / "0" / "runs")
    training = plain()
    try:
        with sonde.watch(training.model, training.optimizer, every=1, to="runs/run", verbose=False, ranks=TIMES):
            for step in range(2):
                training.step(step)
    except sonde.errors.SondeError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("there", ["a file", "another folder", "the same folder"])
def test_ranks_whose_paths_are_their_own_write_into_the_folder_of_rank_0(tmp_path: Path, there: str) -> None:
    """A relative path is that of rank 0, which all ranks can reach: what the name leads to elsewhere is of no matter."""
    ranks = on_ranks(2, in_a_folder_of_its_own, tmp_path, there, check=False)
    assert values(ranks) == ["", ""], "\n".join(map(str, ranks))
    assert merged_and_own(open_run(tmp_path / "0" / "runs" / "run"), {0: 2, 1: 2}) == ([0, 1], {0: [], 1: []})
    assert (tmp_path / "1" / "runs").is_file() == (there == "a file")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="root alone can become a user who may not write")
def test_a_folder_that_not_all_ranks_can_write_is_an_error_on_every_rank() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are of the user alone
        Path(folder).chmod(0o755)
        errors = values(on_ranks(2, unwritable, Path(folder)))
    assert all("cannot write" in error for error in errors), errors
    assert "rank 1" in errors[0]


# Ranks that go their own ways


class Experts(nn.Module):
    """Layers, one for each rank and one that nobody calls at first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, chosen: int) -> Tensor:
        return self.experts[chosen](self.first(x))


def choose(folder: Path) -> int:
    """Call a layer of this rank's own, push metrics of this rank's own, and do fewer steps on rank 1."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, lenses=[lens.moments()], to=folder, verbose=False, ranks=TIMES) as inspector:
        for step in range(6 - rank):
            chosen = 2 if step == 3 else rank
            model(torch.ones(2 + rank, 4), chosen).sum().backward()
            inspector.push_metric(f"of rank {rank}", float(step))
            inspector.push_metric("of all", float(10 * rank + step))
            optimizer.step()
            optimizer.zero_grad()
    return step + 1


@pytest.mark.slow
def test_ranks_that_call_other_layers_and_push_other_metrics_join_what_they_have_in_common(tmp_path: Path) -> None:
    ranks = on_ranks(2, choose, tmp_path / "run", check=False, limit=PATIENCE)
    warning = clean_but(ranks, 1)
    assert "rank 1" in warning
    run = open_run(tmp_path / "run")

    def rows(site: str) -> list[tuple[Any, ...]]:
        found = run.sql(f"SELECT step, rank, ranks, scope, count FROM moments WHERE site = '{site}' ORDER BY step, rank").fetchall()
        return [tuple(row) for row in found]

    merged = "data-parallel"
    assert rows("first:output") == [*((step, 0, 2, merged, 20) for step in range(5)), (5, 0, 1, merged, 8)]
    assert rows("experts.0:output") == [*((step, 0, 1, merged, 8) for step in (0, 1, 2, 4, 5))]
    assert [row[:2] + row[4:] for row in rows("experts.1:output")] == [(step, 1, 12) for step in (0, 1, 2, 4)]
    assert rows("experts.2:output") == [(3, 0, 2, merged, 20)]
    steps, numbers = run.scalar("of all")
    assert steps.tolist() == list(range(6))
    assert numbers.tolist() == [5.0, 6.0, 7.0, 8.0, 9.0, 5.0]
    assert run.scalar("of rank 1")[1].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


# The end of a script


LEFT: list[sonde.Inspector] = []
"""Inspectors that the end of the interpreter finds."""


def ends_without_detach(folder: Path, destroys: bool) -> None:
    """Leave the inspector to the end of the interpreter."""
    training = plain()
    inspector = sonde.watch(training.model, training.optimizer, every=1, to=folder, lenses=[lens.moments()])
    for step in range(3):
        training.step(step)
    if destroys:
        dist.destroy_process_group()
    LEFT.append(inspector)


@pytest.mark.slow
@pytest.mark.parametrize("destroys", [False, True], ids=["group is left", "group is destroyed first"])
def test_a_script_that_ends_without_detach_keeps_every_step(tmp_path: Path, destroys: bool) -> None:
    ranks = on_ranks(2, ends_without_detach, tmp_path / "run", destroys, limit=PATIENCE)
    assert "3 of 3 steps logged" in ranks[0].out
    assert ranks[1].out == ""
    assert merged_and_own(open_run(tmp_path / "run"), {0: 3, 1: 3}) == ([0, 1, 2], {0: [], 1: []})


def killed_in_ddp(folder: Path) -> int:
    """Train under DDP; rank 1 dies in a step, and the collective of the other one raises."""
    training = TRAININGS["DDP"][1]()
    with sonde.watch(training.model, training.optimizer, every=1, to=folder, verbose=False, ranks=TIMES) as inspector:
        for step in range(STEPS):
            if step == WHEN and dist.get_rank() == 1:
                begin = time.monotonic()
                while inspector.run.last_step < WHEN - 2 and time.monotonic() < begin + 10:
                    time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGKILL)
            training.step(step)
    return STEPS


@pytest.mark.slow
def test_a_training_under_ddp_whose_rank_is_killed_ends_with_torchs_error_and_leaves_a_whole_run(tmp_path: Path) -> None:
    ranks = on_ranks(2, killed_in_ddp, tmp_path / "run", check=False, limit=60)
    shown = "\n".join(map(str, ranks))
    assert ranks[1].code == -signal.SIGKILL
    assert not ranks[0].hung, shown
    assert "loss.backward()" in (ranks[0].error or ""), shown
    assert ranks[0].error is not None
    assert ranks[0].error.strip().splitlines()[-1].startswith(("RuntimeError", "torch.distributed.DistBackendError")), shown
    run = open_run(tmp_path / "run")
    assert run.state == "failed"
    assert run.end is not None
    assert (run.end.rank, run.end.step) == (0, WHEN), run.end
    assert run.end.line is not None
    assert "loss.backward()" in run.end.line
    rows = run.sql("SELECT DISTINCT step, ranks FROM moments WHERE site = 'embed:output' ORDER BY step").fetchall()
    assert [step for step, _ in rows][: WHEN - 1] == list(range(WHEN - 1))
    assert {number for step, number in rows if step < WHEN - 1} == {2}
    assert any("rank 1" in warning for warning in ranks[0].warnings), shown


ELASTIC = """
import os, signal, sys, time
from pathlib import Path

import torch
from torch import distributed as dist, nn

import sonde

dist.init_process_group("gloo")
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = int(Path("checkpoint").read_text()) if restarts else 0
with sonde.watch(model, optimizer, every=1, to="run", step=first, lenses=[sonde.lens.moments()], verbose=False):
    for step in range(first, 10):
        if step == 6 and restarts == 0 and dist.get_rank() == 1:
            print("the only failure", file=sys.stderr, flush=True)
            if sys.argv[1] == "killed":
                time.sleep(2)  # the steps of the last half second are not joined
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("of the user")
        model(torch.full((2, 4), float(step))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3 and dist.get_rank() == 0:
            Path("checkpoint").write_text("4")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "killed"])
def test_a_job_that_torchrun_restarts_resumes_its_run(tmp_path: Path, how: str) -> None:
    """Nothing is said about the restart: from the step of the checkpoint on, the rows are those of the second attempt."""
    done = torchrun(2, ELASTIC, how, folder=tmp_path, max_restarts=1)
    assert done.code == 0, done.err
    assert "the only failure" in done.err
    run = open_run(tmp_path / "run")
    assert len(run.description.attempts) == 2
    rows = run.sql("SELECT step, rank, ranks, scope, absmax FROM moments WHERE site = '(root):input' OR site = '(root):output'")
    found = sorted(tuple(row)[:4] for row in rows.fetchall())
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    assert [row for row in found if row[0] >= 4] == [(step, 0, 2, "data-parallel") for step in range(4, 10)]
    assert [row[0] for row in found if row[0] < 4] == list(range(4))
    assert run.state == "ended"


def killed_early(folder: str, kill_at: int) -> None:
    """Train in steps of 0.2 s; rank 0 is killed shortly before the end of one."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to=folder, verbose=False, ranks=sonde.Ranks(timeout=3.0, exit_timeout=1.0)):
        for step in range(kill_at + 1):
            time.sleep(0.2)
            if step == kill_at and dist.get_rank() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()


@pytest.mark.slow
def test_what_was_joined_before_rank_0_was_killed_is_on_the_disk(tmp_path: Path) -> None:
    """A run of a second and a half: rows reach the disk early while it is young."""
    on_ranks(2, killed_early, str(tmp_path / "run"), 8, check=False, limit=60)
    found = sonde.open_run(tmp_path / "run").sql("SELECT DISTINCT step FROM moments WHERE ranks = 2 ORDER BY step").fetchall()
    assert [step for (step,) in found][:3] == [0, 1, 2]
