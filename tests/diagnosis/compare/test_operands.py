"""Code that computes the same by other operations, or in another layout, and one difference in it, which is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde

Code = Callable[[nn.Linear, Tensor], Tensor]


class Between(nn.Module):
    """Two layers, a parameter for each feature, and code between them."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.first, self.gain, self.last = nn.Linear(5, 6), nn.Parameter(torch.rand(6) + 0.5), nn.Linear(6, 3)
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.code(self, self.first(x)))  # type: ignore[arg-type]


def between(code: Code) -> Between:
    torch.manual_seed(0)
    return Between(code)


def decayed(rate: Callable[[Tensor], Tensor], *, is_turned: bool, with_skip: bool = True) -> Code:
    """A running sum that decays, features before positions or behind them, and the input beside it."""

    def code(model: nn.Module, x: Tensor) -> Tensor:
        if is_turned:
            x = x.transpose(1, 2)
            keep = torch.exp(-rate(x))
            made, held = [], torch.zeros_like(x[..., 0])
            for at in range(x.size(-1)):
                held = keep[..., at] * held + x[..., at]
                made.append(held)
            y = torch.stack(made, -1)
            return (y + model.gain[:, None] * x if with_skip else y).transpose(1, 2)  # type: ignore[index]
        step = rate(x)
        held, made = x.new_zeros(x[:, 0].shape), []
        for at in range(x.size(1)):
            held = held * (-step[:, at]).exp() + x[:, at]
            made.append(held)
        y = torch.stack(made, 1)
        return y + model.gain * x if with_skip else y  # type: ignore[operator]

    return code


def shares(is_divided: bool, *, by_sort: bool) -> Code:
    """The two largest of weights, as shares of their sum or as they are, by which the features are weighed."""

    def code(model: nn.Module, x: Tensor) -> Tensor:
        p = x.softmax(-1)
        if by_sort:
            values, places = (each[..., :2] for each in p.sort(-1, descending=True))
            values = values / values.sum(-1, keepdim=True)
        else:
            values, places = p.topk(2, -1)
            values = functional.normalize(values, p=1, dim=-1) if is_divided else values
        return torch.zeros_like(p).scatter(-1, places, values) @ torch.diag(model.gain)  # type: ignore[arg-type]

    return code


def slopes(first: int, *, by_power: bool) -> Code:
    """Adds to each feature a slope times the position, and the softmax over positions."""

    def code(model: nn.Module, x: Tensor) -> Tensor:
        at = torch.arange(x.size(1), dtype=x.dtype, device=x.device)
        if by_power:
            added = 0.5 ** torch.arange(first, 6 + first, dtype=x.dtype, device=x.device) * at[:, None]
        else:
            added = torch.outer(at, torch.tensor([0.5**place for place in range(6)], dtype=x.dtype, device=x.device))
        return torch.softmax(x + added, 1) * x

    return code


def unit(axis: int, *, by_hand: bool) -> Code:
    """Two tensors of norm 1, multiplied."""

    def code(model: nn.Module, x: Tensor) -> Tensor:
        pair = x, x.cos()
        if by_hand:
            one, other = (each / each.norm(dim=axis, keepdim=True) for each in pair)
        else:
            one, other = (functional.normalize(each, dim=axis) for each in pair)
        return one * other

    return code


@pytest.mark.parametrize(
    ("one", "same", "other", "words"),
    [
        (
            decayed(functional.softplus, is_turned=True),
            decayed(functional.softplus, is_turned=False),
            decayed(torch.exp, is_turned=False),
            ("softplus in a", "exp in b"),
        ),
        (
            decayed(functional.softplus, is_turned=False),
            decayed(functional.softplus, is_turned=True),
            decayed(functional.relu, is_turned=True),
            ("softplus in a", "relu in b"),
        ),
        (
            decayed(torch.exp, is_turned=True),
            decayed(torch.exp, is_turned=False),
            decayed(torch.exp, is_turned=False, with_skip=False),
            ("mul, add in a", "and not in b"),
        ),
        (shares(True, by_sort=True), shares(True, by_sort=False), shares(False, by_sort=False), ("div in a",)),
        (slopes(0, by_power=False), slopes(0, by_power=True), slopes(-2, by_power=True), ("is 4 times what",)),
        (slopes(0, by_power=False), slopes(0, by_power=True), slopes(1, by_power=True), ("is 0.5 times what",)),
        (unit(2, by_hand=False), unit(2, by_hand=True), unit(1, by_hand=True), ("norm", "at 2 places")),
    ],
    ids=["decay", "relu", "skip", "shares", "slopes", "half", "axis"],
)
def test_an_operation_of_other_code_is_told(one: Code, same: Code, other: Code, words: tuple[str, ...]) -> None:
    x = torch.randn(4, 7, 5)
    assert sonde.compare(between(one), between(same), x).ok
    found = sonde.compare(between(one), between(other), x)
    assert found.culprit is not None
    assert str(found.culprit.site) == "last:input"
    assert found.cause is not None, str(found)
    assert found.cause.rule == "operation"
    assert all(each in found.cause.message for each in words), found.cause.message


def test_the_same_operations_in_both_sides_are_no_cause() -> None:
    """The kernel is modulated in one side, the input in the other, and what follows is named alike."""

    def code(parts: int) -> Code:
        def made(model: nn.Module, x: Tensor) -> Tensor:
            scale = x.mean(1, keepdim=True).exp()
            mixed = x @ (torch.diag(model.gain) * scale.mT) if parts < 2 else (x * scale) @ torch.diag(model.gain)  # type: ignore[arg-type]
            return mixed if parts == 2 else mixed / (scale.square().sum(-1, keepdim=True) + 1)

        return made

    x = torch.randn(4, 7, 5)
    found = sonde.compare(between(code(1)), between(code(2)), x)
    assert found.culprit is not None
    for cause in found.causes:
        first, _, second = cause.message.partition(" in a")
        assert second.partition(", ")[2].partition(" in b")[0] != first, cause.message


class Capped(nn.Module):
    """Attention with a soft limit of the scores, and a window, by hand, with or without numbers that name them."""

    def __init__(self, *, named: bool, cap: float = 3.0, window: int = 3, in_turn: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 8)
        self._used = (cap, window, in_turn)
        if named:
            self.scaling, self.logit_cap = 0.7, cap

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        cap, window, in_turn = self._used
        q, k, v = (each(x).unflatten(-1, (-1, 4)).transpose(1, 2) for each in (self.q, self.k, self.v))
        k, v = (each.repeat(1, 2, 1, 1) if in_turn else each.repeat_interleave(2, 1) for each in (k, v))
        scores = 0.7 * (q @ k.mT)
        scores = cap * (scores / cap).tanh() if cap else scores
        if hasattr(self, "scaling"):
            scores = scores + mask
        else:
            allowed = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~(allowed & ~allowed.tril(-window)), float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Around(nn.Module):
    """Attention that is given a mask of a window."""

    def __init__(self, attention: Capped) -> None:
        super().__init__()
        self.attention = attention
        for held in self.parameters():
            held.data *= 2

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()
        mask = torch.zeros(seen.shape, device=x.device).masked_fill(~(seen & ~seen.tril(-3)), float("-inf"))
        return x + self.attention(x, mask[None, None])


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        ({}, "", ""),
        ({"window": 4}, "mask", "before the last 3 in a, no position sees later ones, nor any before the last 4 in b"),
        ({"window": 9}, "mask", "no position sees later ones in b"),
        ({"cap": 0.0}, "attention_scale", "limited to 3 by tanh in a, a scale of 0.7 in b"),
        ({"cap": 5.0}, "attention_scale", "limited to 5 by tanh in b"),
        ({"in_turn": True}, "heads", "heads at equal distances share them in b"),
    ],
)
def test_attention_with_a_limit_and_a_window_is_recognised(change: dict[str, float], rule: str, words: str) -> None:
    """One side names its numbers and is given the mask, the other has both in its code."""
    pair = []
    for named in (True, False):
        torch.manual_seed(0)
        pair.append(Around(Capped(named=named, **({} if named else change))))  # type: ignore[arg-type]
    found = sonde.compare(*pair, torch.randn(2, 7, 8))
    assert found.ok is (not rule), str(found)
    assert [(cause.rule, words in cause.message) for cause in found.causes] == ([(rule, True)] if rule else []), str(found)


class TwoCells(nn.Module):
    """Two recurrent cells, each with a state of its own, or the second with that of the first."""

    def __init__(self, *, are_shared: bool) -> None:
        super().__init__()
        self.lower, self.upper, self.head = nn.GRUCell(5, 6), nn.GRUCell(6, 6), nn.Linear(6, 2)
        self.choose = (lambda lower, upper: lower) if are_shared else (lambda lower, upper: upper)

    def forward(self, x: Tensor) -> Tensor:
        lower, upper = torch.zeros(len(x), 6), torch.zeros(len(x), 6)
        for each in x.unbind(1):
            lower = self.lower(each, lower)
            upper = self.upper(lower, self.choose(lower, upper))
        return self.head(upper)


def test_a_tensor_that_stands_for_a_first_state_is_named() -> None:
    one, other = TwoCells(are_shared=False), TwoCells(are_shared=True)
    other.load_state_dict(one.state_dict())
    found = sonde.compare(one, other, torch.randn(3, 4, 5))
    assert found.culprit is not None
    assert str(found.culprit.site) == "upper:input"
    assert found.cause is not None
    assert "it is zeros in a" in found.cause.message
    assert found.cause.message.endswith("and lower:output in b")


class ByHand(nn.Module):
    """Attention by hand, which is given which keys count, and hides later ones if it *is_causal*."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, keep: Tensor, is_causal: bool) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (self.q(x), self.k(y), self.v(y)))
        scores = q @ k.mT / 2
        if is_causal:
            scores = scores.masked_fill(torch.ones(len(x[0]), len(y[0])).triu(1).bool(), float("-inf"))
        scores = scores.masked_fill(~keep[:, None, None], float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Fused(nn.Module):
    """The same with other names, which is given what is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (self.query(x), self.key(y), self.value(y)))
        bias = bias if bias.dim() == 4 else bias.unflatten(0, (len(x), -1))
        return self.out(functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))


class DecoderByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = ByHand(), ByHand()

    def forward(self, x: Tensor, y: Tensor, of_x: Tensor, of_y: Tensor) -> Tensor:
        x = x + self.own(x, x, of_x, True)
        return x + self.cross(x, y, of_y, False)


class FusedDecoder(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.attention, self.memory = Fused(), Fused()
        self.kinds = {kind}.__contains__  # which is no setting

    def forward(self, x: Tensor, y: Tensor, of_x: Tensor, of_y: Tensor) -> Tensor:
        low, length = torch.finfo(x.dtype).min, len(x[0])
        hidden = torch.ones(length, length).triu(2 if self.kinds("one later") or self.kinds("one for each head") else 1).bool()
        padded = ~(of_y if self.kinds("crossed") else of_x)
        mask = torch.zeros(len(x), 1, length, length).masked_fill(hidden | padded[:, None, None], low)
        x = x + self.attention(x, x, mask.repeat_interleave(2, 1).flatten(0, 1) if self.kinds("one for each head") else mask)
        padded = (torch.zeros_like(of_y) if self.kinds("unmasked") else ~of_y)[:, None, None]
        hidden = torch.ones(length, len(y[0])).triu(1).bool() & self.kinds("causal")
        return x + self.memory(x, y, torch.zeros(len(x), 1, length, len(y[0])).masked_fill(hidden | padded, low))


@pytest.mark.parametrize(
    ("kind", "keys", "site", "words"),
    [
        ("", 7, "", ""),
        ("", 5, "", ""),
        ("one later", 5, "own.o:input", "b alone lets through the key 1 place later"),
        ("one for each head", 7, "own.o:input", "b alone lets through the key 1 place later"),
        (
            "crossed",
            7,
            "own.o:input",
            "a alone lets through keys 3, 4, 5, 6 of sample 0 and b alone lets through keys 5, 6 of sample 1",
        ),
        ("causal", 7, "cross.o:input", "a alone lets through later keys"),
        ("causal", 5, "cross.o:input", "a alone lets through later keys"),
        ("unmasked", 5, "cross.o:input", "b alone lets through keys 3, 4 of sample 0"),
    ],
)
def test_masks_that_differ_in_some_samples_are_told_by_what_each_side_lets_through(
    kind: str, keys: int, site: str, words: str
) -> None:
    torch.manual_seed(0)
    one, other = DecoderByHand(), FusedDecoder(kind)
    for held, own in zip(other.parameters(), one.parameters(), strict=True):
        held.data.copy_(own.data)
    of_x, of_y = torch.ones(3, 7).bool(), torch.ones(3, keys).bool()
    of_x[1, 5:], of_y[0, 3:] = False, False
    found = sonde.compare(one, other, (torch.randn(3, 7, 8), torch.randn(3, keys, 8), of_x, of_y))
    assert found.ok is (not kind), str(found)
    if kind:
        assert found.culprit is not None
        assert str(found.culprit.site) == site
        assert [cause.rule for cause in found.causes] == ["mask"]
        assert words in found.causes[0].message
