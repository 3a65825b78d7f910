"""What stands behind a finding is named: schedules, guesses, large inputs and weights, dropouts, equal weights, losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

import sonde


def net(out: int = 3, hidden: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out))


def data(count: int = 32) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 10)
    return x, (x @ torch.randn(10, 3)).argmax(-1)


def check(name: str, model: nn.Module, x: Any, loss_fn: Any, optimizer: Any = None) -> Any:
    return sonde.preflight(model, x, loss_fn, optimizer, checks=[name], verbose=False)[name]


def said(found: Any) -> list[str]:
    return [each.message for each in found.findings]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def warm_lambda(optimizer: Any) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))


def warm_linear(optimizer: Any) -> Any:
    return lr_scheduler.LinearLR(optimizer, 1e-3, total_iters=100)


def one_cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000, div_factor=1e4)


@pytest.mark.parametrize("schedule", [warm_lambda, warm_linear, one_cycle])
def test_a_warm_up_is_judged_by_the_rate_it_comes_to(schedule: Callable[[Any], Any]) -> None:
    """The checks name the rate, and the optimizer itself keeps the one that it has."""
    model, (x, y) = net(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule(optimizer)
    before = optimizer.param_groups[0]["lr"]
    found = sonde.preflight(
        model,
        x,
        lambda p: functional.cross_entropy(p, y),
        optimizer,
        checks=["first_update", "overfit", "learning_rate"],
        verbose=False,
    )
    assert [each.verdict for each in found.checks] == ["ok", "ok", "ok"]
    assert all("0.1 of its schedule" in each.words for each in found.checks)
    assert optimizer.param_groups[0]["lr"] == before


def test_a_rate_that_a_schedule_may_never_reach_is_a_note_alone() -> None:
    """The Transformer's schedule is made from a rate of 1, and stays below a thousandth of that."""
    model, (x, y) = net(), data()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    lr_scheduler.LambdaLR(optimizer, lambda step: 0.04 * min((step + 1) ** -0.5, (step + 1) * 4000**-1.5))
    found = sonde.preflight(
        model,
        x,
        lambda p: functional.cross_entropy(p, y),
        optimizer,
        checks=["first_update", "overfit", "learning_rate"],
        verbose=False,
    )
    assert not [each for each in found.findings if each.severity in ("bad", "warn")]


def test_a_rate_of_zero_without_a_schedule_stays_a_fault() -> None:
    model, (x, y) = net(), data()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    assert check("overfit", model, x, lambda p: functional.cross_entropy(p, y), optimizer).verdict == "bad"


@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_a_loss_that_comes_down_to_a_guess_is_not_learnt_by_adam(rate: float) -> None:
    """All units are dead, and the last bias learns how often each class occurs."""
    model, (x, y) = net(), data()
    nn.init.constant_(model[2].bias, -10.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    found = check("overfit", model, x, lambda p: functional.cross_entropy(p, y), optimizer)
    assert found.verdict == "warn"
    assert "Adam learns it" not in said(found)[0]
    assert "a guess that is equal for all samples has" in said(found)[0]


def test_a_loss_far_above_that_of_a_guess_is_not_learnt_by_half_of_it() -> None:
    model, (x, y) = net(), data()
    for layer in (model[0], model[2], model[4]):
        nn.init.normal_(layer.weight, std=5)
    found = sonde.preflight(
        model, x, lambda p: functional.cross_entropy(p, y), checks=["overfit", "zeroed_inputs"], steps=60, verbose=False
    )
    assert "one batch is not learnt" in said(found["overfit"])[0]
    assert found["zeroed_inputs"].words == "needs a batch that is learnt (overfit)"


def test_imbalanced_labels_that_are_learnt_are_no_guess() -> None:
    model, x = net(2), torch.randn(64, 10)
    y = (torch.arange(64) < 3).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    assert check("overfit", model, x, lambda p: functional.cross_entropy(p, y), optimizer).verdict == "ok"


def test_large_inputs_are_the_cause_of_a_large_first_loss() -> None:
    model, (x, y) = net(), data()
    x[:, 3] *= 1e5
    found = check("initial_loss", model, x, lambda p: functional.cross_entropy(p, y))
    assert "with inputs of size 1 it is" in said(found)[0]
    assert "in column 3 of 10" in found.findings[0].advice


def test_large_pixels_are_the_cause_of_a_large_first_error() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1))
    x, y = torch.randint(0, 256, (16, 1, 8, 8)).float(), torch.randn(16, 1)
    found = check("initial_loss", model, x, lambda p: functional.mse_loss(p, y))
    assert "scale the inputs" in found.findings[0].advice


def test_large_inputs_that_a_normalisation_takes_are_no_cause() -> None:
    model, (x, y) = nn.Sequential(nn.LayerNorm(10), *net()), data()
    nn.init.normal_(model[5].weight, std=5.0)
    found = check("initial_loss", model, 1000 * x, lambda p: functional.cross_entropy(p, y))
    assert "last layer" in found.findings[0].advice


def test_large_weights_of_several_layers_are_the_cause_of_a_large_first_loss() -> None:
    model, (x, y) = net(), data()
    for layer in (model[0], model[2], model[4]):
        nn.init.normal_(layer.weight, std=5)
    found = check("initial_loss", model, x, lambda p: functional.cross_entropy(p, y))
    assert "those of 0.weight, 2.weight, 4.weight are" in found.findings[0].advice


def test_a_large_dropout_is_the_cause_of_a_large_first_loss() -> None:
    model, (x, y) = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.97), nn.Linear(32, 3)), data()
    nn.init.ones_(model[0].bias)
    found = check("initial_loss", model, x, lambda p: functional.cross_entropy(p, y))
    assert "with no dropout it is" in said(found)[0]
    assert "97 %" in found.findings[0].advice


def test_targets_that_are_no_probabilities_are_the_cause_of_a_large_first_loss() -> None:
    model, x = nn.Conv2d(1, 1, 3, padding=1), torch.randn(16, 1, 8, 8)
    y = (x > 0).float() * 255
    found = check("initial_loss", model, x, lambda p: functional.binary_cross_entropy_with_logits(p, y))
    assert "labels" in found.findings[0].advice


class Dropped(nn.Module):
    """Leaves units out by hand."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) > 0.95) / 0.05


class Block(nn.Module):
    """Leaves units out by a function, inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(functional.relu(self.linear(x)), 0.95, self.training)


@pytest.mark.parametrize("make", [lambda: nn.Dropout(0.97), Dropped, Block])
def test_zeros_of_a_dropout_are_no_dead_units(make: Callable[[], nn.Module]) -> None:
    model, (x, y) = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), make(), nn.Linear(32, 3)), data()
    assert check("alive", model, x, lambda p: functional.cross_entropy(p, y)).findings == ()


def test_dead_units_behind_which_a_dropout_stands_are_still_dead() -> None:
    model, (x, y) = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.9), nn.Linear(32, 3)), data()
    with torch.no_grad():
        model[0].bias[:24] = -50.0
    state = torch.get_rng_state()
    found = check("alive", model, x, lambda p: functional.cross_entropy(p, y))
    assert ("1:output", "75 % dead in a batch") in [(each.site, each.message) for each in found.findings]
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_of_zero_that_stay_zero_are_named() -> None:
    model, (x, y) = net(), data()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    found = check("gradients", model, x, lambda p: functional.cross_entropy(p, y))
    assert any(each.startswith("all weights of 0.weight, 2.weight, 4.weight are 0 and stay 0") for each in said(found))


class Controlled(nn.Module):
    """A branch that begins and ends with weights of zero: those at its begin wake up after those at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.into, self.encoder, self.out = net(), nn.Linear(10, 10), nn.Linear(10, 16), nn.Linear(16, 3)
        for layer in (self.into, self.out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.trunk(x) + self.out(functional.relu(self.encoder(x + self.into(x))))
        return branch


def test_a_gradient_that_stays_zero_once_others_have_moved_is_a_fault() -> None:
    model, (x, y) = net(), data()
    model[1].register_forward_hook(lambda _module, _args, output: output.register_hook(torch.zeros_like) and None)
    found = check("gradients", model, x, lambda p: functional.cross_entropy(p, y))
    assert (found.verdict, [each.rule for each in found.findings]) == ("warn", ["gradient_zero"])
    assert said(found)[0].endswith("nor do they get one once others have moved: 0.weight, 0.bias")
    assert "a hook that sets gradients to zero" in found.findings[0].advice


def test_weights_of_zero_that_wake_up_later_are_no_fault() -> None:
    model, (x, y) = Controlled(), data()
    found = sonde.preflight(model, x, lambda p: functional.cross_entropy(p, y), checks=["gradients", "alive"], verbose=False)
    assert {each.rule for each in found.findings} == {"gradient_zero"}
    assert found.ok


@pytest.mark.parametrize("bias", [True, False])
def test_constant_weights_are_named_and_not_the_targets(bias: bool) -> None:
    """With equal weights in the last layer no loss depends on the order of targets."""
    model, (x, y) = net(), data()
    for layer in (model[0], model[2], model[4]):
        nn.init.constant_(layer.weight, 0.1)
        if not bias:
            nn.init.zeros_(layer.bias)
    found = sonde.preflight(
        model,
        x,
        lambda p: functional.cross_entropy(p, y),
        checks=["gradients", "targets_used", "loss_input"],
        verbose=False,
    )
    assert any("4.weight are one number: 0.1" in each for each in said(found["gradients"]))
    assert found["targets_used"].verdict == "unknown"
    assert found["loss_input"].verdict == "ok"


def test_scales_that_begin_at_one_are_no_constant_weights() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale, self.out = nn.Linear(10, 32), nn.Parameter(torch.ones(4, 8)), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.out((functional.relu(self.inner(x)).view(-1, 4, 8) * self.scale).flatten(1))
            return made

    x, y = data()
    assert check("gradients", Gated(), x, lambda p: functional.cross_entropy(p, y)).verdict == "ok"


def test_a_loss_without_slope_is_not_said_to_be_one_of_dead_layers() -> None:
    model, (x, y) = net(), data()

    def of_classes(p: Tensor) -> Tensor:
        return (functional.one_hot(p.argmax(-1), 3).float() - functional.one_hot(y, 3)).square().mean() + 0 * p.sum()

    found = sonde.preflight(model, x, of_classes, checks=["gradients", "targets_used"], verbose=False)
    assert "argmax" in found["gradients"].findings[0].advice
    assert found["targets_used"].findings == ()


@pytest.mark.parametrize("rows", [lambda p: p.log_softmax(0), lambda p: p.softmax(0).log(), lambda p: functional.log_softmax(p, 0)])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_softmax_over_the_samples_is_named(rows: Callable[[Tensor], Tensor], by_hand: bool) -> None:
    model, (x, y) = net(), data()

    def loss_fn(p: Tensor) -> Tensor:
        return -rows(p)[torch.arange(32), y].mean() if by_hand else functional.nll_loss(rows(p), y)

    found = check("loss_input", model, x, loss_fn)
    assert found.verdict == "bad"
    assert said(found)[0].startswith("the loss takes a softmax over axis 0 of 32×3")


def test_a_softmax_over_the_classes_of_a_transpose_is_no_fault() -> None:
    model, (x, y) = net(), data()
    assert check("loss_input", model, x, lambda p: functional.nll_loss(p.T.log_softmax(0).T, y)).verdict == "ok"


def test_a_loss_that_shuffles_its_targets_is_named() -> None:
    model, (x, y) = net(), data()
    found = sonde.preflight(
        model,
        x,
        lambda p: functional.cross_entropy(p, y[torch.randperm(32)]),
        checks=["deterministic", "targets_used", "overfit"],
        verbose=False,
    )
    assert said(found["targets_used"]) == [
        "cross_entropy is given its targets in another order at each call, and the outputs in the same one"
    ]
    assert "the loss function: of one output it returns" in found["deterministic"].words
    assert found["overfit"].findings[0].advice.startswith("look at the loss function")


def test_a_loss_that_shuffles_outputs_too_or_a_part_of_its_targets_is_no_fault() -> None:
    model, (x, y) = net(), data()

    def both(p: Tensor) -> Tensor:
        order = torch.randperm(32)
        return functional.cross_entropy(p[order], y[order])

    def mixed(p: Tensor) -> Tensor:
        return 0.9 * functional.cross_entropy(p, y) + 0.1 * functional.cross_entropy(p, y[torch.randperm(32)])

    assert check("targets_used", model, x, both).findings == ()
    assert check("targets_used", model, x, mixed).findings == ()


@pytest.mark.parametrize("inside", [True, False])
def test_a_log_likelihood_without_its_minus_is_named(inside: bool) -> None:
    x, y = data()
    model = nn.Sequential(net(), nn.LogSoftmax(-1)) if inside else net()
    found = check("overfit", model, x, lambda p: (p if inside else p.log_softmax(-1))[torch.arange(32), y].mean())
    assert found.findings[0].rule == "loss_reversed"
    assert "makes all log-probabilities that it reads smaller" in said(found)[0]


def test_costs_that_are_to_become_unlikely_may_fall_below_zero() -> None:
    model, (x, y) = net(), data()
    reward = -5 * torch.rand(32)
    found = check("overfit", model, x, lambda p: -(p.log_softmax(-1)[torch.arange(32), y] * reward).mean())
    assert found.verdict == "ok"
    assert found.words.endswith("it falls below 0, and still falls")


def test_a_loss_that_is_nan_is_not_said_to_be_random() -> None:
    model, (x, _) = net(), data()
    assert check("deterministic", model, x, lambda p: p.sum() * torch.nan).words == "two forwards are equal to the last bit"


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_frozen_front_as_it_was_initialised_is_told(is_trained: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(32, 8), torch.arange(32) % 3
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20 * is_trained):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model[:4].requires_grad_(False)
    found = check("gradients", model, x, lambda p: functional.cross_entropy(p, y))
    assert [each.rule for each in found.findings] == [] if is_trained else ["frozen"]
    assert is_trained or "all 2 weights in front of what is trained are frozen" in found.findings[0].message


@pytest.mark.parametrize("last", [nn.Dropout(0.5), nn.Identity()])
def test_a_dropout_behind_the_last_layer_is_told(last: nn.Module) -> None:
    torch.manual_seed(0)
    y = torch.arange(32) % 3
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3), last)
    found = check("loss_input", model, torch.randn(32, 8), lambda p: functional.cross_entropy(p, y))
    assert [each.rule for each in found.findings] == ["dropped"] * isinstance(last, nn.Dropout)


class Codes(nn.Module):
    """An autoencoder that takes the nearest of some codes."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.codes, self.out = nn.Linear(8, 4), nn.Embedding(8, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.into(x)
        near = self.codes(torch.cdist(made, self.codes.weight).argmin(1))
        drawn = functional.mse_loss(near, made.detach()) + functional.mse_loss(made, near.detach())
        return self.out(made + (near - made).detach()), 10 * drawn


def test_of_codes_that_move_the_terms_with_given_targets_say_whether_one_batch_is_learnt() -> None:
    torch.manual_seed(0)
    x = 3 * torch.randn(32, 8)
    found = check("overfit", Codes(), x, lambda made: functional.mse_loss(made[0], x) + made[1].square())
    assert found.verdict == "ok"
    assert "its terms with given targets" in found.words


def test_an_overflow_of_float16_is_one_line_and_told_as_that() -> None:
    torch.manual_seed(0)
    y = torch.arange(16) % 3
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).half()
    model[0].weight.data *= 10
    found = check("runs", model, 6e4 * torch.rand(16, 8).half(), lambda p: functional.cross_entropy(p.float(), y))
    assert [each.message.split()[0] for each in found.findings] == ["the", "not", "the"]
    assert found.findings[1].advice.startswith("float16 ends at 65,504")


def test_a_gradient_that_is_reversed_between_two_layers_is_told_by_its_parameters() -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 32)), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            features = self.body(x)
            if features.requires_grad:
                features.register_hook(lambda gradient: -gradient)
            return self.head(features)

    torch.manual_seed(0)
    y = torch.arange(32) % 3
    model = Reversed()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    found = check("learning_rate", model, torch.randn(32, 8), lambda p: functional.cross_entropy(p, y), optimizer)
    assert [each.rule for each in found.findings] == ["gradient_reversed"]
    assert "body.2.weight" in found.findings[0].message
    assert "head" not in found.findings[0].message
