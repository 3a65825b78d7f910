"""Where two series part: by hand, on series whose noise, pace and change are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from sonde.run.comparison import parting
from sonde.run.comparison.parting import Values, allowance, part, repeats_differ

COLUMNS = 60
STEPS: npt.NDArray[np.int64] = np.arange(COLUMNS) * 10
SEED = np.array([np.log(1.5)])


def scatter(seed: int, size: float = 0.05) -> Values:
    return np.random.default_rng(seed).normal(0, size, (1, COLUMNS))


def first(a: Values, b: Values, seed: Values = SEED) -> int:
    return int(part([a], b, STEPS, seed).column[0])


def test_series_that_scatter_about_one_value_do_not_part() -> None:
    for seed in range(20):
        assert first(scatter(seed), scatter(seed + 100)) == -1


@pytest.mark.parametrize("column", [0, 3, 20, 41, 55])
@pytest.mark.parametrize("change", [1.0, -1.0, 5.0])
def test_a_change_is_found_in_its_very_column_and_with_its_size(column: int, change: float) -> None:
    """A gap that lasts starts where it starts; it is as large as the change, but for scatter and the range of the other run."""
    b = scatter(1)
    b[0, column:] += change
    found = part([scatter(2)], b, STEPS, SEED)
    assert found.column.tolist() == [column]
    assert abs(found.gap[0] - abs(change)) < 0.3  # six standard deviations of the values


def test_both_directions_are_alike() -> None:
    a, b = scatter(1), scatter(2)
    b[0, 30:] += 2.0
    assert first(a, b) == first(b, a) == 30


def test_a_peak_shorter_than_what_must_last_is_none() -> None:
    b = scatter(1)
    b[0, 30:32] += 5.0  # two columns: a running median over five does not see them
    assert first(scatter(2), b) == -1


def test_a_training_that_is_ahead_does_not_part() -> None:
    """Each value of the faster one stands in the other up to PACE times later, also where the runs end before that."""
    a = np.log(1.0 / (1 + STEPS / 50.0))[None]
    b = np.log(1.0 / (1 + 1.5 * STEPS / 50.0))[None]
    assert first(a, b, np.array([np.log(1.05)])) == -1
    assert first(b, a, np.array([np.log(1.05)])) == -1


def test_one_that_is_far_ahead_parts() -> None:
    a = -STEPS[None] / 100.0
    assert first(a, 4 * a, np.array([np.log(1.05)])) >= 0


def test_more_scatter_needs_a_larger_gap() -> None:
    calm, wild = scatter(1, 0.01), scatter(1, 1.0)
    for noise, parts in ((calm, True), (wild, False)):
        b = np.roll(noise, 7)
        b[0, 30:] += 0.8
        assert (first(noise, b) >= 0) == parts


def test_a_smaller_allowance_finds_a_smaller_change() -> None:
    b = scatter(1, 0.001)
    b[0, 30:] += 0.2
    assert first(scatter(2, 0.001), b) == -1
    assert first(scatter(2, 0.001), b, np.array([0.05])) == 30


def test_columns_without_a_value_are_left_out() -> None:
    a, b = scatter(1), scatter(2)
    b[0, 30:] += 2.0
    b[0, ::3] = np.nan
    a[0, 1::7] = np.nan
    assert first(a, b) in (30, 31)
    assert first(np.full_like(a, np.nan), b) == -1


def test_rows_are_judged_one_by_one() -> None:
    a, b = np.vstack([scatter(1), scatter(2), scatter(3)]), np.vstack([scatter(4), scatter(5), scatter(6)])
    b[1, 20:] += 3.0
    assert part([a], b, STEPS, np.repeat(SEED, 3)).column.tolist() == [-1, 20, -1]


@pytest.mark.parametrize("columns", [0, 1, 2, 3, 4, 7])
def test_few_columns_are_judged_without_an_error(columns: int) -> None:
    a, b = scatter(1)[:, :columns], scatter(2)[:, :columns] + 4.0
    found = part([a], b, STEPS[:columns], SEED)
    assert found.column.tolist() == [0 if columns else -1]
    assert part([a], a, STEPS[:columns], SEED).column.tolist() == [-1]


def test_the_allowance_falls_with_the_number_of_elements() -> None:
    counts = np.array([1.0, 4.0, 100.0, np.inf])
    assert allowance(2.0, counts) / np.log(2.0) == pytest.approx([3.0, 2.0, 1.2, 1.0])


def test_a_run_must_part_from_each_of_several() -> None:
    a, b = scatter(1), scatter(2) + 3.0
    assert part([a, b], scatter(3) + 3.0, STEPS, SEED).column.tolist() == [-1]
    assert part([a, b], scatter(3) + 6.0, STEPS, SEED).column.tolist() == [0]


def test_repeats_tell_what_seeds_may_differ_by() -> None:
    """Beyond scatter: 1.5 times the largest gap of two repeats, and at least 5 %; of a kind, what most of its rows show."""
    one = np.vstack([scatter(seed, 0.001) for seed in range(3)])
    other = one + np.array([[0.0], [0.4], [0.0]])
    allowed = repeats_differ([one, other, one], STEPS, ["a", "b", "c"])
    assert allowed == pytest.approx([np.log(1.05), 0.6, np.log(1.05)], abs=0.05)
    together = repeats_differ([one, other, one], STEPS, ["a", "a", "c"])
    assert together[0] == pytest.approx(1.5 * 0.9 * 0.4, abs=0.05)  # the 0.9 quantile of two


def test_running_medians_equal_a_slow_loop() -> None:
    values = np.random.default_rng(0).normal(size=(3, 12))
    values[1, 3:9] = np.nan
    for window in (1, 3, 5):
        for row, each in enumerate(parting._running_median(values, window)):
            for column, found in enumerate(each):
                near = values[row, max(column - window // 2, 0) : column + window // 2 + 1]
                expected = np.median(near[np.isfinite(near)]) if np.isfinite(near).any() else np.nan
                assert found == expected or (np.isnan(found) and np.isnan(expected))
