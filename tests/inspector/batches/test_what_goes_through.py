"""What is found in training passes: operations that mix samples, inputs that are not read, parts that are called by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from tests.inspector.batches.test_batch_checks import VOCABULARY, Decoder, against, text, trained
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.engine import repeated_layers

pytestmark = pytest.mark.first_is_quick

ACTS = nn.ReLU


class Network(nn.Module):
    """Two layers, with what *middle* does between them."""

    def __init__(self, middle: Callable[[Tensor], Tensor], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 12), norm or nn.Identity(), nn.Linear(12, 3)
        self.middle = middle

    def forward(self, features: Tensor) -> Tensor:
        made: Tensor = self.last(self.middle(self.norm(self.first(features)).relu()))
        return made


def classes(model: nn.Module, samples: int = 24) -> Callable[[int], Tensor]:
    def loss(_: int) -> Tensor:
        x = torch.randn(samples, 8)
        return functional.cross_entropy(model(x), x[:, :3].argmax(1))

    return loss


def own_norm(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0) + 1e-3).sqrt()


def with_deviation(x: Tensor) -> Tensor:
    return x + x.std(0).mean()


@pytest.mark.parametrize("norm", [None, nn.BatchNorm1d(12)])
@pytest.mark.parametrize(
    ("middle", "told"),
    [
        (lambda x: x, ""),
        (own_norm, ""),
        (with_deviation, ""),
        (lambda x: x.mean(0, keepdim=True).expand_as(x), "between"),
        (lambda x: x.reshape(12, 24).t().contiguous(), "view"),
        (lambda x: x.softmax(0), "softmax between"),
        (lambda x: x.cumsum(0), "cumsum between"),
    ],
    ids=["nothing", "a norm by hand", "deviation of a batch", "mean", "view", "softmax", "cumsum"],
)
def test_an_operation_that_mixes_samples_is_found(middle: Callable[[Tensor], Tensor], told: str, norm: nn.Module | None) -> None:
    torch.manual_seed(0)
    model = Network(middle, norm)
    found = trained(model, classes(model))
    assert ("samples_mixed" in found) is bool(told)
    if told:
        assert told in found["samples_mixed"].message
        assert "first" in found["samples_mixed"].message or "norm" in found["samples_mixed"].message


def test_the_layer_that_mixes_samples_is_named() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.recurrent, self.head = nn.Embedding(VOCABULARY, 8), nn.LSTM(8, 16), nn.Linear(16, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            made: Tensor = self.head(self.recurrent(self.tokens(tokens))[0][:, -1])
            return made

    torch.manual_seed(0)
    model = Reader()

    def loss(_: int) -> Tensor:
        tokens = torch.randint(VOCABULARY, (12, 9))
        return functional.cross_entropy(model(tokens), tokens.sum(1) % 3)

    assert trained(model, loss)["samples_mixed"].site == "recurrent:output"


def test_a_graph_that_comes_in_an_object_is_no_fault() -> None:
    class Graph:
        def __init__(self, nodes: Tensor, edges: Tensor) -> None:
            self.nodes, self.edges = nodes, edges

    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 3)

        def forward(self, graph: Graph) -> Tensor:
            x = self.first(graph.nodes).relu()
            x = torch.zeros_like(x).index_add(0, graph.edges[1], x[graph.edges[0]])
            made: Tensor = self.last(x)
            return made

    torch.manual_seed(0)
    model = Passing()

    def loss(_: int) -> Tensor:
        nodes = torch.randn(24, 8)
        return functional.cross_entropy(model(Graph(nodes, torch.randint(24, (2, 60)))), nodes[:, :3].argmax(1))

    assert "samples_mixed" not in trained(model, loss)


def test_rows_of_one_sequence_may_be_mixed_and_shuffled_samples_may_not() -> None:
    torch.manual_seed(0)
    layer = nn.GRU(8, 12)
    model = Network(lambda x: layer(x @ torch.eye(12)[:, :8])[0])
    model.layer = layer
    walk = torch.randn(600, 8).cumsum(0)

    def sequence(step: int) -> Tensor:
        x = walk[step * 24 : (step + 1) * 24] / 10
        return functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())

    assert "samples_mixed" not in trained(model, sequence)
    assert "samples_mixed" in trained(model, classes(model))


@pytest.mark.parametrize("is_viewed", [True, False])
def test_axes_that_a_view_has_exchanged_are_found(is_viewed: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))

    def loss(_: int) -> Tensor:
        images = torch.randn(16, 8, 8, 3)
        given = images.view(16, 3, 8, 8) if is_viewed else images.permute(0, 3, 1, 2).contiguous()
        return functional.cross_entropy(model(given), (images.mean((1, 2, 3)) > 0).long())

    found = trained(model, loss)
    assert ("samples_mixed" in found) is is_viewed
    if is_viewed:
        assert "(16, 8, 8, 3) as (16, 3, 8, 8)" in found["samples_mixed"].message
        assert found["samples_mixed"].site == "(root):input[0]"


# Inputs that are not read


@pytest.mark.parametrize(
    ("middle", "told"),
    [(lambda x: x, False), (lambda x: x - x, True), (lambda x: x.amax(0, keepdim=True).expand_as(x), True)],
    ids=["nothing", "less itself", "maximum"],
)
def test_outputs_that_are_the_same_for_all_samples_are_found(middle: Callable[[Tensor], Tensor], told: bool) -> None:
    torch.manual_seed(0)
    model = Network(middle)
    found = trained(model, classes(model), steps=30)
    assert ({"input_unused", "samples_mixed"} & set(found) != set()) is told


def test_a_head_that_begins_at_zero_is_no_fault() -> None:
    torch.manual_seed(0)
    model = Network(lambda x: x)
    nn.init.zeros_(model.last.weight)
    assert "input_unused" not in trained(model, classes(model), steps=30)


class Autoencoder(nn.Module):
    """A variational one; *kind* says what it does with its posterior."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 24), ACTS(), nn.Linear(24, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 24), ACTS(), nn.Linear(24, 8))
        self.kind = kind

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, 1)
        drawn = torch.randn_like(mean) if self.kind == "noise" else mean + torch.randn_like(mean) * (log_var / 2).exp()
        drawn = mean if self.kind == "no noise" else drawn
        return self.decoder(drawn.detach() if self.kind == "detached" else drawn), mean, log_var


@pytest.mark.parametrize(("kind", "told"), [("whole", set()), ("noise", {"input_unused"}), ("detached", {"input_unused"})])
def test_a_reconstruction_that_does_not_depend_on_its_input_is_found(kind: str, told: set[str]) -> None:
    torch.manual_seed(0)
    model = Autoencoder(kind)

    def loss(_: int) -> Tensor:
        x = torch.randn(24, 8)
        made, mean, log_var = model(x)
        return functional.mse_loss(made, x) + 1e-3 * (mean.square() + log_var.exp() - log_var - 1).mean()

    assert {"input_unused"} & set(trained(model, loss, steps=30)) == told


@pytest.mark.parametrize(("kind", "is_told"), [("whole", False), ("no noise", True)])
def test_a_further_output_that_nothing_but_a_penalty_trains_is_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = Autoencoder(kind)

    def loss(_: int) -> Tensor:
        x = torch.randn(24, 8)
        made, mean, log_var = model(x)
        return functional.mse_loss(made, x) + 0.01 * (mean.square() + log_var.exp() - log_var - 1).mean()

    found = trained(model, loss, steps=60, lr=1e-2)
    assert ("penalty_alone" in found) is is_told
    assert not is_told or found["penalty_alone"].message.endswith("all that trains it is a penalty on it, or targets that are zero")


@pytest.mark.parametrize(("weight", "is_told"), [(1e-3, False), (100.0, True)])
def test_a_penalty_that_outweighs_all_else_is_found(weight: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = Autoencoder("whole")
    basis = torch.randn(3, 8)

    def loss(_: int) -> Tensor:
        x = torch.randn(24, 3) @ basis
        made, mean, log_var = model(x)
        return functional.mse_loss(made, x) + weight * (mean.square() + log_var.exp() - log_var - 1).mean()

    found = trained(model, loss, steps=120, lr=1e-2)
    assert ("penalty_alone" in found) is is_told


# Masks


class Filler(nn.Module):
    """Fills gaps; of *kind*, its padding mask is right, inverted or missing."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.tokens, self.head, self.kind = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY), kind
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)

    def forward(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        mask = ~is_padding if self.kind == "inverted" else is_padding
        made: Tensor = self.head(self.layer(self.tokens(tokens), src_key_padding_mask=mask))
        return made


@pytest.mark.parametrize(("kind", "told"), [("right", set()), ("inverted", {"padding_alone"}), ("shown", {"target_shifted"})])
def test_a_mask_of_what_fills_gaps_is_judged(kind: str, told: set[str]) -> None:
    torch.manual_seed(0)
    model = Filler(kind)

    def loss(_: int) -> Tensor:
        tokens = text(padding=True)
        is_padding = tokens == 0
        is_asked = (torch.rand(tokens.shape) < 0.4) & ~is_padding
        given = tokens if kind == "shown" else tokens.masked_fill(is_asked, VOCABULARY - 1)
        return against(model(given, is_padding), tokens.masked_fill(~is_asked, -100))

    found = trained(model, loss)
    assert {"padding_alone", "target_shifted"} & set(found) == told
    assert kind != "shown" or "not masked" in found["target_shifted"].message


def test_a_decoder_whose_input_lacks_the_last_token_is_judged_too() -> None:
    torch.manual_seed(0)
    model = Decoder("none")

    def loss(_: int) -> Tensor:
        tokens = text(padding=True)
        length = (tokens != 0).sum(1, keepdim=True)
        is_last = torch.arange(tokens.shape[1]) == length - 1
        return against(model(tokens.masked_fill(is_last, 0)[:, :-1]), tokens[:, 1:], ignore_index=0)

    assert "future_seen" in trained(model, loss)


# Parts


class Parts(nn.Module):
    """Is never called itself."""

    def __init__(self, is_right: bool) -> None:
        super().__init__()
        self.tokens, self.recurrent = nn.Embedding(VOCABULARY, 8), nn.LSTM(8, 16, batch_first=is_right)
        self.head = nn.Linear(16, 3)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("is_right", [True, False])
def test_parts_that_are_called_by_themselves_are_looked_at(is_right: bool, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.engine.clock.clock.compiler_state.has_compiled_any", lambda: False)  # as other tests may have
    torch.manual_seed(0)
    model = Parts(is_right)

    def loss(_: int) -> Tensor:
        tokens = torch.randint(VOCABULARY, (12, 9))
        return functional.cross_entropy(model.head(model.recurrent(model.tokens(tokens))[0][:, -1]), tokens.sum(1) % 3)

    found = trained(model, loss, steps=40, every=every)
    assert ("samples_mixed" in found) is not is_right
    assert is_right or found["samples_mixed"].site == "recurrent:output"


def test_between_logged_steps_no_hook_of_a_part_is_left() -> None:
    torch.manual_seed(0)
    model = Parts(is_right=True)
    optimizer = torch.optim.Adam(model.parameters())
    with sonde.watch(model, optimizer, every=10, to="memory", verbose=False):
        for step in range(25):
            tokens = torch.randint(VOCABULARY, (12, 9))
            made = model.head(model.recurrent(model.tokens(tokens))[0][:, -1])
            if step not in (0, 10, 20):
                assert not model.recurrent._forward_hooks
            optimizer.zero_grad()
            functional.cross_entropy(made, tokens.sum(1) % 3).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_part_that_is_compiled_is_not_compiled_again(in_place: bool) -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        compiled.append(graph)
        return graph.forward

    def count(watched: bool) -> int:
        torch.manual_seed(0)
        torch._dynamo.reset()
        compiled.clear()
        model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(8, 16), nn.ReLU()), "head": nn.Linear(16, 3)})
        optimizer = torch.optim.Adam(model.parameters())
        if in_place:
            model["body"].compile(backend=backend)
        body = model["body"] if in_place else torch.compile(model["body"], backend=backend)

        def step() -> None:
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            functional.cross_entropy(model["head"](body(x)), x[:, :3].argmax(1)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        step()
        first = len(compiled)
        if watched:
            with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, lenses=()):
                for _ in range(6):
                    step()
        return len(compiled) - first

    assert count(watched=True) <= count(watched=False) + 1


# Layers


@pytest.mark.parametrize(("act", "is_told"), [(nn.ReLU, False), (nn.Identity, True)])
def test_layers_without_an_activation_are_found(act: Callable[[], nn.Module], is_told: bool) -> None:
    torch.manual_seed(0)
    hidden = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), act(), nn.Dropout(0.2))
    model = nn.Sequential(nn.Linear(8, 16), act(), hidden, nn.Linear(16, 3))
    assert ("all_linear" in trained(model, classes(model))) is is_told


class Attention(nn.Module):
    """Attention of two heads over twelve places, whose scores a softmax takes over an axis."""

    def __init__(self, axis: int, *, turns: bool = False) -> None:
        super().__init__()
        self.first, self.values, self.last = nn.Linear(8, 24), nn.Linear(8, 12), nn.Linear(12, 3)
        self.axis, self.turns = axis, turns

    def forward(self, places: Tensor) -> Tensor:
        queries, keys = (each.reshape(len(places), -1, 2, 6).transpose(1, 2) for each in self.first(places).split(12, -1))
        values = self.values(places).reshape(len(places), -1, 2, 6).transpose(1, 2)
        scores = queries @ keys.transpose(-1, -2)
        weights = scores.transpose(-1, -2).softmax(self.axis).transpose(-1, -2) if self.turns else scores.softmax(self.axis)
        made: Tensor = self.last((weights @ values).transpose(1, 2).flatten(2).mean(1))
        return made


@pytest.mark.parametrize(
    ("axis", "turns", "told"),
    [(-1, False, ""), (-2, True, ""), (-2, False, "that of the queries"), (1, False, "not that of queries")],
)
def test_a_softmax_of_attention_over_another_axis_than_its_keys_is_found(axis: int, turns: bool, told: str) -> None:
    torch.manual_seed(0)
    model = Attention(axis, turns=turns)

    def loss(_: int) -> Tensor:
        x = torch.randn(16, 12, 8)
        return functional.cross_entropy(model(x), x[:, 0, :3].argmax(1))

    found = trained(model, loss)
    assert ("samples_mixed" in found) is bool(told)
    assert told in (found["samples_mixed"].message if told else "")


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    ("given", "batch_first", "is_told"), [("bsf", True, False), ("sbf", False, False), ("sbf", True, True), ("bsf", False, True)]
)
def test_a_recurrent_layer_that_takes_samples_for_steps_is_found(
    layer: type[nn.RNNBase], given: str, batch_first: bool, is_told: bool
) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.last = layer(4, 16, batch_first=batch_first), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            held, _ = self.rnn(x)
            made: Tensor = self.last(held[:, -1] if given == "bsf" else held[-1])
            return made

    torch.manual_seed(0)
    model = Reader()

    def loss(_: int) -> Tensor:
        x = torch.randn(12, 7, 4)
        made = model(x if given == "bsf" else x.transpose(0, 1).contiguous())
        return functional.cross_entropy(made, x.mean(1)[:, :3].argmax(1)[: len(made)])

    found = trained(model, loss, steps=30)
    assert ("samples_mixed" in found) is is_told
    assert not is_told or found["samples_mixed"].message.startswith("rnn takes the samples for steps")


def test_a_recurrent_layer_over_the_whole_text_as_one_sample_is_no_fault() -> None:
    torch.manual_seed(0)
    rnn, last = nn.LSTM(8, 16), nn.Linear(16, 5)
    model = nn.ModuleDict({"rnn": rnn, "last": last})

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = last(rnn(x)[0][:, 0])
            return made

    def loss(_: int) -> Tensor:
        text = torch.randint(5, (20,))
        return functional.cross_entropy(whole(functional.one_hot(text, 8).float()[:, None]), text.roll(1))

    whole = Text()
    assert "samples_mixed" not in trained(whole, loss, steps=30)


@pytest.mark.parametrize("mask", ["causal", "own place", "after"])
def test_attention_that_reads_no_other_place_is_found(mask: str) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.query, self.key, self.value = nn.Embedding(11, 16), *(nn.Linear(16, 16) for _ in range(3))
            self.last = nn.Linear(16, 11)

        def forward(self, tokens: Tensor) -> Tensor:
            held = self.tokens(tokens)
            scores = self.query(held) @ self.key(held).transpose(1, 2) / 4
            places = torch.ones(tokens.shape[1], tokens.shape[1])
            shown = {"causal": places.tril(), "own place": places.tril().triu(), "after": places.tril()}[mask].bool()
            weights = scores.masked_fill(~shown, -math.inf).softmax(-1)
            made: Tensor = self.last(held + (weights @ self.value(held) if mask != "after" else self.value(held)))
            return made

    torch.manual_seed(0)
    model = Attention()

    def loss(_: int) -> Tensor:
        tokens = torch.randint(11, (8, 12))
        return functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])

    found = trained(model, loss, steps=30)
    assert ("input_unused" in found) is (mask == "own place")  # "after" computes no weights that count: they have no gradient
    assert mask != "own place" or found["input_unused"].message.startswith("an output depends on the token at its own place alone")


@pytest.mark.parametrize(("share", "is_told"), [(0.0, False), (0.2, False), (0.8, True)])
def test_outputs_that_are_the_same_for_most_samples_are_found(share: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = Network(lambda x: x * (torch.rand(len(x), 1) >= share))
    found = trained(model, classes(model), steps=40)
    assert ("input_unused" in found) is is_told
    assert not is_told or "% of the samples" in found["input_unused"].message


def test_the_same_samples_twice_may_have_the_same_outputs() -> None:
    torch.manual_seed(0)
    model = Network(lambda x: x)

    def loss(_: int) -> Tensor:
        x = torch.randn(2, 8)[torch.arange(24) % 2]
        return functional.cross_entropy(model(x), x[:, :3].argmax(1))

    assert "input_unused" not in trained(model, loss, steps=40)


@pytest.mark.parametrize("kind", ["labels", "smoothed", "all smoothed", "one teacher", "a teacher"])
def test_targets_that_are_one_distribution_are_found(kind: str) -> None:
    torch.manual_seed(0)
    model = Network(lambda x: x)

    def loss(_: int) -> Tensor:
        x = torch.randn(24, 8)
        label = x[:, :3].argmax(1)
        if "smoothed" in kind:
            return functional.cross_entropy(model(x), label, label_smoothing=0.1 if kind == "smoothed" else 1.0)
        soft = (x[:, :3] if kind == "a teacher" else torch.tensor([0.2, 0.1, -0.3]).expand(24, 3)).softmax(1)
        return functional.cross_entropy(model(x), label if kind == "labels" else soft)

    assert ("labels_alike" in trained(model, loss)) is (kind in ("all smoothed", "one teacher"))


@pytest.mark.parametrize("kind", ["right", "negated", "reward", "sure of wrong classes"])
def test_a_cross_entropy_that_is_maximised_is_found(kind: str) -> None:
    torch.manual_seed(0)
    model = Network(lambda x: x)

    def loss(_: int) -> Tensor:
        x = torch.randn(24, 8)
        made, label = model(x) * (1e5 if "sure" in kind else 1), x[:, :3].argmax(1)
        label = (made.argmax(1) + 1) % 3 if kind == "sure of wrong classes" else label  # two classes have a gradient alone
        if kind == "reward":  # some actions become less likely
            return -(made.log_softmax(1).gather(1, label[:, None])[:, 0] * torch.randn(24)).mean()
        return functional.cross_entropy(made, label) * (-1 if kind == "negated" else 1)

    found = trained(model, loss)
    assert ("loss_unbounded" in found) is (kind == "negated")


@pytest.mark.parametrize("width", [VOCABULARY, pytest.param(20_000, marks=pytest.mark.slow)])
def test_outputs_at_a_first_token_that_all_samples_have_are_no_fault(width: int) -> None:
    torch.manual_seed(0)
    model = Decoder()
    model.head = nn.Linear(32, width)
    for each in model.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0
        if isinstance(each, nn.MultiheadAttention):
            each.dropout = 0.0

    def loss(_: int) -> Tensor:
        tokens = text()
        tokens[:, 0] = 1
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    assert "input_unused" not in trained(model, loss, steps=30)


class Narrow(nn.Module):
    """Two layers with one unit between them, of the *kind*: alone, beside another way, or two units."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.into, self.beside = kind, nn.Linear(8, 2 if kind == "two" else 1), nn.Linear(8, 3)
        self.rnn, self.last = nn.GRU(4, 1, batch_first=True), nn.Linear(2 if kind == "two" else 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        code = self.rnn(x.reshape(-1, 2, 4))[0][:, -1] if self.kind == "recurrent" else self.into(x)
        made: Tensor = self.last(code.tanh())
        if self.kind == "residual":
            return made + x[:, :3]
        return made + self.beside(x) if self.kind == "beside" else made


@pytest.mark.parametrize(("kind", "site"), [("one", "into"), ("recurrent", "rnn"), ("beside", ""), ("residual", ""), ("two", "")])
def test_one_unit_that_all_goes_through_is_told(kind: str, site: str) -> None:
    torch.manual_seed(0)
    model = Narrow(kind)
    found = trained(model, classes(model), 12)
    assert ("rank_collapse" in found) is bool(site)
    if site:
        told = found["rank_collapse"]
        assert (told.site, told.message) == (
            f"{site}:output",
            f"{site} has one unit: all that outputs know of what goes in is one number",
        )


class Coupling(nn.Module):
    """Half of each sample, of two numbers, is scaled and shifted by what a layer makes of the other, in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for place, net in enumerate(self.nets):
            kept, moved = x.chunk(2, 1)[:: -1 if place % 2 else 1]
            scale, shift = net(kept).chunk(2, 1)
            made = moved * scale.tanh().exp() + shift
            x = torch.cat([made, kept] if place % 2 else [kept, made], 1)
        return x


def test_a_half_that_is_kept_goes_beside_the_layers_of_a_flow() -> None:
    torch.manual_seed(0)
    model = Coupling()
    assert "rank_collapse" not in trained(model, lambda _: model(torch.randn(64, 2)).square().sum(1).mean(), 8)


class Translator(nn.Module):
    """Reads its source by attention, whose mask leaves padding out, or leaves it alone in."""

    def __init__(self, *, is_inverted: bool) -> None:
        super().__init__()
        self.is_inverted, self.source, self.target = is_inverted, nn.Embedding(12, 16), nn.Embedding(12, 16)
        self.encoder, self.query, self.out = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 16), nn.Linear(32, 12)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        held, asked = self.encoder(self.source(source))[0], self.target(target)
        scores = self.query(asked) @ held.transpose(1, 2) / 4
        hidden = (source != 0) if self.is_inverted else (source == 0)
        weights = scores.masked_fill(hidden[:, None], -1e9).softmax(-1)
        made: Tensor = self.out(torch.cat([asked, weights @ held], -1))
        return made


@pytest.mark.parametrize("is_inverted", [True, False])
def test_a_mask_that_leaves_the_padding_alone_in_is_told(is_inverted: bool) -> None:
    torch.manual_seed(0)
    model = Translator(is_inverted=is_inverted)

    def loss(_: int) -> Tensor:
        source = torch.randint(1, 12, (16, 8)) * (torch.arange(8) < torch.randint(3, 8, (16, 1)))
        aim = source.flip(1)
        return against(model(source, torch.cat([torch.ones(16, 1, dtype=torch.long), aim[:, :-1]], 1)), aim, ignore_index=0)

    found = trained(model, loss)
    assert ("padding_alone" in found) is is_inverted
    if is_inverted:
        assert found["padding_alone"].message.startswith("the attention behind query reads the padding of samples")


class Sensors(nn.Module):
    """An encoder of rows of features that end with zeros, whose mask leaves these out, or leaves them alone in."""

    def __init__(self, *, is_inverted: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.first, self.encoder, self.last = nn.Linear(8, 16), nn.TransformerEncoder(layer, 1), nn.Linear(16, 3)
        self.is_inverted = is_inverted

    def forward(self, x: Tensor) -> Tensor:
        is_padding = (x == 0).all(-1)
        made = self.encoder(self.first(x), src_key_padding_mask=~is_padding if self.is_inverted else is_padding)
        read: Tensor = self.last((made * ~is_padding[..., None]).sum(1))
        return read


@pytest.mark.parametrize("is_inverted", [True, False])
def test_a_mask_that_leaves_zeros_alone_in_is_told_of_an_attention_in_one_operation(is_inverted: bool) -> None:
    torch.manual_seed(0)
    model = Sensors(is_inverted=is_inverted)

    def loss(_: int) -> Tensor:
        x = torch.randn(16, 8, 8) * (torch.arange(8) < torch.randint(3, 8, (16, 1)))[..., None]
        return functional.cross_entropy(model(x), x[:, 0, :3].argmax(1))

    assert ("padding_alone" in trained(model, loss)) is is_inverted


@pytest.mark.parametrize(
    ("rule", "scales", "told"),
    [
        ("input_same", (1e-8,) * 8, "what goes into 0 is of size 1"),
        ("input_large", (1e-2,) * 6 + (30.0, 500.0), "what goes into 0 has columns of very different sizes, up to "),
        ("input_large", (1.0,) * 6 + (20.0, 20.0), ""),
        ("input_same", (1e-3,) * 8, ""),
    ],
)
@pytest.mark.parametrize("front", [nn.Identity, nn.BatchNorm1d])
def test_an_input_in_other_units_is_told_where_no_normalisation_stands_before_the_first_layer(
    rule: str, scales: Sequence[float], told: str, front: type[nn.Module]
) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)]
    model = nn.Sequential(*layers) if front is nn.Identity else nn.Sequential(nn.BatchNorm1d(8), *layers)

    def loss(_: int) -> Tensor:
        x = torch.randn(32, 8)
        return functional.cross_entropy(model(x * torch.tensor(scales)), x[:, :3].argmax(1))

    found = trained(model, loss, steps=8)
    is_told = bool(told) and front is nn.Identity
    assert (rule in found) is is_told
    assert not is_told or found[rule].message.startswith(told)


def test_an_output_that_is_made_of_parameters_alone_is_no_fault() -> None:
    """As the deviation of a distribution: what depends on the input is looked at."""
    torch.manual_seed(0)
    scale, model = nn.Parameter(torch.zeros(3)), nn.Linear(8, 3)

    class Density(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.model = scale, model

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.scale.exp().expand(len(x), 3), self.model(x)

    density = Density()

    def loss(_: int) -> Tensor:
        x = torch.randn(24, 8)
        deviation, mean = density(x)
        return (deviation.log() + (x[:, :3].sin() - mean).square() / (2 * deviation.square())).mean()

    assert "input_unused" not in trained(density, loss, 30)


@pytest.mark.parametrize("weight", [1.0, 30.0])
@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_rare_labels_that_are_never_met_are_told(kind: str, weight: float) -> None:
    """Of a training that weighs them enough they are met."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1 if kind == "binary" else 3))

    def loss(_: int) -> Tensor:
        x = torch.randn(128, 8)
        labels = (x[:, 0] + 0.7 * torch.randn(128) > 2.2).long()
        if kind == "classes":
            return functional.cross_entropy(model(x), labels, weight=torch.tensor([1.0, weight, 1.0]))
        return functional.binary_cross_entropy_with_logits(model(x)[:, 0], labels.float(), pos_weight=torch.tensor(weight))

    found = trained(model, loss, 90, lr=3e-3)
    told = found.get("labels_alike")
    assert (told is not None) is (weight == 1)
    assert told is None or "of the labels are 0: the model returns it for nearly all samples" in told.message


def test_columns_that_the_losses_of_two_backward_passes_read_are_all_trained() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(24):
            x = torch.randn(16, 8)
            made = model(x)
            optimizer.zero_grad()
            (made[:, 0] - x[:, 0]).square().mean().backward(retain_graph=True)
            (made[:, 1] - x[:, 1]).square().mean().backward()
            optimizer.step()
    assert "terms_uneven" not in {each.rule for each in inspector.findings}


def test_a_head_that_is_shared_is_no_layer_at_several_places() -> None:
    """It cannot take what it returns; nor are layers anew, or without weights, one layer."""
    head, block = nn.Linear(8, 3), nn.Linear(8, 8)
    lists = {"heads": nn.ModuleList([head] * 3), "blocks": nn.ModuleList([block] * 2), "acts": nn.ModuleList([nn.ReLU()] * 2)}
    assert repeated_layers(nn.ModuleDict(lists)) == [["blocks.0", "blocks.1"]]


@pytest.mark.parametrize(("is_one", "has_weights"), [(True, True), (False, True), (True, False)])
def test_one_layer_at_several_places_of_a_list_is_told(is_one: bool, has_weights: bool) -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh()) if has_weights else nn.Tanh()
    blocks = [block] * 3 if is_one else [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    model = nn.Sequential(nn.ModuleDict({"rows": nn.Sequential(*blocks)})["rows"], nn.Linear(8, 3))
    told = trained(model, classes(model)).get("held_twice")
    assert (told is not None) == (is_one and has_weights)
    assert told is None or (told.site == "0.0:param" and "0.0 to 0.2 are one layer, at 3 places" in told.message)


class Reader(nn.Module):
    """Tokens that an encoder reads, or a softmax over places weighs, with a mask of the padding or without."""

    def __init__(self, kind: str, *, is_masked: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Parameter(0.1 * torch.randn(12, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.query, self.last = nn.Linear(16, 1), nn.Linear(16, 3)
        self.kind, self.is_masked = kind, is_masked

    def forward(self, tokens: Tensor) -> Tensor:
        x, hidden = self.tokens(tokens) + self.places, tokens == 0
        if self.kind == "causal":
            x = self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(12), is_causal=True)
            return self.last(x[torch.arange(len(x)), (~hidden).sum(1) - 1])  # type: ignore[no-any-return]
        if self.kind == "encoder":
            x = self.encoder(x, src_key_padding_mask=hidden if self.is_masked else None)
        scores = self.query(x)[:, :, 0] if self.kind == "weighed" else torch.zeros(tokens.shape)
        weights = scores.masked_fill(hidden, -1e9).softmax(1) if self.is_masked or self.kind != "weighed" else scores.softmax(1)
        return self.last((weights[:, :, None] * x).sum(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "is_masked", "same", "is_told"),
    [
        ("encoder", False, False, True), ("weighed", False, False, True), ("encoder", True, False, False),
        ("weighed", True, False, False), ("causal", False, False, False), ("encoder", False, True, False),
    ],
)  # fmt: skip
def test_attention_to_padding_that_no_mask_leaves_out_is_told(kind: str, is_masked: bool, same: bool, is_told: bool) -> None:
    torch.manual_seed(0)
    model = Reader(kind, is_masked=is_masked)

    def loss(_: int) -> Tensor:
        lengths = torch.full((16, 1), 8) if same else torch.randint(4, 10, (16, 1))  # rows of one length end with what they hold
        tokens = torch.randint(1, 20, (16, 12)) * (torch.arange(12) < lengths)
        return functional.cross_entropy(model(tokens), tokens[:, 0] % 3)

    told = trained(model, loss, steps=8).get("padding_alone")
    assert (told is not None) is is_told
    assert told is None or ("no mask leaves it out" in told.message and told.severity == "warn")


class Series(nn.Module):
    """A recurrent layer over features, of which the *last* step is read, or the one before the padding begins."""

    def __init__(self, make: type[nn.LSTM | nn.GRU], *, has_first: bool, reads_last: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8) if has_first else nn.Identity(), nn.Linear(16, 2)
        self.layer, self.reads_last = make(8 if has_first else 3, 16, batch_first=True), reads_last

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        made = self.layer(self.first(x))[0]
        return self.last(made[:, -1] if self.reads_last else made[torch.arange(len(x)), lengths - 1])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "has_first", "reads_last", "ends"),
    [
        (nn.LSTM, False, True, "zeros"), (nn.LSTM, True, True, "zeros"), (nn.GRU, False, True, "zeros"),
        (nn.LSTM, False, False, "zeros"), (nn.LSTM, True, False, "zeros"), (nn.LSTM, True, True, "numbers"),
        (nn.GRU, False, True, "sparse"),
    ],
)  # fmt: skip
def test_the_step_of_padding_that_is_read_of_a_recurrent_layer_is_told(
    make: type[nn.LSTM | nn.GRU], has_first: bool, reads_last: bool, ends: str
) -> None:
    torch.manual_seed(0)
    model = Series(make, has_first=has_first, reads_last=reads_last)

    def loss(_: int) -> Tensor:
        lengths = torch.randint(4, 16, (24,)) if ends == "zeros" else torch.full((24,), 16)
        x = torch.randn(24, 16, 3) * (torch.arange(16) < lengths[:, None])[:, :, None]
        x = x * (torch.rand(24, 16, 1) < 0.3) if ends == "sparse" else x
        return functional.cross_entropy(model(x, lengths), (x[:, 0, 0] > 0).long())

    told = trained(model, loss, steps=8).get("padding_alone")
    assert (told is not None) is (reads_last and ends == "zeros")
    assert told is None or "padding" in told.message


class Weighing(nn.Module):
    """Steps that a softmax weighs over an axis, and outputs that end with another softmax or not."""

    def __init__(self, axis: int, last: nn.Module, first: nn.Module) -> None:
        super().__init__()
        self.first, self.score, self.out, self.last, self.axis = first, nn.Linear(4, 1), nn.Linear(4, 1), last, axis

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.out((self.score(x).softmax(self.axis) * x).sum(1)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("axis", "last", "first", "message"),
    [
        (1, nn.Sigmoid(), nn.LayerNorm(4), ""),
        (2, nn.Sigmoid(), nn.LayerNorm(4), "the softmax behind score is over one element"),
        (1, nn.Softmax(1), nn.LayerNorm(4), "the softmax behind out is over one element"),
        (1, nn.Sigmoid(), nn.Sequential(nn.Unflatten(2, (4, 1)), nn.LayerNorm(1), nn.Flatten(2)),
         "the normalisation first.1 is over one element"),
        (1, nn.Sigmoid(), nn.Sequential(nn.Flatten(1), nn.GroupNorm(24, 24), nn.Unflatten(1, (6, 4))),
         "the normalisation first.1 is over one element"),
    ],
)  # fmt: skip
def test_a_softmax_or_a_normalisation_over_one_element_is_told(axis: int, last: nn.Module, first: nn.Module, message: str) -> None:
    torch.manual_seed(0)
    model = Weighing(axis, last, first)

    def loss(_: int) -> Tensor:
        x = torch.randn(16, 6, 4)
        return functional.binary_cross_entropy(model(x), (x[:, 0, :1] > 0).float())

    told = trained(model, loss, steps=8).get("input_unused")
    assert (told is not None) is bool(message)
    assert told is None or told.message.startswith(message)


class Neighbours(nn.Module):
    """Two layers over the nodes of a graph, whose neighbours *edges* say."""

    def __init__(self, edges: Tensor) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 3)
        edges = edges + torch.eye(len(edges), device=edges.device)
        degrees = edges.sum(1).rsqrt()
        self.register_buffer("edges", degrees[:, None] * edges * degrees)

    def forward(self, nodes: Tensor) -> Tensor:
        made: Tensor = self.edges @ self.last((self.edges @ self.first(nodes)).relu())
        return made


@pytest.mark.parametrize("is_dense", [True, False])
def test_nodes_that_a_dense_graph_makes_as_good_as_equal_are_told_with_the_layer_behind_which_they_are(is_dense: bool) -> None:
    torch.manual_seed(0)
    kinds = torch.arange(300, device="cpu") % 3
    same = kinds[:, None] == kinds
    edges = (torch.rand(300, 300, device="cpu") < 0.05 * same).float()
    model = Neighbours(torch.ones_like(edges) if is_dense else edges)
    features = torch.randn(300, 8, device="cpu") + functional.one_hot(kinds, 8)

    told = trained(model, lambda _: functional.cross_entropy(model(features), kinds), steps=110, lr=3e-3).get("input_unused")
    assert (told is not None) is is_dense
    if told is not None:
        assert told.message.startswith("what the model returns is as good as the same for all samples from the first step on")
        assert told.advice.startswith("samples differ by")
        assert "in what goes into first, and by" in told.advice
        assert "in what goes into last: look behind first first" in told.advice


@pytest.mark.parametrize("is_mean", [True, False])
def test_what_a_mean_over_the_samples_makes_the_same_is_told_with_the_layer_before_it(is_mean: bool) -> None:
    torch.manual_seed(0)
    model = Network((lambda x: x.mean(0, keepdim=True).expand_as(x)) if is_mean else (lambda x: x))
    told = trained(model, classes(model), steps=30).get("input_unused")
    assert (told is not None) is is_mean
    if told is not None:
        assert "in what goes into first, and by 0 in what goes into last: look behind first first" in told.advice


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda x: x.round(), "round"),
        (lambda x: x.sign(), "sign"),
        (lambda x: torch.div(x, 0.1, rounding_mode="floor"), "div"),
        (lambda x: x + (x.round() - x).detach(), ""),
        (lambda x: x - x.floor(), ""),
        (lambda x: x.sign() * x.abs(), ""),
    ],
)
def test_layers_behind_an_operation_without_a_slope_are_told_unless_another_way_leads_to_them(
    step: Callable[[Tensor], Tensor], told: str
) -> None:
    torch.manual_seed(0)
    model = Network(step)
    found = trained(model, classes(model), steps=8)
    assert ("unreached" in found) is bool(told)
    if told:
        assert f": no gradient but zeros comes to it: the {told} behind first, which" in found["unreached"].message
        assert found["unreached"].site == "first.weight:param"
        assert set(found) == {"unreached"}


class Recurrent(nn.Module):
    """A recurrent layer whose last state is read, and with *is_averaged* the mean of all."""

    def __init__(self, *, is_averaged: bool) -> None:
        super().__init__()
        self.tokens, self.layer, self.last = nn.Embedding(6, 8), nn.RNN(8, 8, batch_first=True), nn.Linear(8, 2)
        self.is_averaged = is_averaged

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.layer(self.tokens(tokens))[0]
        made: Tensor = self.last(states.mean(1) if self.is_averaged else states[:, -1])
        return made


@pytest.mark.parametrize(
    ("is_averaged", "is_learnt", "is_told"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_first_steps_that_do_not_reach_the_output_of_a_recurrent_layer_are_told_where_the_loss_stands(
    is_averaged: bool, is_learnt: bool, is_told: bool
) -> None:
    torch.manual_seed(0)
    model = Recurrent(is_averaged=is_averaged)

    def loss(_: int) -> Tensor:
        tokens = torch.randint(6, (16, 40), device="cpu")
        labels = (tokens[:, -1 if is_learnt else 0] > 2).long()
        return functional.cross_entropy(model(tokens), labels)

    told = trained(model, loss, steps=110, lr=3e-2 if is_learnt else 1e-3).get("gradient_vanishing")
    assert (told is not None) is is_told
    if told is not None:
        assert told.severity == ("warn" if told.evidence["reach"] < 1e-7 else "note")
        assert told.message.startswith("what the model returns depends ")
        assert told.message.endswith(" x as much on the first of 40 steps as on the last")


@pytest.mark.parametrize(("samples", "size", "is_noted"), [(2, 8, True), (8, 8, False), (2, 24, False)])
def test_a_batch_normalisation_over_the_elements_of_two_samples_is_noted(samples: int, size: int, is_noted: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(2, 1, size, size, device="cpu"))

    def loss(_: int) -> Tensor:
        images = torch.randn(samples, 1, size, size, device="cpu")
        return functional.cross_entropy(model(images), (images.mean((1, 2, 3)) > 0).long())

    told = trained(model, loss, steps=10).get("norm_setting")
    assert (told is not None) is is_noted
    if told is not None:
        assert told.severity == "note"
        assert told.message == "1: its statistics are those of two samples, 72 elements of each channel or more"
