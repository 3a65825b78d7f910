"""What the gradient at the outputs says of targets: their range, where they come from, and how much each term weighs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.inspector.test_batch_checks import mlp, trained
from torch import Tensor, nn
from torch.nn import functional

import sonde

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

    found = trained(model, loss, steps=40)
    assert ("target_beyond" in found) is is_told
    assert not is_told or found["target_beyond"].site == "(root):output['boxes']"


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
    assert "labels_alike" in trained(model, lambda _: functional.mse_loss(model(drawn()), torch.full((24, 1), 3.0)))
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


@pytest.mark.parametrize(("kind", "is_told"), [("usual", False), ("class", True), ("sign", True), ("noisy", False)])
def test_a_column_that_tells_the_label_is_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(1 if kind == "sign" else 3)

    def loss(_: int) -> Tensor:
        x = drawn(32)
        labels = x[:, :3].argmax(1)
        if kind == "sign":
            x[:, 5] = (labels > 0) * 2.0
            return functional.binary_cross_entropy_with_logits(model(x)[:, 0], (labels > 0).float())
        if kind != "usual":
            x[:, 5] = labels * 2.0 + 0.1 * torch.randn(32) * (kind == "noisy")
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


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_generator_that_is_asked_for_generated_samples_is_found(label: float) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), mlp_of_two()
    of_generator, of_critic = (torch.optim.Adam(each.parameters(), 1e-3) for each in (generator, critic))
    entropy = functional.binary_cross_entropy_with_logits
    models = {"generator": generator, "critic": critic}
    with sonde.watch(models, [of_generator, of_critic], every=1, to="memory", verbose=False) as inspector:
        for _ in range(20):
            made = generator(torch.randn(16, 4))
            loss = entropy(critic(torch.randn(16, 2) + 1), torch.ones(16, 1)) + entropy(critic(made.detach()), torch.zeros(16, 1))
            of_critic.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            of_critic.step()
            loss = entropy(critic(made), torch.full((16, 1), label))
            of_generator.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            of_generator.step()
    assert not inspector.errors
    assert ("generator_misled" in {each.rule for each in inspector.findings}) is (label == 0)


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
