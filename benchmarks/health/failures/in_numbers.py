"""Plant operations that make NaN or infinity: forward, backward, and in the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from benchmarks.health.case import Truth, failure, truth
from benchmarks.health.failures.in_rates import FOLLOWS
from benchmarks.health.training import Training, base
from torch import Tensor, nn
from torch.optim import SGD

WITH = (*FOLLOWS, "loss")


class _Operation(nn.Module):
    """Applies a function that goes wrong from a step on."""

    def __init__(self, right: Callable[[Tensor], Tensor], wrong: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.right, self.wrong, self.is_wrong = right, wrong, False

    def forward(self, x: Tensor) -> Tensor:
        return (self.wrong if self.is_wrong else self.right)(x)


def _inserted(kind: str, seed: int, step: int, wrong: Callable[[Tensor], Tensor]) -> tuple[Training, str]:
    """Insert an operation in the middle that is wrong from *step* on; return its name too."""
    training = base(kind, seed)
    operation = _Operation(lambda x: x, wrong)
    if kind in ("mlp", "cnn"):
        layers, middle = list(training.model), 4 if kind == "mlp" else 6
        training.model = nn.Sequential(*layers[:middle], operation, *layers[middle:])
        name = str(middle)
    elif kind == "rnn":
        training.model.layer = nn.Sequential(training.model.layer, _Last(), operation, _Pair())
        name = r"layer\.2"
    else:
        training.model.blocks[1].act = nn.Sequential(nn.GELU(), operation)
        name = r"blocks\.1\.act\.1"
    training.use(SGD, lr=0.05)
    training.clip = math.inf
    training.before.append(lambda now: setattr(operation, "is_wrong", now >= step))
    return training, name


class _Last(nn.Module):
    def forward(self, both: tuple[Tensor, ...]) -> Tensor:
        return both[0]


class _Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x,)


@failure("logarithm of a negative number from step 50 on", "mlp cnn rnn gpt")
def logarithm(kind: str, seed: int) -> tuple[Training, Truth]:
    training, name = _inserted(kind, seed, 50, lambda x: (x - x.mean()).log())
    return training, truth({"not finite": name}, WITH, step=50)


@failure("0 / 0 in a normalisation without eps, at step 70", "mlp gpt")
def division(kind: str, seed: int) -> tuple[Training, Truth]:
    training, name = _inserted(kind, seed, 70, lambda x: (x * 0) / (x * 0).std())
    return training, truth({"not finite": name}, WITH, step=70)


@failure("a root of zero: infinite in the backward pass alone", "mlp cnn")
def root(kind: str, seed: int) -> tuple[Training, Truth]:
    training, name = _inserted(kind, seed, 50, lambda x: (x * x).relu().sub(x * x).sqrt() + x)
    before = rf"{name}|" + "|".join(rf"{place}(\..*)?" for place in range(int(name)))
    return training, truth({"not finite": before}, WITH, step=50)


@failure("a row of attention that is masked whole, from step 60 on", "gpt")
def masked(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    attention = training.model.blocks[1].attention
    attention.forward, whole = None, attention.forward  # a mask by the user's own hand

    def forward(x: Tensor) -> Tensor:
        if not forward.wrong:  # type: ignore[attr-defined]
            return whole(x)
        scores = attention.query(x) @ attention.key(x).transpose(-1, -2)
        scores[:, 3] = -math.inf
        return attention.out(scores.softmax(-1) @ attention.value(x))

    forward.wrong = False  # type: ignore[attr-defined]
    attention.forward = forward
    training.before.append(lambda step: setattr(forward, "wrong", step >= 60))
    return training, truth({"not finite": r"blocks\.1\.attention(\..*)?"}, WITH, step=60)


@failure("a weight that is NaN from step 45 on", "mlp cnn rnn gpt")
def weight(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, parameter = {
        "mlp": ("4", lambda: training.model[4].weight),
        "cnn": ("3", lambda: training.model[3].weight),
        "rnn": ("layer", lambda: training.model.layer.weight_ih_l0),
        "gpt": (r"blocks\.1\.up", lambda: training.model.blocks[1].up.weight),
    }[kind]

    def spoil(step: int) -> None:
        if step == 45:
            with torch.no_grad():
                parameter().view(-1)[3] = math.nan

    training.before.append(spoil)
    return training, truth({"not finite": rf"{name}(\..*)?"}, WITH, step=45, spreads=True)


@failure("a loss by hand: the logarithm of a probability that is zero", "mlp cnn")
def logarithm_of_zero(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    scale = {"value": 1.0}
    training.before.append(lambda step: scale.update(value=1.0 if step < 50 else 1e4))

    def by_hand(logits: Tensor, y: Tensor) -> Tensor:
        return -(logits * scale["value"]).softmax(-1).log()[torch.arange(len(y)), (y + 1) % 3].mean()

    training.loss = by_hand
    return training, truth({"not finite": ""}, (*WITH, "exploding", "spike", "large steps", "growth"), step=50)


@failure("a gradient that becomes infinite after the backward pass, at step 30", "mlp gpt")
def after_backward(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    parameter = training.model[2].weight if kind == "mlp" else training.model.blocks[1].up.weight
    place = r"2(\..*)?" if kind == "mlp" else r"blocks\.1\.up(\..*)?"

    def spoil(step: int) -> None:
        if step == 30 and parameter.grad is not None:
            parameter.grad.view(-1)[0] = math.inf

    training.after_backward.append(spoil)
    return training, truth({"not finite": place}, WITH, step=30)


@failure("a buffer of a batch norm that is negative", "cnn")
def buffer(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    norm = training.model[4]

    def spoil(step: int) -> None:
        if step == 40:
            norm.eval()
            norm.running_var.fill_(-1.0)

    training.before.append(spoil)
    return training, truth({"not finite": r"4(\..*)?"}, WITH, step=40)
