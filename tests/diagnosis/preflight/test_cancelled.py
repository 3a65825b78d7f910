"""A bias that what follows takes away is a note; a bias whose gradient is stopped, and a weight, are warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde


class Pair(nn.Module):
    """Two embeddings of one network; *of_bias* is done to its last bias."""

    def __init__(self, of_bias: Callable[[Tensor], Tensor] = lambda bias: bias) -> None:
        super().__init__()
        self.body, self.last, self.of_bias = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.Linear(16, 4), of_bias

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one, other = (functional.linear(self.body(each), self.last.weight, self.of_bias(self.last.bias)) for each in x.split(8))
        return one, other


def stopped(bias: Tensor) -> Tensor:
    return bias.detach() + 0 * bias


class Places(nn.Module):
    """Differences of neighbours, whatever is added to all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 8, 3), nn.Tanh(), nn.Conv1d(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)[:, 0].diff(dim=1)


def gradients(model: nn.Module, x: Tensor, loss_fn: Callable[[Any], Tensor]) -> list[tuple[str, str]]:
    found = sonde.preflight(model, x, loss_fn, checks=["gradients"], verbose=False)["gradients"].findings
    return [(each.severity, each.site) for each in found]


def near(made: tuple[Tensor, Tensor]) -> Tensor:
    return functional.pairwise_distance(*made, eps=0.0).mean()


@pytest.mark.parametrize("model", [Pair(), Pair(stopped)], ids=["distance", "one that does not matter"])
def test_a_bias_that_a_distance_takes_away_is_a_note(model: nn.Module) -> None:
    torch.manual_seed(0)
    assert gradients(model, torch.randn(16, 6), near) == [("note", "last.bias:grad")]


def test_a_bias_that_differences_take_away_is_a_note() -> None:
    torch.manual_seed(0)
    found = gradients(Places(), torch.randn(8, 2, 12), lambda made: (made - 1).abs().sum(1).sqrt().mean())
    assert [each for each in found if each[0] != "note"] == []


def test_a_bias_whose_gradient_is_stopped_is_a_warning() -> None:
    torch.manual_seed(0)
    goal = torch.randn(8, 4)
    found = gradients(Pair(stopped), torch.randn(16, 6), lambda made: functional.mse_loss(made[0], goal) + near(made))
    assert found == [("warn", "last.bias:grad")]


def test_a_layer_whose_output_is_multiplied_by_zero_is_a_warning_beside_a_bias_that_is_none() -> None:
    class Off(Pair):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            one, other = super().forward(x)
            return one + 0 * self.other(x[:8]), other

    torch.manual_seed(0)
    found = gradients(Off(), torch.randn(16, 6), near)
    assert sorted(found) == [("note", "last.bias:grad"), ("warn", "other.weight:grad")]
