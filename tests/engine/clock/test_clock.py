"""When events happen: steps, micro-steps, forwards, epochs and calls, however the training loop is written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.errors import ArgumentError, ObservationWarning
from sonde.site import Port
from sonde.types import Event, Probe


class Apply(nn.Module):
    """A module whose forward is a function of its children, so that each test shows its own network."""

    def __init__(self, forward: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.function = forward
        self._modules.update(children)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


X = torch.ones(2, 3)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))


class Log:
    """A subscriber that notes where and when, and what tensor."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        value = event.value[0] if isinstance(event.value, tuple) else event.value
        event.value = value.detach().clone() if isinstance(value, Tensor) else value
        self.events.append(event)

    def ticks(self, port: Port = "output") -> list[tuple[int, ...]]:
        return [tuple(event.tick) for event in self.events if event.site.port == port]

    def calls(self, port: Port = "output") -> list[tuple[int, float]]:
        """Call index and first element of each event's tensor."""
        return [(event.call, event.value.flatten()[0].item()) for event in self.events if event.site.port == port]


def logged(model: nn.Module, include: Any = None, *ports: Port) -> tuple[Log, Probe]:
    log = Log()
    return log, sonde.observe(model, log, include, ports=ports or ("output",), strict=True)


# Steps and micro-steps


def test_steps_come_from_an_optimizer_that_nobody_handed_over() -> None:
    """Each ``optimizer.step()`` moves the step, each backward pass the micro-step; a step begins the micro-steps anew."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    log, probe = logged(model, [""], "output", "grad_output")
    with probe:
        for _ in range(2):
            for _ in range(3):
                model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    expected = [(0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 2, 2), (0, 1, 0, 3), (0, 1, 1, 4), (0, 1, 2, 5)]
    assert log.ticks("output") == expected
    assert log.ticks("grad_output") == expected


def test_lbfgs_takes_one_step_with_many_forwards() -> None:
    """The forwards and backward passes of a closure belong to the one step that runs it."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        (loss := model(X).square().sum()).backward()
        return loss

    log, probe = logged(model, [""])
    with probe:
        optimizer.step(closure)
        inside = len(log.events)
        model(X)
    assert inside > 1
    assert log.ticks()[:inside] == [(0, 0, index, index) for index in range(inside)]
    assert log.ticks()[inside:] == [(0, 1, 0, inside)]


def test_gradients_that_are_not_accumulated_are_no_micro_step() -> None:
    """``autograd.grad``, and a backward pass into the input alone, write no ``.grad`` of the model."""
    log, probe = logged(model := net(), [""])
    with probe:
        torch.autograd.grad(model(X).sum(), list(model.parameters()))
        x = X.clone().requires_grad_()
        torch.autograd.grad(model(x).sum(), x)
        model(x).sum().backward(inputs=[x])
        model(X).sum().backward(inputs=[model[2].weight])
        model(X)
    assert [tick[2] for tick in log.ticks()] == [0, 0, 0, 0, 1]


def test_a_gradient_penalty_is_one_micro_step() -> None:
    """``autograd.grad`` with a graph, and then the backward pass through it, write ``.grad`` once."""
    x = X.clone().requires_grad_()
    log, probe = logged(model := net(), [""])
    with probe:
        for _ in range(2):
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            gradient.square().sum().backward(inputs=[model[0].weight])
    assert [tick[2] for tick in log.ticks()] == [0, 1]


def test_two_forwards_under_one_loss_are_one_micro_step() -> None:
    """A loss of two forwards (a Siamese network) is one backward pass; each gradient names its forward."""
    log, probe = logged(model := net(), [""], "output", "grad_output")
    with probe:
        for _ in range(2):
            (model(X) - model(2 * X)).sum().backward()
    assert log.ticks("output") == [(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 2), (0, 0, 1, 3)]
    assert sorted(log.ticks("grad_output")) == log.ticks("output")
    assert {event.tick.forward: event.value[0].item() for event in log.events if event.grad} == {0: 1, 1: -1, 2: 1, 3: -1}


def test_a_loss_on_the_last_of_many_outputs_is_a_micro_step() -> None:
    """Whichever of its outputs the loss is on, the pass wrote ``.grad`` and counts."""
    model = Apply(lambda self, x: tuple(h * index for h in [self.a(x)] for index in range(12)), a=nn.Linear(3, 3))
    log, probe = logged(model, ["a"])
    with probe:
        for _ in range(2):
            model(X)[-1].sum().backward()
    assert log.ticks() == [(0, 0, 0, 0), (0, 0, 1, 1)]


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_of_a_scaler_is_no_step(fused: bool) -> None:
    """A ``GradScaler`` that finds infinite gradients skips the step, and so does the clock."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    log, probe = logged(model, [""])
    with probe:
        for factor in (1.0, float("inf"), 1.0, 1.0):
            optimizer.zero_grad()
            before = model[0].weight.detach().clone()
            scaler.scale(model(X).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(before, model[0].weight) == (factor != 1.0), "what this test is about"
        model(X)
    assert [tick[1] for tick in log.ticks()] == [0, 1, 1, 2, 3]


def test_of_two_optimizers_the_first_that_steps_counts() -> None:
    """Two optimizers on one model that both step in each iteration make one step of the clock."""
    model = net()
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (model[0], model[2])]
    log, probe = logged(model, [""])
    with probe:
        for _ in range(3):
            model(X).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert [tick[1] for tick in log.ticks()] == [0, 1, 2]


def test_a_second_phase_of_training_goes_on_counting() -> None:
    """A second optimizer that takes over is followed while the first is still referred to."""
    model = net()
    first, second = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
    log, probe = logged(model, [""])
    with probe:
        for optimizer in (first, first, second, second, second):
            model(X).sum().backward()
            optimizer.step()
    assert [tick[1] for tick in log.ticks()] == [0, 1, 2, 3, 4]


def test_the_two_models_of_a_gan_have_their_own_time() -> None:
    """Each model's steps are those of its own optimizer, and its forwards its own calls."""
    g, d = net(), nn.Linear(1, 1)
    optimizers = {"g": torch.optim.SGD(g.parameters(), 0.1), "d": torch.optim.SGD(d.parameters(), 0.1)}
    (log_g, probe_g), (log_d, probe_d) = logged(g, [""]), logged(d, [""])
    with probe_g, probe_d:
        for _ in range(2):
            for _ in range(2):
                (d(g(X).detach()) - d(X[:, :1])).sum().backward()
                optimizers["d"].step()
            d(g(X)).sum().backward()
            optimizers["g"].step()
    assert [(tick[1], tick[3]) for tick in log_g.ticks()] == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
    assert [tick[1] for tick in log_d.ticks()] == [0, 0, 1, 1, 2, 2, 2, 3, 3, 4]


def test_steps_and_epochs_by_hand() -> None:
    """``step()`` serves a loop without an optimizer, ``tick_epoch`` counts epochs or sets their number."""
    log, probe = logged(model := net(), [""])
    with probe:
        for move in (probe.step, probe.tick_epoch, lambda: probe.tick_epoch(7), lambda: None):
            model(X).sum().backward()
            move()
    assert log.ticks() == [(0, 0, 0, 0), (0, 1, 0, 1), (1, 1, 1, 2), (7, 1, 2, 3)]


# Forwards and calls


def test_a_root_that_calls_itself_is_one_forward() -> None:
    """Recursion of the root stays in the forward that began it, and so do the calls of what is below."""
    model = Apply(lambda self, x, n: self.a(x) if n == 0 else self(self.a(x), n - 1), a=nn.Linear(3, 3))
    log, probe = logged(model)
    with probe:
        for _ in range(2):
            model(X, 2)
    assert [(e.name, e.tick.forward, e.call) for e in log.events] == [
        (name, forward, call) for forward in range(2) for name in ("a", "") for call in range(3)
    ]


def test_an_interrupt_in_a_forward_does_not_stop_the_clock() -> None:
    """After a ``KeyboardInterrupt``, or an error, inside a forward, the next forwards are new ones that count from 0."""

    def forward(self: nn.Module, x: Tensor, error: type[BaseException] | None) -> Any:
        if error is not None:
            raise error
        return self.a(self.a(x))

    model = Apply(forward, a=nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    log, probe = logged(model, ["a"])
    with probe:
        for error in (None, KeyboardInterrupt, None, ValueError, None):
            with contextlib.suppress(KeyboardInterrupt, ValueError):
                model(X, error).sum().backward()
                optimizer.step()
    found = [(*event.tick, event.call) for event in log.events]
    assert found == [(0, step, 0, forward, call) for step, forward in ((0, 0), (1, 2), (2, 4)) for call in range(2)]


def test_modules_called_without_the_root() -> None:
    """Parts that are called by hand are observed; their calls are counted from one backward pass to the next, as in the root."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    log, probe = logged(model, ["0"])
    with probe:
        for _ in range(2):
            model[2](model[0](X)).sum().backward()
            model[2](model[0](X)).sum().backward()
            optimizer.step()
    assert [event.call for event in log.events] == [0, 0, 0, 0]
    assert log.ticks() == [(0, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 0), (0, 1, 1, 0)]


def test_calls_are_counted_and_gradients_name_theirs() -> None:
    """A module called twice in one forward has calls 0 and 1; each gradient says which one it belongs to."""
    model = Apply(lambda self, x: self.a(self.a(x) * 10), a=nn.Linear(3, 3, bias=False))
    nn.init.eye_(model.a.weight)  # type: ignore[arg-type,union-attr]  # a weight
    for _ in range(2):
        log, probe = logged(model, ["a"], "input", "output", "grad_output")
        with probe:
            model(X).sum().backward()
        assert log.calls("input") == log.calls("output") == [(0, 1.0), (1, 10.0)]
        assert log.calls("grad_output") == [(1, 1.0), (0, 10.0)]


def test_input_and_output_of_one_call_have_the_same_index() -> None:
    """In a module that calls itself, and after a call that raised, the input and output of a call join on its index."""

    def countdown(self: nn.Module, x: Tensor) -> Any:
        if x.item() < 0:
            raise ValueError("negative")
        return x if x.item() == 0 else self(x - 1) + 1  # what it was given

    def twice(self: nn.Module, x: Tensor) -> Any:
        with contextlib.suppress(ValueError):
            self.count(-x)
        return self.count(x)

    model = Apply(twice, count=Apply(countdown))
    log, probe = logged(model, ["count"], "input", "output")
    with probe:
        model(torch.tensor(2.0))
    given, returned = dict(log.calls("input")), dict(log.calls("output"))
    assert sorted(returned.values()) == [0.0, 1.0, 2.0]
    assert {call: given[call] for call in returned} == returned


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_calls_keep_their_index(reentrant: bool) -> None:
    """Checkpointing runs a shared module's calls again, last first; each recompute event names the call it repeats."""
    model = Apply(
        lambda self, x: checkpoint(self.a, checkpoint(self.a, x, use_reentrant=reentrant) * 10, use_reentrant=reentrant),
        a=nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
    )
    log, probe = logged(model, ["a.0"])
    with probe:
        model(torch.ones(1, 3, requires_grad=True)).sum().backward()
    forward, again = ([e for e in log.events if e.phase == phase] for phase in ("forward", "recompute"))
    assert ([event.call for event in forward], len(again)) == ([0, 1], 2)
    assert all(torch.equal(event.value, forward[event.call].value) for event in again)


@pytest.mark.parametrize(
    "through", [nn.Identity(), nn.Dropout().eval(), nn.Sequential()], ids=["Identity", "Dropout", "Sequential"]
)
def test_a_module_that_returns_its_input_is_flagged(through: nn.Module) -> None:
    """Where two sites name one tensor the event says so, and both still get the gradient, the later one first."""
    model = nn.Sequential(nn.Linear(3, 3), through)
    log, probe = logged(model, ["0", "1"], "output", "grad_output")
    with probe:
        model(X).sum().backward()
    assert [(e.site.port, e.name, e.passthrough) for e in log.events] == [
        ("output", "0", False), ("output", "1", True), ("grad_output", "1", True), ("grad_output", "0", False),
    ]  # fmt: skip


# Which steps, which threads


@pytest.mark.parametrize("schedule", [2, lambda tick: tick.step % 2 == 0, range(0, 9, 2), [0, 2, 4], count(0, 2)])
def test_a_schedule_chooses_steps(schedule: Any) -> None:
    """Every second step is observed, forward and backward, from the first; between, no hook is on the layer."""
    model, log = net(), Log()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hooked = []
    with sonde.observe(model, log, ["0"], ports=("output", "grad_output"), every=schedule, strict=True):
        for _ in range(5):
            hooked.append(bool(model[0]._forward_hooks))
            model(X).sum().backward()
            optimizer.step()
    assert hooked == [True, False, True, False, True]
    assert [(event.site.port, event.tick.step) for event in log.events] == [
        (port, step) for step in (0, 2, 4) for port in ("output", "grad_output")
    ]


@pytest.mark.parametrize("every", [0, -1, 1.5, "ten", []])
def test_what_chooses_no_steps_is_refused(every: Any) -> None:
    """At once, and nothing is attached."""
    with pytest.raises(ArgumentError, match=r"every="):
        sonde.observe(net(), print, every=every)


def test_a_schedule_that_raises_is_a_failed_observer() -> None:
    """What a schedule raises does not reach the training: one warning, the error kept, the probe detached."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe = sonde.observe(model, print, ["1"], ports="grad_input", every=lambda tick: 1 / (1 - tick.step) > 0)
    model(X)
    with pytest.warns(ObservationWarning, match="ZeroDivisionError"):
        optimizer.step()
    assert not probe.attached
    assert isinstance(probe.errors[0].error, ZeroDivisionError)
    assert "lambda" in probe.errors[0].observer


def test_a_paused_probe_sees_nothing() -> None:
    """Between ``pause`` and ``resume`` nothing is delivered while time goes on."""
    log, probe = logged(model := net(), [""], "output", "grad_output", "grad")
    with probe:
        for index in range(3):
            (probe.pause if index == 1 else probe.resume)()
            model(X).sum().backward()
    assert log.ticks("output") == log.ticks("grad_output") == [(0, 0, 0, 0), (0, 0, 2, 2)]


def test_a_with_block_observes_its_own_thread() -> None:
    """A probe that was entered delivers nothing of other threads, and its coverage says so; before, it sees all."""
    log, probe = logged(model := net(), ["0"])
    delivered = []
    for manager in (contextlib.nullcontext(), probe):
        with manager:
            thread = threading.Thread(target=model, args=(X,))
            thread.start()
            thread.join()
            delivered.append(len(log.events))
    assert delivered == [1, 1]
    assert "another thread" in next(iter(probe.coverage())).reason


def test_nothing_is_delivered_inside_a_transform() -> None:
    """Inside ``torch.func`` transforms nothing is delivered, the result is right, and the coverage says why."""
    model = net()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradients = torch.func.grad(lambda parameters: torch.func.functional_call(model, parameters, (X,)).sum())
    expected = gradients(parameters)
    log, probe = logged(model, ["0"], "output", "grad_output")
    with probe:
        found = gradients(parameters)
        torch.func.vmap(model)(X)
        assert ["torch.func" in line.reason for line in probe.coverage().missing] == [True, True]
    assert log.events == []
    assert all(torch.equal(found[name], expected[name]) for name in expected)
