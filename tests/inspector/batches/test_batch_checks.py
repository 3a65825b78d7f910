"""What is told of training passes: what outputs depend on, which targets they are given, whether they tell samples apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.inspector.batches.look import Look
from sonde.rules import Finding

pytestmark = pytest.mark.first_is_quick

VOCABULARY, PLACES, SAMPLES = 30, 17, 16


def trained(
    model: nn.Module, loss: Callable[[int], Tensor], steps: int = 20, lr: float = 1e-3, every: int = 1
) -> dict[str, Finding]:
    """The findings of a training, by rule."""
    optimizer = torch.optim.Adam(model.parameters(), lr)
    with sonde.watch(model, optimizer, every=every, to="memory", verbose=False) as inspector:
        for step in range(steps):
            value = loss(step)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(value.item(), train=True)
    assert not inspector.errors
    return {each.rule: each for each in inspector.findings}


class Decoder(nn.Module):
    """A small transformer of tokens, with the mask that *kind* names."""

    def __init__(self, kind: str = "causal", *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, 32), nn.Embedding(PLACES, 32)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True) for _ in range(2))
        self.head = nn.Linear(32, VOCABULARY)
        self.kind, self.is_checkpointed = kind, is_checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        mask = {"causal": causal, "none": None, "inverted": causal.T}[self.kind]
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            again = torch.utils.checkpoint.checkpoint
            x = again(layer, x, mask, use_reentrant=False) if self.is_checkpointed else layer(x, mask)
        made: Tensor = self.head(x)
        return made


def text(padding: bool = False) -> Tensor:
    """Sequences that go on by one, with noise; with *padding*, most of each is the token 0."""
    found = torch.where(
        torch.rand(SAMPLES, PLACES) < 0.3,
        torch.randint(1, VOCABULARY, (SAMPLES, PLACES)),
        1 + (torch.arange(PLACES) + torch.randint(VOCABULARY, (SAMPLES, 1))) % (VOCABULARY - 1),
    )
    return found * (torch.arange(PLACES) < torch.randint(4, 8, (SAMPLES, 1))) if padding else found


def against(made: Tensor, target: Tensor, **settings: Any) -> Tensor:
    return functional.cross_entropy(made.flatten(0, 1), target.flatten(), **settings)


def next_token(model: nn.Module) -> Callable[[int], Tensor]:
    def loss(_: int) -> Tensor:
        given = text()
        return against(model(given[:, :-1]), given[:, 1:])

    return loss


SEES = "the model sees what it is to predict: an output depends on later tokens"


@pytest.mark.parametrize(("kind", "told"), [("causal", ""), ("none", SEES), ("inverted", SEES)])
def test_a_model_that_sees_the_next_token_is_told(kind: str, told: str) -> None:
    torch.manual_seed(0)
    model = Decoder(kind)
    found = trained(model, next_token(model))
    assert set(found) == ({"future_seen"} if told else set())
    if told:
        assert found["future_seen"].message.startswith(told)
        assert found["future_seen"].message.endswith("and none of those before") is (kind == "inverted")
        assert found["future_seen"].site == "(root):output"


class Heads(nn.Module):
    """Attention by hand, whose heads are put together by a transposition or by a view of what is none."""

    def __init__(self, *, is_turned: bool) -> None:
        super().__init__()
        self.qkv, self.last, self.is_turned = nn.Linear(32, 96), nn.Linear(32, 32), is_turned

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = (query @ key.transpose(-1, -2) / 8**0.5).masked_fill(torch.ones(len(x[0]), len(x[0])).triu(1).bool(), -1e9)
        made = scores.softmax(-1) @ value
        made = (made.transpose(1, 2) if self.is_turned else made).reshape(x.shape)
        return x + self.last(made)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("is_turned", "told"), [(True, set()), (False, {"samples_mixed"})])
def test_a_view_that_mixes_places_is_told_and_not_that_later_ones_are_seen_by_it(is_turned: bool, told: set[str]) -> None:
    torch.manual_seed(0)
    heads = [Heads(is_turned=is_turned) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, 32), *heads, nn.Linear(32, VOCABULARY))

    def loss(_: int) -> Tensor:
        given = text()[:, :13]
        return against(model(given[:, :-1]), given[:, 1:])

    assert set(trained(model, loss)) == told


def images(samples: int = 16, height: int = 16, width: int = 20) -> Tensor:
    """Smooth images of three colours, and some noise, ``(samples, 3, height, width)``."""
    up, along = torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij")
    waves = [2 * torch.pi * (each * torch.randn(samples, 3, 1, 1)) for each in (up, along)]
    return (waves[0] + waves[1] + 7 * torch.rand(samples, 3, 1, 1)).sin() + 0.02 * torch.randn(samples, 3, height, width)


def series(samples: int = 16, times: int = 40) -> Tensor:
    """Smooth series of three columns, ``(samples, times, 3)``."""
    return (0.3 * torch.arange(times)[:, None] * (1 + torch.rand(samples, 1, 3)) + 7 * torch.rand(samples, 1, 3)).sin()


class Encoder(nn.Module):
    """Two layers over tokens, with or without attention, causal or not, and positions that are none, zero at first, or not."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.tokens, self.head = kind, nn.Embedding(VOCABULARY, 16), nn.Linear(16, 4)
        layers = [nn.TransformerEncoderLayer(16, 2, 32, 0.1 * ("dropout" in kind), batch_first=True) for _ in range(2)]
        self.body = nn.ModuleList([nn.Linear(16, 16)] if "bag" in kind else layers)
        if "positions" in kind:
            self.positions = nn.Parameter(torch.zeros(1, PLACES, 16) if "zero" in kind else torch.randn(1, PLACES, 16))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + (self.positions if "positions" in self.kind else 0)
        mask = [nn.Transformer.generate_square_subsequent_mask(PLACES)] if "causal" in self.kind else []
        for layer in self.body:
            x = layer(x, *mask)
        made: Tensor = self.head(x if "each" in self.kind else x.mean(1))
        return made


@pytest.mark.parametrize(
    ("kind", "is_told"),
    [
        ("pooled", True), ("each", False), ("pooled, positions", False), ("each, zero positions", False), ("pooled, causal", False),
        ("each, causal", False), ("pooled, dropout", False), ("bag", False),
    ],
)  # fmt: skip
def test_attention_that_does_not_see_the_order_of_tokens_is_told(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = Encoder(kind)

    def loss(_: int) -> Tensor:
        given = text()
        return against(model(given), given % 4) if "each" in kind else functional.cross_entropy(model(given), given[:, 0] % 4)

    found = trained(model, loss, 200 if "pooled" in kind else 30)  # where the loss falls, their order does not matter
    assert ("input_unused" in found) is is_told
    if is_told:
        told = found["input_unused"]
        assert (told.severity, "the order of tokens says nothing" in told.message, "positions" in told.advice) == (
            "warn",
            True,
            True,
        )


INPUTS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "images": (images, ""),
    "colours last": (lambda: images().permute(0, 2, 3, 1), ""),
    "noise": (lambda: torch.randn(16, 3, 16, 20), ""),
    "one image for all colours": (lambda: images()[:, :1].expand(-1, 3, -1, -1), ""),
    "tokens": (lambda: functional.one_hot(torch.randint(0, 12, (16, 20)), 12).float(), ""),
    "series": (series, ""),
    "series, columns first": (lambda: series().transpose(1, 2), ""),
    "one series in three columns": (lambda: series()[..., :1].expand(-1, -1, 3).contiguous(), ""),
    "windows": (lambda: series(1, 60)[0, :, :2].unfold(0, 40, 1).transpose(1, 2)[:16], ""),
    "colours last, viewed": (lambda: images().permute(0, 2, 3, 1).reshape(16, 3, 16, 20) + 0, "16×16×20×3"),
    "samples last, viewed": (lambda: images(12).permute(1, 2, 3, 0).reshape(12, 3, 16, 20) + 0, "3×16×20×12"),
    "series, viewed": (lambda: series().reshape(16, 3, 40) + 0, "16×40×3"),
    "series, times first, viewed": (lambda: series().transpose(0, 1).reshape(16, 40, 3) + 0, "40×16×3"),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_that_a_view_has_filled_in_another_order_of_axes_is_told(kind: str) -> None:
    torch.manual_seed(0)
    made, before = INPUTS[kind]
    shape = made().shape
    model = nn.Sequential(nn.Flatten(), nn.Linear(shape[1:].numel(), 8), nn.ReLU(), nn.Linear(8, 1))
    found = trained(model, lambda _: (model(x := made()) - x.flatten(1)[:, :1] * x.flatten(1)[:, 5:6]).square().mean())
    assert ("samples_mixed" in found) is bool(before)
    if before:
        told = found["samples_mixed"]
        assert (told.site, told.severity) == ("(root):input", "warn")
        assert (
            f"what goes in {'×'.join(map(str, shape))} is as if a view, or a reshape, had made it of a tensor {before}:"
            in told.message
        )


@pytest.mark.parametrize("ahead", [-1, 0, 1, 2, 3])
def test_targets_at_another_place_than_the_next_are_told(ahead: int) -> None:
    torch.manual_seed(0)
    model = Decoder()

    def loss(_: int) -> Tensor:
        given = text()
        start, end = max(-ahead, 0), PLACES - max(ahead, 0)
        return against(model(given)[:, start:end], given[:, start + ahead : end + ahead])

    found = trained(model, loss)
    assert set(found) == (set() if ahead == 1 else {"target_shifted"})
    assert ahead == 1 or found["target_shifted"].value == ahead


def test_tokens_that_both_directions_may_see_are_no_fault_where_only_masked_ones_are_asked_for() -> None:
    torch.manual_seed(0)
    model = Decoder("none")

    def loss(_: int) -> Tensor:
        given = text()
        is_hidden = torch.rand(given.shape) < 0.15
        return against(model(given.masked_fill(is_hidden, 0)), given.masked_fill(~is_hidden, -100))

    assert not trained(model, loss)


@pytest.mark.parametrize("ignored", [0, -100])
def test_padding_that_counts_is_told(ignored: int) -> None:
    torch.manual_seed(0)
    model = Decoder()

    def loss(_: int) -> Tensor:
        given = text(padding=True)
        return against(model(given[:, :-1]), given[:, 1:], ignore_index=ignored)

    assert set(trained(model, loss)) == ({"padding_counted"} if ignored else set())


class Sorter(nn.Module):
    """Reads a class off a sequence; of *order*, samples first is right."""

    def __init__(self, is_right: bool) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(VOCABULARY, 8), nn.GRU(8, 16, batch_first=is_right)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.head(self.layer(self.tokens(tokens))[0][:, -1])
        return made


@pytest.mark.parametrize("is_right", [True, False])
def test_a_recurrent_layer_that_takes_samples_for_time_is_told(is_right: bool) -> None:
    torch.manual_seed(0)
    model = Sorter(is_right)

    def loss(_: int) -> Tensor:
        given = text()
        return functional.cross_entropy(model(given), given[:, 0] % 3)

    assert ("samples_mixed" in trained(model, loss, steps=8)) is not is_right


def test_time_in_front_is_no_fault() -> None:
    torch.manual_seed(0)
    tokens, layer, head = nn.Embedding(VOCABULARY, 8), nn.GRU(8, 16), nn.Linear(16, VOCABULARY)

    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList((tokens, layer, head))

        def forward(self, given: Tensor) -> Tensor:
            made: Tensor = head(layer(tokens(given))[0])
            return made

    model = TimeFirst()

    def loss(_: int) -> Tensor:
        given = text().T
        return against(model(given[:-1]), given[1:])

    assert not trained(model, loss)


def test_outputs_and_targets_in_another_order_are_told() -> None:
    torch.manual_seed(0)
    model = Decoder()

    def loss(_: int) -> Tensor:
        given = text()
        return against(model(given[:, :-1]).transpose(0, 1), given[:, 1:])

    found = trained(model, loss)["samples_mixed"]
    assert (
        found.message
        == "the loss compares the outputs of one place with the targets of another: one goes by samples, the other by places"
    )


@pytest.mark.parametrize("is_inverted", [True, False])
def test_a_mask_the_wrong_way_round_is_told(is_inverted: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **settings))

    def loss(_: int) -> Tensor:
        mask = (torch.arange(20) < torch.randint(5, 18, (16, 1))).long()
        given = torch.randint(1, 50, (16, 20)) * mask
        made = model(input_ids=given, attention_mask=1 - mask if is_inverted else mask, labels=given[:, 0] % 2)
        value: Tensor = made.loss
        return value

    assert set(trained(model, loss, steps=8)) == ({"padding_alone"} if is_inverted else set())


@pytest.mark.parametrize("is_inverted", [True, False])
@pytest.mark.parametrize("pools", [True, False])
def test_a_mask_the_wrong_way_round_is_told_of_frozen_embeddings(is_inverted: bool, pools: bool) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(20, 32), nn.Embedding(12, 32)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2))
            self.head = nn.Linear(32, 3)
            self.tokens.requires_grad_(False)
            self.places.requires_grad_(False)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            x = self.tokens(tokens) + self.places.weight
            for layer in self.layers:
                x = layer(x, src_key_padding_mask=mask == 0)
            pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True) if pools else x[:, 0]
            made: Tensor = self.head(pooled)
            return made

    torch.manual_seed(0)
    model = Pooled()

    def loss(_: int) -> Tensor:
        mask = (torch.arange(12) < torch.randint(5, 10, (16, 1))).long()
        given = torch.randint(1, 20, (16, 12)) * mask
        return functional.cross_entropy(model(given, 1 - mask if is_inverted else mask), given.sum(1) % 3)

    found = trained(model, loss, steps=8)
    assert ("padding_alone" in found) is is_inverted
    assert not is_inverted or "reads the padding of samples, and none of their tokens" in found["padding_alone"].message


@pytest.mark.parametrize("kind", ["inverted", "right", "none"])
def test_attention_to_the_states_of_padding_alone_is_told_though_these_hold_some_of_the_tokens(kind: str) -> None:
    """As of a recurrent encoder, whose states of padding come behind those of tokens; attention without a mask reads both."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(20, 32, padding_idx=0)
            self.encoder, self.decoder = nn.GRU(32, 16, batch_first=True, bidirectional=True), nn.GRU(32, 32, batch_first=True)
            self.head = nn.Linear(64, 20)

        def forward(self, source: Tensor, before: Tensor) -> Tensor:
            states = self.encoder(self.tokens(source))[0]
            asked = self.decoder(self.tokens(before))[0]
            left_out = {"inverted": source != 0, "right": source == 0, "none": source < 0}[kind]
            scores = (asked @ states.transpose(1, 2)).masked_fill(left_out[:, None], -1e9)
            made: Tensor = self.head(torch.cat([asked, scores.softmax(-1) @ states], -1))
            return made

    torch.manual_seed(0)
    model = Translator()

    def loss(_: int) -> Tensor:
        source = torch.randint(1, 20, (16, 9)) * (torch.arange(9) < torch.randint(4, 8, (16, 1)))
        target = torch.randint(1, 20, (16, 7))
        return functional.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())

    told = trained(model, loss, steps=10).get("padding_alone")
    assert (told is not None) is (kind != "right")
    assert told is None or ("no mask leaves it out" in told.message) is (kind == "none")


def mlp(outputs: int, last: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, outputs), *(() if last is None else (last,)))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("one class", "all labels of the first 10 training passes, 320 samples, are one class"),
        ("sorted", "all labels of a batch are one class, in each of 10 training passes, and 4 classes in all"),
        ("several", ""),
        ("a positive in front", ""),
    ],
)
def test_labels_that_are_alike_are_told(kind: str, told: str) -> None:
    torch.manual_seed(0)
    model = mlp(4)

    def loss(step: int) -> Tensor:
        x = torch.randn(32, 8)
        labels = {"one class": torch.full((32,), 2), "sorted": torch.full((32,), step % 4), "several": x[:, :4].argmax(1)}
        return functional.cross_entropy(model(x), labels.get(kind, torch.zeros(32, dtype=torch.int64)))

    class InFront(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = model

        def forward(self, x: Tensor) -> Tensor:
            made = functional.normalize(self.part(x), dim=1)
            return torch.cat([made.square().sum(1, keepdim=True), made @ made.detach().T], 1) / 0.1

    whole = InFront()
    if kind == "a positive in front":
        found = trained(whole, lambda _: functional.cross_entropy(whole(torch.randn(32, 8)), torch.zeros(32, dtype=torch.int64)))
    else:
        found = trained(model, loss)
    assert ("labels_alike" in found) is bool(told)
    assert not told or found["labels_alike"].message == told


@pytest.mark.parametrize(("share", "is_alike"), [(0.0, True), (1.0, True), (0.5, False)])
def test_binary_targets_that_are_alike_are_told(share: float, is_alike: bool) -> None:
    torch.manual_seed(0)
    model = mlp(1)

    def loss(_: int) -> Tensor:
        x = torch.randn(32, 8)
        return functional.binary_cross_entropy_with_logits(model(x)[:, 0], (x[:, 0].sigmoid() < share).float())

    assert ("labels_alike" in trained(model, loss)) is is_alike


def test_a_discriminator_that_sees_one_kind_at_a_time_is_healthy() -> None:
    torch.manual_seed(0)
    model = mlp(1)

    def loss(_: int) -> Tensor:
        real, made = (functional.binary_cross_entropy_with_logits, model(torch.randn(32, 8) + 1)), model(torch.randn(32, 8))
        return real[0](real[1], torch.ones(32, 1)) + real[0](made, torch.zeros(32, 1))

    assert not trained(model, loss)


@pytest.mark.parametrize(("last", "reach"), [(nn.Sigmoid(), (0.0, 1.0)), (nn.Tanh(), (-1.0, 1.0)), (nn.ReLU(), (0.0, 9.0))])
@pytest.mark.parametrize("by_hand", [True, False])
def test_targets_beyond_the_last_activation_are_told(last: nn.Module, reach: tuple[float, float], by_hand: bool) -> None:
    for beyond in (True, False):
        torch.manual_seed(0)
        model = mlp(1, last)

        def loss(_: int, beyond: bool = beyond, model: nn.Module = model) -> Tensor:
            x = torch.randn(64, 8)
            target = 2 * x[:, :1] if beyond else (2 * x[:, :1]).clamp(*reach)
            return (model(x) - target).square().mean() if by_hand else functional.mse_loss(model(x), target)

        assert ("target_beyond" in trained(model, loss, steps=6)) is beyond


class Ended(nn.Module):
    """A perceptron whose logits go through what is its *last* operation."""

    def __init__(self, last: Callable[[Tensor], Tensor], columns: int) -> None:
        super().__init__()
        self.layers, self.last = mlp(columns), last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x))


@pytest.mark.parametrize(
    ("last", "columns", "told"),
    [
        (functional.relu, 1, "what the last relu returns goes into a cross-entropy: all probabilities are from 0.5 to 1, which"),
        (torch.abs, 1, "what the last abs returns"),
        (functional.gelu, 1, "what the last gelu returns"),
        (
            functional.logsigmoid,
            1,
            "what the last logsigmoid returns goes into a cross-entropy: all probabilities are from 0 to 0.5",
        ),
        (functional.relu6, 1, "what the last hardtanh returns"),
        (
            torch.tanh,
            1,
            "what the last tanh returns goes into a cross-entropy: all probabilities are from 0.27 to 0.73, which 100 %",
        ),
        (torch.tanh, 10, "what the last tanh returns goes into a cross-entropy: all probabilities are from 0 to 0.45, which 100 %"),
        (nn.Identity(), 1, ""),
        (functional.leaky_relu, 1, ""),
        (lambda logits: logits.clamp(-10, 10), 1, ""),
        (lambda logits: 30 * torch.tanh(logits / 30), 1, ""),
        (lambda logits: 15 * torch.tanh(logits / 15), 10, ""),
        (functional.relu, 10, "cross_entropy is given what a relu has made, of shape 64×10: no output is below zero"),
        (lambda logits: functional.log_softmax(logits, 1), 10, ""),
    ],
)
def test_logits_that_the_last_operation_keeps_from_the_labels_are_told(
    last: Callable[[Tensor], Tensor], columns: int, told: str
) -> None:
    torch.manual_seed(0)
    model, weight = Ended(last, columns), torch.randn(8, 10)

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 8)
        if columns == 1:
            return functional.binary_cross_entropy_with_logits(model(x), (x[:, :1] > 0).float())
        return functional.cross_entropy(model(x), (x @ weight).argmax(1))

    found = trained(model, loss, steps=12).get("target_beyond")
    assert (found is not None) is bool(told)
    assert found is None or (found.message.startswith(told) and "takes logits" in found.advice)


@pytest.mark.parametrize(
    ("scale", "is_trained", "is_told"), [(1.0, False, True), (0.02, True, True), (14.0, False, False), (1.0, True, False)]
)
def test_similarities_that_let_no_pair_be_likely_are_told(scale: float, is_trained: bool, is_told: bool) -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = mlp(16), mlp(16)
            self.log_scale = nn.Parameter(torch.tensor(scale).log(), requires_grad=is_trained)

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            sides = functional.normalize(self.one(one), dim=1), functional.normalize(self.other(other), dim=1)
            return self.log_scale.exp() * (sides[0] @ sides[1].T)

    torch.manual_seed(0)
    model = Towers()

    def loss(_: int) -> Tensor:
        x = torch.randn(24, 8)
        logits, labels = model(x, x + 0.1 * torch.randn(24, 8)), torch.arange(24)
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2

    found = trained(model, loss, steps=12).get("target_beyond")
    assert (found is not None) is is_told
    assert found is None or (found.message.startswith("what the last cosine returns") and "temperature" in found.advice)


@pytest.mark.parametrize(("squash", "is_told"), [(functional.relu, True), (nn.Identity(), False)])
@pytest.mark.parametrize("in_model", [True, False])
def test_a_sigmoid_of_what_is_cut_is_told(squash: Callable[[Tensor], Tensor], is_told: bool, in_model: bool) -> None:
    torch.manual_seed(0)
    model = Ended((lambda logits: squash(logits).sigmoid()) if in_model else squash, 1)

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 8)
        made = model(x) if in_model else model(x).sigmoid()
        return functional.binary_cross_entropy(made, (x[:, :1] > 0).float())

    assert ("target_beyond" in trained(model, loss, steps=12)) is is_told


@pytest.mark.parametrize(("weight", "is_told"), [(3.0, False), (5000.0, True)])
def test_a_weight_of_ones_is_told(weight: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(1)

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 8)
        return functional.binary_cross_entropy_with_logits(model(x), (x[:, :1] > 0.6).float(), pos_weight=torch.tensor(weight))

    found = trained(model, loss, steps=6)
    assert ("weight_of_ones" in found) is is_told
    assert not is_told or found["weight_of_ones"].value == pytest.approx(weight, rel=1e-3)


@pytest.mark.parametrize(("momentum", "is_told"), [(0.1, False), (1e-4, True)])
def test_running_statistics_that_are_not_those_of_batches_are_told(momentum: float, is_told: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8, momentum=momentum)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    def loss(_: int) -> Tensor:
        x, labels = 3 * torch.randn(16, 3, 8, 8) + 6, torch.arange(16) % 2
        return functional.cross_entropy(model(x + labels[:, None, None, None]), labels)

    found = trained(model, loss, steps=200)
    assert ("running_off" in found) is is_told
    assert not is_told or found["running_off"].site == "1:output"


@pytest.mark.parametrize(("scale", "is_told"), [(1.0, False), (255.0**-2, True)])
def test_inputs_that_vary_less_than_the_eps_of_a_normalisation_are_told(scale: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )

    def loss(_: int) -> Tensor:
        labels = torch.arange(16) % 2
        return functional.cross_entropy(model((torch.rand(16, 3, 8, 8) + labels[:, None, None, None]) * scale), labels)

    found = trained(model, loss, steps=8)
    assert ("norm_starved" in found) is is_told
    assert not is_told or found["norm_starved"].site == "1:output"


class Rated(nn.Module):
    """Rates items by one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.head = nn.Embedding(100, 8), nn.Linear(8, 1)

    def forward(self, items: Tensor) -> Tensor:
        made: Tensor = self.head(self.items(items))
        return made


@pytest.mark.parametrize(("used", "is_told"), [(2, True), (100, False)])
def test_a_table_of_which_few_rows_are_asked_for_is_told(used: int, is_told: bool) -> None:
    torch.manual_seed(0)
    model = Rated()

    def loss(_: int) -> Tensor:
        items = torch.randint(used, (128,))
        return functional.mse_loss(model(items)[:, 0], items / 100)

    found = trained(model, loss, steps=20)
    assert ("few_indices" in found) is is_told
    assert not is_told or found["few_indices"].message == "items.weight: of its 100 rows 1,280 indices ask for 2"


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("share", "is_told"), [(0.97, True), (0.3, False)])
def test_tokens_of_which_nearly_all_are_one_are_told_beside_padding(share: float, is_told: bool, side: str) -> None:
    torch.manual_seed(0)
    table, head = nn.Embedding(60, 16), nn.Linear(16, 2)

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = table, head

        def forward(self, tokens: Tensor) -> Tensor:
            is_real = (tokens > 0)[..., None]
            made: Tensor = self.head((self.table(tokens) * is_real).sum(1) / is_real.sum(1).clamp(min=1))
            return made

    model = Mean()

    def loss(_: int) -> Tensor:
        tokens = torch.randint(2, 60, (32, 40))
        labels = ((tokens[:, :5] > 30).sum(1) > 2).long()
        tokens[torch.rand(32, 40) < share] = 1  # what no vocabulary has
        tokens[torch.arange(40) >= torch.randint(5, 14, (32, 1))] = 0
        return functional.cross_entropy(model(tokens if side == "right" else tokens.flip(1)), labels)

    found = trained(model, loss, steps=20)
    assert ("few_indices" in found) is is_told
    assert not is_told or found["few_indices"].message == "table.weight: 97 % of the tokens are one"


class Counted(nn.Module):
    """The mean of tokens, but for padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(12, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        is_real = (tokens > 0)[..., None]
        made: Tensor = self.head((self.table(tokens) * is_real).sum(1) / is_real.sum(1).clamp(min=1))
        return made


@pytest.mark.parametrize(("is_cut", "is_learnt"), [(True, False), (False, False), (True, True)])
def test_one_token_that_stands_for_those_that_a_vocabulary_lacks_is_noted_where_the_loss_stands(
    is_cut: bool, is_learnt: bool
) -> None:
    torch.manual_seed(0)
    model = Counted()

    def loss(_: int) -> Tensor:
        tokens = torch.randint(1, 12, (32, 10))
        labels = torch.randint(2, (32,))
        if is_learnt:
            tokens[:, 0], tokens[:, 1:] = 1 + labels, torch.randint(3, 12, (32, 9))
        return functional.cross_entropy(model(tokens.clamp(max=8) if is_cut else tokens), labels)

    told = trained(model, loss, steps=110, lr=5e-2 if is_learnt else 1e-3).get("few_indices")
    assert (told is not None) is (is_cut and not is_learnt)
    if told is not None:
        assert told.severity == "note"
        assert " of the tokens are one, row 8, " in told.message
        assert told.message.endswith("all above it, 3, are never asked for")


@pytest.mark.parametrize(("used", "is_told"), [(4, True), (30, False)])
def test_few_rows_that_all_tokens_ask_for_are_noted_where_the_loss_stands(used: int, is_told: bool) -> None:
    torch.manual_seed(0)
    model = Counted()
    model.table = nn.Embedding(40, 8, padding_idx=0)

    def loss(_: int) -> Tensor:
        tokens = torch.randint(1, 40, (32, 20))
        return functional.cross_entropy(model(1 + tokens % used), (tokens[:, 0] > 20).long())

    told = trained(model, loss, steps=110, lr=1e-3).get("few_indices")
    assert (told is not None) is is_told
    if told is not None:
        assert (told.severity, told.message) == ("note", "table.weight: tokens ask for 4 of its 40 rows alone")


@pytest.mark.parametrize("is_one", [True, False])
def test_of_tokens_that_are_two_in_all_none_is_told_to_be_padding(is_one: bool) -> None:
    torch.manual_seed(0)
    model = Counted()

    def loss(_: int) -> Tensor:
        lengths = torch.randint(3, 11, (32, 1))
        tokens = torch.randint(1, 12, (32, 10)) * (torch.arange(10) < lengths)
        return functional.cross_entropy(model(tokens.clamp(max=1) if is_one else tokens), (tokens[:, 0] > 5).long())

    found = trained(model, loss, steps=8)
    assert "padding_alone" not in found
    assert ("one_index" in found) is is_one


@pytest.mark.slow
def test_outputs_that_have_come_to_be_alike_are_told() -> None:
    torch.manual_seed(0)

    class OnSphere(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return functional.normalize(super().forward(x), dim=1)

    def collapsed(_: int) -> Tensor:
        made = model(torch.randn(64, 8))
        value: Tensor = -(made @ made.T).mean()
        return value

    def apart(_: int) -> Tensor:
        x = torch.randn(64, 8)
        one, other = (model(x + 0.1 * torch.randn_like(x)) for _ in range(2))
        return functional.cross_entropy(one @ other.T / 0.1, torch.arange(64))

    model = OnSphere(*mlp(16))
    assert "outputs_alike" in trained(model, collapsed, steps=300, lr=1e-2)
    model = OnSphere(*mlp(16))
    assert not trained(model, apart, steps=300, lr=1e-2)


# Nothing is changed


def weights_after(model: nn.Module, loss: Callable[[int], Tensor], *, watched: bool) -> list[Tensor]:
    torch.manual_seed(1)
    if watched:
        trained(model, loss, steps=6)
        return [each.detach() for each in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(6):
        value = loss(step)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [each.detach() for each in model.parameters()]


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_training_is_the_same_and_hooks_are_called_as_often(is_checkpointed: bool) -> None:
    """The graph is walked without the engine: no hook of a tensor runs, and no checkpoint is computed again."""
    ends, calls = [], []
    for watched in (False, True):
        torch.manual_seed(0)
        model, seen = Decoder("none", is_checkpointed=is_checkpointed), []
        model.layers[0].register_full_backward_hook(lambda *_, seen=seen: seen.append("module"))
        model.layers[1].register_forward_hook(lambda *_, seen=seen: seen.append("forward"))

        def hooked(module: nn.Module, args: Any, made: Tensor, seen: list[str] = seen) -> None:
            made.register_hook(lambda _: seen.append("tensor"))
            made.retain_grad()

        model.tokens.register_forward_hook(hooked)
        ends.append(weights_after(model, next_token(model), watched=watched))
        calls.append(seen)
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    assert calls[0] == calls[1]


def test_a_backward_written_in_python_does_not_run_twice() -> None:
    passes = []

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            passes.append(1)
            return gradient * 2

    class Own(Decoder):
        def forward(self, tokens: Tensor) -> Tensor:
            made: Tensor = Once.apply(super().forward(tokens))  # type: ignore[no-untyped-call]
            return made

    torch.manual_seed(0)
    model = Own("none")
    assert not trained(model, next_token(model), steps=5)
    assert len(passes) == 5


@pytest.mark.parametrize(("samples", "places", "width", "heads"), [(8, 12, 16, 2), (4, 8, 16, 4), (16, 8, 32, 2), (8, 8, 16, 2)])
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_with_as_many_samples_as_a_head_has_features_is_healthy(
    samples: int, places: int, width: int, heads: int, batch_first: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, heads, 32, dropout=0.0, batch_first=batch_first)
    model = nn.Sequential(layer, nn.Linear(width, 3))

    def loss(_: int) -> Tensor:
        x = torch.randn(samples, places, width) if batch_first else torch.randn(places, samples, width)
        return functional.cross_entropy(model(x).mean(1 if batch_first else 0), torch.randint(3, (samples,)))

    assert not {each for each, found in trained(model, loss, steps=6).items() if found.severity != "note"}


@pytest.mark.parametrize(("scale", "is_told"), [(1.0, False), (100.0, True)])
@pytest.mark.parametrize("is_fused", [True, False])
def test_attention_that_begins_with_one_place_alone_is_told(scale: float, is_told: bool, is_fused: bool) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.made, self.head = nn.Linear(16, 48), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = self.made(x).reshape(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
            if is_fused:
                mixed = functional.scaled_dot_product_attention(query * scale, key, value)
            else:
                mixed = (scale * query @ key.transpose(-2, -1) / 8**0.5).softmax(-1) @ value
            made: Tensor = self.head(mixed.transpose(1, 2).flatten(2).mean(1))
            return made

    torch.manual_seed(0)
    model = Attends()
    found = trained(model, lambda _: functional.cross_entropy(model(torch.randn(8, 12, 16)), torch.randint(3, (8,))))
    assert ("attention_large" in found) is is_told


def test_a_batch_of_one_sample_again_and_again_is_told() -> None:
    torch.manual_seed(0)
    model = mlp(3)
    found = trained(model, lambda _: functional.cross_entropy(model(torch.randn(1, 8).repeat(2, 1)), torch.randint(3, (2,))))
    assert "input_same" in found


def test_batches_of_data_that_are_sorted_are_told_where_some_have_two_classes() -> None:
    """And where another pass of each step, without a loss, comes first."""
    torch.manual_seed(0)
    model, labels = mlp(4), torch.arange(4).repeat_interleave(90)

    def loss(step: int) -> Tensor:
        model(torch.randn(32, 8))
        of_step = labels[torch.arange(32 * step, 32 * step + 32) % 360]
        return functional.cross_entropy(model(torch.randn(32, 8)), of_step)

    assert "most of" in trained(model, loss)["labels_alike"].message


def test_outputs_in_one_row_with_their_places_are_read() -> None:
    class Flat(Decoder):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens).flatten(0, 1)

    torch.manual_seed(0)
    model = Flat("none")

    def loss(_: int) -> Tensor:
        given = text()
        return functional.cross_entropy(model(given[:, :-1]), given[:, 1:].flatten())

    assert "future_seen" in trained(model, loss)


def test_parts_are_looked_at_behind_their_first_passes_too() -> None:
    """Where nothing is compiled, as another test may have."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = mlp(8), nn.Linear(8, 1)

    torch.manual_seed(0)
    model = Parts()
    seen = []
    held = Look.read

    def read(look: Look) -> dict[str, float]:
        seen.append(look.step)
        return held(look)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Look, "read", read)
        patched.setattr("sonde.engine.clock.clock.compiler_state.has_compiled_any", lambda: False)
        trained(model, lambda _: model.head(model.body(torch.randn(8, 8))).square().mean(), steps=60)
    assert max(seen) > 40


def test_a_softmax_that_holds_each_sample_itself_is_told() -> None:
    torch.manual_seed(0)
    model = mlp(6)

    def loss(is_masked: bool) -> Callable[[int], Tensor]:
        def made(_: int) -> Tensor:
            units = functional.normalize(model(torch.randn(12, 8).repeat(2, 1) + 0.3 * torch.randn(24, 8)), dim=1)
            likeness = units @ units.T / 0.5
            likeness = likeness.masked_fill(torch.eye(24).bool(), -1e9) if is_masked else likeness
            return functional.cross_entropy(likeness, torch.arange(24).roll(12))

        return made

    assert "holds that of each sample to itself" in trained(model, loss(False))["target_own"].message
    assert "target_own" not in trained(model, loss(True))


def test_positives_alone_of_one_batch_are_told() -> None:
    torch.manual_seed(0)
    model = mlp(6)

    def loss(_: int) -> Tensor:
        made = model(torch.randn(24, 8))
        likeness: Tensor = functional.cosine_similarity(made[:12], made[12:]).mean()
        return 2 - 2 * likeness

    assert "target_trained" in trained(model, loss)


class Folded(nn.Module):
    """Two hidden layers whose *activation* is a function, the second with a bias that begins at a value."""

    def __init__(self, activation: Callable[[Tensor], Tensor], bias: float) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.activation = activation
        nn.init.constant_(self.second.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.activation(self.second(self.activation(self.first(x)))))
        return made


@pytest.mark.parametrize("bias", [-30.0, -0.1])
@pytest.mark.parametrize("activation", [functional.relu, functional.gelu, functional.silu])
def test_a_layer_that_is_dead_behind_a_function_is_the_root(activation: Callable[[Tensor], Tensor], bias: float) -> None:
    torch.manual_seed(0)
    model, inputs = Folded(activation, bias), torch.randn(256, 8)

    def loss(step: int) -> Tensor:
        x = inputs[torch.randperm(256)[:64]]
        return functional.mse_loss(model(x), x[:, :1] - x[:, 1:2].sin())

    found = trained(model, loss, 24)
    if bias == -0.1:
        assert not found
        return
    root, *others = found.values()
    assert (root.rule, root.site, root.first_step, root.severity) == ("dead", "second:output", 0, "bad")
    assert root.advice.startswith("look at what sets its bias first: it is -30 on average")
    assert {each.follows for each in others} <= {"dead"}


def test_a_feed_forward_layer_of_a_transformer_that_is_dead_is_named() -> None:
    torch.manual_seed(0)
    model = Decoder()
    nn.init.constant_(model.layers[1].linear1.bias, -30)
    assert trained(model, next_token(model))["dead"].site == "layers.1.linear1:output"


class Neighbours(nn.Module):
    """Sums over the neighbours in a graph, or a residual branch, between a layer and its activation."""

    def __init__(self, kind: str, bias: float) -> None:
        super().__init__()
        self.first, self.middle, self.last, self.kind = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1), kind
        self.middle = self.first if kind == "graph" else self.middle
        nn.init.constant_(self.middle.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        made = self.first(x)
        if self.kind == "graph":
            made = (made / 3).index_add(0, torch.arange(len(x)).roll(1), made / 3)
        made = functional.relu(made)
        if self.kind == "residual":
            made = made + functional.relu(self.middle(made) * 0.5)
        if self.kind in ("tanh", "sigmoid"):
            made = getattr(torch, self.kind)(self.middle(made))
        if self.kind == "gate":
            made = made * torch.sigmoid(self.middle(made))
        made: Tensor = self.last(made)
        return torch.sigmoid(made + self.middle.bias.mean()) if self.kind == "output" else made


@pytest.mark.parametrize("bias", [-14.0, -0.1])
@pytest.mark.parametrize("kind", ["graph", "residual", "tanh", "sigmoid", "gate", "output"])
def test_a_layer_that_its_bias_shuts_is_the_root_wherever_its_activation_is(kind: str, bias: float) -> None:
    torch.manual_seed(0)
    model, inputs = Neighbours(kind, bias), torch.randn(256, 8)

    def loss(step: int) -> Tensor:
        x = inputs[torch.randperm(256)[:64]]
        return functional.mse_loss(model(x), 1e-3 * x[:, :1].square() if kind == "output" else x[:, :1] - x[:, 1:2].sin())

    found = trained(model, loss, 40)
    if bias == -0.1 or kind == "output":
        assert {"dead", "flat"}.isdisjoint(found)
        return
    root, *others = found.values()
    site = "first:output" if kind == "graph" else "middle:output"
    assert (root.rule, root.site, root.severity) == ("dead" if kind in ("graph", "residual") else "flat", site, "bad")
    assert root.advice.startswith("look at what sets its bias")
    assert {each.follows for each in others} <= {root.rule}


class Experts(nn.Module):
    """Three experts, all of them weighed by a softmax, or the one that a softmax has chosen."""

    def __init__(self, kind: str, bias: float) -> None:
        super().__init__()
        self.router, self.kind = nn.Linear(8, 3), kind
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(3)])
        with torch.no_grad():
            self.router.bias[0] += bias

    def forward(self, x: Tensor) -> Tensor:
        weight = self.router(x).softmax(1)
        most, which = weight.max(1, keepdim=True)
        weight = (torch.arange(3) == which) * most if self.kind == "one" else weight
        made: Tensor = (torch.cat([each(x) for each in self.experts], 1) * weight).sum(1, keepdim=True)
        return made


@pytest.mark.parametrize("bias", [12.0, 1.0])
@pytest.mark.parametrize("kind", ["one", "all"])
def test_a_router_that_its_bias_has_choose_one_expert_is_the_root(kind: str, bias: float) -> None:
    torch.manual_seed(0)
    model = Experts(kind, bias)

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 8)
        return functional.mse_loss(model(x), x[:, :1] * (x[:, 1:2] > 0))

    found = trained(model, loss, 24)
    if bias == 1:
        assert "flat" not in found
        return
    root, *others = found.values()
    assert (root.rule, root.site) == ("flat", "router:output")
    assert {each.follows for each in others} <= {"flat"}


def test_a_relu_that_is_a_module_is_named_itself() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    nn.init.constant_(model[0].bias, -30)
    found = trained(model, lambda _: functional.mse_loss(model(torch.randn(64, 8)), torch.randn(64, 1)), 24)
    assert found["dead"].site == "1:output"


class Placed(nn.Module):
    """Adds to what an embedding, a layer or a convolution has made what tells places, of a size; *how* says what that is."""

    def __init__(self, how: str, size: float) -> None:
        super().__init__()
        self.how, self.tokens, self.head = how, nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=how != "linear")
        places = torch.randn(PLACES, 32) * size
        if how == "buffer":
            self.register_buffer("places", places[None])
        elif how == "table":
            self.places: Any = nn.Embedding(PLACES, 32)
            self.places.weight.data = places
        else:
            self.places = nn.Parameter(places)

    def forward(self, tokens: Tensor) -> Tensor:
        count = tokens.shape[1]
        places = self.places(torch.arange(count)) if self.how == "table" else self.places.squeeze(0)[:count]
        causal = nn.Transformer.generate_square_subsequent_mask(count)
        made: Tensor = self.head(self.layer(self.tokens(tokens) + places, causal))
        return made


@pytest.mark.parametrize("size", [500.0, 1.0])
@pytest.mark.parametrize("how", ["buffer", "parameter", "table", "linear"])
def test_what_is_added_and_leaves_nothing_of_the_other_side_is_told(how: str, size: float) -> None:
    torch.manual_seed(0)
    model = Placed(how, size)
    nn.init.normal_(model.tokens.weight, std=0.02 if size == 1 else 1.0)
    found = trained(model, next_token(model), 20)
    large = found.get("weight_large")
    assert (large is not None) is (size == 500)
    if large is not None:
        assert large.site == ("places.weight:param" if how == "table" else "places:param")
        assert "of size" in large.message
        assert not large.follows


def equation(kind: str, activation: nn.Module) -> dict[str, Finding]:
    """Train a network on an equation of its derivatives by two inputs, or with a penalty or an attack made of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), activation, nn.Linear(32, 32), activation, nn.Linear(32, 1))

    def loss(_: int) -> Tensor:
        x = torch.rand(64, 2, requires_grad=True)
        made, has_graph = model(x), "without a graph" not in kind
        if kind == "an attack":
            (slope,) = torch.autograd.grad(made.square().sum(), x)
            return functional.mse_loss(model((x + 0.1 * slope.sign()).detach()), x.detach()[:, :1])
        (slope,) = torch.autograd.grad(made.sum(), x, create_graph=has_graph, retain_graph=True)
        edge = functional.mse_loss(model(x.detach().round()), x.detach()[:, 1:].round())
        if kind == "second":
            (slope,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        penalty = (slope - 1).square().mean()
        return edge + penalty if "twice" not in kind else edge + 0.1 * (penalty + made.square().mean())

    return trained(model, loss, 12)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(), nn.Tanh()])
@pytest.mark.parametrize("kind", ["second", "first", "an attack"])
def test_second_derivatives_of_activations_of_straight_pieces_are_zero(kind: str, activation: nn.Module) -> None:
    found = equation(kind, activation)
    is_zero = kind == "second" and not isinstance(activation, nn.Tanh)
    assert ("gradient_zero" in found) is is_zero
    if is_zero:
        assert found["gradient_zero"].message.startswith("the second derivative of the outputs")


@pytest.mark.parametrize("kind", ["without a graph", "without a graph, twice"])
def test_a_term_of_derivatives_without_a_graph_is_told(kind: str) -> None:
    found = equation(kind, nn.Tanh())["gradient_zero"]
    assert found.message.startswith("a term of the loss has no graph")
    assert "create_graph=True" in found.advice


class Tagger(nn.Module):
    """Reads tokens with a recurrent layer, samples first or second, and does something along an axis that *kind* names."""

    def __init__(self, kind: str, axis: int, *, pools: bool) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(VOCABULARY, 16), nn.GRU(16, 16, batch_first=axis == 0)
        self.score, self.norm, self.head = nn.Linear(16, 1), nn.BatchNorm1d(16), nn.Linear(16, 5)
        self.kind, self.axis, self.pools = kind, axis, pools  # the axis of samples

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(self.tokens(tokens))[0]
        weights = self.score(x)
        axis, place = self.axis, 1 - self.axis
        made: dict[str, Callable[[], Tensor]] = {
            "each": lambda: x * weights.sigmoid(),
            "softmax over places": lambda: x * weights.softmax(place),
            "batch norm": lambda: self.norm((x * weights.sigmoid()).flatten(0, 1)).reshape(x.shape),
            "softmax": lambda: x * weights.softmax(axis),
            "cumsum": lambda: (x * weights).cumsum(axis),
            "norm by hand": lambda: (x - x.mean((0, 1))) / x.std((0, 1)),
            "sort": lambda: (x * weights).sort(axis)[0],
        }
        x = made[self.kind]()
        found: Tensor = self.head(x.sum(place) if self.pools else x)
        return found


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("pools", [True, False])
@pytest.mark.parametrize(
    ("kind", "is_told"),
    [
        ("each", False),
        ("softmax over places", False),
        ("batch norm", False),
        ("norm by hand", False),
        ("softmax", True),
        ("cumsum", True),
        ("sort", True),
    ],
)
def test_what_runs_over_samples_is_told_wherever_these_stand(kind: str, is_told: bool, axis: int, pools: bool) -> None:
    torch.manual_seed(0)
    model = Tagger(kind, axis, pools=pools)

    def loss(_: int) -> Tensor:
        given = torch.randint(VOCABULARY, (24, 9))
        labels = given.sum(1) % 5 if pools else (given.cumsum(1) % 5)
        labels = labels.T if axis and not pools else labels
        made = model(given.T if axis else given)
        return functional.cross_entropy(made if pools else made.flatten(0, 1), labels.flatten())

    found = trained(model, loss, steps=26)
    assert ("samples_mixed" in found) is is_told
    words = "goes to others" if pools else "an output depends on tokens of other rows and columns of the"
    assert not is_told or words in found["samples_mixed"].message


def test_attention_over_places_that_come_first_reads_others() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.layer, self.head = (
                nn.Embedding(VOCABULARY, 16),
                nn.TransformerEncoderLayer(16, 2, 32),
                nn.Linear(16, 5),
            )

        def forward(self, tokens: Tensor) -> Tensor:
            made: Tensor = self.head(self.layer(self.tokens(tokens)))
            return made

    torch.manual_seed(0)
    model = Reader()

    def loss(_: int) -> Tensor:
        given = torch.randint(VOCABULARY, (9, 24))
        return functional.cross_entropy(model(given).flatten(0, 1), (given.flip(0) % 5).flatten())

    assert not trained(model, loss, steps=26)


LOST = [
    ("item", "classes"),
    ("tensor", "squares"),
    ("item", "binary"),
    ("item", "shares"),
    ("constant", "classes"),
    ("right", "squares"),
]


@pytest.mark.parametrize(("kind", "loss_of"), LOST)
def test_a_term_of_a_loss_that_is_a_number_is_told_where_it_changes(kind: str, loss_of: str) -> None:
    torch.manual_seed(0)
    last = nn.Sigmoid() if loss_of == "shares" else nn.Identity()
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3), last)

    def loss(_: int) -> Tensor:
        x = torch.randn(48, 8)
        made, size = model(x), sum(each.square().sum() for each in model.parameters())
        assert isinstance(size, Tensor)
        is_large = (x[:, :3] > 0).float()
        terms = {
            "classes": lambda: functional.cross_entropy(made, x[:, :3].argmax(1)),
            "squares": lambda: functional.mse_loss(made, x[:, :3] * x[:, 3:4]),
            "binary": lambda: functional.binary_cross_entropy_with_logits(made, is_large),
            "shares": lambda: functional.binary_cross_entropy(made, is_large),
        }
        noise = 0.5 + torch.rand(())
        added = {"item": noise * size.item() / 10, "tensor": noise * torch.tensor(size.item()) / 10, "constant": 0.5}
        return terms[loss_of]() + added.get(kind, 1e-3 * size)

    found = trained(model, loss, 12)
    is_told = kind in ("item", "tensor")
    assert ("gradient_zero" in found) is is_told
    assert not is_told or found["gradient_zero"].message.startswith("a term of the loss, ")


@pytest.mark.parametrize("is_one", [True, False])
def test_labels_of_one_class_are_told_though_these_are_learnt_in_a_few_steps(is_one: bool) -> None:
    """Of outputs that are sure of them, the gradient at the label is rounded to 0."""
    torch.manual_seed(0)
    model = mlp(4)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(30):
            x = torch.randn(48, 8)
            value = functional.cross_entropy(3 * model(x), torch.full((48,), 2) if is_one else 2 * (x[:, 0] > 0))
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert ("labels_alike" in {each.rule for each in inspector.findings}) is is_one


@pytest.mark.parametrize(("scale", "severity"), [(48.0, "note"), (200.0, "warn")])
def test_a_scale_of_cosines_with_a_margin_is_meant_up_to_a_hundred(scale: float, severity: str) -> None:
    class Margin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.kinds = mlp(16), nn.Parameter(torch.randn(20, 16))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            cosines = functional.normalize(self.body(x)) @ functional.normalize(self.kinds).T
            return scale * torch.cos(torch.acos(cosines.clamp(-0.999, 0.999)) + 0.3 * functional.one_hot(y, 20))

    torch.manual_seed(0)
    model, y = Margin(), torch.arange(64) % 20
    told = trained(model, lambda _: functional.cross_entropy(model(torch.randn(64, 8), y), y), steps=12)["begins_large"]
    assert told.severity == severity


@pytest.mark.parametrize("is_apart", [True, False])
def test_outputs_that_are_alike_in_each_pass_may_be_apart_between_two(is_apart: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)

    def kind(number: float) -> Tensor:
        made: Tensor = model(torch.cat([torch.full((32, 1), number), torch.randn(32, 7)], 1))
        return made

    def loss(_: int) -> Tensor:
        one, other = kind(1.0), kind(-1.0)
        ends: Tensor = (one.mean() - 1).square() + (other.mean() - (-1 if is_apart else 1)).square()
        return one.var() + other.var() + ends

    assert ("outputs_alike" in trained(model, loss, steps=150, lr=3e-2)) is not is_apart


@pytest.mark.parametrize("samples", [3, 64])
@pytest.mark.parametrize("every", [1, 2])
def test_a_gradient_of_few_samples_that_is_far_above_others_is_no_spike(samples: int, every: int) -> None:
    """As of the last batch of an epoch, of what is left of the data."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(step: int) -> Tensor:
        is_last = step == 60
        x = torch.randn(samples if is_last else 64, 8)
        return (20 if is_last else 1) * functional.mse_loss(model(x)[:, 0], x[:, 0] + 3)

    assert ("spike" in trained(model, loss, steps=70, every=every)) is (samples == 64)


@pytest.mark.parametrize("other", [0.0, 1.0])
def test_labels_of_a_further_output_that_are_of_another_class_in_each_pass_of_a_step_are_not_alike(other: float) -> None:
    """As those of a domain, of data from two sources."""
    torch.manual_seed(0)
    model = Domains()

    def loss(_: int) -> Tensor:
        made, total = [model(torch.randn(16, 8)) for _ in range(2)], torch.zeros(())
        for (classes, domain), label in zip(made, (0.0, other), strict=True):
            total = total + functional.cross_entropy(classes, torch.arange(16) % 3)
            total = total + functional.binary_cross_entropy_with_logits(domain, torch.full((16,), label))
        return total

    assert ("labels_alike" in trained(model, loss)) is (other == 0.0)


class Domains(nn.Module):
    """Classes, and where samples come from."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.domain = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        held = self.body(x).tanh()
        return self.classes(held), self.domain(held)[:, 0]


def test_labels_that_are_made_less_likely_beside_others_are_no_wrong_sign() -> None:
    """As of a preference, whose rejected answer has a pass of its own."""
    torch.manual_seed(0)
    model = mlp(5)

    def loss(_: int) -> Tensor:
        x = torch.randn(32, 8)
        label = x[:, :5].argmax(1)
        likely = [functional.cross_entropy(model(x), each, reduction="none") for each in ((label + 1) % 5, label)]
        return -functional.logsigmoid(likely[0] - likely[1]).mean()

    assert "loss_unbounded" not in trained(model, loss, steps=40)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_rare_label_that_the_outputs_tell_is_not_missed(is_told: bool) -> None:
    """As of clicks: no sample is likelier than not to have it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(_: int) -> Tensor:
        x = torch.randn(256, 8)
        rate = 0.06 * torch.ones(256) if is_told else torch.sigmoid(x[:, 0] - 3)
        return functional.binary_cross_entropy_with_logits(model(x)[:, 0], (torch.rand(256) < rate).float())

    assert ("labels_alike" in trained(model, loss, steps=300, lr=1e-2)) is is_told


def test_an_input_that_is_asked_for_before_it_is_given_is_not_copied() -> None:
    """As an action, which a decision transformer is given behind the state that it is chosen in."""

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.states, self.actions = nn.Linear(4, 16), nn.Embedding(3, 16)
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 1)
            self.head = nn.Linear(16, 3)

        def forward(self, states: Tensor, actions: Tensor) -> Tensor:
            steps = torch.stack([self.states(states), self.actions(actions)], 2).flatten(1, 2)
            mask = nn.Transformer.generate_square_subsequent_mask(steps.shape[1])
            return self.head(self.layers(steps, mask=mask, is_causal=True)[:, ::2])

    torch.manual_seed(0)
    model = Agent()

    def loss(_: int) -> Tensor:
        states = torch.randn(8, 6, 4)
        actions = states[..., :3].argmax(-1)
        return functional.cross_entropy(model(states, actions).flatten(0, 1), actions.flatten())

    assert "target_shifted" not in trained(model, loss, steps=20)


@pytest.mark.parametrize(("kind", "is_told"), [("bare", True), ("residual", False), ("one residual", False), ("two", False)])
@pytest.mark.parametrize("is_fused", [True, False])
def test_attentions_that_nothing_leads_around_are_told_where_the_loss_stands(kind: str, is_fused: bool, is_told: bool) -> None:
    class Attention(nn.Module):
        def __init__(self, *, is_bridged: bool) -> None:
            super().__init__()
            self.qkv, self.out, self.is_bridged = nn.Linear(16, 48), nn.Linear(16, 16), is_bridged

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (each[:, None] for each in self.qkv(x).chunk(3, -1))
            made = (
                functional.scaled_dot_product_attention(q, k, v)
                if is_fused
                else functional.dropout((q @ k.mT / 4).softmax(-1), 0.1) @ v
            )
            made = functional.relu(self.out(made[:, 0]))
            return x + made if self.is_bridged else made

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            bridged = {"bare": [False] * 4, "residual": [True] * 4, "one residual": [False, True, False, False], "two": [False] * 2}
            self.tokens, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, 4)
            self.layers = nn.Sequential(*(Attention(is_bridged=each) for each in bridged[kind]))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layers(self.tokens(x)).mean(1))

    torch.manual_seed(0)
    model = Deep()

    def loss(_: int) -> Tensor:
        return functional.cross_entropy(model(torch.randint(VOCABULARY, (16, PLACES))), torch.randint(4, (16,)))  # it stands

    found = trained(model, loss, steps=220)
    assert ("residual_missing" in found) is is_told
    assert not is_told or "any of the 4 attentions in a row" in found["residual_missing"].message


def test_a_critic_beside_a_policy_may_have_nothing_to_explain() -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.policy, self.value = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            held = self.body(x)
            return self.policy(held), self.value(held)[:, 0]

    torch.manual_seed(0)
    model = Agent()

    def loss(_: int) -> Tensor:
        logits, value = model(torch.randn(32, 8))
        chosen, rewards = torch.distributions.Categorical(logits=logits), torch.randn(32)
        gained = rewards - value.detach()
        return 0.5 * functional.mse_loss(value, rewards) - (chosen.log_prob(chosen.sample()) * gained).mean()

    stuck = trained(model, loss, steps=300, every=5).get("loss_stuck")
    assert stuck is None or stuck.severity == "note"


@pytest.mark.parametrize(("weights", "is_told"), [((1.0, 0.0, 0.0), True), ((1.0, 0.1, 0.1), False), ((1.0, 1.0, 0.0), False)])
def test_class_weights_that_leave_one_class_are_told_after_few_samples(weights: tuple[float, ...], is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(3)

    def loss(_: int) -> Tensor:
        x = torch.randn(16, 8)
        return functional.cross_entropy(model(x), x[:, :3].argmax(1), torch.tensor(weights))

    found = trained(model, loss, steps=20)
    assert ("labels_alike" in found) is is_told
    assert not is_told or "of 16 samples, and all of these have the label 0" in found["labels_alike"].message


@pytest.mark.parametrize("name", ["labels", "weights"])
def test_labels_that_differ_are_nothing_that_outputs_could_depend_on(name: str) -> None:
    """As of a model that makes its loss itself, and is given images that are all black."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(4)

        def forward(self, x: Tensor, **given: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.body(x)
            return functional.cross_entropy(logits, given[name]), logits

    torch.manual_seed(0)
    model = Classifier()
    found = trained(model, lambda _: model(torch.zeros(32, 8), **{name: torch.randint(4, (32,))})[0], steps=60)
    assert ("input_unused" in found) is (name != "labels")
    assert "input_same" in found or name != "labels"
