"""Torch's own attention against one that is written by hand: its projections are places of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.diagnosis.compare.written_out import as_written_out, attentions

WIDTH, HEADS = 16, 4


class ByHand(nn.Module):
    """Attention as people write it, with what may be wrong in it."""

    def __init__(self, of: nn.MultiheadAttention, out: str = "out", scale: float = (WIDTH // HEADS) ** -0.5) -> None:
        super().__init__()
        self.scale, self.last = scale, out
        assert of.in_proj_weight is not None
        assert of.in_proj_bias is not None
        weights, biases = of.in_proj_weight.chunk(3), of.in_proj_bias.chunk(3)
        for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), weights, biases, strict=True):
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
            getattr(self, name).load_state_dict({"weight": weight, "bias": bias})
        setattr(self, out, nn.Linear(WIDTH, WIDTH))
        getattr(self, out).load_state_dict(of.out_proj.state_dict())

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        given = ((self.q_proj, x), (self.k_proj, memory), (self.v_proj, memory))
        q, k, v = (layer(each).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer, each in given)
        mixed = ((q @ k.mT) * self.scale).softmax(-1) @ v
        made: Tensor = getattr(self, self.last)(mixed.transpose(1, 2).flatten(2))
        return made


class Alone(nn.Module):
    """Torch's attention of a sequence with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return made


class AloneByHand(nn.Module):
    """The same with another attention."""

    def __init__(self, attention: ByHand) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attention(x)
        return made


def pair(out: str = "out", **settings: Any) -> tuple[Alone, AloneByHand]:
    """The two of them, which agree but for *settings*."""
    one = Alone()
    return one, AloneByHand(ByHand(one.attention, out, **settings))


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "the batch second": {"batch_first": False},
    "without biases": {"bias": False},
    "other widths": {"kdim": 8, "vdim": 12},
    "keys and values added": {"add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("call", ["plain", "masks", "weights", "one sample"])
def test_what_is_written_out_computes_the_same_and_shares_all_tensors(setting: str, call: str) -> None:
    """Outputs, weights and gradients; the model itself stays as it is, and nothing random is drawn."""
    torch.manual_seed(1)
    model = nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **SETTINGS[setting]}).double()
    state, before = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    other = as_written_out(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert attentions(other) == {}
    assert list(attentions(model)) == [""]
    kdim, vdim = SETTINGS[setting].get("kdim", WIDTH), SETTINGS[setting].get("vdim", WIDTH)
    shape = (5,) if call == "one sample" else (5, 5)
    given = [torch.randn(*shape, width, dtype=torch.float64, requires_grad=True) for width in (WIDTH, kdim, vdim)]
    wanted: dict[str, Any] = {"need_weights": call == "weights"}
    if call == "masks":
        wanted |= {"attn_mask": torch.ones(5, 5).triu(1).bool(), "key_padding_mask": torch.eye(5).bool().roll(1, 1)}
    (here, weights), (there, others) = model(*given, **wanted), other(*given, **wanted)
    torch.testing.assert_close(here, there, equal_nan=True)
    torch.testing.assert_close(weights, others)
    moved = [torch.autograd.grad(each.square().nansum(), given) for each in (here, there)]
    torch.testing.assert_close(*moved, equal_nan=True)
    moved_inside = other.q_proj.weight
    assert isinstance(moved_inside, nn.Parameter)
    assert moved_inside.data_ptr() == (model.q_proj_weight if model.in_proj_weight is None else model.in_proj_weight).data_ptr()
    assert all(torch.equal(held, before[name]) for name, held in model.state_dict().items())


def half(model: AloneByHand) -> None:
    model.attention.k_proj.weight.mul_(2.0)


def swap(model: AloneByHand) -> None:
    held = model.attention
    held.q_proj, held.k_proj = held.k_proj, held.q_proj


def forget(model: AloneByHand) -> None:
    model.attention.v_proj.bias.zero_()


def turn(model: AloneByHand) -> None:
    last = getattr(model.attention, model.attention.last)
    last.weight.copy_(last.weight.mT.clone())


MISTAKES: dict[Callable[[AloneByHand], None], tuple[str, str]] = {
    half: ("attention.k_proj:output", "weight_scaled"),
    forget: ("attention.v_proj:output", "weight_differs"),
    turn: ("attention.out_proj:output", "weight_transposed"),
}


@pytest.mark.parametrize("out", ["out", "out_proj"])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_wrong_weight_is_found_at_its_projection(mistake: Callable[[AloneByHand], None], out: str) -> None:
    """On whichever side torch's attention is; a projection of another name is the one that is left."""
    one, other = pair(out)
    with torch.no_grad():
        mistake(other)
    for a, b in ((one, other), (other, one)):
        found = sonde.compare(a, b, torch.randn(3, 5, WIDTH), verbose=False)
        assert found.cause is not None, found
        assert (str(found.cause.site).replace(".out:", ".out_proj:"), found.cause.rule) == MISTAKES[mistake]


@pytest.mark.parametrize("out", ["out", "out_proj"])
def test_exchanged_projections_and_another_scale_are_told(out: str) -> None:
    """The weight of which other layer it is, and the scale of the scores."""
    one, other = pair(out)
    swap(other)
    found = sonde.compare(one, other, torch.randn(3, 5, WIDTH), verbose=False)
    assert found.cause is not None, found
    assert found.cause.message == "b's weight equals a.attention.k_proj.weight"
    found = sonde.compare(*pair(out, scale=1.0), torch.randn(3, 5, WIDTH), verbose=False)
    assert found.cause is not None, found
    assert found.cause.message == "scores of attention: 1 / sqrt(head size) in a, no scale in b"
    assert "a: attention ran as q_proj, k_proj and v_proj, the thirds of in_proj_weight, and out_proj" in found.notes


def test_equal_ones_are_equal_and_two_of_torch_s_own_stay_whole() -> None:
    """With a step of an optimizer, too; an optimizer of the model itself holds parameters that are not written out."""
    one, other = pair()
    batch = torch.randn(3, 5, WIDTH)
    found = sonde.compare(one, other, batch, optimizer=lambda held: torch.optim.SGD(held, lr=0.1), verbose=False)
    assert found.ok, found
    assert found["attention.q_proj:output"]
    of_itself = torch.optim.SGD(one.parameters(), lr=0.1)
    found = sonde.compare(one, other, batch, optimizer=(of_itself, torch.optim.SGD(other.parameters(), lr=0.1)), verbose=False)
    assert found.ok, found
    assert "attention.q_proj" not in found.match
    found = sonde.compare(one, copy.deepcopy(one), batch, verbose=False)
    assert found.notes == ()


class Layer(nn.Module):
    """A layer of a transformer by hand."""

    def __init__(self, of: nn.TransformerEncoderLayer, *, is_first: bool) -> None:
        super().__init__()
        self.mix, self.is_first = ByHand(of.self_attn), is_first
        self.norm1, self.norm2, self.up, self.down = map(copy.deepcopy, (of.norm1, of.norm2, of.linear1, of.linear2))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_first:
            x = x + self.mix(self.norm1(x))
            return x + self.down(self.up(self.norm2(x)).relu())
        x = self.norm1(x + self.mix(x))
        return self.norm2(x + self.down(self.up(x).relu()))


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_around_attention_is_compared_as_a_whole(training: bool) -> None:
    """In evaluation torch would take a faster path, which reads the parameters of attention."""
    one = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True).train(training)
    x = torch.randn(3, 5, WIDTH)
    assert sonde.compare(one, Layer(one, is_first=False).train(training), x, verbose=False).ok
    found = sonde.compare(one, Layer(one, is_first=True).train(training), x, verbose=False)
    assert found.culprit is not None
    assert found.culprit.site.path == "self_attn"
    assert found.cause is not None, found
    assert found.cause.message == "(root):input in a, norm1:output in b"


class AsOne(nn.Module):
    """Attention by hand that holds its projections as torch's own does, and calls no layer; *by_part*: one after the other."""

    def __init__(self, of: nn.MultiheadAttention, *, by_part: bool, scale: float = (WIDTH // HEADS) ** -0.5) -> None:
        super().__init__()
        assert of.in_proj_weight is not None
        assert of.in_proj_bias is not None
        self.in_proj_weight, self.in_proj_bias = (
            nn.Parameter(held.detach().clone()) for held in (of.in_proj_weight, of.in_proj_bias)
        )
        self.out_proj = nn.Linear(WIDTH, WIDTH)
        self.out_proj.load_state_dict(of.out_proj.state_dict())
        self.by_part, self._scale = by_part, scale

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.by_part:
            parts = zip(self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True)
            return tuple(functional.linear(x, *part) for part in parts)
        return functional.linear(x, bias=self.in_proj_bias, weight=self.in_proj_weight).chunk(3, -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (held.unflatten(-1, (HEADS, -1)).transpose(1, 2) for held in self.projected(x))
        mixed = ((q @ k.mT) * self._scale).softmax(-1) @ v
        return functional.linear(mixed.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)


@pytest.mark.parametrize("by_part", [True, False])
def test_attention_by_hand_that_calls_no_layer_is_compared_as_a_whole(by_part: bool) -> None:
    """Gradients are those of the parameter all the same, and what differs inside is proved there."""
    one = Alone()
    mine: Any = AsOne(one.attention, by_part=by_part)
    found = sonde.compare(one, AloneByHand(mine), torch.randn(3, 5, WIDTH), verbose=False)
    assert found.ok, found
    assert not found["attention.in_proj_weight:grad"][0].parts
    mine.in_proj_weight.requires_grad_(False)
    found = sonde.compare(one, AloneByHand(mine), torch.randn(3, 5, WIDTH), verbose=False)
    assert found.cause is not None, found
    assert (found.cause.rule, str(found.culprit and found.culprit.site)) == ("frozen", "attention.in_proj_weight:grad")
    mine = AsOne(one.attention, by_part=by_part, scale=1.0)
    found = sonde.compare(one, AloneByHand(mine), torch.randn(3, 5, WIDTH), verbose=False)
    assert str(found.culprit and found.culprit.site) == "attention:output"


@pytest.mark.parametrize("is_nested", [True, False])
def test_a_padding_mask_that_one_side_does_not_read_is_told(is_nested: bool) -> None:
    """Torch's encoder hands on one that is added, as numbers; the last sample has no padding."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
            self.words, self.encoder = nn.Embedding(9, WIDTH), nn.TransformerEncoder(layer, 1, enable_nested_tensor=is_nested)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.encoder(self.words(tokens), src_key_padding_mask=tokens == 0) * (tokens != 0)[..., None]

    class Mine(nn.Module):
        def __init__(self, of: Encoder) -> None:
            super().__init__()
            held: Any = of.encoder.layers[0]
            self.words, self.layer = copy.deepcopy(of.words), Layer(held, is_first=False)

        def forward(self, tokens: Tensor) -> Tensor:
            made: Tensor = self.layer(self.words(tokens)) * (tokens != 0)[..., None]
            return made

    one = Encoder().eval()
    tokens = torch.randint(1, 9, (3, 6))
    tokens[0, 4:], tokens[1, 5:] = 0, 0
    found = sonde.compare(one, Mine(one).eval(), tokens, verbose=False)
    assert found.cause is not None, found
    assert (found.cause.rule, found.owner) == ("mask", "encoder.layers.0.self_attn")
