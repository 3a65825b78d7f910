"""Plant faults of scale: initialisation, depth without normalisation, attention scores."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.health import data, networks
from benchmarks.health.case import Truth, failure, truth
from benchmarks.health.failures.in_rates import DIVERGES, FOLLOWS
from benchmarks.health.networks import blocks_of
from benchmarks.health.training import Training, base
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from sonde import lens

SMALL = ("loss", "small steps", "constant", "zero gradient", "rounding", "exploding")
"""What follows where gradients vanish: those of the last layers are huge beside the others, too."""
LARGE = (*DIVERGES, *FOLLOWS)


def _first(model: nn.Module, count: int) -> str:
    """Return an expression for the first *count* layers with weights, their parameters, and the embeddings before them."""
    names = [name for name, _ in blocks_of(model)][:count]
    names += [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    return "|".join(rf"{name}(\..*)?" for name in names)


def _deep(kind: str, act: Callable[[], nn.Module], depth: int, seed: int) -> Training:
    training = base(kind, seed)
    training.model = networks.mlp(depth, act) if kind == "mlp" else networks.cnn(depth, act, norm=False)
    training.use(SGD, lr=0.1)
    return training


@failure("vanishing gradients: ten layers with sigmoid", "mlp cnn")
def sigmoids(kind: str, seed: int) -> tuple[Training, Truth]:
    training = _deep(kind, nn.Sigmoid, 10, seed)
    return training, truth({"vanishing": _first(training.model, 5)}, (*SMALL, "rank"), step=0)


@failure("vanishing gradients: initial weights ten times too small", "mlp cnn")
def small_weights(kind: str, seed: int) -> tuple[Training, Truth]:
    training = _deep(kind, nn.Tanh, 8, seed)
    with torch.no_grad():
        for _, layer in blocks_of(training.model):
            layer.weight.mul_(0.1)
    expected = {"vanishing": "", "constant": "", "scale": "", "loss": ""}
    return training, truth(expected, (*SMALL, "rank"), step=0)


@failure("vanishing gradients: a GPT of eight blocks with sigmoids, and no residual path", "gpt")
def no_residual(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    model = training.model = networks.GPT(32, 8, residual=False, norm=False)
    for block in model.blocks:
        block.act = nn.Sigmoid()
    training.use(AdamW, lr=1e-3)
    expected = {"vanishing": "", "constant": "", "scale": "", "loss": "", "zero gradient": ""}
    return training, truth(expected, (*SMALL, "rank", "large steps", "growth"), step=0)


@failure("exploding: initial weights far too large, and no normalisation", "mlp cnn")
def large_weights(kind: str, seed: int) -> tuple[Training, Truth]:
    training = _deep(kind, nn.ReLU, 10, seed)
    with torch.no_grad():
        for _, layer in blocks_of(training.model):
            layer.weight.normal_(std=6.0 / layer.weight[0].numel() ** 0.5)
    training.use(AdamW, lr=1e-3)
    return training, truth({"scale": "", "exploding": ""}, LARGE, step=0)


@failure("exploding: a recurrent layer with ReLU whose recurrent weights are too large", "rnn")
def recurrent(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    model = training.model = networks.Recurrent(nn.RNN, nonlinearity="relu")
    nn.init.orthogonal_(model.layer.weight_hh_l0, 2.5)
    training.use(SGD, lr=0.1)
    training.clip = float("inf")
    place = r"layer(\..*)?"
    return training, truth(
        {"scale": place, "exploding": place, "growth": place, "not finite": "", "spike": ""}, LARGE, step=0, until=3
    )


@failure("exploding: initial weights of a GPT of std 1, without norms", "gpt")
def without_norms(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model = networks.GPT(64, 4, std=1.0, norm=False, final_norm=False)
    training.use(AdamW, lr=1e-3)
    return training, truth({"scale": "", "exploding": "", "saturated": ""}, LARGE, step=0)


@failure("one layer begins a thousand times too large", "mlp gpt")
def one_large_layer(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, layer = blocks_of(training.model)[2]
    with torch.no_grad():
        layer.weight.mul_(10_000.0 if kind == "gpt" else 1000.0)
    behind = rf"{name}(\..*)?"
    return training, truth({"scale": behind, "exploding": ""}, LARGE, step=0)


@failure("no normalisation: twenty plain layers at the default initialisation", "mlp cnn")
def no_normalisation(kind: str, seed: int) -> tuple[Training, Truth]:
    training = _deep(kind, nn.ReLU, 20, seed)
    expected = {"vanishing": "", "constant": "", "scale": "", "loss": ""}
    return training, truth(expected, (*SMALL, "rank", "dead"), step=0)


@failure("batch norms whose statistics are frozen at their initial values, in a deep network", "cnn")
def frozen_statistics(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model = networks.cnn(16)
    training.use(SGD, lr=0.05, momentum=0.9)
    for module in training.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    expected = {"vanishing": "", "constant": "", "scale": "", "loss": "", "mode": ""}
    return training, truth(expected, (*SMALL, "rank", "dead"), step=0)


@failure("attention scores far too large: queries and keys of one block times 60", "gpt")
def large_scores(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    attention = training.model.blocks[1].attention
    with torch.no_grad():
        attention.query.weight.normal_(std=8.0)
        attention.key.weight.normal_(std=8.0)
    place = r"blocks\.1(\..*)?"
    return training, truth(
        {"growth": place, "scale": place, "saturated": place, "vanishing": place, "exploding": place}, LARGE, step=0
    )


@failure("attention scores grow: queries and keys of one block learn a thousand times too fast", "gpt")
def growing_scores(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    attention = training.model.blocks[1].attention
    fast = [*attention.query.parameters(), *attention.key.parameters()]
    others = [each for each in training.model.parameters() if all(each is not own for own in fast)]
    training.optimizer = AdamW([{"params": others}, {"params": fast, "lr": 1.0}], lr=1e-3)
    place = r"blocks\.1\.attention(\..*)?"
    return training, truth({"large steps": place, "growth": place, "saturated": place}, LARGE, step=0, until=40)


@failure("all weights of a layer are equal", "mlp cnn")
def equal_weights(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, layer = blocks_of(training.model)[1]
    nn.init.constant_(layer.weight, 0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return training, truth({"constant": rf"{name}(\..*)?", "rank": ""}, SMALL, step=0)


@failure("all weights are zero", "mlp gpt")
def zero_weights(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    for parameter in training.model.parameters():
        nn.init.zeros_(parameter)
    return training, truth(["dead", "zero gradient", "constant"], (*SMALL, "vanishing", "large steps", "growth"), step=0)


@failure("inputs not scaled: numbers up to 100,000", "mlp")
def inputs_not_scaled(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.spoil = lambda step, x, y: (x * 30_000, y)
    return training, truth([*DIVERGES, "scale"], LARGE, step=0, until=training.steps)


@failure("targets not scaled: a regression towards values of a million", "mlp")
def targets_not_scaled(kind: str, seed: int) -> tuple[Training, Truth]:
    model = networks.mlp(outputs=1)
    training = Training(model, SGD(model.parameters(), 1e-3), data.lines(seed, scale=1e6), nn.functional.mse_loss)
    return training, truth(DIVERGES, FOLLOWS, step=0, until=20)


@failure("embeddings collapse: a loss that only draws them together", "mlp")
def collapse(kind: str, seed: int) -> tuple[Training, Truth]:
    model = networks.mlp(3, outputs=16)
    batch = data.blobs(seed)

    def together(embedded: Tensor, _: Tensor) -> Tensor:
        return (embedded - embedded.roll(1, 0)).square().mean()

    training = Training(model, AdamW(model.parameters(), 1e-2), batch, together, steps=300, lenses=[lens.EffectiveRank(one_in=1)])
    return training, truth({"rank": "", "constant": "", "vanishing": "", "growth": ""}, [*SMALL, "large steps"], step=0, until=300)


@failure("the gradient of one layer is multiplied by 10,000", "mlp")
def one_gradient(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, layer = blocks_of(training.model)[1]
    layer.weight.register_hook(lambda gradient: gradient * 1e4)
    training.use(SGD, lr=0.05)
    return training, truth({"exploding": rf"{name}(\..*)?"}, (*DIVERGES, *LARGE), step=0)


@failure("targets not scaled: a regression towards values of 10,000, with clipped gradients", "mlp")
def clipped_targets(kind: str, seed: int) -> tuple[Training, Truth]:
    model = networks.mlp(outputs=1)
    training = Training(
        model, SGD(model.parameters(), 1e-2), data.lines(seed, scale=1e4), nn.functional.mse_loss, steps=220, clip=1.0
    )
    return training, truth(["scale", "loss", "small steps"], [*DIVERGES, *FOLLOWS], step=0)


@failure("inputs of size 10,000 into a recurrent layer", "lstm gru")
def recurrent_inputs(kind: str, seed: int) -> tuple[Training, Truth]:
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind]
    model = _Sequences(layer(20, 32, batch_first=True))
    batch = data.blobs(seed)
    training = Training(model, AdamW(model.parameters(), 1e-3), batch)
    training.spoil = lambda step, x, y: (x * 1e4, y)
    return training, truth(["spike"], [*DIVERGES, *LARGE, "saturated"], step=0)


class _Sequences(nn.Module):
    """A recurrent layer that reads four copies of a vector."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(x[:, None].expand(-1, 4, -1))[0][:, -1])
        return y


@failure("an embedding that begins a hundred times too large", "rnn")
def large_embedding(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    with torch.no_grad():
        training.model.embedding.weight.mul_(100)
    return training, truth({"scale": r"embedding(\..*)?"}, [*DIVERGES, *LARGE, "saturated"], step=0)
