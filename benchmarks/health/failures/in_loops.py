"""Plant mistakes of the training loop."""

from __future__ import annotations

import torch
from benchmarks.health import networks
from benchmarks.health.case import Truth, failure, hidden, truth
from benchmarks.health.failures.in_rates import DIVERGES, FOLLOWS
from benchmarks.health.training import Training, base
from torch import nn
from torch.optim import SGD, AdamW


@failure("zero_grad forgotten", "mlp rnn gpt")
def zero_grad(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.clears = False
    training.clip = float("inf")
    if kind == "mlp":
        training.use(SGD, lr=0.1)
    training.steps = 200
    return training, truth(DIVERGES, FOLLOWS, step=0, until=200)


@failure("eval() from the beginning on", "mlp cnn gpt")
def evaluation(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model.eval()
    return training, truth(["mode"], [*DIVERGES, *FOLLOWS], step=0)


@failure("train() forgotten after the evaluation at step 50", "mlp cnn gpt")
def train_forgotten(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.before.append(lambda step: training.model.eval() if step == 50 else None)
    return training, truth(["mode"], [*DIVERGES, *FOLLOWS], step=50)


@failure("softmax twice: the model ends with one, the loss has another", "mlp cnn")
def softmax_twice(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model.append(nn.Softmax(-1))
    return training, truth(["loss"], FOLLOWS, step=0)


@failure("gradients of 16 micro-batches are added, not averaged", "mlp gpt")
def added(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.accumulate = 16
    training.scale = 16.0
    training.steps = 60
    return training, hidden("a larger learning rate does the same, and this one trains")


@failure("gradients of 4 micro-batches are cleared after each", "mlp")
def cleared(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.accumulate = 4
    right = training.loss

    def last_counts(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        training.optimizer.zero_grad()
        return right(prediction, y)

    training.loss = last_counts
    return training, hidden("a smaller batch does the same")


@failure("gradients multiplied by a thousand by a hook", "cnn rnn")
def multiplied(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(SGD, lr=0.1)
    training.clip = float("inf")
    for parameter in training.model.parameters():
        parameter.register_hook(lambda gradient: gradient * 1000)
    return training, truth(DIVERGES, FOLLOWS, step=0, until=training.steps)


@failure("gradients set to zero before the optimizer's step", "mlp gpt")
def zeroed(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)

    def clear(step: int) -> None:
        for parameter in training.model.parameters():
            parameter.grad.zero_()

    training.use(SGD, lr=0.1)
    training.after_backward.append(clear)
    return training, truth(["zero gradient", "small steps"], ["loss", "vanishing", "rounding"], step=0)


@failure("batch norm with two samples, and a batch of one class", "cnn")
def tiny_batches(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.spoil = lambda step, x, y: (x[:1].expand(2, -1, -1, -1).contiguous(), y[:1].expand(2).contiguous())
    return training, hidden("batches of one sample are no fault that a number shows; some train well")


@failure("the loss of a part of the output: nothing reaches the other heads", "mlp")
def unused_head(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = networks.mlp(2, outputs=64)
            self.first, self.second = nn.Linear(64, 3), nn.Linear(64, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden_ = self.body(x)
            return torch.stack([self.first(hidden_), self.second(hidden_)], 1)

    training.model = TwoHeads()
    right = training.loss
    training.loss = lambda prediction, y: right(prediction[:, 0], y)
    training.use(AdamW, lr=1e-3)
    place = r"second(\..*)?"
    return training, truth({"zero gradient": place, "small steps": place}, step=0)


@failure("the discriminator wins: the generator gets no gradient", "gan")
def generator_without_gradient(kind: str, seed: int) -> tuple[Training, Truth]:
    generator, discriminator = networks.mlp(2, inputs=4, outputs=2), networks.mlp(2, inputs=2, outputs=1)
    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    optimizer = SGD(generator.parameters(), 0.05)
    critic = AdamW(discriminator.parameters(), 3e-2)
    draw = torch.Generator().manual_seed(seed)

    def train(step: int) -> torch.Tensor:
        true = torch.randn(64, 2, generator=draw) * 0.1 + 40.0
        made = generator(torch.randn(64, 4, generator=draw))
        for _ in range(2):
            critic.zero_grad()
            scores = (
                discriminator(true).sigmoid().clamp(1e-7, 1 - 1e-7),
                discriminator(made.detach()).sigmoid().clamp(1e-7, 1 - 1e-7),
            )
            (-(scores[0].log() + (1 - scores[1]).log()).mean()).backward()
            critic.step()
        optimizer.zero_grad()
        loss = (1 - discriminator(made).sigmoid()).log().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    training = Training(both, optimizer, lambda: (torch.zeros(()), torch.zeros(())), train=train, steps=120)
    return training, truth(["vanishing", "small steps", "zero gradient"], [*DIVERGES, *FOLLOWS], step=0, until=120)
