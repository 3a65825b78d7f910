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


class Listed(nn.Module):
    """Layers of a list, which are weighed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weigh, self.parts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 5, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.weigh(x).softmax(-1)
        return torch.stack([shares[:, at, None] * part(x) for at, part in enumerate(self.parts)]).sum(0)


class Stacked(nn.Module):
    """The same with one parameter, in the *order* of entries."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        listed = Listed()
        self.weigh = listed.weigh
        self.all_parts = nn.Parameter(torch.stack([listed.parts[at].weight.detach() for at in order]))  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("be,efi,bi->bf", self.weigh(x).softmax(-1), self.all_parts, x)


class Net(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.inside, self.last = nn.Linear(3, 4), inside, nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inside(self.first(x)))


def test_layers_of_a_list_that_one_parameter_holds_in_another_order_are_told() -> None:
    batch = torch.randn(6, 3)

    assert sonde.compare(Net(Listed()), Net(Stacked([0, 1, 2])), batch, verbose=False).ok
    words = "b.inside.all_parts has the entries of a.inside.parts.*.weight in another order: 2 of 3 entries moved, 1, 0, 2"
    assert told(Net(Listed()), Net(Stacked([1, 0, 2])), batch) == words
    words = "b.inside.parts.*.weight has the entries of a.inside.all_parts in another order: 2 of 3 entries moved, 1, 0, 2"
    assert told(Net(Stacked([1, 0, 2])), Net(Listed()), batch) == words


class Convolved(nn.Module):
    """A convolution, cut off behind, with a norm of its *weight* or without one."""

    def __init__(self, *, is_parametrized: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last = nn.Conv1d(3, 6, 3), nn.Linear(6, 2)
        if is_parametrized:
            nn.utils.parametrizations.weight_norm(self.conv)
            nn.init.normal_(self.conv.parametrizations.weight.original0)  # type: ignore[union-attr, arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.conv(x).mean(-1))


def test_a_weight_that_is_made_of_a_direction_and_a_length_is_compared_as_it_is_made() -> None:
    a, b, c = Convolved(is_parametrized=True), Convolved(is_parametrized=False), Convolved(is_parametrized=False)
    with torch.no_grad():
        b.conv.weight.copy_(a.conv.weight)
        c.conv.weight.copy_(a.conv.parametrizations.weight.original1)  # type: ignore[union-attr, arg-type]

    assert sonde.compare(a, b, torch.randn(2, 3, 8), verbose=False).ok
    assert told(a, c, torch.randn(2, 3, 8)) == "b's weight equals a.conv.parametrizations.weight.original1"


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.bias = nn.Linear(4, 5, bias=False), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        links = torch.zeros(len(x), len(x)).index_put((edges[1], edges[0]), torch.ones(1))
        links = links + torch.eye(len(x))
        return links @ self.lin(x) / links.sum(1)[:, None] + self.bias


class Sparse(nn.Module):
    """The same by sums over *edges*."""

    def __init__(self, dense: Dense, *, has_loops: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.has_loops = nn.Parameter(dense.lin.weight.detach().T.clone()), dense.bias, has_loops

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        src, dst = torch.cat([edges, torch.arange(len(x)).expand(2, -1)], 1) if self.has_loops else edges
        count = torch.zeros(len(x)).index_add(0, dst, torch.ones(len(dst))).clamp(min=1)
        made = torch.zeros(len(x), 5).index_add(0, dst, (x @ self.weight)[src])
        return made / count[:, None] + self.bias


class Graph(nn.Module):
    def __init__(self, *, is_sparse: bool = False, has_loops: bool = True, is_divided: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        dense = Dense()
        self._names = ("conv", "last") if is_sparse else ("inner", "out")
        self.add_module(self._names[0], Sparse(dense, has_loops=has_loops) if is_sparse else dense)
        self.add_module(self._names[1], nn.Linear(5, 2))
        self._is_sparse, self._is_divided = is_sparse, is_divided

    def forward(self, x: Tensor, edges: Tensor, group: Tensor) -> Tensor:
        inner, out = (self.get_submodule(name) for name in self._names)
        y = inner(x, edges).tanh()
        count = torch.bincount(group)
        if self._is_sparse:
            summed = torch.zeros(2, 5).index_add(0, group, y)
            return out(summed / count[:, None] if self._is_divided else summed)
        one = functional.one_hot(group).float()
        return out((one.T @ y) / one.sum(0)[:, None])


@pytest.mark.parametrize(
    ("changed", "place", "words"),
    [
        ({"has_loops": False}, "inner:output", "the edges [1] of b lack one from each node to itself, which the other side adds"),
        ({"is_divided": False}, "out:input", "div in a, and not in b"),
    ],
)
def test_a_graph_without_own_edges_or_a_mean_is_told(changed: dict[str, bool], place: str, words: str) -> None:
    edges = torch.tensor([[0, 1, 2, 3, 4, 4, 1], [1, 2, 0, 4, 3, 2, 0]])
    batch = (torch.randn(5, 4), edges, torch.tensor([0, 0, 0, 1, 1]))

    assert sonde.compare(Graph(), Graph(is_sparse=True), batch, verbose=False).ok
    found = sonde.compare(Graph(), Graph(is_sparse=True, **changed), batch, verbose=False)
    assert found.culprit is not None
    assert str(found.culprit.site) == place
    assert told(Graph(), Graph(is_sparse=True, **changed), batch) == words


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


class Typed(nn.Module):
    def __init__(self, *, is_read: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.kinds, self.last = nn.Embedding(9, 4), nn.Embedding(3, 4), nn.Linear(4, 2)
        self._is_read = is_read

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        return self.last(self.words(ids) + self.kinds(kinds if self._is_read else torch.zeros_like(ids)))


def test_a_tensor_of_the_batch_that_one_side_ignores_is_named() -> None:
    batch = {"ids": torch.randint(9, (3, 5)), "kinds": torch.randint(3, (3, 5))}

    words = "it is ['kinds'] of the batch in a, 0 in all places in b"
    assert told(Typed(is_read=True), Typed(is_read=False), batch) == words


class Last(nn.LayerNorm):
    """A norm of channels, which are the first axis of each image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm, self.deep, self.wide = nn.Conv2d(3, 6, 2, 2), Last(6), nn.Conv2d(6, 6, 3, padding=1), Last(6)
        self.mix, self.back = nn.Conv2d(6, 9, 1), nn.Conv2d(9, 6, 1)
        self.gain, self.head = nn.Parameter(torch.rand(6, 1, 1)), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        return self.head((x + self.gain * self.back(self.mix(self.wide(self.deep(x))))).mean((2, 3)))


class ChannelsLast(nn.Module):
    """The same, with channels last but in convolutions."""

    def __init__(self, like: Images, *, has_gain: bool = True, is_of_sample: bool = False) -> None:
        super().__init__()
        self.patches, self.after, self.conv, self.before = nn.Conv2d(3, 6, 2, 2), nn.LayerNorm(6), like.deep, nn.LayerNorm(6)
        self.mixing, self.narrow = nn.Linear(6, 9), nn.Linear(9, 6)
        self.scale, self.classes = nn.Parameter(torch.ones(6)), nn.Linear(6, 2)
        self._is_of_sample = is_of_sample
        with torch.no_grad():
            for layer, convolution in ((self.mixing, like.mix), (self.narrow, like.back)):
                layer.weight.copy_(convolution.weight.flatten(1))
                layer.bias.copy_(convolution.bias)  # type: ignore[arg-type]
            self.scale.copy_(like.gain.flatten() if has_gain else self.scale)
        self.patches.load_state_dict(like.stem.state_dict())
        self.classes.load_state_dict(like.head.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        norm = self.after
        x = functional.layer_norm(x, x.shape[1:]) * norm.weight + norm.bias if self._is_of_sample else norm(x)
        y = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.classes((x + self.scale * self.narrow(self.mixing(self.before(y)))).mean((1, 2)))


@pytest.mark.parametrize(
    ("changed", "place", "words"),
    [
        ({"has_gain": False}, "head:input", "b.scale differs from a.gain"),
        ({"is_of_sample": True}, "deep:input", "layer_norm has normalized_shape=(6,) in a, normalized_shape=(6, 6, 6) in b"),
    ],
)
def test_a_difference_behind_layers_that_have_channels_last_is_found(changed: dict[str, bool], place: str, words: str) -> None:
    a, batch = Images(), torch.randn(2, 3, 12, 12)

    assert sonde.compare(a, ChannelsLast(a), batch, verbose=False).ok
    found = sonde.compare(a, ChannelsLast(a, **changed), batch, verbose=False)
    assert found.culprit is not None
    assert str(found.culprit.site) == place
    assert told(a, ChannelsLast(a, **changed), batch).startswith(words)


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


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm = nn.Linear(4, 16), nn.BatchNorm1d(16, affine=False)
        with torch.no_grad():
            for held in (self.norm.running_mean, self.norm.running_var):
                held.uniform_(0.5, 1.5)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.one(x)).tanh()


class NormedByHand(nn.Module):
    def __init__(self, like: Normed, *, less: int) -> None:
        super().__init__()
        self.held = nn.ParameterDict({name.replace(".", "_"): each.detach().clone() for name, each in like.named_parameters()})
        self._less = less
        for name in ("mean", "var"):
            self.register_buffer(name, like.norm.get_buffer(f"running_{name}").clone())

    def forward(self, x: Tensor) -> Tensor:
        h = functional.linear(x, self.held["one_weight"], self.held["one_bias"])
        with torch.no_grad():
            self.get_buffer("mean").lerp_(h.mean(0), 0.1)
            self.get_buffer("var").lerp_(h.var(0, correction=self._less), 0.1)
        return ((h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()).tanh()


def test_running_variances_that_are_divided_by_n_and_by_n_less_one_are_told() -> None:
    a, batch = Normed(), torch.randn(12, 4)

    assert sonde.compare(a, NormedByHand(a, less=1), batch, verbose=False).ok
    words = "what b keeps a running mean of is 0.916667 times that of a: that of b is divided by n, that of a by n - 1, with n = 12"
    assert told(a, NormedByHand(a, less=0), batch) == words


class Cell(nn.Module):
    def __init__(self, given: int, *, more: float) -> None:
        super().__init__()
        self.of_input, self.of_state, self._more = nn.Linear(given, 16), nn.Linear(4, 16), more

    def forward(self, x: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        enter, keep, new, out = (self.of_input(x) + self.of_state(state)).chunk(4, 1)
        cell = (keep + self._more).sigmoid() * cell + enter.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell


class Tagger(nn.Module):
    """Two recurrent layers, torch's or by hand from those of *like*."""

    def __init__(self, like: Tagger | None = None, more: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(4, 2)
        if like is None:
            self.rnn = nn.LSTM(3, 4, num_layers=2, batch_first=True)
            return
        self.last.load_state_dict(like.last.state_dict())
        self.cells = nn.ModuleList(Cell(given, more=more) for given in (3, 4))
        for number, cell in enumerate(self.cells):
            for own, layer in (("ih", cell.of_input), ("hh", cell.of_state)):
                names = {"weight": f"weight_{own}_l{number}", "bias": f"bias_{own}_l{number}"}
                layer.load_state_dict({key: like.rnn.get_parameter(name) for key, name in names.items()})  # type: ignore[union-attr, operator]

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "cells"):
            return self.last(self.rnn(x)[0])
        for layer in self.cells:
            state = cell = torch.zeros(len(x), 4)
            made = []
            for at in range(x.size(1)):
                state, cell = layer(x[:, at], state, cell)
                made.append(state)
            x = torch.stack(made, 1)
        return self.last(x)


def test_one_that_cells_of_all_layers_add_to_a_gate_is_told() -> None:
    a, batch = Tagger(), torch.randn(4, 6, 3)

    assert sonde.compare(a, Tagger(a), batch, verbose=False).ok
    assert told(a, Tagger(a, more=1.0), batch) == "b adds 1 to the gate f (of i, f, g, o), a does not"


class Read(nn.Module):
    def __init__(self, *, is_normed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.query, self.key = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 5), nn.Linear(5, 5)
        self._is_normed = is_normed

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) * 2
        y = self.norm(x)
        return (self.query(y) * self.key(y if self._is_normed else x)).sum(-1)


def test_an_input_that_is_another_tensor_is_told_by_the_outputs_that_they_are() -> None:
    words = "it is norm:output in a, norm:input in b"
    assert told(Read(is_normed=True), Read(is_normed=False), torch.randn(3, 4)) == words
