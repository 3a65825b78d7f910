"""Draw what any training has: its optimizer, learning rate, schedule and sizes; and the list of kinds of trainings."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.health import data
from benchmarks.health.training import Training, of_classes
from torch import Tensor, nn
from torch.optim import NAdam, Optimizer, RAdam, RMSprop

Draw = random.Random
Make = Callable[[Draw, int], Training]


@dataclass(frozen=True)
class Kind:
    """A kind of training: what makes one from what is drawn and a seed for its data, and what says that it has learnt.

    Attributes:
        make: makes the training.
        learns: by how much its loss falls at least (0.05); 0: it ends no higher than it began, as that of a density; None: its
            loss says nothing of what was learnt.
        guess: the loss of a guess: a training that ends above it has not learnt.
    """

    make: Make
    learns: float | None = 0.05
    guess: float = math.inf

    def has_learnt(self, losses: list[float]) -> bool:
        """Return whether a training has learnt, by its *losses*; of a few steps, whether they are finite."""
        if len(losses) < 20 or self.learns is None:
            return all(math.isfinite(each) for each in losses)
        early, late = (sum(part) / len(part) for part in (losses[: len(losses) // 10], losses[-len(losses) // 5 :]))
        return late < self.guess and (late <= (1 - self.learns) * early if self.learns else late <= early)


KINDS: dict[str, Kind] = {}
"""The kinds by name."""

ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, lambda: nn.LeakyReLU(0.1))


def kind(learns: float | None = 0.05, guess: float = math.inf) -> Callable[[Make], Make]:
    """List the decorated function as a kind of training, under its name; *learns* and *guess* are those of :class:`Kind`."""

    def listed(make: Make) -> Make:
        KINDS[make.__name__.replace("_", " ")] = Kind(make, learns, guess)
        return make

    return listed


class Muon(Optimizer):
    """Momentum whose updates of matrices are made orthogonal by Newton-Schulz steps (Jordan et al., 2024); SGD for the rest."""

    def __init__(self, held: Any, lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(held, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                kept = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                kept.mul_(group["momentum"]).add_(parameter.grad)
                update = parameter.grad + group["momentum"] * kept
                if parameter.dim() > 1:
                    x = update.flatten(1) / (update.norm() + 1e-7)
                    tall = x.shape[0] > x.shape[1]
                    x = x.T if tall else x
                    for _ in range(5):
                        a = x @ x.T
                        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                    x = x.T if tall else x
                    update = 0.2 * max(x.shape) ** 0.5 * x.reshape(parameter.shape)
                parameter.sub_(group["lr"] * update)


class Lion(Optimizer):
    """The sign of a mean of gradients (Chen et al., 2023)."""

    def __init__(self, held: Any, lr: float = 3e-4) -> None:
        super().__init__(held, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in (each for each in group["params"] if each.grad is not None):
                kept = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                parameter.sub_(group["lr"] * (0.9 * kept + 0.1 * parameter.grad).sign())
                kept.mul_(0.99).add_(parameter.grad, alpha=0.01)


class ScheduleFree(Optimizer):
    """SGD whose parameters lie between the iterate and its mean (Defazio et al., 2024)."""

    def __init__(self, held: Any, lr: float = 0.5, beta: float = 0.9) -> None:
        super().__init__(held, {"lr": lr, "beta": beta})
        self._steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._steps += 1
        for group in self.param_groups:
            for parameter in (each for each in group["params"] if each.grad is not None):
                state = self.state[parameter]
                z, mean = state.setdefault("z", parameter.clone()), state.setdefault("mean", parameter.clone())
                z.sub_(group["lr"] * parameter.grad)
                mean.lerp_(z, 1 / self._steps)
                parameter.copy_(torch.lerp(z, mean, group["beta"]))


def optimized(draw: Draw, training: Training, *, adaptive: bool = False, lasts: int = 0) -> Training:
    """Draw optimizer, learning rate, schedule, clipping and accumulation; *adaptive*: the architecture needs one of Adam's kind.

    The number of steps is drawn, too, where *lasts* is 0.
    """
    usual: list[tuple[Callable[..., Optimizer], float, float, dict[str, Any]]] = [
        (torch.optim.AdamW, 3e-4, 4e-3, {"weight_decay": draw.choice((0.0, 0.01, 0.1))}),
        (torch.optim.Adam, 3e-4, 4e-3, {"betas": (0.9, draw.choice((0.95, 0.99, 0.999)))}),
        (NAdam, 5e-4, 3e-3, {}),
        (RAdam, 1e-3, 5e-3, {}),
        (Lion, 1e-4, 5e-4, {}),
        (RMSprop, 3e-4, 2e-3, {}),
        (Muon, 2e-3, 2e-2, {}),
    ]
    if not adaptive:
        usual += [
            (torch.optim.SGD, 0.02, 0.15, {}),
            (torch.optim.SGD, 5e-3, 4e-2, {"momentum": 0.9, "nesterov": draw.random() < 0.5, "weight_decay": 1e-4}),
            (torch.optim.Adagrad, 5e-3, 2e-2, {}),
            (ScheduleFree, 0.05, 0.4, {}),
        ]
    make, low, high, rest = draw.choice(usual)
    held = [each for each in training.model.parameters() if each.requires_grad]
    training.optimizer = make(held, lr=math.exp(draw.uniform(math.log(low), math.log(high))), **rest)
    usual_steps = draw.choice((3, 8, 25, 40, 60, 60, 80, 100, 120)) if draw.random() < 0.95 else 500
    steps = training.steps = lasts or usual_steps
    warm, period = draw.choice((1, 5, 20)), draw.choice((30, 50))
    training.rate = draw.choice(
        (
            None,
            None,
            lambda step: min(1.0, (step + 1) / warm),
            lambda step: min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))),
            lambda step: 0.5 * (1 + math.cos(math.pi * (step % period) / period)),
            lambda step: 0.1 ** (2 * step // steps),
            lambda step: max(0.0, 1 - step / steps),
        )
    )
    training.clip = draw.choice((math.inf, math.inf, 1.0, 0.5))
    training.accumulate = draw.choice((1, 1, 1, 2))
    if draw.random() < 0.15:
        training.context = lambda: torch.autocast("cpu", torch.bfloat16)
    return training


def made(model: nn.Module, batch: data.Batch, loss: Callable[[Any, Tensor], Tensor] = of_classes) -> Training:
    return Training(model, torch.optim.SGD(model.parameters(), 0.1), batch, loss)


def size(draw: Draw, *sizes: int) -> int:
    return draw.choice(sizes or (4, 16, 64, 128))
