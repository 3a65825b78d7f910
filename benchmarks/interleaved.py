"""Time several ways of doing the same, interleaved, so that the noise of the machine affects all ways alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["medians"]

LEFT_OUT = 3  # first rounds, which are not counted


def medians(
    ways: Mapping[str, Callable[[], AbstractContextManager[Any]]],
    run: Callable[[], object],
    *,
    rounds: int,
    warm_up: int,
    repeats: int,
) -> dict[str, float]:
    """Return the median seconds of one *run* inside each way; each way is entered again in every round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + LEFT_OUT):
        for name, way in ways.items():
            with way():
                for _ in range(warm_up):
                    run()
                gc.collect(0)
                gc.disable()
                start = time.perf_counter()
                for _ in range(repeats):
                    run()
                elapsed = time.perf_counter() - start
                gc.enable()
            if round_ >= LEFT_OUT:
                times[name].append(elapsed / repeats)
    return {name: statistics.median(values) for name, values in times.items()}
