"""In every kind of loop the step and the pass are found; what is no fault is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from tests.inspector.sentinel.faults import Planted, watched
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.errors import NonFiniteError, ObservationWarning
from sonde.inspector.sentinel.gradients import GradientLook, are_finite

BAD = 13
ON, OFF = torch.tensor(1.0), torch.tensor(0.0)


def log_of_negative(x: Tensor, switch: Tensor) -> Tensor:
    return torch.log(x.sigmoid() - 2 * switch)


def loss_of(model: nn.Module, *, bad: bool) -> Tensor:
    loss: Tensor = model(torch.rand(3, 4), ON if bad else OFF).square().mean()
    return loss


def one_by_one(model: nn.Module, inspector: sonde.Inspector) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(15):
        optimizer.zero_grad()
        loss_of(model, bad=step == BAD).backward()
        optimizer.step()


def accumulated(model: nn.Module, inspector: sonde.Inspector) -> None:
    """The bad micro-batch is not among the last ones."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(15):
        for micro_step in range(12):
            loss_of(model, bad=step == BAD and micro_step == 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def said(model: nn.Module, inspector: sonde.Inspector) -> None:
    """The loop has no optimizer of torch."""
    for step in range(15):
        loss_of(model, bad=step == BAD).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(1e-3 * parameter.grad)
                parameter.grad = None
        inspector.step()


def two_optimizers(model: nn.Module, inspector: sonde.Inspector) -> None:
    parts = [torch.optim.SGD(part.parameters(), lr=1e-3) for part in (model.before, model.after)]  # type: ignore[arg-type, union-attr]
    for step in range(15):
        model.zero_grad()
        loss_of(model, bad=step == BAD).backward()
        for optimizer in parts:
            optimizer.step()


LOOPS = [one_by_one, accumulated, said, two_optimizers]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_bad_pass_of_each_loop_is_found(loop: Callable[[nn.Module, sonde.Inspector], None]) -> None:
    model = Planted(log_of_negative)
    with watched(model, None) as inspector, pytest.warns(ObservationWarning, match="log of"):
        loop(model, inspector)
    found = inspector.findings[0]
    assert (found.step, found.site) == (BAD, "fault:output")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_layer_is_named(use_reentrant: bool) -> None:
    class Checkpointed(Planted):
        def forward(self, x: Tensor, switch: Tensor) -> Tensor:
            hidden = checkpoint(self.fault, self.before(x), switch, use_reentrant=use_reentrant)
            made: Tensor = self.after(hidden)
            return made

    model = Checkpointed(log_of_negative)
    with watched(model, None) as inspector, pytest.warns(ObservationWarning):
        one_by_one(model, inspector)
    assert (inspector.findings[0].step, inspector.findings[0].site) == (BAD, "fault:output")


def test_a_closure_is_looked_at_after_each_of_its_backward_passes() -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = loss_of(model, bad=calls == 6)
        loss.backward()
        return loss

    with watched(model, None, bad_steps="stop") as inspector:
        optimizer.step(closure)  # type: ignore[arg-type]
        with pytest.raises(NonFiniteError, match="log of"):
            optimizer.step(closure)  # type: ignore[arg-type]
    assert inspector.findings[0].site == "fault:output"


def test_bad_values_of_an_evaluation_are_no_fault_of_the_training() -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watched(model, None) as inspector:
        for _ in range(12):
            optimizer.zero_grad()
            loss_of(model, bad=False).backward()
            model.eval()
            loss_of(model, bad=True)
            with torch.no_grad():
                loss_of(model, bad=True)
            model.train()
            optimizer.step()
    assert [each for each in inspector.findings if each.rule == "nonfinite"] == []


@pytest.mark.parametrize("is_given", [True, False])
def test_attempts_that_a_scaler_skips_on_its_way_to_a_scale_are_no_fault(is_given: bool) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=3)
    not_given = contextlib.nullcontext() if is_given else pytest.warns(ObservationWarning, match="GradScaler that was not given")
    with not_given, watched(model, None, scaler=scaler if is_given else None) as inspector:
        for _ in range(30):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((3, 4), 1e3)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() < 2.0**126
    assert [each for each in inspector.findings if each.message.startswith("step ")] == []  # rows may hold these attempts


def test_attempts_that_are_skipped_whatever_the_scale_are_a_fault() -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with (
        watched(model, None, scaler=scaler) as inspector,
        pytest.warns(ObservationWarning, match="skipped 16 attempts in a row.*log of"),
    ):
        for step in range(30):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, bad=step > 3)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert inspector.findings[0].site == "fault:output"


def test_a_loop_that_catches_the_error_is_stopped_again_and_may_go_on() -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    stopped = []
    with watched(model, None, bad_steps="stop"):
        for step in range(8):
            optimizer.zero_grad()
            loss_of(model, bad=step in (2, 3, 6)).backward()
            try:
                optimizer.step()
            except NonFiniteError:
                stopped.append(step)
    assert stopped == [2, 3, 6]
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_an_overflow_in_one_gradient_alone_is_seen() -> None:
    parameters = [nn.Parameter(torch.randn(5, 5)) for _ in range(8)]
    look = GradientLook(parameters)
    for parameter in parameters:
        parameter.grad = torch.randn(5, 5)
    assert look.is_finite(0.0)
    for parameter in parameters:
        assert parameter.grad is not None
        kept = parameter.grad[3, 2].item()
        parameter.grad[3, 2] = torch.inf
        assert not look.is_finite(0.0)
        parameter.grad[3, 2] = kept
    assert look.is_finite(0.0)


@pytest.mark.parametrize(
    "gradient",
    [
        torch.full((3,), 3e38),
        torch.full((3,), 6e4, dtype=torch.float16),
        torch.full((3,), 3e38, dtype=torch.bfloat16),
        torch.full((3,), 1e308, dtype=torch.float64),
        torch.full((3,), 1 + 1j),
        torch.eye(3).to_sparse(),
        torch.zeros(0),
    ],
    ids=lambda gradient: f"{gradient.dtype} {gradient.layout}",
)
def test_large_numbers_of_every_kind_are_finite_and_the_others_are_not(gradient: Tensor) -> None:
    assert are_finite([torch.ones(2), gradient])
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    look = GradientLook([parameter])
    assert look.is_finite_at_ends()
    if gradient.numel():
        parameter.grad = gradient * torch.inf
        assert not are_finite([torch.ones(2), parameter.grad])
        assert not look.is_finite_at_ends()
