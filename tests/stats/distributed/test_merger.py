"""Rows of several ranks merge as if one process had seen all tensors, in rounds of two collectives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.bounds import relative
from tests.stats.distributed.ranks import each, mergers
from tests.stats.test_laws import MEMBERS
from torch import Tensor

from sonde.stats import Accumulator, Cosine, ExponentHistogram, Field, Moments, Norm, Statistic, reduce
from sonde.stats.distributed import Key, Merged, Offer, RankRows, Total
from sonde.stats.distributed.rows import rows_of

MERGING = [(statistic, sample) for statistic, sample in MEMBERS if isinstance(statistic, Statistic)]


def key(name: str, **others: object) -> Key:
    return Key(("moments", 0, name, 0), **others)  # type: ignore[arg-type]


def row_of(statistic: Statistic, *tensors: Tensor) -> list[float]:
    """The row that a table has after these additions."""
    made = Accumulator(statistic)
    for tensor in tensors:
        made.update(tensor)
    return [float(len(tensors)), *made.state_dict()["row"][0].tolist()]


def block(keys: Sequence[Key | None], *rows: list[float], statistic: object = None) -> RankRows:
    chosen: Any = Moments() if statistic is None else statistic
    return RankRows(chosen, keys, np.array(rows).reshape(len(keys), 1 + chosen.width))


def merge(*offers: Offer) -> list[Merged]:
    """One offer for each rank."""
    with mergers(len(offers)) as (made, _):
        return each([lambda merger=merger, offer=offer: merger.merge(offer) for merger, offer in zip(made, offers, strict=True)])


SAMPLES = torch.tensor([0.0, -0.0, 1e-20, 3.5, -7.25, 100.0, math.nan, math.inf, -math.inf, 2.5, 2.5])


@pytest.mark.parametrize(("statistic", "sample"), MERGING, ids=str)
@pytest.mark.parametrize("counts", [(1, 2, 1), (0, 3, 1), (2, 0, 0), (0, 0, 0)], ids=str)
def test_merged_rows_equal_the_reduction_of_all_rows(
    statistic: Statistic, sample: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    """On every rank, for every statistic, with ranks to which nothing was added; sums up to the rounding of another order."""
    draw = torch.Generator().manual_seed(sum(counts) + 7 * counts[0])
    tensors = [[SAMPLES[torch.randint(len(SAMPLES), (4, *sample), generator=draw)] for _ in range(n)] for n in counts]
    rows = torch.tensor([row_of(statistic, *held) for held in tensors], dtype=torch.float64)
    keys = [key("0:output")]
    found = merge(*(Offer(0, [block(keys, row.tolist(), statistic=statistic)]) for row in rows))
    wanted = reduce(statistic, rows[:, 1:])
    sums, minima = statistic._cuts()
    size = statistic.aligned(rows[:, 1:], wanted[sums:minima]).abs().sum(0)
    for merged in found:
        got = torch.from_numpy(merged.blocks[0].rows[0])
        assert got[0] == sum(counts)
        torch.testing.assert_close(got[1 + sums :], wanted[sums:], rtol=0, atol=0, equal_nan=True)
        finite = size.isfinite()
        assert ((got[1 : 1 + sums] - wanted[:sums]).abs() <= relative(2 * len(counts)) * size)[finite].all()
        torch.testing.assert_close(got[1 : 1 + sums][~finite], wanted[:sums][~finite], equal_nan=True)
    some = [rank for rank, count in enumerate(counts) if count]
    assert [merged.blocks[0].ranks.tolist() for merged in found] == [
        [len(some)] if some[:1] == [rank] else [0] for rank in range(3)
    ]


def test_a_step_takes_two_collectives_whatever_the_number_of_rows() -> None:
    lists = [[key(f"{number}:output") for number in range(50)], [key(f"{number}:grad") for number in range(30)]]
    row = row_of(Moments(), torch.ones(3))
    with mergers(3) as (made, collectives):
        for step in range(3):
            if step == 1:
                collectives.calls.clear()
            offer = Offer(step, [block(keys, *[row] * len(keys)) for keys in lists], [Total("loss", 1.0)])
            each([lambda merger=merger, offer=offer: merger.merge(offer) for merger in made])
    assert collectives.calls == ["minimum", "sum"] * 2


def test_rows_join_by_key_and_not_by_position() -> None:
    """Ranks that ran other layers in another order; the first of those that have a row writes it."""
    one, other, third = (row_of(Moments(), torch.full((n,), float(n))) for n in (1, 2, 3))
    first, second = merge(
        Offer(0, [block([key("a"), key("b")], one, other)]), Offer(0, [block([key("c"), key("b"), key("d")], one, third, other)])
    )
    assert first.blocks[0].rows[:, :2].tolist() == [[1, 1], [2, 5]]
    assert first.blocks[0].ranks.tolist() == [1, 2]
    assert second.blocks[0].rows[:, :2].tolist() == [[1, 1], [2, 5], [1, 2]]
    assert second.blocks[0].ranks.tolist() == [1, 0, 1]


def test_the_first_rank_with_an_addition_writes() -> None:
    empty, some = row_of(Moments()), row_of(Moments(), torch.ones(2))
    found = merge(*(Offer(0, [block([key("a")], row)]) for row in (empty, some, some)))
    assert [merged.blocks[0].ranks.tolist() for merged in found] == [[0], [2], [0]]


@dataclass(frozen=True)
class Part:
    shape: tuple[int, ...]
    offset: tuple[int, ...]


def test_a_piece_of_a_parameter_counts_once() -> None:
    """Two shards on four ranks, each held twice, and an empty shard."""
    low, high = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
    held = [
        (Part((2,), (0,)), low),
        (Part((1,), (2,)), high),
        (Part((2,), (0,)), low),
        (Part((1,), (2,)), high),
        (Part((0,), (3,)), low[:0]),
    ]
    found = merge(*(Offer(0, [block([key("w:param", piece=part)], row_of(Moments(), tensor))]) for part, tensor in held))
    for merged in found:
        numbers = Moments().finish(Moments().columns(torch.from_numpy(merged.blocks[0].rows[:, 1:])))
        assert numbers["norm"].tolist() == [13.0]
        assert numbers["count"].tolist() == [3.0]
    assert [merged.blocks[0].ranks.tolist() for merged in found] == [[2], [0], [0], [0], [0]]


def test_replicas_of_a_parameter_count_once_without_an_exchange_of_pieces() -> None:
    whole = Part((2,), (0,))
    row = row_of(Moments(), torch.tensor([3.0, 4.0]))
    with mergers(3) as (made, collectives):
        offer = Offer(0, [block([key("w:param", piece=whole)], row)])
        found = each([lambda merger=merger: merger.merge(offer) for merger in made])
    assert [merged.blocks[0].ranks.tolist() for merged in found] == [[1], [0], [0]]
    assert found[2].blocks[0].rows[0].tolist() == row
    assert collectives.calls.count("gathered") == 1  # of the digests


def test_of_replicas_the_first_that_was_added_to_counts() -> None:
    """An optimizer that is divided among ranks steps a parameter on one of them."""
    whole = Part((2,), (0,))
    keys = [key("0.weight:update", piece=whole), key("1.weight:update", piece=whole)]
    empty, some = row_of(Moments()), row_of(Moments(), torch.tensor([3.0, 4.0]))
    first, second = merge(Offer(0, [block(keys, some, empty)]), Offer(0, [block(keys, empty, some)]))
    assert first.blocks[0].rows.tolist() == second.blocks[0].rows.tolist() == [some, some]
    assert (first.blocks[0].ranks.tolist(), second.blocks[0].ranks.tolist()) == ([1, 0], [0, 1])
    assert first.blocks[0].is_merged.all()


@pytest.mark.parametrize("statistic", [Moments(), Norm(), ExponentHistogram()], ids=str)
def test_replicas_that_differ_are_not_merged(statistic: Statistic) -> None:
    """Ranks that train models of their own, or experts under one name: no rank's parameter stands for the others'."""
    whole = Part((2,), (0,))
    keys = [key("0.weight:param", piece=whole), key("1.weight:param", piece=whole)]
    same = row_of(statistic, torch.tensor([3.0, 4.0]))
    others = [row_of(statistic, torch.tensor([3.0, number])) for number in (4.0, 9.0, 4.0)]
    for mine, merged in zip(
        others, merge(*(Offer(0, [block(keys, row, same, statistic=statistic)]) for row in others)), strict=True
    ):
        assert merged.blocks[0].differs.tolist() == [True, False]
        assert merged.blocks[0].is_merged.tolist() == [False, True]
        assert merged.blocks[0].rows.tolist() == [mine, same]
        assert merged.blocks[0].ranks.tolist()[0] == 1
        assert merged.blocks[0].joined.tolist() == [1, 1]


@pytest.mark.parametrize("second", [[4.5, 4.5], [3.0, 9.0]], ids=["equal histograms", "what one bin gains its neighbour loses"])
def test_replicas_differ_in_all_families_or_in_none(second: list[float]) -> None:
    """Two models may have equal rows of one statistic: it says of them what the others say."""
    whole = Part((2,), (0,))
    of_moments = [key("w:param", piece=whole), key("v:param", piece=whole)]
    of_exponents = [replace(each, place=("exponents", *each.place[1:])) for each in of_moments]
    offers = []
    for numbers in ([5.0, 6.0], second):
        tensors = torch.tensor(numbers), torch.ones(2)
        blocks = [
            block(keys, *(row_of(statistic, tensor) for tensor in tensors), statistic=statistic)
            for statistic, keys in ((Moments(), of_moments), (ExponentHistogram(), of_exponents))
        ]
        offers.append(Offer(0, blocks))
    for merged in merge(*offers):
        assert [each.differs.tolist() for each in merged.blocks] == [[True, False]] * 2
        assert [each.is_merged.tolist() for each in merged.blocks] == [[False, True]] * 2


def test_replicas_differ_by_the_rounding_of_sums_alone() -> None:
    """As on ranks with other processors, which add in another order."""
    rows = [row_of(Norm(), torch.tensor([3.0, number])) for number in (4.0, 4.0)]
    rows[1][-1] *= 1 + 2.0**-50
    for merged in merge(*(Offer(0, [block([key("w:grad", piece=Part((2,), (0,)))], row, statistic=Norm())]) for row in rows)):
        assert merged.blocks[0].is_merged.tolist() == [True]
        assert merged.blocks[0].rows.tolist() == rows[:1]


@pytest.mark.parametrize(("apart", "is_merged"), [(1e-11, True), (1e-9, False), (1e-6, False), (1e-3, False), (-1e-3, False)])
def test_replicas_that_drift_apart_are_not_merged(apart: float, is_merged: bool) -> None:
    """Far more than the rounding of a sum, far less than what one sees: each rank keeps its own row."""
    rows = [row_of(Norm(), torch.tensor([3.0, 4.0])) for _ in range(2)]
    rows[1][-1] *= 1 + apart
    keys = [key("w:param", piece=Part((2,), (0,)))]
    for mine, merged in zip(rows, merge(*(Offer(0, [block(keys, row, statistic=Norm())]) for row in rows)), strict=True):
        assert merged.blocks[0].is_merged.tolist() == [is_merged]
        assert merged.blocks[0].differs.tolist() == [not is_merged]
        assert merged.blocks[0].rows.tolist() == [rows[0] if is_merged else mine]


@pytest.mark.parametrize("statistic", [Moments(), Norm(), ExponentHistogram()], ids=str)
@pytest.mark.parametrize("elements", [64, 2**20])
def test_replicas_that_differ_between_equal_extremes_are_not_merged(statistic: Statistic, elements: int) -> None:
    """Tokens that never occur hold the extremes of an embedding: the others tell two models apart, however many there are."""
    tensor = torch.cat([torch.tensor([5.0, -5.0]), torch.full((elements,), 0.02)])
    other = tensor.clone()
    other[7] = 0.041
    keys = [key("w:param", piece=Part(tuple(tensor.shape), (0,)))]
    rows = [row_of(statistic, each) for each in (tensor, other)]
    for mine, merged in zip(rows, merge(*(Offer(0, [block(keys, row, statistic=statistic)]) for row in rows)), strict=True):
        assert merged.blocks[0].differs.tolist() == [True]
        assert merged.blocks[0].rows.tolist() == [mine]


def test_replicas_of_equal_size_differ_by_their_sum() -> None:
    """Weights that are 1 or -1 have one norm and the same extremes in every model."""
    keys = [key("w:param", piece=Part((4,), (0,)))]
    rows = [row_of(Moments(), torch.tensor(signs)) for signs in ([1.0, 1.0, 1.0, -1.0], [1.0, -1.0, -1.0, 1.0])]
    for merged in merge(*(Offer(0, [block(keys, row)]) for row in rows)):
        assert merged.blocks[0].differs.tolist() == [True]


def test_a_sum_that_cancels_out_tells_nothing_apart() -> None:
    """Its rounding is large beside the sum, and small beside what was added."""
    rows = [row_of(Moments(), torch.tensor([1.0, -1.0, 0.5, -0.5])) for _ in range(2)]
    rows[0][1 + 4], rows[1][1 + 4] = 1e-16, -3e-16
    for merged in merge(*(Offer(0, [block([key("w:param", piece=Part((4,), (0,)))], row)]) for row in rows)):
        assert merged.blocks[0].is_merged.tolist() == [True]


@pytest.mark.parametrize("apart", [(), (0,), (2,), (3,), (2, 3), (0, 1)], ids=str)
@pytest.mark.parametrize("copies", [2, 3])
def test_parts_whose_holders_differ_are_not_merged(apart: tuple[int, ...], copies: int) -> None:
    """Two ranks share a parameter, and so do two others, as in a training that averages the models of machines now and then."""
    parts = [Part((2,), (0,)), Part((2,), (2,))] * copies
    rows = [row_of(Moments(), torch.tensor([3.0 + rank % 2, 4.0])) for rank in range(2 * copies)]
    for rank in apart:
        rows[rank] = row_of(Moments(), torch.tensor([3.0 + rank % 2, 4.0001]))
    found = merge(*(Offer(0, [block([key("w:param", piece=part)], row)]) for part, row in zip(parts, rows, strict=True)))
    for rank, (mine, merged) in enumerate(zip(rows, found, strict=True)):
        assert merged.blocks[0].is_merged.tolist() == [not apart]
        assert merged.blocks[0].differs.tolist() == [bool(apart)]
        if apart:
            assert merged.blocks[0].rows.tolist() == [mine]
            assert merged.blocks[0].ranks.tolist() == [1]
        else:
            assert merged.blocks[0].ranks.tolist() == [2 if rank == 0 else 0]


def test_numbers_that_are_not_finite_merge_without_a_warning() -> None:
    """NumPy warns of NaN, of infinities that meet and of sums beyond float64, on a thread of ours (warnings are errors here)."""
    whole = Part((2,), (0,))
    values = [math.nan, math.inf, -math.inf, 1e308]
    rows = [[2.0, *[value] * Moments().width] for value in values]
    rows.append(
        [2.0, *(value for value, _ in zip(itertools.cycle([math.inf, -math.inf, 1e308]), range(Moments().width), strict=False))]
    )
    keys = [key(f"{number}.weight:param", piece=whole) for number in range(len(rows))]
    for merged in merge(*(Offer(0, [block(keys, *rows)]) for _ in range(2))):
        assert np.array_equal(merged.blocks[0].rows[:, 1], [row[1] for row in rows], equal_nan=True)


def test_a_parameter_with_a_missing_shard_is_not_merged() -> None:
    """The rest of it is not the parameter: each rank keeps its own row, which says so."""
    low, high = row_of(Moments(), torch.tensor([3.0, 4.0])), row_of(Moments())
    first, second = merge(
        Offer(0, [block([key("w:grad", piece=Part((2,), (0,)))], low)]),
        Offer(0, [block([key("w:grad", piece=Part((2,), (2,)))], high)]),
    )
    assert first.blocks[0].is_merged.tolist() == [False]
    assert first.blocks[0].ranks.tolist() == [1]
    assert first.blocks[0].rows[0].tolist() == low
    assert second.blocks[0].ranks.tolist() == [0]


def test_groups_of_ranks_are_merged_apart_in_one_round() -> None:
    """Two data-parallel groups, of ranks 0 and 2 and of ranks 1 and 3."""
    found = merge(
        *(Offer(0, [block([key("a", group=rank % 2)], row_of(Moments(), torch.full((1,), float(rank))))]) for rank in range(4))
    )
    assert [merged.blocks[0].rows[0, [0, 5]].tolist() for merged in found] == [[2, 2], [2, 4], [2, 2], [2, 4]]
    assert [merged.blocks[0].ranks.tolist() for merged in found] == [[2], [2], [0], [0]]


def test_a_site_that_is_another_module_on_another_rank_is_not_merged() -> None:
    mine, yours, same = (row_of(Moments(), torch.full((2,), number)) for number in (1.0, 2.0, 3.0))
    first, second = merge(
        Offer(0, [block([key("(root)", sort="Stage (3, 4)"), key("a", sort="Linear")], mine, same)]),
        Offer(0, [block([key("(root)", sort="Stage (5,)"), key("a", sort="Linear")], yours, same)]),
    )
    assert (first.blocks[0].rows[0].tolist(), second.blocks[0].rows[0].tolist()) == (mine, yours)
    assert first.blocks[0].is_merged.tolist() == second.blocks[0].is_merged.tolist() == [False, True]
    assert (first.blocks[0].ranks.tolist(), second.blocks[0].ranks.tolist()) == ([1, 2], [1, 0])


def test_what_does_not_merge_stays_where_it_is() -> None:
    """A statistic of pairs, and rows without a key."""
    pair = [1.0, *[2.0] * Cosine().width]
    row = row_of(Moments(), torch.ones(2))
    offer = Offer(0, [block([key("a")], pair, statistic=Cosine()), block([None, key("b")], row, row)])
    for rank, merged in enumerate(merge(offer, offer)):
        assert merged.blocks[0].rows[0].tolist() == pair
        assert merged.blocks[0].is_merged.tolist() == [False]
        assert merged.blocks[1].rows[0].tolist() == row
        assert merged.blocks[1].rows[1, 0] == 2
        assert merged.blocks[1].ranks.tolist() == [1, 2 if rank == 0 else 0]
        assert not merged.failed


def test_a_rank_that_lacks_a_step_adds_nothing_to_it() -> None:
    """Rank 1 has no step 1, rank 0 no step 3; both have merged step 2."""
    keys = [key("a")]

    def offers(steps: Sequence[int]) -> list[Offer]:
        return [Offer(step, [block(keys, row_of(Moments(), torch.full((1,), float(step))))]) for step in steps]

    lists = [offers([0, 1, 2, 4]), offers([0, 2, 3, 4]), offers([0, 1, 2, 3, 4])]
    with mergers(3) as (made, _):
        found = each(
            [
                lambda merger=merger, mine=mine: [merger.merge(offer) for offer in mine]
                for merger, mine in zip(made, lists, strict=True)
            ]
        )
    counts = [
        {offer.when: merged.blocks[0].ranks.tolist()[0] for offer, merged in zip(mine, got, strict=True)}
        for mine, got in zip(lists, found, strict=True)
    ]
    assert counts == [{0: 3, 1: 2, 2: 3, 4: 3}, {0: 0, 2: 0, 3: 2, 4: 0}, {0: 0, 1: 0, 2: 0, 3: 0, 4: 0}]
    assert [merged.blocks[0].rows[0, [0, 5]].tolist() for merged in found[2]] == [[3, 0], [2, 2], [3, 6], [2, 6], [3, 12]]


@pytest.mark.parametrize(
    ("others", "joins"),
    [([[0, 10, 20]], 10), ([[0, 6, 10, 20]], 10), ([[0, 10, 20], [0, 20]], 10), ([[0, 20], [0, 20]], 20)],
    ids=["as the next step", "after what came between", "as the first of two ranks", "as a step of both"],
)
def test_the_last_offer_of_a_rank_joins_the_next_one_of_those_that_go_on(others: list[list[int]], joins: int) -> None:
    """The rank ends at 9 with what belongs to the step before, as the others have it in their next offer."""
    keys = [key("a")]
    row = row_of(Moments(), torch.ones(2))
    ending = [Offer(0, [block(keys, row)]), Offer(9, [block(keys, row)], is_last=True)]
    left = [Offer(20)] * (joins < 20)  # here a rank that has left takes part in the rounds, and adds nothing
    lists = [ending + left, *([Offer(when, [block(keys, row)]) for when in whens] for whens in others)]
    with mergers(len(lists)) as (made, _):

        def run(number: int) -> dict[int, list[int]]:
            merged = {offer.when: made[number].merge(offer) for offer in lists[number]}
            return {when: found.blocks[0].joined.tolist() for when, found in merged.items() if found.blocks}

        ended, *went_on = each([lambda number=number: run(number) for number in range(len(lists))])
    assert ended == {0: [len(lists)], 9: [1 + sum(joins in whens for whens in others)]}
    for found in went_on:
        for when, joined in found.items():
            assert joined == [(when in (0, joins)) + sum(when in whens for whens in others)]


def test_last_offers_alone_join_each_other() -> None:
    row = row_of(Moments(), torch.ones(2))
    for merged in merge(*(Offer(9, [block([key("a")], row)], is_last=True) for _ in range(3))):
        assert merged.blocks[0].joined.tolist() == [3]
        assert not merged.failed


def test_new_keys_on_one_rank_are_exchanged_once() -> None:
    """A layer that only rank 1 runs, from step 2 on; the keys keep their place while they are not offered."""
    row = row_of(Moments(), torch.ones(2))
    old, new = [key("a")], [key("b")]
    with mergers(2) as (made, collectives):
        for step in range(6):
            more = [block(new, row)] if step in (2, 4) else []
            offers = [Offer(step, [block(old, row)]), Offer(step, [block(old, row), *more])]
            found = each(
                [lambda merger=merger, offer=offer: merger.merge(offer) for merger, offer in zip(made, offers, strict=True)]
            )
            assert [merged.blocks[0].ranks.tolist() for merged in found] == [[2], [0]]
            if more:
                assert found[1].blocks[1].ranks.tolist() == [1]
            if step != 2:
                assert collectives.calls[-2:] == ["minimum", "sum"]
                assert step == 0 or len(collectives.calls) == 2
            collectives.calls.clear()


@pytest.mark.slow
def test_keys_that_are_new_objects_in_every_step_are_forgotten() -> None:
    row = row_of(Moments(), torch.ones(2))
    with mergers(1) as (made, _):
        for step in range(1500):
            found = made[0].merge(Offer(step, [block([key("a")], row)], [Total(f"metric {step}", 2.0)]))
            assert found.totals == [(2.0, 1, True)]
        assert len(made[0]._held) < 1024
        assert len(made[0]._layout._known) < 1024


def test_totals_are_means_sums_the_lowest_ranks_or_the_largest() -> None:
    """Names that one rank alone pushed; the first of a name joins the first. Every rank knows the value, and one writes it."""
    lows, highs = (
        [Total("lr", rate, how="lowest") for rate in (0.1, 0.2)],
        [Total("overhead", share, how="max") for share in (0.5, 0.7)],
    )
    squares = [Total("norm", square, how="sum") for square in (4.0, 5.0)]
    found = merge(
        Offer(0, (), [Total("loss", 6.0, 2), Total("loss", 1.0), lows[0], highs[0], squares[0]]),
        Offer(0, (), [lows[1], highs[1], Total("loss", 3.0, 1), Total("accuracy", 0.3), squares[1]]),
    )
    assert found[0].totals == [(3.0, 2, True), (1.0, 1, True), (0.1, 1, True), (0.7, 2, True), (9.0, 2, True)]
    assert found[1].totals == [(0.1, 0, True), (0.7, 0, True), (3.0, 0, True), (0.3, 1, True), (9.0, 0, True)]
    statistic = rows_of([Total("loss", 6.0, 2)], {}).statistic
    assert statistic.measure(torch.tensor([1.0, 5.0])).tolist() == [6.0, 2.0, 5.0]


@dataclass(frozen=True)
class Least(Statistic):
    """The least and the largest element, with NaN if one is NaN."""

    fields = (Field("low", "min"), Field("high", "max"))

    def measure(self, tensor: Tensor) -> Tensor:
        return torch.stack([tensor.min(), tensor.max()]).double()

    def finish(self, columns: object) -> dict[str, np.ndarray]:
        return dict(columns)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_nan_in_an_extreme_is_not_lost(place: int) -> None:
    """Whichever rank has it; the minimum of floats would depend on the order."""
    numbers = [-math.inf, -2.5, math.inf]
    numbers[place] = math.nan
    found = merge(*(Offer(0, [block([key("a")], [1.0, number, number], statistic=Least())]) for number in numbers))
    assert all(np.isnan(merged.blocks[0].rows[0, 1:]).all() for merged in found)


def test_extremes_keep_every_bit() -> None:
    values = [5e-324, -5e-324, -0.0, 1.7976931348623157e308, -1.7976931348623157e308, math.pi, -math.inf]
    for one, other in zip(values, values[1:] + values[:1], strict=True):
        found = merge(*(Offer(0, [block([key("a")], [1.0, number, number], statistic=Least())]) for number in (one, other)))
        assert found[0].blocks[0].rows[0, 1:].tolist() == [min(one, other), max(one, other)]


@pytest.mark.parametrize("seed", range(12))
def test_ranks_that_do_whatever_they_like_merge_what_they_share(seed: int) -> None:
    """Each rank logs steps of its own choice, with layers of its own choice, in an order of its own, and new ones at any time."""
    draw = np.random.default_rng(seed)
    size = int(draw.integers(2, 5))
    steps = [sorted(draw.choice(12, int(draw.integers(1, 12)), replace=False).tolist()) for _ in range(size)]
    steps = [[*mine, 99] for mine in steps]  # all come to the last
    offered: dict[tuple[int, str], dict[int, float]] = {}
    offers: list[list[Offer]] = [[] for _ in range(size)]
    for rank, mine in enumerate(steps):
        for step in mine:
            names = draw.permutation([name for name in "abcdef" if draw.random() < 0.5]).tolist()
            values = draw.integers(-9, 9, len(names)).astype(float)
            offered_now = [row_of(Moments(), torch.tensor([value])) for value in values]
            for name, value in zip(names, values, strict=True):
                offered.setdefault((step, name), {})[rank] = value
            offers[rank].append(Offer(step, [block([key(name) for name in names], *offered_now)]))
    with mergers(size) as (made, _):
        found = each(
            [
                lambda merger=merger, mine=mine: [merger.merge(offer) for offer in mine]
                for merger, mine in zip(made, offers, strict=True)
            ]
        )
    written: dict[tuple[int, str], list[int]] = {}
    for rank, (mine, got) in enumerate(zip(offers, found, strict=True)):
        for offer, merged in zip(mine, got, strict=True):
            for place, one in enumerate(offer.blocks[0].keys):
                assert one is not None
                name = str(one.place[2])
                values = offered[offer.when, name]
                assert merged.blocks[0].rows[place, [0, 1, 5]].tolist() == [len(values), len(values), sum(values.values())]
                assert merged.blocks[0].rows[place, 9] == min(values.values())
                if merged.blocks[0].ranks[place]:
                    written.setdefault((offer.when, name), []).append(rank)
                    assert merged.blocks[0].ranks[place] == len(values)
    assert written == {place: [min(values)] for place, values in offered.items()}
