"""The reference fused by the compiler: the same numbers, and never an exception of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats import ExponentHistogram, Moments, Statistic, Table
from sonde.stats.kernels import fused

STATISTICS = [Moments(), ExponentHistogram()]
BOTH = pytest.mark.parametrize("statistic", STATISTICS, ids=["Moments", "ExponentHistogram"])


@pytest.fixture(autouse=True)
def forgotten(fresh_compiler: None) -> Iterator[None]:
    """Each test starts with nothing compiled and nothing failed."""
    fused._compiled.clear()
    fused._failures.clear()
    yield
    fused._compiled.clear()
    fused._failures.clear()


def tensors(device: torch.device | str = "cpu") -> list[Tensor]:
    made = [torch.randn(1000), torch.randn(7, 30), torch.randn(3, 4, 5, 6), torch.randn(20, 30).t(), torch.randn(50).bfloat16()]
    made[0][::7] = torch.tensor([0.0, float("nan"), float("inf")]).repeat(48)[:143]
    return [tensor.to(device) for tensor in made]


@pytest.mark.slow
@BOTH
def test_fused_numbers_are_the_reference_s(statistic: Statistic) -> None:
    """Through inductor, on the CPU here, for shapes and precisions in turn."""
    for x in tensors():
        torch.testing.assert_close(fused.measure(statistic, x), statistic.measure(x), rtol=1e-12, atol=1e-12)
    assert fused.failures() == {}


def test_a_compiler_that_fails_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference takes its place, and the reason is kept."""
    asked: list[object] = []

    def broken(measure: object, dynamic: bool) -> object:
        def compiled(tensor: Tensor) -> Tensor:
            asked.append(tensor)
            raise RuntimeError("no compiler for this device\nlong story")

        return compiled

    monkeypatch.setattr(torch, "compile", broken)
    for x in tensors():
        assert torch.equal(fused.measure(Moments(), x), Moments().measure(x))
    assert len(asked) == 1
    assert fused.failures() == {"cpu": "RuntimeError: no compiler for this device"}


def test_a_tensor_that_cannot_be_measured_is_not_the_compiler_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistic's own error comes through and nothing is given up."""

    class Picky(Moments):
        def measure(self, tensor: Tensor) -> Tensor:
            raise ArgumentError("not this one")

    monkeypatch.setattr(torch, "compile", lambda measure, dynamic: measure)
    with pytest.raises(ArgumentError, match="not this one"):
        fused.measure(Picky(), torch.ones(3))
    assert fused.failures() == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs a GPU")
@BOTH
def test_a_slab_on_an_accelerator_gives_what_the_cpu_gives(statistic: Statistic) -> None:
    """Every addition, and one copy to read it."""
    device = torch.accelerator.current_accelerator()
    assert device is not None
    table, expected = Table(statistic), Table(statistic)
    row, host = table.allocate(1, device)[0], expected.allocate(1, "cpu")[0]
    for x in tensors():
        table.add(row, x.to(device))
        expected.add(host, x)
    torch.testing.assert_close(row.cpu(), host, rtol=1e-9, atol=1e-9)
