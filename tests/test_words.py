"""Numbers, sizes, times, shares and lists as people read them."""

from __future__ import annotations

import math

import pytest

from sonde.words import large_text, many, names_text, number_text, percent, short, size_text, time_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-0.25, "-0.25"),
        (0.123456, "0.1235"),
        (12.3456, "12.35"),
        (999.96, "1,000"),
        (1234.5, "1,234"),
        (65504, "65,504"),
        (999_999.4, "999,999"),
        (1e6, "1e+06"),
        (1.5e-5, "1.5e-05"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (1.5 - 2j, "(1.5-2j)"),
        (complex(0.5, math.nan), "(0.5+NaNj)"),
    ],
)
def test_a_number_has_four_digits_or_all_of_a_whole_one(value: complex, text: str) -> None:
    """Only beyond a million, and far below one, it has an exponent."""
    assert number_text(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.123, "0.12"), (99.6, "100"), (899.4, "899"), (12.4, "12"), (1.4e37, "1.4e+37")])
def test_a_short_number_has_two_digits_and_no_needless_exponent(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1e-9, "<1 %"),
        (0.0099, "<1 %"),
        (0.016, "2 %"),
        (0.5, "50 %"),
        (0.994, "99 %"),
        (0.9999, "99 %"),
        (1.0, "100 %"),
        (1.5, "150 %"),
        (-0.02, "-2 %"),
        (math.nan, "NaN %"),
    ],
)
def test_percent_says_none_and_all_of_exactly_that(share: float, text: str) -> None:
    assert percent(share) == text


def test_percent_with_decimals_says_none_and_all_of_exactly_that() -> None:
    assert [percent(share, 1) for share in (0.0, 1e-4, 0.0123, 0.9999, 1.0)] == ["0.0 %", "<0.1 %", "1.2 %", "99.9 %", "100.0 %"]


def test_sizes_and_times_change_their_unit_before_they_have_four_digits() -> None:
    sizes = (0, 999, 999.6, 99_949, 99_951, 3e12)
    assert [size_text(size) for size in sizes] == ["0 B", "999 B", "1.0 kB", "99.9 kB", "100 kB", "3.0 TB"]
    assert [time_text(time) for time in (90, 1, 0.5, 2.5e-6, 1e-9, -0.002)] == ["90 s", "1 s", "500 ms", "2.5 µs", "1 ns", "-2 ms"]
    assert [large_text(count) for count in (0, 999.4, 999.6, 12_345, 1e12)] == ["0", "999", "1.00 k", "12.3 k", "1.00 T"]


def test_a_count_has_its_noun_in_the_singular_for_one_alone() -> None:
    assert [many(count, "run") for count in (0, 1, 2, 1_000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
    assert many(2, "entry", "entries") == "2 entries"


def test_a_long_list_says_how_many_names_it_leaves_out() -> None:
    assert names_text([]) == ""
    assert names_text(["a", "b", "c"]) == "a, b, c"
    assert names_text(range(2000), 2) == "0, 1 and 1,998 more"
