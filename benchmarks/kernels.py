"""Measure the cost of a statistic: sonde's kernels against one ``x.sum()``, the naive torch version, and the reference code.

Run alone: any other program distorts the numbers. For each tensor all ways are timed in one process, one after the other in
every round. The table gives medians over rounds, in microseconds and relative to ``x.sum()`` of the same tensor, the call from
Python included. The raw medians are printed as JSON at the end. ``--threads N`` sets torch's threads (default: 1, which varies
least).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sonde.stats import ExponentHistogram, Moments, Statistic, Table, kernel_status

ROUNDS = 41
ROUND_SECONDS = 2e-3  # time of the repeated calls of one way in one round; long beside the error of the clock
SLOW_SECONDS = 0.05  # ways slower than this are timed in SLOW_ROUNDS rounds
SLOW_ROUNDS = 5

TARGETS = {
    ("float32 16 Ki", "Moments"): 3.0,
    ("float32 1 Mi", "Moments"): {"avx512": 1.3, "avx2": 2.5}.get(kernel_status().level),
    ("float32 1 Mi", "ExponentHistogram"): 6.0,
}


def naive(x: Tensor) -> None:
    """Compute six separate reductions, as people write them."""
    x.mean()
    x.std()
    x.norm()
    x.abs().max()
    (x == 0).sum()
    x.isnan().sum()


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    made = {}
    for name, count in (("256", 256), ("16 Ki", 1 << 14), ("1 Mi", 1 << 20), ("16 Mi", 1 << 24)):
        made[f"float32 {name}"] = torch.randn(count)
    for name, count in (("16 Ki", 1 << 14), ("1 Mi", 1 << 20)):
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            made[f"{str(dtype).removeprefix('torch.')} {name}"] = torch.randn(count).to(dtype)
    made["float32 1 Mi, transposed"] = torch.randn(1024, 1024).t()
    made["float32 1 Mi, channels last"] = torch.randn(16, 64, 32, 32).to(memory_format=torch.channels_last)
    made["float32 1 Mi, rows of 768 in 1024"] = torch.randn(1366, 1024)[:, :768]
    made["float32 1 Mi, every second"] = torch.randn(1 << 21)[::2]
    made["float32 1 Mi, 1 % NaN"] = torch.randn(1 << 20).masked_fill_(torch.rand(1 << 20) < 0.01, float("nan"))
    made["float32 1 Mi, half zeros"] = torch.randn(1 << 20).relu_()
    return made


def adding(statistic: Statistic, x: Tensor) -> Callable[[], object]:
    """Return a function that adds *x* to a row, as a hook does."""
    table = Table(statistic)
    row = table.allocate(1, x.device)[0]
    return lambda: table.add(row, x)


def measuring(statistic: Statistic, x: Tensor) -> Callable[[], object]:
    return lambda: statistic.measure(x)


def ways(x: Tensor) -> dict[str, Callable[[], object]]:
    return {
        "x.sum()": x.sum,
        "Moments": adding(Moments(), x),
        "six reductions": lambda: naive(x),
        "Moments, reference": measuring(Moments(), x),
        "ExponentHistogram": adding(ExponentHistogram(), x),
        "ExponentHistogram, reference": measuring(ExponentHistogram(), x),
    }


def timed(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def measure(x: Tensor) -> dict[str, float]:
    """Return the median microseconds of each way; all ways are interleaved."""
    calls = ways(x)
    once = {name: min(timed(call, 1) for _ in range(3)) for name, call in calls.items()}
    repeats = {name: max(1, int(ROUND_SECONDS / seconds)) for name, seconds in once.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(ROUNDS):
        for name, call in calls.items():
            if once[name] < SLOW_SECONDS or round_ < SLOW_ROUNDS:
                times[name].append(timed(call, repeats[name]) * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    status = kernel_status()
    print(
        f"torch {torch.__version__}, {options.threads} thread(s), kernel {status.level or 'reference'}; {status.reason}".rstrip(
            "; "
        )
    )
    names = list(ways(torch.ones(1)))
    print(f"\nmicroseconds, and times x.sum()\n{'':<34}" + "".join(f"{name:>21.20}" for name in names))
    found: dict[str, dict[str, float]] = {}
    for label, x in tensors().items():
        found[label] = measure(x)
        base = found[label]["x.sum()"]
        print(f"{label:<34}" + "".join(f"{value:>13.1f} {value / base:>7.2f}" for value in found[label].values()), flush=True)
    print("\ntargets, times x.sum()")
    for (label, name), target in TARGETS.items():
        if target is not None:
            print(f"  {name}, {label}: {found[label][name] / found[label]['x.sum()']:.2f} (at most {target})")
    per_element = {label: found[label]["Moments"] / 2**20 * 1e3 for label in ("float32 1 Mi", "bfloat16 1 Mi")}
    print("  Moments, ns per element: " + ", ".join(f"{label} {value:.3f}" for label, value in per_element.items()))
    print("\n" + json.dumps({"level": status.level, "threads": options.threads, "microseconds": found}))


if __name__ == "__main__":
    main()
