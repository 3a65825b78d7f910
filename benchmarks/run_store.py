"""Measure the cost of a run on disk: writing against one ``pyarrow.parquet.write_table``, reading against the same DuckDB query.

Run alone. Every ratio compares two ways in one process, one after the other in every round; the table gives medians. Reading is
measured again in new processes, which print their peak memory. This file does not import torch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow
import pyarrow.parquet

from sonde.rows import Layout
from sonde.run import Flushing, open_run, start_run

NUMBERS = ("count", "finite", "mean", "std", "rms", "norm", "min", "max", "absmax", "zeros", "nan", "inf")
COUNTS = frozenset(["count", "finite", "zeros", "nan", "inf"])
PORTS = ("output", "grad_output", "grad", "input")
SITES = 400
ROUNDS = 5


def layout() -> Layout:
    return Layout([f"layers.{number // 8}.{'abcdefgh'[number % 8]}:{PORTS[number % 4]}" for number in range(SITES)])


def slabs(steps: int) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    return [
        {name: np.full(SITES, 4096.0) if name in COUNTS else draw.standard_normal(SITES) for name in NUMBERS} for _ in range(steps)
    ]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def writing(folder: Path, steps: int) -> dict[str, float]:
    """Return the seconds to write *steps* blocks until all parts are on disk, and to write one table that exists already."""
    places, blocks = layout(), slabs(steps)

    def ours(path: Path, sync: bool) -> tuple[float, float]:
        writer = start_run(path, flushing=Flushing(sync=sync))

        def work() -> None:
            for step, block in enumerate(blocks):
                writer.append("moments", places, block, step=step)
            writer.flush()

        return timed(work), timed(writer.close)

    ours(folder / "warm", True)
    table = open_run(folder / "warm").table("moments")
    dictionary = table.set_column(table.column_names.index("site"), "site", table["site"].dictionary_encode())
    found: dict[str, list[float]] = {"write_table": [], "write_table, sites as dictionary": []}
    found |= {"append and flush": [], "the same, sync=False": [], "close: compaction": []}
    for number in range(ROUNDS):
        found["write_table"].append(timed(lambda: pyarrow.parquet.write_table(table, folder / "one.parquet")))
        found["write_table, sites as dictionary"].append(
            timed(lambda: pyarrow.parquet.write_table(dictionary, folder / "one.parquet"))
        )
        seconds, closing = ours(folder / f"a{number}", True)
        found["append and flush"].append(seconds)
        found["close: compaction"].append(closing)
        found["the same, sync=False"].append(ours(folder / f"b{number}", False)[0])
        for name in ("a", "b"):
            shutil.rmtree(folder / f"{name}{number}")
    shutil.rmtree(folder / "warm")
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def build(path: Path, values: int, close: bool) -> int:
    """Write a run of about *values* values; return the number of its steps."""
    places, blocks = layout(), slabs(50)
    steps = values // (SITES * len(NUMBERS))
    writer = start_run(path)
    for step in range(steps):
        writer.append("moments", places, blocks[step % 50], step=step)
    writer.flush()
    if close:
        writer.close()
    return steps


QUERY = "SELECT site, step, avg(rms) AS rms FROM '{}/moments/*.parquet' WHERE port = 'output' GROUP BY site, step"


def by_duckdb(path: Path) -> np.ndarray:
    """Return the rows of the heat-map as DuckDB gives them."""
    return duckdb.connect().sql(QUERY.format(path)).fetchnumpy()["rms"]


def by_duckdb_arrow(path: Path) -> pyarrow.Table:
    return duckdb.connect().sql(QUERY.format(path)).to_arrow_table()


def by_sonde(path: Path) -> np.ndarray:
    return open_run(path).heatmap("rms").values


READERS = {"duckdb": by_duckdb, "duckdb, to arrow": by_duckdb_arrow, "sonde": by_sonde}


def reading(path: Path) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(ROUNDS):
        for name, read in READERS.items():
            found[name].append(timed(lambda read=read: read(path)))
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def peak(path: Path, reader: str) -> tuple[float, float]:
    """Return the seconds from before the first import to the matrix, and the peak memory in MB, of a new process."""
    command = [sys.executable, __file__, "--read", reader, str(path)]
    start = time.perf_counter()
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return time.perf_counter() - start, float(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=50_000_000, help="values in the run that is read")
    parser.add_argument("--steps", type=int, default=2_000, help="slabs of 400 sites x 12 numbers that are written")
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        READERS[given.read[0]](Path(given.read[1]))
        status = Path("/proc/self/status").read_text()  # getrusage returns the parent's peak if that is higher
        print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
        return
    raw: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"duckdb {duckdb.__version__}, pyarrow {pyarrow.__version__}; {SITES} sites x {len(NUMBERS)} numbers")
        raw["writing"] = found = writing(folder, given.steps)
        print(f"\nWriting {given.steps * SITES * len(NUMBERS):,} values\n{'':36}seconds   speed relative to write_table")
        for way, seconds in found.items():
            print(f"  {way:34}{seconds:7.3f}   {found['write_table'] / seconds:7.2f}")
        for state in ("compacted", "not compacted"):
            path = folder / state.replace(" ", "-")
            steps = build(path, given.values, state == "compacted")
            raw[state] = found = reading(path)
            files = len(list((path / "moments").glob("*.parquet")))
            print(f"\nHeat-map of rms at outputs from {steps * SITES * len(NUMBERS):,} values, {state} ({files} files)")
            print(f"{'':36}seconds   relative to DuckDB   new process: seconds   peak MB")
            for way, seconds in found.items():
                whole, memory = peak(path, way)
                print(f"  {way:34}{seconds:7.3f}   {seconds / found['duckdb']:18.2f}   {whole:20.2f}   {memory:7.0f}")
    print("\n" + json.dumps(raw))


if __name__ == "__main__":
    main()
