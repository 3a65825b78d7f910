"""Small trainings of many kinds: healthy ones, and ones that are ill in one way."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, LRScheduler

from sonde.inspector import Inspector, watch

Batch = Callable[[], tuple[Tensor, Tensor]]


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batch: Batch,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    *,
    every: int = 1,
    schedule: LRScheduler | None = None,
    clip: float = math.inf,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    spoil: Callable[[int, Tensor], Tensor] = lambda step, x: x,
) -> Inspector:
    with watch(model, optimizer, every=every, to="memory", verbose=False, strict=True, bad_steps=None) as inspector:
        for step in range(steps):
            x, y = batch()
            with context():
                loss = loss_fn(model(spoil(step, x)), y)
            optimizer.zero_grad()
            loss.backward()
            if clip < math.inf:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            inspector.push_loss(loss, train=True)
    return inspector


def of_classes(logits: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def blobs(size: int = 64) -> Batch:
    generator = torch.Generator().manual_seed(1)
    centers = torch.randn(3, 20, generator=generator) * 1.5

    def batch() -> tuple[Tensor, Tensor]:
        y = torch.randint(3, (size,), generator=generator)
        return centers[y] + torch.randn(size, 20, generator=generator), y

    return batch


def text() -> Batch:
    """Sequences of a Markov chain."""
    generator = torch.Generator().manual_seed(1)
    chances = torch.softmax(torch.randn(16, 16, generator=generator) * 2, 1)

    def batch() -> tuple[Tensor, Tensor]:
        tokens = [torch.randint(16, (8,), generator=generator)]
        for _ in range(16):
            tokens.append(torch.multinomial(chances[tokens[-1]], 1, generator=generator)[:, 0])
        whole = torch.stack(tokens, 1)
        return whole[:, :-1], whole[:, 1:]

    return batch


def images() -> Batch:
    generator = torch.Generator().manual_seed(1)
    centers = torch.randn(4, 3, 8, 8, generator=generator)

    def batch() -> tuple[Tensor, Tensor]:
        y = torch.randint(4, (16,), generator=generator)
        return centers[y] + torch.randn(16, 3, 8, 8, generator=generator), y

    return batch


def mlp(depth: int = 4, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    hidden = [layer for place in range(depth) for layer in (nn.Linear(64 if place else 20, 64), act())]
    return nn.Sequential(*hidden, nn.Linear(64, 3))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.act, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        y: Tensor = x + self.down(self.act(self.up(self.norm2(x))))
        return y


class GPT(nn.Module):
    def __init__(self, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(16, width), nn.Embedding(16, width)
        self.blocks = nn.Sequential(*(Attention(width) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.token(tokens) + self.place.weight)))
        return logits


class Residual(nn.Module):
    def __init__(self, channels: int, into: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, into, 3, 1, 1, bias=False), nn.BatchNorm2d(into)
        self.conv2, self.norm2 = nn.Conv2d(into, into, 3, 1, 1, bias=False), nn.BatchNorm2d(into)
        self.relu, self.past = nn.ReLU(inplace=True), nn.Conv2d(channels, into, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x))))) + self.past(x))
        return y


def resnet() -> nn.Sequential:
    return nn.Sequential(Residual(3, 8), Residual(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **settings: Any) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 32), nn.Linear(64, 16)
        self.layer = kind(32, 64, batch_first=True, **settings)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.embedding(tokens))[0])
        return logits


def warmup(optimizer: Optimizer, steps: int) -> LambdaLR:
    """A linear warmup, then half a cosine."""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))


def of_gpt(lr: float, steps: int = 80, *, width: int = 32, blocks: int = 3, **settings: Any) -> Inspector:
    model = GPT(width, blocks)
    return train(model, AdamW(model.parameters(), lr), text(), of_classes, steps, **settings)


def of_mlp(optimizer: Callable[..., Optimizer], lr: float, steps: int = 150, size: int = 64, **settings: Any) -> Inspector:
    model = mlp()
    return train(model, optimizer(model.parameters(), lr), blobs(size), of_classes, steps, **settings)


def gpt_with_warmup() -> Inspector:
    model = GPT()
    optimizer = AdamW(model.parameters(), 2e-3)
    return train(model, optimizer, text(), of_classes, 100, schedule=warmup(optimizer, 100))


def resnet_with_momentum() -> Inspector:
    model = resnet()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    return train(model, optimizer, images(), of_classes, 80, schedule=warmup(optimizer, 80))


def restarts() -> Inspector:
    """A learning rate that begins anew a hundredfold, as in SGDR."""
    model = mlp(act=nn.Tanh)
    optimizer = SGD(model.parameters(), 0.1)
    schedule = CosineAnnealingWarmRestarts(optimizer, 70, eta_min=1e-3)
    return train(model, optimizer, blobs(), of_classes, 220, schedule=schedule)


def lstm() -> Inspector:
    model = Recurrent(nn.LSTM)
    return train(model, AdamW(model.parameters(), 3e-3), text(), of_classes, 100, clip=1.0)


def rnn() -> Inspector:
    model = Recurrent(nn.RNN)
    return train(model, AdamW(model.parameters(), 1e-3), text(), of_classes, 80)


def tuned() -> Inspector:
    """A trained network with a new head of zeros."""
    model, batch = mlp(), blobs()
    optimizer = AdamW(model.parameters(), 1e-3)
    for _ in range(100):
        x, y = batch()
        optimizer.zero_grad()
        of_classes(model(x), y).backward()
        optimizer.step()
    nn.init.zeros_(model[8].weight)  # type: ignore[arg-type]  # a Linear
    return train(model, AdamW(model.parameters(), 2e-4), batch, of_classes, 150)


def half() -> Inspector:
    return of_gpt(1e-3, 50, context=lambda: torch.autocast("cpu", torch.bfloat16))


def regression() -> Inspector:
    """Towards targets of size 100."""
    model, generator = nn.Sequential(*list(mlp())[:-1], nn.Linear(64, 1)), torch.Generator().manual_seed(1)
    weight = torch.randn(20, 1, generator=generator) * 25

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(64, 20, generator=generator)
        return x, x @ weight

    return train(model, AdamW(model.parameters(), 1e-3), batch, functional.mse_loss, 300)


HEALTHY: dict[str, Callable[[], Inspector]] = {
    "mlp, SGD": lambda: of_mlp(SGD, 0.1),
    "mlp, AdamW": lambda: of_mlp(AdamW, 1e-3),
    "mlp, batches of 2": lambda: of_mlp(AdamW, 1e-3, 300, 2),
    "mlp, batches of 4, momentum": lambda: of_mlp(lambda held, lr: SGD(held, lr, momentum=0.9), 0.02, 300, 4),
    "gpt": lambda: of_gpt(1e-3),
    "gpt, every 10th step": lambda: of_gpt(1e-3, every=10),
    "gpt, warmup and cosine": gpt_with_warmup,
    "gpt, bfloat16": half,
    "resnet, momentum": resnet_with_momentum,
    "restarts of the learning rate": restarts,
    "lstm, clipped": lstm,
    "rnn": rnn,
    "from a trained network": tuned,
    "regression towards large targets": regression,
}


def gpt_too_fast(every: int = 1) -> Inspector:
    return of_gpt(3e-2, 50, width=64, blocks=4, every=every)


def burst() -> Inspector:
    """Three steps whose learning rate is sixty times too high."""
    model = GPT()
    optimizer = AdamW(model.parameters(), 1e-3)
    schedule = LambdaLR(optimizer, lambda step: 60.0 if 100 <= step < 103 else 1.0)
    return train(model, optimizer, text(), of_classes, 130, schedule=schedule)


def strange_batch() -> Inspector:
    return of_mlp(AdamW, 1e-3, 60, spoil=lambda step, x: x * 1000 if step == 40 else x)


def unscaled() -> Inspector:
    """Ten layers without normalisation whose weights are too large."""
    model = mlp(10)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.4)
    return train(model, AdamW(model.parameters(), 1e-3), blobs(), of_classes, 20)


def exploding_rnn() -> Inspector:
    model = Recurrent(nn.RNN, nonlinearity="relu")
    nn.init.orthogonal_(model.layer.weight_hh_l0, 2.5)  # type: ignore[arg-type]  # a parameter
    return train(model, SGD(model.parameters(), 0.1), text(), of_classes, 20)


def dying() -> Inspector:
    """One step of a bias far below zero; every unit of the second layer is silent from then on."""
    model = mlp()

    def batch_of(step: int, x: Tensor) -> Tensor:
        if step == 30:
            nn.init.constant_(model[2].bias, -50.0)  # type: ignore[arg-type]  # a Linear
        return x

    return train(model, SGD(model.parameters(), 0.05), blobs(), of_classes, 80, spoil=batch_of)
