"""The history of places: medians that a writer thread computes beside the user's threads, and conditions that hold for a while."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from sonde.rules.layer_groups import medians
from sonde.rules.window import Held, Window


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
    record, steps = Held(Window()), np.arange(len(values)) * 10
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
    assert (found.since[0], found.worst[0], found.step[0], found.last[0]) == (10, 9, 60, 60)


def test_columns_that_come_later_are_judged_from_then_on() -> None:
    record = Held(Window(2, 3))
    one, two = np.array([[5.0]]), np.array([[0.0, 5.0]])
    record.add(one > 1, one, np.array([0]))
    for step in (1, 2):
        record.add(two > 1, two, np.array([step]))
    assert record.columns().tolist() == [1]
    assert record.since.tolist() == [-1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_a_condition_is_followed_in_each_column_as_step_by_step(seed: int) -> None:
    """In pieces of any length, with columns that have no value at some steps; the oracle takes one value after the other."""
    draw = np.random.default_rng(seed)
    most, of = [(3, 5), (1, 1), (4, 5), (2, 3)][seed % 4]
    held, width, length = Held(Window(most, of, smallest=seed % 2 == 0)), 4, 60
    values = draw.integers(0, 6, (length, width)).astype(float)
    values[draw.random((length, width)) < [0.0, 0.2][seed // 4 % 2]] = np.nan
    holds, other, steps = draw.random((length, width)) < 0.4, draw.random((length, width)), np.arange(length) * 3
    cuts = np.sort(draw.integers(0, length, 7))
    for part in np.split(np.arange(length), cuts):
        if len(part):
            held.add(holds[part], values[part], steps[part], other[part])
    for column in range(width):
        record: list[int | None] = []  # of the steps with a value, those at which the condition held
        since, worst = -1, (np.nan, -1, np.nan)
        for line in np.flatnonzero(np.isfinite(values[:, column])).tolist():
            record.append(int(steps[line]) if holds[line, column] else None)
            if not holds[line, column]:
                continue
            if since < 0 and sum(each is not None for each in record[-of:]) >= most:
                begin = next((end for end in range(len(record) - 1, 0, -1) if not any(_held(record[max(0, end - of) : end]))), 0)
                since = next(each for each in record[begin:] if each is not None)
            value = float(values[line, column])
            if np.isnan(worst[0]) or (value < worst[0] if held.window.smallest else value > worst[0]):
                worst = value, int(steps[line]), float(other[line, column])
        all_held = [each for each in record if each is not None]
        assert (held.since[column], held.last[column]) == (since, (all_held or [-1])[-1])
        assert (held.worst[column], held.step[column], held.others[0][column]) == pytest.approx(worst, nan_ok=True, rel=0, abs=0)


def test_a_condition_of_the_first_values_alone_counts_only_if_it_lasts_and_then_from_where_it_began() -> None:
    """Three of five hold at once; of the two columns one holds on, beyond the five values that the window lets pass."""
    held = Held(Window(3, 5, after=5))
    for step, holds in enumerate([[True, True]] * 3 + [[False, True]] * 5):
        held.add(np.array([holds]), np.ones((1, 2)), np.array([step]))
        assert list(held.since) == [-1, 0 if step >= 5 else -1]


def test_values_without_the_condition_count_before_it() -> None:
    held = Held(Window(3, 5, after=5))
    for step in range(9):
        held.add(np.array([[step >= 6]]), np.ones((1, 1)), np.array([step]))
    assert (list(held.since), list(held.last)) == ([6], [8])


def _held(record: list[int | None]) -> list[bool]:
    return [each is not None for each in record]
