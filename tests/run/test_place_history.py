"""The history of places: medians that a writer thread computes beside the user's threads, and conditions that hold for a while."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from sonde.run.layer_groups import medians
from sonde.run.place_history import Held


def test_medians_leave_the_filters_of_warnings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the filters belong to all threads")

    with monkeypatch.context() as patched:  # pytest itself uses it between tests
        patched.setattr(warnings, "catch_warnings", refused)
        found = medians(np.array([[1.0, 2.0, 6.0], [np.nan] * 3, [np.nan, 4.0, 6.0]]))
    np.testing.assert_array_equal(found, [2.0, np.nan, 5.0])
    assert medians(np.empty((2, 0))).shape == (2,)


def held(values: list[float], pieces: list[int], limit: float = 1.0) -> Held:
    """Return the record of one column, given its values in pieces; the condition is a value above *limit*."""
    record, steps = Held(), np.arange(len(values)) * 10
    lines = np.array(values).reshape(-1, 1)
    for first, last in zip([0, *pieces], [*pieces, len(values)], strict=True):
        with np.errstate(invalid="ignore"):
            record.add(lines[first:last] > limit, lines[first:last], steps[first:last])
    return record


@pytest.mark.parametrize("pieces", [[], [1], [2, 3], [1, 2, 3, 4, 5, 6]])
def test_a_condition_holds_in_three_of_five_however_the_steps_are_cut(pieces: list[int]) -> None:
    nan = float("nan")
    assert held([2, 0, 0, 2, 0, 2, 0], pieces).columns().tolist() == []  # three, but of six
    found = held([0, 2, 0, 3, nan, 2, 9], pieces)
    assert found.columns().tolist() == [0]
    assert (found.since[0], found.worst[0], found.step[0], found.last[0], found.count[0]) == (10, 9, 60, 60, 4)


def test_columns_that_come_later_are_judged_from_then_on() -> None:
    record = Held(2, 3)
    one, two = np.array([[5.0]]), np.array([[0.0, 5.0]])
    record.add(one > 1, one, np.array([0]))
    for step in (1, 2):
        record.add(two > 1, two, np.array([step]))
    assert record.columns().tolist() == [1]
    assert record.since.tolist() == [-1, 1]
