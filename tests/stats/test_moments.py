"""``Moments`` by hand: numbers that anybody can check."""

from __future__ import annotations

import math

import pytest
import torch

from sonde.stats import Accumulator, Moments


def test_moments_by_hand() -> None:
    """Every number of 3, -4, 0 as on paper."""
    assert Accumulator(Moments()).update(torch.tensor([3.0, -4.0, 0.0])).compute().as_dict() == pytest.approx(
        {
            "count": 3.0,
            "finite": 3.0,
            "mean": -1 / 3,
            "std": math.sqrt(25 / 3 - 1 / 9),
            "rms": math.sqrt(25 / 3),
            "norm": 5.0,
            "min": -4.0,
            "max": 3.0,
            "absmax": 4.0,
            "zeros": 1.0,
            "nan": 0.0,
            "inf": 0.0,
        },
        rel=1e-14,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_does_not_overflow(dtype: torch.dtype) -> None:
    """A hundred thousand times 300, whose squares and sums no float16 holds: rms 300, norm 300 sqrt(100000), std 0."""
    numbers = Accumulator(Moments()).update(torch.full((100_000,), 300.0, dtype=dtype)).compute()
    assert numbers.rms == 300.0
    assert numbers.mean == 300.0
    assert numbers.norm == pytest.approx(300 * math.sqrt(100_000), rel=1e-14)
    assert numbers.std == 0.0
    assert numbers.absmax == 300.0
    assert numbers.inf == 0.0


@pytest.mark.parametrize("size", [1e-20, 1e-25])
def test_small_gradients_do_not_vanish(size: float) -> None:
    """A million gradients of 1e-20 or less, whose squares float32 holds badly or not at all: rms 1e-20, norm 1e-17."""
    gradient = torch.full((1000, 1000), size)
    numbers = Accumulator(Moments()).update(gradient).compute()
    assert gradient.square().mean().sqrt().item() != pytest.approx(size, rel=1e-6, abs=0.0), "in float32 this goes wrong"
    assert numbers.rms == pytest.approx(size, rel=1e-7, abs=0.0)
    assert numbers.norm == pytest.approx(1000 * size, rel=1e-7, abs=0.0)
    assert numbers.zeros == 0.0


def test_a_large_mean_leaves_the_spread() -> None:
    """Values of 10000 and 10002 in turn, over many updates: mean 10001, std 1."""
    accumulator = Accumulator(Moments())
    for _ in range(50):
        accumulator.update(torch.tensor([1e4, 1e4 + 2]).repeat(1000))
    numbers = accumulator.compute()
    assert numbers.mean == pytest.approx(10_001.0, rel=1e-14)
    assert numbers.std == pytest.approx(1.0, rel=1e-6)


def test_the_promised_precision_of_the_spread() -> None:
    """A mean of a million times the spread leaves it a relative error of 1e-4, as the docstring says."""
    exact = torch.tensor([1e6 - 1, 1e6 + 1], dtype=torch.float64).repeat(50_000)
    accumulator = Accumulator(Moments())
    for piece in exact.chunk(7):
        accumulator.update(piece)
    assert accumulator.compute().std == pytest.approx(1.0, rel=2e-4)


def test_defects_are_counted_and_left_out() -> None:
    """NaN and infinities are counted apart and do not poison the numbers of the rest."""
    tensor = torch.tensor([float("nan"), 1.0, float("inf"), 3.0, float("-inf"), float("nan"), 0.0, float("nan")])
    numbers = Accumulator(Moments()).update(tensor).compute()
    assert (numbers.count, numbers.finite, numbers.nan, numbers.inf, numbers.zeros) == (8, 3, 3, 2, 1)
    assert numbers.mean == pytest.approx(4 / 3)
    assert (numbers.min, numbers.max, numbers.absmax) == (0.0, 3.0, 3.0)


def test_nothing_seen_is_said_without_a_warning() -> None:
    """Where there is nothing to average, the numbers are NaN and the sums 0."""
    numbers = Accumulator(Moments()).compute()
    assert (numbers.count, numbers.finite, numbers.norm, numbers.zeros) == (0, 0, 0, 0)
    assert all(math.isnan(getattr(numbers, name)) for name in ("mean", "std", "rms", "min", "max", "absmax"))


def test_autocast_does_not_lower_the_precision() -> None:
    """Under autocast the sums are still formed in float64."""
    tensor = torch.randn(999) + 100
    outside = Accumulator(Moments()).update(tensor).compute().as_dict()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Accumulator(Moments()).update(tensor).compute().as_dict() == outside


def test_integers_beyond_float32_are_exact() -> None:
    """Integers keep their value: 2^24 + 1 is not rounded to a float32."""
    numbers = Accumulator(Moments()).update(torch.tensor([2**24 + 1, 0])).compute()
    assert numbers.max == 2.0**24 + 1
    assert numbers.mean == (2.0**24 + 1) / 2


def test_the_largest_doubles_are_said_without_a_warning() -> None:
    """Doubles whose squares overflow float64 keep count, mean, extremes; nothing warns in the user's program."""
    numbers = Accumulator(Moments()).update(torch.tensor([1e200, -1e200, 1e200], dtype=torch.float64)).compute()
    assert (numbers.count, numbers.finite, numbers.inf) == (3, 3, 0)
    assert numbers.mean == pytest.approx(1e200 / 3)
    assert (numbers.min, numbers.max) == (-1e200, 1e200)
