"""What ``compare`` says of a tensor with which one side goes on as it is, and of numbers and weights that code takes otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde

Code = Callable[[Tensor, Tensor], Tensor]


def told(a: nn.Module, b: nn.Module, batch: Any) -> str:
    """What is said to be the cause, without lines."""
    found = sonde.compare(a, b, batch, verbose=False)
    (cause,) = found.causes
    return re.sub(r" \(\w+\.py:\d+\)", "", cause.message)


class Pairs(nn.Module):
    """Two layers and a rate for each feature; products of all pairs of what they make, each of one length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.last = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)
        self.norm, self.log_rate = nn.LayerNorm(6), nn.Parameter(torch.rand(6))
        nn.init.normal_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.one(x).relu(), functional.normalize(self.two(x), dim=-1)
        products = torch.stack([one, two, one + 1], 1)
        weights = products @ products.mT
        made = (weights @ products) * self.log_rate.exp()
        made = functional.layer_norm(made, (6,), self.norm.weight, self.norm.bias)
        return self.last(made.sum(1))


class PairsByHand(Pairs):
    """The same by other operations, but for what is *lacking*."""

    def __init__(self, lacking: str) -> None:
        super().__init__()
        self.lacking = lacking

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.one(x), self.two(x)
        one = one if self.lacking == "relu" else one.clamp(min=0)
        two = two if self.lacking == "normalize" else two / two.norm(dim=-1, keepdim=True)
        products = torch.cat([one[:, None], two[:, None], 1 + one[:, None]], 1)
        weights = torch.einsum("bij,bkj->bik", products, products)
        rate = self.log_rate if self.lacking == "exp" else torch.exp(self.log_rate)
        made = torch.einsum("bik,bkj,j->bij", weights, products, rate)
        made = made if self.lacking == "norm" else self.norm(made)
        return self.last(made.transpose(1, 2).sum(2))


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ("relu", "relu in a, and not in b"),
        ("normalize", "linalg_vector_norm, clamp_min, div in a, and not in b"),
        ("exp", "exp in a, and not in b"),
        ("norm", "layer_norm in a, and not in b"),
    ],
)
def test_what_one_side_alone_makes_of_a_tensor_is_told_where_all_behind_is_code_of_its_own(lacking: str, words: str) -> None:
    a, b, batch = Pairs(), PairsByHand(lacking), torch.randn(5, 4)

    assert sonde.compare(a, PairsByHand(""), batch, verbose=False).ok
    assert told(a, b, batch) == words


class Recurrent(nn.Module):
    """A recurrent layer, written out for *state* and *hiding*, which scores are masked by."""

    def __init__(self, state: float | None = None, hiding: float = -torch.inf) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.back, self.last = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self._state, self._hiding = state, hiding

    def forward(self, x: Tensor) -> Tensor:
        held = torch.zeros(len(x), 6) if self._state is None else x.new_full((1, 6), self._state).repeat(len(x), 1)
        made = []
        for at in range(x.size(1)):
            held = (self.first(x[:, at]) + held @ self.back.weight.T).tanh()
            made.append(held)
        y = torch.stack(made, 1)
        hidden = torch.ones(x.size(1), x.size(1)).triu(1)
        scores = y @ y.mT
        scores = scores + hidden * self._hiding if self._hiding > -torch.inf else scores.masked_fill(hidden > 0, self._hiding)
        return self.last((scores.softmax(-1) @ y).mean(1))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"state": 0.1}, "new_full has 0.1 in b, where zeros has 0 in a"),
        ({"hiding": -2.0}, "mul has -2 in b, which is not enough to mask: with -1e+09 all is masked, as in a"),
    ],
)
def test_a_number_with_which_a_tensor_is_filled_or_scores_are_masked_is_told(changed: dict[str, float], words: str) -> None:
    assert sonde.compare(Recurrent(), Recurrent(hiding=-1e9), torch.randn(3, 5, 3), verbose=False).ok
    assert told(Recurrent(), Recurrent(**changed), torch.randn(3, 5, 3)) == words


class Sampled(nn.Module):
    """What has been drawn around a mean, and a sum or a mean of what is lost."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.mean, self.spread = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 3)
        self._code = code

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        held = self.first(x).tanh()
        mean, spread = self.mean(held), self.spread(held)
        return {"loss": mean.square().mean() + self._code(mean, spread), "mean": mean}


def test_a_mean_in_the_place_of_a_sum_in_a_part_of_a_loss_is_told_with_the_entries() -> None:
    a = Sampled(lambda mean, spread: -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean())
    same = Sampled(lambda mean, spread: (mean**2 + spread.exp() - 1 - spread).sum(1).mean() / 2)
    b = Sampled(lambda mean, spread: (mean**2 + spread.exp() - 1 - spread).mean() / 2)

    assert sonde.compare(a, same, torch.randn(7, 4), verbose=False).ok
    words = "is 0.333333 times what mul makes in a: as a mean over 3 entries in b is of their sum in a"
    assert told(a, b, torch.randn(7, 4)) == f"what div makes in b {words}"


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm, self.two = nn.Linear(4, 6), nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.norm(self.one(x)))


class ByDict(nn.Module):
    """The same with functions, and parameters of other names."""

    def __init__(self, like: ByName, *, is_cut: bool) -> None:
        super().__init__()
        self.held = nn.ParameterDict({name.replace(".", "_"): each.detach().clone() for name, each in like.named_parameters()})
        self._is_cut = is_cut

    def forward(self, x: Tensor) -> Tensor:
        h = functional.linear(x, self.held["one_weight"], self.held["one_bias"])
        mean, var = h.mean(-1, keepdim=True), h.var(-1, correction=0, keepdim=True)
        var = var.detach() if self._is_cut else var
        h = (h - mean) / (var + 1e-5).sqrt()
        return functional.linear(h, self.held["two_weight"], self.held["two_bias"])


def test_gradients_of_parameters_of_equal_values_are_compared_where_one_side_has_no_layers() -> None:
    a, batch = ByName(), torch.randn(5, 4)

    assert sonde.compare(a, ByDict(a, is_cut=False), batch, verbose=False).ok
    found = sonde.compare(a, ByDict(a, is_cut=True), batch, verbose=False)
    assert found.culprit is not None
    assert str(found.culprit.site).endswith(":grad")
    assert [cause.rule for cause in found.causes] == ["graph_cut"]
