"""Real trainings: pairs of seeds do not part, and a planted change is found with its layer and its step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.diagnosis.compare.compare import compare
from sonde.run.run import Run
from sonde.site import Site
from sonde.view.run_comparison import RunComparison

pytestmark = pytest.mark.slow

STEPS, EVERY, CHANGED = 240, 4, 120

Plant = Callable[[int, nn.Module, torch.optim.Optimizer], None]


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 24, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.gru(x)[0][:, -1]
        return last


def convolutions() -> list[nn.Module]:
    return [nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]


MODELS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...], str]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3)), (20,), "2"),
    "cnn": (lambda: nn.Sequential(*convolutions(), nn.Flatten(), nn.Linear(128, 3)), (2, 8, 8), "3"),
    "gru": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Last(), nn.Linear(24, 3)), (6, 4), "0"),
}
"""How to make each model, the shape of one of its samples, and the layer that plants change."""


def batches(shape: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples whose class is the largest of three sums."""
    while True:
        x = torch.randn(48, *shape)
        yield x, x.flatten(1)[:, :12].reshape(48, 3, 4).sum(2).argmax(1)


def train(name: str, seed: int, plant: Plant | None = None, optimizer: str = "Adam") -> Run:
    """Train one model; *plant* may change model and optimizer before each step, and before the first as step -1."""
    make, shape, layer = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make()
        own = list(model.get_submodule(layer).parameters())
        rest = [each for each in model.parameters() if not any(each is other for other in own)]
        groups = [{"params": rest}, {"params": own}]
        made = torch.optim.Adam(groups, lr=2e-3) if optimizer == "Adam" else torch.optim.SGD(groups, lr=0.05, momentum=0.9)
        if plant is not None:
            plant(-1, model, made)
        source = batches(shape)
        with sonde.watch(model, made, every=EVERY, to="memory", verbose=False, rules=False, bad_steps=None) as inspector:
            for step in range(STEPS):
                if plant is not None:
                    plant(step, model, made)
                x, y = next(source)
                loss = nn.functional.cross_entropy(model(x), y)
                made.zero_grad()
                loss.backward()
                made.step()
                inspector.push_loss(loss, train=True)
        return inspector.run


@cache
def healthy(name: str, seed: int, optimizer: str = "Adam") -> Run:
    return train(name, seed, optimizer=optimizer)


def layer_of(found: RunComparison) -> str:
    """The layer in which two runs begin to differ."""
    assert found.site is not None, found
    return Site.parse(found.site).owner.path


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_two_seeds_of_one_setting_do_not_part(name: str, optimizer: str) -> None:
    for one, other in itertools.combinations(range(3), 2):
        found = compare(healthy(name, one, optimizer), healthy(name, other, optimizer))
        assert found.ok, found
        assert found.first_difference is None


def slow(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == CHANGED:
        optimizer.param_groups[1]["lr"] *= 0.02


def fast(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == CHANGED:
        optimizer.param_groups[1]["lr"] *= 30


def frozen(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == CHANGED:
        for parameter in optimizer.param_groups[1]["params"]:
            parameter.requires_grad_(False).grad = None


def begun(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == -1:
        for parameter in optimizer.param_groups[1]["params"]:
            parameter.data.mul_(8)


def broken(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == CHANGED:
        optimizer.param_groups[1]["params"][0].data.view(-1)[0] = float("nan")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("plant", [slow, fast, frozen, begun, broken], ids=lambda plant: plant.__name__)
def test_a_planted_change_of_another_seed_is_found_with_layer_and_step(name: str, plant: Plant) -> None:
    found = compare(healthy(name, 0), train(name, 7, plant))
    assert not found.ok
    assert found.step is not None
    assert abs(found.step - (0 if plant is begun else CHANGED)) <= EVERY
    assert layer_of(found) == MODELS[name][2]


@pytest.mark.parametrize("name", MODELS)
def test_the_smallest_change_of_the_same_seed_is_found_to_the_last_bit(name: str) -> None:
    def decay(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == CHANGED:
            optimizer.param_groups[1]["weight_decay"] = 1e-4

    found = compare(healthy(name, 0), train(name, 0, decay))
    assert found.first_difference is not None
    assert found.first_difference.since == CHANGED - EVERY
    assert found.first_difference.step == CHANGED
    assert layer_of(found) == MODELS[name][2]
