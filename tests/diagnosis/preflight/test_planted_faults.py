"""Each planted fault is named by its check."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

import sonde

Case = tuple[nn.Module, Any, Any, Any]


def net(*last: nn.Module, out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, out), *last)


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 6), torch.arange(16) % 3


def classify(y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda output: functional.cross_entropy(output, y)


class Around(nn.Module):
    """A network with a function in the middle or at the beginning."""

    def __init__(self, before: Callable[[Tensor], Tensor] = lambda x: x, between: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 32), nn.Linear(32, 3)
        self.before, self.between = before, between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(self.before(x)).relu()))


def softmax_before_cross_entropy() -> Case:
    x, y = data()
    return net(nn.Softmax(-1)), x, classify(y), None


def sigmoid_before_logits_loss() -> Case:
    x, _ = data()
    return net(nn.Sigmoid(), out=1), x, lambda p: functional.binary_cross_entropy_with_logits(p, (x[:, :1] > 0).float()), None


def probabilities_into_nll() -> Case:
    x, y = data()
    return net(nn.Softmax(-1)), x, lambda p: functional.nll_loss(p, y), None


def too_few_classes() -> Case:
    x, y = data()
    return net(out=2), x, classify(y), None


def negative_label() -> Case:
    x, y = data()
    return net(), x, classify(y - 1), None


def broadcast_mse() -> Case:
    x, _ = data()
    return net(out=1), x, lambda p: functional.mse_loss(p, x[:, 0]), None


def broadcast_difference() -> Case:
    x, _ = data()
    return net(out=1), x, lambda p: (p - x[:, 0]).square().mean(), None


def large_last_layer() -> Case:
    x, y = data()
    model = net()
    with torch.no_grad():
        model[4].weight.mul_(100)
    return model, x, classify(y), None


def targets_not_scaled() -> Case:
    x, _ = data()
    return net(out=1), x, lambda p: functional.mse_loss(p, x[:, :1] + 500), None


def detached() -> Case:
    x, y = data()
    return Around(between=Tensor.detach), x, classify(y), None


def frozen_by_no_grad() -> Case:
    x, y = data()

    class Frozen(Around):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                hidden = self.first(x).relu()
            return self.last(hidden)

    return Frozen(), x, classify(y), None


def nothing_trainable() -> Case:
    x, y = data()
    return net().requires_grad_(False), x, classify(y), None


def dead_units() -> Case:
    x, y = data()
    model = net()
    nn.init.constant_(model[2].bias, -50.0)
    return model, x, classify(y), None


def head_missing_in_optimizer() -> Case:
    x, y = data()
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model[4] = nn.Linear(32, 3)
    return model, x, classify(y), optimizer


def optimizer_of_another_model() -> Case:
    x, y = data()
    return net(), x, classify(y), torch.optim.Adam(net().parameters())


def rate_too_large() -> Case:
    x, y = data()
    return net(), x, classify(y), lambda parameters: torch.optim.Adam(parameters, lr=1.0)


def rate_too_small() -> Case:
    x, y = data()
    return net(), x, classify(y), lambda parameters: torch.optim.SGD(parameters, lr=1e-12)


def input_times_zero() -> Case:
    x, y = data()
    return Around(before=lambda x: x * 0), x, classify(y), None


def samples_viewed_into_each_other() -> Case:
    x, y = data()
    return Around(before=lambda x: x.T.reshape(16, 6)), x, classify(y), None


def softmax_over_the_batch() -> Case:
    x, y = data()
    return Around(between=lambda h: h.softmax(0)), x, classify(y), None


def in_eval_mode() -> Case:
    x, y = data()
    return net(nn.Dropout(0.1)).eval(), x, classify(y), None


def dropout_in_each_mode() -> Case:
    x, y = data()
    return Around(between=lambda h: nn.functional.dropout(h, 0.2)), x, classify(y), None


def one_layer_in_a_list() -> Case:
    x, y = data()
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh())] * 3
    return nn.Sequential(nn.Linear(6, 16), *blocks, nn.Linear(16, 3)), x, classify(y), None


def log_of_a_negative() -> Case:
    x, y = data()
    return Around(before=torch.log), x, classify(y), None


def gradients_fade() -> Case:
    x, y = data()
    layers: list[nn.Module] = [nn.Linear(6, 32)]
    for _ in range(10):
        layers.append(nn.Linear(32, 32))
        nn.init.normal_(layers[-1].weight, std=0.01)  # type: ignore[arg-type]
    return nn.Sequential(*layers, nn.Linear(32, 3)), x, classify(y), None


def outputs_grow() -> Case:
    x, y = data()
    layers: list[nn.Module] = [nn.Linear(6, 32)]
    for _ in range(6):
        layers.append(nn.Linear(32, 32))
        nn.init.normal_(layers[-1].weight, std=1.0)  # type: ignore[arg-type]
    return nn.Sequential(*layers, nn.Linear(32, 3)), x, classify(y), None


def shapes_that_do_not_fit() -> Case:
    x, y = data()
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(9, 3)), x, classify(y), None


_CALLS: list[None] = []


def random_every_time() -> Case:
    x, y = data()

    def drifting(h: Tensor) -> Tensor:
        _CALLS.append(None)  # a global, which no copy of the model takes along
        return h + 0.01 * len(_CALLS)

    return Around(between=drifting), x, classify(y), None


def no_activation() -> Case:
    x, y = data()
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.0), nn.Linear(16, 16), nn.Linear(16, 3)), x, classify(y), None


def constant_loss() -> Case:
    x, _ = data()
    return net(), x, lambda p: p.softmax(-1).sum(-1).mean(), None


def negated() -> Case:
    x, y = data()
    return net(), x, lambda p: 3 - 2 * functional.cross_entropy(p, y), None


def targets_beyond_probabilities() -> Case:
    x, _ = data()
    return net(out=1), x, lambda p: functional.binary_cross_entropy_with_logits(p, 2 * (x[:, :1] > 0).float()), None


def probabilities_into_kl_div() -> Case:
    x, _ = data()
    return net(nn.Softmax(-1)), x, lambda p: functional.kl_div(p, torch.full((16, 3), 1 / 3), reduction="batchmean"), None


def relu_behind_the_last_layer() -> Case:
    x, y = data()
    return net(nn.ReLU()), x, classify(y), None


def one_sample_for_all() -> Case:
    x, y = data()
    return Around(between=lambda h: h[3:4].expand_as(h)), x, classify(y), None


def one_sample_behind_batch_norm() -> Case:
    x, y = data()
    model = Around(between=lambda h: h + h[3:4])
    return nn.Sequential(nn.BatchNorm1d(6), model), x, classify(y), None


class Sequence(nn.Module):
    """Tokens, a mixing of positions, and the logits of the next token."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.tokens, self.head, self.mix = nn.Embedding(20, 16), nn.Linear(16, 20), mix

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.mix(self.tokens(x)))
        return made


def future_by_mean() -> Case:
    ids = torch.randint(20, (8, 13))
    return Sequence(lambda h: h + h.mean(1, keepdim=True)), ids[:, :-1], lambda o: functional.cross_entropy(o.mT, ids[:, 1:]), None


def future_by_one_position() -> Case:
    ids = torch.randint(20, (8, 13))
    return (
        Sequence(lambda h: h + h.roll(-1, 1)),
        ids[:, :-1],
        lambda o: functional.cross_entropy(o.flatten(0, 1), ids[:, 1:].flatten()),
        None,
    )


def future_inside_the_model() -> Case:
    class Own(Sequence):
        def forward(self, ids: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            logits = super().forward(ids)
            return {"loss": functional.cross_entropy(logits[:, :-1].mT, ids[:, 1:]), "logits": logits}

    return Own(lambda h: h + h.roll(-1, 1)), {"ids": torch.randint(20, (8, 13))}, None, None


class Forecast(nn.Module):
    """Convolutions over the last axis of ``(samples, channels, positions)``; padded on both sides, each position sees the next."""

    def __init__(self, padding: tuple[int, int], turned: tuple[bool, bool] = (False, False)) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 8, 3), nn.Conv1d(8, 3, 1)
        self.padding, self.turned = padding, turned

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT if self.turned[0] else x
        x = self.last(self.first(functional.pad(x, self.padding)).relu())
        return x.mT if self.turned[1] else x


def forecast(padding: tuple[int, int], given_last: bool = False, made_last: bool = False) -> Case:
    """Return a forecast whose inputs, or outputs and targets, have their channels last or before the positions."""
    series = torch.randn(8, 3, 21)
    x, y = series[..., :-1], series[..., 1:]
    x, y = x.mT if given_last else x, y.mT if made_last else y
    return Forecast(padding, (given_last, made_last)), x, lambda o: functional.mse_loss(o, y), None


def future_of_channels_first() -> Case:
    return forecast((1, 1))


def future_of_channels_first_and_outputs_last() -> Case:
    return forecast((1, 1), made_last=True)


def future_of_channels_last_and_outputs_first() -> Case:
    return forecast((1, 1), given_last=True)


def future_of_frames() -> Case:
    frames = torch.randn(4, 2, 9, 5, 5)
    return nn.Conv3d(2, 2, 3, padding=1), frames[:, :, :-1], lambda o: functional.mse_loss(o, frames[:, :, 1:]), None


@pytest.mark.parametrize(("given_last", "made_last"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_forecast_that_sees_the_past_alone_is_right_in_each_layout(given_last: bool, made_last: bool) -> None:
    torch.manual_seed(0)
    model, x, loss_fn, _ = forecast((2, 0), given_last, made_last)
    assert sonde.preflight(model, x, loss_fn, checks=["future_unseen"])["future_unseen"].verdict == "ok"


def targets_not_shifted() -> Case:
    ids = torch.randint(20, (8, 13))
    return Sequence(lambda h: h.cumsum(1)), ids, lambda o: functional.cross_entropy(o.mT, ids), None


def own_predictions() -> Case:
    x, _ = data()
    return net(), x, lambda p: functional.cross_entropy(p, p.argmax(-1)), None


def targets_averaged() -> Case:
    x, _ = data()
    goal = x[:, :1].clone()
    return net(out=1), x, lambda p: functional.mse_loss(p.mean(0), goal.mean(0)), None


class OfColumns(nn.Module):
    """A network of what a function takes of its input."""

    def __init__(self, take: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.take, self.layers = take, nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(self.take(x))
        return made


def one_column_of_six() -> Case:
    x, y = data()
    return OfColumns(lambda x: x[:, :1], 1), x, classify(y), None


def one_feature_of_a_sequence() -> Case:
    _, y = data()
    return OfColumns(lambda x: x[..., 2:3].mean(1), 1), torch.randn(16, 9, 6), classify(y), None


def one_channel_of_three() -> Case:
    _, y = data()
    return OfColumns(lambda x: x[:, 0].flatten(1), 25), torch.randn(16, 3, 5, 5), classify(y), None


class OfTwo(nn.Module):
    """A network with a layer for each of two inputs, of which the second may be left out, or is by mistake."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.one, self.other, self.last, self.share = nn.Linear(6, 16), nn.Linear(4, 16), nn.Linear(16, 3), share

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        made: Tensor = self.last((self.one(x) + (0 if z is None else self.share * self.other(z))).relu())
        return made


class Recurrent(nn.Module):
    """A recurrent layer, and a linear one of what a function takes of its outputs."""

    def __init__(self, take: Callable[[Tensor], Tensor], **kwargs: bool) -> None:
        super().__init__()
        self.cells, self.last, self.take = nn.LSTM(6, 16, **kwargs), nn.Linear(16, 3), take

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.take(self.cells(x)[0]))
        return made


def batch_first_forgotten() -> Case:
    _, y = data()
    return Recurrent(lambda h: h[:, -1]), torch.randn(16, 9, 6), classify(y), None


@pytest.mark.parametrize(
    ("model", "x", "target"),
    [
        (Recurrent(lambda h: h), torch.randn(9, 16, 6), torch.randn(9, 16, 3)),
        (Recurrent(lambda h: h), torch.randn(9, 6), torch.randn(9, 3)),
        (Recurrent(lambda h: h[:, 0]), torch.randn(9, 1, 6), torch.randn(9, 3)),
    ],
    ids=["each position", "one sequence", "one sample"],
)
def test_time_as_the_first_axis_is_no_batch_whose_samples_are_mixed(model: nn.Module, x: Tensor, target: Tensor) -> None:
    found = sonde.preflight(model, x, lambda o: functional.mse_loss(o, target), checks=["samples_apart"])["samples_apart"]
    assert found.verdict == "note"


def second_input_without_use() -> Case:
    x, y = data()
    return OfTwo(share=0.0), (x, torch.randn(16, 4)), classify(y), None


def zeros_for_some_columns() -> OfColumns:
    model = OfColumns(lambda x: x, 6)
    nn.init.zeros_(model.layers[0].weight[:, 1:].detach())
    return model


class Products(nn.Module):
    """Scores of words and their neighbours, whose embeddings begin at zero; a third input has no use."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.neighbours, self.head = nn.Embedding(9, 4), nn.Embedding(9, 4), nn.Linear(1, 3)
        nn.init.zeros_(self.neighbours.weight)

    def forward(self, word: Tensor, neighbour: Tensor, unused: Tensor | None = None) -> Tensor:
        return self.head((self.words(word) * self.neighbours(neighbour)).sum(-1, keepdim=True))  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_given", [False, True])
def test_inputs_whose_embeddings_are_multiplied_by_zero_at_first_are_used(is_given: bool) -> None:
    _, y = data()
    batch = [torch.randint(1, 9, (16,)) for _ in range(2 + is_given)]
    check = sonde.preflight(Products(), tuple(batch), classify(y), checks=["input_used"])["input_used"]
    assert [each.message for each in check.findings if each.severity != "note"] == (
        ["the output does not depend on unused"] if is_given else []
    )


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (OfColumns(lambda x: x, 6), torch.randn(16, 6)),
        (zeros_for_some_columns(), torch.randn(16, 6)),
        (OfColumns(lambda x: x[:, -1], 6), torch.randn(16, 9, 6)),
        (OfColumns(lambda x: x[:, :, ::2, ::2].flatten(1), 27), torch.randn(16, 3, 5, 5)),
        (OfColumns(lambda x: functional.one_hot(x[:, 0].long(), 4).float(), 4), torch.rand(16, 1) * 3),
        (nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3)), torch.randint(9, (16, 6))),
        (OfTwo(), (torch.randn(16, 6), torch.randn(16, 4))),
        (OfTwo(), (torch.randn(16, 6), None)),
    ],
    ids=["all", "weights of zero", "last position", "stride", "indices", "embedding", "two", "without the second"],
)
def test_an_input_is_unused_for_no_weight_of_zero_and_no_position(model: nn.Module, batch: Any) -> None:
    _, y = data()
    assert sonde.preflight(model, batch, classify(y), checks=["input_used"])["input_used"].verdict == "ok"


def parameters_without_use() -> Case:
    x, y = data()
    model = Around()
    model.forgotten = nn.Linear(32, 32)
    return model, x, classify(y), None


def kept_in_a_list() -> Case:
    x, y = data()

    class Listed(Around):
        def __init__(self) -> None:
            super().__init__()
            self.between = [nn.Linear(32, 32) for _ in range(2)]

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            for layer in self.between:
                hidden = layer(hidden).relu()
            made: Tensor = self.last(hidden)
            return made

    return Listed(), x, classify(y), None


def equal_units() -> Case:
    x, y = data()
    model = net()
    nn.init.constant_(model[0].weight, 0.1)
    nn.init.constant_(model[0].bias, 0.0)
    nn.init.constant_(model[2].weight, 0.1)
    return model, x, classify(y), None


def random_head_frozen() -> Case:
    x, y = data()
    model = net()
    model[4].requires_grad_(False)
    return model, x, classify(y), None


def targets_all_ignored() -> Case:
    x, y = data()
    return net(), x, classify(torch.full_like(y, -100)), None


def one_class_alone() -> Case:
    x, y = data()
    return net(), x, classify(torch.full_like(y, 2)), None


def inputs_all_equal() -> Case:
    x, y = data()
    return net(), x[:1].repeat(16, 1), classify(y), None


def inputs_all_zero() -> Case:
    x, y = data()
    return net(), torch.zeros_like(x), classify(y), None


def summed_by_hand() -> Case:
    x, _ = data()
    return net(out=1), x, lambda output: (output - x[:, :1]).square().sum(), None


def summed_log_probabilities() -> Case:
    x, y = data()
    return net(), x, lambda output: -output.log_softmax(-1).gather(1, y[:, None]).sum(), None


def summed_by_the_loss_function() -> Case:
    x, y = data()
    return net(), x, lambda output: functional.cross_entropy(output, y, reduction="sum"), None


SUMS_THAT_ARE_MEANS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "divided": lambda output, goal: (output - goal).square().sum() / len(goal),
    "of features": lambda output, goal: (output - goal).square().sum(1).mean(),
    "weighted": lambda output, goal: (goal.abs() * (output - goal).square()).sum() / goal.abs().sum(),
    "a share of sums": lambda output, goal: 1 - 2 * (output.sigmoid() * goal.abs()).sum() / (output.sigmoid() + goal.abs()).sum(),
    "of the loss function": lambda output, goal: functional.mse_loss(output, goal, reduction="sum") / goal.numel(),
    "a small term": lambda output, goal: functional.mse_loss(output, goal) + 1e-4 * output.square().sum(),
}


@pytest.mark.parametrize("name", SUMS_THAT_ARE_MEANS)
def test_a_sum_that_is_divided_is_no_sum_over_samples(name: str) -> None:
    torch.manual_seed(0)
    x, _ = data()
    found = sonde.preflight(net(), x, lambda output: SUMS_THAT_ARE_MEANS[name](output, x[:, :3]), checks=["loss_shape"])
    assert found["loss_shape"].verdict == "ok"


def test_a_large_rate_under_a_sum_by_hand_is_said_to_be_one_of_the_sum() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 6)

    def steep(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    found = sonde.preflight(net(out=1), x, lambda p: (p - x[:, :1]).square().sum(), steep, checks=["overfit"], steps=25)
    assert "adds 256 samples: take the mean" in found["overfit"].findings[0].advice


def test_a_frozen_last_layer_is_no_random_one_where_its_weights_or_a_part_are_trained() -> None:
    torch.manual_seed(0)
    model, x, loss_fn, _ = random_head_frozen()
    model[4].weight.data *= 1.5
    assert sonde.preflight(model, x, loss_fn, checks=["gradients"])["gradients"].verdict == "ok"
    model, x, loss_fn, _ = random_head_frozen()
    model[4].bias.requires_grad_(True)
    assert sonde.preflight(model, x, loss_fn, checks=["gradients"])["gradients"].verdict == "ok"


def test_logits_that_are_all_zero_at_first_or_have_both_signs_are_no_fault() -> None:
    torch.manual_seed(0)
    x, y = data()
    model = net()
    assert sonde.preflight(model, x, classify(y), checks=["loss_input"])["loss_input"].verdict == "ok"
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    assert sonde.preflight(model, x, classify(y), checks=["loss_input"])["loss_input"].verdict == "ok"


def test_inputs_that_are_learnt_better_than_zeros_in_more_steps_alone_are_no_fault() -> None:
    """Four features are left of sixteen random ones: at first the mean is learnt, as well as of zeros."""
    torch.manual_seed(0)
    sizes = (16, 8, 4, 8, 16)
    layers = [each for pair in itertools.pairwise(sizes) for each in (nn.Linear(*pair), nn.ReLU())]
    model, x = nn.Sequential(*layers[:-1]), torch.rand(64, 16)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    found = sonde.preflight(
        model, x, lambda p: functional.mse_loss(p, x), optimizer, checks=["overfit", "zeroed_inputs"], verbose=False
    )
    assert found["zeroed_inputs"].verdict == "unknown", found
    assert "in more steps alone" in found["zeroed_inputs"].words


def test_a_last_layer_that_begins_at_zero_and_equal_inputs_beside_others_are_no_fault() -> None:
    torch.manual_seed(0)
    x, y = data()
    model = net()
    nn.init.zeros_(model[4].weight)
    found = sonde.preflight(model, x, classify(y), checks=["gradients"])
    assert "alike" not in {each.rule for each in found["gradients"].findings}
    both = sonde.preflight(OfTwo(), (x, torch.ones(16, 4)), classify(y), checks=["input_used"])
    assert "inputs_alike" not in {each.rule for each in both["input_used"].findings}


def first_sample_alone() -> Case:
    x, y = data()
    return net(), x, lambda output: functional.cross_entropy(output[:1], y[:1]), None


def few_samples() -> Case:
    x, y = data()
    return net(), x, lambda output: functional.cross_entropy(output[:5], y[:5]), None


def zeros_for_targets() -> Case:
    x, _ = data()
    return net(), x, lambda output: functional.mse_loss(output, torch.zeros_like(output)), None


def labels_from_one() -> Case:
    x, y = torch.randn(48, 6), torch.arange(48) % 3 + 1
    return net(out=4), x, classify(y), None


class TurnedRound(torch.autograd.Function):
    """A gradient reversal."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return -gradient


def gradient_turned_round() -> Case:
    x, y = data()
    model = Around(between=TurnedRound.apply)
    model.last.weight.requires_grad_(False)
    return model, x, classify(y), torch.optim.Adam(model.parameters(), lr=1e-2)


def climbing() -> Case:
    x, y = data()
    model = net()
    return model, x, classify(y), torch.optim.SGD(model.parameters(), lr=0.5, maximize=True)


def rate_zero_for_a_group() -> Case:
    x, y = data()
    model = net()
    groups: list[Any] = [{"params": model[:4].parameters(), "lr": 0.0}, {"params": model[4].parameters()}]
    return model, x, classify(y), torch.optim.AdamW(groups, lr=1e-3)


def decay_of_half() -> Case:
    x, y = data()
    model = net()
    return model, x, classify(y), torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=50.0)


class Encoder(nn.Module):
    """Attention over tokens, with positions that begin as *positions* says, or with none."""

    def __init__(self, positions: float | None) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.positions = None if positions is None else nn.Parameter(positions * torch.randn(1, 12, 16))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        made: Tensor = self.head(self.body(x if self.positions is None else x + self.positions).mean(1))
        return made


def no_positions() -> Case:
    model = Encoder(None)
    return model, torch.randint(20, (16, 12)), classify(torch.arange(16) % 3), torch.optim.Adam(model.parameters())


@pytest.mark.parametrize("positions", [0.0, 0.02])
def test_positions_are_seen_though_they_begin_at_zero(positions: float) -> None:
    torch.manual_seed(0)
    found = sonde.preflight(Encoder(positions), torch.randint(20, (16, 12)), classify(torch.arange(16) % 3), checks=["input_used"])
    assert found["input_used"].verdict == "ok"


def colours_by_a_view() -> Case:
    up, along = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    waves = up[..., None] * torch.rand(16, 1, 1, 3) + along[..., None] * torch.rand(16, 1, 1, 3)
    images, y = (0.3 * waves + 6 * torch.rand(16, 1, 1, 3)).sin(), torch.arange(16) % 3
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 22 * 22, 3))
    return model, images.reshape(16, 3, 24, 24), classify(y), torch.optim.Adam(model.parameters())


@pytest.mark.parametrize(
    ("make", "check", "rule", "result"),
    [
        (kept_in_a_list, "gradients", "unregistered", "warn"),
        (equal_units, "gradients", "alike", "warn"),
        (random_head_frozen, "gradients", "frozen", "warn"),
        (targets_all_ignored, "labels", "labels_ignored", "bad"),
        (one_class_alone, "labels", "labels_alike", "warn"),
        (inputs_all_equal, "input_used", "inputs_alike", "bad"),
        (inputs_all_zero, "input_used", "inputs_alike", "bad"),
        (summed_by_hand, "loss_shape", "loss_summed", "note"),
        (summed_log_probabilities, "loss_shape", "loss_summed", "note"),
        (summed_by_the_loss_function, "loss_shape", "loss_summed", "note"),
        (negated, "overfit", "loss_reversed", "bad"),
        (targets_beyond_probabilities, "labels", "labels_outside", "bad"),
        (probabilities_into_kl_div, "overfit", "loss_below_bound", "bad"),
        (one_sample_for_all, "samples_apart", "samples_mixed", "bad"),
        (one_sample_behind_batch_norm, "samples_apart", "samples_mixed", "bad"),
        (future_by_mean, "future_unseen", "future_seen", "bad"),
        (future_by_one_position, "future_unseen", "future_seen", "bad"),
        (future_inside_the_model, "future_unseen", "future_seen", "bad"),
        (future_of_channels_first, "future_unseen", "future_seen", "bad"),
        (future_of_channels_first_and_outputs_last, "future_unseen", "future_seen", "bad"),
        (future_of_channels_last_and_outputs_first, "future_unseen", "future_seen", "bad"),
        (future_of_frames, "future_unseen", "future_seen", "bad"),
        (targets_not_shifted, "targets_apart", "target_shifted", "warn"),
        (own_predictions, "targets_apart", "target_predicted", "bad"),
        (targets_averaged, "targets_used", "target_unused", "warn"),
        (first_sample_alone, "targets_used", "samples_unread", "warn"),
        (few_samples, "targets_used", "samples_unread", "note"),
        (zeros_for_targets, "targets_used", "target_constant", "note"),
        (labels_from_one, "labels", "label_absent", "warn"),
        (gradient_turned_round, "learning_rate", "gradient_reversed", "warn"),
        (climbing, "learning_rate", "step_large", "bad"),
        (rate_zero_for_a_group, "optimizer", "rate_zero", "warn"),
        (decay_of_half, "first_update", "decay_large", "bad"),
        (batch_first_forgotten, "samples_apart", "samples_mixed", "bad"),
        (one_column_of_six, "input_used", "input_unused", "warn"),
        (one_feature_of_a_sequence, "input_used", "input_unused", "warn"),
        (one_channel_of_three, "input_used", "input_unused", "warn"),
        (second_input_without_use, "input_used", "input_unused", "warn"),
        (colours_by_a_view, "input_used", "samples_mixed", "warn"),
        (no_positions, "input_used", "input_unused", "warn"),
        (parameters_without_use, "gradients", "unreached", "warn"),
        (softmax_before_cross_entropy, "loss_input", "softmax_twice", "bad"),
        (sigmoid_before_logits_loss, "loss_input", "softmax_twice", "bad"),
        (probabilities_into_nll, "loss_input", "softmax_twice", "bad"),
        (relu_behind_the_last_layer, "loss_input", "logits_cut", "warn"),
        (too_few_classes, "labels", "labels_outside", "bad"),
        (negative_label, "labels", "labels_outside", "bad"),
        (broadcast_mse, "loss_shape", "loss_broadcast", "bad"),
        (broadcast_difference, "loss_shape", "loss_broadcast", "warn"),
        (large_last_layer, "initial_loss", "initial_loss", "warn"),
        (targets_not_scaled, "initial_loss", "initial_error", "warn"),
        (detached, "gradients", "cut_off", "bad"),
        (frozen_by_no_grad, "gradients", "cut_off", "bad"),
        (nothing_trainable, "gradients", "frozen", "bad"),
        (dead_units, "alive", "dead", "bad"),
        (head_missing_in_optimizer, "optimizer", "missing_in_optimizer", "bad"),
        (optimizer_of_another_model, "optimizer", "missing_in_optimizer", "bad"),
        (rate_too_large, "first_update", "step_large", "warn"),
        (rate_too_small, "first_update", "step_lost", "warn"),
        (input_times_zero, "input_used", "input_unused", "bad"),
        (samples_viewed_into_each_other, "samples_apart", "samples_mixed", "bad"),
        (softmax_over_the_batch, "samples_apart", "samples_mixed", "bad"),
        (in_eval_mode, "mode", "eval_mode", "warn"),
        (dropout_in_each_mode, "mode", "dropped", "warn"),
        (one_layer_in_a_list, "gradients", "held_twice", "warn"),
        (log_of_a_negative, "runs", "nonfinite", "bad"),
        (gradients_fade, "depth", "gradient_vanishing", "warn"),
        (outputs_grow, "depth", "output_large", "warn"),
        (no_activation, "depth", "all_linear", "warn"),
        (shapes_that_do_not_fit, "runs", "raises", "bad"),
        (random_every_time, "deterministic", "random_output", "warn"),
        (constant_loss, "overfit", "not_overfit", "bad"),
    ],
)
def test_a_planted_fault_is_named_by_its_check(make: Callable[[], Case], check: str, rule: str, result: str) -> None:
    torch.manual_seed(0)
    model, x, loss_fn, optimizer = make()
    found = sonde.preflight(model, x, loss_fn, optimizer, checks=[check], steps=25)
    assert found[check].verdict == result
    assert rule in {each.rule for each in found[check].findings}


def test_noise_of_its_own_is_not_taken_for_other_samples() -> None:
    torch.manual_seed(0)
    model, x, loss_fn, _ = random_every_time()
    found = sonde.preflight(model, x, loss_fn, checks=["deterministic", "samples_apart"], verbose=False)
    assert (found["deterministic"].verdict, found["samples_apart"].verdict) == ("warn", "unknown")
    assert "two forwards from one random state differ" in found["samples_apart"].words


def test_a_batch_that_zeros_learn_as_well_says_that_the_input_is_not_used() -> None:
    """The input reaches the output, but only by a millionth."""
    torch.manual_seed(0)
    x, _ = data()
    model = nn.Sequential(Around(before=lambda x: x * 1e-6), nn.Linear(3, 1))
    goal = x[:, :1] + 5

    def faster(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.03)

    found = sonde.preflight(model, x, lambda p: functional.mse_loss(p, goal), faster, checks=["overfit", "zeroed_inputs"])
    assert [each.verdict for each in found.checks] == ["warn", "warn"]
    assert "a guess that is equal for all samples has" in found["overfit"].findings[0].message


def test_a_rate_with_which_the_loss_rises_gets_one_with_which_it_falls() -> None:
    torch.manual_seed(0)
    x, y = data()
    found = sonde.preflight(net(), x, classify(y), lambda parameters: torch.optim.SGD(parameters, lr=30.0), steps=25)
    assert found["learning_rate"].verdict == "warn"
    assert found["overfit"].verdict == "bad"
    assert "Adam learns it" in found["overfit"].findings[0].message


@pytest.mark.parametrize("check", ["overfit", "learning_rate", "targets_used"])
def test_a_loss_that_is_nan_is_not_judged_by_its_training(check: str) -> None:
    model, x, loss_fn, _ = targets_all_ignored()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = sonde.preflight(model, x, loss_fn, optimizer, checks=[check])
    assert (found[check].verdict, found[check].words) == ("unknown", "the loss is not finite")


@pytest.mark.parametrize(("diagonal", "verdict"), [(-1, "ok"), (0, "warn")])
def test_targets_that_are_inputs_which_a_model_sees_the_earlier_ones_of_are_no_copy(diagonal: int, verdict: str) -> None:
    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 12))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.tril(diagonal).T

    torch.manual_seed(0)
    x = (torch.rand(16, 12) > 0.5).float()
    loss_fn = lambda made: functional.binary_cross_entropy_with_logits(made, x)  # noqa: E731
    assert sonde.preflight(Ordered(), x, loss_fn, checks=["targets_apart"])["targets_apart"].verdict == verdict


@pytest.mark.parametrize("at", ["given", "made"])
def test_a_target_that_is_a_column_of_the_input_is_told(at: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 6)
    y = x[:, 4] if at == "given" else x[:, 4] + x[:, 2]
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
    found = sonde.preflight(model, x, lambda made: functional.mse_loss(made, y), checks=["targets_apart"])["targets_apart"].findings
    assert [each.message for each in found] == ["column 4 of the input is the target"] * (at == "given")


def test_a_loss_of_labels_and_of_a_teacher_that_disagrees_need_not_halve() -> None:
    torch.manual_seed(0)
    x, y = data()
    labels, taught = y.argmax(1) if y.dim() > 1 else y, torch.randn(len(x), 3).div(1.5).softmax(1)

    def loss_fn(made: Tensor) -> Tensor:
        divergence = functional.kl_div((made / 2).log_softmax(1), taught, reduction="batchmean")
        return 0.5 * functional.cross_entropy(made, labels.long()) + 2 * divergence

    found = sonde.preflight(net(), x, loss_fn, functools.partial(torch.optim.Adam, lr=1e-2), checks=["overfit"])["overfit"]
    assert found.verdict == "ok"


def test_only_what_the_optimizer_holds_is_asked_how_far_it_moves() -> None:
    torch.manual_seed(0)
    model, (x, y) = net(), data()
    optimizer = torch.optim.Adam(list(model.parameters())[-2:], lr=1e-2)
    found = sonde.preflight(model, x, classify(y), optimizer, checks=["first_update"])["first_update"]
    assert (found.verdict, "(median of 1)" in found.words) == ("ok", True)


@pytest.mark.parametrize(("at", "told"), [(0, True), (-1, False)])
def test_a_recurrent_layer_whose_first_step_alone_is_read_is_told(at: int, told: bool) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.head(self.layer(x.unflatten(0, (-1, 4)))[0][:, at])
            return made

    torch.manual_seed(0)
    x, y = data()
    found = sonde.preflight(Reader(), x, classify(y[::4]), checks=["gradients"])["gradients"].findings
    assert [each.advice.partition(",")[0] for each in found] == ["only the first step of a sequence goes into the loss"] * told


def test_a_group_with_rate_zero_does_not_hide_how_far_others_move() -> None:
    torch.manual_seed(0)
    found = sonde.preflight(*rate_zero_for_a_group(), checks=["first_update", "learning_rate"], steps=25)
    assert [each.verdict for each in found.checks] == ["ok", "ok"]


@pytest.mark.parametrize(("lr", "verdict"), [(0.03, "ok"), (0.5, "warn")])
def test_the_first_step_of_adagrad_is_like_no_other(lr: float, verdict: str) -> None:
    x, y = data()
    optimizer = functools.partial(torch.optim.Adagrad, lr=lr)
    assert sonde.preflight(net(), x, classify(y), optimizer, checks=["first_update"])["first_update"].verdict == verdict


@pytest.mark.parametrize(("lr", "sparse", "verdict"), [(0.05, False, "ok"), (0.05, True, "ok"), (1e4, False, "warn")])
def test_the_first_step_of_a_model_of_tables_is_that_of_the_rows_that_are_looked_up(lr: float, sparse: bool, verdict: str) -> None:
    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = (nn.Embedding(200, 4, sparse=sparse) for _ in range(2))

        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            return (self.users(user) * self.items(item)).sum(-1)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    batch = torch.randint(200, (16,)), torch.randint(200, (16,))
    optimizer = functools.partial(torch.optim.SGD, lr=lr)
    found = sonde.preflight(Factors(), batch, lambda made: (made - 1).square().mean(), optimizer, checks=["first_update"])
    assert found["first_update"].verdict == verdict


def test_lengths_of_which_none_may_be_zero_are_read() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.rnn, self.out = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(self.table(x), n, batch_first=True, enforce_sorted=False)
            made: Tensor = self.out(nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=6)[0])
            return made

    torch.manual_seed(0)
    batch = torch.randint(1, 20, (8, 6)), torch.randint(1, 7, (8,))
    found = sonde.preflight(Tagger(), batch, checks=["input_used"])["input_used"]
    assert (found.verdict, found.words) == ("ok", "the output depends on x, n")


def test_a_state_that_begins_at_zero_and_couplings_that_do_are_no_fault() -> None:
    class Equilibrium(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.given, self.state = nn.Linear(6, 8), nn.Linear(8, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            state = torch.zeros(len(x), 8)
            for _ in range(4):
                state = torch.tanh(self.given(x) + self.state(state))
            return state

    x, y = data()
    assert sonde.preflight(Equilibrium(), x, classify(y), checks=["alive"])["alive"].verdict == "ok"
    layers = [nn.Linear(6, 6) for _ in range(12)]
    for layer in layers[-4:]:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)

    class Coupled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x).tanh()
            return x

    assert "output_small" not in [each.rule for each in sonde.preflight(Coupled(), x, checks=["depth"])["depth"].findings]


def test_the_first_step_of_one_layer_and_a_scale_that_a_batch_sets_are_notes() -> None:
    x, y = data()
    optimizer = functools.partial(torch.optim.SGD, lr=30.0)
    found = sonde.preflight(nn.Linear(6, 3), x, classify(y), optimizer, checks=["first_update"])["first_update"]
    assert [each.severity for each in found.findings] == ["note"]

    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = net()

        def forward(self, x: Tensor) -> Tensor:
            scale = x.detach().abs().max() / 127
            made: Tensor = self.layer((x / scale).round() * scale)
            return made

    torch.manual_seed(0)
    found = sonde.preflight(Rounded(), x, checks=["samples_apart"])["samples_apart"]
    assert [each.severity for each in found.findings] == ["note"]


def test_a_mask_of_weights_is_no_graph_of_samples() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    prune.l1_unstructured(model[0], "weight", 0.5)
    assert sonde.preflight(model, torch.randn(32, 32), checks=["samples_apart"])["samples_apart"].verdict == "ok"


def test_a_warm_up_from_zero_of_one_group_is_no_fault() -> None:
    model, x, loss_fn, optimizer = rate_zero_for_a_group()
    optimizer.param_groups[0]["lr"] = 1e-3
    torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.0 if step < 5 else 1.0, lambda step: 1.0])
    assert optimizer.param_groups[0]["lr"] == 0
    assert sonde.preflight(model, x, loss_fn, optimizer, checks=["optimizer"])["optimizer"].verdict == "ok"


def test_half_of_the_samples_without_labels_is_no_fault() -> None:
    x, y = data()
    found = sonde.preflight(net(), x, lambda output: functional.cross_entropy(output[:8], y[:8]), checks=["targets_used"])
    assert found["targets_used"].verdict == "ok"


def test_a_last_step_in_time_is_not_one_of_the_samples() -> None:
    x, y = torch.randn(12, 16, 6), torch.arange(16) % 3
    found = sonde.preflight(net(), x, lambda output: functional.cross_entropy(output[-1], y), checks=["targets_used"])
    assert found["targets_used"].verdict in ("ok", "unknown")


def test_a_hinge_whose_samples_are_all_but_one_beyond_the_margin_reads_them() -> None:
    x, y = torch.randn(16, 6), torch.ones(16, 1)
    y[3] = -1

    def hinge(output: Tensor) -> Tensor:
        return (1 - y * (output + 20)).relu().mean()

    assert sonde.preflight(net(out=1), x, hinge, checks=["targets_used"])["targets_used"].verdict != "warn"


def test_a_class_that_is_rare_may_be_absent() -> None:
    x, y = torch.randn(16, 6), torch.arange(16) % 3 + 1
    assert sonde.preflight(net(out=4), x, classify(y), checks=["labels"])["labels"].verdict == "ok"


def test_a_rate_far_too_large_is_no_gradient_of_the_wrong_sign() -> None:
    torch.manual_seed(0)
    x, y = data()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e5)
    found = sonde.preflight(model, x, classify(y), optimizer, checks=["learning_rate"])["learning_rate"]
    assert "gradient_reversed" not in {each.rule for each in found.findings}


def test_a_usual_decay_is_no_fault() -> None:
    x, y = data()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    assert sonde.preflight(model, x, classify(y), optimizer, checks=["first_update"])["first_update"].verdict == "ok"


def test_outputs_that_are_equal_without_a_zero_are_not_said_to_begin_at_zero_alone() -> None:
    x, y = data()
    found = sonde.preflight(Around(before=torch.ones_like), x, classify(y), checks=["targets_used"])["targets_used"]
    assert (found.verdict, "or nothing of the samples reaches them" in found.words) == ("unknown", True)


@pytest.mark.parametrize(
    ("of", "words"), [(lambda x: x, "the inputs, as those of an autoencoder"), (torch.sin, "neither inputs nor predictions")]
)
def test_targets_that_are_the_inputs_are_said_to_be(of: Callable[[Tensor], Tensor], words: str) -> None:
    """As an autoencoder has them: nothing is wrong with that."""
    x = torch.rand(16, 8)
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
    found = sonde.preflight(model, x, lambda y: nn.functional.mse_loss(y, of(x)), verbose=False)
    check = found["targets_apart"]
    assert (check.verdict, check.words) == ("ok", f"the targets are {words}")


def test_a_factor_that_is_the_same_for_all_elements_is_no_dropout() -> None:
    torch.manual_seed(0)
    x, y = data()
    factor = torch.full((16, 32), 1.2)
    found = sonde.preflight(Around(between=lambda h: h * factor), x, classify(y), checks=["mode"], verbose=False)
    assert found["mode"].verdict == "ok"
