"""A rank that dies, stops, raises or ends costs the others one sentence that names it, and never a hang: in real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.processes import Rank, on_ranks, values
from tests.stats.distributed.ranks import mergers
from torch import distributed as dist

from sonde.stats import Moments, Piece
from sonde.stats.distributed import Group, Key, Merger, Offer, RankRows, channel
from sonde.stats.distributed import regrouping as regrouping_module
from sonde.stats.distributed.channel import LostError

KEYS = [Key(("moments", "a"))]
TIMEOUT = 60.0  # seconds without a sign of life: no machine is so busy
SHORT = 4.0  # the same, where such a rank is waited for, or given up
BEAT, SLOW_BEAT = 0.25, 2.0  # seconds between two signs of life; where the living are told from the dead by them
LIMIT = 120.0  # seconds after which ranks hang
STEPS = 5
AT = 2  # the step at which something happens


def offer(step: int) -> Offer:
    return Offer(step, [RankRows(Moments(), KEYS, np.array([[1.0] + [float(step)] * Moments().width]))], label=f"step {step}")


def merger(timeout: float = TIMEOUT, beat: float = BEAT) -> Merger:
    channel._BEAT = beat  # of this process, which ends with the test
    group = Group.join("sonde.watch", seconds=LIMIT)
    assert group is not None
    return Merger(group, timeout=timeout)


def until(condition: Callable[[], object]) -> None:
    """Return when *condition* holds; a test that waits in vain is killed at its limit."""
    while not condition():
        time.sleep(0.005)


def train(what: str, *who: int) -> dict[str, Any]:
    """Merge some steps; at one of them, something happens on the ranks *who*."""
    rank = dist.get_rank()
    is_one_of_many = what == "kill" and dist.get_world_size() > 2
    made = merger(SHORT if what in ("stop", "busy") else TIMEOUT, SLOW_BEAT if is_one_of_many else BEAT)
    store = made._channel.group.store
    counts, failed, lost = [], [], []
    for step in range(STEPS):
        if step == AT and rank in who:
            happen(what, made)
            if what == "early":
                return {}
        elif step == AT and what == "hurry":
            made.hurry(3.0)
        merged = made.merge(offer(step))
        counts.append(merged.blocks[0].ranks.tolist()[0])
        failed += [merged.failed] if merged.failed else []
        lost += [merged.lost] if merged.lost else []
    members = made.members
    if not failed:  # none leaves while another one is still in the last step
        store.add("done", 1)
        until(lambda: store.add("done", 0) >= len(members))
    made.close()
    made.close()
    if what == "stop" and rank == members[0]:
        os.kill(int(store.get("process")), signal.SIGKILL)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(LIMIT)  # what was told to end may be about to
    return {
        "counts": counts,
        "failed": sorted(set(failed)),
        "lost": lost,
        "members": list(members),
        "threads": threading.active_count(),
    }


def happen(what: str, made: Merger) -> None:
    store = made._channel.group.store
    until(lambda: store.get(f"alive/{dist.get_rank()}").endswith(f"step {AT - 1}"))  # a sign of life that says how far it has come
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        store.set("process", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "raise":
        raise ValueError("of the user's loop")
    elif what == "exit":
        sys.exit(0)
    elif what == "early":
        made.close(f"rank {dist.get_rank()} ended after step {AT - 1}")
    elif what == "broken":  # between the two collectives of a step

        def sums(*_: object) -> None:
            raise SystemError("bad argument")

        made._layout.sums = sums  # type: ignore[assignment, method-assign]
    elif what == "busy":
        time.sleep(1.5 * SHORT)
    elif what == "hurry":
        until(lambda: store.has("gone"))  # the others have left
    elif what == "fork":
        child = os.fork()
        if not child:
            failed = made.merge(offer(AT)).failed
            made.close()
            del made
            os._exit(failed != "this process was forked from the one that merges")
        assert os.waitpid(child, 0)[1] == 0


def survivors(size: int, what: str, *who: int, **others: Any) -> tuple[list[dict[str, Any]], Rank]:
    """What became of the ranks but *who*, none of which said anything on the standard error; and the first of *who*."""
    ranks = on_ranks(size, train, what, *who, check=False, limit=LIMIT, **others)
    rest = [rank for rank in ranks if rank.rank not in who]
    assert all(rank.is_clean and not rank.err for rank in rest), "\n".join(map(str, ranks))
    return [rank.value for rank in rest], ranks[who[0]]


@pytest.mark.parametrize(
    ("size", "what", "who", "why"),
    [
        (2, "kill", 1, "rank 1 died, or closed the connection (last seen at step 1)"),
        pytest.param(2, "raise", 1, "rank 1 has ended", marks=pytest.mark.slow),
        pytest.param(2, "exit", 0, "rank 0 has ended", marks=pytest.mark.slow),
        pytest.param(
            3,
            "hurry",
            2,
            "rank 2 (last seen at step 1) did not come to the last steps within 3 s of the end",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_lost_rank_costs_one_sentence(size: int, what: str, who: int, why: str) -> None:
    """The same on all others, each of which keeps its own rows from there, and leaves no thread behind."""
    found, _ = survivors(size, what, who)
    for rank, value in zip([rank for rank in range(size) if rank != who], found, strict=True):
        assert value["failed"] == [why]
        assert value["counts"] == [size if rank == 0 else 0] * AT + [1] * (STEPS - AT)
        assert value["lost"] == []
        assert value["threads"] == 1


@pytest.mark.parametrize(
    ("size", "what", "who", "why"),
    [
        (3, "early", (1,), "rank 1 ended after step 1"),
        pytest.param(4, "early", (3, 1), "rank 1 ended after step 1", marks=pytest.mark.slow),
        pytest.param(4, "kill", (0,), "rank 0 died, or closed the connection (last seen at step 1)", marks=pytest.mark.slow),
        pytest.param(4, "kill", (2,), "rank 2 died, or closed the connection (last seen at step 1)", marks=pytest.mark.slow),
        pytest.param(
            5, "kill", (1, 3), "ranks 1 and 3 died, or closed the connection (last seen at step 1)", marks=pytest.mark.slow
        ),
        pytest.param(3, "stop", (1,), "rank 1 showed no sign of life for 4 s (last seen at step 1)", marks=pytest.mark.slow),
        pytest.param(3, "raise", (2,), "rank 2 has ended", marks=pytest.mark.slow),
        pytest.param(3, "broken", (1,), "rank 1 could not join step 2: SystemError: bad argument", marks=pytest.mark.slow),
    ],
)
def test_the_ranks_that_are_left_go_on_joined(size: int, what: str, who: tuple[int, ...], why: str) -> None:
    """The first of them writes, whoever was lost."""
    found, _ = survivors(size, what, *who)
    left = [rank for rank in range(size) if rank not in who]
    for rank, value in zip(left, found, strict=True):
        assert value["failed"] == []
        assert value["members"] == left
        assert value["counts"] == [size if rank == 0 else 0] * AT + [len(left) if rank == left[0] else 0] * (STEPS - AT)
        assert value["threads"] == 1
        (lost,) = value["lost"]
        assert why in lost
        assert all(f"rank {rank}" in lost or "ranks" in lost for rank in who)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["busy", "fork"])
def test_a_busy_rank_is_waited_for(what: str) -> None:
    """Longer than a rank may show no sign of life; or while it forks, which does not disturb the merging."""
    found, other = survivors(2, what, 1)
    for value in (*found, other.value):
        assert value["failed"] == []
        assert value["threads"] == 1
    assert found[0]["counts"] == [2] * STEPS


def half_finished(what: str) -> list[Any]:
    """Rank 2 dies in a step; what rank 0 has of the step, or nobody has, is what all that are left have in the end."""
    made = merger(beat=SLOW_BEAT)
    rank, found = dist.get_rank(), []
    for step in range(STEPS):
        made_sum = made._channel.sum
        if step == AT and what == "sum" and rank == 1:

            def lost_as_it_ends(numbers: Any, made_sum: Any = made_sum) -> None:
                made_sum(numbers)
                numbers.zero_()
                lost = LostError("rank 2 died", [2])
                made._channel._leave(lost)
                raise lost

            made._channel.sum = lost_as_it_ends  # type: ignore[method-assign]
        if step == AT and what == "begin" and rank == 2:
            made._layout.sums = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment, method-assign]
        merged = made.merge(offer(step))
        if step == AT and rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        (block,) = merged.blocks
        found.append([block.joined.tolist()[0], block.rows[0, 1], block.ranks.tolist()[0], list(merged.members), merged.failed])
    made.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sum", "begin"])
def test_a_step_that_one_rank_has_finished_is_finished_on_all(what: str) -> None:
    """And one that none has finished that is left is repeated: no step is joined on one rank, and not on another."""
    ranks = on_ranks(3, half_finished, what, check=False, limit=LIMIT)
    assert all(rank.is_clean for rank in ranks[:2]), "\n".join(map(str, ranks))
    for rank in (0, 1):
        for step, (joined, additions, written, members, failed) in enumerate(ranks[rank].value):
            whole = step < AT or (step == AT and what == "sum")
            assert members == ([0, 1, 2] if whole else [0, 1])
            assert (joined, additions, failed) == (len(members), float(step) * len(members), "")
            assert written == (0 if rank else len(members))


def in_parts() -> list[Any]:
    """Offer parameters in parts, of which rank 2 takes one with it."""
    made = merger(beat=SLOW_BEAT)
    rank, found = dist.get_rank(), []
    cut, twice = Piece((3, 2), (1, 2), (rank, 0)), Piece((4, 2), (2, 2), (2 * (rank % 2), 0))
    pieces = {"cut": cut, "twice": twice, "whole": Piece((2,), (2,), (0,)), "output": None}
    for step in range(STEPS):
        if step == AT and rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == AT + 1:
            pieces["late"] = twice  # nobody knows whether rank 2 had a part that no other rank has
        keys = [Key((name,), piece=piece) for name, piece in pieces.items()]
        rows = np.tile([1.0] + [2.0] * Moments().width, (len(keys), 1))
        merged = made.merge(Offer(step, [RankRows(Moments(), keys, rows)])).blocks[0]
        found.append({name: (bool(merged.is_merged[at]), int(merged.joined[at])) for at, name in enumerate(pieces)})
    made.close()
    return found


@pytest.mark.slow
def test_a_parameter_of_which_a_lost_rank_had_a_part_is_joined_no_more() -> None:
    ranks = on_ranks(3, in_parts, check=False, limit=LIMIT)
    for rank in ranks[:2]:
        assert rank.is_clean, "\n".join(map(str, ranks))
        before = {"cut": (True, 3), "twice": (True, 2), "whole": (True, 1), "output": (True, 3)}
        after = {"cut": (False, 1), "twice": (True, 2), "whole": (True, 1), "output": (True, 2)}
        assert rank.value == [before] * AT + [after] + [{**after, "late": (False, 1)}] * (STEPS - AT - 1)


def regrouping(what: str) -> dict[str, Any]:
    """Rank 3 ends; while the others regroup, rank 2 is busy, or dies."""
    made = merger(SHORT)
    rank, lost = dist.get_rank(), []
    store = made._channel.group.store
    if rank == 2 and what == "dies":
        regrouping_module._awaited = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    elif what == "decides":  # rank 2 does, and does not come so far
        left = regrouping_module._left

        def second(*given: Any) -> Any:
            if rank == 2:
                store.part("left").change("decides", "", "2")
                os.kill(os.getpid(), signal.SIGKILL)
            until(lambda: store.part("left").has("decides"))
            return left(*given)

        regrouping_module._left = second
    for step in range(STEPS):
        if step == AT and rank == 3:
            made.close("rank 3 ended after step 1")
            return {}
        if step == AT and rank == 2 and what == "busy":
            until(lambda: store.has("left/decides"))
            time.sleep(2.0)
        merged = made.merge(offer(step))
        lost += [merged.lost] if merged.lost else []
    members, failed = list(made.members), made.failed
    store.add("done", 1)
    until(lambda: store.add("done", 0) >= len(members))
    made.close()
    return {"lost": lost, "members": members, "failed": failed, "joined": merged.blocks[0].joined.tolist()}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "left"), [("busy", 3), ("dies", 2), ("decides", 2)])
def test_what_happens_while_ranks_regroup(what: str, left: int) -> None:
    """A busy rank is waited for, as ever; one that dies then is lost, too, also where it was to say who is left."""
    ranks = on_ranks(4, regrouping, what, check=False, limit=LIMIT)
    for rank in ranks[:left]:
        assert rank.is_clean, "\n".join(map(str, ranks))
        assert rank.value["members"] == list(range(left))
        assert (rank.value["failed"], rank.value["joined"]) == ("", [left])
        (lost,) = rank.value["lost"]
        assert lost.startswith("rank 3 ended after step 1")
        assert ("rank 2" in lost) == (what == "dies")


def comes_back() -> dict[str, Any]:
    """Rank 1 is stopped until the others have gone on without it."""
    made = merger(SHORT)
    rank, store = dist.get_rank(), made._channel.group.store
    made.merge(offer(0))
    if rank == 1:
        store.set("process", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    merged = made.merge(offer(1))
    if rank == 0:
        os.kill(int(store.get("process")), signal.SIGCONT)
    store.add("done", 1)
    until(lambda: store.add("done", 0) >= 3)
    made.close()
    return {"joined": merged.blocks[0].joined.tolist(), "failed": merged.failed}


@pytest.mark.slow
def test_a_rank_that_was_given_up_and_comes_back_goes_on_alone() -> None:
    first, second, third = values(on_ranks(3, comes_back))
    assert first == third == {"joined": [2], "failed": ""}
    assert second["joined"] == [1]
    assert second["failed"].startswith("rank 1 showed no sign of life for 4 s")


@pytest.mark.parametrize("size", [3, 16, 40])
def test_of_many_ranks_that_cannot_regroup_some_keep_their_rows(size: int) -> None:
    """Evenly spread, so that one machine that is lost does not hold them all."""
    with mergers(size) as (made, _):
        for each in made:
            each._failed = "the store is gone"
        kept = [rank for rank, each in enumerate(made) if each.merge(offer(0)).blocks[0].ranks.tolist() == [1]]
    assert kept == (list(range(size)) if size <= 16 else [number * size // 16 for number in range(16)])
    assert [each.is_silent for each in made] == [rank not in kept for rank in range(size)]


def suspended() -> dict[str, Any]:
    """Stop every rank for longer than the time-out, as a scheduler does with a job that has to make room."""
    made = merger(SHORT)
    rank = dist.get_rank()
    made.merge(offer(0))
    first, second = (0.7, 3.9) if rank == 1 else (1.2, 3.0)  # rank 0 has seen the last sign of rank 1, and goes on before it
    stopping = subprocess.Popen(
        ["sh", "-c", f"sleep {first * SHORT}; kill -STOP {os.getpid()}; sleep {second * SHORT}; kill -CONT {os.getpid()}"]
    )
    if rank == 1:
        time.sleep(0.9 * SHORT)
    merged = made.merge(offer(1))
    stopping.wait()
    made.close()
    return {"ranks": merged.blocks[0].joined.tolist(), "failed": merged.failed}


@pytest.mark.slow
def test_a_job_that_is_suspended_as_a_whole_goes_on() -> None:
    assert values(on_ranks(2, suspended)) == [{"ranks": [2], "failed": ""}] * 2


class Late:
    """A collective whose result arrives just as a slice of the wait is over."""

    def __init__(self, work: Any, store: Any) -> None:
        self.work, self.store = work, store
        self.slices = 0

    def wait(self, seconds: Any) -> None:
        try:
            self.work.wait(seconds)
        except RuntimeError:
            self.slices += 1
            self.store.set("a slice is over", "")
            until(self.work.is_completed)
            raise

    def is_completed(self) -> bool:
        return bool(self.work.is_completed())


def late() -> list[Any]:
    """Merge a step for which the other rank comes when a slice is over."""
    made = merger()
    store = made._channel.group.store
    gloo: Any = made._channel._gloo
    reduce, works = gloo.reduce, []

    def reduced(tensor: Any, operation: Any) -> Late:
        works.append(Late(reduce(tensor, operation), store))
        return works[-1]

    gloo.reduce = reduced
    if dist.get_rank():
        until(lambda: store.has("a slice is over"))
    merged = made.merge(offer(0))
    made.close()
    return [merged.blocks[0].joined.tolist(), merged.failed, sum(work.slices for work in works)]


def test_a_result_that_arrives_as_a_slice_of_the_wait_ends_is_a_result() -> None:
    first, second = values(on_ranks(2, late))
    assert first[:2] == second[:2] == [[2], ""]
    assert first[2] >= 1


@pytest.mark.slow
def test_a_store_that_ended_with_rank_0_costs_one_sentence() -> None:
    """And not the pages that torch writes where a store is used whose process has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found, _ = survivors(3, "kill", 0, environ={"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(port)})
    for value in found:
        assert value["failed"] == ["the process that held the store of the job has ended (rank 0, as a rule)"]


def leave(how: str) -> str:
    """Rank 0 ends while another thread waits for rank 1, which does not come before rank 0 has ended."""
    made = merger()
    made.merge(offer(0))
    gloo, store = made._channel._gloo, made._channel.group.store
    if dist.get_rank() == 0:
        store.set("process", str(os.getpid()))
        done = gloo.pending
        threading.Thread(target=made.merge, args=(offer(1),), daemon=True).start()
        until(lambda: gloo.pending is not done)
        if how == "close":
            made.close("rank 0 ended after step 0")
        elif how == "interrupt":
            waiting = gloo.pending

            def interrupt() -> None:
                until(lambda: gloo.pending is not waiting)
                os.kill(os.getpid(), signal.SIGINT)

            threading.Thread(target=interrupt, daemon=True).start()
            made._channel.minimum(made._layout.minima((), [0, 0, 0]))
        return ""
    until(lambda: store.has("process"))
    until(lambda: has_ended(int(store.get("process"))))
    return made.merge(offer(1)).failed


def has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"), [("close", "rank 0 ended after step 0"), ("exit", "rank 0 has ended"), ("interrupt", "rank 0 has ended")]
)
def test_a_program_can_end_while_a_step_is_merged(how: str, why: str) -> None:
    """Before the other rank comes, since nothing waits for an operation that waits for another rank."""
    first, second = on_ranks(2, leave, how, check=False, limit=LIMIT)
    assert not first.hung
    assert ("KeyboardInterrupt" in (first.error or "")) == (how == "interrupt")
    assert second.is_clean, str(second)
    assert second.value == why
