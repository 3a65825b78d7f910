"""Make the models that several benchmarks measure, and the hooks by hand that they are compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = ["Block", "chain", "copies_by_hand", "gpt", "mlp"]


def chain(pairs: int, width: int) -> nn.Sequential:
    """Return *pairs* of a linear layer and a Tanh, one after the other, with the same parameters each time."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(pairs) for layer in (nn.Linear(width, width), nn.Tanh())))


def mlp() -> tuple[nn.Module, Tensor]:
    """Return a model of sixteen leaves, eight linear layers and eight activations, and its input."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(64, 64)


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a normalisation and with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 4, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


def gpt() -> tuple[nn.Module, Tensor]:
    """Return a model of six blocks of width 256, and its input: 4 sequences of 128."""
    return nn.Sequential(*(Block(256) for _ in range(6))), torch.randn(4, 128, 256)


def copies_by_hand(model: nn.Module, sink: list[object]) -> list[RemovableHandle]:
    """Return the handles of hooks that put a copy of each output, and of its gradient, into *sink*."""

    def hook(module: nn.Module, args: tuple, output: Tensor) -> None:
        sink.append(output.detach().clone())
        output.register_hook(lambda gradient: sink.append(gradient.detach().clone()))

    return [module.register_forward_hook(hook) for module in model.modules()]
