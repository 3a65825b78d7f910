"""The run's numbers equal those of an oracle that keeps every tensor: a row per situation that a training can be in."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import bounds
from tests.inspector.keeping import Keeper, Watcher
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from sonde import lens
from sonde.errors import ObservationWarning

Either = Keeper | Watcher


class Branched(nn.Module):
    """A shared layer, a skip connection and a layer in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.act = nn.ReLU(inplace=True)
        self.shared = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.act(self.first(x))
        for _ in range(2):
            hidden = hidden + self.shared(hidden)
        out: Tensor = self.head(hidden)
        return out


def data(rows: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 6), torch.randn(rows, 3)


def backward(model: nn.Module, either: Either, factor: float = 1.0) -> Tensor:
    x, y = data()
    loss = (model(x) - y).square().mean() * factor
    loss.backward()
    either.backward_ended()
    return loss.detach()


def step(optimizer: torch.optim.Optimizer, either: Either, *names: str) -> None:
    either.before(optimizer)
    optimizer.step()
    either.after(optimizer, *names)
    either.end(*names)
    optimizer.zero_grad()


def plain(either: Either) -> None:
    """Forward, backward, step."""
    model = Branched()
    optimizer = AdamW(model.parameters(), lr=0.1)
    either.watch(model, optimizer=optimizer)
    for _ in range(4):
        backward(model, either)
        step(optimizer, either)


def unhanded(either: Either) -> None:
    """No optimizer is handed over."""
    model = Branched()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    either.watch(model)
    for _ in range(3):
        backward(model, either)
        step(optimizer, either)


def by_epoch(either: Either) -> None:
    """Epochs end between steps."""
    model = Branched()
    optimizer = SGD(model.parameters(), lr=0.1)
    either.watch(model)
    for _ in range(3):
        for _ in range(2):
            backward(model, either)
            step(optimizer, either)
        either.tick_epoch()


def accumulated(either: Either) -> None:
    """Three backward passes to a step; each of them is a row as well."""
    model = Branched()
    optimizer = SGD(model.parameters(), lr=0.1)
    either.watch(model, gradients="both")
    for _ in range(3):
        for _ in range(3):
            backward(model, either, 1 / 3)
        step(optimizer, either)


def scaled(either: Either) -> None:
    """A ``GradScaler``, with an attempt that overflows and is no step."""
    model = Branched()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    either.watch(model, scaler=scaler, gradients="both")
    for attempt in range(6):
        either.scale = scaler.get_scale()
        x, y = data()
        loss = (model(x) - y).square().mean() * (math.inf if attempt == 2 else 1.0)
        scaler.scale(loss).backward()
        either.backward_ended()
        either.before(optimizer)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        scaler.step(optimizer)
        taken = any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        assert taken is (attempt != 2)
        if taken:
            either.after(optimizer)
            either.end()
        else:
            either.skipped()
        scaler.update()
        optimizer.zero_grad()


def scaled_fused(either: Either) -> None:
    """A fused optimizer unscales by itself: when it steps, ``.grad`` is scaled still."""
    model = Branched()
    optimizer = SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    either.watch(model, scaler=scaler)
    for attempt in range(4):
        either.scale = scaler.get_scale()
        x, y = data()
        loss = (model(x) - y).square().mean() * (math.inf if attempt == 1 else 1.0)
        scaler.scale(loss).backward()
        either.backward_ended()
        either.before(optimizer)
        scaler.step(optimizer)
        if attempt == 1:
            either.skipped()
        else:
            either.after(optimizer)
            either.end()
        scaler.update()
        optimizer.zero_grad()


def clipped(either: Either) -> None:
    """The gradient before and after clipping: the last backward pass's, and what the optimizer saw."""
    model = Branched()
    optimizer = SGD(model.parameters(), lr=0.1)
    either.watch(model, gradients="both")
    for _ in range(3):
        backward(model, either, 50.0)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        step(optimizer, either)


def frozen(either: Either) -> None:
    """A layer is frozen, and unfrozen in the middle of the training."""
    model = Branched()
    model.first.requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    either.watch(model)
    for number in range(4):
        if number == 2:
            model.first.requires_grad_(True)
        backward(model, either)
        step(optimizer, either)


def adversarial(either: Either) -> None:
    """Two models with an optimizer each; the second's gradients flow through the first."""
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    of_generator, of_critic = SGD(generator.parameters(), lr=0.1), AdamW(critic.parameters(), lr=0.1)
    either.watch({"G": generator, "D": critic})
    for _ in range(3):
        real, noise = torch.randn(5, 6), torch.randn(5, 4)
        (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
        step(of_critic, either, "D")
        (-critic(generator(noise)).mean()).backward()
        step(of_generator, either, "G")
        of_critic.zero_grad()


def two_optimizers(either: Either) -> None:
    """Two optimizers step halves of one model after one backward pass: that is one step."""
    model = Branched()
    first = SGD([*model.first.parameters(), *model.shared.parameters()], lr=0.1)
    second = AdamW(model.head.parameters(), lr=0.1)
    either.watch(model, optimizer=[first, second])
    for _ in range(3):
        backward(model, either)
        for optimizer in (first, second):
            either.before(optimizer)
            optimizer.step()
            either.after(optimizer)
        either.end()
        model.zero_grad()


def evaluated(either: Either) -> None:
    """Evaluation passes between steps have rows of their own."""
    model = Branched()
    optimizer = SGD(model.parameters(), lr=0.1)
    either.watch(model, evaluation=True)
    for _ in range(3):
        backward(model, either)
        step(optimizer, either)
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                model(data()[0])
        model.train()
        either.evaluated()


def not_evaluated(either: Either) -> None:
    """By default evaluation passes leave no trace."""
    model = Branched()
    optimizer = SGD(model.parameters(), lr=0.1)
    either.watch(model)
    for _ in range(3):
        with torch.no_grad():
            model(data()[0])
        backward(model, either)
        model.eval()
        model(data()[0])
        model.train()
        step(optimizer, either)


def replaced(either: Either) -> None:
    """A module is replaced between steps; what is new is observed from the next forward on."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    either.watch(model)
    for number in range(6):
        if number == 3:
            model[1] = nn.ReLU()
            model[2] = nn.Linear(8, 3)
            either.replaced("1", model[1])
            either.replaced("2", model[2])
        optimizer = SGD(model.parameters(), lr=0.1)
        backward(model, either)
        step(optimizer, either)


def with_closure(either: Either) -> None:
    """LBFGS evaluates the model several times in a step; the gradient is that of the last evaluation."""
    model = Branched()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    either.watch(model)
    for _ in range(3):
        x, y = data()

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            either.backward_ended()
            return loss

        either.before(optimizer)
        optimizer.step(closure)
        either.after(optimizer)
        either.end()


def by_itself(either: Either) -> None:
    """Parameters are updated by hand after two backward passes, gradients are cleared, and then the loop says that it stepped."""
    model = Branched()
    either.watch(model, gradients="both")
    all_of_them = SGD(model.parameters())
    for number in range(4):
        for _ in range(2):
            backward(model, either)
        either.before(all_of_them)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)
        either.after(all_of_them)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = None if number % 2 else parameter.grad.zero_()
        either.step_by_hand()
        either.end()


def in_backward(either: Either) -> None:
    """A hook on each parameter steps an optimizer of its own inside the backward pass."""
    model = Branched()
    held = {parameter: SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def hook(parameter: Tensor) -> None:
        optimizer = held[parameter]  # type: ignore[index]  # it is one
        either.before(optimizer)
        optimizer.step()
        either.after(optimizer)
        optimizer.zero_grad()

    for parameter in held:
        parameter.register_post_accumulate_grad_hook(hook)
    either.watch(model)
    for _ in range(3):
        backward(model, either)
        either.end()


def compiled(either: Either, backend: str = "aot_eager") -> None:
    """The model is compiled as a whole, in one graph."""
    torch._dynamo.reset()
    model = Branched()
    model.act = nn.ReLU()
    optimizer = SGD(model.parameters(), lr=0.1)
    if isinstance(either, Watcher):
        model.compile(backend=backend, fullgraph=True)
    either.watch(model)
    for _ in range(STEPS):
        backward(model, either)
        step(optimizer, either)


SITUATIONS = [
    plain,
    unhanded,
    by_epoch,
    accumulated,
    scaled,
    scaled_fused,
    clipped,
    frozen,
    adversarial,
    two_optimizers,
    evaluated,
    not_evaluated,
    with_closure,
    by_itself,
    in_backward,
]


STEPS = 4
OPERATIONS = STEPS * 2 * (6 + 8 + 8 + 8 + 15)
"""Roundings in ``compiled``: in each step, forward and backward, the sums of four layers (6 or 8 terms) and of the loss (15)."""


def compare(kept: Keeper, watched: Watcher, operations: int = 0) -> None:
    """Every row and number of the one is in the other, and no more.

    Both add float64 numbers, of the same float32 tensors; or of tensors that so many *operations* in float32 have made, which
    compiled code orders and fuses in its own way.
    """
    expected, found = kept.numbers(), watched.numbers()
    values = bounds.relative(operations, torch.float32)
    assert found.keys() == expected.keys()
    for key, numbers in expected.items():
        count, largest = int(numbers["count"]), numbers["absmax"] if math.isfinite(numbers["absmax"]) else 1.0
        rel = values + bounds.relative(count + 3)
        for name, number in numbers.items():
            slack = bounds.of_std(count) * numbers["std"] if name == "std" and math.isfinite(number) else 0.0
            assert found[key][name] == pytest.approx(number, rel=rel, abs=rel * largest + slack, nan_ok=True), (key, name)
    norms = kept.norms()
    elements = sum(int(numbers["count"]) for numbers in expected.values())
    assert watched.norms() == pytest.approx(norms, rel=values + bounds.relative(elements))


def both(situation: Callable[[Any], None]) -> tuple[Keeper, Watcher]:
    """The same training twice, under the oracle and under ``watch``."""
    made = []
    for either in (Keeper(), Watcher()):
        torch.manual_seed(0)
        situation(either)
        either.finish()
        made.append(either)
    return made[0], made[1]  # type: ignore[return-value]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_the_run_has_the_numbers_of_the_oracle(situation: Callable[[Any], None]) -> None:
    """All rows of all families, every number, and the norms over all parameters."""
    kept, watched = both(situation)
    assert kept.kept
    compare(kept, watched)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_has_the_numbers_of_the_oracle(backend: str, fresh_compiler: None) -> None:
    """Compiled whole, in one graph, against the oracle of the eager model."""
    kept, watched = both(partial(compiled, backend=backend))
    compare(kept, watched, OPERATIONS)


def test_a_module_that_is_replaced_is_followed() -> None:
    """What comes in its place has rows from its first forward on, under the same name; once it is said that it came."""
    kept = Keeper()
    torch.manual_seed(0)
    replaced(kept)
    kept.finish()
    watched = Watcher()
    torch.manual_seed(0)
    with pytest.warns(ObservationWarning, match="1, 2, 2.weight, 2.bias came or were replaced"):
        replaced(watched)
    watched.finish()
    compare(kept, watched)


def test_a_training_that_is_resumed_has_no_step_twice(tmp_path: Path) -> None:
    """Two processes, the second from an earlier step on and with another list of lenses, write one run."""
    kept = Keeper()
    watched: list[Watcher] = []
    model = Branched()
    optimizer = SGD(model.parameters(), lr=0.1)
    kept.watch(model)
    halves = [
        (0, 5, {}),
        (3, 4, {"exists": "resume", "step": 3, "lenses": (lens.moments(), lens.OutputNorm())}),
        (None, 2, {"exists": "resume"}),
    ]
    for first, steps, settings in halves:
        if first is not None:
            kept.steps[""] = first
        watcher = Watcher()
        watcher.watch(model, to=tmp_path / "run", **settings)
        watched.append(watcher)
        for _ in range(steps):
            backward(model, kept)
            step(optimizer, kept)
        watcher.finish()
    kept.finish()
    compare(kept, watched[-1])
    run = watched[-1].inspector.run
    assert run.scalar("grad_norm")[0].tolist() == list(range(9))
    assert run.series("head:output", "rms", family="output_norm")[0].tolist() == [3, 4, 5, 6]
