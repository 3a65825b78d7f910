"""Plant faults in the data."""

from __future__ import annotations

import torch
from benchmarks.health import data
from benchmarks.health.case import Truth, failure, hidden, truth
from benchmarks.health.failures.in_rates import FOLLOWS
from benchmarks.health.training import Training, base
from torch import nn
from torch.optim import AdamW

FIRST = {"mlp": r"0(\..*)?", "cnn": r"0(\..*)?"}


@failure("a NaN in the data at step 50", "mlp cnn")
def nan(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)

    def spoil(step: int, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if step == 50:
            x = x.clone()
            x.view(-1)[7] = float("nan")
        return x, y

    training.spoil = spoil
    return training, truth({"not finite": f"({FIRST[kind]})?"}, FOLLOWS, step=50)


@failure("one batch of strange data at step 100: a thousand times larger", "mlp cnn")
def strange_batch(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(AdamW, lr=1e-3)
    training.steps = 130
    training.spoil = lambda step, x, y: (x * 1000 if step == 100 else x, y)
    return training, truth({"spike": "", "exploding": "", "growth": ""}, [*FOLLOWS, "large steps", "loss"], step=100)


@failure("one batch of strange data at step 700: a thousand times larger", "mlp")
def late_strange_batch(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(AdamW, lr=1e-3)
    training.steps = 740
    training.spoil = lambda step, x, y: (x * 1000 if step == 700 else x, y)
    return training, truth({"spike": "", "exploding": "", "growth": ""}, [*FOLLOWS, "large steps", "loss"], step=700)


@failure("one batch with wrong labels at step 100, after the training has converged", "mlp")
def wrong_labels_once(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.steps = 130
    training.spoil = lambda step, x, y: (x, (y + 1) % 3 if step == 100 else y)
    return training, truth({"spike": "", "exploding": ""}, [*FOLLOWS, "large steps", "loss", "growth"], step=100)


@failure("labels shuffled", "mlp cnn gpt")
def shuffled(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    generator = torch.Generator().manual_seed(seed)

    def spoil(step: int, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y.reshape(-1)[torch.randperm(y.numel(), generator=generator)].view(y.shape)

    training.spoil = spoil
    training.steps = 200
    return training, truth(["loss"], step=0, until=200)


@failure("every input is the same: the loader returns zeros", "mlp cnn")
def zeros(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.spoil = lambda step, x, y: (torch.zeros_like(x), y)
    expected = {"loss": "", "constant": "", "zero gradient": FIRST[kind], "dead": "", "rank": ""}
    return training, truth(expected, ["vanishing", "small steps", "exploding"], step=0, until=200)


@failure("tokens all padding", "gpt rnn")
def padding(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.steps = 160
    training.spoil = lambda step, x, y: (torch.zeros_like(x), y)
    return training, truth({"loss": "", "rank": "", "constant": ""}, ["vanishing", "small steps"], step=0, until=200)


@failure("overfitting: the same 32 samples again and again", "mlp cnn")
def overfitting(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    fresh = training.batch
    x, _ = fresh()
    classes = 3 if kind == "mlp" else 4
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (len(x),), generator=generator)
    training.batch = lambda: (x[:32], labels[:32])
    training.validation = fresh
    training.use(AdamW, lr=3e-3)
    training.steps = 200
    also = ["loss", "vanishing", "small steps", "zero gradient", "constant"]  # what goes in is the same in each step
    return training, truth(["overfitting"], also)


@failure("overfitting: few sequences of a Markov chain", "gpt")
def overfitting_text(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.validation = data.text(seed, 64)
    training.batch = data.few(data.text(seed, 4), 2)
    training.use(AdamW, lr=3e-3)
    training.steps = 200
    return training, truth(["overfitting"], ["loss", "vanishing", "small steps", "zero gradient"])


@failure("two classes have one label", "mlp")
def joined_labels(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.spoil = lambda step, x, y: (x, y.clamp(max=1))
    return training, hidden("the wrong task is learnt well")


@failure("regression towards a constant: the target is a column of zeros", "mlp")
def empty_target(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model[-1] = nn.Linear(64, 1)
    training.use(AdamW, lr=1e-3)
    training.loss = lambda prediction, y: nn.functional.mse_loss(prediction[:, 0], torch.zeros(len(prediction)))
    return training, hidden("the wrong task is learnt well")
