"""Each cause of ``compare`` has a pair that parts by it and is equal without it; what proves nothing is not stated."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.diagnosis.compare.networks import ByHand, Recurrent, gpt, tokens
from tests.quick import quick
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.diagnosis.compare.suspects import CAUSES

Code = Callable[[Any, Tensor, Tensor], Tensor]


class Between(nn.Module):
    """A layer between two linear ones, and code in front of the last one."""

    def __init__(self, layer: nn.Module | None = None, code: Code | None = None, **given: Any) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(8, 16), layer, nn.Linear(16, 16)
        self.extra = nn.Parameter(torch.randn(16))
        self._code, self._given = code, given

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.first(x)
        y = h if self.layer is None else self.layer(h, **self._given)
        y = y if self._code is None else self._code(self, h, y)
        made: Tensor = self.last(y if mask is None else y * mask)
        return made


def between(*layers: nn.Module | None, code: tuple[Code | None, Code | None] = (None, None)) -> tuple[Any, Any]:
    """Two networks with equal linear layers, with the first and the last of *layers*, and *code* each."""
    torch.manual_seed(0)
    a = Between(layers[0] if layers else None, code[0])
    b = Between(layers[-1] if layers else None, code[1])
    return a.eval(), of_equal_ends(a, b).eval()


def of_equal_ends(a: Any, b: Any) -> Any:
    """*b* with the linear layers and the parameter of *a*."""
    for name in ("first", "last"):
        getattr(b, name).load_state_dict(getattr(a, name).state_dict())
    b.extra.data = a.extra.data.clone()
    return b


def vectors() -> Tensor:
    return torch.randn(12, 8, generator=torch.Generator().manual_seed(1))


def sequences() -> Tensor:
    return torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(1))


Made = tuple[Any, Any, Any, dict[str, Any]]
Pair = Callable[[bool], Made]
"""From whether the sides differ to ``a``, ``b``, the batch, and other arguments."""


def weight(change: Callable[[Tensor], Tensor], layer: str = "last") -> Pair:
    def make(differs: bool) -> Made:
        a, b = between(nn.Linear(16, 16))
        if differs:
            held = getattr(b, layer).weight
            held.data = change(held.data).clone()
        return a, b, vectors(), {}

    return make


def layers(a: Callable[[], nn.Module | None], b: Callable[[], nn.Module | None]) -> Pair:
    return lambda differs: (*between(a(), b() if differs else a()), vectors(), {})


def code(b: Code, a: Code | None = None, layer: Callable[[], nn.Module] = nn.Tanh, batch: Callable[[], Tensor] = vectors) -> Pair:
    return lambda differs: (*between(layer(), layer(), code=(a, b if differs else a)), batch(), {})


def after(change: Callable[[Any], Any], layer: Callable[[], nn.Module | None] = nn.Tanh) -> Pair:
    """The second network is changed."""

    def make(differs: bool) -> Made:
        a, b = between(layer(), layer())
        if layer() is not None:
            b.layer.load_state_dict(a.layer.state_dict())
        if differs:
            change(b)
        return a, b, vectors(), {}

    return make


class Mixing(nn.Module):
    """Attention; each position sees so many later ones, or all.

    Args:
        heads: their number.
        ahead: how many later positions a position sees.
        scale: times the usual one.
        base: of a rotary embedding.
        window: how many positions a position sees.
        cap: limits the scores.
        part: so many features are turned.
        later: keys are turned so many positions further.
        padding: what a mask of padding says of positions that are seen; None to leave it unread.
        kind: what else is otherwise, in a word.
    """

    def __init__(
        self,
        heads: int = 4,
        ahead: int | None = None,
        scale: float = 1.0,
        base: float | None = None,
        window: int = 99,
        cap: float = 0.0,
        part: int = 4,
        later: int = 0,
        padding: bool | None = True,
        kind: str = "",
    ) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self._form, self._kind = (heads, ahead, scale, base, window, cap, part, later, padding), kind

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        heads, ahead, scale, base, window, cap, part, later, padding = self._form
        q, k, v = (layer(x).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self._kind == "spread":
            q, k, v = (layer(x).unflatten(-1, (-1, heads)).permute(0, 3, 1, 2) for layer in (self.q, self.k, self.v))
        if self._kind.startswith("cut"):
            q, k, v = (layer(x).reshape(len(x), heads, x.size(1), -1) for layer in (self.q, self.k, self.v))
        if self._kind == "joined":
            joined = torch.cat([layer(x) for layer in (self.q, self.k, self.v)], -1)
            q, k, v = joined.unflatten(-1, (heads, 3, -1)).permute(3, 0, 2, 1, 4)
        v = rotated(v, base) if base is not None and self._kind == "values turned" else v
        if base is not None and self._kind == "queries turned":
            q = rotated(q, base)
        elif base is not None:
            q, k = (torch.cat((rotated(h[..., :part], base, f), h[..., part:]), -1) for h, f in ((q, 0), (k, later)))
        scores = q @ k.mT / math.sqrt(q.size(-1)) * scale
        scores = cap * (scores / cap).tanh() if cap else scores
        hidden = torch.ones(x.size(1), x.size(1)).tril(-window).bool()
        if ahead is not None:
            hidden = hidden | torch.ones(x.size(1), x.size(1)).triu(ahead + 1).bool()
        if seen is not None and padding is not None:
            hidden = hidden | (seen != padding)[:, None, None]
        weights = scores.softmax(-1).masked_fill(hidden, 0.0)
        if self._kind != "hidden behind":
            scores = scores.masked_fill(hidden, 0.0 if self._kind == "hidden by 0" else -1e9)
            weights = scores.softmax({"over queries": -2, "over heads": 1}.get(self._kind, -1))
        weights = scores.sigmoid() if self._kind == "sigmoid" else weights
        both = weights @ v if self._kind == "cut, joined so" else (weights @ v).transpose(1, 2)
        mixed: Tensor = self.out(both.reshape(x.shape))
        return mixed


def rotated(x: Tensor, base: float, first: int = 0) -> Tensor:
    half = x.size(-1) // 2
    angles = (first + torch.arange(x.size(-2)))[:, None] * base ** (-torch.arange(half) / half)
    cos, sin = (torch.cat((held, held), -1).to(x) for held in (angles.cos(), angles.sin()))
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def mixing(**form: Any) -> Pair:
    same = {"base": 10_000.0} if "base" in form else {}
    return lambda differs: (*between(Mixing(**same), Mixing(**(form if differs else same))), sequences(), {})


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs() * x


class Wave(nn.Module):
    def forward(self, x: Tensor, high: bool = False) -> Tensor:
        return (3 * x).sin() if high else x.sin()


def flagged(differs: bool) -> Made:
    torch.manual_seed(0)
    a, b = Between(Wave(), high=True), Between(Wave(), high=not differs)
    return a, of_equal_ends(a, b), vectors(), {}


def masks(differs: bool) -> Made:
    a, b = between(nn.Tanh())
    mask = torch.ones(12, 16)
    other = mask.clone()
    other[:, ::2] = 1 - differs
    return a, b, {"x": vectors(), "mask": mask}, {"batch_b": {"x": vectors(), "mask": other}}


def overflowing(differs: bool) -> Made:
    """Products of 2,048 and weights up to 64 are infinite in float16, and exact in float32."""
    a, b = between()
    for model in (a, b):
        for name, held in model.named_parameters():
            held.data = torch.full_like(held, 64.0 if name == "first.weight" else 0.0)
    return a, b.half() if differs else b, torch.full((12, 8), 2048.0), {"backward": False}


def tied(differs: bool) -> Made:
    a, b = between(nn.Linear(16, 16))
    b.layer.load_state_dict(a.last.state_dict())
    a.layer = nn.Linear(16, 16)
    a.layer.load_state_dict(a.last.state_dict())
    for model in (a, b)[: 1 if differs else 2]:
        model.last.weight = model.layer.weight
    return a, b, vectors(), {}


def losses(differs: bool) -> Made:
    def mean(output: Tensor) -> Tensor:
        return functional.cross_entropy(output, torch.arange(12))

    def total(output: Tensor) -> Tensor:
        return functional.cross_entropy(output, torch.arange(12), reduction="sum")

    return *between(nn.Tanh()), vectors(), {"loss_fn": (mean, total if differs else mean)}


class Decaying(torch.optim.SGD):
    """Makes the parameters smaller before its step, without a setting that says so."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for held in group["params"]:
                    held.mul_(0.9)
        super().step(closure)


def optimizers(kind: Any, *, without: int = 0) -> Pair:
    def make(differs: bool) -> Made:
        a, b = between(nn.Tanh())
        held = list(b.parameters())[without if differs else 0 :]
        other = (kind if differs else torch.optim.SGD)(held, lr=0.1)
        return a, b, vectors(), {"optimizer": (torch.optim.SGD(a.parameters(), lr=0.1), other)}

    return make


def permuted(held: Tensor) -> Tensor:
    return held[torch.randperm(len(held), generator=torch.Generator().manual_seed(5))]


def take_another(model: Any) -> None:
    model.last.weight.data = model.layer.weight.data.clone()


def dropped(model: Any, h: Tensor, y: Tensor) -> Tensor:
    return functional.dropout(y, 0.5)


def small_eps(model: Any) -> None:
    model.layer.eps = 0.1


def without_bias(model: Any) -> None:
    model.last.bias = None


def later(model: Any, h: Tensor, y: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(y[:, :1]), y[:, :-1]), 1)


def gates(is_wrong: bool) -> tuple[Any, Any, Any, dict[str, Any]]:
    """A layer of torch, and one by hand that takes its gates in another order."""
    torch.manual_seed(0)
    layer = nn.GRU(8, 4, batch_first=True)
    one, other = Recurrent(layer), Recurrent(ByHand(layer, "zrn" if is_wrong else "rzn"))
    other.head.load_state_dict(one.head.state_dict())
    return one, other, torch.randn(3, 5, 8), {}


UNDONE: dict[str, Pair] = {
    "random": code(dropped),
    "training_mode": after(lambda model: model.layer.train(), lambda: nn.BatchNorm1d(16)),
    "batch": masks,
    "argument": flagged,
    "weight_transposed": weight(lambda held: held.T),
    "weight_reshaped": weight(lambda held: held.T.reshape(16, 8), "first"),
    "weight_flipped": weight(lambda held: held.flip(0)),
    "weight_permuted": weight(permuted),
    "weight_shifted": weight(lambda held: torch.cat((held[1:], held[:1] + 1))),
    "weight_scaled": weight(lambda held: 2 * held),
    "weight_rounded": weight(lambda held: held.bfloat16().float()),
    "weight_of_another": after(take_another, lambda: nn.Linear(16, 16)),
    "weight_differs": weight(lambda held: held + torch.eye(16)),
    "bias_missing": after(without_bias),
    "weight_missing": after(
        lambda model: setattr(model, "layer", nn.RMSNorm(16, elementwise_affine=False)),
        lambda: scaled_norm(),  # noqa: PLW0108  # it stands below
    ),
    "eps": after(small_eps, lambda: nn.LayerNorm(16)),
    "setting": layers(nn.Softplus, lambda: nn.Softplus(beta=3)),
    "dtype": overflowing,
    "normalisation": layers(lambda: nn.LayerNorm(16), lambda: nn.RMSNorm(16, eps=1e-5)),
    "activation": layers(nn.ReLU, nn.GELU),
    "inputs": code(lambda model, h, y: h, layer=Square),
    "residual": code(lambda model, h, y: y, lambda model, h, y: h + y),
    "module_missing": layers(lambda: nn.LayerNorm(16), lambda: None),
    "parameter_missing": code(lambda model, h, y: y + model.extra),
    "scaled": code(lambda model, h, y: 2 * y),
    "affine": code(lambda model, h, y: 2 * y + 1),
    "permuted": code(lambda model, h, y: y.flip(-1)),
    "shifted": code(later, batch=sequences),
    "attention_scale": mixing(scale=math.sqrt(4)),
    "causal_mask": mixing(ahead=0),
    "mask": mixing(ahead=1),
    "rotary": mixing(base=500_000.0),
    "heads": mixing(heads=2),
    "operation": code(lambda model, h, y: y.cumsum(1), lambda model, h, y: y.cumsum(0)),
    "gates": gates,
    "class": layers(Cube, Square),
    "frozen": after(lambda model: model.last.requires_grad_(False)),
    "tied": tied,
    "graph_cut": code(lambda model, h, y: y.detach()),
    "loss": losses,
    "not_updated": optimizers(torch.optim.SGD, without=2),
    "weight_decay": optimizers(Decaying),
}
"""For each cause a pair that parts by it, and does not without it."""


def scaled_norm() -> nn.Module:
    norm = nn.RMSNorm(16)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    return norm


def test_every_cause_that_can_be_stated_has_a_pair_that_undoes_it() -> None:
    """That ranks hold addends shows in what they save alone: test_shards.py has its pairs."""
    assert {*UNDONE, "addends"} == CAUSES.keys()


@pytest.mark.parametrize("rule", UNDONE)
def test_a_cause_is_stated_and_without_it_the_sides_are_equal(rule: str) -> None:
    a, b, batch, others = UNDONE[rule](True)
    found = sonde.compare(a, b, batch, verbose=False, **others)
    assert not found.ok
    assert [cause.rule for cause in found.causes] == [rule], found
    a, b, batch, others = UNDONE[rule](False)
    assert sonde.compare(a, b, batch, verbose=False, **others).ok


FORMS: list[tuple[dict[str, Any], str, str]] = [
    ({"scale": 0.3}, "attention_scale", "1 / sqrt(head size) in a, a scale of 0.15 in b"),
    ({"cap": 0.5}, "attention_scale", "then limited to 0.5 by tanh in b"),
    ({"window": 4}, "mask", "no position sees later ones in a, no position sees later ones, nor any before the last 4 in b"),
    ({"base": 10_000.0, "part": 2}, "rotary", "halves, base 10000 in a, halves, base 10000, of 2 features of each head in b"),
    ({"base": 10_000.0, "later": 1}, "rotary", "keys +1 positions from queries in b"),
    ({"base": 123.0}, "rotary", "halves, base 123 in b"),
    (
        {"padding": False},
        "mask",
        "sees what seen leaves out, and no later one in b",
    ),
    ({"padding": None}, "mask", "sees what seen lets through, and no later one in a, no position sees later ones in b"),
    ({"base": 10_000.0, "kind": "queries turned"}, "rotary", "halves, base 10000, of queries alone in b"),
    ({"base": 10_000.0, "kind": "values turned"}, "rotary", "halves, base 10000, of queries, keys and values in b"),
    ({"kind": "joined"}, "heads", "as view(heads, 3, features) makes it of a joined projection in b"),
    ({"kind": "over queries"}, "activation", "softmax over keys in a, softmax over queries in b"),
    ({"kind": "over heads"}, "activation", "softmax over keys in a, softmax over heads in b"),
    ({"kind": "sigmoid"}, "activation", "softmax over keys in a, sigmoid in b"),
    ({"kind": "hidden by 0"}, "mask", "what is not seen: their scores are -inf in a, their scores are 0 in b"),
    ({"kind": "hidden behind"}, "mask", "their weights are 0, behind the softmax in b"),
    ({"kind": "spread"}, "heads", "features side by side in a, features that lie as far apart as there are heads in b"),
    (
        {"kind": "cut"},
        "heads",
        "a part of the positions, as view(heads, positions, features) makes it with no transposition in b",
    ),
    ({"kind": "cut, joined so"}, "heads", "makes it with no transposition, and so joined again in b"),
]
QUICK = ({"scale": 0.3}, {"window": 4}, {"base": 10_000.0, "later": 1}, {"padding": None})
QUICK += tuple({"kind": kind} for kind in ("over queries", "hidden behind", "spread", "cut", "joined"))
QUICK += ({"base": 10_000.0, "kind": "values turned"},)


@pytest.mark.parametrize(("form", "rule", "words"), quick(FORMS, *[each for each in FORMS if each[0] in QUICK]))
def test_attention_that_one_number_sets_apart_is_recognised_beside_that_of_the_other_side(
    form: dict[str, Any], rule: str, words: str
) -> None:
    same: dict[str, Any] = {"ahead": 0} | ({"base": 10_000.0} if "base" in form else {})
    seen = torch.ones(3, 9, dtype=torch.bool)
    seen[1, 5:] = False  # of one sample alone
    torch.manual_seed(0)
    given = {"seen": seen} if "padding" in form else {}
    a, b = (Between(Mixing(**held), **given) for held in (same, same | form))
    for model in (a, b):
        nn.init.orthogonal_(model.layer.q.weight, 3.0)  # type: ignore[union-attr, arg-type]  # it is there
        nn.init.orthogonal_(model.layer.k.weight, 3.0)  # type: ignore[union-attr, arg-type]
    b.load_state_dict(a.state_dict())
    for pair in ((a, b), (b, a)):
        found = sonde.compare(*pair, sequences() * 2, verbose=False)
        assert found.cause is not None, found
        assert (str(found.culprit and found.culprit.site), found.cause.rule) == ("layer.out:input", rule), found
        if pair[0] is a:
            assert words in found.cause.message


def test_a_tensor_that_one_side_alone_gives_to_a_layer_is_named() -> None:
    seen = torch.ones(3, 9, dtype=torch.bool).index_fill(1, torch.tensor([8]), False)
    torch.manual_seed(0)
    a = Between(Mixing())
    for pair in ((a, of_equal_ends(a, Between(Mixing(), seen=seen))), (of_equal_ends(a, Between(Mixing(), seen=seen)), a)):
        found = sonde.compare(*pair, sequences(), verbose=False)
        assert found.cause is not None, found
        assert (str(found.culprit and found.culprit.site), found.cause.rule) == ("layer.out:input", "mask"), found

    class Whole(Mixing):
        """Nothing inside is a module, so that the call is the place."""

        def __init__(self) -> None:
            super().__init__()
            held = {name: getattr(self, name) for name in ("q", "k", "v", "out")}
            for name, layer in held.items():
                delattr(self, name)
                for kind in ("weight", "bias"):
                    setattr(self, f"{name}_{kind}", getattr(layer, kind))
                setattr(self, name, lambda x, name=name: nn.functional.linear(x, *self._of(name)))  # type: ignore[misc]  # a name

        def _of(self, name: str) -> tuple[Tensor, Tensor]:
            return getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias")

    a = Between(Whole())
    found = sonde.compare(a, of_equal_ends(a, Between(Whole(), seen=seen)), sequences(), verbose=False)
    assert found.cause is not None, found
    assert (found.cause.rule, found.cause.message) == ("argument", "its argument seen is None in a and a tensor of 3×9 in b")


def test_a_tensor_that_one_side_limits_by_tanh_is_named() -> None:
    def limited(model: Any, h: Tensor, y: Tensor) -> Tensor:
        return 2 * (y / 2).tanh()

    pair = between(nn.Softplus(), nn.Softplus(), code=(None, limited))
    for side, each in (("b", pair), ("a", pair[::-1])):
        found = sonde.compare(*each, 3 * vectors(), verbose=False)
        assert found.cause is not None, found
        assert (found.cause.rule, found.cause.evidence["limit"]) == ("activation", 2.0)
        assert f"{side} limits it to 2 by tanh" in found.cause.message


def test_a_setting_in_a_dictionary_is_tried() -> None:
    class Power(nn.Module):
        def __init__(self, power: int) -> None:
            super().__init__()
            self.options = {"power": power, "other": "text"}

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = x.abs() ** self.options["power"]  # type: ignore[operator]  # a number
            return made

    found = sonde.compare(*between(Power(2), Power(3)), vectors(), verbose=False)
    assert found.cause is not None, found
    assert found.cause.message == "options.power is 2 in a and 3 in b"


class Times(nn.Module):
    """A linear layer that multiplies by its weight, not by its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.b = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel + self.b


def times() -> tuple[Any, Any]:
    a, b = between(nn.Linear(16, 16), Times())
    b.layer.kernel.data, b.layer.b.data = a.layer.weight.data.T.clone(), a.layer.bias.data.clone()
    return a, b


def test_a_weight_that_is_transposed_for_a_reason_is_no_cause() -> None:
    a, b = times()
    assert sonde.compare(a, b, vectors(), verbose=False).ok
    b.layer.b.data += 1
    found = sonde.compare(a, b, vectors(), verbose=False)
    assert [cause.message.split(":")[0] for cause in found.causes] == ["b.layer.b differs from a.layer.bias"]


def test_two_differences_at_one_place_are_both_stated() -> None:
    a, b = between(nn.LayerNorm(16))
    b.layer = nn.LayerNorm(16, eps=0.1)
    b.layer.weight.data *= 2
    found = sonde.compare(a, b, vectors(), verbose=False)
    assert {cause.rule for cause in found.causes} == {"weight_scaled", "eps"}


@pytest.mark.parametrize("name", ["scale", "gamma", "g"])
def test_the_name_of_a_weight_hides_nothing(name: str) -> None:
    class Norm(nn.Module):
        def __init__(self, name: str, eps: float) -> None:
            super().__init__()
            self._own, self.epsilon = name, eps
            setattr(self, name, nn.Parameter(torch.linspace(0.5, 1.5, 16)))

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * getattr(self, self._own)
            return made

    a, b = between(Norm("weight", 1e-6), Norm(name, 1e-6))
    found = sonde.compare(a, b, vectors(), verbose=False)
    assert found.ok
    assert [str(place.other) for place in found["layer.weight"] if place.site.port == "grad"] == [f"layer.{name}:grad"]
    b.layer.epsilon = 1e-2
    assert [cause.rule for cause in sonde.compare(a, b, vectors(), verbose=False).causes] == ["eps"]


def test_what_nothing_explains_is_said_to_be_not_explained_with_the_numbers() -> None:
    a, b = between(nn.Tanh(), code=(None, lambda model, h, y: (h * y).cos()))
    b.last.eps = a.last.eps = 1
    b.note, a.note = 1, 2  # a setting that explains nothing
    found = sonde.compare(a, b, vectors(), verbose=False)
    assert str(found.culprit.site) == "last:input"  # type: ignore[union-attr]
    assert found.causes == ()
    text = str(found)
    assert "parts here, in the code of (root); not explained" in text
    assert "note is 2 in a and 1 in b; this does not explain the place" in text


def test_a_module_is_matched_to_one_module_or_to_a_part_of_one() -> None:
    """Queries, keys and values in one layer of the second network: with another difference in front."""

    class Joined(nn.Module):
        def __init__(self, other: Mixing) -> None:
            super().__init__()
            self.qkv, self.out, self._form = nn.Linear(16, 48), copy.deepcopy(other.out), other._form
            parts = (other.q, other.k, other.v)
            self.qkv.weight.data = torch.cat([part.weight.data for part in parts])
            self.qkv.bias.data = torch.cat([part.bias.data for part in parts])

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            mixed: Tensor = self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return mixed

    a, b = between(Mixing(), Mixing())
    b.layer = Joined(a.layer)
    found = sonde.compare(a, b, sequences(), verbose=False)
    assert found.ok, found
    assert [str(place.other) for place in found["layer.k:output"]] == ["layer.qkv:output"]
    for one, other in ((a, b), (b, a)):
        turned = copy.deepcopy(b)
        turned.layer.qkv.weight.data[20] += 1
        found = sonde.compare(*(turned if each is b else each for each in (one, other)), sequences(), verbose=False)
        place = found.culprit
        assert place is not None
        assert {place.site.path, place.other.path} == {"layer.qkv", "layer.k"}
        assert found.cause is not None, found
        assert (found.cause.rule, "1 of 16 rows" in found.cause.message) == ("weight_differs", True)
        turned = copy.deepcopy(b)
        for held in turned.layer.qkv.parameters():
            held.data = torch.cat([held.data[16:32], held.data[:16], held.data[32:]])
        found = sonde.compare(*(turned if each is b else each for each in (one, other)), sequences(), verbose=False)
        assert found.cause is not None, found
        assert found.cause.rule == "weight_permuted"
        assert found.cause.message.endswith(
            "layer.qkv lie in another order than its code takes them, which is layer.q, layer.k, layer.v"
        )


def test_layers_are_no_parts_of_one_that_is_given_another_input() -> None:
    """Queries and keys have as many features together as the layer behind them, where attention is one module."""

    class Whole(nn.Module):
        def __init__(self, other: Mixing) -> None:
            super().__init__()
            self.attention, self.up = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 32)
            parts = (other.q, other.k, other.v)
            self.attention.in_proj_weight.data = torch.cat([part.weight.data for part in parts])
            self.attention.in_proj_bias.data = torch.cat([part.bias.data for part in parts])
            self.attention.out_proj.load_state_dict(other.out.state_dict())

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.up(self.attention(x, x, x, need_weights=False)[0])
            return made[..., :16]

    a, b = between(Mixing(), Mixing())
    b.layer = Whole(a.layer)
    a.layer = nn.Sequential()
    a.layer.mix, a.layer.up, a.layer.first = Mixing(), copy.deepcopy(b.layer.up), First()
    for one, other in ((a, b), (b, a)):
        found = sonde.compare(one, other, sequences(), verbose=False)
        assert found.ok, found
        assert not any("in parts" in note for note in found.notes)


class First(nn.Module):
    """Returns the first features."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :16]


def test_momentum_of_a_batch_norm_shows_in_what_the_statistics_move_by() -> None:
    a, b = between(nn.BatchNorm1d(16))
    b.layer = nn.BatchNorm1d(16, momentum=0.9)
    found = sonde.compare(a.train(), b.train(), vectors(), verbose=False)
    assert str(found.culprit.site) == "layer.running_mean:update"  # type: ignore[union-attr]
    assert [cause.message for cause in found.causes] == ["momentum is 0.1 in a and 0.9 in b"]


def test_the_second_argument_of_a_call_is_compared() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * y

    class Twice(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.product, self._factor = Product(), factor

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.product(x, self._factor * x)
            return made

    found = sonde.compare(Twice(1.0), Twice(3.0), vectors(), verbose=False)
    assert (str(found.culprit.site), found.culprit.leaf) == ("product:input", "[1]")  # type: ignore[union-attr]
    assert found.cause is not None
    assert found.cause.rule == "scaled"
    assert "(root):input in a, 3 (root):input in b" in found.cause.message


def test_models_parameters_and_modes_stay_as_they_are_while_changes_are_tried() -> None:
    a, b = gpt(), gpt("mask")
    b.blocks[0].norm1.eps = 0.1
    before = [{name: held.clone() for name, held in model.state_dict().items()} for model in (a, b)]
    sonde.compare(a, b, tokens(), verbose=False)
    for model, held in zip((a, b), before, strict=True):
        assert all(torch.equal(tensor, held[name]) for name, tensor in model.state_dict().items())
        assert not any(module.training for module in model.modules())
    assert (a.blocks[0].norm1.eps, b.blocks[0].norm1.eps) == (1e-5, 0.1)


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.factor * gradients[0], None


class Reversed(nn.Module):
    """Multiplies the gradient, by an attribute that is a setting or that is hidden."""

    def __init__(self, factor: float, name: str = "factor") -> None:
        super().__init__()
        setattr(self, name, factor)
        self._name = name

    def forward(self, x: Tensor) -> Any:
        return Reversal.apply(x, getattr(self, self._name))  # type: ignore[no-untyped-call]  # of torch


def reversed_pair(name: str) -> tuple[Any, Any]:
    """The gradient comes back two ways, of which one is multiplied by 1 or by -1."""
    return between(Reversed(1.0, name), Reversed(-1.0, name), code=(lambda model, h, y: y + h.sin(),) * 2)


def test_a_setting_of_another_module_that_acts_on_gradients_alone_is_stated() -> None:
    a, b = reversed_pair("factor")
    found = sonde.compare(a, b, vectors(), verbose=False)
    assert (found.culprit.stage, str(found.culprit.site)) == ("backward", "first:grad_output")  # type: ignore[union-attr]
    assert [cause.message for cause in found.causes] == ["layer: factor is 1 in a and -1 in b"]
    assert found.hints == ()
    b.layer.factor = 1.0
    assert sonde.compare(a, b, vectors(), verbose=False).ok


@pytest.mark.parametrize("side", ["a", "b"])
def test_of_a_gradient_that_is_passed_straight_on_the_line_is_said_and_no_loss(side: str) -> None:
    """One side passes the gradient on as it is, past a rounding; the other one has that of the rounding, which is none."""

    def straight(model: Any, h: Tensor, y: Tensor) -> Tensor:
        return y + (y.round() - y).detach()

    def rounded(model: Any, h: Tensor, y: Tensor) -> Tensor:
        return y.round()

    models = between(nn.Tanh(), code=(straight, rounded) if side == "a" else (rounded, straight))
    found = sonde.compare(*models, vectors(), verbose=False)
    assert found.culprit is not None
    assert found.cause is not None, found
    assert (str(found.culprit.site), found.cause.rule) == ("layer:grad_output", "graph_cut")
    line = straight.__code__.co_firstlineno + 1
    text = f"(y.round() - y).detach() (test_undone.py:{line}) cuts the graph of {side}"
    assert found.cause.message == f"the forward agrees: {text}: without it the gradients agree"


def test_a_factor_of_one_of_two_gradients_is_said_and_no_cut() -> None:
    a, b = reversed_pair("_hidden")
    found = sonde.compare(a, b, vectors(), verbose=False)
    assert [cause.message for cause in found.causes] == [
        "the gradient of b is that of a less 2 times the gradient at layer:grad_output"
    ]
    assert "cuts the graph" not in str(found)


class Ended(nn.Module):
    """A network with a last normalisation, of any name, that is called or forgotten."""

    def __init__(self, name: str, *, calls: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 16)
        self.add_module(name, nn.LayerNorm(16))
        self._name, self._calls = name, calls

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        made: Tensor = self.last(getattr(self, self._name)(h).sin() if self._calls else h)
        return made


@pytest.mark.parametrize("name", ["final", "norm_f"])
def test_a_module_that_is_there_and_does_not_run_is_not_said_to_be_missing(name: str) -> None:
    torch.manual_seed(0)
    a, b = Ended("final", calls=True), Ended(name, calls=False)
    nn.init.normal_(a.final.weight)
    b.load_state_dict({key.replace("final", name): held for key, held in a.state_dict().items()})
    what = "it" if name == "final" else "final, of the same parameters,"
    found = sonde.compare(a, b, vectors(), verbose=False)
    assert f"{name} is not called in b as a module; {what} ran in a" in str(found)
    assert "there is a" not in str(found)
    assert found.cause is not None, found
    assert re.fullmatch(r"layer_norm, sin in a \(.*\), and not in b", found.cause.message), found
    text = str(sonde.compare(b, a, vectors(), verbose=False))
    assert f"{name} is not called in a as a module; {what} ran in b" in text
    assert "there is a" not in text
    nn.init.normal_(getattr(b, name).bias)
    text = str(sonde.compare(a, b, vectors(), verbose=False))
    assert ("final is not called in b as a module" in text) == (name == "final")
    assert "not explained" in text


class Gate(nn.Module):
    """Code between two modules, of which the second side has other names."""

    names = ("one", "two")

    def __init__(self) -> None:
        super().__init__()
        for name in self.names:
            self.add_module(name, nn.Linear(16, 16))
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        one, two = (getattr(self, name) for name in ("one", "two"))
        made: Tensor = one(x).sigmoid() * two(x).tanh() * self.scale
        return made


class OtherGate(Gate):
    def forward(self, x: Tensor) -> Tensor:
        one, two = (getattr(self, name) for name in self.names)
        made: Tensor = one(x).cos() * two(x).tanh() * self.scale
        return made


class RenamedGate(OtherGate):
    names = ("left", "right")


@pytest.mark.parametrize("kind", [OtherGate, RenamedGate])
def test_an_operation_between_the_modules_inside_of_a_layer_is_stated(kind: type[Gate]) -> None:
    a, b = between(Gate(), kind())
    for name, other in zip(Gate.names, kind.names, strict=True):
        getattr(b.layer, other).load_state_dict(getattr(a.layer, name).state_dict())
    found = sonde.compare(a, b, vectors(), verbose=False)
    assert str(found.culprit.site) == "layer:output"  # type: ignore[union-attr]
    (cause,) = found.causes
    assert (cause.rule, re.sub(r" \(test_undone\.py:\d+\)", "", cause.message)) == ("operation", "sigmoid in a, cos in b")
    getattr(b.layer, kind.names[0]).weight.data *= 2  # a weight that differs is no difference of the code
    if kind.names == Gate.names:
        assert [cause.rule for cause in sonde.compare(a, b, vectors(), verbose=False).causes] == ["weight_scaled"]


def test_the_code_of_a_module_is_no_cause_if_another_parameter_is() -> None:
    a, b = between(Gate(), OtherGate())
    b.layer.load_state_dict(a.layer.state_dict())
    b.layer.scale.data += torch.linspace(0, 1, 16).sin()
    rules = {cause.rule for cause in sonde.compare(a, b, vectors(), verbose=False).causes}
    assert "class" not in rules


class Sum(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self._factor * branch


class Branch(nn.Module):
    """A linear layer beside its input, added by a module or by the code here."""

    def __init__(self, factor: float, *, by_module: bool) -> None:
        super().__init__()
        self.branch, self.total = nn.Linear(16, 16), Sum(factor) if by_module else None
        self._factor = factor

    def forward(self, x: Tensor) -> Tensor:
        if self.total is None:
            return x + self._factor * self.branch(x).tanh()
        made: Tensor = self.total(x, self.branch(x))
        return made


@pytest.mark.parametrize("by_module", [True, False])
def test_a_factor_of_a_branch_is_stated_where_a_module_makes_the_sum(by_module: bool) -> None:
    a, b = between(Branch(1.0, by_module=by_module), Branch(0.5, by_module=by_module))
    b.layer.load_state_dict(a.layer.state_dict())
    for one, other, factor in ((a, b, 0.5), (b, a, 2.0)):
        found = sonde.compare(one, other, vectors(), verbose=False)
        (cause,) = found.causes
        if by_module:
            halved, whole = "0.5 layer.total:input[1]", "layer.total:input[1]"
            words = (whole, halved) if factor < 1 else (halved, whole)
            assert cause.message == f"layer.total:input[0] + {words[0]} in a, layer.total:input[0] + {words[1]} in b"
        else:
            assert re.match(rf"mul 0.5 in {'b' if factor < 1 else 'a'} \(.*\), and not in", cause.message), found
    b.layer.branch.bias.data += torch.randn(16)
    assert sonde.compare(a, b, vectors(), verbose=False).causes[0].rule == "weight_differs"


TAKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "entry 0 of axis 1": lambda x: x[:, 0],
    "entry 8 (the last) of axis 1": lambda x: x[:, -1],
    "entries 3, 8, 5 of axis 1": lambda x: x[torch.arange(3), torch.tensor([3, 8, 5])],
    "the mean over axis 1": lambda x: x.mean(1),
    "the largest over axis 1": lambda x: x.amax(1),
}


class Taking(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def forward(self, x: Tensor) -> Tensor:
        return TAKEN[self._name](x)


@pytest.mark.parametrize(("one", "other"), list(itertools.pairwise(TAKEN)))
def test_another_entry_or_another_pool_is_stated(one: str, other: str) -> None:
    a, b = between(Taking(one), Taking(other))
    found = sonde.compare(a, b, sequences(), verbose=False)
    assert [cause.message for cause in found.causes] == [f"of layer:input {one} in a, {other} in b"]
    a, b = between(code=tuple((lambda model, h, y, name=name: TAKEN[name](y)) for name in (one, other)))  # type: ignore[arg-type]  # two
    found = sonde.compare(a, b, sequences(), verbose=False)
    assert [cause.message for cause in found.causes] == [f"of first:output {one} in a, {other} in b"]


def test_an_entry_that_is_changed_besides_is_no_other_entry() -> None:
    a, b = between(code=(lambda model, h, y: y[:, 0], lambda model, h, y: y[:, -1].sin()))
    (cause,) = sonde.compare(a, b, sequences(), verbose=False).causes
    assert cause.rule == "operation"


def turning(degree: float) -> Callable[[Any, Tensor, Tensor], Tensor]:
    return lambda model, h, y: functional.softplus(y, beta=degree).cos()


def largest(count: int) -> Callable[[Any, Tensor, Tensor], Tensor]:
    def code(model: Any, h: Tensor, y: Tensor) -> Tensor:
        values, places = y.topk(count, -1)
        return torch.zeros_like(y).scatter(-1, places, values)

    return code


OPERATIONS: dict[str, tuple[Code, Code, str]] = {
    "an argument": (turning(2), turning(1), "softplus has beta=2 in a, beta=1 in b"),
    "of several results": (largest(4), largest(3), "topk has k=4 in a, k=3 in b"),
    "another": (lambda model, h, y: y.erf().exp(), lambda model, h, y: y.atan().exp(), "erf in a, atan in b"),
    "several": (
        lambda model, h, y: (y.sin() * y.exp()).erf(),
        lambda model, h, y: y.atan().erf(),
        "sin, exp, mul in a, atan in b",
    ),
    "in a alone": (lambda model, h, y: (2 * y).erf().cos(), lambda model, h, y: (2 * y).cos(), "erf in a, and not in b"),
    "in a alone, at the end": (lambda model, h, y: (2 * y).erf(), lambda model, h, y: 2 * y, "erf in a, and not in b"),
    "in a alone, of an output": (lambda model, h, y: y.erf(), lambda model, h, y: y, "erf in a, and not in b"),
    "in b alone": (lambda model, h, y: (2 * y).cos(), lambda model, h, y: (2 * y).erf().cos(), "erf in b, and not in a"),
    "in two places": (
        lambda model, h, y: torch.cat((y[:, :8].sin(), y[:, 8:].cos()), 1),
        lambda model, h, y: torch.cat((y[:, :8].cos(), y[:, 8:].sin()), 1),
        "sin, cos, cat in a, cos, sin, cat in b",
    ),
}
"""The code of ``a`` and ``b`` between two layers, and what is said of them."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_of_the_code_is_stated_with_its_line(name: str) -> None:
    a_code, b_code, words = OPERATIONS[name]
    a, b = between(code=(a_code, b_code))
    (cause,) = sonde.compare(a, b, vectors(), verbose=False).causes
    assert cause.rule == "operation"
    message = re.sub(r" \(test_undone\.py:\d+\)", "", cause.message)
    assert message == words
    assert "test_undone.py:" in cause.message
    a, b = between(code=(a_code, a_code))
    assert sonde.compare(a, b, vectors(), verbose=False).ok


def test_an_operation_that_is_no_whole_cause_is_not_stated() -> None:
    """The weight behind it is another besides, and the code of ``b`` draws from a table that ``a`` has not."""
    table = torch.randn(16)
    a, b = between(code=(lambda model, h, y: (y * table).erf(), lambda model, h, y: y.atan()))
    assert sonde.compare(a, b, vectors(), verbose=False).causes == ()


class Image(nn.Module):
    """Patches of an image with positions, and a class token before them; the second side reads them column by column."""

    def __init__(self, *, columns: bool, token: bool) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 3)
        self.positions = nn.Parameter(torch.randn(12, 8))
        self.token = nn.Parameter(torch.randn(1, 1, 8)) if token else None
        self._columns = columns

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x)
        h = (h.mT if self._columns else h).flatten(2).mT + self.positions
        if self.token is not None:
            h = torch.cat((self.token.expand(len(h), 1, -1), h), 1)
        made: Tensor = self.head(h)
        return made


@pytest.mark.parametrize("token", [False, True])
def test_another_order_of_positions_is_stated_though_positions_are_added(token: bool) -> None:
    torch.manual_seed(0)
    a, b = Image(columns=False, token=token), Image(columns=True, token=token)
    b.load_state_dict(a.state_dict())
    x = torch.randn(2, 3, 6, 8)
    (cause,) = sonde.compare(a, b, x, verbose=False).causes
    order = "entries of axis 1 as a grid of 3 × 4, row by row in a and column by column in b"
    assert (cause.rule, cause.message) == ("permuted", f"b has the elements of a in another order, less positions: {order}")
    assert cause.evidence == {"axis": 1.0}
    b.patch.weight.data += torch.randn(8, 3, 2, 2)  # the order explains nothing there
    assert [cause.rule for cause in sonde.compare(a, b, x, verbose=False).causes] == ["weight_differs"]


def test_another_order_of_heads_is_stated() -> None:
    a, b = between(code=(None, lambda model, h, y: y.unflatten(-1, (8, 2)).mT.flatten(-2)))
    (cause,) = sonde.compare(a, b, sequences(), verbose=False).causes
    assert cause.rule == "permuted"
    assert "channels" in cause.message


class Turning(nn.Module):
    """Images, which the code in front of the last layer may turn."""

    def __init__(self, turn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3)
        self._turn = turn

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self._turn(self.first(x)))
        return made


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (lambda x: x.mT, "with axes 2 and 3 exchanged"),
        (lambda x: x.flip(2, 3), "with axes 2 and 3 reversed"),
        (lambda x: x.flip(2), "all 6 entries of axis 2 in reverse"),
        (lambda x: x.roll(2, 3), "in a circle, entry i of b is entry i-2 of a"),
    ],
)
def test_how_a_tensor_was_turned_is_said(turn: Callable[[Tensor], Tensor], words: str) -> None:
    a, b = Turning(lambda x: x), Turning(turn)
    batch = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    found = sonde.compare(a, b, batch, verbose=False)
    assert found.cause is not None, found
    assert found.cause.rule == "permuted"
    assert words in found.cause.message


class Normed(nn.Module):
    """Linear layers, each with a batch normalisation behind it, or with that folded into its parameters."""

    def __init__(self, of: Any = None, act: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self._act, self._has_norm = act, of is None
        if of is None:
            self.norm_one, self.norm_two = (nn.BatchNorm1d(16) for _ in range(2))
            for norm in (self.norm_one, self.norm_two):
                for held in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                    nn.init.uniform_(held, 0.5, 1.5)  # type: ignore[arg-type]  # they are there
            return
        self.out.load_state_dict(of.out.state_dict())
        for name in ("one", "two"):
            layer, norm, mine = (getattr(held, each) for held, each in ((of, name), (of, f"norm_{name}"), (self, name)))
            factor = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
            mine.weight.data = layer.weight.detach() * factor[:, None]
            mine.bias.data = (layer.bias.detach() - norm.running_mean) * factor + norm.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in ((self.one, "norm_one"), (self.two, "norm_two")):
            x = layer(x)
            x = self._act(getattr(self, norm)(x) if self._has_norm else x)
        made: Tensor = self.out(x)
        return made


def test_a_norm_that_is_folded_away_is_no_cause_of_what_differs_behind_it() -> None:
    """On either side; what differs is an activation, a weight, and the small number with which it was folded."""
    a = Normed().eval()
    b = Normed(a).eval()
    for pair in ((a, b), (b, a)):
        assert sonde.compare(*pair, vectors(), verbose=False).ok
    for one, other in ((a, Normed(a, torch.tanh).eval()), (Normed(a, torch.tanh).eval(), a)):
        found = sonde.compare(one, other, vectors(), verbose=False)
        assert str(found.culprit and found.culprit.site) == "two:input", found
        assert [cause.rule for cause in found.causes] in (["operation"], ["activation"])
    b.two.weight.data[3] += 0.3
    for pair, site in (((a, b), "norm_two:output"), ((b, a), "two:output")):
        found = sonde.compare(*pair, vectors(), verbose=False)
        assert str(found.culprit and found.culprit.site) == site, found
        assert found.causes == ()


class Gained(nn.Module):
    """A layer normalisation in front of a linear layer, with its parameters, or with them folded into that layer."""

    def __init__(self, of: Any = None, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.up, self.out = nn.Linear(8, 16), nn.Linear(16, 24), nn.Linear(24, 4)
        self._factor = factor
        if of is None:
            self.norm = nn.LayerNorm(16)
            for held in self.norm.parameters():
                nn.init.uniform_(held, 0.5, 1.5)
        else:
            self.up.bias.data += (self.up.weight @ of.norm.bias).detach()
            self.up.weight.data *= of.norm.weight.detach()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.norm(x) if hasattr(self, "norm") else functional.layer_norm(x, (16,))
        made: Tensor = self.out(self.up(x).relu() * self._factor)
        return made


def test_a_gain_that_is_folded_into_the_layer_behind_it_parts_nothing() -> None:
    """Gradients of that layer's parameters are others, and are not meant to be equal."""
    a = Gained()
    assert sonde.compare(a, Gained(a), vectors(), verbose=False).ok
    found = sonde.compare(a, Gained(a, 0.5), vectors(), verbose=False)
    assert (found.cause and found.cause.rule, str(found.culprit and found.culprit.site)) == ("scaled", "out:input"), found


class Inner(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.dense, self._share = nn.Linear(16, 16), share

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.dense(functional.dropout(x, self._share, training=True))
        return made


class Nested(nn.Module):
    """A block inside, or the same layers without one."""

    def __init__(self, share: float | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        if share is None:
            self.second = nn.Linear(16, 16)
        else:
            self.inner = Inner(share)
        self._is_flat = share is None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        made: Tensor = self.second(x) if self._is_flat else self.inner(x)
        return made


def test_dropout_in_the_code_of_a_block_that_the_other_side_lacks_is_random() -> None:
    assert sonde.compare(Nested(0.0), Nested(None), vectors(), verbose=False).ok
    for pair, side in (((Nested(0.3), Nested(None)), "a"), ((Nested(None), Nested(0.3)), "b")):
        found = sonde.compare(*(model.eval() for model in pair), vectors(), verbose=False)
        assert found.cause is not None, found
        assert found.cause.rule == "random"
        assert found.cause.message.startswith(f"{side} is random")


class Patches(nn.Module):
    """Patches of an image by a convolution, or by a linear layer of their pixels in an order of axes."""

    def __init__(self, order: tuple[int, ...] = ()) -> None:
        super().__init__()
        torch.manual_seed(0)
        convolution = nn.Conv2d(3, 16, 4, 4)
        self.proj: nn.Module = nn.Linear(48, 16) if order else convolution
        if order:
            self.proj.load_state_dict({"weight": convolution.weight.flatten(1), "bias": convolution.bias})
        self.out, self._order = nn.Linear(16, 5), order
        nn.init.ones_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self._order:
            cut = x.unflatten(3, (3, 4)).unflatten(2, (3, 4))  # samples, channels, rows, inner rows, columns, inner columns
            h = self.proj(cut.permute(0, 2, 4, *self._order).flatten(3).flatten(1, 2))
        else:
            h = self.proj(x).flatten(2).mT
        made: Tensor = self.out(h.tanh())
        return made


def test_another_order_of_axes_in_patches_is_said() -> None:
    image = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    assert sonde.compare(Patches(), Patches((1, 3, 5)), image, verbose=False).ok
    for pair, words in (((Patches(), Patches((3, 5, 1))), "2, 3, 1"), ((Patches((3, 5, 1)), Patches()), "in the order")):
        found = sonde.compare(*pair, image, verbose=False)
        assert found.cause is not None, found
        assert (found.cause.rule, str(found.culprit and found.culprit.site)) == ("weight_permuted", "proj:output"), found
        assert words in found.cause.message


class Experts(nn.Module):
    """Experts that are given the positions that chose them, or all of them."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router, self.out, self._kind = nn.Linear(8, 4), nn.Linear(8, 3), kind
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        if "as they are" not in self._kind:
            weights = weights / weights.sum(-1, keepdim=True)
        if "in reverse" in self._kind:
            weights = weights.flip(-1)
        if "dense" in self._kind:
            full = torch.zeros(len(x), 4).scatter(1, chosen, weights)
            mixed = sum((full[:, n, None] * expert(x) for n, expert in enumerate(self.experts)), torch.zeros_like(x))
        else:
            mixed = torch.zeros_like(x)
            for n, expert in enumerate(self.experts):
                rows, places = (chosen == (n + ("moved" in self._kind)) % 4).nonzero(as_tuple=True)
                mixed = mixed.index_add(0, rows, expert(x[rows]) * weights[rows, places, None])
        made: Tensor = self.out(mixed)
        return made


@pytest.mark.parametrize(
    ("kind", "site", "words"),
    [
        ("dense", "", ""),
        ("as they are", "out:input", "sum, div in a"),
        ("dense, as they are", "out:input", "sum, div in a"),
        ("in reverse", "out:input", "flip in b"),
        ("moved", "experts.0:input", ""),
    ],
)
def test_experts_that_are_given_all_positions_part_where_their_sum_does(kind: str, site: str, words: str) -> None:
    found = sonde.compare(Experts(), Experts(kind), vectors(), verbose=False)
    assert (str(found.culprit.site) if found.culprit else "") == site, found
    assert words in (found.cause.message if found.cause else ""), found


class PositionsFirst(nn.Module):
    """Torch's attention, of (positions, samples, features), or one by hand with equal parameters under other names."""

    def __init__(self, of: Any = None, scale: float = 0.5, *, is_turned: bool = True) -> None:
        super().__init__()
        self._form = scale, is_turned
        if of is None:
            self.first, self.attention, self.last = nn.Linear(8, 16), nn.MultiheadAttention(16, 4), nn.Linear(16, 5)
            nn.init.orthogonal_(self.attention.in_proj_weight, 3.0)
            return
        self.first, self.last = copy.deepcopy(of.first), copy.deepcopy(of.last)
        self.joined, self.out = nn.Linear(16, 48), copy.deepcopy(of.attention.out_proj)
        self.joined.load_state_dict({"weight": of.attention.in_proj_weight, "bias": of.attention.in_proj_bias})

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if not hasattr(self, "joined"):
            own: Tensor = self.last(self.attention(x, x, x, need_weights=False)[0])
            return own
        scale, is_turned = self._form
        x = x.transpose(0, 1) if is_turned else x
        q, k, v = self.joined(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        y = self.out(((q @ k.mT * scale).softmax(-1) @ v).transpose(1, 2).flatten(2))
        made: Tensor = self.last(y.transpose(0, 1) if is_turned else y)
        return made


@pytest.mark.slow
def test_attention_whose_positions_stand_in_front_of_the_samples_is_recognised() -> None:
    torch.manual_seed(0)
    one, batch = PositionsFirst(), torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(1))
    assert sonde.compare(one, PositionsFirst(one), batch, verbose=False).ok
    for other, rule, words in (
        (PositionsFirst(one, 1.0), "attention_scale", "no scale"),
        (PositionsFirst(one, is_turned=False), "inputs", "between entries of axis 1"),
    ):
        for pair in ((one, other), (other, one)):
            found = sonde.compare(*pair, batch, verbose=False)
            assert found.cause is not None, found
            assert found.cause.rule == rule
            assert words in found.cause.message
