"""Plant faults of step sizes: learning rates, schedules, momentum, decay, clipping."""

from __future__ import annotations

import torch
from benchmarks.health import data, networks
from benchmarks.health.case import Truth, failure, truth
from benchmarks.health.training import Training, base
from torch import nn
from torch.optim import SGD, Adam, AdamW

DIVERGES = ("large steps", "growth", "exploding", "loss", "spike", "not finite")
FOLLOWS = ("dead", "saturated", "constant", "scale", "vanishing", "zero gradient", "rank", "small steps", "range")
"""What a divergence leaves behind."""


@failure("learning rate far too large", "mlp cnn rnn gpt")
def far_too_large(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    settings = {"mlp": (SGD, 30.0), "cnn": (SGD, 30.0), "rnn": (AdamW, 1.0), "gpt": (AdamW, 0.3)}
    optimizer, rate = settings[kind]
    training.use(optimizer, lr=rate)
    return training, truth(DIVERGES, FOLLOWS, step=0, until=training.steps)


@failure("learning rate too large: a GPT at 3e-2", "gpt")
def gpt_too_large(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model = networks.GPT(64, 4)
    training.use(AdamW, lr=3e-2)
    return training, truth(DIVERGES, FOLLOWS, step=0, until=training.steps)


@failure("learning rate at the edge: the loss of a line oscillates and rises", "mlp")
def oscillates(kind: str, seed: int) -> tuple[Training, Truth]:
    model = networks.mlp(0, outputs=1)
    batch = data.few(data.lines(seed))
    x, _ = batch()
    largest = torch.linalg.eigvalsh(
        2 * torch.cat([x, torch.ones(len(x), 1)], 1).T @ torch.cat([x, torch.ones(len(x), 1)], 1) / len(x)
    )[-1]
    training = Training(model, SGD(model.parameters(), 2.04 / float(largest)), batch, nn.functional.mse_loss, steps=250)
    return training, truth(DIVERGES, FOLLOWS, step=0, until=250)


@failure("learning rate of one layer a thousand times too large", "mlp cnn")
def one_layer_too_large(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, layer = networks.blocks_of(training.model)[1]
    others = [each for each in training.model.parameters() if all(each is not own for own in layer.parameters())]
    training.optimizer = AdamW([{"params": others}, {"params": list(layer.parameters()), "lr": 1.0}], lr=1e-3)
    place = rf"{name}(\..*)?"
    return training, truth({"large steps": place, "growth": place}, (*DIVERGES, *FOLLOWS), step=0, until=20)


@failure("learning rate far too small", "mlp cnn rnn gpt")
def too_small(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    for group in training.optimizer.param_groups:
        group["lr"] = 1e-8
    return training, truth(["small steps", "loss"], ["rounding"], step=0)


@failure("learning rate zero from step 60 on: the schedule has ended", "mlp gpt")
def schedule_has_ended(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.rate = lambda step: 1.0 if step < 60 else 0.0
    return training, truth(["small steps"], ["loss", "rounding"], step=60)


@failure("schedule jumps: the learning rate is a thousand times too large for steps 80 to 82", "mlp cnn gpt")
def jump(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.rate = lambda step: 1000.0 if 80 <= step < 83 else 1.0
    return training, truth(DIVERGES, FOLLOWS, step=80, until=82)


@failure("warm-up that never ends: the learning rate doubles every 8 steps", "mlp gpt")
def warmup_without_end(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.rate = lambda step: 2.0 ** (step / 8)
    return training, truth(DIVERGES, FOLLOWS, step=8, until=training.steps)


@failure("momentum 0.999 with an undiminished learning rate", "mlp cnn")
def momentum(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(SGD, lr=0.5, momentum=0.999)
    return training, truth(DIVERGES, FOLLOWS, step=0, until=training.steps)


@failure("second beta of Adam 0.1, learning rate 0.05", "gpt")
def betas(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(Adam, lr=0.05, betas=(0.9, 0.1))
    return training, truth(DIVERGES, FOLLOWS, step=0, until=training.steps)


@failure("weight decay so large that weights vanish", "mlp cnn gpt")
def decay(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(AdamW, lr=1e-2, weight_decay=60.0)
    expected = ("growth", "vanishing", "loss", "large steps", "constant", "scale")
    return training, truth(expected, (*FOLLOWS, "exploding", "spike"), step=0, until=training.steps)


@failure("gradients clipped to a norm of 1e-6", "mlp cnn")
def clipped_away(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(SGD, lr=0.1)
    training.clip = 1e-6
    return training, truth(["small steps", "loss"], ["rounding", "vanishing"], step=0)


@failure("eps of Adam 1e5: no step moves anything", "mlp rnn gpt")
def large_eps(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(Adam, lr=1e-3, eps=1e5)
    return training, truth(["small steps", "loss"], ["rounding"], step=0)


@failure("steps of a reward without bound: the sign of the loss is wrong", "mlp cnn rnn gpt")
def sign(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    right = training.loss
    training.loss = lambda prediction, y: -right(prediction, y)
    training.steps = 250
    return training, truth(DIVERGES, FOLLOWS, step=0, until=training.steps)


@failure("loss summed over the batch, with the learning rate of its mean", "mlp cnn")
def summed(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.loss = lambda prediction, y: nn.functional.cross_entropy(prediction, y, reduction="sum")
    if kind == "cnn":
        training.use(SGD, lr=0.5, momentum=0.9)
    return training, truth(DIVERGES, FOLLOWS, step=0, until=training.steps)


@failure("learning rate below zero", "mlp rnn")
def below_zero(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    for group in training.optimizer.param_groups:
        group["lr"] *= -1
    return training, truth(["loss"], (*DIVERGES, *FOLLOWS), step=0, until=training.steps)


@failure("momentum 0.9999", "mlp")
def long_momentum(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(SGD, lr=0.1, momentum=0.9999)
    training.steps = 200
    return training, truth(DIVERGES, FOLLOWS, step=0, until=training.steps)


@failure("binary cross-entropy with the wrong sign", "mlp")
def binary_sign(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model = networks.mlp(outputs=1)
    training.use(SGD, lr=0.1)
    training.loss = lambda out, y: -nn.functional.binary_cross_entropy_with_logits(out[:, 0], (y == 0).float())
    return training, truth(DIVERGES, FOLLOWS, step=0, until=training.steps)
