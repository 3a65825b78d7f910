"""Counts per power of two: their bins, what they say of other precisions against real casts, and of quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats import Accumulator, ExponentHistogram, Result, magnitude_quantiles
from sonde.stats.exponents import HIGHEST, LOWEST, OVERFLOW, UNDERFLOW
from sonde.stats.quantiles import ERROR_FACTOR

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def seen(tensor: Tensor) -> Result:
    return Accumulator(ExponentHistogram()).update(tensor).compute()


def test_the_layout_that_kernels_keep_to() -> None:
    """Position by position, as the docstring says; a change breaks every kernel and every saved row."""
    names = ["zero", "nan", "inf", "negative", "over_fp16", "over_bf16", "over_e4m3", "over_e5m2", "below", "powers", "above"]
    assert [name for name, _ in ExponentHistogram().layout()] == names
    assert ExponentHistogram().width == 288
    assert (LOWEST, HIGHEST) == (-149, 128)
    assert {item.merge for item in ExponentHistogram.fields} == {"sum"}
    expected = {
        0.0: [0],
        float("nan"): [1],
        float("inf"): [2],
        float("-inf"): [2],
        1e-300: [8],
        2.0**-150: [8],
        2.0**-149: [9],
        1.0: [9 + 149],
        1.5: [9 + 150],
        2.0: [9 + 150],
        -2.0: [3, 9 + 150],
        np.nextafter(2.0, 3.0): [9 + 151],
        464.0: [9 + 149 + 9],
        465.0: [6, 9 + 149 + 9],
        65519.0: [6, 7, 9 + 149 + 16],
        -65520.0: [3, 4, 6, 7, 9 + 149 + 16],
        2.0**128: [4, 5, 6, 7, 286],
        1e300: [4, 5, 6, 7, 287],
        5e-324: [8],
    }
    for value, places in expected.items():
        row = ExponentHistogram().measure(torch.tensor([value], dtype=torch.float64))
        assert row.nonzero().flatten().tolist() == places, value
    assert seen(torch.tensor([-0.0])).zeros == 1


def test_by_hand() -> None:
    """Every number of 0, 1, -3, 8, NaN, inf as on paper: powers 0, 2, 3."""
    numbers = seen(torch.tensor([0.0, 1.0, -3.0, 8.0, float("nan"), float("inf")]))
    assert (numbers.count, numbers.finite, numbers.zeros, numbers.negative, numbers.nan, numbers.inf) == (6, 4, 1, 1, 1, 1)
    assert (numbers.lowest, numbers.highest, numbers.dynamic_range) == (0, 3, 3)
    assert (numbers.p25, numbers.p50) == (0.0, 2**-0.5)  # the first and second of four magnitudes
    assert (numbers.p75, numbers.p99) == (2**1.5, 2**2.5)
    assert (numbers.underflow_e4m3, numbers.overflow_e4m3) == (0.0, 0.0)


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(values=st.lists(FINITE, min_size=1, max_size=30))
def test_underflow_and_overflow_are_those_of_a_real_cast(name: str, values: list[float]) -> None:
    """Shares of elements that a cast turns to zero or beyond its greatest value, found without casting."""
    assert_as_cast(torch.tensor(values), name)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_underflow_and_overflow_at_the_very_edge(name: str, dtype: torch.dtype) -> None:
    """At each threshold, a tie, and at its two neighbours."""
    edges = torch.tensor([2.0 ** UNDERFLOW[name], OVERFLOW[name]], dtype=torch.float64).to(dtype)
    both = [torch.nextafter(edges, torch.full_like(edges, to)) for to in (0.0, float("inf"))]
    every = torch.cat([edges, *both])
    for value in every[every.isfinite()]:
        assert_as_cast(value[None], name)
        assert_as_cast(-value[None], name)


@pytest.mark.parametrize("edge", [2.0**-25, 65520.0])
def test_doubles_are_rounded_once(edge: float) -> None:
    """A float64 next to a threshold is judged by one rounding, as numpy casts; torch rounds to float32 first."""
    for value in (edge, np.nextafter(edge, 0), np.nextafter(edge, np.inf)):
        with np.errstate(over="ignore", under="ignore"):
            cast = float(np.float16(np.float64(value)))
        numbers = seen(torch.tensor([value], dtype=torch.float64))
        assert (numbers.underflow_fp16, numbers.overflow_fp16) == (cast == 0, math.isinf(cast))


def assert_as_cast(tensor: Tensor, name: str) -> None:
    cast = tensor.to(FORMATS[name]).double()
    if name == "e4m3":  # torch's cast saturates: what it clips is what would round to the next value after 448, if there were one
        beyond = tensor.double().abs() > 464
        assert (cast[beyond].abs() == 448).all()
        assert torch.equal(cast.abs() >= 448, tensor.double().abs() >= 432)  # 432: halfway between 416 and 448
    else:
        beyond = ~cast.isfinite()
    gone = (cast == 0) & (tensor != 0)
    numbers = seen(tensor).as_dict()
    assert numbers[f"underflow_{name}"] == gone.double().mean().item()
    assert numbers[f"overflow_{name}"] == beyond.double().mean().item()


@settings(deadline=None)
@given(values=st.lists(FINITE, min_size=1, max_size=40), share=st.floats(0, 1))
def test_quantiles_are_within_the_stated_error(values: list[float], share: float) -> None:
    """Any quantile of magnitudes is within a factor of sqrt(2) of numpy's order statistic, and exact for zeros."""
    tensor = torch.tensor(values)
    columns = Accumulator(ExponentHistogram()).update(tensor).columns()
    true = np.quantile(tensor.double().abs().numpy(), share, method="inverted_cdf")
    found = magnitude_quantiles(columns, [share])[0, 0]
    assert true == found == 0 or true / ERROR_FACTOR <= found * (1 + 1e-15) <= true * ERROR_FACTOR * (1 + 1e-12)


@settings(deadline=None)
@given(values=st.lists(FINITE.filter(lambda value: value != 0), min_size=1, max_size=20))
def test_the_dynamic_range_is_within_an_octave(values: list[float]) -> None:
    """The range from bins is less than one octave off that of the magnitudes themselves."""
    sizes = torch.tensor(values).double().abs()
    assert abs(seen(torch.tensor(values)).dynamic_range - math.log2(sizes.max() / sizes.min())) < 1


def test_quantiles_of_many_rows_at_once() -> None:
    """One row of answers per row of counts; NaN where a row has seen nothing finite."""
    statistic = ExponentHistogram()
    rows = torch.stack([statistic.measure(torch.tensor(values)) for values in ([1.0, 4.0], [float("nan")], [0.0])])
    found = magnitude_quantiles(statistic.columns(rows), [0.0, 0.5, 1.0])
    np.testing.assert_array_equal(found, [[2**-0.5, 2**-0.5, 2**1.5], [math.nan] * 3, [0.0] * 3])


def test_doubles_beyond_the_bins_are_counted_and_said_to_be_at_the_edge() -> None:
    """Float64 magnitudes that no float32 has are in the outermost counts."""
    numbers = seen(torch.tensor([1e-300, 1e300, 5e-324], dtype=torch.float64))
    assert (numbers.count, numbers.finite, numbers.lowest, numbers.highest) == (3, 3, -150, 129)
    assert (numbers.p50, numbers.p99) == (2.0**-150, 2.0**128)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_raises(share: float) -> None:
    """Quantiles are asked for by a share from 0 to 1, not by a percentage."""
    with pytest.raises(ArgumentError, match="by its share from 0 to 1"):
        magnitude_quantiles(Accumulator(ExponentHistogram()).columns(), [share])
