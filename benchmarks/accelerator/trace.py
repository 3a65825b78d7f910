"""Count what a step asks of a device, from the events of torch's profiler."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["Counts", "counts", "profiled"]

Event = Mapping[str, Any]
"""One event of a trace, as the profiler writes it."""

LAUNCH = re.compile(r"(cuda|hip|cu)(Graph)?Launch(CooperativeKernel|Kernel(ExC|Ex)?)?$|(ur|ze)\w*(KernelLaunch|AppendLaunchKernel)")
WAIT = re.compile(r"(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize$|(cuda|hip)Memcpy$|(ur|ze)\w*(Synchronize|Wait)$")
RUNTIME = {"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "privateuse1_runtime"}
READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"}
"""Operators for whose result the host waits."""


@dataclass(frozen=True)
class Counts:
    """What threads have asked of a device.

    Attributes:
        launches: kernels that were launched; operators, where the profiler sees no calls of the device's own.
        waits: how often a thread has waited for the device.
        unit: ``"kernels"`` or ``"operators"``.
    """

    launches: int
    waits: int
    unit: str


def counts(events: Sequence[Event], others: Collection[int] = ()) -> Counts:
    """Return what all threads but *others* have asked of the device, from the *events* of one trace."""
    asked = [event for event in events if event.get("ph") == "X" and event.get("tid") not in others]
    runtime = [event["name"] for event in asked if event.get("cat") in RUNTIME]
    if runtime:
        return Counts(sum(map(bool, map(LAUNCH.match, runtime))), sum(map(bool, map(WAIT.match, runtime))), "kernels")
    operators = [event for event in asked if event.get("cat") == "cpu_op"]
    return Counts(len(innermost(operators)), sum(event["name"] in READS for event in operators), "operators")


def innermost(events: Sequence[Event]) -> list[str]:
    """Return the names of the events in which no other one of the same thread lies."""
    by_thread: dict[object, list[Event]] = defaultdict(list)
    for event in events:
        by_thread[event["tid"]].append(event)
    found = []
    for of_one in by_thread.values():
        of_one.sort(key=lambda event: (event["ts"], -event["dur"]))
        for event, following in zip(of_one, [*of_one[1:], None], strict=True):
            if following is None or following["ts"] >= event["ts"] + event["dur"]:
                found.append(event["name"])
    return found


def profiled(run: Callable[[], object]) -> list[Event]:
    """Return the events of *run*, to the end of what the device was given."""
    with torch.profiler.profile(activities=torch.profiler.supported_activities()) as profiler:
        run()
        torch.accelerator.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[Event] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        return events


def writing_threads() -> set[int]:
    """Return the threads of sonde that a training does not wait for."""
    return {thread.native_id for thread in threading.enumerate() if thread.name.startswith("sonde ") and thread.native_id}
