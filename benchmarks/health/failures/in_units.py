"""Plant dead and saturated units, and parameters that never move."""

from __future__ import annotations

import torch
from benchmarks.health import networks
from benchmarks.health.case import Truth, failure, hidden, truth
from benchmarks.health.networks import blocks_of
from benchmarks.health.training import Training, base
from torch import Tensor, nn
from torch.optim import SGD, AdamW

BEHIND = ("zero gradient", "vanishing", "constant", "loss", "small steps")


def _layer(model: nn.Module, place: int) -> tuple[str, nn.Module, str]:
    """Return a layer with weights, and an expression for it and the norm and activation behind it."""
    named = dict(model.named_children())
    name, layer = blocks_of(model)[place]
    behind = [name]
    for each, module in list(named.items())[list(named).index(name) + 1 :]:
        if isinstance(module, nn.Linear | nn.Conv2d):
            break
        behind.append(each)
    return name, layer, "|".join(rf"{each}(\..*)?" for each in behind)


def _offset(model: nn.Module, place: int, value: float) -> str:
    """Set the bias before an activation to *value*; return the expression for the layer."""
    name, layer, behind = _layer(model, place)
    norm = model[int(name) + 1]
    bias = norm.bias if isinstance(norm, nn.BatchNorm2d) else layer.bias
    nn.init.constant_(bias, value)
    return behind


@failure("dead ReLU: a bias far below zero", "mlp cnn")
def dead_bias(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    place = _offset(training.model, 1, -20.0)
    return training, truth({"dead": place}, BEHIND, step=0)


@failure("dead ReLU: a bias far below zero in a wide feed-forward layer", "gpt")
def dead_feed_forward(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    block = training.model.blocks[1]
    block.act = nn.ReLU()
    nn.init.constant_(block.up.bias, -20.0)
    return training, truth({"dead": r"blocks\.1\.(act|up)(\..*)?"}, BEHIND, step=0)


@failure("dead ReLU from step 40 on: one layer takes a huge step", "mlp cnn")
def dead_by_a_step(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.use(SGD, lr=0.05)
    _, _, behind = _layer(training.model, 2)

    def huge(step: int) -> None:
        if step == 40:
            _offset(training.model, 2, -30.0)

    training.before.append(huge)
    training.steps = 160
    return training, truth({"dead": behind}, (*BEHIND, "spike", "growth", "exploding"), step=40)


@failure("dead ReLU in all layers: every bias below zero", "mlp")
def all_dead(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    for _, layer in blocks_of(training.model):
        nn.init.constant_(layer.bias, -20.0)
    return training, truth({"dead": r"[01](\..*)?"}, BEHIND, step=0)


@failure("saturated tanh: weights of one layer too large", "mlp cnn")
def saturated(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model = networks.mlp(4, nn.Tanh) if kind == "mlp" else networks.cnn(4, nn.Tanh, norm=False)
    _, layer, place = _layer(training.model, 1)
    nn.init.normal_(layer.weight, std=20.0)
    training.use(SGD, lr=0.05)
    return training, truth({"saturated": place}, (*BEHIND, "exploding", "scale"), step=0)


@failure("saturated sigmoid: inputs of one layer far from zero", "mlp")
def saturated_sigmoid(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model = networks.mlp(3, nn.Sigmoid)
    _, layer, place = _layer(training.model, 1)
    nn.init.normal_(layer.weight, std=20.0)
    training.use(SGD, lr=0.5)
    return training, truth({"saturated": place}, (*BEHIND, "exploding", "scale"), step=0)


@failure("saturated gates: the recurrent layer's states stand at the ends of tanh", "rnn")
def saturated_recurrence(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    model = training.model = networks.Recurrent(nn.RNN)
    nn.init.normal_(model.layer.weight_hh_l0, std=5.0)
    training.use(SGD, lr=0.1)
    return training, truth({"saturated": r"layer(\..*)?"}, (*BEHIND, "exploding", "scale", "spike"), step=0)


@failure("dropout of 0.99", "mlp gpt")
def dropout(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    if kind == "mlp":
        layers = list(training.model)
        training.model = nn.Sequential(*layers[:4], nn.Dropout(0.99), *layers[4:])
        training.use(SGD, lr=0.1)
        return training, truth({"dead": "4", "loss": ""}, (*BEHIND, "spike", "exploding"), step=0)
    training.model = networks.GPT(dropout=0.99)
    training.use(AdamW, lr=1e-3)
    return training, truth({"dead": r"blocks\..*dropout.*", "loss": ""}, (*BEHIND, "exploding", "growth", "spike"), step=0)


@failure("one layer is missing from the optimizer", "mlp cnn rnn gpt")
def missing_from_optimizer(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, layer = blocks_of(training.model)[1] if kind != "rnn" else ("layer", training.model.layer)
    group = training.optimizer.param_groups[0]
    training.use(type(training.optimizer), without=layer.parameters(), lr=group["lr"])
    return training, truth({"small steps": rf"{name}\..*"}, step=0)


@failure("one group of the optimizer has the learning rate 0", "mlp gpt")
def group_without_rate(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, layer = blocks_of(training.model)[2]
    others = [each for each in training.model.parameters() if all(each is not own for own in layer.parameters())]
    group = training.optimizer.param_groups[0]
    kind_of = type(training.optimizer)
    training.optimizer = kind_of([{"params": others}, {"params": list(layer.parameters()), "lr": 0.0}], lr=group["lr"])
    return training, truth({"small steps": rf"{name}\..*"}, step=0)


@failure("optimizer made before the head was replaced", "mlp cnn")
def replaced_head(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    head = training.model[-1]
    training.model[-1] = nn.Linear(head.in_features, head.out_features)
    name = str(len(training.model) - 1)
    return training, truth({"small steps": rf"{name}\..*"}, step=0)


class _Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


@failure("a detach() in the middle", "mlp cnn")
def detached(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    layers = list(training.model)
    cut = 4 if kind == "mlp" else 6
    training.model = nn.Sequential(*layers[:cut], _Detached(), *layers[cut:])
    training.use(SGD, lr=0.1)
    before = "|".join(rf"{place}(\..*)?" for place in range(cut + 1))
    return training, truth({"small steps": before, "zero gradient": before}, step=0)


@failure("a branch without effect: it is multiplied by zero", "gpt")
def without_effect(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    block = training.model.blocks[1]
    block.down.weight.requires_grad_(False).zero_()
    block.down.bias.requires_grad_(False).zero_()
    place = r"blocks\.1\.(norm2|up|act|down)(\..*)?"
    return training, truth({"zero gradient": place, "dead": place}, ["small steps", "constant"], step=0)


@failure("requires_grad=False on one layer, by mistake", "mlp gpt")
def frozen_by_mistake(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    _, layer = blocks_of(training.model)[1]
    layer.requires_grad_(False)
    return training, hidden("requires_grad=False is how one freezes a layer on purpose; the coverage lists it")


@failure("weights meant to be tied are two, and both are trained", "gpt")
def untied(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    model = training.model
    model.head.weight = nn.Parameter(model.token.weight.detach().clone())
    training.use(AdamW, lr=1e-3)
    return training, hidden("both weights train as they should; nothing says that they were meant to be one")


@failure("tied weights broken: the head is a copy that no optimizer knows", "gpt")
def broken_tie(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    model = training.model
    model.head.weight = nn.Parameter(model.token.weight.detach().clone())
    training.use(AdamW, lr=1e-3, without=[model.head.weight])
    with torch.no_grad():
        model.head.weight.mul_(1.0)
    return training, truth({"small steps": r"head\.weight"}, step=0)


@failure("a sigmoid at the end, and targets far beyond 0 and 1", "mlp")
def beyond_the_ends(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    training.model = networks.mlp(3, outputs=20).append(nn.Sigmoid())
    training.use(AdamW, lr=3e-3)
    training.loss = nn.functional.mse_loss
    training.spoil = lambda step, x, y: (x, x)
    training.steps = 200
    return training, truth(["saturated", "loss"], BEHIND)


@failure("a layer is unfrozen at step 40, and no optimizer holds it", "mlp")
def unfrozen(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    name, layer = blocks_of(training.model)[1]
    layer.requires_grad_(False)
    training.use(SGD, without=layer.parameters(), lr=0.1)
    training.before.append(lambda step: layer.requires_grad_(step >= 40))
    training.steps = 180
    return training, truth({"small steps": rf"{name}\..*"}, step=40)


@failure("paths of low rank beside frozen layers, which no optimizer holds", "mlp")
def adapters_left_out(kind: str, seed: int) -> tuple[Training, Truth]:
    training = base(kind, seed)
    for place in (2, 4, 6):
        training.model[place] = networks.LowRank(training.model[place])
    training.model[0].requires_grad_(False)
    training.use(SGD, without=[each for place in (2, 4, 6) for each in training.model[place].parameters()], lr=0.1)
    return training, truth({"small steps": r"[246]\..*"}, ["loss", "dead"], step=0)  # one of the two begins at zero
