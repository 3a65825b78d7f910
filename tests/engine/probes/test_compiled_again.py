"""Attaching again to a compiled model: compiled code is used again, and gives what belongs to the instrument that is attached."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor, nn

import sonde
from sonde.stats import Moments

PORTS = ("input", "output", "grad_input", "grad_output", "grad")


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def of_statistic(model: nn.Module) -> Callable[[], Any]:
    return lambda: sonde.observe(model, Moments(), ports=PORTS, strict=True)


def of_one_statistic(model: nn.Module) -> Callable[[], Any]:
    probe = sonde.observe(model, Moments(), ports=PORTS, strict=True)
    probe.detach()

    def again() -> Any:
        probe.reset()
        return probe

    return again


def of_track(model: nn.Module) -> Callable[[], Any]:
    return lambda: sonde.track(model, strict=True)


def found(observer: Any) -> Any:
    """Return what *observer* has got: sums of a statistic, or sums of tensors that were kept."""
    if isinstance(observer, sonde.Tracker):
        sums = {}
        for stash in observer:
            value = stash.value[0] if isinstance(stash.value, tuple) else stash.value
            sums[str(stash.site)] = value.double().sum().item()
        return sums
    return {row["site"]: (row["calls"], row["mean"]) for row in observer.rows()}


@pytest.mark.parametrize("backend", ["eager", *(pytest.param(name, marks=pytest.mark.slow) for name in ("aot_eager", "inductor"))])
@pytest.mark.parametrize("instrument", [of_statistic, of_one_statistic, of_track])
def test_attaching_again_compiles_nothing_and_sees_its_own_steps(
    fresh_compiler: None, instrument: Callable[[nn.Module], Callable[[], Any]], backend: str
) -> None:
    """Five times, each with a batch of its own: what is found is what an eager twin gives with that batch."""
    model = make()
    twin = copy.deepcopy(model)
    called: Any = torch.compile(model, backend=backend)
    attach, attach_twin = instrument(model), instrument(twin)
    expected: list[Any] = []
    for number in range(5):
        x = torch.full((2, 3), 0.1 * number + 0.1, requires_grad=True)
        results = []
        for net, run, make_observer in ((model, called, attach), (twin, twin, attach_twin)):
            net.zero_grad()
            with make_observer() as observer:
                run(x).sum().backward()
            results.append(found(observer))
        expected.append(results[1])
        assert results[0].keys() == results[1].keys()
        for site, value in results[1].items():  # one rounding of float32 for each of at most 4 terms, in another order
            assert results[0][site] == pytest.approx(value, rel=4 * 2**-23, abs=4 * 2**-23), site
    assert expected[0] != expected[1]
    assert graphs() == 1


def test_instruments_that_alternate_have_one_graph_each(fresh_compiler: None) -> None:
    model = make()
    called: Any = torch.compile(model, backend="eager")
    for _ in range(4):
        with sonde.observe(model, Moments(), strict=True):
            called(torch.ones(1, 3))
        with sonde.track(model, strict=True):
            called(torch.ones(1, 3)).sum().backward()
        called(torch.ones(1, 3))
    assert graphs() == 3


def test_one_instrument_more_does_not_confuse_those_that_stay(fresh_compiler: None) -> None:
    """The hooks of the second probe take the keys of the first one, which has left, and not those of the third."""
    model = make()
    called: Any = torch.compile(model, backend="eager")
    probes = [sonde.observe(model, Moments(), strict=True) for _ in range(3)]
    called(torch.ones(1, 3))
    probes[0].detach()
    late = sonde.observe(model, Moments(), strict=True)
    called(torch.ones(1, 3))
    probes[1].detach()
    probes[0].attach()
    called(torch.ones(1, 3))
    counts = [{line.count for line in probe.coverage()} for probe in (*probes, late)]
    assert counts == [{2}, {2}, {3}, {2}]
    for probe in (*probes, late):
        probe.detach()


@pytest.mark.parametrize("do", [Moments(), lambda event: None], ids=["statistic", "events"])
def test_code_that_was_compiled_for_one_probe_serves_two_that_rest_at_different_times(fresh_compiler: None, do: Any) -> None:
    """Compiled code asks one hook of a probe whether the probe is awake; hooks of other probes may stand where its others were."""
    model = make()
    called: Any = torch.compile(model, backend="eager")
    ports = ("output", "grad_output")
    with sonde.observe(model, do, ports=ports, strict=True):
        called(torch.ones(1, 3)).sum().backward()
    halves = [sonde.observe(model, do, include, ports=ports, strict=True) for include in (r"^[01]?$", r"^2$")]
    counts = []
    for resting in (1, 0, 1, None):
        for number, probe in enumerate(halves):
            probe.pause() if number == resting else probe.resume()
        called(torch.ones(1, 3)).sum().backward()
        counts.append([{line.count for line in probe.coverage()} for probe in halves])
    assert counts == [[{1}, {0}], [{1}, {1}], [{2}, {1}], [{3}, {2}]]
    for probe in halves:
        probe.detach()


def test_threads_that_call_one_compiled_module_for_the_first_time_are_both_seen(fresh_compiler: None) -> None:
    """Two threads begin one execution at the same time; calls and gradients of both are counted."""
    model = make()
    called: Any = torch.compile(model, backend="eager")
    start = threading.Barrier(2)
    failures: list[BaseException] = []

    def work(x: Tensor) -> None:
        try:
            start.wait()
            for _ in range(3):
                called(x).sum().backward()
        except BaseException as error:
            failures.append(error)

    probe = sonde.observe(model, Moments(), ports=("output", "grad_output"), strict=True)
    threads = [threading.Thread(target=work, args=(torch.full((2, 3), float(number)),)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {line.count for line in probe.coverage()} == {6}
    probe.detach()


class Branch(nn.Module):
    """A class of which several modules are compiled one by one, and share their graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x).tanh()
        return out


@pytest.mark.parametrize("do", [Moments(), lambda event: None], ids=["statistic", "events"])
def test_equal_modules_share_a_graph_whether_observed_or_not(fresh_compiler: None, do: Any) -> None:
    counts = []
    for is_observed in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = nn.Sequential(*(Branch() for _ in range(5)))
        for branch in model:
            branch.compile(backend="eager")
        probe = sonde.observe(model, do, ports=PORTS, strict=True) if is_observed else None
        model(torch.ones(1, 3, requires_grad=True)).sum().backward()
        counts.append(graphs())
        if probe is not None:
            assert not probe.coverage().missing
            probe.detach()
    assert counts[0] == counts[1]
