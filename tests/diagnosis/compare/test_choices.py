"""What ``compare`` says of code that does something more often, picks other entries, or calls a layer in parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.diagnosis.compare.test_undone import Code, between, of_equal_ends, sequences, vectors
from torch import Tensor, nn
from torch.nn import functional

import sonde


def told(a: Any, b: Any, batch: Any) -> str:
    """What is said to be the cause, without lines."""
    found = sonde.compare(a, b, batch, verbose=False)
    (cause,) = found.causes
    return re.sub(r" \(\w+\.py:\d+\)", "", cause.message)


def rounds(count: int) -> Code:
    def code(model: Any, h: Tensor, y: Tensor) -> Tensor:
        for _ in range(count):
            y = (y + h.erf()).sin()
        return y * 2

    return code


def kept(count: int, by: Callable[[Tensor, int], Tensor]) -> Code:
    def code(model: Any, h: Tensor, y: Tensor) -> Tensor:
        return y.masked_fill(y < by(y, count), 0).cos()

    return code


def smallest(y: Tensor, count: int) -> Tensor:
    return y.topk(count, -1).values[:, -1:]


def sorted_one(y: Tensor, count: int) -> Tensor:
    return y.sort(-1, descending=True).values[:, :count].amin(-1, keepdim=True)


def divided(count: int) -> Code:
    return lambda model, h, y: y.sort(-1).values[:, -count:].sum(1, keepdim=True) / count * h


def along(table: Tensor) -> Code:
    return lambda model, h, y: (y[:, table] + h).erf()


def edges(source: int, target: int) -> Code:
    ends = torch.tensor([[0, 1, 2, 3, 5, 8, 9], [4, 2, 7, 11, 6, 10, 1]])

    def code(model: Any, h: Tensor, y: Tensor) -> Tensor:
        return torch.zeros_like(y).index_add(0, ends[target], y[ends[source]].erf()) + h

    return code


def recurrence(limit: Callable[[Tensor], Tensor]) -> Code:
    def code(model: Any, h: Tensor, y: Tensor) -> Tensor:
        state = torch.zeros_like(y[:, 0])
        made = []
        for at in range(y.size(1)):
            state = state * 0.5 + y[:, at].sigmoid()
            made.append(h[:, at] * limit(state))
        return torch.stack(made, 1)

    return code


SAID: dict[str, tuple[Code, Code, Callable[[], Tensor], str]] = {
    "more rounds in a": (rounds(4), rounds(2), vectors, "a does add, sin 4 times, b 2 times"),
    "more rounds in b": (rounds(2), rounds(3), vectors, "b does add, sin 3 times, a 2 times"),
    "fewer of the largest": (kept(5, smallest), kept(3, sorted_one), vectors, "the 5 first are taken of what is ordered"),
    "more of the largest": (kept(3, sorted_one), kept(5, smallest), vectors, "the 3 first are taken of what is ordered"),
    "a mean of the largest": (divided(3), divided(4), vectors, "the 4 first in b, and it is divided by as many"),
    "a table": (
        along(torch.arange(16).roll(1)),
        lambda model, h, y: (y.index_select(1, torch.arange(16).flip(0)) + h).erf(),
        vectors,
        "index in a and index_select in b find entries by other indices",
    ),
    "edges": (edges(0, 1), edges(1, 0), vectors, "have their roles exchanged in the other side"),
    "each round": (recurrence(torch.tanh), recurrence(lambda state: state), sequences, "mul in b, at 9 places"),
    "numbers for channels": (
        lambda model, h, y: functional.normalize(y.unflatten(-1, (2, 8)), dim=-1).flatten(1).erf() * h.cos(),
        lambda model, h, y: y.unflatten(-1, (2, 8)).flatten(1).erf() * h.cos(),
        vectors,
        "",
    ),
}
"""The code of ``a`` and ``b``, the batch, and what is said; ``""`` for any cause."""


@pytest.mark.parametrize("name", SAID)
def test_what_code_does_more_often_or_picks_otherwise_is_said(name: str) -> None:
    one, other, batch, words = SAID[name]
    assert words in told(*between(code=(one, other)), batch())
    assert sonde.compare(*between(code=(one, one)), batch(), verbose=False).ok


@pytest.mark.parametrize("name", ["more rounds in a", "fewer of the largest", "a table", "edges"])
def test_it_is_no_cause_if_a_weight_differs_besides(name: str) -> None:
    one, other, batch, _ = SAID[name]
    a, b = between(nn.Linear(16, 16), nn.Linear(16, 16), code=(one, other))
    b.layer.load_state_dict(a.layer.state_dict())
    b.layer.weight.data[0] += 1
    found = sonde.compare(a, b, batch(), verbose=False)
    assert str(found.culprit.site) == "layer:output"
    assert found.cause.rule == "weight_differs"


class Cell(nn.Module):
    """A cell of an LSTM whose gates stand in some order."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self._order, self.weight, self.bias = order, nn.Parameter(torch.randn(64, 32)), nn.Parameter(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), 16)
        for step in x.unbind(1):
            parts = functional.linear(torch.cat((step, h), 1), self.weight, self.bias).chunk(4, 1)
            i, f, g, o = (parts[place] for place in self._order)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


def cells(*order: int) -> tuple[Any, Any]:
    a, b = between(Cell((0, 1, 2, 3)), Cell(order))
    b.layer.load_state_dict(a.layer.state_dict())
    return a, b


def test_gates_by_hand_in_another_order_are_said() -> None:
    said = told(*cells(0, 2, 1, 3), sequences())
    assert said == "b takes the 4 parts of weight, bias, one for each gate, in another order: 0, 2, 1, 3"
    assert sonde.compare(*cells(0, 1, 2, 3), sequences(), verbose=False).ok


class Whole(nn.Module):
    """A causal layer that is given all positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        made: Tensor = self.last(self.mix(h.cumsum(1)).sin())
        return made


class Stepwise(Whole):
    """The same, which is given one position at a time, and keeps the sum of those before."""

    def __init__(self, first: int, size: int) -> None:
        super().__init__()
        self.forgets, self.size = first, size

    def forward(self, x: Tensor) -> Tensor:
        total, made = torch.zeros(len(x), 1, 16), []
        for start in range(0, x.size(1), self.size):
            h = total + self.first(x[:, start : start + self.size]).cumsum(1)
            total = h[:, -1:] * (start != self.forgets)
            made.append(self.last(self.mix(h).sin()))
        return torch.cat(made, 1)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_layer_that_one_side_calls_in_parts_is_compared_part_by_part(size: int) -> None:
    torch.manual_seed(0)
    a, b, wrong = Whole(), Stepwise(-1, size), Stepwise(size, size)
    for each in (b, wrong):
        each.load_state_dict(a.state_dict())
    for one, other in ((a, b), (b, a)):
        found = sonde.compare(one, other, sequences(), verbose=False)
        assert found.ok
        assert any("calls in parts" in note for note in found.notes)
    for one, other in ((a, wrong), (wrong, a)):
        place = sonde.compare(one, other, sequences(), verbose=False).culprit
        assert (str(place.site), place.call) == ("mix:input", 2)


class Inside(nn.Module):
    """A branch with its norm inside."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return made


class Branch(nn.Module):
    """A branch whose norm stands outside."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.wide, self.narrow, self.activation = nn.Linear(16, 32), nn.Linear(32, 16), activation

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.narrow(self.activation(self.wide(x)))
        return made


class Outside(nn.Module):
    """A layer of two branches, and the norms in front of them."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.ahead = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.branches = nn.ModuleList(Branch(activation) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, branch in zip(self.ahead, self.branches, strict=True):
            x = x + branch(norm(x))
        return x


def blocks(activation: Callable[[Tensor], Tensor]) -> tuple[Any, Any]:
    a, b = between(nn.Sequential(Inside(), Inside()), Outside(activation))
    for inside, norm, branch in zip(a.layer, b.layer.ahead, b.layer.branches, strict=True):
        norm.load_state_dict(inside.norm.state_dict())
        branch.wide.load_state_dict(inside.up.state_dict())
        branch.narrow.load_state_dict(inside.down.state_dict())
    return a, of_equal_ends(a, b)


def test_a_block_with_its_norm_is_no_counterpart_of_one_behind_its_norm() -> None:
    assert sonde.compare(*blocks(functional.gelu), vectors(), verbose=False).ok
    found = sonde.compare(*blocks(functional.silu), vectors(), verbose=False)
    assert str(found.culprit.site) == "layer.0.down:input"
    assert found.cause.rule == "activation"


class Picking(nn.Module):
    """Scores, of which the smallest ones are left out by comparison with one of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.first, self.last = count, nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).sin()
        least = y.topk(self.count, -1).values[..., -1:]
        made: Tensor = self.last(y.where(y >= least, 0.0))
        return made


def test_numbers_that_are_compared_to_one_of_them_are_chosen_alike_where_rounding_is_measured() -> None:
    torch.manual_seed(0)
    a, b = Picking(4), Picking(5)
    b.load_state_dict(a.state_dict())
    found = sonde.compare(a, b, vectors(), verbose=False)
    assert not found.ok
    assert found["last:input"][0].floor < 1e-4
