"""What optimizers do to parameters: the ports ``param`` and ``update``, and the gradient that a step uses."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tests.stats.subclasses import Uncopied
from torch import Tensor, nn

import sonde
from sonde.engine import Event
from sonde.stats import Moments
from sonde.stats.kernels import native


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def train(model: nn.Module, steps: int, *optimizers: torch.optim.Optimizer, passes: int = 1) -> None:
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for _ in range(passes):
            model(torch.ones(2, 2)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def collected(into: list[Event]) -> Any:
    """A subscriber that keeps copies."""

    def keep(event: Event) -> None:
        value = tuple(t.clone() for t in event.value) if isinstance(event.value, tuple) else event.value.clone()
        into.append(Event(event.name, event.type, event.grad, value, (), {}, event.site, 0, event.phase, event.tick))

    return keep


def test_a_step_is_delivered_as_before_and_after() -> None:
    """With SGD at rate 0.5 the update is -0.5 times the gradient that the step used; the parameter is what it is afterwards."""
    model, events = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with sonde.observe(model, collected(events), "0", ports=("grad", "param", "update"), grad_at_step=True, strict=True) as probe:
        train(model, 1, optimizer)
    found = {str(event.site): event for event in events}
    assert list(found) == [f"0.{p}:{port}" for p, ports in PORTS_OF_TWO for port in ports]
    for name, parameter in model[0].named_parameters():
        gradient, after, update = (found[f"0.{name}:{port}"] for port in ("grad", "param", "update"))
        assert torch.equal(after.value, parameter)
        assert torch.equal(update.value[1], parameter)
        torch.testing.assert_close(update.value[1] - update.value[0], -0.5 * gradient.value)
        assert (gradient.phase, after.phase, update.phase) == ("backward", "step", "step")
        assert (gradient.grad, after.grad, after.type, after.name) == (True, False, nn.Parameter, f"0.{name}")
    assert not probe.coverage().missing


PORTS_OF_TWO = [("weight", ["grad"]), ("bias", ["grad"]), ("weight", ["param", "update"]), ("bias", ["param", "update"])]


def test_the_gradient_of_a_step_is_the_accumulated_and_clipped_one() -> None:
    """Three backward passes and clipping lead to one event per step, of the clipped sum; without the option to three."""
    model = net()
    at_step: list[Event] = []
    at_pass: list[Event] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        sonde.observe(model, collected(at_step), ["1.bias"], ports="grad", grad_at_step=True, strict=True),
        sonde.observe(model, collected(at_pass), ["1.bias"], ports="grad", strict=True),
    ):
        for _ in range(3):
            model(torch.ones(2, 2)).sum().backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
    assert [event.value.item() for event in at_pass] == [2.0, 4.0, 6.0]
    assert [event.value.item() for event in at_step] == [1.0]
    assert (at_step[0].tick.step, at_step[0].tick.micro_step) == (0, 3)


def test_two_optimizers_of_one_model_make_one_step() -> None:
    """Each delivers its own parameters, in the same step, also when only every second step is observed."""
    model, events = net(), []
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    with sonde.observe(model, collected(events), ports="update", every=2, strict=True):
        train(model, 4, *optimizers)
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [(event.name, event.tick.step) for event in events] == [(name, step) for step in (0, 2) for name in names]


def test_a_step_that_the_scaler_skips_is_none() -> None:
    """An infinite gradient keeps GradScaler from stepping: nothing is delivered, and the step is not counted."""
    model, events = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with sonde.observe(model, collected(events), ["1.bias"], ports=("grad", "update"), grad_at_step=True, strict=True):
        for scale in (float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 2)).sum() * scale).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [(event.site.port, event.tick.step) for event in events] == [("grad", 0), ("update", 0)]
    assert events[0].value.item() == 2.0  # unscaled


def test_lbfgs_with_a_closure_is_one_step() -> None:
    """The forwards and backwards inside the closure belong to the step that they are made for."""
    model, events = net(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 2)).square().sum()
        loss.backward()
        return loss

    with sonde.observe(model, collected(events), ["1.bias"], ports=("update", "grad"), grad_at_step=True, strict=True):
        before = model[1].bias.detach().clone()
        optimizer.step(closure)
        optimizer.step(closure)
    assert [(event.site.port, event.tick.step) for event in events] == [("grad", 0), ("update", 0), ("grad", 1), ("update", 1)]
    assert torch.equal(events[1].value[0], before)
    assert torch.equal(events[3].value[1], model[1].bias)
    assert torch.equal(events[2].value, model[1].bias.grad)  # the last that the closure computed


def test_a_statistic_takes_the_difference() -> None:
    """The norm of an update is that of after - before, added over the steps."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with sonde.observe(model, Moments(), ["1.bias"], ports=("param", "update"), strict=True) as probe:
        train(model, 3, optimizer)
    parameter, update = probe.rows()
    assert (update["calls"], update["mean"]) == (3, pytest.approx(-1.0))  # 0.5 times the gradient 2
    assert (parameter["phase"], parameter["calls"]) == ("step", 3)


@pytest.mark.parametrize("kernel", ["best", "reference"])
def test_a_difference_is_not_rounded_to_the_parameters_precision(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step did to a bfloat16 weight is after - before, exactly; in bfloat16 many such differences are not numbers."""
    if kernel == "reference":
        monkeypatch.setattr(native._state, "module", None)
    model = nn.Linear(16, 16, bias=False).to(torch.bfloat16)
    before = model.weight.detach().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    with sonde.observe(model, Moments(), ports=("update",), strict=True) as probe:
        model(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().sum().backward()
        optimizer.step()
    difference = model.weight.detach().double() - before
    assert not torch.equal(difference.to(torch.bfloat16).double(), difference)
    (update,) = probe.rows()
    assert update["absmax"] == difference.abs().max().item()
    assert update["mean"] == pytest.approx(difference.mean().item(), rel=1e-12, abs=1e-12)


def test_what_no_optimizer_holds_is_said() -> None:
    """A parameter that was left out of the optimizer has no update, and coverage names the reason."""
    model = net()
    with sonde.observe(model, lambda event: None, ports="update", strict=True) as probe:
        train(model, 1, torch.optim.SGD(model[0].parameters(), lr=0.1))
    assert [str(line.site) for line in probe.coverage().missing] == ["1.weight:update", "1.bias:update"]
    assert {line.reason for line in probe.coverage().missing} == {"no optimizer that was seen to step holds it"}


def test_steps_change_nothing_and_leave_nothing() -> None:
    """Parameters are bit-equal with and without; afterwards no hook and no copy is left."""
    torch.manual_seed(1)
    bare = net()
    torch.manual_seed(1)
    seen = net()
    train(bare, 3, torch.optim.AdamW(bare.parameters()))
    with sonde.observe(seen, lambda event: None, ports=("param", "update", "grad"), grad_at_step=True, strict=True) as probe:
        train(seen, 3, torch.optim.AdamW(seen.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), seen.parameters(), strict=True))
    assert not probe._attachment.clocks[0].step_counter.observers


def test_a_subscriber_may_say_its_ports() -> None:
    """``observe`` without ``ports`` asks the subscriber, and takes outputs if that says nothing."""

    class Wants:
        ports = ("param",)

        def __call__(self, event: Event) -> None: ...

    model = net()
    with sonde.observe(model, Wants()) as asked, sonde.observe(model, lambda event: None) as plain:
        assert {site.port for site in asked.sites} == {"param"}
        assert {site.port for site in plain.sites} == {"output"}
    assert [str(site) for site in sonde.sites(model, "1", ports=("output", "update"))] == [
        "1:output",
        "1.weight:update",
        "1.bias:update",
    ]


def test_an_observer_of_steps_that_fails_does_not_stop_the_training() -> None:
    """It is detached, as no other site is left, with one warning that names the site; the optimizer goes on."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = sonde.observe(model, lambda event: 1 / 0, ["1.bias"], ports="update")
    before = model[1].bias.item()
    with pytest.warns(sonde.errors.ObservationWarning, match=r"ZeroDivisionError at 1\.bias:update"):
        train(model, 2, optimizer)
    assert model[1].bias.item() == pytest.approx(before - 0.4)
    assert not probe.attached


class Outer(torch.optim.Optimizer):
    """An optimizer that calls another one: a Lookahead without its interpolation, but with a push of its own."""

    def __init__(self, parameters: Iterable[nn.Parameter], inner: torch.optim.Optimizer, push: float = 0.0) -> None:
        super().__init__(parameters, {})
        self.inner = inner
        self.push = push

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.inner.step()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(self.push)


@pytest.mark.parametrize("schedule", [None, 3])
def test_of_nested_optimizers_the_outermost_makes_the_step(schedule: int | None) -> None:
    """Gradients are observed once, and an update is of the whole step; steps count the same where they are not observed."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = Outer(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.5), push=1.0)
    events: list[Event] = []
    with sonde.observe(
        model, collected(events), ports=("grad", "param", "update"), grad_at_step=True, every=schedule, strict=True
    ) as probe:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.tensor([[2.0, 4.0]])).sum().backward()
            optimizer.step()
        assert probe._attachment.clocks[0].step == 6
    observed = range(6) if schedule is None else (0, 3)
    assert [(event.site.port, event.tick.step) for event in events] == [
        (port, step) for step in observed for port in ("grad", "param", "update")
    ]
    for event in events:
        if event.site.port == "update":
            before, after = event.value
            torch.testing.assert_close(after - before, torch.tensor([[1.0 - 1.0, 1.0 - 2.0]]))


class Stubborn(torch.optim.SGD):
    """Raises at every second call."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls % 2:
            raise RuntimeError("not now")
        return super().step(closure)


class Extended(torch.optim.SGD):
    """Calls the step that it extends, which torch wraps as well."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize("every", [1, 4])
def test_a_step_that_extends_another_is_one(every: int) -> None:
    """Observed or not."""
    model = net()
    with sonde.observe(model, Moments(), ports=("grad", "update"), grad_at_step=True, every=every, strict=True) as probe:
        train(model, 8, Extended(model.parameters(), lr=0.1))
        assert probe._attachment.clocks[0].step == 8
        assert {row["calls"] for row in probe.rows()} == {8 // every}


@pytest.mark.parametrize("nested", [False, True])
def test_a_step_that_raised_is_none(nested: bool) -> None:
    """The next attempt counts, with its gradient once, and its update."""
    model = nn.Linear(2, 1, bias=False)
    optimizer: torch.optim.Optimizer = Stubborn(model.parameters(), lr=1.0)
    if nested:
        optimizer = Outer(model.parameters(), optimizer)
    with sonde.observe(model, Moments(), ports=("grad", "param", "update"), grad_at_step=True, strict=True) as probe:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.tensor([[3.0, 4.0]])).sum().backward()
            with contextlib.suppress(RuntimeError):
                optimizer.step()
        assert probe._attachment.clocks[0].step == 3
        rows = {row["port"]: row for row in probe.rows()}
    assert {port: row["calls"] for port, row in rows.items()} == {"grad": 3, "param": 3, "update": 3}
    assert rows["grad"]["norm"] == pytest.approx((3 * 25) ** 0.5, rel=1e-12)


def test_trainings_in_several_threads_keep_their_updates() -> None:
    """The optimizer of one model steps while that of another one is in its step."""
    models = [nn.Linear(3, 1) for _ in range(4)]
    together = threading.Barrier(len(models))

    class Meeting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            together.wait(timeout=60)
            return super().step(closure)

    probes = [sonde.observe(model, Moments(), ports=("update", "param"), strict=True) for model in models]

    def train(model: nn.Module) -> None:
        optimizer = Meeting(model.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    threads = [threading.Thread(target=train, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for probe in probes:
        assert {row["calls"] for row in probe.rows()} == {20}
        probe.detach()


def test_another_models_optimizer_inside_a_closure_takes_no_updates_away() -> None:
    """As where a closure trains a critic."""
    model, critic = nn.Linear(2, 1), nn.Linear(1, 1)
    optimizer, other = torch.optim.LBFGS(model.parameters(), max_iter=2), torch.optim.SGD(critic.parameters(), lr=0.1)

    def closure() -> Tensor:
        critic(torch.ones(1, 1)).sum().backward()
        other.step()
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    with (
        sonde.observe(model, Moments(), ports=("update", "grad"), grad_at_step=True, strict=True) as mine,
        sonde.observe(critic, Moments(), ports="update", strict=True) as others,
    ):
        for _ in range(3):
            optimizer.step(closure)
        assert {row["calls"] for row in mine.rows()} == {3}
        assert {row["calls"] for row in others.rows()} == {others._attachment.clocks[0].step}


def test_a_parameter_that_cannot_be_copied_has_no_update_and_says_so() -> None:
    """It steps, and has its gradient and its values; the others have all."""
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(Uncopied(torch.ones(2, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with sonde.observe(model, Moments(), ports=("param", "update", "grad")) as probe:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        lines = {str(line.site): line for line in probe.coverage()}
    assert not probe.errors
    assert lines["weight:update"].reason == "left out: a Uncopied cannot be copied"
    assert {site: line.count for site, line in lines.items()} == {
        "weight:param": 2, "weight:update": 0, "weight:grad": 2, "bias:param": 2, "bias:update": 2, "bias:grad": 2
    }  # fmt: skip
