"""A batch whose gradients the loop throws away is in no step's rows, as one that a GradScaler skips; what is used stays in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde

BATCHES = range(1, 8)
BAD = 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2))


def batch(number: int) -> Tensor:
    """Return a batch of *number* samples, so that the count of a row tells which batches are in it."""
    return torch.full((number, 2), float("nan") if number == BAD else 1.0)


# Each of these loops trains, and yields the batches that belong to each step


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    for number in (1, 2, 4, 5):
        optimizer.zero_grad()
        model(batch(number)).sum().backward()
        optimizer.step()
        yield [number]


def zero_first_then_continue(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    for number in BATCHES:
        optimizer.zero_grad()
        loss = model(batch(number)).sum()
        loss.backward()
        if not loss.isfinite():
            continue
        optimizer.step()
        yield [number]


def zero_last(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    for number in BATCHES:
        loss = model(batch(number)).sum()
        loss.backward()
        if loss.isfinite():
            optimizer.step()
            yield [number]
        optimizer.zero_grad()


def zero_through_the_model(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    for number in BATCHES:
        loss = model(batch(number)).sum()
        loss.backward()
        if loss.isfinite():
            optimizer.step()
            yield [number]
        model.zero_grad(set_to_none=True)


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> Iterable[list[int]]:
    for number in BATCHES:
        optimizer.zero_grad()
        scaler.scale(model(batch(number)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if number != BAD:
            yield [number]


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    used = []
    for number in (1, 2, 4, 5):
        if number in (1, 4):
            optimizer.zero_grad()
        model(batch(number)).sum().backward()
        used.append(number)
        if number in (2, 5):
            optimizer.step()
            yield used
            used = []


def accumulation_begun_again(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    used = []
    for number in (1, 2, 3, 4, 5, 6):
        loss = model(batch(number)).sum()
        loss.backward()
        used.append(number)
        if not loss.isfinite():
            optimizer.zero_grad()
            used = []
        elif len(used) == 2:
            optimizer.step()
            optimizer.zero_grad()
            yield used
            used = []


def evaluated_between(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    for number in BATCHES:
        optimizer.zero_grad()
        loss = model(batch(number)).sum()
        loss.backward()
        if not loss.isfinite():
            model.eval()(batch(9))
            model.train()
            continue
        optimizer.step()
        yield [number]


def two_forwards_with_zero_between(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    for number in (1, 2, 5):
        first = model(batch(number))
        if number == 2:
            first.sum().backward()
            continue
        optimizer.zero_grad()  # too late to tell the batches apart: what is used stays in, with what is not
        (first.sum() + model(batch(number)).sum()).backward()
        optimizer.step()
        yield [2, number, number] if number == 5 else [number, number]


def zeros_written(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    for number in (1, 2, 4):
        optimizer.zero_grad(set_to_none=False)
        model(batch(number)).sum().backward()
        if number == 2:
            continue
        optimizer.step()
        yield [2, number] if number == 4 else [number]


def closure(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[list[int]]:
    for number in (1, 2, 4):

        def evaluate() -> float:
            optimizer.zero_grad()
            loss = model(batch(number)).sum()  # noqa: B023  # called at once
            loss.backward()
            return float(loss.detach())

        evaluate()
        optimizer.step(evaluate)
        yield [number, number]


LOOPS: list[Any] = [
    plain,
    zero_first_then_continue,
    zero_last,
    zero_through_the_model,
    scaled,
    accumulated,
    accumulation_begun_again,
    evaluated_between,
    two_forwards_with_zero_between,
    zeros_written,
    closure,
]


def counts(run: sonde.Run, family: str = "moments", site: str = "0:output") -> list[tuple[int, float]]:
    rows = run.sql(f"SELECT step, sum(count) FROM {family} WHERE site = '{site}' GROUP BY step ORDER BY step").fetchall()
    return [(step, count) for step, count in rows]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_step_has_the_batches_whose_gradients_it_uses(loop: Any, every: int) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0) if loop is scaled else None
    with sonde.watch(model, optimizer, every=every, scaler=scaler, to="memory", verbose=False, bad_steps=None) as inspector:
        used = list(loop(model, optimizer) if scaler is None else scaled(model, optimizer, scaler))
    expected = [(step, 2.0 * sum(batches)) for step, batches in enumerate(used) if step % every == 0]
    assert counts(inspector.run) == expected
    assert counts(inspector.run, site="0.weight:grad") == [(step, 4.0) for step, _ in expected]


def test_micro_steps_of_a_batch_that_was_thrown_away_have_no_rows() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sonde.watch(model, optimizer, every=1, gradients="micro_step", to="memory", verbose=False, bad_steps=None) as inspector:
        used = list(accumulation_begun_again(model, optimizer))
    rows = inspector.run.sql("SELECT step, micro_step FROM moments_micro WHERE site = '0.weight:grad' ORDER BY ALL").fetchall()
    assert rows == [(step, micro_step) for step, batches in enumerate(used) for micro_step in range(len(batches))]


def test_the_batch_that_a_generator_steps_on_stays_in_the_rows_of_its_critic() -> None:
    generator, critic = network(), network()
    of_generator, of_critic = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (generator, critic))
    with sonde.watch({"G": generator, "D": critic}, [of_generator, of_critic], every=1, to="memory", verbose=False) as inspector:
        for _ in range(3):
            of_critic.zero_grad()  # what the generator's step has left in the critic
            (critic(torch.ones(4, 2)).sum() - critic(generator(torch.ones(2, 2)).detach()).sum()).backward()
            of_critic.step()
            of_generator.zero_grad()
            critic(generator(torch.ones(2, 2))).sum().backward()
            of_generator.step()
    assert counts(inspector.run, site="D/0:output") == [(0, 12.0), (1, 16.0), (2, 16.0)]
    assert counts(inspector.run, site="G/0:output") == [(step, 8.0) for step in range(3)]


def test_the_gradients_that_one_optimizer_drops_do_not_drop_the_batch_of_another() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = network(), network()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.second(self.first(x))
            return result

    model = Both()
    of_first, of_second = (torch.optim.SGD(part.parameters(), lr=0.01) for part in (model.first, model.second))
    with sonde.watch(model, [of_first, of_second], every=1, to="memory", verbose=False) as inspector:
        for _ in range(3):
            of_first.zero_grad()
            model(batch(1)).sum().backward()
            of_second.zero_grad()  # the gradients of the first stay, and are used
            model(batch(2)).sum().backward()
            of_first.step()
    assert counts(inspector.run, site="(root):output") == [(step, 6.0) for step in range(3)]
