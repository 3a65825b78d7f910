"""Measure what ``watch`` costs on an accelerator: kernels and host time for each tensor, waits, and the time of a step."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from benchmarks.accelerator.trace import Counts, counts, profiled, writing_threads
from benchmarks.models import gpt, mlp
from torch import Tensor, nn

import sonde

__all__ = ["Cost", "costs"]

WARM_UP, STEPS = 20, 10
ALWAYS, NEVER = 1, range(10**9, 10**9 + 1)


@dataclass(frozen=True)
class Cost:
    """One measured number.

    Attributes:
        what: what it is of.
        value: the number.
        goal: the most that it should be; None without one.
        unit: of the number.
    """

    what: str
    value: float
    goal: float | None
    unit: str

    @property
    def is_met(self) -> bool:
        """Whether the number is no larger than the goal, or has none."""
        return self.goal is None or self.value <= self.goal


class _Training:
    """A model on a device, with its batch."""

    def __init__(self, make: Callable[[], tuple[nn.Module, Tensor]], device: torch.device) -> None:
        torch.manual_seed(0)
        model, x = make()
        self.model, self.x = model.to(device), x.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        loss = self.model(self.x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @contextmanager
    def watched(self, every: object) -> Iterator[sonde.Inspector | None]:
        if every is None:
            yield None
            return
        with sonde.watch(self.model, self.optimizer, every=every, to="memory", verbose=False, rules=False) as inspector:
            yield inspector


def _asked(training: _Training, every: object) -> tuple[Counts, int]:
    """Return what ``STEPS`` steps ask of the device, and how many tensors one logged step observes."""
    with training.watched(every) as inspector:
        for _ in range(WARM_UP):
            training.step()
        events = profiled(lambda: [training.step() for _ in range(STEPS)])
        found = counts(events, writing_threads())
    if inspector is None or every is NEVER:
        return found, 0
    ((tensors,),) = inspector.run.sql(f"SELECT count(*) FROM moments WHERE step = {WARM_UP}").fetchall()
    return found, tensors


def _times(training: _Training, ways: dict[str, object], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median seconds of a step of each way: of the host alone, which waits for nothing, and of host and device."""
    host: dict[str, list[float]] = {name: [] for name in ways}
    whole: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, every in ways.items():
            with training.watched(every):
                for _ in range(WARM_UP):
                    training.step()
                torch.accelerator.synchronize()
                gc.collect(0)
                gc.disable()
                began = time.perf_counter()
                for _ in range(STEPS):
                    start = time.perf_counter()
                    training.step()
                    host[name].append(time.perf_counter() - start)
                torch.accelerator.synchronize()
                whole[name].append((time.perf_counter() - began) / STEPS)
                gc.enable()
    return tuple({name: statistics.median(values) for name, values in times.items()} for times in (host, whole))  # type: ignore[return-value]


MODELS: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] = {"MLP of 16 leaves": mlp, "GPT of 6 blocks": gpt}


def costs(device: torch.device, rounds: int, models: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] = MODELS) -> list[Cost]:
    """Return what ``watch`` costs each of *models* on *device*, with times from so many *rounds*."""
    found = []
    for title, make in models.items():
        training = _Training(make, device)
        bare, _ = _asked(training, None)
        logged, tensors = _asked(training, ALWAYS)
        resting, _ = _asked(training, NEVER)
        host, whole = _times(training, {"bare": None, "every": ALWAYS, "tenth": 10, "never": NEVER}, rounds)
        unit = logged.unit
        found += [
            Cost(f"{title}: tensors that a logged step observes", tensors, None, "tensors"),
            Cost(f"{title}: launches for each tensor", (logged.launches - bare.launches) / STEPS / tensors, 1, unit),
            Cost(f"{title}: launches of a step that is not logged", (resting.launches - bare.launches) / STEPS, None, unit),
            Cost(f"{title}: waits for the device in a logged step", (logged.waits - bare.waits) / STEPS, 0, "waits"),
            Cost(f"{title}: the same where no step is logged", (resting.waits - bare.waits) / STEPS, 0, "waits"),
            Cost(f"{title}: host time for each tensor", (host["every"] - host["bare"]) / tensors * 1e6, 25, "us"),
            Cost(f"{title}: a step, logged each time", whole["every"] / whole["bare"], None, "x bare"),
            Cost(f"{title}: a step, every 10th logged", whole["tenth"] / whole["bare"], 1.05, "x bare"),
            Cost(f"{title}: a step, none logged", whole["never"] / whole["bare"], 1.02, "x bare"),
            Cost(f"{title}: a bare step", whole["bare"] * 1e3, None, "ms"),
        ]
    return found
