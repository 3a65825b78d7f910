"""Time steps in several ways, interleaved, so that the noise of the machine affects all ways alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import torch

from sonde.checkup.copied_training import Training
from sonde.inspector import Inspector

_WARM_UP = 2  # steps of each way in each round: rows are made, memory is allocated
_LEAST, _MOST = 5, 40  # rounds
_BLOCK = 0.01  # seconds that the timed steps of a way in a round take at least
_LONGEST = 10  # steps in a block

Name = TypeVar("Name")
Way = Callable[[], AbstractContextManager[Inspector | None]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two ways in seconds per step.

    Attributes:
        seconds: median over rounds.
        noise: two standard errors of this median, from the median absolute deviation over rounds.
    """

    seconds: float
    noise: float

    @property
    def is_noise(self) -> bool:
        """Whether the difference is smaller than its noise."""
        return abs(self.seconds) <= self.noise


@dataclass(frozen=True)
class Times(Generic[Name]):
    """The seconds per step of each way, by round.

    Attributes:
        rounds: of each way.
        writing: seconds per logged step that the thread takes which writes rows, of each way that was observed.
    """

    rounds: Mapping[Name, list[float]]
    writing: Mapping[Name, float]

    def median(self, way: Name) -> float:
        """Return the median over rounds."""
        return statistics.median(self.rounds[way])

    def difference(self, way: Name, other: Name) -> Difference:
        """Return how much longer a step takes in *way* than in *other*, from the differences within each round."""
        apart = [one - two for one, two in zip(self.rounds[way], self.rounds[other], strict=True)]
        middle = statistics.median(apart)
        spread = 1.4826 * statistics.median(abs(each - middle) for each in apart)  # the standard deviation of a normal one
        return Difference(middle, 2 * 1.2533 * spread / math.sqrt(len(apart)))  # 1.2533: of a median to that of a mean


def interleaved(training: Training, ways: Mapping[Name, Way], seconds: float) -> Times[Name] | None:
    """Return the times of *ways*; None if *seconds* do not suffice for a few rounds.

    Each round enters each way, takes a few steps, and times the following ones; the order of the ways turns from round to round.
    """
    on_accelerator = any(not parameter.is_cpu for parameter in training.model.parameters())
    wait = torch.accelerator.synchronize if on_accelerator else _do_nothing
    names = list(ways)
    times: dict[Name, list[float]] = {name: [] for name in names}
    writing: dict[Name, list[float]] = {}
    began = time.perf_counter()
    steps = rounds = 1
    number = -1  # the first round warms up, and says how long a round takes
    while number < rounds:
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with ways[name]() as inspector:
                for _ in range(_WARM_UP):
                    training.run(inspector, training.arguments())
                batches = [training.arguments() for _ in range(steps)]
                collects = gc.isenabled()
                gc.collect(0)
                gc.disable()
                try:
                    wait()
                    marks = [time.perf_counter()]
                    for batch in batches:
                        training.run(inspector, batch)
                        marks += [] if on_accelerator else [time.perf_counter()]
                    wait()
                    if on_accelerator:  # which works while the host goes on: only the whole is known
                        elapsed = (time.perf_counter() - marks[0]) / steps
                    else:
                        elapsed = statistics.median(end - start for start, end in pairwise(marks))
                finally:
                    if collects:
                        gc.enable()
                del batches
                if inspector is not None:
                    start = time.perf_counter()
                    inspector.run  # noqa: B018  # waits for the thread that writes
                    writing.setdefault(name, []).append((time.perf_counter() - start) / (steps + _WARM_UP))
            if number >= 0:
                times[name].append(elapsed)
        if number < 0:
            steps = max(1, min(_LONGEST, math.ceil(_BLOCK / max(elapsed, 1e-6))))
            taken = (time.perf_counter() - began) * (steps + _WARM_UP) / (1 + _WARM_UP)
            rounds = min(_MOST, int(seconds / taken))
            if rounds < _LEAST:
                return None
        number += 1
    return Times(times, {name: statistics.median(found) for name, found in writing.items()})


def _do_nothing() -> None:
    pass
