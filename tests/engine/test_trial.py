"""A trial runs a copy, and leaves model, batch, gradients, optimizer and random state as they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sonde.engine.trial import Trial
from sonde.errors import ArgumentError


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def mean(output: Tensor) -> Tensor:
    return output.mean()


def test_a_step_of_a_trial_leaves_everything_as_it_was() -> None:
    net, x = model(), torch.randn(5, 3, requires_grad=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    net(x).sum().backward()
    optimizer.step()
    parameters = list(net.parameters())
    gradients, state = [each.grad for each in parameters], str(optimizer.state_dict())
    values = {name: held.clone() for name, held in net.state_dict().items()}
    random, own = torch.get_rng_state(), x.grad
    with Trial.of(net, (x,), {}, mean, optimizer) as trial:
        assert all(each.grad is None for each in trial.model.parameters())
        loss = trial.loss()
        assert loss is not None
        torch.autograd.backward(loss)
        trial.step(trial.make_optimizer(optimizer))
        moved = [not torch.equal(one, other) for one, other in zip(trial.model.parameters(), parameters, strict=True)]
        assert any(moved)
    assert all(torch.equal(values[name], held) for name, held in net.state_dict().items())
    assert [each.grad for each in parameters] == gradients
    assert x.grad is own
    assert str(optimizer.state_dict()) == state
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode])
def test_a_trial_can_be_differentiated_wherever_it_is_made(outside: type) -> None:
    net = model()
    with outside(), Trial.of(net, (torch.randn(5, 3),), {}, mean) as trial:
        loss = trial.loss()
        assert loss is not None
        torch.autograd.backward(loss)
        assert all(each.grad is not None for each in trial.model.parameters())
    assert all(each.grad is None for each in net.parameters())


def test_an_optimizer_is_copied_and_a_function_or_a_class_makes_one_of_the_copy() -> None:
    net = model()
    for given in (torch.optim.SGD(net.parameters(), lr=0.5), lambda held: torch.optim.SGD(held, lr=0.5), torch.optim.LBFGS):
        with Trial.of(net, (torch.randn(5, 3),), {}, mean, given) as trial:
            made = trial.make_optimizer(given)
            own = {id(each) for each in trial.model.parameters()}
            assert {id(each) for group in made.param_groups for each in group["params"]} == own
    with Trial.of(net, (), {}) as trial, pytest.raises(ArgumentError, match="returned a int: give an optimizer"):
        trial.make_optimizer(len)


def test_the_copy_of_an_optimizer_has_what_its_class_holds() -> None:
    class Outer(torch.optim.Optimizer):
        def __init__(self, held: Iterable[Tensor]) -> None:
            super().__init__(list(held), {})
            self.share, self.inner = 0.5, torch.optim.SGD(self.param_groups, lr=0.1)

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    net = model()
    before = [each.detach().clone() for each in net.parameters()]
    scheduled = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)  # counts the steps of the original
    for given in (torch.optim.LBFGS(net.parameters(), max_iter=2), Outer(net.parameters()), scheduled):
        with Trial.of(net, (torch.randn(5, 3),), {}, mean, given) as trial:
            loss = trial.loss()
            assert loss is not None
            torch.autograd.backward(loss)
            trial.step(trial.make_optimizer(given))
            assert not all(torch.equal(one, other) for one, other in zip(trial.model.parameters(), before, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), before, strict=True))


def test_the_parts_are_compiled_that_are_compiled_in_the_model() -> None:
    net = model()
    with Trial.of(net, (), {}) as trial:
        assert trial.compile() == (trial.model, "")
    net[0].compile(backend="eager")
    with Trial.of(net, (), {}) as trial:
        called, words = trial.compile()
        assert (called, words) == (trial.model, "ran with 1 compiled part")
    with Trial.of(torch.compile(model(), backend="eager"), (), {}) as trial:  # type: ignore[arg-type]
        called, words = trial.compile()
        assert called is not trial.model
        assert words == "ran compiled"
