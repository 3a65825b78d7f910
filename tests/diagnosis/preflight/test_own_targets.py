"""Targets that a model makes itself: nothing where they are all there is, and as they are in words else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde


def net(out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, out))


def judged(model: nn.Module, batch: Any, loss_fn: Callable[[Any], Tensor]) -> Any:
    torch.manual_seed(0)
    return sonde.preflight(model, batch, loss_fn, checks=["targets_apart"], verbose=False)["targets_apart"]


OWN: dict[str, Callable[[Tensor], Tensor]] = {
    "the largest": lambda made: functional.mse_loss(made.gather(1, (torch.arange(32) % 4)[:, None])[:, 0], made.amax(1).detach()),
    "a column": lambda made: functional.l1_loss(made[:, 0], made[:, 1].detach()),
    "columns turned round": lambda made: functional.huber_loss(made, made.flip(1).detach()),
}


@pytest.mark.parametrize("name", OWN)
def test_a_loss_of_outputs_and_outputs_of_the_same_sample_is_told(name: str) -> None:
    found = judged(net(4), torch.randn(32, 6), OWN[name])
    assert [(each.rule, each.severity) for each in found.findings] == [("target_predicted", "warn")]


def test_own_outputs_of_the_next_state_and_a_term_of_them_are_no_fault() -> None:
    rewards, goal = torch.randn(16), torch.randn(32, 4)
    found = judged(
        net(4), torch.randn(32, 6), lambda made: functional.mse_loss(made[:16, 0], rewards + 0.9 * made[16:].amax(1).detach())
    )
    words = "the targets are made by the model itself, and change with its parameters"
    assert (found.verdict, found.words) == ("ok", words)
    both = judged(
        net(4),
        torch.randn(32, 6),
        lambda made: functional.mse_loss(made, goal) + 0.1 * functional.mse_loss(made[:, 0], made[:, 1].detach()),
    )
    assert (both.verdict, both.words) == ("ok", f"{words}, in 1 of 2 calls")


def test_a_teacher_and_targets_that_are_drawn_are_said_as_they_are() -> None:
    class Taught(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = net(4)
            self.teacher = copy.deepcopy(self.own).requires_grad_(False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.own(x), self.teacher(x + 0.1)

    found = judged(Taught(), torch.randn(32, 6), lambda made: functional.mse_loss(*made))
    assert (found.verdict, found.words) == ("ok", "the targets are made by the model itself, and change with its parameters")
    generator = torch.Generator().manual_seed(0)
    drawn = judged(net(4), torch.randn(32, 6), lambda made: functional.mse_loss(made, torch.randn(32, 4, generator=generator)))
    assert (drawn.verdict, drawn.words) == ("ok", "the targets are neither inputs nor predictions")


def test_own_classes_beside_labels_that_are_given_are_no_fault() -> None:
    def loss_fn(made: Tensor) -> Tensor:
        own = functional.cross_entropy(made[16:], made[16:].detach().argmax(1))
        return functional.cross_entropy(made[:16], torch.arange(16) % 4) + 0.1 * own

    found = judged(net(4), torch.randn(32, 6), loss_fn)
    assert (found.verdict, found.words.partition(", in ")[2]) == ("ok", "1 of 2 calls")
