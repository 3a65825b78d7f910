"""Time several ways of doing the same, interleaved, so that the noise of the machine affects all ways alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["medians"]

LEFT_OUT = 3  # first rounds, which are not counted
LEAST = 5  # counted rounds, however long they take


def medians(
    ways: Mapping[str, Callable[[], AbstractContextManager[Any]]],
    run: Callable[[], object],
    *,
    rounds: int,
    warm_up: int,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    seconds: float = math.inf,
    of: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """Return the median seconds of one *run* inside each way; each way is entered again in every round.

    Args:
        ways: a context manager of each way, in which *run* is called.
        rounds: how many are counted, if *seconds* suffice for them; some are counted in any case.
        warm_up: calls before the timed ones, in each round.
        repeats: timed calls of each way, in each round.
        clock: what the time is read from.
        seconds: no round begins after so many.
        of: what is returned of the rounds, if not their median.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    began = time.perf_counter()
    for round_ in range(rounds + LEFT_OUT):
        if round_ >= LEFT_OUT + LEAST and time.perf_counter() - began > seconds:
            break
        for name, way in ways.items():
            with way():
                for _ in range(warm_up):
                    run()
                gc.collect(0)
                gc.disable()
                start = clock()
                for _ in range(repeats):
                    run()
                elapsed = clock() - start
                gc.enable()
            if round_ >= LEFT_OUT:
                times[name].append(elapsed / repeats)
    return {name: of(values) for name, values in times.items()}
