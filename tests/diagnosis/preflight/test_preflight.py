"""Healthy models pass, nothing is changed, and arguments are checked."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import sonde
from sonde import rules
from sonde.diagnosis.preflight.preflight import CHECKS, sparkline
from sonde.errors import ArgumentError, ModelError, PreflightError, UnknownSiteError
from sonde.testing import assert_no_hooks_left

Case = tuple[nn.Module, Any, Any]


def mlp() -> Case:
    y = torch.arange(12) % 3
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
    return model, torch.randn(12, 6), lambda logits: functional.cross_entropy(logits, y)


def regression() -> Case:
    x = torch.randn(12, 6)
    y = x[:, :1] - x[:, 1:2]
    return nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 1)), x, lambda out: functional.mse_loss(out, y)


def binary() -> Case:
    x = torch.randn(20, 6)
    y = (x[:, :1] > 0).float()
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    return model, x, lambda out: functional.binary_cross_entropy_with_logits(out, y)


def convolutions() -> Case:
    y = torch.arange(8) % 4
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))
    return model, torch.randn(8, 1, 10, 10), lambda logits: functional.cross_entropy(logits, y)


def autoencoder() -> Case:
    x = torch.randn(12, 6)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6)), x, lambda out: functional.mse_loss(out, x)


class Recurrent(nn.Module):
    """An LSTM over tokens, with a tied head and a parameter that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(11, 16), nn.LSTM(16, 16, batch_first=True)
        self.head, self.spare = nn.Linear(16, 11), nn.Linear(2, 2)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits: Tensor = self.head(self.lstm(self.tokens(tokens))[0])
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}


def recurrent() -> Case:
    tokens = torch.randint(11, (6, 8))
    return Recurrent(), {"tokens": tokens, "labels": tokens}, None


class Variational(nn.Module):
    """A variational autoencoder: the output is a tuple, the forward is random."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(x).chunk(2, -1)
        return self.decoder(mean + torch.randn_like(mean) * (spread / 2).exp()), mean, spread


def variational() -> Case:
    x = torch.randn(16, 6)

    def loss(output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        out, mean, spread = output
        return (out - x).square().sum(1).mean() - 0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()

    return Variational(), x, loss


def double_precision() -> Case:
    x = torch.randn(12, 6, dtype=torch.float64)
    return nn.Linear(6, 2).double(), x, lambda out: functional.smooth_l1_loss(out, x[:, :2])


def transformer() -> Case:
    y = torch.arange(6) % 3
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(80, 3))
    return model, torch.randn(6, 5, 16), lambda logits: functional.cross_entropy(logits, y)


def adversary() -> Case:
    """The generator of a pair: the loss is what a discriminator that is not trained says."""
    judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).requires_grad_(False)
    ones = torch.ones(12, 1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    return model, torch.randn(12, 4), lambda out: functional.binary_cross_entropy_with_logits(judge(out), ones)


def zero_head() -> Case:
    model, x, loss_fn = mlp()
    assert isinstance(model, nn.Sequential)
    nn.init.zeros_(model[5].weight)
    nn.init.zeros_(model[5].bias)
    return model, x, loss_fn


def sparse() -> Case:
    y = torch.arange(12) % 3
    model = nn.Sequential(nn.EmbeddingBag(20, 16, sparse=True), nn.Linear(16, 3))
    return model, torch.randint(1, 20, (12, 5)), lambda logits: functional.cross_entropy(logits, y)


class Checkpointed(nn.Module):
    """Two checkpoints, one of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        for kind in (False, True):
            hidden = checkpoint(lambda h: self.middle(h).relu(), hidden, use_reentrant=kind)
        logits: Tensor = self.last(hidden)
        return logits


def checkpointed() -> Case:
    y = torch.arange(12) % 3
    return Checkpointed(), torch.randn(12, 6), lambda logits: functional.cross_entropy(logits, y)


def compiled() -> Case:
    model, x, loss_fn = checkpointed()
    return torch.compile(model, backend="eager"), x, loss_fn  # type: ignore[return-value]


def time_first() -> Case:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0]).flatten(0, 1)

    y = torch.arange(35) % 3
    return Steps(), torch.randn(7, 5, 6), lambda logits: functional.cross_entropy(logits, y)


def complex_numbers() -> Case:
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 16, dtype=torch.complex64), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.last(self.first(x.to(torch.complex64)).abs())
            return logits

    y = torch.arange(12) % 3
    return Waves(), torch.randn(12, 6), lambda logits: functional.cross_entropy(logits, y)


def autocast() -> Case:
    model, x, loss_fn = mlp()

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                logits: Tensor = self.inner(x)
            return logits

    return Half(), x, loss_fn


def pairs() -> Case:
    """Similarities of all pairs of a batch, as contrastive losses take them."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(6, 16), nn.Linear(6, 16)

        def forward(self, x: Tensor) -> Tensor:
            return functional.normalize(self.one(x), dim=1) @ functional.normalize(self.other(x), dim=1).T

    return Pairs(), torch.randn(12, 6), lambda logits: functional.cross_entropy(logits, torch.arange(12))


class Recurrence(nn.Module):
    def __init__(self, inputs: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.steps, self.head = nn.LSTM(inputs, width, batch_first=True), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.steps(x)[0])
        return made


def next_step() -> Case:
    """The next element of each series, which a recurrent model sees no earlier."""
    series = torch.randn(8, 13, 2).cumsum(1)
    return Recurrence(2, 2), series[:, :-1], lambda output: functional.mse_loss(output, series[:, 1:])


def positions() -> Case:
    """What is learnt first of these targets needs no input: a recurrent model counts."""
    x = torch.randn(8, 10, 3)
    y = torch.linspace(0, 3, 10)[None, :, None] + 0.1 * x[:, :, :1]
    return Recurrence(3, 1), x, lambda output: functional.mse_loss(output, y)


def equal_labels() -> Case:
    return (
        Recurrence(3, 2),
        torch.randn(8, 10, 3),
        lambda output: functional.cross_entropy(output[:, -1], torch.ones(8, dtype=torch.long)),
    )


def density() -> Case:
    """A density of the inputs: zeros alone are easier to model, and its loss is below 0."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.scale = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.full((4,), -3.0))

        def forward(self, x: Tensor) -> Tensor:
            z = (x - self.shift) / self.scale.exp()
            return 0.5 * z.square().sum(-1) + self.scale.sum()

    return Scaled(), 0.05 * torch.randn(32, 4) + 0.2, lambda output: output.mean()


def graph() -> Case:
    """Nodes that belong together by a matrix, which is no mixing of samples."""
    neighbours = (torch.rand(16, 16) < 0.3).float() + torch.eye(16)

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 32), nn.Linear(32, 3)
            self.register_buffer("neighbours", neighbours / neighbours.sum(1, keepdim=True))

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.last(self.neighbours @ self.first(x).relu())
            return made

    return Graph(), torch.randn(16, 6), lambda output: functional.cross_entropy(output, torch.arange(16) % 3)


def learnt() -> Case:
    """A model that is trained already, and right about all labels."""
    torch.manual_seed(1)
    model, x, _ = mlp()
    with torch.no_grad():
        y = model(x).argmax(-1)
    return model, x, lambda output: functional.cross_entropy(output, y)


HEALTHY = [
    next_step, positions, equal_labels, density, graph, learnt,
    mlp, regression, binary, convolutions, autoencoder, recurrent, variational, double_precision, transformer, adversary,
    zero_head, checkpointed, compiled, time_first, complex_numbers, autocast,
    pairs,
]  # fmt: skip


@pytest.mark.parametrize("make", HEALTHY)
def test_a_healthy_model_passes_and_stays_as_it_is(make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    model, batch, loss_fn = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    gradients = [parameter.grad for parameter in model.parameters()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    found = sonde.preflight(model, batch, loss_fn, optimizer, steps=25)
    assert [each for each in found.findings if each.severity in ("warn", "bad") and "spare" not in each.message] == []
    found.raise_if_bad()
    assert list(before) == list(model.state_dict())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is kept for parameter, kept in zip(model.parameters(), gradients, strict=True))
    assert all(bool((kept == 0.5).all()) for kept in gradients if kept is not None)
    assert torch.equal(state, torch.get_rng_state())
    assert not optimizer.state
    assert_no_hooks_left(model)


def test_what_is_tied_unused_and_frozen_is_named() -> None:
    torch.manual_seed(0)
    model, batch, _ = recurrent()
    found = sonde.preflight(model, batch, checks=["gradients"])["gradients"]
    assert "tied: tokens.weight = head.weight" in found.words
    assert found.verdict == "warn"
    assert found.findings[0].message == "the loss does not depend on 2 trainable parameters: spare.weight, spare.bias"


def test_every_check_has_a_verdict_and_can_be_had_by_name() -> None:
    torch.manual_seed(0)
    found = sonde.preflight(*mlp(), steps=25)
    assert [each.name for each in found.checks] == list(CHECKS)
    assert found["optimizer"].verdict == "unknown"
    assert json.loads(found.to_json())["verdict"] == found.verdict == "ok"
    assert len(found.to_frame()) == len(CHECKS)
    assert found.to_html().count("<tr") > len(CHECKS)
    assert [check.name for check in found] == list(CHECKS)
    with pytest.raises(UnknownSiteError, match="Nearest: overfit"):
        found["overfitt"]


def test_sparse_gradients_and_optimizers_that_take_a_function_can_be_checked() -> None:
    torch.manual_seed(0)
    found = sonde.preflight(*sparse(), lambda parameters: torch.optim.SGD(parameters, lr=0.5), steps=25)
    assert found.verdict in ("ok", "note")
    assert found["first_update"].verdict == found["learning_rate"].verdict == "ok"
    found = sonde.preflight(*regression(), torch.optim.LBFGS, steps=25)
    assert found["overfit"].verdict == "ok"
    assert not any("raised" in each.words for each in found.checks)


def test_a_rate_of_zero_is_the_fault_of_the_optimizer() -> None:
    torch.manual_seed(0)
    found = sonde.preflight(*mlp(), lambda parameters: torch.optim.SGD(parameters, lr=0.0), steps=25)
    assert found["first_update"].findings[0].message == "no weight moves"
    assert "Adam learns it" in found["overfit"].findings[0].message


def test_an_optimizer_that_makes_the_loss_larger_is_named() -> None:
    torch.manual_seed(0)
    model, x, loss_fn = binary()
    climbing = torch.optim.SGD(model.parameters(), lr=0.5, maximize=True)
    found = sonde.preflight(model, x, loss_fn, climbing, checks=["overfit", "learning_rate"])
    told = [each.advice for check in found.checks for each in check.findings]
    assert told == ["leave maximize=True out of the optimizer: it makes the loss larger"] * 2


@pytest.mark.parametrize("weight", [None, 3.0])
def test_the_first_loss_of_two_classes_is_compared_with_a_guess(weight: float | None) -> None:
    """Also where the module of the loss hands a weight of None on; that of weighted classes is another one."""
    torch.manual_seed(0)
    model, x, _ = binary()
    loss_fn = nn.BCEWithLogitsLoss(pos_weight=None if weight is None else torch.tensor(weight))
    found = sonde.preflight(model, x, lambda out: loss_fn(out, torch.ones_like(out)), checks=["initial_loss"])["initial_loss"]
    assert found.verdict == ("ok" if weight is None else "unknown")


def test_without_a_loss_what_needs_one_is_not_judged() -> None:
    torch.manual_seed(0)
    found = sonde.preflight(nn.Linear(6, 3), torch.randn(4, 6))
    assert found["samples_apart"].verdict == found["input_used"].verdict == "ok"
    assert found["overfit"].words == "needs a loss: give loss_fn, a function from the model's output to a scalar"


def test_a_training_has_a_time() -> None:
    torch.manual_seed(0)
    found = sonde.preflight(*mlp(), checks=["overfit"], seconds=1e-9)
    assert found["overfit"].words == "only 1 steps in the time: give more seconds="


def test_batch_normalisation_mixes_samples_on_purpose() -> None:
    torch.manual_seed(0)
    found = sonde.preflight(*convolutions(), checks=["samples_apart"])["samples_apart"]
    assert found.verdict == "ok"
    assert found.words.endswith("apart from its batch normalisation, which mixes them on purpose")


def test_raise_if_bad_names_the_findings() -> None:
    torch.manual_seed(0)
    model, x, loss_fn = mlp()
    found = sonde.preflight(nn.Sequential(model, nn.Softmax(-1)), x, loss_fn, checks=["loss_input"])
    with pytest.raises(PreflightError, match="softmax_twice: cross_entropy is given probabilities"):
        found.raise_if_bad()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"checks": ["overfitt"]}, "no check. Nearest: overfit"),
        ({"skip": "overfit"}, r"give a list of names, \['overfit'\]"),
        ({"steps": 0}, "steps=0: give the number of training steps"),
        ({"seconds": -1}, "seconds=-1: give a time above 0"),
        ({"optimizer": 3}, "optimizer=3: give an optimizer"),
        ({"loss_fn": 3}, "loss_fn=3 cannot be called"),
        ({"loss_fn": nn.CrossEntropyLoss()}, "output alone .*'target'"),
        ({"loss_fn": lambda out: out}, "loss_fn must return a scalar tensor; it returned one of shape"),
        ({"loss_fn": torch.sum, "optimizer": len}, "returned a int: give an optimizer"),
    ],
)
def test_wrong_arguments_say_what_to_do(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match="(?i)" + words):
        sonde.preflight(nn.Linear(6, 3), torch.randn(4, 6), **given)


def test_models_without_numbers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="meta"):
        sonde.preflight(nn.Linear(6, 3, device="meta"), torch.randn(4, 6))
    with pytest.raises(ArgumentError, match="lazy"):
        sonde.preflight(nn.LazyLinear(3), torch.randn(4, 6))
    with pytest.raises(ModelError):
        sonde.preflight(3, torch.randn(4, 6))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "severity"),
    [
        (rules.judge("zeroed_as_good", 1.1, 0.5, 0.55), "warn"),
        (rules.judge("zeroed_as_good", 1.1, 0.5, 0.6), None),
        (rules.judge("zeroed_as_good", 4.6, 0.02, 0.11), None),  # both learn, and the real inputs far better
        (rules.judge("not_overfit", 1.0, 0.99), "bad"),
        (rules.judge("not_overfit", 1.0, 0.97), None),
        (rules.judge("not_overfit", 1.0, 0.97, half=0.5), "warn"),
        (rules.judge("not_overfit", 1.0, float("nan")), "bad"),
        (rules.judge("initial_loss", 1.66, 1.1), "warn"),
        (rules.judge("initial_loss", 1.6, 1.1), None),
        (rules.judge("initial_error", 10.0, 1.0), "warn"),
        (rules.judge("initial_error", 9.9, 1.0), None),
        (rules.judge("labels_outside", 0, 3, 4), None),
        (rules.judge("labels_outside", 0, 4, 4), "bad"),
        (rules.judge("labels_outside", -1, 3, 4), "bad"),
        (rules.judge("eval_mode", 3, 3), "warn"),
        (rules.judge("eval_mode", 1, 3), "note"),
        (rules.judge("missing_in_optimizer", 1), None),
        (rules.judge("missing_in_optimizer", 2), "bad"),
        (rules.judge("step_lost", 1e-7, 1.2e-7), "warn"),
        (rules.judge("step_lost", 1.3e-7, 1.2e-7), None),
    ],
)
def test_each_rule_at_its_limit(found: rules.Finding | None, severity: str | None) -> None:
    assert (None if found is None else found.severity) == severity


def test_a_sparkline_goes_from_the_first_to_the_last_value() -> None:
    assert sparkline([8.0, 1.0], 4) == "██▁▁"
    assert sparkline([1.0, 1.0], 3) == "▁▁▁"
    assert sparkline([float("nan"), 2.0]) == ""


def test_a_loss_that_is_made_larger_for_another_model_is_only_a_warning() -> None:
    torch.manual_seed(0)
    judge = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).requires_grad_(False)

    def fooled(made: Tensor) -> Tensor:
        return -functional.binary_cross_entropy_with_logits(judge(made), torch.zeros(16, 1))

    found = sonde.preflight(
        nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)), torch.randn(16, 4), fooled, checks=["overfit"]
    )
    assert [(each.rule, each.severity) for each in found.findings] == [("loss_reversed", "warn")]


def test_a_return_below_zero_and_an_entropy_are_no_loss_that_is_reversed() -> None:
    torch.manual_seed(0)
    model, x, _ = mlp()
    actions, returns = torch.arange(len(x)) % 3, -torch.rand(len(x))
    for loss in (
        lambda output: (functional.cross_entropy(output, actions, reduction="none") * returns).mean(),
        lambda output: functional.cross_entropy(output, actions) - 0.1 * functional.cross_entropy(output, output.softmax(-1)),
    ):
        found = sonde.preflight(model, x, loss, checks=["overfit"], steps=25)
        assert "loss_reversed" not in {each.rule for each in found.findings}


def test_whether_the_future_is_seen_is_judged_only_of_a_model_that_is_to_predict_it() -> None:
    torch.manual_seed(0)
    x = torch.randint(9, (6, 8))
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(9, 16), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(16, 9))
    masked = x.masked_fill(torch.rand(6, 8) < 0.7, -100)
    found = sonde.preflight(model, x, lambda o: functional.cross_entropy(o.mT, masked), checks=["future_unseen"])["future_unseen"]
    assert found.verdict == "unknown"


@pytest.mark.parametrize("check", ["overfit", "learning_rate"])
def test_a_rate_that_is_too_large_for_a_sum_is_said_to_be_one_of_the_sum(check: str) -> None:
    """With a mean the same rate is none to speak of; the sum has gradients as large as there are samples."""
    torch.manual_seed(0)
    x, y = 3 * torch.randn(64, 6), torch.arange(64) % 3
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    for reduction in ("sum", "mean"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loss = functools.partial(functional.cross_entropy, target=y, reduction=reduction)
        found = sonde.preflight(model, x, loss, optimizer, checks=[check])[check]
        said = [each.advice for each in found.findings]
        assert any('cross_entropy has reduction="sum", and adds 64 samples' in each for each in said) is (reduction == "sum"), found


def told(name: str, model: nn.Module, x: Tensor, loss_fn: Any, optimizer: Any = None) -> list[tuple[str, str, str]]:
    """What one check finds: rule, message and advice."""
    check = sonde.preflight(model, x, loss_fn, optimizer, checks=[name])[name]
    return [(each.rule, each.message, each.advice) for each in check.findings if each.severity != "note"]


@pytest.mark.parametrize("is_whole", [False, True])
def test_targets_that_add_up_to_more_than_one_are_no_distribution(is_whole: bool) -> None:
    """Nor is the loss of a guess then that of one label."""
    torch.manual_seed(0)
    x, model = torch.randn(16, 6), nn.Linear(6, 5)
    labels = (torch.rand(16, 5) > 0.3).double().float()
    labels = labels / labels.sum(1, keepdim=True).clamp(min=1) if is_whole else labels
    found = told("labels", model, x, lambda out: functional.cross_entropy(out, labels.where(labels.any(1, keepdim=True), 0.2)))
    assert [each[0] for each in found] == ([] if is_whole else ["labels_several"])
    assert told("initial_loss", model, x, lambda out: functional.cross_entropy(out, labels)) == []


def test_targets_that_an_activation_cannot_reach_are_told_and_those_far_from_the_outputs() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(32, 6), 10 * torch.rand(32, 1)
    ((rule, message, _),) = told("labels", nn.Sequential(nn.Linear(6, 1), nn.Tanh()), x, lambda out: functional.mse_loss(out, y))
    assert (rule, message.endswith("are beyond what the last Tanh can return")) == ("target_beyond", True)
    ((rule, _, _),) = told("initial_loss", nn.Linear(6, 1), x, lambda out: functional.mse_loss(out, 1e5 * y))
    assert rule == "target_large"
    assert told("targets_used", nn.Linear(6, 1), x, lambda out: functional.mse_loss(out, 1e5 * y)) == []


class Keeping(nn.Module):
    """A layer that begins each call with what it has kept of the one before: an attribute, or a buffer."""

    def __init__(self, *, is_buffer: bool) -> None:
        super().__init__()
        self.layer, self.is_buffer, self.kept = nn.Linear(6, 2), is_buffer, torch.zeros(16, 6)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_buffer:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return self.layer(x - self.mean)  # type: ignore[no-any-return]
        self.kept = 0.5 * self.kept + x.detach()
        return self.layer(self.kept)  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_buffer", [False, True])
def test_state_that_a_call_leaves_to_the_next_is_told_but_of_buffers(is_buffer: bool) -> None:
    found = told("deterministic", Keeping(is_buffer=is_buffer), torch.randn(16, 6), lambda out: out.square().mean())
    assert [each[0] for each in found] == ([] if is_buffer else ["random_output"])
    assert is_buffer or "the model keeps something of the first one" in found[0][1]


def test_a_dropout_of_everything_is_named_with_its_rate() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(1.0), nn.Linear(8, 2))
    found = told("alive", model, torch.randn(16, 6), lambda out: out.square().mean())
    assert ("dead", "100 % dead: a dropout that leaves out all") in [each[:2] for each in found]


def test_an_eps_that_makes_steps_small_is_what_is_to_be_mended() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 6)

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, eps=10.0)

    found = told("overfit", mlp()[0], x, lambda out: functional.cross_entropy(out, (x[:, 0] > 0).long()), adam)
    assert [each[2] for each in found] == ["its eps is 10, and gradients are divided by it: 1e-8 is usual"]


def test_windows_of_one_series_are_samples_apart() -> None:
    """Though they lie over each other in memory."""
    windows = torch.randn(40).unfold(0, 8, 1)[..., None]
    model = Reading()
    assert told("samples_apart", model, windows, lambda out: out.square().mean()) == []


class Reading(nn.Module):
    """A recurrent layer, and one number of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.layer(x)[0][:, -1])
        return made
