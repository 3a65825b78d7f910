"""Ports of a model, as people write them: other names, another order, layers in parts, positions looked up once for all samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde

WIDTH, LENGTH, SAMPLES = 8, 5, 3


def like(one: nn.Module, *others: tuple[nn.Module, slice]) -> None:
    """Give the *others* the rows of the weights of *one*."""
    for other, rows in others:
        own = {name: held.detach()[rows].clone() for name, held in one.named_parameters()}
        other.load_state_dict(own)


class Reader(nn.Module):
    """Tokens and positions, a normalisation with numbers of its own, and a layer; *each*: positions are looked up per sample."""

    def __init__(self, *, each: bool, shift: int = 0, times: float = 1.0, is_named: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = nn.Embedding(20, WIDTH), nn.Embedding(9, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
        names = ("tokens", "places", "norm", "head") if is_named else ("tok", "pos", "ln", "out")
        nn.init.normal_(parts[2].weight)
        for name, part in zip(names, parts, strict=True):
            self.add_module(name, part)
        self._parts, self._each, self._shift, self._times = names, each, shift, times

    def forward(self, ids: Tensor) -> Tensor:
        tokens, places, norm, head = (self.get_submodule(name) for name in self._parts)
        at = torch.arange(LENGTH) + self._shift
        made = self._times * tokens(ids) + places(at.expand_as(ids) if self._each else at)
        found: Tensor = head(norm(made))
        return found


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        ({}, "", ""),
        ({"shift": 2}, "places:output", "entry i of b equals entry i+2 of a along axis"),
        ({"times": 3.0}, "norm:input", "tokens:output + places:output in a, 3 tokens:output + places:output in b"),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_positions_may_be_looked_up_once_for_all_samples(change: dict[str, Any], place: str, message: str, is_turned: bool) -> None:
    """The one is compared with what the other repeats, forward and backward, and what is behind is not hidden by it."""
    one, other = Reader(each=not is_turned, is_named=True), Reader(each=is_turned, **change)
    found = sonde.compare(one, other, torch.randint(20, (SAMPLES, LENGTH)), verbose=False)
    assert found.ok == (not change), found
    if found.culprit is not None and found.cause is not None:
        assert str(found.culprit.site) == place
        assert found.cause.message.startswith(message)


class Waves(nn.Module):
    """A gated convolution and what it adds, joined or *in_parts*; *dilated*: of one of the parts, by more."""

    def __init__(self, of: Waves | None = None, *, is_swapped: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self._is_swapped, self._scale, self._in_parts = is_swapped, scale, of is not None
        if of is None:
            torch.manual_seed(0)
            self.begin, self.both, self.mix = nn.Conv1d(2, WIDTH, 1), nn.Conv1d(WIDTH, 2 * WIDTH, 3), nn.Conv1d(WIDTH, WIDTH, 1)
            self.last = nn.Conv1d(WIDTH, WIDTH, 1)
        else:
            self.first, self.add, self.end = nn.Conv1d(2, WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
            self.gate, self.value = nn.Conv1d(WIDTH, WIDTH, 3), nn.Conv1d(WIDTH, WIDTH, 3)
            for mine, theirs in ((of.begin, self.first), (of.mix, self.add), (of.last, self.end)):
                like(mine, (theirs, slice(None)))
            like(of.both, (self.value, slice(0, WIDTH)), (self.gate, slice(WIDTH, None)))

    def forward(self, x: Tensor) -> Tensor:
        if not self._in_parts:
            value, gate = self.both(functional.pad(self.begin(x), (2, 0))).chunk(2, 1)
            made: Tensor = self.last(self.mix(value.tanh() * gate.sigmoid()).relu())
            return made
        given = functional.pad(self.first(x) * self._scale, (2, 0))
        gate, value = self.gate(given), self.value(given)
        value, gate = (gate, value) if self._is_swapped else (value, gate)
        ended: Tensor = self.end(self.add(value.tanh() * gate.sigmoid()).relu())
        return ended


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({}, "", ""),
        ({"scale": 2.0}, "both:input", "b is 2 times a"),
        ({"is_swapped": True}, "mix:input", "tanh"),
    ],
)
def test_a_convolution_may_be_split(change: dict[str, Any], place: str, words: str) -> None:
    """And layers that hold the same numbers belong together, though others of these shapes ran before them."""
    one = Waves()
    found = sonde.compare(one, Waves(one, **change), torch.randn(SAMPLES, 2, 12), verbose=False)
    assert found.ok == (not change), found
    assert "both of a is compared in parts: gate, value" in found.notes
    assert found.ok or str(found.culprit.site) == place  # type: ignore[union-attr]
    assert found.cause is None or words in found.cause.message or found.cause.rule == "weight_permuted"


class Labels(nn.Module):
    """A classifier that returns labels, too."""

    def __init__(self, more: int, *, is_bag: bool = False, is_sum: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self._more, self._is_sum = more, is_sum
        self.table: nn.Module = nn.EmbeddingBag(20, WIDTH, mode="mean") if is_bag else nn.Embedding(20, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        made = self.table(ids)
        made = made if made.dim() == 2 else made.sum(1) if self._is_sum else made.mean(1)
        logits: Tensor = self.head(made)
        return {"logits": logits, "label": logits.argmax(-1) + self._more}


def test_whole_numbers_that_a_model_returns_are_compared() -> None:
    ids = torch.randint(20, (SAMPLES, LENGTH))
    assert sonde.compare(Labels(0), Labels(0), ids, verbose=False).ok
    found = sonde.compare(Labels(0), Labels(1), ids, verbose=False)
    assert not found.ok
    assert found.culprit is not None
    assert (str(found.culprit.site), found.culprit.leaf) == ("(root):output", "['label']")


@pytest.mark.parametrize(("is_sum", "message"), [(False, ""), (True, "b is 5 times a")])
def test_a_layer_that_pools_itself_is_no_difference_but_another_pooling_is(is_sum: bool, message: str) -> None:
    one, other = Labels(0, is_bag=True), Labels(0, is_sum=is_sum)
    other.load_state_dict(one.state_dict())
    found = sonde.compare(one, other, torch.randint(20, (SAMPLES, LENGTH)), verbose=False)
    assert found.ok == (not is_sum), found
    assert found.cause is None or found.cause.message == message


class Two(nn.Module):
    """Two normalisations of one tensor, of which *reads* is what the layer behind is given; or a head that is a table."""

    def __init__(self, reads: str, *, is_tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self._reads, self._is_tied = reads, is_tied
        self.table, self.other, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 20, bias=False)
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for each in (self.one, self.two):
            nn.init.normal_(each.weight)

    def forward(self, ids: Tensor) -> Tensor:
        made = self.table(ids)
        both = {"one": self.one(made)} | ({"two": self.two(made)} if self._reads == "two" else {})
        hidden = self.other(both[self._reads]) + both["one"]
        return hidden @ self.table.weight.T if self._is_tied else self.head(hidden)


def test_another_tensor_that_both_sides_have_is_named() -> None:
    ids = torch.randint(20, (SAMPLES, LENGTH))
    found = sonde.compare(Two("two"), Two("one"), ids, verbose=False)
    assert found.cause is not None, found
    assert (str(found.culprit.site), found.cause.message) == ("other:input", "two:output in a, one:output in b")  # type: ignore[union-attr]


def test_the_parameters_are_named_with_which_one_operation_is_done() -> None:
    found = sonde.compare(Two("one"), Two("one", is_tied=True), torch.randint(20, (SAMPLES, LENGTH)), verbose=False)
    assert found.cause is not None, found
    assert "mm of head.weight in a" in found.cause.message
    assert "of table.weight in b" in found.cause.message


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


class Block(nn.Module):
    """A block of an encoder that normalises behind each path around layers, with the weights *of* a block of torch."""

    def __init__(self, of: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        self.attention, self.dense, self.first = Attention(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down, self.second = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), nn.LayerNorm(WIDTH)
        attention = of.self_attn
        thirds = zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)
        for layer, (weight, bias) in zip(self.attention.children(), thirds, strict=True):
            layer.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
        for own, held in (
            (self.dense, attention.out_proj),
            (self.first, of.norm1),
            (self.up, of.linear1),
            (self.down, of.linear2),
            (self.second, of.norm2),
        ):
            own.load_state_dict(held.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + self.dense(self.attention(x)))
        made: Tensor = self.second(x + self.down(self.up(x).relu()))
        return made


def test_a_module_that_the_other_side_calls_later_is_named() -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(WIDTH, 1, 16, dropout=0.0, batch_first=True, norm_first=True)
    for each in theirs.parameters():
        nn.init.normal_(each, std=0.3)
    found = sonde.compare(Block(theirs), theirs, torch.randn(SAMPLES, LENGTH, WIDTH), verbose=False)
    assert found.cause is not None, found
    assert found.cause.message.startswith("norm1 (LayerNorm) is not called here in a: b goes on with its output"), (
        found.cause.message
    )
