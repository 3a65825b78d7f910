"""What the code behind a layer makes up for is no cause, nor is it where the sides part behind it for another reason."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sonde


class Outside(nn.Module):
    """Blocks to whose outputs the code around them adds their inputs, and a connection over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail = nn.Linear(6, 8), nn.Linear(8, 3)
        self.body = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        begun = made = self.head(x)
        for each in self.body:
            made = made + 0.5 * each(made)
        return self.tail(made + begun)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.two(self.one(x).tanh())


class Inside(nn.Module):
    """The same, with blocks that add their inputs themselves."""

    def __init__(self, *, is_whole: bool) -> None:
        super().__init__()
        self.first, self.blocks, self.last, self.is_whole = (
            nn.Linear(6, 8),
            nn.ModuleList([Block(), Block()]),
            nn.Linear(8, 3),
            is_whole,
        )

    def forward(self, x: Tensor) -> Tensor:
        begun = made = self.first(x)
        for each in self.blocks:
            made = each(made)
        return self.last(made + begun if self.is_whole else made)


def both(*, is_whole: bool) -> sonde.types.Comparison:
    torch.manual_seed(0)
    a, b = Outside(), Inside(is_whole=is_whole)
    order = [a.head, *(layer for block in a.body for layer in (block[0], block[2])), a.tail]
    theirs = [b.first, *(layer for block in b.blocks for layer in (block.one, block.two)), b.last]
    for one, other in zip(order, theirs, strict=True):
        other.load_state_dict(one.state_dict())
    return sonde.compare(a, b, torch.randn(16, 6), verbose=False)


def test_blocks_that_add_their_inputs_themselves_are_no_difference() -> None:
    assert both(is_whole=True).ok


def test_a_connection_over_all_blocks_is_told_behind_the_last_of_them() -> None:
    found = both(is_whole=False)
    assert found.culprit is not None
    assert found.cause is not None
    assert str(found.culprit.site) == "tail:input"
    assert found.cause.message.startswith("add in a")
    assert found.cause.message.endswith("and not in b")
