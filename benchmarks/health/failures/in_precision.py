"""Plant faults of half precision: updates lost to rounding, overflow, underflow."""

from __future__ import annotations

import torch
from benchmarks.health import networks
from benchmarks.health.case import Truth, failure, truth
from benchmarks.health.networks import blocks_of
from benchmarks.health.training import Training, base
from torch import nn
from torch.optim import SGD, AdamW


def _in(training: Training, dtype: torch.dtype) -> None:
    """Bring the model and its inputs to *dtype*; the loss is computed in float32."""
    training.model.to(dtype)
    right = training.loss
    training.loss = lambda prediction, y: right(prediction.float(), y)
    if not isinstance(training.model, networks.GPT | networks.Recurrent):
        before = training.spoil
        training.spoil = lambda step, x, y: ((before(step, x, y)[0] if before else x).to(dtype), y)


@failure("updates lost to the rounding of bfloat16", "mlp cnn gpt")
def lost(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    if kind == "gpt":
        training.use(AdamW, lr=2e-6, weight_decay=0.0)
    else:
        training.use(SGD, lr=1e-4)
    _in(training, torch.bfloat16)
    return training, truth(["rounding", "small steps"], ["loss"], step=0)


@failure("overflow of float16: a layer's output passes 65,504", "mlp")
def overflow(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, layer = blocks_of(training.model)[1]
    with torch.no_grad():
        layer.weight.mul_(20_000)
        layer.weight.clamp_(-1e4, 1e4)
    training.spoil = lambda step, x, y: (x * 10, y)
    _in(training, torch.float16)
    expected = {"not finite": rf"{name}(\..*)?", "range": rf"{name}(\..*)?"}
    return training, truth(expected, ["scale", "exploding", "growth", "dead", "loss"], step=0)


@failure("overflow of float16 comes near: outputs double every ten steps", "mlp")
def growing_overflow(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, layer = blocks_of(training.model)[1]
    training.use(SGD, lr=0.0)
    _in(training, torch.float16)
    training.steps = 250

    def grow(step: int) -> None:
        with torch.no_grad():
            if step % 10 == 9:
                layer.weight.mul_(2)

    training.before.append(grow)
    place = rf"{name}(\..*)?"
    return training, truth(
        {"not finite": place, "range": place, "growth": place}, ["scale", "exploding", "dead", "loss", "small steps", "spike"]
    )


@failure("underflow of float16 gradients without a scaler", "mlp cnn gpt")
def underflow(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(SGD, lr=0.1)
    _in(training, torch.float16)
    right = training.loss
    training.loss = lambda prediction, y: right(prediction, y) * 1e-7
    return training, truth(["range", "zero gradient", "vanishing", "small steps"], ["loss", "rounding"], step=0)


@failure("a scaler whose scale never falls: infinite gradients reach the optimizer", "mlp")
def infinite_scale(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(SGD, lr=0.1)
    _in(training, torch.float16)
    training.scale = 2.0**40
    return training, truth(["not finite", "range"], ["loss", "dead", "exploding"], step=0)


@failure("a float16 sum that overflows in a normalisation of the user's own", "mlp")
def own_norm(kind: str, seed: int) -> tuple[Training, Truth]:
    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (x * x).sum(-1, keepdim=True).sqrt()

    training = base(kind, seed)
    layers = list(training.model)
    with torch.no_grad():
        layers[2].weight.mul_(500)
    training.model = nn.Sequential(*layers[:3], Norm(), *layers[3:])
    training.use(SGD, lr=0.1)
    _in(training, torch.float16)
    return training, truth(
        {"dead": "[34]", "zero gradient": r"[0-3].*", "not finite": r"[34]", "range": r"[23]"},
        ["loss", "small steps", "constant", "vanishing", "exploding", "scale"],  # one layer's weights are 500 x as large
        step=0,
    )
