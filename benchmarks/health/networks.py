"""Build the small networks of the trainings; ``blocks_of`` names the inner layers, in which faults are planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS, LENGTH = 16, 16


def mlp(
    depth: int = 4, act: Callable[[], nn.Module] = nn.ReLU, *, width: int = 64, inputs: int = 20, outputs: int = 3
) -> nn.Sequential:
    """Return *depth* hidden layers, each a Linear and an activation, and a Linear."""
    layers: list[nn.Module] = []
    for place in range(depth):
        layers += [nn.Linear(width if place else inputs, width), act()]
    return nn.Sequential(*layers, nn.Linear(width if depth else inputs, outputs))


def cnn(depth: int = 4, act: Callable[[], nn.Module] = nn.ReLU, *, norm: bool = True, channels: int = 12) -> nn.Sequential:
    """Return *depth* blocks of Conv2d, BatchNorm2d (with *norm*) and an activation, and a Linear for 4 classes."""
    layers: list[nn.Module] = []
    for place in range(depth):
        layers.append(nn.Conv2d(channels if place else 3, channels, 3, padding=1, bias=not norm))
        layers += [nn.BatchNorm2d(channels), act()] if norm else [act()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 4))


class Recurrent(nn.Module):
    """A recurrent layer over tokens that predicts the next one."""

    def __init__(self, kind: Callable[..., nn.Module] = nn.LSTM, **settings: Any) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 32), nn.Linear(64, TOKENS)
        self.layer = kind(32, 64, batch_first=True, **settings)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.embedding(tokens))[0])
        return logits


class Attention(nn.Module):
    """Causal self-attention with separate projections; *scaled* divides the scores by the root of the width of a head."""

    def __init__(self, width: int, heads: int = 4, *, scaled: bool = True) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.scaled = heads, scaled

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=None if self.scaled else 1.0)
        y: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y


class Block(nn.Module):
    """A block of a transformer: the norms come first, or are left out, and so are the residual paths."""

    def __init__(self, width: int, *, norm: bool = True, residual: bool = True, scaled: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width) if norm else nn.Identity() for _ in range(2))
        self.attention = Attention(width, scaled=scaled)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.attention(self.norm1(x))) + (x if self.residual else 0.0)
        y: Tensor = self.dropout(self.down(self.act(self.up(self.norm2(x))))) + (x if self.residual else 0.0)
        return y


class GPT(nn.Module):
    """A small decoder over tokens."""

    def __init__(self, width: int = 32, blocks: int = 3, *, std: float = 0.02, final_norm: bool = True, **settings: Any) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, **settings) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width) if final_norm else nn.Identity()
        self.head = nn.Linear(width, TOKENS, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.token(tokens) + self.place.weight[: tokens.shape[1]])))
        return logits


class Residual(nn.Module):
    """Two convolutions with batch norms, beside a 1 x 1 convolution."""

    def __init__(self, channels: int, into: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, into, 3, 1, 1, bias=False), nn.BatchNorm2d(into)
        self.conv2, self.norm2 = nn.Conv2d(into, into, 3, 1, 1, bias=False), nn.BatchNorm2d(into)
        self.relu, self.beside = nn.ReLU(inplace=True), nn.Conv2d(channels, into, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x))))) + self.beside(x))
        return y


def resnet() -> nn.Sequential:
    """Return two residual blocks and a Linear for 4 classes."""
    return nn.Sequential(Residual(3, 8), Residual(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


class UNet(nn.Module):
    """Two levels down and up; gives an image of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.down, self.deep = (nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 8), (8, 16), (16, 16)))
        self.up, self.join, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 1, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for channels in (8, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        wide = functional.silu(self.norms[0](self.into(x)))
        deep = functional.silu(self.deep(functional.silu(self.norms[1](self.down(functional.max_pool2d(wide, 2))))))
        y: Tensor = self.out(functional.silu(self.norms[2](self.join(torch.cat([self.up(deep), wide], 1)))))
        return y


class VAE(nn.Module):
    """A variational autoencoder of vectors; gives the reconstruction, the mean and the logarithm of the variance."""

    def __init__(self, inputs: int = 20) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(64, 4), nn.Linear(64, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, inputs))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(mean + (0.5 * log_variance).exp() * torch.randn_like(mean)), mean, log_variance


class LowRank(nn.Module):
    """A frozen Linear with a trained path of low rank beside it, which begins as zero."""

    def __init__(self, linear: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a, self.b = nn.Linear(linear.in_features, rank, bias=False), nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) + self.b(self.a(x))
        return y


def blocks_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return names and modules of the layers with weights, first to last, without the last one (the head)."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    return layers[:-1]
