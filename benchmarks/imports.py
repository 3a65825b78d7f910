"""Measure what ``import sonde`` adds to ``import torch``: fresh interpreters, in turn, median of several.

Run alone (``make bench``): any other program distorts the numbers. ``import sonde`` alone loads neither torch nor
NumPy; what is used first loads what it needs, so the time until ``watch`` can be called is measured too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

ROUNDS = 9
WAYS = {
    "import torch": "import torch",
    "import sonde": "import sonde",
    "import torch, sonde": "import torch, sonde",
    "import torch; from sonde import watch, track, observe": "import torch; from sonde import watch, track, observe",
    "sonde --help": "import sys; sys.argv = ['sonde', '--help']; from sonde.cli import main; main()",
}


def seconds(code: str) -> float:
    """The time of a fresh interpreter that runs *code*."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    """Print a table and the raw medians."""
    for code in WAYS.values():
        seconds(code)  # bytecode is written, and files are in memory
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, code in WAYS.items():
            times[way].append(seconds(code))
    medians = {way: statistics.median(values) for way, values in times.items()}
    for way, value in medians.items():
        print(f"{way:56}{value * 1e3:9.0f} ms{value / medians['import torch']:8.2f}")
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
