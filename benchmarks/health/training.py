"""Train one small network under ``sonde.watch``, with the places at which a fault can be planted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.health import data, networks
from benchmarks.health.data import Batch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sonde.inspector import Inspector, watch


def of_classes(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy, of sequences too."""
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


@dataclass
class Training:
    """A model and its loop.

    Attributes:
        model, optimizer, batch, loss, steps: as in any loop.
        clip: the limit of the gradient norm.
        rate: the factor of the learning rate at a step.
        accumulate: micro-batches of a step; the loss is divided by their number.
        context: of the forward pass, as autocast.
        spoil: changes the input and the target of a step.
        before: is called as a step begins, in the order of the list.
        after_backward: is called between backward pass and optimizer.
        clears: whether the gradients are set to None before a step.
        scale: a factor on the loss, without a scaler.
        scaler: a GradScaler.
        validation: batches whose loss is pushed as the validation loss, every tenth step.
        train: a whole step in place of the usual one, for trainings of several losses: returns the loss.
        lenses: what is recorded beside the default lenses.
    """

    model: nn.Module
    optimizer: Optimizer
    batch: Batch
    loss: Callable[[Any, Tensor], Tensor] = of_classes
    steps: int = 120
    clip: float = math.inf
    rate: Callable[[int], float] | None = None
    accumulate: int = 1
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    spoil: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    before: list[Callable[[int], object]] = field(default_factory=list)
    after_backward: list[Callable[[int], object]] = field(default_factory=list)
    clears: bool = True
    scale: float = 1.0
    scaler: Any = None
    validation: Batch | None = None
    train: Callable[[int], Tensor] | None = None
    lenses: Sequence[Any] = ()

    def use(self, kind: Callable[..., Optimizer], *, without: Iterable[nn.Parameter] = (), **settings: Any) -> None:
        """Make the optimizer anew, over all parameters but those of *without*."""
        left = {id(parameter) for parameter in without}
        self.optimizer = kind([each for each in self.model.parameters() if id(each) not in left], **settings)


def run(training: Training, folders: Mapping[int, str | Path]) -> list[Inspector]:
    """Train once under one inspector for each interval of logged steps; return the inspectors.

    Args:
        training: a model and its loop.
        folders: by interval where the run is written; ``"memory"`` keeps it in memory.
    """
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        lenses = [*default_lenses(), *training.lenses] if training.lenses else None
        inspectors = [
            stack.enter_context(watch(training.model, every=every, to=to, verbose=False, scaler=training.scaler, lenses=lenses))
            for every, to in folders.items()
        ]
        _loop(training, inspectors)
    return inspectors


def default_lenses() -> list[Any]:
    """Return the lenses that ``watch`` has by default."""
    from sonde import lens

    return [lens.moments(), lens.OutputActivation()]


def _loop(training: Training, inspectors: Sequence[Inspector]) -> None:
    optimizer = training.optimizer
    schedule = LambdaLR(optimizer, training.rate) if training.rate is not None else None
    for step in range(training.steps):
        for action in training.before:
            action(step)
        loss = _step(training, step) if training.train is None else training.train(step)
        if schedule is not None:
            schedule.step()
        for inspector in inspectors:
            inspector.push_loss(loss.detach(), train=True)
        if training.validation is not None and step % 10 == 9:
            was = training.model.training
            training.model.eval()
            with torch.no_grad():
                x, y = training.validation()
                held_out = training.loss(training.model(x), y)
            training.model.train(was)
            for inspector in inspectors:
                inspector.push_loss(held_out, train=False)


def _step(training: Training, step: int) -> Tensor:
    optimizer, scaler = training.optimizer, training.scaler
    if training.clears:
        optimizer.zero_grad()
    total = torch.zeros(())
    for _ in range(training.accumulate):
        x, y = training.batch()
        if training.spoil is not None:
            x, y = training.spoil(step, x, y)
        with training.context():
            loss = training.loss(training.model(x), y) / training.accumulate
        total += loss.detach().float()
        loss = loss * training.scale
        if loss.requires_grad:
            (loss if scaler is None else scaler.scale(loss)).backward()
    for action in training.after_backward:
        action(step)
    if training.clip < math.inf:
        if scaler is not None:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(training.model.parameters(), training.clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return total


def base(kind: str, seed: int) -> Training:
    """Return a healthy training of a kind of network: ``mlp``, ``cnn``, ``rnn`` (an LSTM) or ``gpt``."""
    if kind == "mlp":
        model: nn.Module = networks.mlp()
        return Training(model, SGD(model.parameters(), 0.1), data.blobs(seed))
    if kind == "cnn":
        model = networks.cnn()
        return Training(model, SGD(model.parameters(), 0.05, momentum=0.9), data.images(seed))
    if kind == "rnn":
        model = networks.Recurrent()
        return Training(model, AdamW(model.parameters(), 3e-3), data.text(seed), clip=1.0)
    model = networks.GPT()
    return Training(model, AdamW(model.parameters(), 1e-3), data.text(seed))
