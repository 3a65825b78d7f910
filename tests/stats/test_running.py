"""Mean, variance and extremes of a stream of numbers."""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.errors import ArgumentError
from sonde.stats.running import RunningMeanVar

NUMBERS = st.lists(st.floats(-1e6, 1e6), max_size=40)
NO_DEADLINE = settings(deadline=None)


def seen(*values: object) -> RunningMeanVar:
    made = RunningMeanVar()
    for value in values:
        made.update(value)
    return made


def assert_is(found: RunningMeanVar, values: list[float]) -> None:
    """What exact arithmetic says of *values*, to the rounding of float64 relative to their size."""
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction()) / len(exact)
    size = max(map(abs, values)) + 1e-300
    assert found.count == len(found) == len(values)
    assert found.mean == pytest.approx(float(mean), rel=1e-12, abs=1e-13 * size)
    assert found.var == pytest.approx(float(sum((x - mean) ** 2 for x in exact) / len(exact)), rel=1e-9, abs=1e-12 * size**2)
    assert (found.min_, found.max_) == (min(values), max(values))


def test_by_hand() -> None:
    found = seen(2, 4, 4, 4, 5, 5, 7, 9)
    assert (found.count, found.mean, found.var, found.std, found.min_, found.max_) == (8, 5, 4, 2, 2, 9)
    assert repr(found) == "RunningMeanVar(count=8, mean=5, var=4, min_=2, max_=9)"


@NO_DEADLINE
@given(NUMBERS.filter(bool))
def test_numbers_are_those_of_exact_arithmetic(values: list[float]) -> None:
    assert_is(seen(*values), values)


@NO_DEADLINE
@given(NUMBERS, NUMBERS)
def test_merged_is_as_if_one_had_seen_all(mine: list[float], theirs: list[float]) -> None:
    other = seen(*theirs)
    kept = other.copy()
    merged = seen(*mine).merge(other)
    if mine or theirs:
        assert_is(merged, mine + theirs)
    else:
        assert merged == RunningMeanVar()
    assert other == kept


@NO_DEADLINE
@given(st.floats(-1e8, 1e8), st.integers(1, 50))
def test_equal_numbers_have_no_spread(value: float, times: int) -> None:
    found = seen(*[value] * times)
    assert (found.mean, found.var, found.min_, found.max_) == (value, 0.0, value, value)


def test_a_large_mean_does_not_swallow_the_spread() -> None:
    values = (1e8 + np.random.default_rng(0).normal(size=20_000)).tolist()
    assert seen(*values).std == pytest.approx(np.std(np.array(values) - 1e8), rel=1e-8)
    merged = seen(*values[:7]).merge(seen(*values[7:]))
    assert merged.std == pytest.approx(np.std(np.array(values) - 1e8), rel=1e-8)


def test_nothing_is_no_data_and_says_so() -> None:
    empty = RunningMeanVar()
    assert repr(empty) == "RunningMeanVar(no data)"
    assert (empty.count, len(empty), bool(empty)) == (0, 0, False)
    assert all(math.isnan(number) for number in (empty.mean, empty.var, empty.std, empty.min_, empty.max_))


def test_nan_and_infinity_are_counted_and_left_out() -> None:
    found = seen(1.0, math.nan, 3.0, math.inf, -math.inf)
    assert (found.count, found.nonfinite, found.mean, found.var, found.min_, found.max_) == (2, 3, 2, 1, 1, 3)
    assert "nonfinite=3" in repr(found)
    only = seen(math.nan)
    assert repr(only) == "RunningMeanVar(no data, nonfinite=1)"
    assert bool(only)


def test_the_largest_floats_have_a_mean_and_no_nan() -> None:
    found = seen(1.7e308, -1.7e308, 1.7e308)
    assert found.mean == pytest.approx(1.7e308 / 3)
    assert found.var == math.inf
    merged = seen(1.7e308).merge(seen(-1.7e308))
    assert merged.mean == pytest.approx(0.0, abs=1e293)
    assert merged.var == math.inf


@pytest.mark.parametrize(
    "value", [2, 2.0, True + 1, np.float32(2), np.array(2), torch.tensor(2), torch.tensor([[2.0]]), torch.tensor(2.0).bfloat16()]
)
def test_takes_whatever_is_one_real_number(value: object) -> None:
    assert seen(value).mean == 2.0


def test_takes_a_loss_with_a_graph_and_does_not_keep_it() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert seen((weight * 3).sum()).mean == 3.0


@pytest.mark.parametrize(
    "value", ["1", b"1", None, [1.0], 1j, torch.ones(2), torch.empty(0), torch.tensor(1j), torch.empty((), device="meta")]
)
def test_refuses_what_is_none(value: object) -> None:
    found = seen(1.0)
    with pytest.raises(ArgumentError, match="a real number or a tensor of one element is needed"):
        found.update(value)
    assert found == seen(1.0)


def test_an_integer_beyond_all_floats_is_infinite() -> None:
    assert seen(10**400, -(10**400)).nonfinite == 2


def test_reset_append_and_copies() -> None:
    found = seen(1.0, 2.0)
    copies = [found.copy(), copy.deepcopy(found), pickle.loads(pickle.dumps(found))]
    found.append(6.0)
    assert found.mean == 3.0
    assert all(held == seen(1.0, 2.0) and held.mean == 1.5 for held in copies)
    found.reset()
    assert found == RunningMeanVar()
    assert found != "another thing"


def test_it_is_no_sequence_and_says_so() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(RunningMeanVar())


def test_only_its_like_can_be_merged() -> None:
    with pytest.raises(ArgumentError, match="not list"):
        RunningMeanVar().merge([1.0])


@pytest.mark.parametrize("offset", [0.0, 1e8, 1e12, 1e15, -1e15])
@pytest.mark.parametrize("merged", [False, True])
def test_the_variance_is_right_whatever_the_mean(offset: float, *, merged: bool) -> None:
    """Within the stated bound of ``4 * 2^-53`` for each number and merge, also where the mean is 1e15 deviations."""
    values = [offset + step / 8 for step in (0, 7, -3, 12, 5, -8, 1, 9) * 100]
    found = RunningMeanVar()
    for first in range(0, len(values), 10):
        part = seen(*values[first : first + 10])
        if merged:
            found.merge(part)
        else:
            for value in values[first : first + 10]:
                found.update(value)
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction()) / len(exact)
    variance = float(sum((value - mean) ** 2 for value in exact) / len(exact))
    assert found.var == pytest.approx(variance, rel=4 * 2**-53 * (len(values) + 80))
    assert found.mean == pytest.approx(float(mean), rel=2**-52)
