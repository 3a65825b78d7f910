"""Ranks find each other, agree, and say which rank is missing: in real processes."""

from __future__ import annotations

import pytest
import torch
from tests.processes import on_ranks, values
from tests.stats.distributed.test_merger import row_of
from torch import distributed as dist

from sonde.stats import Moments, reduce
from sonde.stats.distributed import Group, Key, Merger, Offer, RankRows


def joined(name: str = "sonde.watch") -> Group:
    group = Group.join(name, seconds=120.0)  # no machine is so busy
    assert group is not None
    return group


def error_of(function: object) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011  # the type is in the text
        function()  # type: ignore[operator]
    return f"{raised.type.__name__}: {raised.value}"


def agreeing() -> list[object]:
    rank = dist.get_rank()
    group = joined()

    def write() -> str:
        if rank == 1:
            raise PermissionError("no")
        return "written"

    group.agree({"lenses": ["moments"], "every": 10})
    found: list[object] = [
        error_of(lambda: group.agree({"lenses": ["moments"], "every": 10 + rank})),
        error_of(lambda: group.agree({"a": 1, **({"b": None} if rank else {})})),
        error_of(lambda: group.agree({"lens": f"{'a' * 500}{rank}{'z' * 500}"})),
        group.agree({}, lambda: f"made by {rank}"),
        error_of(lambda: group.agree({}, write if rank else lambda: 1 / 0)),
        group.together(lambda: rank * 10),
        error_of(lambda: group.together(write)),
        group.gather({"of": rank}),
    ]
    again = joined()  # a second attach
    found.append(again.agree({}, lambda: "again"))
    return found


def test_ranks_agree_or_raise_the_same_error() -> None:
    first, second = values(on_ranks(2, agreeing))
    every = "RankError: the ranks do not agree on every: rank 0 has 10, rank 1 has 11; give all ranks the same"
    missing = "RankError: the ranks do not agree on b: rank 0 has nothing, rank 1 has null; give all ranks the same"
    ends = "a" * 30, "z" * 89
    first_piece, second_piece = (f"...{ends[0]}{rank}{ends[1]}..." for rank in (0, 1))
    long = (
        f"RankError: the ranks do not agree on lens: rank 0 has {first_piece}, rank 1 has {second_piece}; give all ranks the same"
    )
    zero = "ZeroDivisionError: division by zero"
    assert first == [
        every,
        missing,
        long,
        "made by 0",
        zero,
        0,
        "RankError: rank 1: PermissionError: no",
        {0: {"of": 0}, 1: {"of": 1}},
        "again",
    ]
    assert second == [every, missing, long, "made by 0", f"RankError: rank 0: {zero}", 10, "PermissionError: no", {}, "again"]


def alone_first() -> list[str]:
    """Rank 1 never comes to the first meeting, rank 0 never to the second."""
    rank = dist.get_rank()
    found = []
    for absent in (1, 0):
        if rank != absent:
            found.append(error_of(lambda: Group.join("probe.merged()", seconds=0.1)))
        dist.barrier()
    joined("probe.merged()").agree({"one": 1})
    return found


def test_a_rank_that_stays_away_is_named_and_the_next_meeting_is_a_new_one() -> None:
    first, second = values(on_ranks(2, alone_first))
    assert first == ["RankError: only rank 0 of 2 called probe.merged() within 0.1 s: call it on all ranks"]
    assert second == ["RankError: rank 0 of 2 did not call probe.merged() within 0.1 s: call it on all ranks"]


def without_a_group() -> str:
    return error_of(lambda: Group.join("sonde.watch"))


def test_several_processes_without_a_process_group_are_refused() -> None:
    for text in values(on_ranks(2, without_a_group, group=False)):
        assert text.startswith(
            "ArgumentError: WORLD_SIZE is 2, but torch.distributed has no process group: call torch.distributed.init_"
        )


def test_one_process_has_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Group.join("sonde.watch") is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert Group.join("sonde.watch") is None


def merging(steps: int) -> list[list[float]]:
    """Merge while the default group is busy too, and after it was destroyed."""
    rank = dist.get_rank()
    group = joined()
    merger, other = Merger(group), Merger(group)
    keys = [Key(("moments", "a")), Key(("moments", "b"))]
    found = []
    for step in range(steps):
        rows = torch.tensor([row_of(Moments(), torch.full((3,), 10.0 * rank + step)), row_of(Moments())])
        found.append(merger.merge(Offer(step, [RankRows(Moments(), keys, rows.double().numpy())])).blocks[0].rows[0].tolist())
        if step == 1:
            other.close()
        if step == 2:
            dist.barrier()
            dist.destroy_process_group()
        elif step < 2:
            dist.all_reduce(torch.ones(4))
    assert merger.failed == ""
    merger.close()
    return found


@pytest.mark.slow
def test_rows_of_real_ranks_merge() -> None:
    """On an own group: torch's is not needed after the beginning."""
    found = values(on_ranks(3, merging, 6))
    for step in range(6):
        rows = torch.tensor([row_of(Moments(), torch.full((3,), 10.0 * rank + step)) for rank in range(3)], dtype=torch.float64)
        wanted = [3.0, *reduce(Moments(), rows[:, 1:]).tolist()]
        assert [got[step] for got in found] == [wanted] * 3
