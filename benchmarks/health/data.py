"""Make the batches of the trainings: each is drawn anew from a distribution that the seed fixes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.health.networks import LENGTH, TOKENS
from torch import Tensor

Batch = Callable[[], tuple[Tensor, Tensor]]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + seed)


def blobs(seed: int, size: int = 64) -> Batch:
    """Vectors of 20 numbers around one of three centers, and the number of the center."""
    generator = _generator(seed)
    centers = torch.randn(3, 20, generator=generator) * 1.5

    def batch() -> tuple[Tensor, Tensor]:
        y = torch.randint(3, (size,), generator=generator)
        return centers[y] + torch.randn(size, 20, generator=generator), y

    return batch


def images(seed: int, size: int = 16, *, masks: bool = False) -> Batch:
    """Images of 3 x 8 x 8 around one of four, and the number of that one; or, with *masks*, where the image is bright."""
    generator = _generator(seed)
    centers = torch.randn(4, 3, 8, 8, generator=generator)

    def batch() -> tuple[Tensor, Tensor]:
        y = torch.randint(4, (size,), generator=generator)
        x = centers[y] + torch.randn(size, 3, 8, 8, generator=generator)
        return x, (centers[y].mean(1, keepdim=True) > 0).float() if masks else y

    return batch


def text(seed: int, size: int = 8) -> Batch:
    """Sequences of a Markov chain, and the same moved by one token."""
    generator = _generator(seed)
    chances = torch.softmax(torch.randn(TOKENS, TOKENS, generator=generator) * 2, 1)

    def batch() -> tuple[Tensor, Tensor]:
        tokens = [torch.randint(TOKENS, (size,), generator=generator)]
        for _ in range(LENGTH):
            tokens.append(torch.multinomial(chances[tokens[-1]], 1, generator=generator)[:, 0])
        whole = torch.stack(tokens, 1)
        return whole[:, :-1], whole[:, 1:]

    return batch


def lines(seed: int, size: int = 64, *, scale: float = 1.0) -> Batch:
    """Vectors of 20 numbers, and a linear function of them whose values have the size *scale*."""
    generator = _generator(seed)
    weight = torch.randn(20, 1, generator=generator) * scale / 20**0.5

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(size, 20, generator=generator)
        return x, x @ weight

    return batch


def few(batch: Batch, batches: int = 1) -> Batch:
    """Give the same *batches* again and again: data that can be learnt by heart."""
    kept = [batch() for _ in range(batches)]
    count = iter(range(10**9))
    return lambda: kept[next(count) % batches]
