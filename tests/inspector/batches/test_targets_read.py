"""What the gradient at the outputs says of targets: their range, where they come from, and how much each term weighs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.inspector.batches.test_batch_checks import mlp, trained
from torch import Tensor, nn
from torch.nn import functional

import sonde

pytestmark = pytest.mark.first_is_quick

Loss = Callable[[int], Tensor]


def drawn(samples: int = 24) -> Tensor:
    return torch.randn(samples, 8)


@pytest.mark.parametrize(("one", "is_told"), [(1.0, False), (255.0, True), (0.9, False)])
def test_targets_of_a_binary_cross_entropy_beyond_one_are_found(one: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(2)

    def loss(_: int) -> Tensor:
        x = drawn()
        return functional.binary_cross_entropy_with_logits(model(x), one * (x[:, :2] > 0))

    found = trained(model, loss)
    assert ("target_beyond" in found) is is_told
    assert not is_told or "are 255, and not 0 or 1" in found["target_beyond"].message
    assert not is_told or found["target_beyond"].advice.startswith("make targets of 0 and 1")


def test_a_scale_of_a_flow_that_its_likelihood_adds_has_no_target() -> None:
    """All samples push it the same way, by one number, as the targets of an absolute error would that are beyond its range."""

    class Coupling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            scale, shift = self.net(x[:, :1]).chunk(2, -1)
            scale = scale.tanh()
            return torch.cat([x[:, 1:] * scale.exp() + shift, x[:, :1]], 1), scale.squeeze(1)

    torch.manual_seed(0)
    model = nn.ModuleList([Coupling(), Coupling()])

    def loss(_: int) -> Tensor:
        x, logarithm = 0.3 * torch.randn(24, 2), torch.zeros(())
        for part in model:
            x, scale = part(x)
            logarithm = logarithm + scale
        return (0.5 * x.square().sum(1) - logarithm).mean()

    assert "target_beyond" not in trained(model, loss, steps=40)


@pytest.mark.parametrize(("scale", "is_told"), [(1.0, False), (16.0, True)])
def test_targets_of_an_absolute_error_on_one_side_are_found_at_any_output(scale: float, is_told: bool) -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.kinds, self.boxes = mlp(16), nn.Linear(16, 3), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            held = self.body(x)
            return {"kinds": self.kinds(held), "boxes": self.boxes(held).sigmoid()}

    torch.manual_seed(0)
    model = Detector()

    def loss(_: int) -> Tensor:
        x = drawn()
        made = model(x)
        boxes = (0.2 + 0.6 * x[:, :4].sigmoid()) * scale
        return functional.cross_entropy(made["kinds"], x[:, :3].argmax(1)) + functional.l1_loss(made["boxes"], boxes)

    found = trained(model, loss, steps=60, lr=1e-2)
    assert ("target_beyond" in found) is is_told
    assert not is_told or found["target_beyond"].site == "(root):output['boxes']"


@pytest.mark.parametrize(("last", "loss_fn"), [(nn.Sigmoid(), functional.smooth_l1_loss), (nn.Tanh(), functional.l1_loss)])
def test_targets_that_hardly_trained_outputs_have_not_come_to_are_not_beyond_these(last: nn.Module, loss_fn: Any) -> None:
    torch.manual_seed(0)
    model = mlp(2, last)

    def loss(_: int) -> Tensor:
        x = drawn()
        return loss_fn(model(x), 0.6 + 0.3 * x[:, :2].sigmoid())  # type: ignore[no-any-return]

    assert "target_beyond" not in trained(model, loss, steps=40, lr=1e-7)


@pytest.mark.parametrize("kind", ["right", "zero", "own", "part"])
def test_targets_that_are_made_of_the_outputs_are_found(kind: str) -> None:
    torch.manual_seed(0)
    model = mlp(2)

    def loss(_: int) -> Tensor:
        x = drawn()
        made = model(x)
        target = {"right": x[:, :2], "zero": torch.zeros(24, 2), "own": 0.5 * made.detach(), "part": made.detach() + x[:, :2]}[kind]
        return functional.mse_loss(made, target)

    assert ("target_own" in trained(model, loss)) is (kind in ("zero", "own"))


def test_one_number_as_target_of_a_squared_error_is_found() -> None:
    torch.manual_seed(0)
    model = mlp(1)
    found = trained(model, lambda _: functional.mse_loss(model(drawn()), torch.full((24, 1), 3.0)))
    assert found["labels_alike"].message == "all targets of the first 11 training passes, 264 samples, are 3"
    assert "labels_alike" not in trained(model, lambda _: functional.mse_loss(model(drawn()), torch.randn(24, 1)))


@pytest.mark.parametrize(("weight", "is_told"), [(1.0, False), (1e6, True)])
def test_a_term_that_outweighs_the_others_is_found(weight: float, is_told: bool) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = mlp(16), nn.Linear(16, 3), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            held = self.body(x)
            return self.one(held), self.two(held)

    torch.manual_seed(0)
    model = Heads()

    def loss(_: int) -> Tensor:
        x = drawn()
        one, two = model(x)
        return functional.cross_entropy(one, x[:, :3].argmax(1)) + weight * functional.mse_loss(two, x[:, :2])

    found = trained(model, loss)
    assert ("terms_uneven" in found) is is_told
    assert not is_told or found["terms_uneven"].message.startswith("the gradient at the output 1 is")


@pytest.mark.parametrize(
    ("kind", "is_told"),
    [
        ("usual", False),
        ("class", True),
        ("sign", True),
        ("one-hot", True),
        ("noisy", True),
        ("very noisy", False),
        ("clusters", False),
        ("parts of one column", False),
    ],
)
def test_a_column_that_tells_the_label_is_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(1 if kind == "sign" else 3)

    def loss(_: int) -> Tensor:
        x = drawn(32)
        labels = x[:, :3].argmax(1)
        if kind == "sign":
            x[:, 5] = (labels > 0) * 2.0
            return functional.binary_cross_entropy_with_logits(model(x)[:, 0], (labels > 0).float())
        if kind == "one-hot":
            x[:, 5:] = functional.one_hot(labels, 3).float()
        elif kind == "clusters":  # each column tells it
            x = (torch.arange(24).reshape(3, 8) * 5 % 7)[labels] + 0.02 * x
        elif kind == "parts of one column":
            x[:, 5] = torch.rand(32)
            labels = (3 * x[:, 5]).long()
        elif kind != "usual":
            x[:, 5] = labels * 2.0 + torch.randn(32) * {"class": 0.0, "noisy": 0.08, "very noisy": 0.4}[kind]
        return functional.cross_entropy(model(x), labels)

    found = trained(model, loss)
    assert ("label_seen" in found) is is_told
    assert not is_told or found["label_seen"].message.startswith("column 5 of the input")


@pytest.mark.parametrize(("weights", "is_told"), [(None, False), ([0.2, 1.0, 1.0], False), ([5.0, 1.0, 1.0], True)])
def test_a_weight_for_the_most_frequent_class_is_found(weights: list[float] | None, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(3)

    def loss(_: int) -> Tensor:
        x = drawn(48)
        labels = torch.where(x[:, 0] > 1, 1, torch.where(x[:, 0] < -1, 2, 0))
        return functional.cross_entropy(model(x), labels, weight=None if weights is None else torch.tensor(weights))

    assert ("weight_of_many" in trained(model, loss)) is is_told


@pytest.mark.parametrize(("label", "size"), [(0.0, 1.0), (1.0, 1.0), (1.0, 100.0)])
def test_a_generator_that_is_asked_for_generated_samples_is_found_and_data_far_larger_than_these(label: float, size: float) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), mlp_of_two()
    of_generator, of_critic = (torch.optim.Adam(each.parameters(), 1e-3) for each in (generator, critic))
    entropy = functional.binary_cross_entropy_with_logits
    models = {"generator": generator, "critic": critic}
    with sonde.watch(models, [of_generator, of_critic], every=1, to="memory", verbose=False) as inspector:
        for _ in range(20):
            made = generator(torch.randn(16, 4))
            loss = entropy(critic(torch.randn(16, 2) * size + 1), torch.ones(16, 1))
            loss = loss + entropy(critic(made.detach()), torch.zeros(16, 1))
            of_critic.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            of_critic.step()
            loss = entropy(critic(made), torch.full((16, 1), label))
            of_generator.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            of_generator.step()
    assert not inspector.errors
    told = {each.rule: each.site for each in inspector.findings}
    assert ("generator_misled" in told) is (label == 0)
    assert told.get("input_large") == ("critic/(root):input" if size == 100 else None)


def mlp_of_two() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))


class Towers(nn.Module):
    """Returns the similarities of two kinds of samples, times *scale*."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.one, self.two, self.scale = mlp(6), mlp(6), scale

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one, two = (functional.normalize(each, dim=-1) for each in (self.one(x), self.two(y)))
        return self.scale * one @ two.T  # each number is that of two samples


@pytest.mark.parametrize(
    ("scale", "is_own", "told"), [(10.0, True, set()), (10.0, False, {"labels_alike"}), (5e3, True, {"begins_large"})]
)
def test_similarities_of_pairs_are_judged(scale: float, is_own: bool, told: set[str]) -> None:
    torch.manual_seed(0)
    model = Towers(scale)

    def loss(_: int) -> Tensor:
        x = drawn(32)
        made = model(x, x + 0.1 * drawn(32))
        labels = torch.arange(32) * is_own
        return functional.cross_entropy(made, labels) + functional.cross_entropy(made.T, labels)

    assert {"labels_alike", "begins_large", "samples_mixed"} & set(trained(model, loss)) == told


def recurrent(columns: int = 1) -> nn.Module:
    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(columns, 8, batch_first=True), nn.Linear(8, columns)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.head(self.cell(x)[0][:, -1])
            return made

    return Forecaster()


@pytest.mark.parametrize(("scale", "rules"), [(1e6, set()), (1.0, {"label_seen"})])
def test_outputs_that_are_far_larger_than_all_targets_say_nothing_of_these(scale: float, rules: set[str]) -> None:
    """As of a recurrent network that explodes: their gradient is a multiple of the outputs, whatever the targets are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 1), nn.Tanh(), nn.Linear(1, 1))
    model[2].weight.data.fill_(scale)  # type: ignore[union-attr, operator]
    x = drawn(32)  # of other samples the loss may rise by chance

    def loss(_: int) -> Tensor:
        return functional.mse_loss(model(x), x[:, 5:6])

    assert trained(model, loss).keys() & {"label_seen", "target_own"} == rules


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("the target", "column 5 of the input is the target"),
        ("a line of it", "column 5 of the input is the target, but for a factor and an offset"),
        ("two of them", ""),
        ("a line with noise", ""),
        ("a sum", ""),
        ("all", ""),
    ],
)
def test_a_column_that_is_the_target_is_found(kind: str, told: str) -> None:
    torch.manual_seed(0)
    model = mlp({"two of them": 2, "all": 8}.get(kind, 1))

    def loss(_: int) -> Tensor:
        x = drawn(32)
        noise = 0.1 * torch.randn(32, 1)
        target = {
            "the target": x[:, 5:6],
            "a line of it": 3 * x[:, 5:6] - 2,
            "two of them": x[:, 5:7],
            "a line with noise": 3 * x[:, 5:6] - 2 + noise,
            "a sum": x[:, 5:6] + x[:, 6:7],
            "all": x,
        }[kind]
        return functional.mse_loss(model(x), target)

    found = trained(model, loss)
    assert ("label_seen" in found) is bool(told)
    assert not told or found["label_seen"].message == told


@pytest.mark.parametrize(("kind", "is_told"), [("ahead", False), ("last", True), ("first", False)])
@pytest.mark.parametrize("columns", [1, 3])
def test_a_window_that_holds_its_target_is_found(kind: str, is_told: bool, columns: int) -> None:
    """What stands at its end is the target; what stood at its start may be asked for, as of a memory."""
    torch.manual_seed(0)
    model = recurrent(columns)

    def loss(_: int) -> Tensor:
        x = torch.randn(16, 13, columns)
        target = {"ahead": x[:, -1], "last": x[:, -2], "first": x[:, 0]}[kind]
        return 3.0 * functional.mse_loss(model(x[:, :-1]), target)

    found = trained(model, loss)
    assert ("label_seen" in found) is is_told
    assert not is_told or "is the target" in found["label_seen"].message


@pytest.mark.parametrize(("steps", "is_told"), [((-1,), True), ((-1, -3), False), ((-3, -1), False)])
def test_a_window_that_is_made_again_place_by_place_holds_no_label(steps: tuple[int, ...], is_told: bool) -> None:
    """A model which returns its losses is to make several places of what it is given, as one of states does."""

    class Rebuilds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reads, self.makes = nn.GRU(2, 16, batch_first=True), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            held, _ = self.reads(x)
            return torch.stack([functional.mse_loss(self.makes(held[:, each]), x[:, each]) for each in steps]).sum()

    torch.manual_seed(0)
    model = Rebuilds()
    assert ("label_seen" in trained(model, lambda _: model(torch.randn(16, 8, 2)))) is is_told


@pytest.mark.parametrize(("kind", "is_told"), [("own", False), ("rolled", True), ("next", False), ("shuffled", True)])
def test_targets_that_are_other_samples_of_the_batch_are_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(8)

    def loss(_: int) -> Tensor:
        track = torch.randn(17, 8)
        x = track[:16]
        noisy = x + 0.1 * torch.randn(16, 8)
        target = {"own": x, "rolled": x.roll(1, 0), "next": track[1:], "shuffled": x.flip(0)}[kind]
        return functional.mse_loss(model(noisy), target)

    assert ("target_of_another" in trained(model, loss)) is is_told


@pytest.mark.parametrize(("kind", "is_told"), [("two", False), ("two calls", False), ("same", True), ("same calls", True)])
def test_views_that_are_the_same_are_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(6)

    def loss(_: int) -> Tensor:
        x = drawn()
        views = [x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)] if kind.startswith("two") else [x, x]
        made = torch.cat([model(each) for each in views]) if "calls" in kind else model(torch.cat(views))
        units = functional.normalize(made, dim=1)
        likeness = (units @ units.T / 0.5).masked_fill(torch.eye(48).bool(), -1e9)
        return functional.cross_entropy(likeness, torch.arange(48).roll(24))

    assert ("views_same" in trained(model, loss)) is is_told


def test_two_losses_that_are_sent_back_one_by_one_are_no_two_views() -> None:
    """As a generator's and a discriminator's, of the same samples."""
    torch.manual_seed(0)
    model = mlp(1)
    optimizer = torch.optim.Adam(model.parameters())
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(20):
            x = drawn()
            for target in (1.0, 0.0):
                functional.mse_loss(model(x), torch.full((24, 1), target) + torch.randn(24, 1)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    assert "views_same" not in {each.rule for each in inspector.findings}


@pytest.mark.parametrize(("has_log", "is_told"), [(True, False), (False, True)])
def test_a_deviation_that_nothing_holds_is_found(has_log: bool, is_told: bool) -> None:
    class Likelihood(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mean, self.log = mlp(16), nn.Linear(16, 1), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            held = self.body(x)
            return self.mean(held), self.log(held)

    torch.manual_seed(0)
    model = Likelihood()

    def loss(_: int) -> Tensor:
        x = drawn(32)
        mean, log = model(x)
        error = x[:, :1] + 0.3 * torch.randn(32, 1) - mean
        each: Tensor = 0.5 * error**2 * (-2 * log).exp() + log * has_log
        return each.mean()

    found = trained(model, loss, steps=130, lr=1e-2)
    assert ("pushed_one_way" in found) is is_told
    assert not is_told or found["pushed_one_way"].message.startswith("each sample of each pass pushes the output 1 ")


@pytest.mark.parametrize(("weight", "words"), [(1.0, ""), (1e-2, ""), (1e-7, "e+0"), (0.0, "is zero, and that")])
def test_a_pass_whose_term_weighs_nothing_is_found(weight: float, words: str) -> None:
    torch.manual_seed(0)
    model = mlp(1)

    def loss(_: int) -> Tensor:
        inside, border = drawn(), drawn()
        return functional.mse_loss(model(inside), inside[:, :1]) + weight * functional.mse_loss(model(border), border[:, 1:2])

    found = trained(model, loss, steps=60)
    assert ("terms_uneven" in found) is bool(words)
    assert all(each in found["terms_uneven"].message for each in (words, "pass 2 of each step") if words)


@pytest.mark.parametrize(("kind", "is_told"), [("each", False), ("one", True)])
def test_a_column_that_no_gradient_reaches_is_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(2)

    def loss(_: int) -> Tensor:
        x = drawn()
        action = torch.randint(2, (24, 1)) * (kind == "each")
        return functional.smooth_l1_loss(model(x).gather(1, action)[:, 0], x[:, 0])

    found = trained(model, loss, steps=60)
    assert ("terms_uneven" in found) is is_told
    assert not is_told or "column 1 of the output gets no gradient" in found["terms_uneven"].message


@pytest.mark.parametrize(("kind", "is_told"), [("first", True), ("done", False), ("best", False)])
def test_one_column_that_alone_is_read_is_found(kind: str, is_told: bool) -> None:
    """As the value of one action, whatever was done."""
    torch.manual_seed(0)
    model = mlp(3)

    def loss(_: int) -> Tensor:
        x = drawn(32)
        values, action = model(x), torch.randint(3, (32, 1))
        value = {"first": values[:, 0], "done": values.gather(1, action)[:, 0], "best": values.max(1)[0]}[kind]
        return functional.smooth_l1_loss(value, x[:, 0] * action[:, 0])

    found = trained(model, loss, steps=25)
    assert ("terms_uneven" in found) is is_told
    assert not is_told or found["terms_uneven"].message.startswith("all columns of the output but 0 get no gradient")


@pytest.mark.parametrize(
    ("kind", "is_told"),
    [("first", True), ("last", False), ("second half", False), ("lengths", False), ("one", False), ("masked", False)],
)
def test_places_that_no_loss_reads_are_found(kind: str, is_told: bool) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layer, self.head = nn.Embedding(12, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 5)

        def forward(self, tokens: Tensor) -> Tensor:
            made: Tensor = self.head(self.layer(self.embedding(tokens))[0])
            return made

    torch.manual_seed(0)
    model = Tagger()

    def loss(_: int) -> Tensor:
        tokens, place = torch.randint(12, (16, 12)), torch.arange(12)
        is_read = {
            "first": (place < 4).expand(16, 12),
            "last": (place == 11).expand(16, 12),
            "second half": (place > 5).expand(16, 12),
            "lengths": place < torch.randint(3, 13, (16, 1)),
            "one": (place == 0).expand(16, 12),  # a token of the class
            "masked": torch.rand(16, 12) < 0.2,
        }[kind]
        labels = (tokens.cumsum(1) % 5).masked_fill(~is_read, -100)
        return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())

    found = trained(model, loss, steps=25)
    assert ("terms_uneven" in found) is is_told
    assert not is_told or found["terms_uneven"].message.startswith("the loss reads the first 4 of the 12 places of each output")


@pytest.mark.parametrize(("kind", "is_told"), [("short", True), ("whole", False), ("padded", False)])
def test_lengths_that_leave_out_most_of_the_frames_are_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(6)

    def loss(_: int) -> Tensor:
        made = model(drawn(20 * 8).reshape(20, 8, 8)).log_softmax(2)  # time, samples, classes
        lengths = {"short": torch.full((8,), 6), "whole": torch.full((8,), 20), "padded": torch.randint(6, 11, (8,))}[kind]
        return functional.ctc_loss(made, torch.randint(1, 6, (8, 3)), lengths, torch.full((8,), 3), zero_infinity=True)

    found = trained(model, loss, steps=25)
    assert ("terms_uneven" in found) is is_told
    assert not is_told or found["terms_uneven"].message.startswith("the loss reads the first 6 of the 20 places of each output")


@pytest.mark.parametrize(("kind", "is_told"), [("each", False), ("mean", True), ("critic", False)])
def test_errors_that_cancel_are_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(1)

    def loss(_: int) -> Tensor:
        x = drawn()
        error: Tensor = x[:, :1] - model(x)
        return {"each": error.abs().mean(), "mean": error.mean().abs(), "critic": error.mean()}[kind]

    assert ("errors_cancel" in trained(model, loss, lr=1e-2, steps=40)) is is_told


@pytest.mark.parametrize(("kind", "is_told"), [("policy", False), ("rewards", False), ("large", True), ("cut", True)])
@pytest.mark.parametrize("returned", ["logits", "distribution", "of shares"])
def test_an_entropy_that_is_all_there_is_is_found(kind: str, is_told: bool, returned: str) -> None:
    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.policy, self.value = mlp(16), nn.Linear(16, 4), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Any, Tensor]:
            held = self.body(x)
            logits, value = self.policy(held), self.value(held)[:, 0]
            if returned == "logits":
                return logits, value
            made = {"probs": logits.softmax(1)} if returned == "of shares" else {"logits": logits}
            return torch.distributions.Categorical(**made), value

    torch.manual_seed(0)
    model = Actor()

    def loss(_: int) -> Tensor:
        x = drawn(64)
        policy, value = model(x)
        policy = torch.distributions.Categorical(logits=policy) if returned == "logits" else policy
        action = policy.sample()
        reward = (action == x[:, :4].argmax(1)).float() * (50 if kind == "rewards" else 1)
        likely = policy.log_prob(action)
        likely = likely.detach() if kind == "cut" else likely
        bonus = (5.0 if kind == "large" else 0.01) * policy.entropy().mean()
        made: Tensor = -((reward - value).detach() * likely).mean() + 0.5 * functional.mse_loss(value, reward) - bonus
        return made

    assert ("penalty_alone" in trained(model, loss)) is is_told


@pytest.mark.parametrize("kind", ["squares", "probabilities", "product"])
def test_another_loss_of_outputs_that_are_all_alike_is_no_entropy(kind: str) -> None:
    """Of two outputs that are the same for all samples, the gradients of many losses have one direction."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        model[0].bias.fill_(-100)  # type: ignore[union-attr]
        model[2].bias.copy_(torch.tensor([0.3, -0.2]))  # type: ignore[arg-type, union-attr]

    def loss(_: int) -> Tensor:
        made: Tensor = model(torch.randn(16, 6))
        if kind == "squares":
            return made.square().mean()
        shares = made.softmax(1)
        return (shares - 0.5).square().mean() if kind == "probabilities" else (shares * made).sum(1).mean()

    assert "penalty_alone" not in trained(model, loss)


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.Sigmoid()])
@pytest.mark.parametrize("labels", [1, 3])
def test_several_labels_of_a_sample_whose_probabilities_are_those_of_one_softmax_are_found(last: nn.Module, labels: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(mlp(6), last)

    def loss(_: int) -> Tensor:
        x = drawn(32)
        marked = torch.zeros(32, 6).scatter(1, x[:, :6].topk(labels).indices, 1.0)
        return functional.binary_cross_entropy(model(x), marked)

    assert ("labels_several" in trained(model, loss)) is (isinstance(last, nn.Softmax) and labels > 1)


@pytest.mark.parametrize("kind", ["a column of zeros", "focal"])
def test_a_class_that_no_label_is_of_is_held_by_its_softmax(kind: str) -> None:
    torch.manual_seed(0)
    model = mlp(3)

    def loss(_: int) -> Tensor:
        x = drawn(32)
        made, labels = model(x), 1 + (x[:, :1] > 0).long()
        if kind == "a column of zeros":
            return functional.cross_entropy(torch.cat([made, torch.zeros(32, 1)], 1), labels[:, 0])
        logs: Tensor = made.log_softmax(1).gather(1, labels)
        return -((1 - logs.exp()) ** 2 * logs).mean()

    assert "pushed_one_way" not in trained(model, loss, steps=130, lr=1e-2)


@pytest.mark.parametrize("picks", [lambda made: made[:, 0], lambda made: made.squeeze(1), lambda made: made.flatten()])
def test_a_value_on_its_way_to_a_far_return_is_held_by_its_target(picks: Callable[[Tensor], Tensor]) -> None:
    """As of a critic whose one column the model picks itself."""

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy, self.value = mlp(4), mlp(1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.policy(x), picks(self.value(x))

    torch.manual_seed(0)
    model = Critic()

    def loss(_: int) -> Tensor:
        x = drawn(32)
        scores, value = model(x)
        return functional.cross_entropy(scores, x[:, :4].argmax(1)) + (value - 40 - x[:, 0]).square().mean()

    assert "pushed_one_way" not in trained(model, loss, steps=130, lr=1e-2)


@pytest.mark.parametrize(("largest", "is_told"), [(1.0, False), (5.0, True)])
def test_ratings_as_targets_of_a_binary_cross_entropy_are_found(largest: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(1)

    def loss(_: int) -> Tensor:
        x = drawn()
        return (
            functional.binary_cross_entropy(model(x).sigmoid(), x[:, :1].sigmoid() * largest)
            if largest == 1
            else (functional.binary_cross_entropy_with_logits(model(x), 1 + (x[:, :1].sigmoid() * (largest - 1)).round()))
        )

    found = trained(model, loss, steps=60)
    assert ("target_beyond" in found) is is_told
    assert "pushed_one_way" not in found


class ReturnsItsLoss(nn.Module):
    """A model that returns losses alone, made by hand or by torch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.body, self.boxes, self.kinds = kind, mlp(16), nn.Linear(16, 4), nn.Linear(16, 3)

    def forward(self, x: Tensor, boxes: Tensor, kinds: Tensor) -> dict[str, Tensor]:
        held = self.body(x)
        made = self.boxes(held).sigmoid()
        by_hand = ((made - boxes) ** 2 * (boxes[:, :1] >= 0)).mean()
        error = by_hand if self.kind == "by hand" else functional.mse_loss(made, boxes)
        return {"boxes": error, "kinds": functional.cross_entropy(self.kinds(held), kinds)}


@pytest.mark.parametrize("kind", ["by hand", "by torch"])
@pytest.mark.parametrize(("scale", "is_told"), [(1.0, False), (16.0, True)])
def test_targets_of_a_model_that_returns_losses_alone_are_read(kind: str, scale: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = ReturnsItsLoss(kind)

    def loss(_: int) -> Tensor:
        x = drawn()
        losses = model(x, scale * x[:, :4].sigmoid(), (x[:, 0] > 9).long())
        total: Tensor = losses["boxes"] + losses["kinds"]
        return total

    found = trained(model, loss)
    assert ("target_beyond" in found) is is_told
    assert found["labels_alike"].site == "(root):output['kinds']"  # all of them are 0


@pytest.mark.parametrize("kind", ["log_softmax", "softmax"])
def test_labels_of_a_model_that_returns_a_softmax_are_read(kind: str) -> None:
    torch.manual_seed(0)
    model = mlp(3, nn.LogSoftmax(1) if kind == "log_softmax" else nn.Softmax(1))

    def made(x: Tensor) -> Tensor:
        return model(x) if kind == "log_softmax" else model(x).log()  # type: ignore[no-any-return]

    assert "labels_alike" in trained(model, lambda _: functional.nll_loss(made(drawn()), torch.ones(24).long()))
    assert "labels_alike" not in trained(model, lambda _: functional.nll_loss(made(drawn()), torch.randint(3, (24,))))


class Series(nn.Module):
    """Two convolutions over a series, which see later values or not."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.pads, self.one, self.two = (2, 0) if is_causal else (1, 1), nn.Conv1d(1, 8, 3), nn.Conv1d(8, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        held = self.one(functional.pad(x, self.pads)).tanh()
        made: Tensor = self.two(functional.pad(held, self.pads))
        return made


@pytest.mark.parametrize(
    ("is_causal", "ahead", "told"), [(True, 1, ""), (False, 1, "future_seen"), (True, 0, "target_shifted"), (False, 0, "")]
)
def test_a_series_is_read_as_tokens_are(is_causal: bool, ahead: int, told: str) -> None:
    torch.manual_seed(0)
    model = Series(is_causal)

    def loss(_: int) -> Tensor:
        x = torch.randn(12, 1, 21).cumsum(2) / 3
        return functional.mse_loss(model(x[..., :-1]), x[..., ahead : 20 + ahead])

    found = trained(model, loss)
    assert {each for each in found if each in ("future_seen", "target_shifted")} == ({told} if told else set())


@pytest.mark.parametrize(("sign", "is_told"), [(-1.0, False), (1.0, True)])
def test_a_reward_that_falls_is_found(sign: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(4)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(120):
            x = drawn(64)
            policy = torch.distributions.Categorical(logits=model(x))
            action = policy.sample()  # type: ignore[no-untyped-call]
            reward = (action == x[:, :4].argmax(1)).float()
            value = (sign * (reward - 0.25) * policy.log_prob(action)).mean()  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            inspector.push_loss(value, train=True)
            inspector.push_metric("reward", reward.mean().item())
    assert ("metric_falls" in {each.rule for each in inspector.findings}) is is_told


@pytest.mark.parametrize(("kind", "told"), [("both", ""), ("empty", "labels_alike"), ("far", "")])
def test_labels_that_are_alike_and_targets_that_are_far_off_are_no_missing_term(kind: str, told: str) -> None:
    """Of a loss of two terms labels are known by the way that all samples push."""
    torch.manual_seed(0)
    model = mlp(1)

    def loss(_: int) -> Tensor:
        x = drawn(32)
        made = model(x)
        if kind == "far":
            return functional.smooth_l1_loss(made, 1e4 + x[:, :1])
        mask = (x[:, :1] > 0).float() * (kind == "both")
        dice: Tensor = 1 - (2 * (made.sigmoid() * mask).sum() + 1) / (made.sigmoid().sum() + mask.sum() + 1)
        return functional.binary_cross_entropy_with_logits(made, mask) + dice

    found = trained(model, loss, steps=60, lr=1e-2)
    assert {each for each in found if each in ("labels_alike", "pushed_one_way")} == ({told} if told else set())


@pytest.mark.parametrize(
    ("weights", "is_told"),
    [(None, False), ([0.1, 0.1, 1.0, 1.0, 1.0], False), ([6.0, 6.0, 1.0, 1.0, 1.0], True), ([1.0, 1.0, 1.5, 1.0, 1.0], False)],
)
def test_weights_that_grow_with_how_often_classes_come_are_found(weights: list[float] | None, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(5)
    share = torch.tensor([0.42, 0.40, 0.06, 0.06, 0.06])

    def loss(_: int) -> Tensor:
        labels = torch.multinomial(share, 96, replacement=True)
        x = drawn(96)
        x[torch.arange(96), labels] += 2
        return functional.cross_entropy(model(x), labels, None if weights is None else torch.tensor(weights))

    found = trained(model, loss, steps=20)
    assert ("weight_of_many" in found) is is_told
    assert not is_told or found["weight_of_many"].message.startswith("samples of the frequent classes")


@pytest.mark.parametrize(("bonus", "words"), [(0.01, ""), (-0.01, "lowers"), (3.0, "raises"), (-3.0, "lowers")])
def test_an_entropy_that_drowns_rewards_is_found(bonus: float, words: str) -> None:
    torch.manual_seed(0)
    model = mlp(6)

    def loss(_: int) -> Tensor:
        x = drawn(64)
        policy = torch.distributions.Categorical(logits=model(x))
        action = policy.sample()  # type: ignore[no-untyped-call]
        reward = (action == x[:, :6].argmax(1)).float()
        gain: Tensor = (policy.log_prob(action) * (reward - reward.mean())).mean()  # type: ignore[no-untyped-call]
        return -gain - bonus * policy.entropy().mean()  # type: ignore[no-untyped-call]

    found = trained(model, loss, steps=20)
    assert ("penalty_alone" in found) is bool(words)
    assert not words or f"the loss {words} the entropy" in found["penalty_alone"].message


@pytest.mark.parametrize(("weights", "is_told"), [((1.0, 1.0, 1.0), False), ((1e-4, 1.0, 1e-4), True), ((2.0, 1.0, 1.0), False)])
def test_a_class_that_weighs_all_is_found(weights: tuple[float, ...], is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(3)

    def loss(_: int) -> Tensor:
        x = drawn(48)
        return functional.cross_entropy(model(x), x[:, :3].argmax(1), torch.tensor(weights))

    found = trained(model, loss, steps=20)
    assert ("weight_of_many" in found) is is_told
    assert not is_told or "have 99" in found["weight_of_many"].message or "100 %" in found["weight_of_many"].message


@pytest.mark.parametrize("kind", ["own labels", "shuffled", "pairs", "shuffled pairs"])
def test_a_cross_entropy_that_wins_nothing_over_a_guess_is_found(kind: str) -> None:
    torch.manual_seed(0)
    model = mlp(16 if "pairs" in kind else 3)

    def loss(_: int) -> Tensor:
        x = drawn(64)
        order = torch.randperm(64) if "shuffled" in kind else torch.arange(64)
        if "pairs" in kind:
            one, other = (functional.normalize(model(each), dim=1) for each in (x, x[order] + 0.1 * drawn(64)))
            return functional.cross_entropy(one @ other.T / 0.1, torch.arange(64))
        return functional.cross_entropy(model(x), x[:, :3].argmax(1)[order])

    found = trained(model, loss, steps=200, lr=1e-2)
    assert ("loss_stuck" in found) is ("shuffled" in kind)


@pytest.mark.parametrize(
    ("last", "is_told"), [(nn.ReLU(), True), (nn.ReLU6(), True), (nn.LeakyReLU(), False), (nn.Softplus(), False)]
)
def test_logits_that_are_cut_at_zero_are_found(last: nn.Module, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(3, last)

    def loss(_: int) -> Tensor:
        x = drawn()
        return functional.cross_entropy(model(x), x[:, :3].argmax(1))

    found = trained(model, loss, steps=25)
    assert ("target_beyond" in found) is is_told
    assert not is_told or "cuts the logits of a cross-entropy at 0" in found["target_beyond"].message


class Standardised(nn.Module):
    """Returns outputs of mean 0 and deviation 1."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / x.std(0)


@pytest.mark.parametrize(
    ("last", "mean", "is_told"),
    [
        (nn.BatchNorm1d(4, affine=False), 3.0, True),
        (nn.LayerNorm(4, elementwise_affine=False), 3.0, False),  # of too few numbers
        (Standardised(), 3.0, True),
        (Standardised(), 0.1, False),
        (nn.BatchNorm1d(4), 3.0, False),
    ],
)
def test_targets_that_standardised_outputs_cannot_reach_are_found(last: nn.Module, mean: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(4, last)

    def loss(_: int) -> Tensor:
        x = drawn()
        return functional.mse_loss(model(x), x[:, :4] + mean)

    assert ("target_beyond" in trained(model, loss, steps=8, lr=1e-7)) is is_told


@pytest.mark.parametrize(("kind", "is_told"), [("all", True), ("masked", False), ("noise", False), ("replaced", False)])
def test_labels_of_tokens_that_are_not_masked_are_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(13, 16), layer, nn.Linear(16, 12))

    def loss(_: int) -> Tensor:
        tokens = (torch.randint(12, (16, 1)) + torch.arange(10)) % 12
        chosen = torch.rand(16, 10) < 0.2
        given = torch.where(chosen, torch.randint(12, (16, 10)) if kind == "noise" else 12, tokens)
        given = torch.where(tokens == 5, 12, tokens) if kind == "replaced" else given
        labels = torch.where(chosen, tokens, -100) if kind == "masked" else tokens
        return functional.cross_entropy(model(given).transpose(1, 2), labels)

    found = trained(model, loss, steps=14)
    assert ("target_shifted" in found) is is_told
    assert not is_told or "of the labels are the tokens that stand there" in found["target_shifted"].message


@pytest.mark.parametrize(("weight", "is_told"), [(2.0, True), (0.01, False)])
def test_the_weight_of_an_entropy_is_that_of_the_passes_of_all_moments(weight: float, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(3)

    def loss(_: int) -> Tensor:
        likely, won, entropies = [], [], []
        for _ in range(10):
            x = drawn(32)
            policy = torch.distributions.Categorical(logits=model(x))
            action = policy.sample()
            likely.append(policy.log_prob(action))
            won.append((action == x[:, :3].argmax(1)).float() - 1 / 3)
            entropies.append(policy.entropy())
        made: Tensor = -(torch.stack(likely) * torch.stack(won)).mean() - weight * torch.stack(entropies).mean()
        return made

    found = trained(model, loss, steps=6)
    assert ("penalty_alone" in found) is is_told
    assert not is_told or "the loss raises the entropy of the outputs, at a weight of" in found["penalty_alone"].message


class Pairs(nn.Module):
    """Scores of pairs of indices, and of others beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.center, self.context = nn.Embedding(40, 8), nn.Embedding(40, 8)

    def forward(self, center: Tensor, beside: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        held = self.center(center)
        return (held * self.context(beside)).sum(1), (self.context(others) @ held[:, :, None])[..., 0]


@pytest.mark.parametrize("is_one_sided", [False, True])
def test_scores_of_pairs_and_of_others_are_no_labels_that_are_alike(is_one_sided: bool) -> None:
    torch.manual_seed(0)
    model = Pairs()

    def loss(_: int) -> Tensor:
        center = torch.randint(40, (64,))
        near, far = model(center, (center // 10) * 10 + torch.randint(10, (64,)), torch.randint(40, (64, 5)))
        sent: Tensor = -(functional.logsigmoid(near) + functional.logsigmoid(far if is_one_sided else -far).sum(1)).mean()
        return sent

    found = trained(model, loss, steps=30, lr=1e-2)
    assert ("labels_alike" in found, "input_unused" in found) == (is_one_sided, False)


@pytest.mark.parametrize(("weight", "is_told"), [(1e-3, False), (1e-6, True)])
def test_a_term_of_a_small_weight_may_be_meant(weight: float, is_told: bool) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.value, self.spread = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            held = self.body(x).relu()
            return self.value(held), self.spread(held)

    torch.manual_seed(0)
    model = Heads()

    def loss(_: int) -> Tensor:
        x = drawn(64)
        value, spread = model(x)
        sent: Tensor = (value - 3 * x[:, :1]).square().mean() - weight * spread.mean()
        return sent

    assert ("terms_uneven" in trained(model, loss, steps=12)) is is_told


@pytest.mark.parametrize(("weight", "is_told"), [(200.0, True), (1.0, False)])
def test_a_posterior_that_has_become_the_prior_is_found(weight: float, is_told: bool) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.decoder = nn.Linear(8, 16), nn.Linear(3, 64)
            self.mean, self.logs = nn.Linear(16, 3), nn.Linear(16, 3)
            for each in (*self.mean.parameters(), *self.logs.parameters()):  # as small as the noise of a batch leaves them
                each.data.mul_(0.5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            held = self.body(x).tanh()
            mean, logs = self.mean(held), self.logs(held)
            return self.decoder(mean + torch.randn_like(mean) * (logs / 2).exp()), mean, logs

    torch.manual_seed(0)
    model = Encoder()

    def loss(_: int) -> Tensor:
        x = drawn(64)[:, :3].repeat(1, 22)[:, :64]
        made, mean, logs = model(x[:, :8])
        divergence = 0.5 * (mean.square() + logs.exp() - logs - 1).sum(1).mean()
        sent: Tensor = (made - x).square().sum(1).mean() + weight * divergence
        return sent

    found = trained(model, loss, steps=200, lr=3e-3)
    assert ("penalty_alone" in found) is is_told
    assert not is_told or "outputs 1 and 2 have come to 0" in found["penalty_alone"].message


@pytest.mark.parametrize(("weight", "is_told"), [(1000.0, True), (1.0, False)])
def test_a_cross_entropy_that_stands_beside_a_larger_term_is_told_so(weight: float, is_told: bool) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = mlp(16), nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            held = self.body(x)
            return self.one(held), self.two(held)

    torch.manual_seed(0)
    model = Heads()

    def loss(_: int) -> Tensor:
        x = drawn(32)
        one, two = model(x)
        return functional.cross_entropy(one, x[:, :3].argmax(1)) + weight * functional.mse_loss(two, x[:, 3:4])

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for step in range(150):
            optimizer.zero_grad()
            value = loss(step)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(value, train=True)
    beside = [each for each in inspector.findings if each.rule == "loss_stuck" and "of that at output 1 or less" in each.message]
    assert bool(beside) is is_told
    assert all(each.advice.startswith("weigh the terms of the loss") for each in beside)


class TwoHeads(nn.Module):
    """Returns classes and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.kind, self.size = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.trunk(x).tanh()
        return self.kind(made), self.size(made)[:, 0]


@pytest.mark.parametrize(
    ("by", "weights"),
    [
        ("a weight", "100,000, the other's 1"),
        ("a weight of a mean", "100,000, the other's 1"),
        ("two weights", "10,000, the other's 0.01"),
        ("units", None),
        ("a weight that is right", ""),
    ],
)
def test_the_weights_of_terms_are_told_where_these_make_gradients_uneven(by: str, weights: str | None) -> None:
    torch.manual_seed(0)
    model = TwoHeads()

    def loss(_: int) -> Tensor:
        x = drawn()
        made, size = model(x)
        kinds, target = functional.cross_entropy(made, x[:, :3].argmax(1)), x[:, 3] * (1e5 if by == "units" else 1)
        error = functional.mse_loss(size, target)
        return {
            "a weight": kinds + 1e5 * error,
            "a weight of a mean": (error * 1e5 + kinds) / 2,
            "two weights": kinds / 100 + error / 1e-4,
            "units": kinds + error,
            "a weight that is right": kinds + 20 * error,
        }[by]

    found = trained(model, loss, 8)
    assert ("terms_uneven" in found) is (weights != "")
    if weights != "":
        said = found["terms_uneven"].message.partition("; the larger one's term has the weight ")
        assert said[2] == (weights or "")


@pytest.mark.parametrize(("last", "span", "is_told"), [
    (nn.Sigmoid, 2.0, True), (nn.ReLU, 2.0, True), (nn.Tanh, 2.0, False), (nn.Tanh, 6.0, True), (nn.Identity, 2.0, False),
])  # fmt: skip
def test_data_that_a_generator_cannot_make_are_found(last: type[nn.Module], span: float, is_told: bool) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Sequential(mlp(6), last()), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    both = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
    with sonde.watch({"G": generator, "D": critic}, both, every=1, to="memory", verbose=False) as inspector:
        for _ in range(10):
            for model, optimizer in zip((critic, generator), both, strict=True):
                made = generator(drawn(32))
                real = critic(span * (torch.rand(32, 6) - 0.5)).mean()
                loss = critic(made.detach()).mean() - real if model is critic else -critic(made).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    found = {each.rule: each for each in inspector.findings}
    assert ("target_beyond" in found) is is_told
    assert not is_told or "of what is given" in found["target_beyond"].message


class Flow(nn.Module):
    """Two couplings; what they make, and the logarithm of the volume that they change."""

    def __init__(self, *, raises: bool) -> None:
        super().__init__()
        self.layers, self.raises = nn.ModuleList(nn.Linear(4, 8) for _ in range(2)), raises

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        volume = torch.zeros(len(x))
        for layer in self.layers:
            a, b = x.chunk(2, 1)
            scale, shift = layer(a).chunk(2, 1)
            scale = scale.tanh() if self.raises else (scale + 2).sigmoid()
            x = torch.cat([b * (scale.exp() if self.raises else scale) + shift, a], 1)
            volume = volume + (scale if self.raises else scale.log()).sum(1)
        return x, {"volume": volume}


@pytest.mark.parametrize(("raises", "is_held"), [(True, False), (True, True), (False, False), (False, True)])
def test_a_log_determinant_that_no_term_of_a_loss_holds_is_found(raises: bool, is_held: bool) -> None:
    torch.manual_seed(0)
    model = Flow(raises=raises)

    def loss(_: int) -> Tensor:
        made, more = model(drawn(32))
        return (made.square().sum(1) / 2 - (more["volume"] if is_held else 0)).mean()

    found = trained(model, loss, steps=30)
    assert ("terms_uneven" in found) is not is_held
    assert is_held or found["terms_uneven"].message.startswith("no term of the loss holds the output 1.volume, which")


def test_confidences_that_are_returned_beside_logits_are_no_log_determinants() -> None:
    torch.manual_seed(0)

    class Sure(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(3)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            made = self.layers(x)
            of_chosen = torch.distributions.Normal(made, made.exp()).log_prob(torch.zeros(3)).sum(-1)
            return made * made.exp(), made.softmax(-1).amax(-1), made.logsumexp(-1), of_chosen

    model = Sure()

    def loss(_: int) -> Tensor:
        x = drawn(32)
        return functional.cross_entropy(model(x)[0], x[:, :3].argmax(1))

    assert "terms_uneven" not in trained(model, loss, steps=30)


@pytest.mark.parametrize(("scale", "reduction"), [(1.0, "sum"), (1.0, "mean"), (255.0, "sum")])
def test_targets_of_a_binary_cross_entropy_that_is_summed_are_those_that_were_given(scale: float, reduction: str) -> None:
    """And not what they would be if its gradient were that of a mean."""
    torch.manual_seed(0)
    model = mlp(4)

    def loss(_: int) -> Tensor:
        x = drawn(32)
        made: Tensor = functional.binary_cross_entropy_with_logits(model(x), (x[:, :4] > 0).float() * scale, reduction=reduction)
        return made / 100

    found = trained(model, loss, steps=20)
    assert ("target_beyond" in found) is (scale > 1)
    assert scale == 1 or "of the targets of a binary cross-entropy are 255, and not 0 or 1" in found["target_beyond"].message


@pytest.mark.parametrize("kind", ["classes", "weighted", "binary", "tokens"])
@pytest.mark.parametrize("is_own", [True, False])
def test_outputs_that_fit_labels_of_other_samples_as_well_are_told_though_the_loss_has_fallen(kind: str, is_own: bool) -> None:
    """It falls to that of how often each label comes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1 if kind == "binary" else 3))

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 6, 8) if kind == "tokens" else torch.randn(256, 8)
        labels = (x[..., 0] > 0.9).long() * (1 + (x[..., 1] > 0).long())
        labels = labels if is_own else labels[torch.randperm(len(labels))]
        if kind == "binary":
            return functional.binary_cross_entropy_with_logits(model(x)[:, 0], (labels > 0).float())
        weights = torch.tensor([0.2, 1.0, 1.0]) if kind == "weighted" else None
        return functional.cross_entropy(model(x).flatten(0, -2), labels.flatten(), weights)

    found = trained(model, loss, steps=250, lr=1e-2)
    assert ("loss_stuck" in found) is not is_own
    if not is_own:
        assert "outputs fit the labels of other samples as well as their own" in found["loss_stuck"].message
        assert "labels of other samples" in found["loss_stuck"].advice


def test_a_loss_that_still_falls_to_that_of_how_often_each_label_comes_does_not_stand() -> None:
    """As of adapters, whose training ends early."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6))

    def loss(_: int) -> Tensor:
        labels = (torch.rand(64) < 0.9).long() * torch.randint(2, (64,))
        return functional.cross_entropy(model(torch.randn(64, 8)), labels)

    assert "loss_stuck" not in trained(model, loss, steps=120)
