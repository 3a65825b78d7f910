"""What a step did to a parameter: by hand, and with real optimizers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from sonde.errors import ArgumentError
from sonde.stats import Accumulator, Updates, vanished_share


def test_by_hand() -> None:
    """From (3, 4) to (3, 5): an update of 1 on weights of 5, half of the elements unchanged."""
    numbers = Accumulator(Updates()).update(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])).compute()
    assert (numbers.update_norm, numbers.weight_norm, numbers.ratio) == (1.0, 5.0, 0.2)
    assert (numbers.pairs, numbers.elements, numbers.unchanged) == (1, 2, 0.5)
    assert math.isnan(numbers.vanished), "in its own precision it cannot be told from an update of zero"


def test_a_step_of_an_optimizer() -> None:
    """A parameter given after each step of SGD: the update is learning rate times gradient."""
    parameter = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    accumulator = Accumulator(Updates()).update(parameter)
    for _ in range(2):
        parameter.grad = torch.tensor([0.0, 1.0])
        optimizer.step()
        accumulator.update(parameter)
    numbers = accumulator.compute()
    assert numbers.pairs == 2
    assert numbers.update_norm == pytest.approx(0.1, rel=1e-6)
    assert numbers.weight_norm == pytest.approx((5 + math.hypot(3, 3.9)) / 2)
    assert numbers.unchanged == 0.5


def test_updates_too_small_for_bfloat16_vanish() -> None:
    """At 1.0 bfloat16 has steps of 2**-7 up: of updates of 1/1024, 1/64 and 0 the first is lost, the last was none."""
    before = torch.ones(4, dtype=torch.bfloat16)
    wanted = torch.tensor([1 / 1024, 1 / 64, 0.0, -1 / 1024])
    numbers = Accumulator(Updates()).update(before.float() + wanted, before).compute()
    assert numbers.vanished == 0.5
    assert numbers.unchanged == 0.25
    assert vanished_share((before.float() + wanted).bfloat16(), before, wanted).item() == 0.5


def test_master_weights_and_the_precision_they_are_cast_to() -> None:
    """Float32 before and after, with a bfloat16 copy used in the forward pass: the copy does not see small updates."""
    before = torch.ones(4)
    after = before + torch.tensor([1 / 1024, 1 / 64, 0.0, -1 / 1024])
    assert Accumulator(Updates(torch.bfloat16)).update(after, before).compute().vanished == 0.5
    assert math.isnan(Accumulator(Updates()).update(after, before).compute().vanished)
    assert math.isnan(Accumulator(Updates(torch.float64)).update(after, before).compute().vanished)


def test_a_bfloat16_parameter_under_sgd() -> None:
    """The share that vanished is that of a run in which nothing was rounded."""
    parameter = nn.Parameter(torch.randn(1000).bfloat16())
    before = parameter.detach().clone()
    parameter.grad = torch.randn(1000).bfloat16()
    torch.optim.SGD([parameter], lr=1e-3).step()
    exact = before.double() - 1e-3 * parameter.grad.double()
    lost = ((exact != before.double()) & (parameter.detach() == before)).double().mean().item()
    assert 0.05 < lost < 0.95
    assert vanished_share(parameter, before, parameter.grad).item() == lost
    assert Accumulator(Updates()).update(exact, before).compute().vanished == pytest.approx(lost, abs=0.01)


def test_weights_of_zero_have_no_ratio() -> None:
    """A bias that starts at zero: its first update has a norm and no ratio; the mean ratio is over the others."""
    accumulator = Accumulator(Updates()).update(torch.ones(2), torch.zeros(2))
    assert math.isnan(accumulator.compute().ratio)
    accumulator.update(torch.full((2,), 1.5), torch.ones(2))
    assert accumulator.compute().ratio == 0.5
    assert accumulator.compute().update_norm == pytest.approx((math.sqrt(2) + math.sqrt(0.5)) / 2)


def test_elements_that_are_not_finite_are_left_out() -> None:
    """A weight that became NaN is counted, and the norms are of the rest."""
    numbers = Accumulator(Updates()).update(torch.tensor([4.0, float("nan")]), torch.tensor([3.0, 1.0])).compute()
    assert (numbers.update_norm, numbers.weight_norm, numbers.elements, numbers.nonfinite) == (1.0, 3.0, 1, 1)


def test_tiny_updates_of_large_weights_are_exact() -> None:
    """The difference is formed in float64: one unit in the last place of a float32 is seen as what it is."""
    before = torch.tensor([1.0])
    after = torch.nextafter(before, torch.tensor([2.0]))
    numbers = Accumulator(Updates()).update(after, before).compute()
    assert (numbers.update_norm, numbers.unchanged) == (2.0**-23, 0.0)


def test_vanished_shares_of_shapes_and_complex() -> None:
    """The three tensors have one shape; a complex element counts as two."""
    with pytest.raises(ArgumentError, match=r"one shape, not \(2,\), \(2,\), \(3,\)"):
        vanished_share(torch.ones(2), torch.ones(2), torch.ones(3))
    assert vanished_share(torch.tensor([1 + 1j]), torch.tensor([1 + 0j]), torch.tensor([1 + 1j])).item() == 0.5
    assert math.isnan(vanished_share(torch.empty(0), torch.empty(0), torch.empty(0)).item())


@pytest.mark.parametrize("precision", [torch.int8, torch.bool, torch.complex64])
def test_a_precision_that_is_none_raises(precision: Any) -> None:
    """Integers and complex types have no such thing."""
    with pytest.raises(ArgumentError, match="precision must be a floating-point type"):
        Updates(precision)
