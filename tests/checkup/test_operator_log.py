"""The log of operators says whose each is, what the host reads, and how much memory is in use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sonde
from sonde.checkup.operator_log import OperatorLog


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Tanh(), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + x.sum().item()


def test_operators_are_counted_by_layer() -> None:
    model = Twice()
    with OperatorLog(model) as log:
        model(torch.ones(3))
    assert log.model["first", "tanh"] == log.model["second", "tanh"] == 1
    assert log.model["", "_local_scalar_dense"] == 1
    assert [(read.operator, read.by_sonde, read.waits) for read in log.reads] == [("_local_scalar_dense", False, False)]


def test_operators_of_an_observer_are_sondes() -> None:
    model = Twice()
    with sonde.observe(model, lambda event: event.value.cosh(), ports="output"), OperatorLog(model) as log:
        model(torch.ones(3))
    assert log.sonde["cosh"] == 3
    assert not any(name == "cosh" for _, name in log.model)


def test_the_peak_is_that_of_tensors_that_live_together() -> None:
    """Two of 4,000 bytes at once; the third comes when the first is gone, and views take nothing."""
    with OperatorLog(nn.Module()) as log:
        one = torch.ones(1000)
        two = one + 1
        del one
        three = two.view(10, 100) * 2
    assert log.peak == 8000
    assert three.numel() == two.numel()
