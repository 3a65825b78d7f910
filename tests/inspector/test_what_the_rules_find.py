"""Faults that make no noise, and healthy trainings that look like faults: what the rules say of each."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.quick import quick
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import LBFGS, SGD, Adam, Optimizer

import sonde
from sonde.inspector import Inspector

pytestmark = pytest.mark.first_is_quick

Loss = Callable[[int], Tensor]


def mlp(inputs: int = 8, outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


def trained(
    model: nn.Module, optimizer: Optimizer, loss: Loss, steps: int = 40, after: Callable[[], object] = lambda: None, **options: Any
) -> Inspector:
    """Train under ``watch``; *after* is called between backward and step."""
    with sonde.watch(model, optimizer, **{"every": 1, **options}, to="memory", verbose=False) as inspector:
        for step in range(steps):
            optimizer.zero_grad()
            value = loss(step)
            value.backward()  # type: ignore[no-untyped-call]
            after()
            optimizer.step()
            inspector.push_loss(value, train=True)
    return inspector


def found(*args: Any, **options: Any) -> dict[str, sonde.types.Finding]:
    """Return the findings of a training by rule, without notes."""
    return {each.rule: each for each in trained(*args, **options).findings if each.severity != "note"}


def classes(model: nn.Module, of: Callable[[int, Tensor], Tensor] = lambda step, x: x) -> Loss:
    def loss(step: int) -> Tensor:
        x = torch.randn(64, 8)
        return functional.cross_entropy(model(of(step, x)), (x[:, 0] > 0).long())

    return loss


class Cut(nn.Module):
    """A network whose middle no gradient reaches: it runs without a graph, is detached behind, or decides by an argmax."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.first, self.middle, self.last = how, nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        with torch.set_grad_enabled(self.how != "no_grad"):
            made: Tensor = self.middle(hidden)
        made = functional.one_hot(made.argmax(-1), 8).float() if self.how == "argmax" else made.detach()
        out: Tensor = self.last(torch.cat([hidden, made], -1))
        return out


@pytest.mark.parametrize(("how", "severity"), [("no_grad", "bad"), ("detach", "warn"), ("argmax", "warn")])
def test_a_part_in_the_middle_that_no_gradient_reaches_is_named(how: str, severity: str) -> None:
    model = Cut(how)
    one = found(model, Adam(model.parameters()), classes(model), steps=12)["unreached"]
    assert (one.site, one.severity) == ("middle.weight:param", severity)


@pytest.mark.parametrize(("place", "severity"), [(1, "bad"), (2, "")])
def test_a_block_that_is_cut_off_among_others_is_named(place: int, severity: str) -> None:
    """What the last one of a row returns may be left unused, as the backcast of a forecaster."""

    class Block(nn.Module):
        def __init__(self, cut: bool) -> None:
            super().__init__()
            self.cut, self.q, self.out = cut, nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.q(x)
            made: Tensor = x + self.out((hidden.detach() if self.cut else hidden).tanh())
            return made

    torch.manual_seed(0)
    model = nn.Sequential(*[Block(at == place) for at in range(3)], nn.Linear(8, 2))
    one = found(model, Adam(model.parameters()), classes(model), steps=12).get("unreached")
    assert (one and (one.site, one.severity)) == ((f"{place}.q.weight:param", severity) if severity else None)


def test_what_a_module_around_passes_on_may_be_unused() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.pooler = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            hidden = self.body(x)
            return {"hidden": hidden, "pooled": self.pooler(hidden)}

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.encoder(x)["hidden"])
            return out

    torch.manual_seed(0)
    model = Tagger()
    (note,) = [each for each in trained(model, Adam(model.parameters()), classes(model), steps=12).findings if "unr" in each.rule]
    assert (note.rule, note.severity, note.site) == ("unreached", "note", "encoder.pooler.0.weight:param")


def test_a_target_network_that_the_optimizer_holds_is_meant() -> None:
    class Values(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.target, self.online = mlp(), mlp()  # equal at first

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                aim = self.target(x.flip(0)).max(1, keepdim=True).values
            out: Tensor = self.online(x) - 0.9 * aim
            return out

    model = Values()
    assert "unreached" not in found(model, Adam(model.parameters()), lambda step: model(torch.randn(32, 8)).square().mean())


@pytest.mark.parametrize("stepped", ["the other half", "itself"])
def test_the_half_of_a_gan_that_no_optimizer_steps_is_unmoved(stepped: str) -> None:
    generator, critic = mlp(4, 2), mlp(2, 1)
    half, other = Adam((generator if stepped == "itself" else critic).parameters()), Adam(critic.parameters())
    with sonde.watch({"G": generator, "D": critic}, [half, other], every=1, to="memory", verbose=False) as inspector:
        for _ in range(15):
            other.zero_grad()
            functional.softplus(critic(generator(torch.randn(16, 4)).detach())).mean().backward()
            other.step()
            half.zero_grad()
            functional.softplus(-critic(generator(torch.randn(16, 4)))).mean().backward()
            half.step()
    unmoved = [each.site for each in inspector.findings if each.rule == "unmoved"]
    assert unmoved == ([] if stepped == "itself" else ["G/0.weight:param"])


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_cleared_before_the_step_are_said_to_be(to_none: bool) -> None:
    model = mlp()
    optimizer = Adam(model.parameters())
    of = found(model, optimizer, classes(model), after=lambda: optimizer.zero_grad(set_to_none=to_none))
    assert "cleared between backward() and step()" in of["gradient_cleared"].message
    assert not {"gradient_kept", "update_small", "unreached"} & set(of)


@pytest.mark.parametrize("scale", ["all features", "one feature"])
@pytest.mark.parametrize("begins", [(), (nn.Identity(), nn.Flatten())])
def test_inputs_that_are_not_scaled_are_named_at_the_first_layer(begins: tuple[nn.Module, ...], scale: str) -> None:
    """Whatever hands them on to it as they are."""
    factor = torch.full((8,), 1e4) if scale == "all features" else torch.tensor([1.0] * 7 + [1e6])
    model = nn.Sequential(*begins, *mlp())
    one = found(model, Adam(model.parameters()), classes(model, lambda step, x: x * factor + 5 * factor))["input_large"]
    port = "output" if scale == "all features" else "input"  # whose columns are looked at, where they are unlike
    assert (one.site, one.first_step) == (f"{len(begins)}:{port}", 0)
    size = float((torch.randn(10_000, 8) * factor + 5 * factor).square().mean().sqrt())
    assert 0.3 < one.value / size < 3  # as random weights tell it


def test_a_batch_that_is_far_too_large_is_named_as_the_input_of_its_step() -> None:
    model = mlp()
    of = found(model, Adam(model.parameters()), classes(model, lambda step, x: x * (1e5 if step == 20 else 1)), steps=25)
    assert (of["input_large"].site, of["input_large"].step) == ("0:output", 20)
    assert not {"spike", "output_growth", "gradient_growth"} & set(of)


def test_a_batch_that_makes_another_weight_of_the_first_is_named_where_the_step_before_was_not_logged() -> None:
    model = mlp()
    of = classes(model, lambda step, x: x * (1e5 if step == 50 else 1))
    root = trained(model, SGD(model.parameters(), lr=0.1), of, steps=80, every=10).findings[0]
    assert (root.rule, root.site, root.step) == ("input_large", "0:output", 50)


def test_pixels_are_too_large_where_the_first_loss_shows_it() -> None:
    model = mlp()
    of: Callable[[int, Tensor], Tensor] = lambda step, x: (x * 60 + 128).clamp(0, 255)  # noqa: E731
    assert [each.rule for each in roots(model, Adam(model.parameters()), classes(model, of))] == ["input_large"]
    small = mlp()
    with torch.no_grad():
        small[4].weight *= 0.01
    assert "input_large" not in found(small, Adam(small.parameters(), 1e-5), classes(small, of))


@pytest.mark.parametrize(("optimizer", "every"), quick(product([SGD, Adam], [1, 10]), (SGD, 10), (Adam, 1)))
def test_steps_that_blow_up_the_first_layer_are_no_larger_input(optimizer: type[Optimizer], every: int) -> None:
    """The outputs of a step are those of the weights before it, and the weights that are recorded are those behind it."""
    torch.manual_seed(0)
    model = mlp()
    of = found(model, optimizer(model.parameters(), lr=30.0), classes(model), steps=40 * every, every=every)
    assert {"update_large", "update_huge"} & of.keys()
    assert "input_large" not in of


def test_a_layer_that_is_frozen_on_the_way_is_found_with_its_step() -> None:
    model = mlp()
    inputs = classes(model)

    def loss(step: int) -> Tensor:
        if step == 12:
            model[2].requires_grad_(False)
        return inputs(step)

    one = found(model, Adam(model.parameters()), loss)["frozen"]
    assert (one.site, one.step) == ("2.weight:grad", 11)
    assert "after step 11" in one.message


@pytest.mark.parametrize("table", [0, 1])
def test_an_embedding_that_is_asked_for_one_index_alone_is_found(table: int) -> None:
    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(80, 8), nn.Embedding(60, 8)

        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            out: Tensor = (self.users(user) * self.items(item)).sum(-1)
            return out

    torch.manual_seed(0)
    model, none = Factors(), torch.zeros(64, dtype=torch.long)

    def loss(step: int) -> Tensor:
        off: Tensor = model(*[none if place == table else torch.randint(60, (64,)) for place in range(2)]) - 1
        return off.square().mean()

    one = found(model, Adam(model.parameters(), 1e-2), loss, steps=8)["one_index"]
    assert one.site == ("users.weight:grad", "items.weight:grad")[table]


def test_a_cross_entropy_with_the_wrong_sign_falls_without_bound() -> None:
    model = mlp()
    inputs = classes(model)
    assert "loss_unbounded" in found(model, Adam(model.parameters(), 3e-3), lambda step: -inputs(step), steps=90)


def test_the_loss_of_a_density_may_fall_below_zero() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def loss(step: int) -> Tensor:
        x = torch.randn(128, 4)
        mean, log_variance = model(x).unbind(1)
        return (0.5 * (log_variance + (0.05 * x[:, 0] - mean) ** 2 / log_variance.exp()) + 0.2).mean()

    assert found(model, Adam(model.parameters(), 1e-2), loss, steps=150) == {}


def test_a_dropout_of_a_tenth_may_be_given_sparse_numbers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.1), nn.Linear(100, 16), nn.ReLU(), nn.Linear(16, 2))

    def loss(step: int) -> Tensor:
        x = (torch.rand(64, 100) < 0.02).float()
        return functional.cross_entropy(model(x), (x[:, :9].sum(1) > 0).long())

    assert found(model, Adam(model.parameters(), 3e-3), loss) == {}
    model[0].p = 0.97
    assert found(model, Adam(model.parameters(), 3e-3), loss)["dropped"].site == "0:output"


@pytest.mark.parametrize(
    ("drop", "share"),
    [
        (lambda x: functional.dropout(x, 0.9), 0.9),
        (lambda x: x * (torch.rand_like(x) < 0.05) / 0.05, None),  # whose factor stands apart from the mask
        (lambda x: x * functional.dropout(torch.ones_like(x), 0.95), 0.95),
        (lambda x: functional.dropout(x, 0.5), None),
        (lambda x: x * torch.tensor([0.0] * 16 + [2.0] * 16), None),
        (lambda x: x * torch.eye(32)[torch.randint(32, (len(x),))], None),
    ],
)
def test_a_dropout_that_is_no_module_is_told_where_it_drops_nearly_all(
    drop: Callable[[Tensor], Tensor], share: float | None
) -> None:
    """As by the share that is to be kept; a choice of one in many is none."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(drop(torch.relu(self.first(x))))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Model()
    every = found(model, Adam(model.parameters(), 1e-3), classes(model), steps=12)
    assert ("dropped" in every) is (share is not None)
    if share is not None:
        assert (every["dropped"].value, every["dropped"].site) == (pytest.approx(share, abs=0.01), "first:output")


def test_a_dropout_of_nearly_all_explains_large_steps() -> None:
    """What is left is multiplied by 1 / (1 - rate), and so is its noise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.97), nn.Linear(32, 2))
    every = trained(model, SGD(model.parameters(), lr=0.1, momentum=0.9), classes(model), steps=60).findings
    root, *others = [each for each in every if each.severity != "note"]
    assert root.rule == "dropped"
    assert "update_large" in [each.rule for each in others]
    assert {each.follows for each in others} == {"dropped"}


@pytest.mark.slow
def test_targets_far_larger_than_one_of_several_outputs_are_told_of_outputs_that_grow() -> None:
    """The loss is that of both outputs, so that what it says of targets is no finding by itself."""

    class Detects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body, self.box, self.kind = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 4), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            seen = self.body(x)
            return self.box(seen), self.kind(seen)

    def told(size: float) -> list[str]:
        model = Detects()

        def loss(step: int) -> Tensor:
            x = torch.randn(32, 8)
            box, kind = model(x)
            return functional.smooth_l1_loss(box, size * x[:, :4].abs()) + functional.cross_entropy(kind, (x[:, 0] > 0).long())

        every = trained(model, Adam(model.parameters(), lr=1e-2), loss, steps=150).findings
        return [each.advice for each in every if each.rule in ("output_growth", "weight_growth")]

    (advice, *_) = told(3000.0)
    assert advice.startswith("a first loss of 2,")
    assert "look at the scale of the targets first" in advice
    assert told(1.0) == []


@pytest.mark.parametrize("kind", ["first", "reverse", "one step", "last"])
def test_a_recurrent_layer_of_which_first_steps_alone_are_used_is_told_as_that(kind: str) -> None:
    torch.manual_seed(0)
    layer, head = nn.GRU(8, 8, batch_first=True, bidirectional=kind == "reverse"), nn.LazyLinear(2)

    def loss(step: int) -> Tensor:
        x = torch.randn(32, 1 if kind == "one step" else 5, 8)
        out = head(layer(x)[0][:, 0 if kind == "first" else -1])
        return functional.cross_entropy(out, (x[:, :, 0].sum(1) > 0).long())

    loss(0)
    model = nn.ModuleList([layer, head])
    every = found(model, Adam(model.parameters(), 1e-3), loss, steps=20)
    name = "0.weight_hh_l0_reverse" if kind == "reverse" else "0.weight_hh_l0"
    told = [each.message.partition(":")[::2] for each in every.values() if each.rule == "gradient_zero"]
    why = " gradient is zero, and that of the weight beside it is not: only first steps, whose state is zero, reach the loss"
    assert told == [(name, why)] * (kind != "last")


def test_a_gradient_that_was_there_before_is_not_cut_by_a_detach() -> None:
    model = mlp()

    def loss(step: int) -> Tensor:
        x = torch.randn(32, 8)
        gain = (x[:, 0] > 0).float() * (step < 20)  # rewards are all alike then
        return (model(x)[:, 0] * gain).mean() - 0.1 * (step < 20)

    every = found(model, Adam(model.parameters()), loss, steps=40)
    assert every["gradient_zero"].advice.startswith("the loss is 0, too, so that nothing tells good outputs from bad ones")


def test_a_weight_of_one_element_is_not_constant() -> None:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)

    def loss(step: int) -> Tensor:
        x = torch.randn(32, 1)
        off: Tensor = model(x) - 3 * x
        return off.square().mean()

    assert "constant_weight" not in found(model, SGD(model.parameters(), 0.01), loss)


def test_steps_towards_the_goal_may_be_large_and_end_in_none() -> None:
    """L-BFGS searches its steps: the first are as large as the weights, and at the minimum there are none."""
    model = mlp()
    optimizer = LBFGS(model.parameters())
    x = torch.randn(64, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), x[:, :2].tanh())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(25):
            inspector.push_loss(optimizer.step(closure), train=True)
    assert not inspector.findings


def test_outputs_may_grow_towards_large_targets() -> None:
    model = mlp(outputs=1)

    def loss(step: int) -> Tensor:
        x = torch.randn(64, 8)
        return functional.mse_loss(model(x)[:, 0], 300 * x[:, 0] + 5000)

    of = found(model, Adam(model.parameters(), 1e-2), loss, steps=150)  # they hardly come nearer: that is another finding
    assert {rule for rule, each in of.items() if not each.follows} <= {"target_large"}


def test_a_rule_that_had_fewer_rows_than_steps_says_so() -> None:
    """Dead units are counted in one of ten logged steps: after nine there is one row, where three are needed."""
    model = mlp()
    told = sonde.check(trained(model, Adam(model.parameters()), classes(model), steps=9).run)
    assert told.too_early["dead"] == 3
    assert "dead" not in told.not_judged


def test_a_rule_never_asks_for_a_lens_that_ran() -> None:
    model = mlp()
    lenses = [sonde.lens.moments(), sonde.lens.EffectiveRank(one_in=10)]
    optimizer = Adam(model.parameters())
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, lenses=lenses) as inspector:
        pass
    told = sonde.check(inspector.run)
    assert "rank_collapse" not in told.not_judged
    assert math.isfinite(told.too_early["rank_collapse"])


def test_attention_whose_queries_no_layer_returns_is_not_judged() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.attend, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            seen, _ = self.attend(x[:, None], x[:, None], x[:, None])
            out: Tensor = self.out(seen[:, 0])
            return out

    model = Attends()
    told = sonde.check(trained(model, Adam(model.parameters()), classes(model), steps=9).run)
    assert "attention_large" in told.not_judged
    assert "attention_large: needs queries of output (queries and keys that layers of their own return)" in repr(told)


def roots(*args: Any, **options: Any) -> list[sonde.types.Finding]:
    """Return the findings of a training that no other explains, without notes."""
    return [each for each in trained(*args, **options).findings if each.severity != "note" and not each.follows]


@pytest.mark.parametrize(("times", "site"), [(40, "4.weight:param"), (1, None)])
def test_outputs_that_begin_far_too_large_are_those_of_a_weight_that_does(times: float, site: str | None) -> None:
    model = mlp()
    with torch.no_grad():
        model[4].weight.mul_(times)
    every = [each for each in roots(model, Adam(model.parameters()), classes(model), steps=8) if each.rule == "begins_large"]
    assert [each.site for each in every] == ([] if site is None else [site])


def test_outputs_that_begin_far_too_large_by_a_bias_are_told_as_its() -> None:
    model = mlp(outputs=3)
    with torch.no_grad():
        model[4].bias[1] = -30
    told = found(model, Adam(model.parameters()), classes(model), steps=8)["begins_large"]
    assert told.advice.startswith("look first at the bias of 4, which begins at size 17")


def test_large_first_outputs_of_a_regression_are_no_fault_of_its_weights_where_these_are_usual() -> None:
    model = mlp(outputs=3)
    x = torch.randn(64, 8) * 20
    loss: Loss = lambda step: functional.mse_loss(model(x), 300 + x[:, :3])  # noqa: E731
    assert "begins_large" not in found(model, Adam(model.parameters()), loss, steps=8)


@pytest.mark.parametrize("seed", range(3))
def test_outputs_that_large_steps_have_made_dead_or_alike_are_told_with_the_learning_rate(seed: int) -> None:
    """Normalisations behind weights hide how far these are moved."""
    torch.manual_seed(seed)
    hidden = (each for inputs in (8, 32) for each in (nn.Linear(inputs, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU()))
    model = nn.Sequential(*hidden, nn.Linear(32, 4))

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 8)
        return functional.cross_entropy(model(x), x[:, :4].argmax(1))

    of = found(model, SGD(model.parameters(), lr=8.0), loss, steps=80)
    lost = [of[rule] for rule in ("input_unused", "dead") if rule in of]
    assert [each.begun > 0 for each in lost] == [True] * len(lost) != []
    assert all(each.advice.startswith("lower the learning rate first: 8 is a large one; then look at ") for each in lost)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x: torch.full_like(x, 0.5), "one value throughout"),
        (lambda x: x[:1].expand_as(x), "the same for every sample"),
        (lambda x: torch.cat([x[:1].expand(63, -1), x[1:2]]), ""),  # one sample differs
        (lambda x: x[:4], ""),  # too few to say
    ],
)
def test_inputs_that_tell_no_samples_apart_are_the_root(spoil: Callable[[Tensor], Tensor], words: str) -> None:
    model = mlp()

    def loss(step: int) -> Tensor:
        x = spoil(torch.randn(64, 8))
        return functional.cross_entropy(model(x), torch.randint(2, (len(x),)))

    every = roots(model, Adam(model.parameters()), loss, steps=12)
    assert bool(every) is bool(words)
    assert not words or (every[0].rule, every[0].site, words in every[0].message) == ("input_same", "(root):input", True)
    assert [each.rule for each in every].count("input_same") == bool(words)


def test_samples_that_differ_in_one_of_several_inputs_are_told_apart() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 2)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            out: Tensor = self.layer(x) * mask
            return out

    torch.manual_seed(0)
    model = Both()
    same = torch.ones(64, 8)
    loss: Loss = lambda step: functional.cross_entropy(model(same, torch.rand(64, 1)), torch.randint(2, (64,)))  # noqa: E731
    assert "input_same" not in found(model, Adam(model.parameters()), loss, steps=12)


@pytest.mark.parametrize(("is_same", "overfits", "is_found"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_batch_that_comes_again_in_each_step_is_told_where_nothing_else_is_learnt(
    is_same: bool, overfits: bool, is_found: bool
) -> None:
    """Its inputs are the same numbers in the same places: those of another batch, or in another order, are not."""
    model, x = mlp(), torch.randn(32, 8)
    optimizer, y = Adam(model.parameters(), 1e-2), torch.randint(2, (32,))
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for step in range(60):
            optimizer.zero_grad()
            order = torch.arange(32) if is_same else torch.randperm(32)
            value = functional.cross_entropy(model(x[order].clone()), y[order])
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(value, train=True)
            inspector.push_loss(1.0 + 0.1 * max(0, step - 10) if overfits else value, train=False)
    told = [(each.rule, each.severity, each.message) for each in inspector.findings if each.rule == "input_same"]
    assert told == [("input_same", "warn", "(root): what goes in is the same 32 samples, in 5 passes")] * is_found


def test_inputs_that_are_not_scaled_are_the_root_of_the_harm_that_they_do() -> None:
    model = mlp()
    of: Callable[[int, Tensor], Tensor] = lambda step, x: x * 60 + 128  # noqa: E731
    every = roots(model, SGD(model.parameters(), 0.05), classes(model, of), steps=60)
    assert (every[0].rule, every[0].site) == ("input_large", "0:output")
    fine = mlp()
    assert "input_large" not in found(fine, Adam(fine.parameters(), 1e-4), classes(fine, lambda step, x: x * 6 + 12), steps=12)


@pytest.mark.parametrize("often", [False, True])
def test_what_else_writes_into_parameters_is_the_root(often: bool) -> None:
    model = mlp()
    optimizer = Adam(model.parameters(), 1e-2)
    loss = classes(model)

    def spoiled(step: int) -> Tensor:
        if step == 35 or (often and step > 5):
            for layer in (model[2], model[4]):
                layer.reset_parameters()
        return loss(step)

    every = roots(model, optimizer, spoiled, steps=50)
    assert (every[0].rule, every[0].first_step in (range(6, 12) if often else (35,))) == ("overwritten", True)


def test_what_takes_back_a_step_is_no_fault() -> None:
    model = mlp()
    optimizer = Adam(model.parameters(), 1e-2)
    loss = classes(model)

    def clamped(step: int) -> Tensor:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.2, 0.2)
        return loss(step)

    assert "overwritten" not in {each.rule for each in trained(model, optimizer, clamped, steps=40).findings}


@pytest.mark.parametrize(
    ("what", "every", "is_found"),
    [
        ("first", 1, True),
        ("first", 5, True),
        ("average", 1, True),
        ("average", 5, False),  # what is left of the steps between is not known
        ("unit norm", 1, False),
        ("every fifth", 1, False),
        ("evaluated", 1, False),
    ],
)
def test_steps_that_are_taken_back_one_after_the_other_are_the_root(what: str, every: int, is_found: bool) -> None:
    """By a copy of the first weights, or of an average; not by a projection, slow weights, or an average that is evaluated."""
    model = mlp()
    loss, kept = classes(model), [parameter.detach().clone() for parameter in model.parameters()]

    def written(step: int) -> Tensor:
        with torch.no_grad():
            for parameter, before in zip(model.parameters(), kept, strict=True):
                if what in ("average", "evaluated") or step % 5 == 4:
                    before.lerp_(parameter, 0.0 if what == "first" else 0.05)
                if what in ("first", "average") or (what == "every fifth" and step % 5 == 4):
                    parameter.copy_(before)
                if what == "unit norm" and parameter.dim() > 1:
                    parameter.div_(torch.linalg.vector_norm(parameter))
        return loss(step)

    every_root = roots(model, Adam(model.parameters(), 1e-3), written, steps=60 if every == 1 else 120, every=every)
    assert ("overwritten" in {each.rule for each in every_root}) is is_found
    assert not is_found or "of each step is taken back" in every_root[0].message


def test_one_write_without_harm_is_a_note() -> None:
    model = mlp()
    loss = classes(model)

    def grown(step: int) -> Tensor:
        with torch.no_grad():
            model[4].weight.mul_(1.1 if step == 30 else 1.0)
        return loss(step)

    every = trained(model, Adam(model.parameters(), 1e-3), grown, steps=50).findings
    assert [(each.severity, each.site) for each in every if each.rule == "overwritten"] == [("note", "4.weight:param")]


@pytest.mark.parametrize(("std", "rate", "is_found"), [(4.0, 0.05, True), (4.0, 5.0, True), (0.1, 0.05, False)])
def test_weights_that_begin_large_are_the_root_of_their_own_small_steps(std: float, rate: float, is_found: bool) -> None:
    """Those of a network of saturated units, which a function makes; where steps are usual, too, by what the layers return."""
    torch.manual_seed(0)
    first, second, last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2)
    model = nn.ModuleList([first, second, last])
    for layer in (first, second):
        nn.init.normal_(layer.weight, std=std)

    def loss(step: int) -> Tensor:
        x = torch.randn(64, 64)
        out = last(torch.tanh(second(torch.tanh(first(x)))))
        return functional.cross_entropy(out, (x[:, 0] > 0).long())

    every = {each.rule: each for each in roots(model, SGD(model.parameters(), rate), loss, steps=60)}
    assert ("weight_large" in every) is is_found
    assert not is_found or (every["weight_large"].site, "update_small" in every) == ("0.weight:param", False)


def test_an_optimizer_that_holds_another_model_moves_nothing() -> None:
    model, other = mlp(), mlp()
    optimizer, loss = Adam(other.parameters()), classes(model)
    with sonde.watch(model, every=1, to="memory", verbose=False) as inspector:
        for step in range(12):
            optimizer.zero_grad()
            loss(step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    (one,) = inspector.findings
    assert (one.rule, one.severity, one.site) == ("unmoved", "bad", "0.weight:param")


def test_a_loss_that_stands_still_is_not_put_down_to_the_learning_rate_where_steps_are_usual() -> None:
    model = mlp()
    loss: Loss = lambda step: functional.cross_entropy(model(torch.randn(64, 8)), torch.randint(2, (64,)))  # noqa: E731
    stuck = found(model, Adam(model.parameters(), 1e-3), loss, steps=130)["loss_stuck"]
    assert "the learning rate is not too small" in stuck.advice
    assert len(stuck.advice) <= 350 >= len(sonde.rules.RULES["loss_stuck"].advice)
    assert stuck.evidence["update_ratio"] > 3e-4


@pytest.mark.parametrize("begins", [True, False])
def test_a_layer_of_a_state_that_begins_at_zero_may_return_nothing_in_its_first_call(begins: bool) -> None:
    torch.manual_seed(0)

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.state, self.last = nn.Linear(4, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            held = torch.zeros(len(x), 8)
            for each in x.unbind(1):
                held = torch.tanh(self.into(each) + self.state(held if begins else held * 0))
            made: Tensor = self.last(held)
            return made

    model = Cell()

    def loss(_: int) -> Tensor:
        x = torch.randn(32, 3, 4)
        return functional.cross_entropy(model(x), x[:, -1, :3].argmax(1))

    assert ("all_zero" in found(model, Adam(model.parameters(), 3e-3), loss, steps=20)) is not begins


def test_the_value_of_a_critic_in_several_steps_is_held_by_its_error() -> None:
    """All returns are above it at first; a loss takes what several passes have returned, put together."""
    torch.manual_seed(0)

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.policy, self.value = nn.Linear(4, 16), nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            held = self.body(x).tanh()
            return self.policy(held), self.value(held).squeeze(-1)

    model = Critic()

    def loss(_: int) -> Tensor:
        states = torch.randn(5, 16, 4)
        logits, values = zip(*map(model, states), strict=True)
        made, returns = torch.stack(values), 20 + states[..., 0]
        likely = torch.stack(logits).log_softmax(-1)[..., 0]
        return (likely * (made.detach() - returns)).mean() + 0.5 * (made - returns).square().mean()

    assert "pushed_one_way" not in found(model, Adam(model.parameters(), 1e-3), loss, steps=30)


@pytest.mark.parametrize(("width", "is_frozen"), [(3, False), (16, True)])
def test_adapters_between_frozen_layers_are_meant(width: int, is_frozen: bool) -> None:
    torch.manual_seed(0)

    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(16, width), nn.Linear(width, 16)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.up(self.down(x).relu())  # type: ignore[no-any-return]

    model = nn.Sequential(nn.Linear(8, 16), Adapter(), nn.Linear(16, 16), Adapter(), nn.Linear(16, 16), Adapter(), nn.Linear(16, 3))
    for place in (0, 2, 4):
        model[place].requires_grad_(False)
    optimizer = Adam([each for each in model.parameters() if each.requires_grad], 1e-3)
    assert ("frozen" in found(model, optimizer, classes(model), steps=20)) is is_frozen


def test_a_normalisation_without_a_weight_stands_before_the_units_behind_it_that_are_dead() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    nn.init.zeros_(model[1].weight)
    every = roots(model, SGD(model.parameters(), 1e-4), classes(model), steps=40)
    assert (every[0].rule, every[0].site) == ("all_zero", "1:output")


@pytest.mark.parametrize("decay", [0.9999, 0.9])
def test_a_validation_loss_that_stays_where_it_began_is_of_other_weights(decay: float) -> None:
    """As of an average that hardly moves; one that moves comes down with the training."""
    torch.manual_seed(0)
    model = mlp(outputs=1)
    mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
    optimizer, held_out = Adam(model.parameters(), 1e-2), torch.randn(256, 8)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for step in range(160):
            x = torch.randn(64, 8)
            value = functional.mse_loss(model(x), x[:, :1].abs() + 2)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            mean.update_parameters(model)
            inspector.push_loss(value, train=True)
            if step % 20 == 19:
                with torch.no_grad():
                    inspector.push_loss(functional.mse_loss(mean(held_out), held_out[:, :1].abs() + 2), train=False)
    found = {each.rule: each for each in inspector.findings}
    assert ("overfitting" in found) is (decay > 0.99)
    assert decay < 0.99 or "the validation loss stays at" in found["overfitting"].message
    assert decay < 0.99 or "an average" in found["overfitting"].advice


class Ratings(nn.Module):
    """Users and items, whose offsets begin at zero, as usual."""

    def __init__(self, *, is_cut: bool) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(30, 8), nn.Embedding(40, 8)
        self.of_user, self.of_item, self.is_cut = nn.Embedding(30, 1), nn.Embedding(40, 1), is_cut
        for each in (self.of_user, self.of_item):
            nn.init.zeros_(each.weight)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        made = (self.user(user) * self.item(item)).sum(1) / 8 + self.of_user(user)[:, 0] + self.of_item(item)[:, 0]
        return torch.relu(made - 9) if self.is_cut else made


@pytest.mark.parametrize("is_cut", [False, True])
def test_offsets_that_begin_at_zero_are_not_why_nothing_is_learnt(is_cut: bool) -> None:
    torch.manual_seed(0)
    model = Ratings(is_cut=is_cut)
    loss: Loss = lambda _: (model(torch.randint(30, (64,)), torch.randint(40, (64,))) - torch.rand(64)).square().mean()  # noqa: E731
    every = {each.rule for each in roots(model, Adam(model.parameters(), 1e-2), loss, steps=80)}
    assert "all_zero" not in every
    assert not is_cut or every & {"gradient_zero", "input_unused"}


class Player(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x)).square().mean() + 3.0  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_game", [True, False])
def test_the_loss_of_a_game_need_not_fall(is_game: bool) -> None:
    """Two parts move in steps of their own, each with a forward pass; of one loss, both parts move behind one backward pass."""
    torch.manual_seed(0)
    model, x = Player(), torch.randn(16, 4)
    optimizers = [SGD(part.parameters(), lr=1e-9) for part in (model.one, model.other)]
    with sonde.watch(model, every=1, to="memory", verbose=False, rules={"update_small": False}) as inspector:
        for step in range(140):
            loss = model(x)
            loss.backward()
            for optimizer in [optimizers[step % 2]] if is_game else optimizers:
                optimizer.step()
            model.zero_grad()
            inspector.push_loss(loss, train=True)
    assert ("loss_stuck" in {each.rule for each in inspector.findings}) is not is_game


@pytest.mark.parametrize(("first", "last"), [(2, 0), (2, 2), (0, 0)], ids=["learnt", "never learnt", "never anything to learn"])
def test_a_gradient_is_zero_where_a_batch_has_no_loss(first: int, last: int) -> None:
    """A loss with a margin is exactly 0 once the margin is reached; one that stays has a gradient to give."""
    model = mlp()
    size: Loss = lambda step: torch.tensor(float(first if step < 2 else last))  # noqa: E731
    of = found(model, SGD(model.parameters(), lr=1e-3), lambda step: model(torch.ones(4, 8)).sum() * 0 + size(step))
    assert ("gradient_zero" in of) is not (last < first)


def test_a_first_loss_that_is_far_too_large_follows_from_an_input_that_is() -> None:
    """Where no weight begins large, outputs are large because of what goes in."""
    model = mlp(outputs=3)
    x, y = torch.randn(64, 8) * 300, torch.randint(3, (64,))
    loss: Loss = lambda step: functional.cross_entropy(model(x), y)  # noqa: E731
    every = {each.rule: each.follows for each in trained(model, Adam(model.parameters(), lr=1e-5), loss, steps=12).findings}
    assert (every["input_large"], every["begins_large"]) == ("", "input_large")


@pytest.mark.parametrize(
    ("times", "factor", "rate", "says"),
    [
        (1.0, 200.0, 1e-3, "2 returns what is "),  # a factor between two layers
        (1.0, 200.0, 10.0, "2 returns what is "),  # and a first step that leaves nothing of the weights
        (3.5, 30.0, 1e-3, "2 returns what is "),
        (4.0, 1.0, 1e-3, "scale the initial weights"),  # each is less than is told of one alone
    ],
)
def test_initial_weights_are_blamed_for_large_outputs_only_where_they_are_large(
    times: float, factor: float, rate: float, says: str
) -> None:
    class Factor(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return factor * x

    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), Factor(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.no_grad():
        for layer in (model[0], model[3], model[5]):
            layer.weight.mul_(times)  # type: ignore[operator]
    x, y = torch.randn(64, 8), torch.randint(3, (64,))
    told = found(model, SGD(model.parameters(), lr=rate), lambda step: functional.cross_entropy(model(x), y), steps=6)
    assert told["begins_large"].advice.startswith(says)
    assert ("no weight begins larger than usual" in told["begins_large"].message) is (times == 1 and rate < 1)
    assert ("initial weights" in told["begins_large"].advice) is (times > 1)


def test_an_activation_that_is_called_again_is_no_place_that_enlarges_what_goes_through_it() -> None:
    """Each layer does, by its weights; the calls together are as large as the last."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.act, self.last = nn.ReLU(), nn.Linear(16, 3)
            self.layers = nn.ModuleList([nn.Linear(8 if not place else 16, 16) for place in range(20)])
            for layer in (*self.layers, self.last):
                nn.init.normal_(layer.weight, std=1.0)  # type: ignore[arg-type]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = self.act(layer(x))
            y: Tensor = self.last(x)
            return y

    model = Shared()
    with torch.no_grad():
        for layer in model.layers:
            layer.weight.mul_(0.5)  # type: ignore[operator]
        model.last.weight.mul_(0.5)
    x, y = torch.randn(64, 8), torch.randint(3, (64,))
    for rate in (1e-6, 1e-1):
        loss: Loss = lambda step: functional.cross_entropy(model(x), y)  # noqa: E731
        told = found(model, SGD(model.parameters(), lr=rate), loss, steps=2, bad_steps=None)
        assert "weights" in told["begins_large"].advice
        assert "look there" not in told["begins_large"].advice


class _LowRank(nn.Module):
    """A frozen layer and a path of rank 2 beside it, whose matrices are parameters of the module around both."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base = layer.requires_grad_(False)
        self.into = nn.Parameter(torch.randn(2, layer.in_features) / 4)
        self.out = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base(x) + x @ self.into.T @ self.out.T
        return y


def test_what_is_frozen_was_trained_before_and_begins_large_for_a_reason() -> None:
    model = mlp(outputs=3)
    with torch.no_grad():
        for place in (0, 2, 4):
            model[place].weight *= 6
    x, y = torch.randn(64, 8), torch.randint(3, (64,))
    loss: Loss = lambda step: functional.cross_entropy(model(x), y)  # noqa: E731
    assert "begins_large" in found(model, Adam(model.parameters(), lr=1e-5), loss, steps=6)
    model[0].requires_grad_(False)
    assert "begins_large" not in found(model, Adam(model[2:].parameters(), lr=1e-5), loss, steps=6)


def test_a_first_layer_whose_bias_makes_its_output_says_nothing_of_its_input() -> None:
    """The bias is as large as the output at first, and not when the weight has been moved."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    with torch.no_grad():
        model[0].bias.fill_(50.0)

    def loss(step: int) -> Tensor:
        if step == 10:
            with torch.no_grad():
                model[0].bias.zero_()
        return functional.cross_entropy(model(torch.randn(64, 8)), torch.randint(2, (64,)))

    assert "input_large" not in found(model, SGD(model.parameters(), lr=1e-3), loss, steps=20)


@pytest.mark.parametrize(("is_adapted", "is_found"), [(True, False), (False, True)])
def test_weights_are_frozen_on_purpose_where_a_path_of_low_rank_is_trained_beside_one(is_adapted: bool, is_found: bool) -> None:
    model = mlp()
    model[2] = _LowRank(model[2]) if is_adapted else model[2].requires_grad_(False)
    if is_adapted:
        model.insert(3, nn.Linear(16, 16, bias=False).requires_grad_(False))  # which has no such path, and is as frozen
    every = found(model, Adam([each for each in model.parameters() if each.requires_grad]), classes(model), steps=12)
    assert ("frozen" in every) is is_found


def test_a_gradient_that_is_multiplied_on_its_way_is_the_root_of_the_steps_that_it_makes() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *mlp(16))
    model[2].weight.register_hook(lambda gradient: gradient * 1e5)
    root = next(iter(found(model, SGD(model.parameters(), 0.05), classes(model), 12, bad_steps=None).values()))
    assert (root.rule, root.site, root.first_step) == ("gradient_alone", "2.weight:grad", 0)


class Added(nn.Module):
    """Residual branches whose last weights begin at zero: at first no gradient comes to the others of a branch."""

    def __init__(self, *, head: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(2))
        for zeros in (*[branch[2] for branch in self.branches], *([self.last] if head else [])):
            nn.init.zeros_(zeros.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for branch in self.branches:
            x = x + branch(x)
        y: Tensor = self.last(x)
        return y


@pytest.mark.parametrize(
    "make",
    [
        lambda: Added(head=False),
        lambda: Added(head=True),
        lambda: nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 2), nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 2)),
    ],
)
def test_gradients_that_differ_as_layers_do_are_healthy(make: Callable[[], nn.Module]) -> None:
    model = make()
    assert "gradient_alone" not in found(model, SGD(model.parameters(), 0.05), classes(model), 12)


def of_bits(model: nn.Module, sign: float = 1.0) -> Loss:
    def loss(step: int) -> Tensor:
        x = torch.randn(64, 8)
        return sign * functional.binary_cross_entropy_with_logits(model(x)[:, 0], (x[:, 0] > 0).float())

    return loss


def test_a_binary_cross_entropy_with_the_wrong_sign_is_the_root_though_the_training_soon_breaks() -> None:
    model = mlp(outputs=1)
    root = next(iter(found(model, SGD(model.parameters(), 0.3), of_bits(model, -1.0), bad_steps=None).values()))
    assert root.rule == "loss_unbounded"
    model = mlp(outputs=1)
    assert "loss_unbounded" not in found(model, SGD(model.parameters(), 0.3), of_bits(model))


def towards(model: nn.Module, scale: float, offset: float = 0.0) -> Loss:
    weight = torch.randn(8, generator=torch.Generator().manual_seed(2))

    def loss(step: int) -> Tensor:
        x = torch.randn(64, 8)
        return functional.mse_loss(model(x)[:, 0], x @ weight * scale + offset)

    return loss


def test_targets_that_are_far_larger_than_outputs_are_the_root_of_steps_that_are_too_large() -> None:
    model = mlp(outputs=1)
    root = next(iter(found(model, SGD(model.parameters(), 1e-2), towards(model, 1e4), 12, bad_steps=None).values()))
    assert (root.rule, root.first_step, root.follows) == ("target_large", 0, "")


@pytest.mark.parametrize(("weight", "every"), quick(product([1.0, 0.5, 64.0], [1, 10]), (1.0, 10), (0.5, 10), (64.0, 1)))
def test_targets_are_large_whatever_the_squared_error_is_multiplied_by(weight: float, every: int) -> None:
    model = mlp(outputs=1)
    errors = towards(model, 1e2)
    rate = 0.1 / weight
    root = trained(
        model, SGD(model.parameters(), rate), lambda step: weight * errors(step), 60, every=every, bad_steps=None
    ).findings[0]
    assert (root.rule, root.first_step, root.follows) == ("target_large", 0, "")
    assert 30 < root.value < 300  # 8 normal weights by 100


def test_a_loss_that_is_mostly_something_else_says_nothing_of_targets() -> None:
    model = mlp(outputs=1)
    errors = towards(model, 1.0)
    assert "target_large" not in found(model, SGD(model.parameters(), 30.0), lambda step: errors(step) + 1e4, 12, bad_steps=None)


def reduced(model: nn.Module, kind: str, reduction: str) -> Loss:
    """A loss of three outputs, as a mean or a sum."""

    def loss(step: int) -> Tensor:
        x = torch.randn(64, 8)
        out = model(x)
        if kind == "cross_entropy":
            return functional.cross_entropy(out, (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), reduction=reduction)
        if kind == "mse":
            return functional.mse_loss(out, x[:, :3], reduction=reduction)
        return functional.binary_cross_entropy_with_logits(out, (x[:, :3] > 0).float(), reduction=reduction)

    return loss


KINDS = product(["cross_entropy", "mse", "binary"], [1, 10])


@pytest.mark.parametrize(("kind", "every"), quick(KINDS, ("cross_entropy", 1), ("mse", 10), ("binary", 10)))
def test_a_loss_that_is_summed_over_samples_is_the_root_of_what_becomes_too_large(kind: str, every: int) -> None:
    model = mlp(outputs=3)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    root = trained(model, optimizer, reduced(model, kind, "sum"), 60, every=every, bad_steps=None).findings[0]
    assert (root.rule, root.follows) == ("loss_summed", "")
    assert root.value == pytest.approx(64 if kind == "cross_entropy" else 192, rel=0.1)


@pytest.mark.parametrize("kind", ["cross_entropy", "mse", "binary"])
def test_a_loss_is_not_called_a_sum_where_it_is_a_mean_or_where_the_optimizer_divides_by_gradients(kind: str) -> None:
    model = mlp(outputs=3)
    of = found(model, SGD(model.parameters(), 30.0), reduced(model, kind, "mean"), 30, bad_steps=None)
    assert of
    assert "loss_summed" not in of
    model = mlp(outputs=3)
    of = found(model, Adam(model.parameters(), 1.0), reduced(model, kind, "sum"), 30, bad_steps=None)
    assert of
    assert "loss_summed" not in of


@pytest.mark.parametrize("rate", [1e-4, 1e-2])
def test_a_sum_that_does_no_harm_is_nobodys_business_nor_the_cause_of_a_bad_batch(rate: float) -> None:
    model = mlp()
    loss = lambda step: functional.cross_entropy(  # noqa: E731
        model((x := torch.randn(64, 8)) * (1e5 if step == 40 else 1)), (x[:, 0] > 0).long(), reduction="sum"
    )
    every = trained(model, SGD(model.parameters(), rate), loss, 60, bad_steps=None).findings
    assert every[0].rule == "input_large"
    assert "loss_summed" not in [each.rule for each in every]


@pytest.mark.parametrize(
    ("kind", "every"),
    [("passed over", 1), ("not given", 1), ("by hand", 10), ("unscaled", 1), ("right", 10), ("divided", 1), ("low", 1)],
)
def test_steps_of_gradients_that_are_still_scaled_are_the_root_of_what_becomes_too_large(kind: str, every: int) -> None:
    model, scaler, scale = mlp(outputs=3), torch.amp.GradScaler("cpu", init_scale=4096.0), 4096.0
    optimizer, by_hand = (
        SGD(model.parameters(), 1e-5 if kind == "low" else 0.1, momentum=0.9),
        kind in ("by hand", "divided", "low"),
    )
    given = None if by_hand or kind == "not given" else scaler
    with sonde.watch(model, optimizer, every=every, scaler=given, to="memory", verbose=False, bad_steps=None) as inspector:
        for _ in range(40):
            x = torch.randn(64, 8)
            loss = functional.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
            optimizer.zero_grad()
            (loss * scale if by_hand else scaler.scale(loss)).backward()
            if kind == "divided":
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad /= scale
            if kind == "unscaled":
                scaler.unscale_(optimizer)
            if kind == "right":
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            if kind == "unscaled":
                scaler.update()
            inspector.push_loss(loss, train=True)
    if kind in ("passed over", "not given", "by hand"):
        root = inspector.findings[0]
        assert (root.rule, root.value, root.follows) == ("loss_summed", pytest.approx(4096), "")
    else:
        assert [each.rule for each in inspector.findings if each.severity != "note"] == []


@pytest.mark.parametrize(
    ("rate", "passes", "is_divided", "is_told"),
    [(0.1, 16, False, True), (0.1, 16, True, False), (0.01, 8, False, False), (20.0, 8, False, False), (0.1, 1, False, False)],
)
def test_passes_that_are_added_up_undivided_are_the_root_where_the_rate_alone_is_a_usual_one(
    rate: float, passes: int, is_divided: bool, is_told: bool
) -> None:
    model = mlp(outputs=3)
    optimizer = SGD(model.parameters(), rate, momentum=0.95)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for _ in range(40):
            optimizer.zero_grad()
            for _ in range(passes):
                x = torch.randn(16, 8)
                loss = functional.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
                (loss / passes if is_divided else loss).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(loss, train=True)
    roots = {each.rule: each for each in inspector.findings if not each.follows and each.severity != "note"}
    assert ("loss_summed" in roots) is is_told
    if is_told:
        assert next(iter(roots)) == "loss_summed"
        assert roots["loss_summed"].message.startswith("each step adds up the gradients of 16 backward passes")


def test_the_advice_of_a_symptom_begins_with_a_learning_rate_that_is_no_usual_one() -> None:
    model = mlp(outputs=3)
    optimizer = SGD(model.parameters(), 1.0, momentum=0.9)
    root = trained(model, optimizer, reduced(model, "mse", "mean"), 100, every=10, bad_steps=None).findings[0]
    assert root.rule in ("weight_growth", "output_growth", "loss_rising", "gradient_growth")
    assert root.advice.startswith("lower the learning rate first: 1 is a large one; then ")


def test_large_targets_that_are_learnt_well_are_healthy() -> None:
    """Prices: a network that begins at their mean, and one linear layer."""
    model = nn.Linear(8, 1)
    nn.init.constant_(model.bias, 2e5)
    assert found(model, SGD(model.parameters(), 0.1), towards(model, 8e4, 2e5), 100) == {}


class Sequences(nn.Module):
    """A recurrent layer that reads its input first."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = kind(8, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(x[:, None].expand(-1, 4, -1))[0][:, -1])
        return y


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("scale", "is_found"), [(1e4, True), (1.0, False), (30.0, False)])
def test_what_goes_into_a_recurrent_layer_is_known_by_the_gradients_of_its_weight_and_bias(
    kind: Callable[..., nn.Module], scale: float, is_found: bool
) -> None:
    model = Sequences(kind)
    of = found(model, Adam(model.parameters(), 1e-3), classes(model, lambda step, x: x * scale), 8)
    assert ("input_large" in of) is is_found
    assert not is_found or (of["input_large"].first_step, of["input_large"].follows) == (0, "")


@pytest.mark.parametrize(("scale", "norm", "is_found"), [(100.0, False, True), (100.0, True, False), (1.0, False, False)])
def test_an_embedding_that_begins_large_is_found_where_no_normalisation_follows(scale: float, norm: bool, is_found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), *([nn.LayerNorm(8)] if norm else []), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    with torch.no_grad():
        model[0].weight.mul_(scale)

    def loss(step: int) -> Tensor:
        x = torch.randint(20, (64,))
        return functional.cross_entropy(model(x), x % 2)

    assert ("weight_large" in found(model, Adam(model.parameters(), 1e-3), loss, 8)) is is_found


@pytest.mark.parametrize(("scale", "is_found"), [(3.0, True), (None, False)])
def test_outputs_of_a_sigmoid_that_cannot_reach_their_targets_are_found(scale: float | None, is_found: bool) -> None:
    """An autoencoder of numbers far beyond 0 and 1; of zeros and ones it stands at both ends as well, and its loss is small."""
    model = mlp(outputs=8).append(nn.Sigmoid())

    def loss(step: int) -> Tensor:
        x = torch.randn(64, 8)
        target = (x > 0).float() if scale is None else x * scale
        made = model(x if scale is None else target)
        return 2 * functional.mse_loss(made, target) + 0 * made.sum()

    assert ({"bounded", "target_beyond"} & found(model, Adam(model.parameters(), 1e-2), loss, 110).keys() != set()) is is_found


@pytest.mark.parametrize(
    ("last", "every"),
    quick([(last, every) for last in (nn.ReLU, nn.Tanh, nn.Sigmoid) for every in (1, 10)], (nn.ReLU, 1), (nn.Tanh, 10)),
)
def test_outputs_of_a_last_activation_that_cannot_reach_their_targets_are_found_at_one_end_and_at_both(
    last: type[nn.Module], every: int
) -> None:
    """Targets on both sides of zero, and above it, where a ReLU reaches them all."""
    for is_above, expected in ((False, True), (True, last is not nn.ReLU)):
        model = mlp(outputs=3).append(last())

        def loss(step: int, model: nn.Module = model, is_above: bool = is_above) -> Tensor:
            x = torch.randn(64, 8)
            made = model(x)
            return 2 * functional.mse_loss(made, 3 * (x[:, :3].abs() if is_above else x[:, :3])) + 0 * made.sum()

        of = found(model, Adam(model.parameters(), 1e-2), loss, 300, every=every)
        assert ("bounded" in of or "target_beyond" in of) is expected, is_above


def test_a_rare_class_stands_at_one_end_and_asks_for_nothing() -> None:
    model = mlp(outputs=1).append(nn.Sigmoid())

    def loss(step: int) -> Tensor:
        return functional.binary_cross_entropy(model(torch.randn(256, 8)), (torch.rand(256, 1) < 0.02).float())

    assert "bounded" not in found(model, Adam(model.parameters(), 1e-2), loss, 200)


class Ending(nn.Module):
    """A network whose output goes through a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.function = mlp(outputs=3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.body(x))


def rows(x: Tensor) -> Tensor:
    return x.softmax(-1)


SEEN_AS = {
    "cross_entropy": functional.cross_entropy,
    "nll_loss": functional.nll_loss,
    "log then nll_loss": lambda out, y: functional.nll_loss(out.log(), y),
    "Brier": lambda out, y: functional.mse_loss(out, functional.one_hot(y, 3).float()),
    "binary_cross_entropy_with_logits": lambda out, y: functional.binary_cross_entropy_with_logits(
        out, functional.one_hot(y, 3).float()
    ),
    "binary_cross_entropy": lambda out, y: functional.binary_cross_entropy(out, functional.one_hot(y, 3).float()),
    "absolute": lambda out, y: functional.l1_loss(out, functional.one_hot(y, 3).float()),
}


@pytest.mark.parametrize(
    ("function", "loss", "is_found"),
    [
        (rows, "cross_entropy", True),
        (rows, "nll_loss", True),
        (rows, "log then nll_loss", False),
        (rows, "Brier", False),
        (torch.sigmoid, "binary_cross_entropy_with_logits", True),
        (torch.sigmoid, "binary_cross_entropy", False),
        (torch.sigmoid, "Brier", False),
        (torch.sigmoid, "absolute", False),
        (torch.tanh, "cross_entropy", False),
        (Tensor.contiguous, "cross_entropy", False),
        (Tensor.contiguous, "binary_cross_entropy_with_logits", False),
        (functional.softplus, "binary_cross_entropy_with_logits", False),
    ],
)
@pytest.mark.parametrize("is_layer", [True, False])
def test_probabilities_that_go_into_a_loss_of_logits_are_seen_by_its_gradient(
    function: Callable[[Tensor], Tensor], loss: str, is_found: bool, is_layer: bool
) -> None:
    layers: dict[Any, nn.Module] = {rows: nn.Softmax(-1), torch.sigmoid: nn.Sigmoid(), torch.tanh: nn.Tanh()}
    model = mlp(outputs=3).append(layers.get(function, nn.Identity())) if is_layer else Ending(function)

    def value(step: int) -> Tensor:
        x = torch.randn(64, 8)
        return SEEN_AS[loss](model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())

    of = found(model, Adam(model.parameters()), value, 10)
    assert ("softmax_twice" in of) is is_found
    assert not is_found or f"{loss} is given " in of["softmax_twice"].message


class Neighbours(nn.Module):
    """Layers between which neighbours are added up, or averaged."""

    def __init__(self, is_mean: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layers, self.last = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(4)), nn.Linear(16, 2)
        self.adjacent = (torch.rand(30, 30) < 0.5).float() / (15 if is_mean else 1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        for layer in self.layers:
            x = functional.relu(layer(self.adjacent @ x))
        y: Tensor = self.last(x)
        return y


@pytest.mark.parametrize(
    ("kind", "rate", "every"),
    quick([(SGD, 1e-4, 1), (SGD, 1e-4, 10), (Adam, 1e-2, 1), (Adam, 1e-2, 10)], (SGD, 1e-4, 10), (Adam, 1e-2, 1)),
)
def test_what_is_added_up_between_two_layers_is_told_at_the_second(kind: type[Optimizer], rate: float, every: int) -> None:
    optimizer: Callable[[Any], Optimizer] = partial(kind, lr=rate)
    model = Neighbours(is_mean=False)

    def loss(step: int) -> Tensor:
        x = torch.randn(4, 30, 8)
        return functional.cross_entropy(model(x).flatten(0, 1), (x[..., 0] > 0).long().flatten())

    root = trained(model, optimizer(model.parameters()), loss, 40, every=every, bad_steps=None).findings[0]
    assert root.rule == "begins_large"
    assert root.advice.startswith("what goes into layers.0 is ")
    assert "initial weights" not in root.advice
    fine = Neighbours(is_mean=True)
    model = fine
    assert "begins_large" not in found(fine, optimizer(fine.parameters()), loss, 40)


@pytest.mark.parametrize(("rate", "every"), quick(product([0.1, 0.01], [1, 10]), (0.1, 10), (0.01, 1)))
def test_inputs_that_are_not_scaled_are_the_root_whatever_the_first_step_makes_of_the_weights(rate: float, every: int) -> None:
    for scale, shift, is_found in ((100.0, 0.0, True), (60.0, 128.0, True), (3.0, 10.0, False)):
        model = mlp()
        loss = classes(model, lambda step, x, scale=scale, shift=shift: x * scale + shift)  # type: ignore[misc]
        every_one = trained(model, SGD(model.parameters(), rate), loss, 60, every=every, bad_steps=None).findings
        assert (every_one[:1] and every_one[0].rule == "input_large") is is_found or not every_one


@pytest.mark.parametrize("every", quick([1, 10], 10))
def test_inputs_that_become_zero_are_told_of_the_gradient_that_is_gone(every: int) -> None:
    model = mlp()
    loss = classes(model, lambda step, x: x * (step < 100))
    root = trained(model, Adam(model.parameters(), 3e-3), loss, 200, every=every).findings[0]
    assert (root.rule, root.step, root.quantity) == ("gradient_zero", 100, "input")
    assert "what goes in is zero" in root.message


def test_a_weight_that_is_rounded_away_is_not_told_as_an_input_of_zeros() -> None:
    """A rounding without a gradient of its own stands between the weights and the output; biases learn."""

    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, (self.weight * 8).round() / 8, self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(Rounded(8, 16), nn.ReLU(), Rounded(16, 2))
    of = found(model, Adam(model.parameters()), classes(model), 20)
    assert "the round behind 2" in of["unreached"].message
    assert not any("what goes in is zero" in each.message for each in of.values())


def test_a_head_without_a_gradient_is_told_though_the_loss_is_learnt() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body, self.first, self.second = nn.Sequential(nn.Linear(8, 64), nn.ReLU()), nn.Linear(64, 2), nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            held = self.body(x)
            return torch.stack([self.first(held), self.second(held)], 1)

    model = Heads()

    def loss(step: int) -> Tensor:
        x = torch.randn(64, 8)
        return functional.mse_loss(model(x)[:, 0], x[:, :2])

    of = found(model, Adam(model.parameters(), 3e-3), loss, 400)
    assert of["gradient_zero"].site == "second.weight:grad"


@pytest.mark.parametrize("is_inverted", [False, True])
def test_a_mask_that_pools_padding_of_zeros_is_told_of_the_gradient_that_is_gone(is_inverted: bool) -> None:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.each, self.last = nn.Linear(8, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            rows = torch.stack([x, x, torch.zeros_like(x)], 1)  # of which the last is padding
            mask = torch.tensor([1.0, 1.0, 0.0])
            mask = 1 - mask if is_inverted else mask
            held = (self.each(rows).relu() * mask[:, None]).sum(1) / mask.sum()
            made: Tensor = self.last(held)
            return made

    model = Pool()
    of = found(model, Adam(model.parameters(), 3e-3), classes(model), 60)
    assert ("gradient_zero" in of) is is_inverted
    assert not is_inverted or "what comes to the loss through it is made of zeros" in of["gradient_zero"].message


@pytest.mark.parametrize("every", [1, 10])
def test_what_writes_into_weights_is_no_consequence_of_their_growth(every: int) -> None:
    model = mlp()

    def noise() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))

    root = trained(model, Adam(model.parameters(), 1e-3), classes(model), 20 * every, after=noise, every=every).findings[0]
    assert (root.rule, root.follows) == ("overwritten", "")


@pytest.mark.parametrize("every", quick([1, 10], 10))
def test_a_rate_that_jumps_is_the_root_of_what_follows(every: int) -> None:
    model = mlp()
    optimizer = Adam(model.parameters(), 3e-3)
    loss = classes(model)

    def jumps(step: int) -> Tensor:
        optimizer.param_groups[0]["lr"] = 3e-3 if step < 100 else 3.0
        return loss(step)

    root = trained(model, optimizer, jumps, 200, every=every, bad_steps=None).findings[0]
    assert (root.rule, root.first_step, root.evidence["best"]) == ("rate_grown", 100, 3e-3)


@pytest.mark.parametrize(("target", "is_found"), [(3e3, False), (3e5, True)])
def test_of_several_outputs_all_of_the_loss_counts_for_all_of_them(target: float, is_found: bool) -> None:
    """Outputs of size 100 and of 0.1; what they are off by counts against the larger ones."""
    body = mlp(outputs=1)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.body(x)
            return 1000 * y, y

    model = Two()

    def loss(step: int) -> Tensor:
        large, small = model(torch.randn(64, 8))
        return (large - target).square().mean() + small.square().mean()

    assert ("target_large" in found(model, SGD(model.parameters(), 1e-3), loss, 20, bad_steps=None)) is is_found


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (nn.LayerNorm(16, eps=5.0), "its eps is 5: what varies less fades"),
        (nn.BatchNorm1d(16, momentum=0.0), "its momentum is 0: evaluation uses the statistics that it began with"),
        (nn.BatchNorm1d(16), ""),
        (nn.BatchNorm1d(16, momentum=None), ""),
        (nn.RMSNorm(16), ""),
    ],
)
def test_settings_of_normalisations_that_undo_them_are_found(norm: nn.Module, words: str) -> None:
    model = mlp()
    model.insert(1, norm)
    of = found(model, Adam(model.parameters()), classes(model), 10)
    assert [each.message.split(": ", 1)[1] for each in of.values() if each.rule == "norm_setting"] == ([words] if words else [])


def test_a_momentum_of_a_normalisation_that_keeps_the_last_batch_alone_is_a_note() -> None:
    model = mlp()
    model.insert(1, nn.BatchNorm1d(16, momentum=0.99))
    told = {each.rule: each for each in trained(model, Adam(model.parameters()), classes(model), 10).findings}["norm_setting"]
    assert told.severity == "note"
    assert told.message.startswith("1: its momentum is 0.99: evaluation uses the statistics of the last batch")


@pytest.mark.parametrize("every", quick([1, 10], 10))
def test_a_last_relu_that_dies_is_the_root_of_gradients_that_are_zero(every: int) -> None:
    model = mlp(outputs=3).append(nn.ReLU())

    def loss(step: int) -> Tensor:
        if step == 105:
            with torch.no_grad():
                model[4].bias.fill_(-9.0)
        x = torch.randn(64, 8)
        return functional.mse_loss(model(x), (x[:, :3] > 0).float())

    every_one = trained(model, Adam(model.parameters(), 1e-2), loss, 200, every=every, bad_steps=None).findings
    roots_of = [each.rule for each in every_one if not each.follows and each.severity != "note"]
    assert "gradient_zero" not in roots_of
    assert {"dead", "overwritten"} & set(roots_of)


def test_an_embedding_that_the_first_step_has_made_large_did_not_begin_so() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def loss(step: int) -> Tensor:
        x = torch.randint(20, (64,))
        return functional.cross_entropy(model(x), x % 2) * 65536

    of = found(model, SGD(model.parameters(), 1.0), loss, 12, bad_steps=None)
    assert of
    assert "weight_large" not in of


def test_a_generator_whose_outputs_are_detached_is_reached_by_no_gradient() -> None:
    """Two optimizers, of which the first to step holds the other network."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"G": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), "D": mlp(2, 1)})
    of_g, of_d = Adam(model["G"].parameters()), Adam(model["D"].parameters())
    with sonde.watch(model, [of_g, of_d], every=1, to="memory", verbose=False) as inspector:
        for _ in range(12):
            for optimizer, sign in ((of_d, 1), (of_g, -1)):
                optimizer.zero_grad()
                fake = model["G"](torch.randn(16, 4)).detach()
                (sign * (model["D"](fake) - model["D"](torch.randn(16, 2))).mean()).backward()
                optimizer.step()
    of = {each.rule: each for each in inspector.findings}
    assert (of["unreached"].severity, of["unreached"].site) == ("bad", "G.0.weight:param")


def test_weights_that_decay_where_no_gradient_comes_follow_from_that() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(10) for layer in (nn.Linear(8, 8), nn.Sigmoid())]
    model = nn.Sequential(*layers, nn.Linear(8, 2))
    of = found(model, Adam(model.parameters(), 1e-2, weight_decay=1.0), classes(model), 200)
    assert of["gradient_vanishing"].follows == ""
    assert "gradient_vanishing" in of["weight_shrinking"].follows


def test_a_search_along_a_line_says_nothing_of_the_data() -> None:
    """The outputs of a step are those of weights that a search has tried."""
    torch.manual_seed(0)
    model = mlp(outputs=1)
    x = torch.randn(64, 8)
    optimizer = LBFGS(model.parameters(), lr=1.0, max_iter=20)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for _ in range(12):

            def closure() -> Tensor:
                loss = functional.mse_loss(model(x), 1e3 * x[:, :1])
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            inspector.push_loss(optimizer.step(closure), train=True)  # type: ignore[no-untyped-call]
    assert "input_large" not in [each.rule for each in inspector.findings]


def test_a_layer_that_is_called_again_and_again_says_nothing_of_the_data() -> None:
    """Its first call takes the data, and each later one what the one before has returned."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.field, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(12):
                x = x + 4 * self.field(x)
            return self.head(x)

    model = Steps()
    of = found(model, SGD(model.parameters(), 1e-9), classes(model), 12, bad_steps=None)
    assert "input_large" not in of


def test_a_table_that_is_looked_up_and_gets_no_gradient_is_found() -> None:
    """The codes of an autoencoder without the term that moves them."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"in": nn.Linear(8, 4), "codes": nn.Embedding(16, 4), "out": nn.Linear(4, 8)})

    def loss(step: int) -> Tensor:
        x = torch.randn(32, 8)
        z = model["in"](x)
        codes = model["codes"](torch.cdist(z, model["codes"].weight).argmin(1))
        return functional.mse_loss(model["out"](z + (codes - z).detach() + 0 * codes), x)

    of = found(model, Adam(model.parameters()), loss, 12)
    assert of["gradient_zero"].site == "codes.weight:grad"


@pytest.mark.parametrize("kind", [rows, torch.sigmoid])
def test_a_check_of_a_run_on_disk_sees_probabilities_as_the_training_does(kind: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    """It reads the numbers that rules need, and no others."""
    torch.manual_seed(0)
    model = Ending(kind)
    optimizer = Adam(model.parameters())
    with sonde.watch(model, optimizer, every=1, to=tmp_path / "run", verbose=False) as inspector:
        for _ in range(8):
            x = torch.randn(64, 8)
            y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
            loss = SEEN_AS["cross_entropy" if kind is rows else "binary_cross_entropy_with_logits"](model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)
    seen = [each.message for each in inspector.findings]
    assert [each.message for each in sonde.check(tmp_path / "run").findings] == seen
    assert "is given what a s" in seen[0]  # which the training knows of its loss


@pytest.mark.parametrize(("size", "is_told"), [(8.0, True), (0.1, False)])
def test_a_bias_that_begins_large_is_told_of_a_loss_that_does_not_fall(size: float, is_told: bool) -> None:
    model = mlp()
    nn.init.constant_(model[0].bias, size)

    def loss(step: int) -> Tensor:
        return functional.cross_entropy(model(torch.randn(64, 8)), torch.randint(2, (64,)))

    one = found(model, Adam(model.parameters(), 1e-3), loss, 160)["loss_stuck"]
    assert one.advice.startswith("0.bias begins ") is is_told


def test_a_gradient_that_is_clipped_to_next_to_nothing_is_told_of_small_steps() -> None:
    model = mlp()
    of = found(
        model, SGD(model.parameters(), 0.1), classes(model), after=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
    )
    assert of["update_small"].advice.startswith("gradients are clipped to 0.0001 from a norm of ")


def test_an_input_that_another_model_has_made_large_was_not_so_from_the_beginning_on() -> None:
    """The biases hide what goes in at the first step; it cannot have been large then."""
    model = mlp()
    with torch.no_grad():
        model[0].bias.fill_(1.0)
    optimizer = SGD(model.parameters(), 1e-4)
    of = found(model, optimizer, classes(model, lambda step, x: x * (1e-2 if step == 0 else 5e3)), 10)
    assert "from the beginning" not in "".join(each.message for each in of.values() if each.rule == "input_large")


def test_environments_that_begin_alike_are_no_same_inputs() -> None:
    """The model is called several times before a backward pass; the first call of each step sees one state for all."""
    model = mlp()

    def game(step: int) -> Tensor:
        state, loss = torch.zeros(32, 8), torch.zeros(())
        for _ in range(3):
            loss = loss + functional.cross_entropy(model(state), torch.randint(2, (32,)))
            state = state + torch.randn(32, 8)
        return loss

    assert "input_same" not in found(model, Adam(model.parameters()), game, steps=12)


def test_the_width_of_a_last_layer_that_is_not_the_output_is_no_number_of_classes() -> None:
    """A density of two values per sample, through a layer of two units: its loss is no cross-entropy of two classes."""

    class Density(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = 0.5 * (3 + self.last(self.first(x).tanh())).square().sum(1)
            return out

    torch.manual_seed(0)
    model = Density()
    assert "begins_large" not in found(model, Adam(model.parameters()), lambda step: model(torch.randn(64, 2)).mean(), steps=8)


def test_what_fades_behind_a_dead_layer_follows_from_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(8, 8), nn.ReLU())], nn.Linear(8, 2))
    with torch.no_grad():
        model[8].bias.fill_(-100.0)
        for at in (10, 12, 14, 16):
            model[at].bias.mul_(1e-7)
    findings = trained(model, Adam(model.parameters(), 1e-6), classes(model), steps=30).findings
    follows = {each.rule: each.follows for each in findings if each.severity != "note"}
    assert (follows["dead"], follows["output_small"]) == ("", "dead")


# What is seen, and what is the reason


def test_a_linear_model_may_grow_as_long_as_its_loss_falls() -> None:
    torch.manual_seed(0)
    model, weight = nn.Linear(10, 1), 8 * torch.randn(10, 1)
    nn.init.zeros_(model.weight)

    def loss(step: int) -> Tensor:
        x = torch.randn(64, 10)
        return functional.mse_loss(model(x), x @ weight + 3)

    assert found(model, Adam(model.parameters(), 0.05), loss, steps=120) == {}


@pytest.mark.parametrize("rises", [False, True])
def test_a_noisy_loss_rises_where_more_than_a_few_values_say_so(rises: bool) -> None:
    """Of 20 losses that scatter about one value, two are told at most; of 20 that fall and come back, each one."""
    told = 0
    for seed in range(20):
        random, judged = np.random.default_rng(seed), sonde.rules.ScalarFindings(sonde.rules.Chosen())
        for step in range(400):
            level = 0.2 if rises and 60 < step < 150 else 1.6 if rises and step >= 150 else 1.0
            judged.add("loss", level * math.exp(0.3 * random.normal()), 0, step)
        told += any(each.rule == "loss_rising" for each in judged.findings(at_end=True))
    assert told == 20 if rises else told <= 2


def noise(model: nn.Module) -> Loss:
    """The loss of labels that belong to no sample."""
    return lambda step: functional.cross_entropy(model(torch.randn(64, 8)), torch.randint(2, (64,)))


@pytest.mark.slow
def test_a_loss_is_not_stuck_while_a_warm_up_has_hardly_begun() -> None:
    """The first 150 steps of 10,000 move the weights by a hundredth; from the end of a warm-up on, 90 steps tell."""
    for warm_up, rules in ((10_000, set()), (40, {"loss_stuck"})):
        model = mlp()
        optimizer, loss = SGD(model.parameters(), 0.02), noise(model)
        steps = iter(range(150))

        def warm(optimizer: SGD = optimizer, steps: Iterator[int] = steps, end: int = warm_up) -> None:
            optimizer.param_groups[0]["lr"] = 0.02 * min(1.0, (next(steps) + 1) / end)

        assert set(found(model, optimizer, loss, steps=150, after=warm)) == rules, warm_up


def test_a_loss_that_stands_still_at_a_rate_that_may_be_meant_is_a_note_at_the_end() -> None:
    model = mlp()
    with_notes = trained(model, Adam(model.parameters(), 1e-5), noise(model), steps=150)
    assert [(each.rule, each.severity, each.opened) for each in with_notes.findings] == [("loss_stuck", "note", 149)]


def test_small_steps_are_told_with_what_the_learning_rate_says_of_them() -> None:
    """A rate that is small for any optimizer is the reason, or for SGD; a usual one is not, as of a loss divided by a million."""
    plain = "raise the learning rate: it is a small one of plain SGD"
    for rate, factor, words in (
        (1e-8, 1.0, "raise the learning rate, or"),
        (0.05, 1e-6, "lr 0.05 is no small one"),
        (1e-3, 1e-2, plain),
    ):
        model = mlp()
        loss = classes(model)
        small = found(model, SGD(model.parameters(), rate), lambda step: factor * loss(step), steps=30)["update_small"]  # noqa: B023
        assert small.advice.startswith(words)
        assert f"at lr {rate:g}" in small.message


def test_dead_units_are_told_with_what_has_made_them_so() -> None:
    """A bias, what goes in, or a step: only what the rows show is named, and the learning rate only where steps were made."""
    born, biased, killed = mlp(), mlp(), mlp()
    with torch.no_grad():
        born[0].weight.abs_()
        biased[2].bias.fill_(-9.0)
    dead = {}
    for name, model, change in (
        ("born", born, lambda x: -4 - x.abs()),
        ("biased", biased, lambda x: x),
        ("killed", killed, lambda x: x),
    ):

        def loss(step: int, model: nn.Sequential = model, change: Callable[[Tensor], Tensor] = change, name: str = name) -> Tensor:
            with torch.no_grad():
                model[2].bias.add_(-9.0 if name == "killed" and step == 20 else 0.0)
            x = torch.randn(64, 8)
            return functional.cross_entropy(model(change(x)), (x[:, 0] > 0).long())

        dead[name] = found(model, Adam(model.parameters(), 1e-3), loss, steps=60)["dead"]
    assert dead["born"].advice.startswith("no step has made it so: look in this order at what goes in")
    assert dead["biased"].advice.startswith("look at what sets the bias before it: -9 of the -")
    assert dead["killed"].advice.startswith("look at the steps before step 20: ")
    assert ["learning rate" in each.advice for each in dead.values()] == [False, False, True]


@pytest.mark.slow
def test_batches_that_are_all_beyond_a_margin_have_no_gradient_once_it_is_learnt() -> None:
    """Zero gradients are a note while the loss is learnt, and a finding where it is not; and none once they come again."""

    def losses(begin: int, end: int) -> Loss:
        usual = classes(model)

        def loss(step: int) -> Tensor:
            value, is_there = usual(step), float(not begin <= step < end)
            return value * is_there + value.detach() * (1 - is_there)

        return loss

    for begin, severities in ((100, ["note"]), (8, ["bad"])):
        model = mlp()
        every = trained(model, Adam(model.parameters(), 3e-3), losses(begin, begin + 12), begin + 12).findings
        assert [each.severity for each in every if each.rule == "gradient_zero"] == severities
        model = mlp()
        assert "gradient_zero" not in found(model, Adam(model.parameters(), 3e-3), losses(begin, begin + 5), begin + 20)


@pytest.mark.slow
def test_a_loss_that_rises_while_a_part_of_it_is_learnt_is_not_told_in_the_first_steps() -> None:
    """Where it has come down again by then; one that stays up, or ends up in few steps, is told."""

    def course(top: float, down: int, steps: int) -> list[str]:
        model = mlp()
        with sonde.watch(model, Adam(model.parameters()), every=1, to="memory", verbose=False) as inspector:
            for step in range(steps):
                optimizer_step(model)
                inspector.push_loss(top if 20 <= step < down else 1.0 - 0.002 * step, train=True)
        return [each.rule for each in inspector.findings if each.rule == "loss_rising"]

    def optimizer_step(model: nn.Module) -> None:
        optimizer = Adam(model.parameters())
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()

    assert course(2.0, 60, 150) == []
    assert course(2.0, 150, 150) == ["loss_rising"]
    assert course(2.0, 60, 60) == ["loss_rising"]
    assert course(4.0, 60, 150) == ["loss_rising"]


@pytest.mark.parametrize("labels", quick([1, 2, 4], 2))
def test_several_labels_of_a_sample_in_one_softmax_are_told(labels: int) -> None:
    """By the first loss and its gradient: not of one label, of shares that add up to one, or of a loss that is multiplied."""
    model = mlp(outputs=12)
    weight = torch.randn(8, 12)

    def loss(step: int, share: float = 1.0, times: float = 1.0) -> Tensor:
        x = torch.randn(64, 8)
        marked = torch.zeros(64, 12).scatter(1, (x @ weight).topk(labels).indices, share)
        return functional.cross_entropy(model(x), marked) * times

    rule, steps = "labels_several", 120
    told = found(model, Adam(model.parameters(), 1e-4), loss, steps)
    assert (rule in told) is (labels > 1)
    assert labels == 1 or told[rule].value == pytest.approx(labels, rel=0.1)  # outputs around 0, and not at it
    for other in (partial(loss, share=1 / labels), partial(loss, share=1 / labels, times=labels + 1)):
        model = mlp(outputs=12)
        assert rule not in found(model, Adam(model.parameters(), 1e-4), other, steps)


@pytest.mark.parametrize(("outputs", "alike"), quick(product([5, 1], [True, False]), (5, False), (1, True)))
def test_labels_of_one_class_are_told_once_they_are_learnt(outputs: int, alike: bool) -> None:
    """All samples ask for one output, until that is learnt. Where they differ, a validation loss that never fell is overfitting."""
    model = mlp(outputs=outputs)
    one = outputs == 1

    def of(x: Tensor, y: Tensor) -> Tensor:
        made: Tensor = model(x)
        binary = functional.binary_cross_entropy_with_logits
        return binary(made[:, 0], (y > 0).float()) if one else functional.cross_entropy(made, y)

    x, y, held = torch.randn(64, 8), torch.randint(5, (64,)), torch.randint(5, (64,))
    optimizer = Adam(model.parameters(), 1e-2)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for step in range(100):
            value = of(x, y * 0 if alike else y)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(value, train=True)
            if step % 10 == 0:
                inspector.push_loss(of(x.flip(0), held * 0 + 1 if alike else held).detach(), train=False)
    told = {each.rule: each for each in inspector.findings}
    assert ("labels_alike" in told) is alike
    roots = [each.rule for each in inspector.findings if not each.follows and each.severity != "note"]
    assert roots == ["labels_alike" if alike else "overfitting"]


@pytest.mark.parametrize("groups", [16, 4])
def test_a_normalisation_of_single_elements_is_told(groups: int) -> None:
    """Each element is its own mean, so that the bias is all that is left; what fades behind it follows."""
    torch.manual_seed(0)
    norm = nn.GroupNorm(groups, 16)
    model = nn.Sequential(nn.Conv2d(1, 16, 2, 2), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))

    def loss(step: int) -> Tensor:
        x = torch.randn(64, 1, 2, 2)
        return functional.cross_entropy(model(x), (x[:, 0, 0, 0] > 0).long())

    told = found(model, Adam(model.parameters(), 1e-2), loss)
    assert ("norm_setting" in told) is (groups == 16)
    if groups == 16:
        assert told["norm_setting"].message.startswith("1: it returns its bias alone, as of groups of one element")
        assert {each.follows for each in told.values()} == {"", "norm_setting"} or list(told) == ["norm_setting"]


def test_a_normalisation_that_comes_to_return_its_bias_is_none_of_single_elements() -> None:
    """Steps that are too large have made what goes in alike, from the tenth step on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))

    def loss(step: int) -> Tensor:
        x = torch.randn(64, 8)
        with torch.no_grad():
            if step == 10:
                model[0].bias.copy_(model[0].bias.mean())
                model[0].weight.copy_(model[0].weight.mean(0) * 1e3)
        return functional.cross_entropy(model(x), (x[:, 0] > 0).long())

    assert "norm_setting" not in found(model, Adam(model.parameters(), 1e-6), loss)


def test_a_dead_layer_leaves_a_normalisation_nothing() -> None:
    """Which is no fault of that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 2))
    nn.init.constant_(model[0].bias, -50)  # type: ignore[arg-type]
    told = found(model, Adam(model.parameters()), classes(model))
    assert "dead" in told
    assert "norm_setting" not in told


@pytest.mark.parametrize(("scale", "rules"), [(255.0, {"input_large", "begins_large"}), (1.0, set())])
def test_a_normalisation_with_statistics_of_other_data_does_not_scale_inputs(scale: float, rules: set[str]) -> None:
    """A network that was trained on pixels from 0 to 1, whose statistics are frozen, is given pixels from 0 to 255."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    for _ in range(100):
        model(torch.rand(16, 3, 8, 8))
    model[1].eval()
    images, labels = torch.rand(64, 3, 8, 8), torch.arange(64) % 4
    told = found(model, Adam(model.parameters()), lambda step: functional.cross_entropy(model(scale * images), labels), steps=30)
    assert set(told) == rules
    if rules:
        assert told["begins_large"].follows == "input_large"
        assert told["begins_large"].advice.startswith("1 returns what is of size")


@pytest.mark.slow
def test_tanh_that_stands_at_its_ends_in_a_network_that_has_learnt_is_healthy() -> None:
    """So does the last hidden layer of a classifier of text that is sure."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    assert not found(model, Adam(model.parameters(), 0.02), classes(model, lambda step, x: x + 8 * x[:, :1].sign()), steps=200)


@pytest.mark.parametrize(("samples", "rare"), [(1, 0.5), (64, 0.02)])
def test_labels_of_a_rare_class_or_of_single_samples_are_not_alike(samples: int, rare: float) -> None:
    """The gradients of one sample point one way; those of rare classes do not once the mean output fits. Both are learnt well."""
    torch.manual_seed(0)
    model, weight = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(8)
    x = torch.randn(4000, 8)
    is_rare = x @ weight > (x @ weight).quantile(1 - rare)
    x += is_rare[:, None] * weight

    def loss(step: int) -> Tensor:
        drawn = torch.randint(len(x), (samples,))
        return functional.cross_entropy(model(x[drawn]), is_rare[drawn].long())

    assert "labels_alike" not in found(model, Adam(model.parameters(), 1e-2), loss, steps=300)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("argmax", "that of all 6 parameters|no gradient arrives at the outputs of the model"),
        ("round", "through round alone|leave it out of the loss"),
        ("clamp", "are beyond what the last clamp can return|leave the last activation out"),
        ("straight", ""),
    ],
)
def test_a_loss_without_a_slope_is_told_for_all_parameters(how: str, says: str) -> None:
    model = mlp(outputs=1)

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 8)
        out = model(x)
        aim = (x[:, :1] > 0).float()
        made = {
            "argmax": lambda: 0 * out + out.argmax(1, keepdim=True),
            "round": out.round,
            "clamp": lambda: out.clamp(5, 6),
            "straight": lambda: out + (out.round() - out).detach(),
        }[how]()
        return functional.mse_loss(made, aim)

    told = found(model, Adam(model.parameters(), 1e-3), loss)
    rule = "target_beyond" if how == "clamp" else "gradient_zero"  # which says why there is none
    assert (rule in told) is bool(says)
    if says:
        message, advice = says.split("|")
        assert message in told[rule].message
        assert told[rule].advice.startswith(advice)


class Pairs(nn.Module):
    """Scores of users and things, without a forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user, self.thing = nn.Embedding(50, 8), nn.Embedding(40, 8)

    def score(self, user: Tensor, thing: Tensor) -> Tensor:
        made: Tensor = (self.user(user) * self.thing(thing)).sum(-1)
        return made


@pytest.mark.parametrize("are_same", [True, False])
def test_negatives_that_are_the_positives_are_told(are_same: bool) -> None:
    model = Pairs()

    def loss(_: int) -> Tensor:
        user, positive = torch.randint(50, (64,)), torch.randint(40, (64,))
        negative = positive if are_same else torch.randint(40, (64,))
        return -functional.logsigmoid(model.score(user, positive) - model.score(user, negative)).mean()

    told = trained(model, Adam(model.parameters(), 1e-2), loss, 160).findings
    assert ("gradient_zero" in [each.rule for each in told]) is are_same
    if are_same:
        assert told[0].rule == "gradient_zero"
        assert told[0].message.startswith("the loss subtracts what was made of the same outputs by the same operations")
        assert told[0].advice.startswith("look whether negatives are the positives themselves")
        assert not any("clipped" in each.advice for each in told)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_scores_of_generated_samples_that_are_pushed_one_way_by_both_are_told(sign: float) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"G": nn.Linear(4, 2), "C": nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))})
    optimizers = [torch.optim.RMSprop(model[name].parameters(), 5e-4) for name in ("C", "G")]
    with sonde.watch(dict(model.items()), optimizers, every=1, to="memory", verbose=False) as inspector:
        for _ in range(30):
            x, noise = torch.randn(32, 2) + 3, torch.randn(32, 4)
            losses = (
                lambda x=x, noise=noise: model["C"](model["G"](noise).detach()).mean() - model["C"](x).mean(),
                lambda noise=noise: sign * model["C"](model["G"](noise)).mean(),
            )
            for optimizer, of in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                of().backward()
                optimizer.step()
    told = [each for each in inspector.findings if each.rule == "generator_misled"]
    assert [each.message for each in told] == (
        ["C: the scores of generated samples are pushed down where either of the two is trained: a sign is wrong"] * (sign > 0)
    )


def test_outputs_that_a_dropout_makes_zero_are_told_with_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.Dropout(0.85))

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 8)
        return functional.binary_cross_entropy_with_logits(model(x), (x[:, :1] > 0).float())

    one = found(model, Adam(model.parameters(), 1e-2), loss, 60)["input_unused"]
    assert one.message.startswith("the dropout that makes the outputs returns the same for ")
    assert one.advice.startswith("leave out the dropout of the outputs")


@pytest.mark.parametrize("rate", [0.3, 3.0])
def test_a_weight_before_a_normalisation_may_be_moved_far(rate: float) -> None:
    """Only its direction counts; what large steps do there, other findings say."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    of = found(model, SGD([{"params": model[0].parameters(), "lr": rate}, {"params": model[3].parameters()}], 1e-3), classes(model))
    assert not [each for each in ("update_large", "update_huge") if each in of and "0.weight:update" in of[each].places]


@pytest.mark.parametrize(("share", "is_told"), [(0.7, True), (0.02, False)])
def test_steps_of_a_weight_of_sparse_inputs_are_judged_by_those_that_come(share: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(400, 1)

    def loss(_: int) -> Tensor:
        x = (torch.rand(16, 400) < share).float() / (400 * share) ** 0.5
        return functional.soft_margin_loss(model(x)[:, 0], torch.randn(16).sign())

    of = found(model, Adam(model.parameters(), 0.03), loss, 20)
    assert ("update_huge" in of) is is_told


@pytest.mark.parametrize("inside", [True, False])
def test_of_pairs_the_better_one_may_stand_first(inside: bool) -> None:
    """Whether the model returns the difference of two scores, or the loss takes it: it has no labels."""

    class Ranked(Pairs):
        def forward(self, user: Tensor, better: Tensor, worse: Tensor) -> Tensor:
            return (self.user(user) * (self.thing(better) - self.thing(worse))).sum(-1)  # type: ignore[no-any-return]

    model = Ranked()

    def loss(_: int) -> Tensor:
        user = torch.randint(50, (64,))
        better, worse = (user + torch.randint(10, (64,))) % 40, torch.randint(40, (64,))
        apart = model(user, better, worse) if inside else model.score(user, better) - model.score(user, worse)
        return -functional.logsigmoid(apart).mean()

    assert "labels_alike" not in found(model, Adam(model.parameters(), 1e-2), loss, 100)


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_logits_that_a_mask_makes_infinite_are_no_defect(value: float) -> None:
    class Pointer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 6)

        def forward(self, x: Tensor, left_out: Tensor) -> Tensor:
            made: Tensor = self.layer(x).masked_fill(left_out, value)
            return made

    torch.manual_seed(0)
    model = Pointer()

    def loss(_: int) -> Tensor:
        mask = torch.arange(6) >= torch.randint(2, 6, (32, 1))
        return functional.cross_entropy(model(torch.randn(32, 8), mask), torch.randint(2, (32,)))

    assert ("nonfinite" in found(model, Adam(model.parameters()), loss, 20, bad_steps=None)) is math.isnan(value)


@pytest.mark.parametrize(("pace", "is_told"), [(0.01, False), (0.1, True)])
def test_targets_that_grow_make_no_loss_that_rises_but_where_they_grow_without_an_end(pace: float, is_told: bool) -> None:
    """As the values of a policy that gets better do: outputs follow them, and the error is far smaller than these are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss(step: int) -> Tensor:
        x, size = torch.randn(64, 8), 0.2 + pace * step
        return functional.mse_loss(model(x), size * (2 + 0.3 * torch.randn(64, 1)))

    inspector = trained(model, Adam(model.parameters(), 1e-2), loss, 200)
    losses = inspector.run.scalar("loss")[1]
    assert losses[-5:].mean() > 1.5 * losses[:5].mean()
    assert ("loss_rising" in {each.rule for each in inspector.findings}) is is_told


def test_a_loop_that_steps_before_each_forward_moves_its_weights() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    copies = [each.detach().clone() for each in model.parameters()]
    with sonde.watch(model, every=1, to="memory", verbose=False) as inspector:
        for _ in range(40):
            with torch.no_grad():
                for each, copy in zip(model.parameters(), copies, strict=True):
                    each.copy_(copy)
            model.zero_grad()
            x = torch.randn(64, 8)
            value = functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            value.backward()  # type: ignore[no-untyped-call]
            for each, copy in zip(model.parameters(), copies, strict=True):
                copy.sub_(0.1 * each.grad)  # type: ignore[operator]
            inspector.push_loss(value, train=True)
            inspector.step()
    assert not {"overwritten", "update_small"} & {each.rule for each in inspector.findings}


class Denoiser(nn.Module):
    """Takes noisy points, and how noisy each is; *lengths* are none of its business."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.points, self.out = nn.Linear(3, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor, t: Tensor, lengths: Tensor) -> Tensor:
        made: Tensor = self.out(self.points(torch.cat([x, t[:, None]], 1)).tanh())
        return made


@pytest.mark.parametrize(
    ("how", "is_told"), [("same", True), ("by name", True), ("drawn", False), ("of a step", False), ("flow", False)]
)
def test_a_time_that_is_one_number_for_all_samples_is_told(how: str, is_told: bool) -> None:
    model = Denoiser()

    def loss(step: int) -> Tensor:
        x, noise = torch.randn(32, 2), torch.randn(32, 2)
        t = {"drawn": torch.rand(32), "of a step": torch.full((32,), step / 40)}.get(how, torch.zeros(32))
        lengths = torch.full((32,), 7)
        given = x + t[:, None] * noise
        made = model(given, t=t, lengths=lengths) if how == "by name" else model(given, t, lengths)
        made = model(given + 0.1 * made, t + 0.1, lengths) if how == "flow" else made
        return functional.mse_loss(made, noise)

    told = found(model, Adam(model.parameters(), 1e-3), loss, steps=20)
    assert ("input_same" in told) is is_told
    assert not is_told or told["input_same"].message == "(root): t is one number for all samples, in 5 passes"


@pytest.mark.parametrize(("noise", "times", "is_told"), [(5.0, 1, True), (0.002, 1, False), (0.0, 1000, False), (0.0, 1, False)])
def test_noise_that_buries_the_gradients_of_the_backward_passes_is_told(noise: float, times: float, is_told: bool) -> None:
    """A factor alone does no harm to an optimizer that divides by the size of gradients."""
    model = mlp()

    def changed() -> None:
        for each in model.parameters():
            assert each.grad is not None
            each.grad.mul_(times).add_(torch.randn_like(each), alpha=noise)

    told = found(model, Adam(model.parameters(), 3e-3), classes(model), steps=120, after=changed)
    assert ("gradient_growth" in told) is is_told
    if is_told:
        assert told["gradient_growth"].message.endswith("between backward and step")
        assert told["gradient_growth"].severity == "warn"


@pytest.mark.parametrize(
    ("count", "are_same", "is_told"), [(3, True, True), (4, True, False), (3, False, False), (70, True, False)]
)
def test_a_loss_that_reads_fewer_samples_than_there_are_classes_is_told(count: int, are_same: bool, is_told: bool) -> None:
    """One node of each class may be all that is known of a graph."""
    model, x = mlp(outputs=4), torch.randn(240, 8)
    labels = x[:, :4].argmax(1)
    firsts = torch.stack([(labels == each).nonzero()[0, 0] for each in range(4)])
    picked = firsts if count == 4 else torch.arange(count)

    def loss(_: int) -> Tensor:
        own = picked if are_same else torch.randperm(240)[:count]
        return functional.cross_entropy(model(x)[own], labels[own])

    told = found(model, Adam(model.parameters(), 1e-3), loss, steps=20)
    assert ("input_same" in told) is is_told
    assert not is_told or "reads the same 3 of 240 samples" in told["input_same"].message


class Chosen(nn.Module):
    """Parts that are alike, of which a router picks one for each sample; or all of them run, one after the other."""

    def __init__(self, *, is_sparse: bool, is_row: bool = False) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(4)])
        self.is_sparse, self.is_row = is_sparse, is_row

    def forward(self, x: Tensor) -> Tensor:
        held = self.first(x).tanh()
        shares = self.gate(held).softmax(1)
        made = held
        for at, expert in enumerate(self.experts):
            picked = shares.argmax(1) == at
            if self.is_row:
                made = made + expert(made)
            elif not self.is_sparse:
                made = made + (shares[:, at] * picked)[:, None] * expert(held)
            elif picked.any():
                made = made.index_add(0, picked.nonzero()[:, 0], shares[picked, at, None] * expert(held[picked]))
        out: Tensor = self.last(made)
        return out


@pytest.mark.parametrize(
    ("bias", "is_sparse", "is_row", "lost"),
    [(9.0, False, False, 3), (9.0, True, False, 3), (0.0, False, False, 0), (0.0, True, False, 0), (9.0, False, True, 0)],
)
def test_experts_that_a_router_leaves_without_samples_are_named(bias: float, is_sparse: bool, is_row: bool, lost: int) -> None:
    torch.manual_seed(0)
    model = Chosen(is_sparse=is_sparse, is_row=is_row)
    with torch.no_grad():
        model.gate.weight.mul_(3)
        model.gate.bias.copy_(torch.tensor([0.0, bias, 0.0, 0.0]))

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 8)
        return functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])

    every = {
        each.rule: each for each in trained(model, Adam(model.parameters(), 1e-3), loss, 60).findings if each.severity == "warn"
    }
    found = every.get("gradient_zero")
    assert (0 if found is None else len(found.places)) == lost
    assert found is None or (found.places[0] == "experts.0" and "what gate makes" in found.advice)


@pytest.mark.parametrize(("rate", "loss", "is_told"), [(1e-5, "bce", True), (5e-3, "squares", False)])
def test_a_discriminator_that_outruns_its_generator_is_told(rate: float, loss: str, is_told: bool) -> None:
    """One that wins for a while is none: what it makes of both is compared with how far steps move the two."""
    torch.manual_seed(0)
    generator, discriminator = mlp(4, 2), mlp(2, 1)
    steps = [Adam(generator.parameters(), rate), Adam(discriminator.parameters(), 3e-2)]
    error = functional.binary_cross_entropy_with_logits if loss == "bce" else functional.mse_loss
    with sonde.watch({"G": generator, "D": discriminator}, steps, every=1, to="memory", verbose=False) as inspector:
        for _ in range(125):
            made = generator(torch.randn(32, 4))
            real, fake = discriminator(torch.randn(32, 2) + 4), discriminator(made.detach())
            steps[1].zero_grad()
            (error(real, torch.ones_like(real)) + error(fake, torch.zeros_like(fake))).backward()
            steps[1].step()
            fake = discriminator(made)
            steps[0].zero_grad()
            error(fake, torch.ones_like(fake)).backward()
            steps[0].step()
    told = [each for each in inspector.findings if each.rule == "rate_small"]
    assert [each.model for each in told] == ["D"] * is_told
    assert all("it tells what it is given from what a generator makes, in 6 looks of 6" in each.message for each in told)


class Smoothed(nn.Module):
    """A graph network that takes so many *means* over neighbours, with a residual path or without one."""

    def __init__(self, means: int, kept: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.means, self.kept, self.first, self.last = means, kept, nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        made = first = functional.relu(graph @ self.first(x))
        for _ in range(self.means):
            made = (1 - self.kept) * (graph @ made) + self.kept * first
        out: Tensor = self.last(functional.dropout(made, 0.3, self.training))
        return out


@pytest.mark.parametrize(("means", "kept", "is_told"), [(30, 0.0, True), (30, 0.3, False), (1, 0.0, False)])
def test_nodes_that_come_to_point_in_one_direction_are_told_where_the_loss_stands(means: int, kept: float, is_told: bool) -> None:
    model = Smoothed(means, kept)
    labels = torch.randint(3, (64,))
    near = ((labels[:, None] == labels) & (torch.rand(64, 64) < 0.3)) | (torch.rand(64, 64) < 0.05) | torch.eye(64).bool()
    graph = near / near.sum(1, keepdim=True)
    x = torch.randn(64, 8) + functional.one_hot(labels, 8)
    told = found(model, Adam(model.parameters(), 1e-2), lambda _: functional.cross_entropy(model(x, graph), labels), 210)
    assert ("rank_collapse" in told) is is_told
    assert not is_told or told["rank_collapse"].site == "last:input"


@pytest.mark.parametrize(("samples", "mode", "is_told"), [(2, True, True), (2, False, False), (4, True, False)])
def test_a_batch_normalisation_of_two_elements_is_told(samples: int, mode: bool, is_told: bool) -> None:
    """Whatever goes in, one becomes 1 and the other -1; not with statistics that were kept."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    model[1].train(mode)

    def loss(_: int) -> Tensor:
        x = 3 * torch.randn(samples, 8)
        return functional.cross_entropy(model(x), (x[:, 0] > 0).long())

    told = found(model, SGD(model.parameters(), 1e-2), loss, 12)
    assert ("norm_setting" in told) is is_told
    assert not is_told or told["norm_setting"].message.startswith("1: it normalises two elements of each channel")


@pytest.mark.parametrize("is_padding", [True, False])
def test_an_embedding_of_padding_alone_is_told_with_the_tokens(is_padding: bool) -> None:
    model = nn.Sequential(nn.Embedding(50, 16, padding_idx=0), nn.Flatten(), nn.Linear(160, 2))

    def loss(step: int) -> Tensor:
        tokens = torch.randint(1, 50, (16, 10))
        return functional.cross_entropy(model(tokens * (not is_padding)), tokens[:, 0] % 2)

    told = found(model, Adam(model.parameters(), 1e-3), loss, steps=8)
    assert ("all_zero" in told) is is_padding
    assert not is_padding or told["all_zero"].advice.startswith(
        "look first at the tokens that go in: the row of padding_idx is zero"
    )


@pytest.mark.parametrize(
    ("counted", "name", "is_told"), [(0.0, "accuracy", True), (0.0, "exact_accuracy", False), (1.0, "acc", False)]
)
def test_an_accuracy_that_the_loss_contradicts_is_counted_wrongly(counted: float, name: str, is_told: bool) -> None:
    """Each wrong label costs ln 2 or more; of other shares nothing is known."""
    model = mlp()
    optimizer, loss = Adam(model.parameters(), 1e-2), classes(model)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for step in range(150):
            optimizer.zero_grad()
            value = loss(step)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(value, train=True)
            inspector.push_metric(name, 0.5 if step == 0 else counted)
    messages = [each.message for each in inspector.findings if each.rule == "metric_falls" and "leaves" in each.message]
    assert bool(messages) is is_told
    assert all(each.startswith("accuracy is 0, and a cross-entropy of") for each in messages)


@pytest.mark.parametrize("is_sum", [True, False])
def test_a_loss_that_is_pushed_as_the_sum_of_all_is_said_to_be(is_sum: bool) -> None:
    model = mlp()
    optimizer, loss, pushed = Adam(model.parameters(), 1e-2), classes(model), 0.0
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for step in range(60):
            optimizer.zero_grad()
            value = loss(step)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            pushed = pushed + value.item() if is_sum else value.item()
            inspector.push_loss(pushed, train=True)
    messages = [each.message for each in inspector.findings if each.rule == "loss_rising"]
    assert [each.startswith("what is pushed as the loss is the sum of all so far") for each in messages] == [True] * is_sum


class Shared(nn.Module):
    """Two layers, a batch normalisation behind each, or one behind both; or two views that go through one."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.one, self.two, self.head = how, nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2)
        self.norm, self.other = nn.BatchNorm1d(16), nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm(self.one(x)).relu()
        if self.how == "views":
            return self.head(made + self.norm(self.one(-x)).relu())  # type: ignore[no-any-return]
        norm = self.norm if self.how == "both" else self.other
        return self.head(norm(self.two(made)).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["both", "each", "views"])
def test_one_batch_normalisation_at_several_depths_is_told(how: str) -> None:
    model = Shared(how)
    every = found(model, Adam(model.parameters(), 1e-3), classes(model), steps=8)
    assert ("running_off" in every) is (how == "both")


@pytest.mark.parametrize(("counts", "is_told"), [("one class", True), ("two classes", False), ("padding", False)])
def test_labels_of_one_class_beside_those_left_out_are_told(counts: str, is_told: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 3 if counts == "two classes" else 2, 1))

    def loss(_: int) -> Tensor:
        x = torch.randn(4, 3, 6, 6)
        labels = (x[:, 0] > 0).long() + (x[:, 1] > 0).long() * (counts == "two classes") * (x[:, 0] > 0)
        labels = labels.where(labels > 0, -100) if counts == "padding" else labels
        return functional.cross_entropy(model(x), labels, ignore_index=-100 if counts == "padding" else 0)

    every = found(model, Adam(model.parameters(), 1e-3), loss, steps=8)
    assert ("labels_alike" in every and "leaves out the others" in every["labels_alike"].message) is is_told


@pytest.mark.parametrize("is_mild", [False, True])
def test_a_decay_that_adam_adds_to_gradients_is_the_root_where_weights_shrink(is_mild: bool) -> None:
    model = mlp()
    optimizer = Adam(model.parameters(), 1e-3, weight_decay=1e-4 if is_mild else 0.3)
    every = trained(model, optimizer, classes(model), steps=300).findings
    roots = [each.rule for each in every if not each.follows and each.severity != "note"]
    assert ("decay_large" in roots[:1]) is not is_mild


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_loss_that_compares_a_model_with_itself_is_told_by_its_one_value(is_frozen: bool) -> None:
    """A reference that is no copy: gradients are rounding, and the steps of Adam are small, though its rate is not."""
    torch.manual_seed(0)
    model = mlp()
    reference = copy.deepcopy(model).requires_grad_(False) if is_frozen else model

    def loss(_: int) -> Tensor:
        x = torch.randn(32, 8)
        one, other = model(x), (1 + 1e-7 * torch.randn(32, 2)) * reference(x)  # as another order of additions rounds
        return -functional.logsigmoid((one[:, 0] - one[:, 1]) - (other[:, 0] - other[:, 1])).mean()

    found_by_rule = found(model, Adam(model.parameters(), 1e-3), loss, steps=130)
    assert ("gradient_zero" in found_by_rule) is not is_frozen
    if not is_frozen:
        told = found_by_rule["gradient_zero"]
        assert told.message.startswith("the loss is 0.6931 in each step")
        assert "a reference that is the model itself" in told.advice


def test_a_loss_that_is_one_number_while_weights_move_is_told_whatever_its_size() -> None:
    """As of a preference whose reference is the model itself, without a gradient; and evaluations that are 0 do no harm."""
    model = mlp()

    def loss(step: int) -> Tensor:
        score = model(torch.randn(32, 8))[:, 0]
        return -functional.logsigmoid(score - score.detach()).mean()

    optimizer = Adam(model.parameters(), 1e-2)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for step in range(130):
            optimizer.zero_grad()
            value = loss(step)
            value.backward()
            optimizer.step()
            inspector.push_loss(value, train=True)
            if step % 20 == 19:
                inspector.push_loss(0.0, train=False)
    assert not inspector.errors
    told = {each.rule: each for each in inspector.findings}["loss_stuck"]
    assert told.message.startswith("loss: the loss is 0.6931 in each step, though steps have moved the weights by")
    assert "a reference that is the model itself" in told.advice
