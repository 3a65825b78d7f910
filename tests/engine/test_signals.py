"""What a signal handler raises belongs to the program: it passes through every observer, and the observer goes on afterwards."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde.engine import ProbeError
from sonde.stats import Moments

SOURCE = str(Path(sonde.__file__).parent)


class Preempted(Exception):  # noqa: N818  # as in a program that a scheduler stops
    """What the handler raises."""


def handler(number: int, frame: FrameType | None) -> None:
    raise Preempted


@pytest.fixture(autouse=True)
def collector_at_rest() -> Iterator[None]:
    """Keep the collector from deleting an earlier test's observer in these steps: Python loses what is raised in a `__del__`."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@contextmanager
def signal_in_sonde(place: int) -> Iterator[list[str]]:
    """Send a signal as the *place*-th call of a function of sonde begins; the list has the function's name then."""
    met: list[str] = []
    calls = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR  # closed by Python itself, which loses what is raised then
        if event == "call" and not met and not is_generator and frame.f_code.co_filename.startswith(SOURCE):
            calls += 1
            if calls == place:
                met.append(frame.f_code.co_qualname)
                signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sys.setprofile(profile)
    try:
        yield met
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)


def training() -> tuple[nn.Module, Callable[[], None], torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(3, 4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return model, step, optimizer


def watch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return sonde.watch(model, optimizer, every=1, to="memory", verbose=False)


OBSERVERS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Any]] = {
    "track": lambda model, _: sonde.track(model),
    "observe": lambda model, _: sonde.observe(model, lambda event: None, ports=("output", "grad_output")),
    "moments": lambda model, _: sonde.observe(model, Moments(), ports=("output", "grad_output", "grad")),
    "watch": watch,
}


def errors_of(observer: Any) -> list[ProbeError]:
    return list(observer.errors)


@pytest.mark.parametrize("name", OBSERVERS)
def test_what_a_signal_handler_raises_within_sonde_reaches_the_program(name: str) -> None:
    """Wherever in a step it comes; no observer stops, no gradient mode stays changed, and no error is kept."""
    model, step, optimizer = training()
    observer = OBSERVERS[name](model, optimizer)
    step()
    place, inside = 1, 0
    while True:
        with signal_in_sonde(place) as met:
            try:
                step()
            except Preempted:
                inside += 1
            else:
                assert not met, f"what the handler raised in {met[0]} was swallowed"
        assert torch.is_grad_enabled(), f"gradients are off after {met[0]}"
        assert errors_of(observer) == [], f"the observer kept what was raised in {met[0]}"
        if not met:
            break
        place += 7 if place > 30 else 3
    assert inside > 3
    observer.detach()
    assert errors_of(observer) == []


def test_rows_are_right_after_a_signal_has_interrupted_a_step() -> None:
    model, step, optimizer = training()
    inspector = watch(model, optimizer)
    step()
    for place in (5, 23, 60, 120):
        with signal_in_sonde(place) as met, suppress(Preempted):
            step()
        assert met
    step()  # what an interrupted attempt left belongs to the step that ends next
    weight = model.get_parameter("2.weight").detach().clone()
    step()
    grad = model.get_parameter("2.weight").grad
    assert grad is not None
    inspector.detach()
    found = inspector.run.sql("SELECT norm FROM moments WHERE site = '2.weight:grad' ORDER BY step").fetchall()
    assert found[-1][0] == pytest.approx(grad.double().norm().item(), rel=1e-6)  # float32 sums of 8 values: 8 eps
    assert not torch.equal(weight, model.get_parameter("2.weight"))


def test_a_subscriber_that_raises_is_still_kept_from_the_training() -> None:
    """Also one that looks at frames itself: only a function that was given the interrupted frame is a handler."""
    model, step, _ = training()

    def subscriber(event: sonde.engine.Event) -> None:
        frame = sys._getframe()
        raise ValueError(frame.f_code.co_name)

    with pytest.warns(UserWarning, match="nothing more is observed"):
        probe = sonde.observe(model, subscriber)
        step()
    assert {type(each.error) for each in probe.errors} == {ValueError}
