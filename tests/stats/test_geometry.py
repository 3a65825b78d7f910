"""Length and direction: where float16, tiny gradients, NaN and changed shapes go wrong elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.errors import ArgumentError
from sonde.stats import Accumulator, Cosine, Norm, cosine


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6, 1e-8, 1e-12, 1e-30])
def test_identical_gradients_have_cosine_one_however_small(size: float) -> None:
    """Identical float32 gradients of any norm: at least 0.999, and never above 1."""
    gradient = torch.randn(1000)
    gradient *= size / gradient.norm()
    found = Accumulator(Cosine()).update(gradient).update(gradient).compute().cosine
    assert 0.999 <= found <= 1.0
    assert Accumulator(Cosine()).update(gradient).update(-gradient).compute().cosine == -found


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e300])
def test_doubles_whose_squares_leave_float64(size: float) -> None:
    """Each tensor is scaled by its largest magnitude first, so that nothing vanishes or overflows."""
    gradient = torch.tensor([size, 0.0, size], dtype=torch.float64)
    assert cosine(gradient, gradient).item() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@settings(deadline=None)
@given(values=st.lists(st.floats(-300, 300, width=16), min_size=1, max_size=50), scale=st.floats(2.0**-8, 100, width=16))
def test_a_cosine_is_never_beyond_one(dtype: torch.dtype, values: list[float], scale: float) -> None:
    """Of parallel tensors in any precision, where rounding could lift it above 1."""
    one = torch.tensor(values, dtype=dtype)
    found = cosine(one, (one * scale).to(dtype)).item()
    assert math.isnan(found) or -1.0 <= found <= 1.0


def test_by_hand() -> None:
    """Between (1, 0) and (1, 1) there are 45 degrees."""
    assert cosine(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])).item() == pytest.approx(math.sqrt(0.5), abs=1e-15)


def test_a_complex_element_is_two_real_ones() -> None:
    """A quarter turn in the complex plane is a quarter turn; a real tensor is a complex one without an imaginary part."""
    one = torch.tensor([1 + 0j, 2 + 0j])
    assert cosine(one * 1j, one).item() == 0.0
    assert cosine(one, torch.tensor([1.0, 2.0])).item() == pytest.approx(1.0)
    assert cosine(one.conj(), one).item() == pytest.approx(1.0)


def test_elements_that_are_not_finite_are_left_out_of_both() -> None:
    """A NaN in one and an infinity in the other: the cosine is of the rest, and two elements are said to be missing."""
    one = torch.tensor([1.0, float("nan"), 2.0, 5.0])
    other = torch.tensor([1.0, 7.0, 2.0, float("inf")])
    numbers = Accumulator(Cosine()).update(other).update(one).compute()
    assert (numbers.cosine, numbers.elements, numbers.nonfinite) == (pytest.approx(1.0), 2, 2)


def test_a_zero_gradient_has_no_direction() -> None:
    """Its pairs are counted as undefined and do not enter the mean."""
    accumulator = Accumulator(Cosine())
    for gradient in ([1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]):
        accumulator.update(torch.tensor(gradient))
    numbers = accumulator.compute()
    assert (numbers.pairs, numbers.undefined, numbers.cosine) == (3, 2, 1.0)
    assert math.isnan(cosine(torch.zeros(3), torch.ones(3)).item())
    assert math.isnan(cosine(torch.empty(0), torch.empty(0)).item())


def test_shapes_that_would_broadcast_raise() -> None:
    """The function is asked for one cosine and refuses what the accumulator counts as skipped."""
    with pytest.raises(ArgumentError, match=r"\(4, 2\) to \(1, 2\)"):
        cosine(torch.ones(4, 2), torch.ones(1, 2))


def test_half_precision_does_not_overflow() -> None:
    """A hundred thousand float16 values of 300, as one tensor and as two."""
    tensor = torch.full((100_000,), 300.0, dtype=torch.float16)
    numbers = Accumulator(Norm()).update(tensor).compute()
    assert numbers.norm == pytest.approx(300 * math.sqrt(100_000), rel=1e-14)
    assert numbers.rms == 300.0
    assert Accumulator(Cosine()).update(tensor).update(tensor).compute().cosine == pytest.approx(1.0, abs=1e-12)


def test_the_norm_of_several_tensors_is_that_of_all_elements() -> None:
    """3 and 4 seen one after the other have norm 5; defects are counted and left out."""
    accumulator = Accumulator(Norm()).update(torch.tensor([3.0, float("nan")])).update(torch.tensor([[-4.0], [float("inf")]]))
    numbers = accumulator.compute()
    assert (numbers.norm, numbers.count, numbers.finite, numbers.nan, numbers.inf) == (5.0, 4, 2, 1, 1)
    assert numbers.rms == pytest.approx(5 / math.sqrt(2))
