"""Logits between two numbers that leave no label likely are told; a scale that is large enough, or trained, is no fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde

Y = torch.arange(32) % 4


class Cosines(nn.Module):
    """Cosines between features and a vector of each class, times a number."""

    def __init__(self, scale: float, is_trained: bool = False) -> None:
        super().__init__()
        self.body, self.classes = nn.Linear(6, 16), nn.Parameter(torch.randn(4, 16))
        self.scale = nn.Parameter(torch.tensor(scale)) if is_trained else scale

    def forward(self, x: Tensor) -> Tensor:
        features = functional.normalize(self.body(x).relu(), dim=-1)
        return self.scale * features @ functional.normalize(self.classes, dim=-1).T


class Last(nn.Module):
    """A network, and a function of what it returns."""

    def __init__(self, last: Callable[[Tensor], Tensor], out: int = 4) -> None:
        super().__init__()
        self.body, self.last = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, out)), last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


def of_classes(made: Tensor) -> Tensor:
    return functional.cross_entropy(made, Y)


def of_logs(made: Tensor) -> Tensor:
    return functional.nll_loss(made.log_softmax(-1), Y)


def of_two(made: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(made[:, 0], (Y > 1).float())


def told(model: nn.Module, loss_fn: Callable[[Any], Tensor]) -> list[str]:
    torch.manual_seed(0)
    found = sonde.preflight(model, torch.randn(32, 6), loss_fn, checks=["loss_input"], verbose=False)["loss_input"].findings
    return [each.message.partition(" returns")[0] for each in found if each.rule == "target_beyond"]


@pytest.mark.parametrize("loss_fn", [of_classes, of_logs])
def test_logits_that_stay_small_are_told_by_what_makes_them(loss_fn: Callable[[Tensor], Tensor]) -> None:
    assert told(Cosines(1.0), loss_fn) == ["what the last cosine"]
    assert told(Last(torch.tanh), loss_fn) == ["what the last tanh"]
    assert told(Last(lambda made: functional.normalize(made, dim=-1)), loss_fn) == ["what the last normalisation to length 1"]
    assert told(Last(lambda made: made.clamp(-1, 1)), loss_fn) == ["what the last clamp"]


def test_logits_of_two_kinds_that_stay_small_are_told() -> None:
    assert told(Last(torch.tanh, 1), of_two) == ["what the last tanh"]
    assert told(Last(lambda made: 8 * torch.tanh(made), 1), of_two) == []


@pytest.mark.parametrize("loss_fn", [of_classes, of_logs])
def test_a_scale_that_is_large_or_trained_and_a_layer_behind_are_no_fault(loss_fn: Callable[[Tensor], Tensor]) -> None:
    for model in (Cosines(20.0), Cosines(1.0, is_trained=True), Last(lambda made: 10 * torch.tanh(made))):
        assert told(model, loss_fn) == []
    assert told(Last(lambda made: functional.normalize(made, dim=-1) / 0.05), loss_fn) == []
    assert told(Last(lambda made: made.clamp(-20, 20)), loss_fn) == []
    assert told(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), loss_fn) == []
    assert told(nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), loss_fn) == []


def test_cosines_of_samples_with_each_other_are_no_classes() -> None:
    def pairs(made: Tensor) -> Tensor:
        made = functional.normalize(made, dim=-1)
        return functional.cross_entropy(made[:16] @ made[16:].T / 0.5, torch.arange(16))

    assert told(Last(lambda made: made, 16), pairs) == []


def length_of(made: Tensor) -> Tensor:
    return made.pow(2).sum(-1, keepdim=True).pow(0.5)


@pytest.mark.parametrize("norm", [length_of, lambda made: made.norm(dim=-1, keepdim=True)], ids=["by hand", "of torch"])
def test_one_partner_among_a_queue_of_others_is_no_fault(norm: Callable[[Tensor], Tensor]) -> None:
    class Queue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.others = nn.Linear(6, 16), torch.randn(64, 16)

        def forward(self, x: Tensor, again: Tensor) -> Tensor:
            own, partner = (each / norm(each) for each in (self.body(x), self.body(again)))
            alike = (own * partner.detach()).sum(1, keepdim=True)
            return torch.cat([alike, own @ (self.others / self.others.norm(dim=-1, keepdim=True)).T], 1) / 0.07

    torch.manual_seed(0)
    x = torch.randn(32, 6)
    found = sonde.preflight(
        Queue(),
        (x, x + 0.1),
        lambda made: functional.cross_entropy(made, torch.zeros(32, dtype=torch.long)),
        checks=["labels", "loss_input", "initial_loss"],
        verbose=False,
    )
    assert [each.verdict for each in found.checks if each.verdict != "ok"] in ([], ["unknown"])


def test_a_view_of_an_input_that_requires_a_gradient_is_none_of_the_model() -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(1, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x[:, None]
            x.requires_grad = True  # as for checkpoints of activations
            return self.layer(x).mean(2)

    torch.manual_seed(0)
    found = sonde.preflight(Features(), torch.randn(32, 9), of_classes, checks=["gradients"], verbose=False)["gradients"]
    assert found.verdict == "ok"
