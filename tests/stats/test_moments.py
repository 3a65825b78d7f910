"""``Moments`` by hand: numbers that anybody can check."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from tests import bounds
from torch import Tensor

from sonde.stats import Accumulator, Moments, reduce


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


def exact_spread(tensors: list[Tensor]) -> float:
    """The standard deviation of all elements in exact arithmetic."""
    values = [Fraction(value) for tensor in tensors for value in tensor.double().flatten().tolist()]
    mean = sum(values, Fraction()) / len(values)
    unit = max(map(abs, values)) or Fraction(1)  # a float holds the variance in squares of this
    return float(unit) * math.sqrt(sum((((value - mean) / unit) ** 2 for value in values), Fraction()) / len(values))


def ways(tensors: list[Tensor]) -> dict[str, float]:
    """The spread of *tensors* by every way in which rows come about and merge."""
    statistic = Moments()
    added, merged, backwards = (Accumulator(statistic) for _ in range(3))
    for tensor in tensors:
        added.update(tensor)
        merged.merge(Accumulator(statistic).update(tensor))
    for tensor in reversed(tensors):
        backwards.merge(Accumulator(statistic).update(tensor))
    rows = torch.stack([statistic.measure(tensor) for tensor in tensors])
    by_reference = statistic.empty(1)[0]
    for row in rows:
        by_reference = statistic.merged(by_reference, row)
    # as ranks merge: one reduction of minima, then one of sums
    minima = rows[:, 8:10].amin(0)
    by_ranks = torch.cat([statistic.aligned(rows, minima).sum(0), minima, rows[:, 10:].amax(0)])
    finished = statistic.finish(statistic.columns(torch.stack([by_reference, by_ranks, reduce(statistic, rows)])))["std"].tolist()
    found = {"added": added.compute().std, "merged": merged.compute().std, "merged backwards": backwards.compute().std}
    return found | dict(zip(("by the reference", "as ranks merge", "reduced"), finished, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("mean", [0.0, 1.0, -30.0, 1e3, 1e6, -1e7, 1e8, 1e9, 1e12])
def test_the_spread_is_right_whatever_the_mean(mean: float, dtype: torch.dtype) -> None:
    """Up to a mean of 1e12 spreads, in every way in which rows merge; where float32 rounds all elements to one, it is 0."""
    tensors = [(torch.randn(size, dtype=torch.float64) + mean).to(dtype) for size in (3000, 4000, 5000)]
    expected = exact_spread(tensors)
    for way, found in ways(tensors).items():
        assert found == pytest.approx(expected, rel=bounds.of_std(12_000 / 3000), abs=0.0), way


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param([torch.tensor([2**31 - 1, 2**31 - 2], dtype=torch.int32)], id="the largest integers"),
        pytest.param([torch.tensor([1e9, 1e9 + 1], dtype=torch.float64), torch.zeros(2)], id="a mean far from the first"),
        pytest.param([torch.zeros(100), torch.randn(100, dtype=torch.float64) + 1e9], id="zeros first"),
        pytest.param([torch.randn(100, dtype=torch.float64) + 1e9, torch.zeros(100)], id="zeros last"),
        pytest.param([torch.full((500,), 1e9 + at, dtype=torch.float64) for at in range(8)], id="equal elements that drift"),
        pytest.param([torch.tensor([1e150, 3e150], dtype=torch.float64)], id="squares that nearly overflow"),
        pytest.param([torch.tensor([1e-140, 3e-140], dtype=torch.float64)], id="squares that nearly underflow"),
        pytest.param([torch.arange(9000.0).double() * 1e-9 + 1e3], id="a slope, over several blocks"),
        pytest.param([torch.cat([torch.full((4096,), 1e6), torch.randn(100_000)])], id="a first block of its own"),
    ],
)
def test_the_spread_of_difficult_tensors(tensors: list[Tensor]) -> None:
    """Exact up to the stated bound, in every way in which rows merge."""
    expected = exact_spread(tensors)
    total = sum(tensor.numel() for tensor in tensors)
    parts = total / min(4096, *(tensor.numel() for tensor in tensors))
    for way, found in ways(tensors).items():
        assert found == pytest.approx(expected, rel=bounds.of_std(parts), abs=0.0), way


@pytest.mark.parametrize("value", [0.1, -3e-20, 1e9 + 0.3, 7.0])
def test_equal_elements_have_no_spread(value: float) -> None:
    """Exactly 0, whatever the rounding of their mean, with NaN among them or not."""
    tensor = torch.full((5001,), value, dtype=torch.float64)
    spoiled = tensor.clone()
    spoiled[::3] = math.nan
    assert set(ways([tensor, tensor[:7], spoiled]).values()) == {0.0}


def test_a_spread_that_the_sums_do_not_hold_is_nan() -> None:
    """Squares beyond float64, or so far below it that they lost their digits: no number rather than a wrong one."""
    for values in ([1e300, -1e300], [1e-170, 3e-170]):
        tensor = torch.tensor(values, dtype=torch.float64)
        assert all(math.isnan(found) for found in ways([tensor]).values())


def test_many_small_tensors_and_an_outlier_keep_the_spread() -> None:
    """Five thousand single numbers around 1000, and one zero, which becomes the pivot."""
    numbers = torch.randn(5_000, dtype=torch.float64) + 1000
    accumulator = Accumulator(Moments()).update(torch.zeros(1))
    for number in numbers.split(1):
        accumulator.update(number)
    expected = exact_spread([numbers, torch.zeros(1)])
    assert accumulator.compute().std == pytest.approx(expected, rel=bounds.of_std(5_001), abs=0.0)


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


def test_an_empty_view_that_is_negated_when_read_adds_nothing() -> None:
    """The imaginary part of a conjugate without elements, which torch keeps under a key of its own."""
    view = torch.zeros(2, 0, dtype=torch.complex128).conj().imag
    assert view.is_neg()
    assert Accumulator(Moments()).update(view).compute().count == 0
