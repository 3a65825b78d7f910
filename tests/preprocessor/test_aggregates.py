"""What both modes say of the same numbers."""

from __future__ import annotations

import copy
import math
import pickle
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.errors import ArgumentError
from sonde.preprocessor import InMemory, RunningMeanVar, aggregate, aggregate_range

SPECIAL = st.sampled_from([math.nan, math.inf, -math.inf])
NUMBERS = st.lists(st.floats(-1e6, 1e6) | SPECIAL, max_size=30)
SHARED = ("count", "mean", "std", "min", "max")
NO_DEADLINE = settings(deadline=None)


def both(values: list[float]) -> tuple[RunningMeanVar, InMemory]:
    running, kept = RunningMeanVar(), InMemory()
    for value in values:
        running.append(value)
        kept.append(value)
    return running, kept


@NO_DEADLINE
@given(NUMBERS)
def test_both_modes_agree_on_every_aggregation_that_they_share(values: list[float]) -> None:
    running, kept = both(values)
    for method in SHARED:
        size = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        expected = aggregate(kept, method)
        # a spread is the root of a mean of squares: below 1e-162 a square is less than the least float64 and rounds to anything
        slack = 1e-6 * size + 1e-161 if method == "std" else 1e-12 * size
        assert aggregate(running, method) == pytest.approx(expected, rel=1e-9, abs=slack, nan_ok=True), method
    assert running.nonfinite == kept.nonfinite
    assert running.finite == kept.finite
    for method in ("std", "min-max"):
        assert aggregate_range(running, method) == pytest.approx(aggregate_range(kept, method), rel=1e-9, abs=1e-5, nan_ok=True)


@NO_DEADLINE
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_aggregations_are_what_their_names_say(values: list[float]) -> None:
    kept = InMemory(values)
    assert kept.min_ == min(values)
    assert kept.max_ == max(values)
    assert kept.median == pytest.approx(statistics.median(values), rel=1e-12, abs=1e-9)
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    assert (kept.q1, kept.median, kept.q3) == pytest.approx(tuple(quartiles), rel=1e-9, abs=1e-6)
    assert kept.iqr == kept.q3 - kept.q1
    assert kept.mean == pytest.approx(statistics.fmean(values), rel=1e-12, abs=1e-9)
    assert kept.std == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-6)


def test_n7_minimum_quartiles_and_median_of_an_outlier() -> None:
    """The seed's extract_point gave the maximum for ``min``, 2.0 for ``Q3`` and 1.0 for the median of [1, 2]."""
    kept = InMemory([1.0, 2.0, 3.0, 4.0, 100.0])
    found = {method: aggregate(kept, method) for method in ("min", "Q1", "median", "Q3", "max", "IQR", "mean")}
    assert found == {"min": 1, "Q1": 2, "median": 3, "Q3": 4, "max": 100, "IQR": 2, "mean": 22}
    assert aggregate(InMemory([1.0, 2.0]), "median") == 1.5
    assert aggregate_range(kept, "Q1-Q3") == (2, 4)
    assert aggregate_range(kept, "min-max") == (1, 100)
    assert aggregate_range(InMemory([1.0, 3.0]), "std") == (1, 3)


def test_the_mean_of_the_largest_floats_does_not_overflow() -> None:
    running, kept = both([1.7e308, 1.7e308])
    assert kept.mean == running.mean == 1.7e308
    assert InMemory([1e-320, 3e-320]).mean == pytest.approx(2e-320, rel=1e-3)
    assert InMemory([1.7e308, -1.7e308]).var == math.inf


def test_nothing_is_no_data_for_every_method() -> None:
    for empty in both([]):
        assert "no data" in repr(empty)
        assert not empty
        assert aggregate(empty, "count") == 0
        assert all(math.isnan(aggregate(empty, method)) for method in SHARED[1:])
    assert math.isnan(aggregate(InMemory(), "median"))
    assert all(math.isnan(end) for end in aggregate_range(InMemory(), "Q1-Q3"))


def test_a_kept_list_is_a_list() -> None:
    kept = InMemory([3.0, math.nan, 3.0])
    assert isinstance(kept, list)
    assert kept.count(3.0) == 2
    assert (kept.finite, kept.nonfinite, kept.mean) == (2, 1, 3.0)
    assert InMemory([1.0]) == [1.0]
    assert pickle.loads(pickle.dumps(InMemory([1.0]))).mean == copy.deepcopy(InMemory([1.0])).mean == 1.0
    assert repr(InMemory([1.0])) == "InMemory([1.0])"
    assert InMemory(np.arange(3.0)).quantile(0.25) == 0.5


def test_quantiles_of_running_numbers_are_refused_with_the_cure() -> None:
    with pytest.raises(ArgumentError, match=r"median needs all numbers.*inplace=False"):
        aggregate(RunningMeanVar(), "median")
    with pytest.raises(ArgumentError, match="inplace=False"):
        aggregate_range(RunningMeanVar(), "Q1-Q3")


def test_unknown_methods_name_what_is_near() -> None:
    with pytest.raises(ArgumentError, match="Nearest: median"):
        aggregate(InMemory(), "medain")
    with pytest.raises(ArgumentError, match="Nearest: Q1-Q3"):
        aggregate_range(InMemory(), "q1-q3")
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        InMemory([1.0]).quantile(25)
    with pytest.raises(ArgumentError, match="no numbers"):
        InMemory([1.0, "two"]).mean  # noqa: B018
