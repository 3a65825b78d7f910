"""Measure what merging costs: a step of two ranks, watched in three ways; and one round of merging, against sites and ranks.

Run alone (``make bench``). The training is the GPT of ``watch.py`` under DDP on two processes with gloo, one thread each; on a
machine with two cores the writing threads have no core of their own, and all that they do is in the time of a step. All ways are
timed in the same two processes, one after the other in every round. The target: merging (``merged`` beyond ``each rank its own``)
costs at most 1 % of a bare step.

A round of merging is timed without a training: the time of the thread that merges, and the processor time that it takes.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist
from torch import multiprocessing, nn

sys.path.insert(0, str(Path(__file__).parent))

import sonde.inspector as sonde
from sonde.stats import Group, Key, Merger, Moments, Offer, RankRows
from watch import gpt, train

STEPS, ROUNDS, WARM_UP = 20, 11, 3
SITES = (10, 100, 1_000, 10_000)
OFFERS = 40

Undo = Callable[[], None]


def watching(folder: str, every: int, ranks: str) -> Callable[[nn.Module, torch.optim.Optimizer], Undo]:
    """Return a function that attaches, and returns another that ends it."""

    def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> Undo:
        to = Path(folder) / "run"
        return sonde.watch(model, optimizer, every=every, to=to, ranks=ranks, exists="replace", verbose=False).detach

    return attach


def ways(folder: str) -> dict[str, Callable[[nn.Module, torch.optim.Optimizer], Undo]]:
    return {
        "bare": lambda model, optimizer: lambda: None,
        "each rank its own, every step": watching(folder, 1, "each"),
        "merged, every step": watching(folder, 1, "merged"),
        "each rank its own, every 10th": watching(folder, 10, "each"),
        "merged, every 10th": watching(folder, 10, "merged"),
    }


def steps(rank: int, folder: str) -> dict[str, list[float]]:
    """Return the milliseconds per step of each way in each round."""
    times: dict[str, list[float]] = {name: [] for name in ways(folder)}
    for number in range(ROUNDS + 1):
        for name, attach in ways(folder).items():
            torch.manual_seed(0)
            inner, x = gpt()
            model = nn.parallel.DistributedDataParallel(inner)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            undo = attach(model, optimizer)
            train(model, optimizer, x, WARM_UP)
            gc.collect(0)
            dist.barrier()
            start = time.perf_counter()
            train(model, optimizer, x, STEPS)
            elapsed = time.perf_counter() - start
            undo()
            if number:
                times[name].append(elapsed / STEPS * 1e3)
    return times


def rounds(rank: int, folder: str) -> dict[str, list[float]]:
    """Return the milliseconds of one round of merging, and those of the processor, for each number of sites."""
    found = {}
    statistic = Moments()
    for sites in SITES:
        group = Group.join("the benchmark")
        assert group is not None
        merger = Merger(group)
        keys = [Key(("moments", 0, f"layers.{site}:output", 0)) for site in range(sites)]
        rows = torch.rand(sites, 1 + statistic.width, dtype=torch.float64).numpy()
        for when in range(3):
            merger.merge(Offer(when, [RankRows(statistic, keys, rows)]))
        dist.barrier()
        start, busy = time.perf_counter(), time.thread_time()
        for when in range(3, OFFERS + 3):
            merger.merge(Offer(when, [RankRows(statistic, keys, rows)]))
        found[str(sites)] = [(time.perf_counter() - start) / OFFERS * 1e3, (time.thread_time() - busy) / OFFERS * 1e3]
        dist.barrier()
        merger.close()
    return found


def child(rank: int, ranks: int, port: int, work: str, folder: str) -> None:
    """Run one rank, and leave what rank 0 measured in the folder."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found = {"steps": steps, "rounds": rounds}[work](rank, folder)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def on(ranks: int, work: str) -> dict[str, list[float]]:
    """Return what rank 0 of so many measured."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        multiprocessing.spawn(child, (ranks, port, work, folder), nprocs=ranks)
        return json.loads((Path(folder) / "found.json").read_text())


def main() -> None:
    print(f"torch {torch.__version__}, gloo, GPT of 6 blocks under DDP on 2 ranks, 1 thread each, {os.cpu_count()} cores")
    times = on(2, "steps")
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"\n{'':<34} ms/step  x bare")
    for name, value in medians.items():
        print(f"  {name:<32} {value:7.2f}  {value / medians['bare']:6.3f}")
    for every in ("every step", "every 10th"):
        pairs = zip(times[f"merged, {every}"], times[f"each rank its own, {every}"], strict=True)
        beyond = statistics.median(merged - own for merged, own in pairs)
        print(f"  merging, {every}: {beyond / medians['bare']:+.1%} of a bare step (target: at most 1 %)")
    print("\nOne round of merging rows of Moments\n   ranks   sites      ms  ms of the processor")
    found = {"steps": times}
    for ranks in (2, 4):
        found[f"rounds on {ranks}"] = measured = on(ranks, "rounds")
        for sites, (whole, busy) in measured.items():
            print(f"  {ranks:>6} {int(sites):>7,} {whole:7.2f} {busy:7.2f}")
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
