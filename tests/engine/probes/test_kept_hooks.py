"""A probe that takes the hooks which a former probe on the same model has left behaves as the first probe on a new model does."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.engine.probes.dead_hooks import Root
from sonde.site import Port
from sonde.stats import Moments, Norm, Statistic

ALL: tuple[Port, ...] = ("input", "output", "grad_input", "grad_output", "grad", "param", "update")


class Net(nn.Module):
    """A layer that is called twice, one that returns a structure, an in-place one, and a parameter of the root."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.layer = nn.Linear(3, 3)
        self.relu = nn.ReLU(inplace=True)
        self.memory = nn.LSTM(3, 3, batch_first=True)
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor, *, again: bool = True) -> Tensor:
        x = self.relu(self.layer(x * self.scale))
        x = self.memory(self.layer(x) if again else x)[0]
        return self.last(x)


def training() -> tuple[Net, Callable[..., None]]:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(2, 4, 3)

    def step(**kwargs: Any) -> None:
        optimizer.zero_grad()
        net(x, **kwargs).square().mean().backward()
        optimizer.step()

    return net, step


def events_of(net: nn.Module, run: Callable[[], None], ports: tuple[Port, ...] = ALL) -> list[tuple[Any, ...]]:
    seen: list[tuple[Any, ...]] = []

    def note(event: sonde.types.Event) -> None:
        sums = [(path, float(tensor.detach().sum())) for path, tensor in event.leaves]
        seen.append((str(event.site), event.call, event.phase, event.tick, event.passthrough, event.alias, event.type, sums))

    with sonde.observe(net, note, ports=ports, strict=True) as probe:
        run()
        lines = list(probe.coverage())
    return [*seen, *((str(line.site), line.count, line.reason) for line in lines)]


def rows_of(net: nn.Module, run: Callable[[], None], do: Statistic, ports: tuple[Port, ...] = ALL) -> list[Any]:
    with sonde.observe(net, do, ports=ports, strict=True) as probe:
        run()
        found = [probe.rows(), [(str(line.site), line.count, line.reason) for line in probe.coverage()]]
    return [repr(each) for each in found]  # NaN is not equal to itself


def hooks_of(probe: sonde.types.Probe) -> list[Any]:
    return list(probe._attachment.hooks)


@pytest.mark.parametrize("before", ["nothing", "events", "rows", "rows of Norm", "fewer ports", "raised", "other calls"])
def test_a_later_probe_delivers_what_the_first_one_on_an_equal_model_does(before: str) -> None:
    fresh, fresh_step = training()
    net, step = training()

    def raises(event: sonde.types.Event) -> None:
        raise ValueError("no")

    for _ in range(3):
        fresh_step()
        if before == "events":
            events_of(net, step)
        elif before == "rows":
            rows_of(net, step, Moments())
        elif before == "rows of Norm":
            rows_of(net, step, Norm())
        elif before == "fewer ports":
            events_of(net, step, ("output",))
        elif before == "raised":
            with pytest.warns(sonde.errors.ObservationWarning), sonde.observe(net, raises, ports=ALL):
                step()
        elif before == "other calls":
            rows_of(net, lambda: step(again=False), Moments())
            net.load_state_dict(fresh.state_dict())
        else:
            step()
    assert events_of(net, step) == events_of(fresh, fresh_step)
    assert rows_of(net, step, Moments()) == rows_of(fresh, fresh_step, Moments())
    assert rows_of(net, lambda: step(again=False), Moments()) == rows_of(fresh, lambda: fresh_step(again=False), Moments())


def test_the_hooks_of_a_probe_that_is_gone_serve_the_next_one() -> None:
    net, step = training()
    for do in (lambda event: None, Moments()):
        probe = sonde.observe(net, do, ports=ALL)
        step()
        first = {id(hook) for hook in hooks_of(probe)}
        probe.detach()
        del probe
        probe = sonde.observe(net, do, ports=ALL)
        assert {id(hook) for hook in hooks_of(probe)} == first
        other = sonde.observe(net, do, ports=ALL)  # while the first one is there
        assert not first & {id(hook) for hook in hooks_of(other)}
        probe.detach()
        other.detach()


@pytest.mark.parametrize("do", ["events", "rows"])
def test_a_backward_pass_of_a_forward_that_a_former_probe_saw_reaches_no_later_probe(do: str) -> None:
    net, _ = training()
    x = torch.randn(2, 4, 3)
    seen: list[str] = []

    def observed() -> sonde.types.Probe:
        taken = (lambda event: seen.append(str(event.site))) if do == "events" else Moments()
        return sonde.observe(net, taken, ports=("output", "grad_output"))

    probe = observed()
    former = net(x)
    probe.detach()
    del probe
    probe = observed()
    seen.clear()
    former.sum().backward()
    assert seen == []
    assert all(row["calls"] == 0 for row in probe.rows())
    net(x).sum().backward()
    assert not probe.coverage().missing
    probe.detach()


@pytest.mark.parametrize("how", ["track", "events", "rows", "schedule", "tracker"])
def test_what_is_kept_for_a_later_probe_holds_neither_the_model_nor_its_class_nor_the_observer(how: str) -> None:
    class Local(Net):
        pass

    torch.manual_seed(0)
    net = Local()
    gone = [weakref.ref(net), weakref.ref(Local), weakref.ref(net.layer.weight)]

    def observe(net: nn.Module) -> Any:
        if how == "track":
            return sonde.track(net)
        if how == "tracker":
            return sonde.ModuleTracker()
        owner = net

        def take(event: sonde.types.Event) -> None:
            assert owner is not None

        gone.append(weakref.ref(take))
        every = (lambda tick: owner is not None) if how == "schedule" else None
        return sonde.observe(net, Moments() if how == "rows" else take, ports=ALL, every=every)

    for _ in range(2):
        with observe(net):
            net(torch.randn(2, 4, 3)).sum().backward()
    del net, Local, observe
    gc.collect()
    assert [each() for each in gone] == [None] * len(gone)


def test_hooks_come_back_into_the_dictionaries_that_the_modules_have_now() -> None:
    net, step = training()
    with sonde.track(net):
        step()
    held = {name: module._forward_hooks for name, module in net.named_modules()}  # kept by somebody, so that they live
    for module in net.modules():
        module._forward_hooks = OrderedDict()
    with sonde.track(net) as tracker:
        step()
        assert all(not hooks for hooks in held.values())
    assert len(tracker["layer:output"]) == 2
    assert not any(module._forward_hooks for module in net.modules())


def test_a_parameter_that_is_frozen_between_two_probes_is_not_observed() -> None:
    net, step = training()
    ports: tuple[Port, ...] = ("grad", "update")
    rows_of(net, step, Moments(), ports)
    net.last.weight.requires_grad_(False)
    with sonde.observe(net, Moments(), ports=ports) as probe:
        step()
        reasons = {str(line.site): line.reason for line in probe.coverage().missing}
    assert reasons["last.weight:grad"] == "frozen"
    net.last.weight.requires_grad_(True)
    with sonde.observe(net, Moments(), ports=ports) as probe:
        step()
        assert not probe.coverage().missing


def test_a_tracker_takes_the_names_that_a_former_one_has_left_and_follows_the_model() -> None:
    net, _ = training()
    x = torch.randn(2, 4, 3)

    def seen(*models: nn.Module) -> list[str]:
        names: list[str] = []
        with sonde.ModuleTracker(*models, enter=lambda call: names.append(f"{call.name} {call.path} {call.call}"), strict=True):
            net(x)
        return names

    first = seen()
    assert first == seen() == seen(net)
    assert "Net.layer layer 1" in first
    net.last = nn.Sequential(net.last)  # type: ignore[assignment]
    assert seen() == [*first[:-1], "Net.last last 0", "Net.last.0 last.0 0"]
    outer = nn.Sequential(net)
    assert seen(outer)[1:3] == ["Sequential.0.layer 0.layer 0", "Sequential.0.relu 0.relu 0"]
    assert seen()[:2] == ["Net  0", first[1]]


@pytest.mark.parametrize("is_detached", [True, False])
def test_what_the_collector_has_found_is_kept_for_no_later_probe(is_detached: bool) -> None:
    """Python ends the weak references of garbage before a probe among it is told that it is deleted."""
    net, step = training()
    held_elsewhere = [weakref.ref(module._forward_hooks) for module in net.modules()]
    expected = len(events_of(net, step))
    gc.collect()
    probe = sonde.observe(net, lambda event: None, ports=ALL, strict=True)
    cycle: list[Any] = [probe]
    cycle.append(cycle)
    step()
    if is_detached:
        probe.detach()
    del probe, cycle
    gc.collect()
    assert len(events_of(net, step)) == expected
    assert all(reference() is not None for reference in held_elsewhere)


@pytest.mark.usefixtures("fresh_compiler")
def test_where_nothing_is_compiled_no_gradient_is_looked_up_as_a_backward_pass_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which parameters a pass has reached says only whether compiled code ran past its hooks."""
    net, step = training()
    asked: list[nn.Parameter] = []
    was_used = Root.was_used
    monkeypatch.setattr(Root, "was_used", lambda self, parameter: asked.append(parameter) or was_used(self, parameter))
    with sonde.observe(net, Moments()):
        step()
    assert not asked
    net.last.compile(backend="eager")
    with sonde.observe(net, Moments()):
        step()
    assert asked
