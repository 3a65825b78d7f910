"""``RunningMeanVar`` over ranks: an asynchronous start, a blocking finish, and the numbers of all ranks."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tests.processes import on_ranks, values
from torch import distributed as dist

from sonde.errors import ArgumentError
from sonde.stats import RunningMeanVar

GIVEN = [[2.0, 4.0, math.nan], [], [1e8, -7.0]]


def aggregate(*numbers: float) -> RunningMeanVar:
    made = RunningMeanVar()
    for number in numbers:
        made.update(number)
    return made


def sync() -> list[RunningMeanVar]:
    rank = dist.get_rank()
    every = aggregate(*GIVEN[rank])
    every.start_sync()
    dist.all_reduce(torch.ones(3))  # the training goes on
    assert every == aggregate(*GIVEN[rank])
    every.finish_sync()
    between = aggregate(*GIVEN[rank])
    between.start_sync()
    between.update(5.0)
    between.finish_sync()
    group = dist.new_group([0, 2])
    some = aggregate(*GIVEN[rank])
    if rank == 1:
        with pytest.raises(ArgumentError, match="rank 1 is not in the given group"):
            some.start_sync(group=group)
    else:
        some.start_sync(group=group)
        some.finish_sync()
    return [every, between, some]


@pytest.mark.slow
def test_every_rank_gets_the_numbers_of_all() -> None:
    """Equal on all ranks, bit by bit, unless numbers came in between, which only this rank has."""
    first, second, third = values(on_ranks(3, sync))
    one, other, last = (aggregate(*numbers) for numbers in GIVEN)
    wanted = RunningMeanVar().merge(one).merge(other).merge(last)
    assert first[0] == second[0] == third[0] == wanted
    assert (wanted.count, wanted.nonfinite, wanted.max_) == (4, 1, 1e8)
    assert first[1] == RunningMeanVar().merge(aggregate(*GIVEN[0], 5.0)).merge(last)
    assert second[1] == RunningMeanVar().merge(one).merge(aggregate(5.0)).merge(last)
    assert first[2] == third[2] == RunningMeanVar().merge(one).merge(last)


def test_one_process_has_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    made = aggregate(1.0, 2.0)
    made.start_sync()
    assert made.finish_sync() == aggregate(1.0, 2.0)
    made.start_sync(dst_rank=0)  # as monitorch's trainings call it
    assert made.finish_sync() == aggregate(1.0, 2.0)
    for wrong in (-1, "0", object()):
        with pytest.raises(ArgumentError, match="no number of a rank; a process group is given as group="):
            made.start_sync(wrong)  # type: ignore[arg-type]  # what a user might write
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ArgumentError, match="WORLD_SIZE is 4, but"):
        made.start_sync()


def test_a_sync_begins_before_it_ends() -> None:
    made = aggregate(1.0)
    with pytest.raises(ArgumentError, match="call that before, on all ranks"):
        made.finish_sync()
    made.start_sync()
    with pytest.raises(ArgumentError, match="was called already"):
        made.start_sync()
    assert copy.deepcopy(made) == made  # without the sync
