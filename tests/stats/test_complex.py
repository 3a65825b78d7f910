"""Complex tensors: every statistic reads moduli and differences that are formed in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.stats import Accumulator, Activation, ChannelActivation, ExponentHistogram, Moments, Norm, Spectrum, Statistic
from sonde.stats.samples import SampleNorm, Single

LARGE = 3e38 + 2.5e38j  # both parts are finite in float32; the modulus, 3.9e38, is beyond float32
SMALL = 1e-30 + 1e-30j  # the squares of the parts vanish in float32

STATISTICS: list[Statistic] = [
    Moments(),
    Norm(),
    ExponentHistogram(),
    Activation(),
    ChannelActivation(4),
    Spectrum(4),
    SampleNorm(),
    Single(),
]


def halves(real: Tensor, imaginary: Tensor) -> Tensor:
    """Two float16 tensors as one of type complex32, of which torch warns that it is new."""
    return torch.view_as_complex(torch.stack([real, imaginary], dim=-1).to(torch.float16))


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: type(statistic).__name__)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.full((3, 4), LARGE, dtype=torch.complex64), id="large"),
        pytest.param(lambda: torch.full((3, 4), LARGE, dtype=torch.complex64).conj(), id="large, conjugated when read"),
        pytest.param(lambda: torch.full((3, 4), SMALL, dtype=torch.complex64), id="small"),
        pytest.param(lambda: torch.randn(3, 4, dtype=torch.complex64), id="complex64"),
        pytest.param(lambda: halves(torch.linspace(6e4, -6e4, 12).view(3, 4), torch.full((3, 4), 5e4)), id="complex32"),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_statistic_reads_the_modulus_in_double_precision(statistic: Statistic, make: Callable[[], Tensor]) -> None:
    """The numbers are those of the moduli, formed in float64 from the parts."""
    tensor = make()
    parts = torch.view_as_real(tensor.resolve_conj()).double()
    moduli = torch.tensor([math.hypot(*pair) for pair in parts.reshape(-1, 2).tolist()], dtype=torch.float64).reshape(tensor.shape)
    expected = Accumulator(statistic).update(moduli).compute().as_dict()
    found = Accumulator(statistic).update(tensor).compute().as_dict()
    for name, number in expected.items():
        assert found[name] == pytest.approx(number, rel=1e-9, abs=0.0, nan_ok=True), name


def test_a_finite_complex_gradient_does_not_count_as_infinite() -> None:
    """In eager mode, by hooks, an output of large finite parts has no infinite element."""
    model = nn.Identity()
    with sonde.observe(model, Moments()) as probe:
        model(torch.full((5,), LARGE, dtype=torch.complex64))
    (numbers,) = probe.rows()
    assert (numbers["inf"], numbers["finite"]) == (0, 5)
    assert numbers["max"] == pytest.approx(math.hypot(3e38, 2.5e38), rel=1e-6)


def test_the_update_of_a_complex_parameter_is_formed_in_double_precision() -> None:
    """A change of one unit in the last place of a real part is that change, exactly: no rounding of the difference."""
    start = torch.tensor([1.0 + 1e-5j, -3.0 + 2.0j])
    model = nn.ParameterDict({"weight": nn.Parameter(start.clone())})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with sonde.observe(model, Moments(), ports=("update",)) as probe:
        model["weight"].grad = torch.tensor([0.1 + 0.7j, 1e-4 - 1e-7j])
        optimizer.step()
    after = model["weight"].detach()
    squares = Fraction(0)
    for one, other in zip(torch.view_as_real(after).flatten().tolist(), torch.view_as_real(start).flatten().tolist(), strict=True):
        squares += (Fraction(one) - Fraction(other)) ** 2
    (numbers,) = probe.rows()
    assert numbers["norm"] == pytest.approx(math.sqrt(squares), rel=1e-14, abs=0.0)
