"""Aggregates of intervals, against numpy on each interval alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sonde.errors import ArgumentError
from sonde.preprocessor.aggregates import InMemory, aggregate, aggregate_range
from sonde.view.aggregation import BANDS, POINTS, band_of, checked, point_of, starts_of

VALUES = np.array([[1.0, 2.0, 3.0, 4.0, 100.0, -1.0, np.nan], [np.inf, 2.0, np.nan, np.nan, 8.0, 8.0, 5.0]])
STARTS = np.array([0, 2, 4])
ORACLES: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "min": np.min,
    "max": np.max,
    "std": np.std,
    "Q1": lambda values: np.quantile(values, 0.25),
    "Q3": lambda values: np.quantile(values, 0.75),
    "IQR": lambda values: np.quantile(values, 0.75) - np.quantile(values, 0.25),
}


def pieces() -> list[list[Any]]:
    """The finite values of each interval of each row."""
    return [[row[a:b][np.isfinite(row[a:b])] for a, b in ((0, 2), (2, 4), (4, 7))] for row in VALUES]


@pytest.mark.parametrize("method", POINTS)
def test_a_point_is_the_aggregate_of_the_finite_values_of_each_interval(method: str) -> None:
    expected = [[ORACLES[method](piece) if len(piece) else np.nan for piece in row] for row in pieces()]
    assert np.allclose(point_of(VALUES, STARTS, method), expected, rtol=1e-14, equal_nan=True)


@pytest.mark.parametrize("method", BANDS)
def test_a_band_has_the_ends_that_aggregates_of_one_interval_have(method: str) -> None:
    """A standard deviation below the mean of positive values stays positive."""
    low, high = band_of(VALUES, STARTS, method)
    for row, (lows, highs) in zip(pieces(), zip(low, high, strict=True), strict=True):
        for piece, one, other in zip(row, lows, highs, strict=True):
            least, greatest = aggregate_range(InMemory(piece.tolist()), method)
            if method == "std" and len(piece) and piece.min() > 0 >= least:
                least = piece.min()
            assert np.allclose([one, other], [least, greatest], rtol=1e-14, equal_nan=True)


@pytest.mark.parametrize("method", POINTS)
def test_the_same_names_mean_the_same_for_the_numbers_of_a_preprocessor(method: str) -> None:
    numbers = [3.0, -1.0, 4.0, 1.0, 5.0]
    assert point_of(np.array(numbers), starts_of(5, 1), method)[0] == pytest.approx(aggregate(InMemory(numbers), method), rel=1e-14)


def test_intervals_have_equally_many_values() -> None:
    assert starts_of(10, 4).tolist() == [0, 3, 6, 9]
    assert starts_of(3, 40).tolist() == [0, 1, 2]
    assert starts_of(0, 40).tolist() == []


def test_names_are_checked() -> None:
    assert checked("line", "mean", POINTS) == ("mean",)
    assert checked("line", ["mean", "Q1"], POINTS) == ("mean", "Q1")
    assert checked("line", None, POINTS) == ()
    with pytest.raises(ArgumentError, match="line='medina'"):
        checked("line", "medina", POINTS)
