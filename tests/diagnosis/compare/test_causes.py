"""Each planted difference of two models is found at its place, and named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.diagnosis.compare.networks import HEADS, WIDTH, cnn, gpt, images, tokens
from tests.quick import quick
from torch import nn

import sonde


@dataclass(frozen=True)
class Case:
    """A change of ``b`` against ``a``, the place where they part, the rule of the cause, and words of its message."""

    change: Callable[[Any], Any]
    place: str
    rule: str
    words: str


def transposed(model: Any) -> None:
    model.blocks[1].attention.q.weight.data = model.blocks[1].attention.q.weight.data.T.clone()


def swapped_heads(model: Any) -> None:
    """The first two heads of the queries are exchanged."""
    size = WIDTH // HEADS
    order = [*range(size, 2 * size), *range(size), *range(2 * size, WIDTH)]
    layer = model.blocks[1].attention.q
    layer.weight.data = layer.weight.data[order]
    layer.bias.data = layer.bias.data[order]


def smaller_eps(model: Any) -> None:
    model.blocks[0].norm1.eps = 1e-6


def dropout(model: Any) -> None:
    model.blocks[0].attention.drop.train()


def other_weight(model: Any) -> None:
    model.blocks[2].up.weight.data[5, 3] += 0.5


def of_another_layer(model: Any) -> None:
    model.blocks[1].up.weight.data = model.blocks[0].up.weight.data.clone()


def without_bias(model: Any) -> None:
    model.blocks[1].up.bias = None


def tanh_gelu(model: Any) -> None:
    model.blocks[1].act.approximate = "tanh"


def relu(model: Any) -> None:
    model.blocks[1].act = nn.ReLU()


def frozen(model: Any) -> None:
    model.blocks[1].up.requires_grad_(False)


def unscaled(model: Any) -> None:
    model.head.weight.data *= 8


def made(*faults: str) -> Callable[[Any], Any]:
    return lambda model: gpt(*faults, like=model)


OF_GPT = {
    "a transposed weight": Case(transposed, "blocks.1.attention.q:output", "weight_transposed", "weight equals a's weight.T"),
    "two heads swapped in a weight": Case(
        swapped_heads, "blocks.1.attention.q:output", "weight_permuted", "blocks of 8 rows in the order 1, 0, 2, 3"
    ),
    "two heads swapped in code": Case(
        made("heads"), "blocks.1.attention.out:input", "permuted", "blocks of 8 channels in the order 1, 0, 2, 3"
    ),
    "another eps": Case(smaller_eps, "blocks.0.norm1:output", "eps", "eps is 1e-05 in a and 1e-06 in b"),
    "dropout left on": Case(dropout, "blocks.0.attention.drop:output", "random", "dropout is on in b"),
    "one weight of a layer": Case(other_weight, "blocks.2.up:output", "weight_differs", "1 of 64 rows of b's weight differ"),
    "the weight of another layer": Case(of_another_layer, "blocks.1.up:output", "weight_of_another", "equals a.blocks.0.up.weight"),
    "no bias": Case(without_bias, "blocks.1.up:output", "bias_missing", "there is a bias in a and none in b"),
    "the other gelu": Case(tanh_gelu, "blocks.1.act:output", "setting", "approximate is 'none' in a and 'tanh' in b"),
    "another activation": Case(relu, "blocks.1.act:output", "activation", "gelu (erf) of blocks.1.act:input in a, relu in b"),
    "a frozen layer": Case(frozen, "blocks.1.up.weight:grad", "frozen", "all of blocks.1.up is frozen in b"),
    "a factor of a weight": Case(unscaled, "head:output", "weight_scaled", "b's weight equals a's weight times 8"),
    "no residual": Case(made("residual"), "blocks.1:output", "residual", "+ blocks.1.down:output in a, blocks.1.down:output in b"),
    "a causal mask missing": Case(
        made("mask"), "blocks.1.attention.out:input", "causal_mask", "no position sees later ones in a, each position sees all in b"
    ),
    "attention without its scale": Case(
        made("scale"), "blocks.1.attention.out:input", "attention_scale", "1 / sqrt(head size) in a, no scale in b"
    ),
    "positions off by one": Case(made("position"), "positions:input", "shifted", "entry i of b equals entry i+1 of a"),
}


OF_ONE_LAYER = {"a transposed weight", "another eps", "one weight of a layer", "no bias", "the other gelu", "a factor of a weight"}
"""What the tests of causes plant in a small network, too."""


@pytest.mark.parametrize("name", quick(OF_GPT, *(OF_GPT.keys() - OF_ONE_LAYER)))
def test_a_difference_of_two_gpts_is_named(name: str) -> None:
    case = OF_GPT[name]
    a = gpt()
    b = gpt(like=a)
    b = case.change(b) or b
    found = sonde.compare(a, b, tokens())
    assert found.culprit is not None
    assert found.cause is not None, found
    assert (str(found.culprit.site), found.cause.rule) == (case.place, case.rule), found
    assert case.words in found.cause.message


def test_a_scale_that_the_module_holds_is_named() -> None:
    """Scores times 0.2, which is none of the usual scales; the module holds it as ``scaling``, the other one has no such name."""

    class Attention(nn.Module):
        def __init__(self, scaling: float, name: str) -> None:
            super().__init__()
            self.heads, self._name = 2, name
            setattr(self, name, scaling)
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=getattr(self, self._name))
            return self.out(mixed.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    a, b = nn.Sequential(Attention(8**-0.5, "factor")), nn.Sequential(Attention(0.2, "scaling"))
    b.load_state_dict(a.state_dict())
    found = sonde.compare(a, b, torch.randn(2, 12, 16))
    assert found.cause is not None
    assert found.cause.rule == "attention_scale", found
    assert "1 / sqrt(head size) in a, a scale of 0.2 in b" in found.cause.message
    assert list(found) == list(found.places)


def test_a_rotary_embedding_with_swapped_halves_is_named() -> None:
    found = sonde.compare(gpt(rotary=True), gpt("rotary", rotary=True), tokens())
    assert found.culprit is not None
    assert found.cause is not None
    assert (str(found.culprit.site), found.owner) == ("blocks.1.attention.out:input", "blocks.1.attention")
    assert found.cause.rule == "rotary"
    assert "halves, base 10000 in a, halves, the other way round, base 10000 in b" in found.cause.message


def test_a_weight_that_is_tied_in_one_side_alone_is_named() -> None:
    a, b = gpt(), gpt()
    a.head.weight = a.words.weight
    b.head.weight.data = b.words.weight.data.clone()
    found = sonde.compare(a, b, tokens())
    assert found.cause is not None
    assert (found.cause.rule, str(found.culprit.site)) == ("tied", "words.weight:grad")  # type: ignore[union-attr]


def kernel(model: Any) -> None:
    model[3].weight.data = model[3].weight.data.transpose(2, 3).contiguous()


def channels(model: Any) -> None:
    model[0].weight.data = model[0].weight.data.flip(1)


def statistics(model: Any) -> None:
    model[4].running_mean += 1


def training(model: Any) -> None:
    model[1].train()


def eps_of_batch_norm(model: Any) -> None:
    model[1].eps = 1e-3


OF_CNN = {
    "a transposed kernel": Case(kernel, "3:output", "weight_transposed", "equals a's weight with the last two axes exchanged"),
    "channels of colour reversed": Case(channels, "0:output", "weight_flipped", "reversed along axis 1"),
    "running statistics": Case(statistics, "4:output", "weight_differs", "running_mean"),
    "the mode of a batch norm": Case(training, "1:output", "training_mode", "training mode in b alone"),
    "eps of a batch norm": Case(eps_of_batch_norm, "1:output", "eps", "eps is 1e-05 in a and 0.001 in b"),
}


@pytest.mark.parametrize("case", OF_CNN.values(), ids=OF_CNN)
def test_a_difference_of_two_cnns_is_named(case: Case) -> None:
    a, b = cnn(), cnn()
    case.change(b)
    found = sonde.compare(a, b, images())
    assert found.culprit is not None
    assert found.cause is not None, found
    assert (str(found.culprit.site), found.cause.rule) == (case.place, case.rule), found
    assert case.words in found.cause.message


class Signal(nn.Module):
    """Convolutions of a signal, of which one makes it longer, with a normalisation and a function of the code."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.more = {} if alpha == 1 else {"alpha": alpha}  # no setting that both have
        self.first, self.norm = nn.Conv1d(4, 8, 3), nn.InstanceNorm1d(8, affine=True)
        self.longer, self.out = nn.ConvTranspose1d(8, 6, 4, stride=2, padding=1), nn.Conv1d(6, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(nn.functional.elu(self.longer(self.norm(self.first(x))), **self.more))
        return y


def test_what_has_three_axes_need_not_be_attention() -> None:
    """The parts have three axes, as queries, keys and values have, and another length than what is made of them."""
    found = sonde.compare(Signal(0.5), Signal(1.0), torch.randn(3, 4, 12))
    assert found.cause is not None
    assert "elu has alpha=0.5 in a" in found.cause.message


def test_the_models_stay_as_they_are() -> None:
    a, b = cnn().train(), cnn().train()
    before = {name: held.clone() for name, held in a.state_dict().items()}
    state = torch.get_rng_state()
    optimizer = torch.optim.AdamW(a.parameters(), lr=1e-3)
    assert sonde.compare(a, b, images(), optimizer=optimizer).ok
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(held, before[name]) for name, held in a.state_dict().items())
    assert all(parameter.grad is None for parameter in a.parameters())
    assert not optimizer.state


def test_a_model_that_is_frozen_as_a_whole_has_no_gradients_to_compare() -> None:
    """Where both are, as for inference, the sides are equal."""
    one = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    other = copy.deepcopy(one).requires_grad_(False)
    batch = torch.randn(5, 4)
    found = sonde.compare(one, other, batch, verbose=False)
    assert found.cause is not None, found
    assert found.cause.message == "all of (root) is frozen in b: requires_grad is False there, and True in the other side"
    assert sonde.compare(copy.deepcopy(other), other, batch, verbose=False).ok


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("1.bias", "1.bias is"),
        ("1.weight", "1.weight is"),
        ("0.weight", "0.weight is"),
        ("1", "all of 1 is"),
        ("", "all of (root) is"),
        ("0.bias 2", "all of 2 is"),  # the first in the order of gradients
    ],
)
def test_a_parameter_that_is_frozen_on_either_side_is_told(name: str, words: str) -> None:
    """As wide as it goes; of what is frozen elsewhere the number is told, but for what neither side trains."""
    one = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3), nn.Linear(3, 3))
    one[3].bias.requires_grad_(False)
    other, batch = copy.deepcopy(one), torch.randn(5, 4)
    for each in name.split(" "):
        found: Any = other.get_parameter(each) if each.endswith(("weight", "bias")) else other.get_submodule(each)
        found.requires_grad_(False)
    for side, (a, b) in {"b": (one, other), "a": (other, one)}.items():
        compared = sonde.compare(a, b, batch, verbose=False)
        assert compared.cause is not None, compared
        assert compared.cause.message.startswith(f"{words} frozen in {side}"), compared.cause.message
        assert compared.cause.message.endswith("; so is 1 more parameter" if " " in name else "True in the other side")


class Gated(nn.Module):
    """A gate and what it lets through, as two layers or as one."""

    def __init__(self, *layers: nn.Linear) -> None:
        super().__init__()
        names = ("gate", "up") if len(layers) == 2 else ("both",)
        for name, layer in zip(names, layers, strict=True):
            self.add_module(name, layer)

    def forward(self, x: Any) -> Any:
        gate, up = self.both(x).chunk(2, -1) if hasattr(self, "both") else (self.gate(x), self.up(x))
        return gate.sigmoid() * up


@pytest.mark.parametrize("name", ["gate.weight", "both.weight"])
def test_a_part_of_a_joined_projection_that_is_frozen_is_told(name: str) -> None:
    """The joined one can be frozen as a whole alone."""
    gate, up, both = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(4, 16)
    both.load_state_dict({key: torch.cat((getattr(gate, key), getattr(up, key))) for key in ("weight", "bias")})
    one, other = Gated(gate, up), Gated(both)
    (one if name.startswith("gate") else other).get_parameter(name).requires_grad_(False)
    for a, b in ((one, other), (other, one)):
        found = sonde.compare(a, b, torch.randn(5, 4), verbose=False)
        assert found.cause is not None, found
        assert found.cause.message.startswith(f"{name} is frozen in {'a' if name.startswith('gate') == (a is one) else 'b'}")


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda y: y.square().sum(), "that of b is 15 x as large, as a sum over 15 elements in b is of a mean in a"),
        (lambda y: y.square().sum(1).sum() / 3, "that of b is 5 x as large, as a sum over 5 samples in b is of a mean in a"),
        (lambda y: 0.3 * y.square().mean(), "that of a is 3.33333 x as large"),
        (lambda y: y.square().mean() + 1.0, "the loss functions differ"),
        (lambda y: y.abs().mean(), "the loss functions differ"),
    ],
)
def test_a_factor_between_two_losses_is_told(loss: Any, words: str) -> None:
    """Where it is between the gradients, too; what else is added to a loss is none."""
    one = nn.Linear(4, 3)
    found = sonde.compare(one, copy.deepcopy(one), torch.randn(5, 4), loss_fn=(lambda y: y.square().mean(), loss), verbose=False)
    if loss(torch.zeros(5, 3)) == 1.0:  # the gradients are equal
        assert found.ok
        return
    assert found.cause is not None, found
    assert found.cause.rule == "loss"
    assert found.cause.message.endswith(f"of outputs that agree: {words}")
    if "as large" in words:  # in a coarser type, too, in which neither the factor nor the losses are exact
        other = copy.deepcopy(one).bfloat16()
        losses = (lambda y: y.square().mean(), lambda y: loss(y.float()))
        found = sonde.compare(one, other, torch.randn(5, 4), loss_fn=losses, verbose=False)
        assert found.cause is not None, found
        assert words[:13] in found.cause.message
        assert " x as large" in found.cause.message
