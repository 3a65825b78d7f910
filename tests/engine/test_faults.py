"""Whatever fails inside sonde while a model runs, the training computes the same, and sonde says that it has stopped."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.engine import structure
from sonde.engine.calls import module_tracker
from sonde.engine.clock import backward_counter, clock, counters, forward_counter, optimizers, step_counter
from sonde.engine.probes import aliases, attachment, event_hooks, gradients, statistic_hooks
from sonde.engine.torch_api import hooks
from sonde.errors import ObservationWarning
from sonde.graph import Recorder, forward, operations
from sonde.stats import Moments

PORTS = ("input", "output", "grad_output", "grad_input", "grad", "param", "update")


class Net(nn.Module):
    """A shared module, a tuple as output, and dropout, which shows every number that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5))
        self.second = nn.Sequential(self.first[0], nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x)
        result: Tensor = self.second(self.first(out))
        return result


Instrument = Callable[[nn.Module], Callable[[], Any]]


def events(model: nn.Module) -> Callable[[], Any]:
    probe = sonde.observe(model, lambda event: None, ports=PORTS, every=lambda tick: tick.step != 1)
    return probe.detach


def rows(model: nn.Module) -> Callable[[], Any]:
    probe = sonde.observe(model, Moments(), ports=PORTS)
    return probe.detach


def calls(model: nn.Module) -> Callable[[], Any]:
    tracker = sonde.ModuleTracker(enter=bool, leave=bool, enter_backward=bool, leave_backward=bool).__enter__()
    return tracker.__exit__


def graphed(model: nn.Module) -> Callable[[], Any]:
    recorder = Recorder()
    recorder.register_hooks(model)
    return recorder.remove_hooks


def watched(model: nn.Module) -> Callable[[], Any]:
    return sonde.watch(model, every=1, to="memory", verbose=False, gradients="both").detach


FAULTS: list[tuple[Instrument, Any, str]] = [
    *[
        (instrument, holder, name)
        for instrument in (events, rows, watched)
        for holder, name in (
            (forward_counter.ForwardCounter, "begin"),
            (forward_counter.ForwardCounter, "end"),
            (backward_counter.BackwardCounter, "begin"),
            (backward_counter.BackwardCounter, "_end"),
            (step_counter.StepCounter, "precede"),
            (step_counter.StepCounter, "follow"),
            (step_counter.StepCounter, "_count"),
            (optimizers, "held_by"),
            (counters.Counters, "new_forward"),
            (counters.Counters, "current"),
            (clock.Clock, "wake"),
            (clock.Clock, "now"),
            (attachment.Attachment, "_before_forward"),
            (attachment.Attachment, "rescan"),
        )
    ],
    *[
        (events, holder, name)
        for holder, name in (
            (structure, "passes_through"),
            (event_hooks, "Event"),
            (event_hooks, "current_node"),
            (event_hooks, "_graph_task"),
            (event_hooks.ModuleEventHook, "receive"),
            (event_hooks.InputEventHook, "_without_nested"),
            (gradients, "sequence_of"),
            (gradients.GradientCollector, "_arrive"),
            (gradients.Pending, "advance"),
            (gradients.Pending, "add"),
            (aliases.Aliases, "used"),
            (hooks, "listen"),
            (hooks, "on_result"),
        )
    ],
    *[
        (rows, holder, name)
        for holder, name in (
            (statistic_hooks.StatisticHook, "_row"),
            (statistic_hooks.StatisticHook, "_leaves"),
            (statistic_hooks.SiteHook, "_admitted"),
            (statistic_hooks, "alias"),
            (hooks, "on_result"),
        )
    ],
    *[
        (calls, holder, name)
        for holder, name in (
            (module_tracker.ModuleTracker, "_state"),
            (module_tracker.ModuleTracker, "_placed"),
            (module_tracker.ModuleNames, "at_top"),
            (module_tracker.ModuleTracker, "_of_node"),
        )
    ],
    *[
        (graphed, holder, name)
        for holder, name in ((forward.ForwardGraph, "begin"), (forward.ForwardGraph, "_close"), (operations.flops, "count_flops"))
    ],
]


class FaultError(Exception):
    """Of sonde's own."""


def train(model: nn.Module, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        loss = model(torch.randn(2, 3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses + [parameter.tolist() for parameter in model.parameters()] + [torch.get_rng_state().tolist()]


def made() -> nn.Module:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize(
    ("instrument", "holder", "name"), FAULTS, ids=[f"{instrument.__name__}, {name}" for instrument, _, name in FAULTS]
)
def test_a_fault_of_sonde_s_own_does_not_reach_the_training(
    instrument: Instrument, holder: Any, name: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, parameters and random state are those of a twin; if the fault came up, a warning says so."""
    expected = train(made(), 1)
    model = made()
    end = instrument(model)
    original, count = getattr(holder, name), 0

    def faulty(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count > after:
            raise FaultError(name)
        return original(*args, **kwargs)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, faulty)
            found = train(model, 1)
        end()
    assert found == expected
    warned = [
        warning for warning in caught if issubclass(warning.category, ObservationWarning) and "FaultError" in str(warning.message)
    ]
    assert bool(warned) is (count > after)


@pytest.fixture(scope="module")
def without_faults() -> Any:
    """What the compiled model of the test below computes unobserved."""
    torch.compiler.reset()
    return train(compiled_model(), 1)


def compiled_model() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="aot_eager")
    return model


@pytest.mark.parametrize(
    ("instrument", "holder", "name"),
    [
        (events, forward_counter.ForwardCounter, "begin"),
        (rows, forward_counter.ForwardCounter, "begin"),
        (events, forward_counter.ForwardCounter, "end"),
        (events, event_hooks.ModuleEventHook, "replay"),
        (events, event_hooks.ModuleEventHook, "replay_gradient"),
        (rows, statistic_hooks.StatisticHook, "replay"),
        (rows, statistic_hooks.StatisticHook, "_merge"),
        (events, event_hooks, "paths_of"),
        (rows, statistic_hooks, "paths_of"),
    ],
)
def test_a_fault_inside_compiled_code(
    instrument: Instrument, holder: Any, name: str, without_faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operators that run Python contain it: no exception comes out of the compiled model."""
    torch.compiler.reset()
    model = compiled_model()
    end = instrument(model)

    def faulty(*args: Any, **kwargs: Any) -> Any:
        raise FaultError(name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ObservationWarning)
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, faulty)
            found = train(model, 1)
        end()
    assert found == without_faults
