"""The gradients that a walk of the graph returns are those of autograd's engine, and nothing but them is left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sonde.engine import graph_nodes


def embeddings(output: Tensor) -> list[graph_nodes.Node]:
    return [node for node in graph_nodes.nodes_before(output.grad_fn) if graph_nodes.operation_of(node) == "Embedding"]


class Reader(nn.Module):
    """Looks tokens up, and gives them to a layer."""

    def __init__(self, layer: nn.Module, take: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.table, self.layer, self.take = nn.Embedding(11, 8), layer, take

    def forward(self, tokens: Tensor) -> Tensor:
        made = self.layer(self.table(tokens) + torch.ones(5, 8, requires_grad=True))  # broadcast over samples
        return self.take(made[0] if isinstance(made, tuple) else made)


def half(x: Tensor) -> Tensor:
    """Write a part in place, and read it twice."""
    y = x.clone()
    y[:, 2:] *= 0.5
    return y + y.flip(1).relu().sum(1, keepdim=True)


READERS = {
    "a transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True),
    "an LSTM": lambda: nn.LSTM(8, 6, num_layers=2, batch_first=True),
    "a GRU": lambda: nn.GRU(8, 6, batch_first=True, bidirectional=True),
    "attention": lambda: nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 1, 8, 0.0, batch_first=True)),
    "a normalisation": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4), nn.GELU()),
}


@pytest.mark.parametrize("take", [None, half, lambda x: x.split(2, dim=-1)[1], lambda x: x.transpose(0, 1)[3]])
@pytest.mark.parametrize("kind", READERS)
def test_they_are_those_of_the_engine(kind: str, take: Callable[[Tensor], Tensor] | None) -> None:
    torch.manual_seed(0)
    model = Reader(READERS[kind](), take or (lambda x: x))
    tokens = torch.randint(11, (4, 5))
    output = model(tokens)
    weight = torch.randn_like(output)
    (node,) = embeddings(output)
    with torch.no_grad():
        found = graph_nodes.gradients_at(output, weight, {node})[node]
    assert found.shape == (4, 5, 8)
    assert all(each.grad is None for each in model.parameters())
    (output * weight).sum().backward()  # type: ignore[no-untyped-call]
    assert model.table.weight.grad is not None
    rows = torch.zeros(11, 8).index_add_(0, tokens.flatten(), found.flatten(0, 1))
    torch.testing.assert_close(rows, model.table.weight.grad)


def test_types_that_autocast_has_changed_are_changed_back() -> None:
    torch.manual_seed(0)
    model = Reader(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True))
    tokens = torch.randint(11, (4, 5))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(tokens)
    (node,) = embeddings(output)
    with torch.no_grad():
        found = graph_nodes.gradients_at(output, torch.ones_like(output).cumsum(-1), {node})[node]
    (output * torch.ones_like(output).cumsum(-1)).sum().backward()  # type: ignore[no-untyped-call]
    assert model.table.weight.grad is not None
    rows = torch.zeros(11, 8).index_add_(0, tokens.flatten(), found.flatten(0, 1))
    torch.testing.assert_close(rows, model.table.weight.grad)


def test_what_an_output_does_not_depend_on_is_left_out() -> None:
    table, other = nn.Embedding(5, 4), nn.Embedding(5, 4)
    tokens = torch.randint(5, (3, 2))
    one, two = table(tokens), other(tokens)
    nodes = {one.grad_fn, two.grad_fn}
    assert set(graph_nodes.gradients_at(one * 2, torch.ones(3, 2, 4), nodes)) == {one.grad_fn}
    assert set(graph_nodes.gradients_at(one * two, torch.ones(3, 2, 4), nodes)) == nodes


def test_a_tensor_that_has_been_written_into_is_an_error() -> None:
    table = nn.Embedding(5, 4)
    looked_up = table(torch.randint(5, (3, 2)))
    middle = looked_up * 1
    output = middle.sigmoid()
    with torch.no_grad():
        output.zero_()
    with pytest.raises(RuntimeError):  # in torch's own words
        graph_nodes.gradients_at(output, torch.ones(3, 2, 4), {looked_up.grad_fn})


def test_the_axis_of_a_softmax_is_known_and_a_sum_has_no_such() -> None:
    given = torch.ones(2, 3, requires_grad=True)
    assert graph_nodes.axis_of(given.softmax(-1).grad_fn) == 1
    assert graph_nodes.axis_of(given.log_softmax(0).grad_fn) == 0
    assert graph_nodes.axis_of(given.sum(1).grad_fn) is None
    assert graph_nodes.axis_of(given.std(1).grad_fn) is None


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [
        (lambda x: x.clamp(0, 2), (0.0, 2.0)),
        (lambda x: x.clamp(min=1), (1.0, float("inf"))),
        (lambda x: x.clamp_min(1.0), (1.0, float("inf"))),
        (nn.functional.relu6, (0.0, 6.0)),
        (lambda x: x.clamp(torch.zeros(4)), None),
        (torch.relu, None),
    ],
)
def test_limits_are_those_of_numbers(operation: Callable[[Tensor], Tensor], wanted: tuple[float, float] | None) -> None:
    assert graph_nodes.limits_of(operation(torch.randn(3, 4, requires_grad=True)).grad_fn) == wanted


def test_a_distribution_completes_a_softmax() -> None:
    x = torch.randn(3, 4, requires_grad=True) * 1
    by_logits = torch.distributions.Categorical(logits=x).logits
    by_shares = torch.distributions.Categorical(probs=x.softmax(1)).probs
    found = [graph_nodes.normalised_by(each.grad_fn) for each in (by_logits, by_shares, x - x.mean(), x / x.sum(1, keepdim=True))]
    assert found == [("LogSoftmax", 1), ("Softmax", 1), None, None]


def test_products_of_unit_vectors_are_cosines() -> None:
    x = torch.randn(3, 4, requires_grad=True) * 1
    unit = nn.functional.normalize(x, dim=1)
    several = unit @ unit.T, nn.functional.cosine_similarity(x, x + 1), x @ unit.T, x + unit
    sides = [graph_nodes.multiplied_in(each.grad_fn) for each in several]
    found = [[graph_nodes.is_unit(graph_nodes.behind(one, (*graph_nodes.MOVES, "Expand"))) for one in each] for each in sides]
    assert found == [[True, True], [True, True], [False, True], []]
    assert graph_nodes.is_unit(torch.cat([unit, unit]).grad_fn)
    assert not graph_nodes.is_unit(torch.cat([unit, unit], 1).grad_fn)  # which is longer
    factors = [graph_nodes.factor_of(each.grad_fn) for each in (x * 3, x / 4, torch.tensor(2.0) * x, x * x)]
    assert [each if each is None else float(each) for each in factors] == [3.0, 0.25, 2.0, None]


@pytest.mark.parametrize("is_lost", [True, False])
def test_terms_of_a_long_sum_are_found(is_lost: bool) -> None:
    x, loss = torch.ones((), requires_grad=True), torch.zeros(())
    for step in range(3_000):
        loss = (torch.ones(()) if is_lost and step == 5 else x * step) + loss
    node = loss.grad_fn
    assert graph_nodes.lacks_term(node)  # the sum begins with a number, and there may be one in it
    assert sum(graph_nodes.operation_of(each) == "Mul" for each in graph_nodes.terms_of(node)) == 3_000 - is_lost
    assert not graph_nodes.lacks_term((x * 2 + x * 3).grad_fn)


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "from five on": lambda x: x[..., 5:],
    "the last three": lambda x: x[:, -3:],
    "two": lambda x: x[1:3],
    "each second": lambda x: x[:, ::2],
    "transposed": lambda x: x.transpose(-1, 0),
    "in a row": lambda x: x.reshape(-1),
}


@pytest.mark.parametrize("kind", MOVES)
def test_places_are_moved_as_elements_are(kind: str) -> None:
    move = MOVES[kind]
    places = torch.arange(4 * 6 * 8).reshape(4, 6, 8)
    moved = graph_nodes.moved(move(torch.randn(4, 6, 8, requires_grad=True)).grad_fn, places)
    assert moved is not None
    assert torch.equal(moved, move(places))
