"""The harness of many ranks reports values, warnings, errors, deaths and hangs, and never hangs itself."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import warnings

import pytest
import torch
from tests.processes import on_ranks, values
from torch import distributed


def total() -> tuple[float, int, int]:
    """Join the ranks once."""
    one = torch.tensor(distributed.get_rank() + 1.0)
    distributed.all_reduce(one)
    return one.item(), distributed.get_world_size(), torch.get_num_threads()


def misbehave(how: dict[int, str]) -> int:
    """Go wrong in the way that is said for this rank."""
    rank = distributed.get_rank()
    match how.get(rank):
        case "raise":
            raise KeyError("user's bug")
        case "warn":
            thread = threading.Thread(target=warnings.warn, args=("in a thread",))
            thread.start()
            thread.join()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            sys.stdout.write("before\n")
            sys.stderr.write("noise\n")
            time.sleep(1_000)
    return rank


def environment() -> dict[str, str]:
    assert not distributed.is_initialized()
    return dict(os.environ)


def exit_late() -> None:
    """Register an exit function that raises, and a thread that ends later than the function."""
    if distributed.get_rank() == 1:
        atexit.register(lambda: 1 / 0)
    threading.Timer(0.2, sys.stdout.write, ["late\n"]).start()


def test_the_ranks_of_one_call_form_a_group() -> None:
    assert values(on_ranks(2, total)) == [(3.0, 2, 1)] * 2
    assert values(on_ranks(3, total)) == [(6.0, 3, 1)] * 3


def test_a_rank_that_warns_or_raises_fails_the_call_and_all_ranks_are_shown() -> None:
    with pytest.raises(AssertionError, match=r"(?s)rank 0: exit code 0.*in a thread.*rank 1: exit code 1.*user's bug"):
        on_ranks(2, misbehave, {0: "warn", 1: "raise"})


@pytest.mark.slow
def test_what_became_of_each_rank_is_said() -> None:
    ranks = on_ranks(4, misbehave, {0: "kill", 1: "stop", 2: "hang"}, limit=3.0, check=False)
    assert [rank.code for rank in ranks] == [-signal.SIGKILL, -signal.SIGKILL, -signal.SIGKILL, 0]
    assert [rank.hung for rank in ranks] == [False, True, True, False]
    assert values(ranks) == [None, None, None, 3]
    assert ranks[2].out == "before\n"
    assert "noise" in ranks[2].err
    assert "in misbehave" in ranks[2].err  # the stack, where it hung


def test_exit_functions_and_threads_of_a_rank_run() -> None:
    ranks = on_ranks(2, exit_late, check=False)
    assert [rank.out for rank in ranks] == ["late\n"] * 2
    assert [len(rank.warnings) for rank in ranks] == [0, 1]
    assert "ZeroDivisionError" in ranks[1].warnings[0]


def test_ranks_without_a_group_have_the_environment_of_torchrun() -> None:
    found = values(on_ranks(2, environment, group=False, environ={"MORE": "1"}))
    assert [(one["RANK"], one["WORLD_SIZE"], one["MORE"]) for one in found] == [("0", "2", "1"), ("1", "2", "1")]
