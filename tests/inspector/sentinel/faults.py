"""Small models that make a bad value at a step of the caller's choice, and a loop that trains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import sonde
from sonde import lens

STEPS, BAD = 40, 37


class Planted(nn.Module):
    """Two linear layers with *fault* between them; *fault* is given the batch's own switch, which is on in one step."""

    def __init__(self, fault: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 8), nn.Linear(8, 2)
        self.fault = Fault(fault)

    def forward(self, x: Tensor, switch: Tensor) -> Tensor:
        return self.after(self.fault(self.before(x), switch))


class Fault(nn.Module):
    """A layer that calls a function."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, switch: Tensor) -> Tensor:
        return self.function(x, switch)


def batch(step: int, bad: int = BAD) -> dict[str, Tensor]:
    """Return a batch that is a function of the step alone."""
    made = torch.Generator().manual_seed(step)
    return {"x": torch.rand(6, 4, generator=made), "switch": torch.tensor(float(step == bad))}


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range = range(STEPS),
    *,
    loss_fn: Callable[[Any], Tensor] = lambda output: output.square().mean(),
) -> None:
    for step in steps:
        loss = loss_fn(model(**batch(step)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def watched(model: nn.Module, optimizer: torch.optim.Optimizer, to: Any = "memory", **options: Any) -> sonde.Inspector:
    return sonde.watch(model, optimizer, every=10, to=to, verbose=False, **({"lenses": lens.moments()} | options))


def trained(steps: int, *, watch: bool, before_end: Callable[[], object] = lambda: None, **options: Any) -> list[Tensor]:
    """Return parameters, buffers and the next random numbers after a training with a normalisation and dropout.

    *before_end* is called after the last step, while the model is still watched.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    inspector = watched(model, optimizer, **options) if watch else None
    for step in range(steps):
        loss = model(batch(step)["x"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    before_end()
    if inspector is not None:
        assert inspector.run.last_step > 0
        inspector.detach()
    return [*model.state_dict().values(), torch.rand(3)]
