"""Two networks of the usual kinds, each with switches for the mistakes that people make when they write one again."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, WORDS, LENGTH = 32, 4, 50, 12


def rotated(x: Tensor, *, swapped: bool = False) -> Tensor:
    """*x* (batch, heads, positions, size) with a rotary embedding of halves; *swapped*: the halves are exchanged."""
    half = x.size(-1) // 2
    angles = torch.arange(x.size(-2))[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    cos, sin = (torch.cat((held, held), -1).to(x) for held in (angles.cos(), angles.sin()))
    one, other = x[..., :half], x[..., half:]
    turned = torch.cat((other, -one) if swapped else (-other, one), -1)
    return x * cos + turned * sin


class Attention(nn.Module):
    def __init__(self, faults: frozenset[str], rotary: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self._faults, self._rotary = faults, rotary

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self._rotary:
            q, k = (rotated(held, swapped="rotary" in self._faults) for held in (q, k))
        scores = q @ k.mT
        if "scale" not in self._faults:
            scores = scores / math.sqrt(q.size(-1))
        if "mask" not in self._faults:
            scores = scores.masked_fill(torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1), -math.inf)
        mixed = scores.softmax(-1) @ v
        if "heads" in self._faults:
            mixed = mixed[:, [1, 0, *range(2, HEADS)]]
        return self.drop(self.out(mixed.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    def __init__(self, faults: frozenset[str], rotary: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(faults, rotary)
        self.up, self.act, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        self._faults = faults

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        made = self.down(self.act(self.up(self.norm2(x))))
        return made if "residual" in self._faults else x + made


class GPT(nn.Module):
    """A small GPT. *faults* of the second of three blocks, of its attention, or of the positions."""

    def __init__(self, *faults: str, rotary: bool = False) -> None:
        super().__init__()
        held = frozenset(faults)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(LENGTH + 2, WIDTH)
        self.blocks = nn.ModuleList(Block(held if place == 1 else frozenset(), rotary) for place in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self._offset = int("position" in held)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.size(1)) + self._offset)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(*faults: str, rotary: bool = False, like: nn.Module | None = None) -> GPT:
    """A GPT in evaluation mode with *faults*, with the parameters of *like*, or those of a fixed seed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT(*faults, rotary=rotary)
        for parameter in model.parameters():  # far from zero, and no two alike
            nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.3)
    if like is not None:
        model.load_state_dict(like.state_dict())
    return model.eval()


def tokens() -> Tensor:
    """Two sequences of words."""
    return torch.randint(WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def cnn() -> nn.Sequential:
    """A small convolutional network in evaluation mode, its running statistics those of a batch."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[Any] = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))
        for _ in range(20):
            model(torch.randn(8, 3, 12, 12))
    return model.eval()


def images() -> Tensor:
    """Four images."""
    return torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(1))


class ByHand(nn.Module):
    """A recurrent layer as people write it, whose gates are in some order; *more* is added to the second one."""

    def __init__(self, of: nn.LSTM | nn.GRU, order: str, more: float = 0.0) -> None:
        super().__init__()
        self.order, self.more = order, more
        self.given, self.state = nn.Linear(8, 4 * len(order)), nn.Linear(4, 4 * len(order))
        self.given.load_state_dict({"weight": of.weight_ih_l0, "bias": of.bias_ih_l0})
        self.state.load_state_dict({"weight": of.weight_hh_l0, "bias": of.bias_hh_l0})

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), 4)
        made = []
        for step in range(x.size(1)):
            one, other = (held.chunk(len(self.order), -1) for held in (self.given(x[:, step]), self.state(h)))
            gate = {name: (one[place], other[place]) for place, name in enumerate(self.order)}
            sums = {name: mine + theirs + self.more * (name in "fz") for name, (mine, theirs) in gate.items()}
            if "f" in gate:
                c = sums["f"].sigmoid() * c + sums["i"].sigmoid() * sums["g"].tanh()
                h = sums["o"].sigmoid() * c.tanh()
            else:
                new, kept = (gate["n"][0] + sums["r"].sigmoid() * gate["n"][1]).tanh(), sums["z"].sigmoid()
                h = (1 - kept) * new + kept * h
            made.append(h)
        return torch.stack(made, 1)


class Recurrent(nn.Module):
    """A recurrent layer and a head."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x)
        out: Tensor = self.head((made[0] if isinstance(made, tuple) else made)[:, -1])
        return out
