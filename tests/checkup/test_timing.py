"""Times of steps are compared within each round, and a difference knows its noise."""

from __future__ import annotations

import pytest

from sonde.checkup.timing import Times


def test_a_difference_is_the_median_over_rounds_with_its_noise() -> None:
    """By hand: differences 1, 2, 3, 4, 100; median 3; absolute deviations 2, 1, 0, 1, 97; their median 1."""
    times = Times({"bare": [1.0, 1.0, 1.0, 1.0, 1.0], "logged": [2.0, 3.0, 4.0, 5.0, 101.0]}, {})
    found = times.difference("logged", "bare")
    assert found.seconds == 3
    assert found.noise == pytest.approx(2 * 1.2533 * 1.4826 / 5**0.5)
    assert not found.is_noise
    assert times.median("logged") == 4


def test_a_difference_below_its_noise_is_none() -> None:
    times = Times({"bare": [1.0, 2.0, 3.0], "plain": [2.0, 1.0, 3.0]}, {})
    assert times.difference("plain", "bare").is_noise
