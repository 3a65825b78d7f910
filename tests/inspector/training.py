"""A small model and its training, for tests of what is around the numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD

from sonde.inspector import Inspector


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return model, SGD(model.parameters(), lr=0.1)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, inspector: Inspector | None = None, *, width: int = 4
) -> list[float]:
    """Train; with an inspector, push each loss after its step."""
    losses: list[float] = []
    for _ in range(steps):
        loss: Tensor = model(torch.randn(5, width)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if inspector is not None:
            inspector.push_loss(loss, train=True)
    return losses
