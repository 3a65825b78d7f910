"""Ranks that come to ``watch`` late, or never, or whose store does not answer: what the others record, and that none stops."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import Rank, on_ranks
from tests.quick import quick
from tests.ranks.test_failures import merged_and_own
from tests.ranks.trainings import TRAININGS, plain
from torch import distributed as dist

import sonde
from sonde import lens
from sonde.run import open_run
from sonde.stats import Moments
from sonde.stats.distributed import group

STEPS, APART = 8, 3
"""Steps, and how many of them a rank makes before the others have come."""

SOON = 0.1
"""Seconds that ``watch`` waits."""

LIMIT = 60.0
"""Seconds after which ranks hang."""


def until(condition: Callable[[], object]) -> None:
    """Return when *condition* holds; a test that waits in vain is killed at its limit."""
    while not condition():
        time.sleep(0.01)


def watched(folder: Path, training: Any, **given: Any) -> sonde.Inspector:
    ranks = given.pop("ranks", None) or sonde.Ranks(wait=SOON, exit_timeout=LIMIT)
    lenses = [lens.Lens("moments", Moments(), ("output", "grad", "param", "update")), lens.LossMetrics()]
    options = {"every": 1, "lenses": lenses, "to": folder / "run", "verbose": False, "ranks": ranks} | given
    return sonde.watch(training.model, training.optimizer, **options)


def come(folder: Path, order: tuple[int, ...]) -> int:
    """Watch after the rank that is before this one in *order* has gone ahead; train alone for some steps, then with all."""
    rank = dist.get_rank()
    place, last = order.index(rank), len(order) - 1
    if place:
        until((folder / f"{place - 1} is here").exists)
    training = plain()
    with watched(folder, training):
        (folder / f"{place} is here").touch()
        for step in range(STEPS):
            if step == APART:
                until((folder / f"{last} is here").exists)
            training.step(step)
    return STEPS


ORDERS = [order for size in (2, 3) for order in itertools.permutations(range(size))]
ORDERS += [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1), (3, 0, 1, 2)]
"""Of four, each rank is the first, and each the last."""


@pytest.mark.parametrize(
    "order", [pytest.param(each, marks=() if each == (0, 1) else pytest.mark.slow) for each in ORDERS], ids=str
)
def test_ranks_that_come_one_after_the_other_record_rows_of_their_own_and_then_joined_ones(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """In one run: each step is either joined or each rank's own, and none is missing; those that went ahead are told."""
    ranks = on_ranks(len(order), come, tmp_path, order, limit=LIMIT, check=False)
    shown = "\n".join(map(str, ranks))
    assert all(rank.error is None and rank.code == 0 for rank in ranks), shown
    assert ["Error" in rank.err for rank in ranks] == [False] * len(order), shown
    for place, rank in enumerate(order):
        assert len(ranks[rank].warnings) == (place < len(order) - 1), shown
    assert f"rank {order[0]} records rows of its own, and waits for the others while it trains" in ranks[order[0]].warnings[0]
    run = open_run(tmp_path / "run")
    merged, own = merged_and_own(run, dict.fromkeys(range(len(order)), STEPS))
    assert merged == list(range(STEPS - len(merged), STEPS))
    assert len(merged) >= STEPS - APART
    for rank in order:
        assert sorted(own[rank] + merged) == list(range(STEPS))
    assert run.described_ranks.startswith(f"{len(order)} ranks: outputs of their batches joined")


def with_gradients_in_common(folder: Path) -> int:
    """Come late to a training in which each step needs every rank."""
    training = TRAININGS["DDP"][1]()
    if dist.get_rank():
        until((folder / "0 is here").exists)
    with watched(folder, training):
        (folder / f"{dist.get_rank()} is here").touch()
        for step in range(3):
            training.step(step)
    return 3


def test_a_rank_that_comes_late_to_a_training_that_waits_for_it_joins_all_rows(tmp_path: Path) -> None:
    ranks = on_ranks(2, with_gradients_in_common, tmp_path, limit=LIMIT, check=False)
    assert [rank.error for rank in ranks] == [None, None]
    found = open_run(tmp_path / "run").sql("SELECT DISTINCT step, rank, ranks FROM moments WHERE port = 'output' ORDER BY step")
    assert found.fetchall() == [(step, 0, 2) for step in range(3)]


def without(folder: Path, absent: int) -> int:
    """Train on all ranks; watch on all but one. The end waits for those that have come, so that one run has the rows of each."""
    training = plain()
    if dist.get_rank() == absent:
        for step in range(STEPS):
            training.step(step)
        return STEPS
    group._TELLING = 0.05
    with watched(folder, training, verbose=True):
        (folder / f"{dist.get_rank()} is here").touch()
        for step in range(STEPS):
            training.step(step)
        until(lambda: len(list(folder.glob("* is here"))) == dist.get_world_size() - 1)
        time.sleep(0.3)  # for messages
    return STEPS


@pytest.mark.parametrize(
    ("size", "absent"),
    quick([(2, 0), (3, 0), (2, 1), (3, 2), (4, 0), (4, 2)], (3, 0)),
)
def test_a_rank_that_never_calls_watch_leaves_the_others_with_rows_of_their_own_in_one_run(
    tmp_path: Path, size: int, absent: int
) -> None:
    """Each is told who is missing; the one that began the run says so again while it waits."""
    ranks = on_ranks(size, without, tmp_path, absent, limit=LIMIT, check=False)
    shown = "\n".join(map(str, ranks))
    assert [rank.value for rank in ranks] == [STEPS] * size, shown
    assert ranks[absent].is_clean, shown
    others = [rank for rank in range(size) if rank != absent]
    assert all(len(ranks[rank].warnings) == 1 for rank in others), shown
    run = open_run(tmp_path / "run")
    merged, own = merged_and_own(run, dict.fromkeys(range(size), STEPS))
    assert merged == []
    assert own == {rank: list(range(STEPS)) if rank != absent else [] for rank in range(size)}
    told = [rank for rank in others if "They are waited for until 300 s" in ranks[rank].err]
    assert len(told) == 1, shown
    assert "steps logged" in ranks[told[0]].out, shown
    wanted = f"{size - 1} ranks, each with rows of its own" if size > 2 else f"rank {others[0]} alone of several"
    assert run.described_ranks.startswith(wanted)
    assert run.state == "ended"


def after_the_end(folder: Path) -> int:
    """Come when the others have trained and detached."""
    training = plain()
    if dist.get_rank():
        until((folder / "0 has ended").exists)
    with watched(folder, training):
        for step in range(STEPS):
            training.step(step)
    (folder / f"{dist.get_rank()} has ended").touch()
    return STEPS


@pytest.mark.slow
def test_a_rank_that_comes_after_the_others_have_ended_adds_rows_of_its_own_to_their_run(tmp_path: Path) -> None:
    ranks = on_ranks(2, after_the_end, tmp_path, limit=LIMIT, check=False)
    assert [rank.error for rank in ranks] == [None, None], "\n".join(map(str, ranks))
    merged, own = merged_and_own(open_run(tmp_path / "run"), {0: STEPS, 1: STEPS})
    assert (merged, own) == ([], {0: list(range(STEPS)), 1: list(range(STEPS))})


def with_other_arguments(folder: Path) -> int:
    rank = dist.get_rank()
    if rank:
        until((folder / "0 is here").exists)
    training = plain()
    with watched(folder, training, evaluation=rank == 1):
        (folder / f"{rank} is here").touch()
        until((folder / "1 is here").exists)
        for step in range(STEPS):
            training.step(step)
    return STEPS


@pytest.mark.slow
def test_a_rank_that_comes_late_with_other_arguments_costs_a_warning(tmp_path: Path) -> None:
    ranks = on_ranks(2, with_other_arguments, tmp_path, limit=LIMIT, check=False)
    shown = "\n".join(map(str, ranks))
    assert [rank.error for rank in ranks] == [None, None], shown
    assert all("the ranks do not agree on evaluation=" in rank.warnings[-1] for rank in ranks), shown
    merged, own = merged_and_own(open_run(tmp_path / "run"), {0: STEPS, 1: STEPS})
    assert (merged, own) == ([], {0: list(range(STEPS)), 1: list(range(STEPS))})


def several(folder: Path) -> list[str]:
    """Watch twice with one rank too late for the first, then all together."""
    rank, found = dist.get_rank(), []
    for name in ("first", "second"):
        training = plain()
        if rank == 0 or name == "second":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore" if name == "first" else "always")
                wait = SOON if name == "first" else LIMIT
                with watched(folder, training, to=folder / name, ranks=sonde.Ranks(wait=wait)) as inspector:
                    training.step(0)
                    found.append(str(inspector.path))
        dist.barrier()
    return found


def test_a_training_that_one_rank_watched_alone_leaves_the_next_one_as_it_is(tmp_path: Path) -> None:
    on_ranks(2, several, tmp_path, limit=LIMIT)
    assert open_run(tmp_path / "second").described_ranks.startswith("2 ranks: ")
    assert open_run(tmp_path / "first").described_ranks.startswith("rank 0 alone")


# A store that does not answer

HOLDER = """
import sys, time
from torch import distributed
store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(600)
"""


def freeze(folder: Path, holder: int, exits: float) -> int:
    """Train; at a step rank 0 stops the process that holds the store: *holder*, or, where that is 0, itself."""
    if not holder:
        dist.init_process_group("gloo")
    training = plain()
    with watched(folder, training, ranks=sonde.Ranks(wait=LIMIT, timeout=2.0, exit_timeout=exits)) as inspector:
        for step in range(STEPS):
            if step == APART:
                until(lambda: inspector.run.last_step >= APART - 2)
                if dist.get_rank() == 0:
                    os.kill(holder or os.getpid(), signal.SIGSTOP)
                    (folder / "stopped").touch()
                elif holder:
                    until((folder / "stopped").exists)
            training.step(step)
    return STEPS


@pytest.mark.slow
def test_survivors_of_a_stopped_rank_that_holds_the_store_end(tmp_path: Path) -> None:
    """After the time-out, with a sentence; what they record from there on is their own."""
    environ = {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(free_port())}
    ranks = on_ranks(3, freeze, tmp_path, 0, 5.0, limit=30.0, check=False, group=False, environ=environ)
    shown = "\n".join(map(str, ranks))
    assert [rank.hung for rank in ranks] == [True, False, False], shown
    assert [rank.value for rank in ranks] == [None, STEPS, STEPS], shown
    assert all("the process that holds the store of the job" in rank.warnings[0] for rank in ranks[1:]), shown
    merged, own = merged_and_own(open_run(tmp_path / "run"), {0: APART, 1: STEPS, 2: STEPS})
    assert own[1] == own[2]
    assert sorted(set(own[1]) | set(merged)) == list(range(STEPS))


@pytest.mark.slow
def test_ranks_whose_launcher_is_stopped_go_on_and_end(tmp_path: Path) -> None:
    """The store of torchrun's agent gives no answer any more; the ranks are connected with each other, and join their rows."""
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            port = holder.stdout.readline().strip()
            ranks = on_ranks(2, freeze, tmp_path, holder.pid, 2.0, limit=LIMIT, check=False, environ={"MASTER_PORT": port})
        finally:
            holder.kill()
    assert finished(ranks) == [STEPS, STEPS]
    merged, own = merged_and_own(open_run(tmp_path / "run"), {0: STEPS, 1: STEPS})
    for rank in (0, 1):
        assert sorted(merged + own[rank]) == list(range(STEPS))


def finished(ranks: list[Rank]) -> list[Any]:
    """Return the values; fail and show all ranks where one has raised or hangs."""
    assert not any(rank.hung or rank.error for rank in ranks), "\n".join(map(str, ranks))
    return [rank.value for rank in ranks]


def free_port() -> int:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return int(store.port)
