"""Models with attention that do not tell patches of an image or steps of a series apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import sonde


class OfPatches(nn.Module):
    """Attention over the patches of 4 x 4 of an image of 28 x 28, the first of which is a token of the class."""

    def __init__(self, *, has_positions: bool) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(1, 16, 4, 4), nn.Parameter(torch.zeros(1, 1, 16))
        self.positions = nn.Parameter(
            torch.randn(1, 50, 16) if has_positions else torch.zeros(1, 1, 16), requires_grad=has_positions
        )
        self.layer, self.head = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 4)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).mT
        return self.head(self.layer(torch.cat([self.token.expand(len(patches), -1, -1), patches], 1) + self.positions)[:, 0])


class OfSteps(nn.Module):
    """Attention over the steps of a series; the last of them, or their mean, is read."""

    def __init__(self, reads: str, *, has_positions: bool) -> None:
        super().__init__()
        self.reads, self.scale = reads, float(has_positions)
        self.take, self.positions = nn.Linear(3, 16), nn.Parameter(torch.randn(1, 20, 16), requires_grad=has_positions)
        self.layer, self.head = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 4)

    def forward(self, series: Tensor) -> Tensor:
        made = self.layer(self.take(series) + self.positions * self.scale)
        return self.head(made[:, -1] if self.reads == "last" else made.mean(1))


def verdict(model: nn.Module, x: Tensor) -> tuple[str, list[str]]:
    y = torch.arange(len(x)) % 4
    found = sonde.preflight(model, x, lambda logits: nn.functional.cross_entropy(logits, y), checks=["input_used"], verbose=False)
    return found["input_used"].verdict, [each.message for each in found["input_used"].findings]


def test_the_order_of_patches_has_to_say_something() -> None:
    torch.manual_seed(0)
    image = torch.randn(16, 1, 28, 28)
    assert verdict(OfPatches(has_positions=False), image) == ("warn", ["the output does not depend on the order of its patches"])
    assert verdict(OfPatches(has_positions=True), image) == ("ok", [])


@pytest.mark.parametrize("reads", ["last", "mean"])
def test_the_order_of_steps_has_to_say_something_in_a_series(reads: str) -> None:
    torch.manual_seed(0)
    series = torch.randn(16, 20, 3).cumsum(1)
    told = ["the output does not depend on the order of its steps"]
    assert verdict(OfSteps(reads, has_positions=False), series) == ("warn", told)
    assert verdict(OfSteps(reads, has_positions=True), series) == ("ok", [])
    assert verdict(OfSteps(reads, has_positions=False), torch.randn(16, 20, 3)) == ("note", told)  # may be a set
