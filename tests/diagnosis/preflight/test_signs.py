"""A loss by hand whose sign is wrong is told by what it makes worse, and the same with the right sign is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde

Loss = Callable[[Any], Tensor]


def net(out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, out))


class Scaled(nn.Module):
    """A mean and a deviation of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net(2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = self.body(x).unbind(1)
        return mean, functional.softplus(deviation) + 0.05


def overfit(model: nn.Module, loss_fn: Loss) -> Any:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return sonde.preflight(model, torch.randn(32, 6), loss_fn, optimizer, checks=["overfit"], verbose=False)["overfit"]


def chosen(made: Tensor) -> Tensor:
    return torch.distributions.Categorical(logits=made).log_prob(torch.arange(32) % 3)


LIKELY: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "choices": (lambda: net(3), lambda made: (chosen(made) * torch.linspace(0.5, 2, 32)).mean()),
    "choices, each as good": (lambda: net(3), lambda made: chosen(made).mean()),
    "shares": (lambda: nn.Sequential(net(3), nn.Softmax(-1)), lambda made: (made.log()[:, 1] * torch.arange(1, 33)).mean()),
    "two kinds": (lambda: net(1), lambda made: (functional.logsigmoid(made[:, 0]) * (1 + torch.arange(32) % 3)).mean()),
}
NEAR: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "density": (Scaled, lambda made: torch.distributions.Normal(*made).log_prob(torch.linspace(-1, 1, 32)).mean()),
    "squares": (lambda: net(1), lambda made: -(made[:, 0] - torch.linspace(-1, 1, 32)).square().mean()),
    "Laplace": (Scaled, lambda made: -((torch.linspace(-1, 1, 32) - made[0]).abs() / made[1] + made[1].log()).sum() / 32),
}


@pytest.mark.parametrize("name", LIKELY)
def test_a_policy_or_a_likelihood_with_the_wrong_sign_is_told(name: str) -> None:
    make, loss_fn = LIKELY[name]
    found = overfit(make(), loss_fn)
    assert [(each.rule, each.severity) for each in found.findings] == [("loss_reversed", "warn")]
    assert "since it makes all log-probabilities that it reads smaller" in found.findings[0].message
    assert overfit(make(), lambda made: -loss_fn(made)).verdict == "ok"


@pytest.mark.parametrize("name", NEAR)
def test_an_error_or_a_density_with_the_wrong_sign_is_told(name: str) -> None:
    make, loss_fn = NEAR[name]
    found = overfit(make(), loss_fn)
    assert [(each.rule, each.severity) for each in found.findings] == [("loss_reversed", "warn")]
    assert "since it makes all differences between outputs and what is given larger" in found.findings[0].message
    assert overfit(make(), lambda made: -loss_fn(made)).verdict == "ok"


@pytest.mark.parametrize("most", [0.0, 1.0])
def test_costs_of_choices_may_make_them_unlikely(most: float) -> None:
    """What multiplies log-probabilities is below 0, or on both sides of it."""
    costs = torch.linspace(-2, most, 32)
    found = overfit(net(3), lambda made: -(chosen(made) * (costs - 0.01)).mean())
    assert found.verdict == "ok"


def test_a_loss_that_falls_faster_and_faster_is_a_note() -> None:
    """As the score of a critic, of which it is not known what it reads."""
    found = overfit(
        nn.Sequential(net(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), lambda made: -made.square().mean()
    )
    assert [(each.rule, each.severity) for each in found.findings] == [("loss_unbounded", "note")]


def test_other_differences_that_grow_beside_an_error_that_shrinks_are_no_fault() -> None:
    goal, far = torch.linspace(-1, 1, 32), torch.full((32,), 9.0)
    found = overfit(net(1), lambda made: (made[:, 0] - goal).square().mean() - 0.5 * (made[:, 0] - far).square().mean() - 5)
    assert found.verdict == "ok"
