"""Norms of lists of tensors: right for every mixture, whichever way each of them takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sonde.errors import ArgumentError
from sonde.stats.kernels import native, norms

ACCELERATOR = pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs a GPU")


@pytest.fixture(params=["best", "reference"], autouse=True)
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here runs with the compiled kernels and without."""
    before = native.status().level
    if request.param == "reference":
        native.use("reference")
    elif not before:
        pytest.skip("this installation has no compiled kernels")
    yield
    native.use(before or "reference")


def by_oracle(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None else math.sqrt(math.fsum(abs(value) ** 2 for value in tensor.to_dense().flatten().tolist()))


MIXTURE: list[Tensor | None] = [
    torch.tensor([3.0, 4.0]),
    None,
    torch.empty(0),
    torch.empty(3, 0),
    torch.tensor(-7.0),
    torch.tensor([3 + 4j, 1j]),
    torch.arange(5),
    torch.tensor([True, False, True]),
    torch.full((3,), 1e-20),
    torch.full((100_000,), 300.0, dtype=torch.float16),
    torch.full((1000,), 3.0, dtype=torch.bfloat16),
    torch.linspace(0, 1, 60, dtype=torch.float64).view(3, 4, 5).transpose(0, 2),
    torch.linspace(-1, 1, 240).view(2, 3, 5, 8).to(memory_format=torch.channels_last),
    torch.linspace(-1, 1, 40)[::3],
    torch.ones(1).expand(70),
    torch.eye(3).to_sparse(),
    nn.Parameter(torch.ones(9)),
]


def test_every_kind_of_tensor_in_one_list() -> None:
    """Precisions, layouts, integers, complex, sparse, parameters, nothing at all."""
    found = norms(MIXTURE)
    assert found.dtype is torch.float64
    assert not found.requires_grad
    assert found.tolist() == pytest.approx([by_oracle(tensor) for tensor in MIXTURE], rel=1e-12, abs=0)


def test_differences_of_every_kind() -> None:
    """Minus the same, minus other strides, minus None."""
    others = [None if tensor is None else tensor.clone() for tensor in MIXTURE]
    assert norms(MIXTURE, minus=others).tolist() == [0.0] * len(MIXTURE)
    x, y = torch.randn(4, 6), torch.randn(6, 4)
    expected = (x.double() - y.t().double()).norm().item()
    assert norms([x, x, None], minus=[y.t(), None, x]).tolist() == pytest.approx([expected, 0.0, 0.0], rel=1e-12)


@settings(deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=100),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    repeats=st.sampled_from([1, 90]),
)
def test_norms_of_updates_are_exact_to_float64(values: list[float], dtype: torch.dtype, repeats: int) -> None:
    """An update far below the parameter's size is measured from what the parameter became."""
    before = torch.tensor(values * repeats, dtype=dtype)
    after = before + before * 2**-6
    expected = (after.double() - before.double()).square().sum().sqrt().item()
    assert norms([after], minus=[before]).item() == pytest.approx(expected, rel=1e-12)


def test_a_whole_model() -> None:
    """Parameters, gradients with one missing, and updates of a training step."""
    model = nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 300), nn.Conv1d(1, 1, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model[:3](torch.randn(8, 40)).square().mean().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.step()
    parameters = list(model.parameters())
    for found, expected in (
        (norms(parameters), parameters),
        (norms(parameter.grad for parameter in parameters), [parameter.grad for parameter in parameters]),
        (norms(parameters, minus=before), [p.detach() - old for p, old in zip(parameters, before, strict=True)]),
    ):
        assert found.tolist() == pytest.approx([by_oracle(tensor) for tensor in expected], rel=1e-6)


def test_a_norm_says_when_an_element_is_not_finite() -> None:
    """NaN and infinity as torch's own norm has them."""
    assert norms([torch.tensor([1.0, math.inf])]).item() == math.inf
    assert math.isnan(norms([torch.tensor([1.0, math.nan, math.inf])]).item())
    assert norms([]).shape == (0,)


def test_large_tensors_are_split_among_threads() -> None:
    """And give what one thread gives."""
    x, y = torch.randn(500_003), torch.randn(500_003)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert norms([x], minus=[y]).item() == pytest.approx((x.double() - y.double()).norm().item(), rel=1e-13)
    finally:
        torch.set_num_threads(before)


def test_what_does_not_match_is_refused() -> None:
    """Lengths, shapes, and distributed tensors, by position."""

    class Distributed(Tensor):
        def to_local(self) -> Tensor:
            return self.as_subclass(Tensor)

    with pytest.raises(ArgumentError, match="2 tensors minus 1"):
        norms([torch.ones(1), torch.ones(1)], minus=[torch.ones(1)])
    with pytest.raises(ArgumentError, match=r"tensor 0 is \(2,\) .* \(3,\)"):
        norms([torch.ones(2)], minus=[torch.ones(3)])
    with pytest.raises(ArgumentError, match=r"tensor 1 is distributed.*to_local"):
        norms([None, torch.ones(2).as_subclass(Distributed)])


@pytest.mark.gpu
@ACCELERATOR
def test_devices_may_be_mixed() -> None:
    """The result is on the accelerator, without a transfer back."""
    device = torch.accelerator.current_accelerator()
    assert device is not None
    x = torch.randn(1000)
    found = norms([x, x.to(device), None, x.half().to(device)], minus=None)
    assert found.device.type == device.type
    assert found.tolist() == pytest.approx([by_oracle(x), by_oracle(x), 0.0, by_oracle(x.half())], rel=1e-6)
