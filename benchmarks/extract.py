"""Measure ``extract``, ``stream`` and the store of rows against bare loops that do the same, and against a ``datasets`` cache.

Run alone (``make bench``). Ways that are compared run in one process, one after the other in every round, in an order that turns;
a ratio is the median of the ratios of the rounds. Beside the seconds that passed stand those of the processor, which say more where
other programs use it. All files are written to and read from the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import sonde
from sonde.run import RowWriter

SHARD = 32_000_000
WAYS = Mapping[str, Callable[[], object]]


# What is run


class Decoder(nn.Module):
    """The blocks of a small language model, without a head."""

    def __init__(self, layers: int = 4, width: int = 256, vocabulary: int = 1000, context: int = 128) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 4 * width, **options) for _ in range(layers)])

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        hidden = self.embed(ids) + self.place.weight[: ids.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return hidden


class Case:
    """A model, its data, and the sites that are kept.

    Attributes:
        ndim: axes of what passes at a site; rows are positions where there are three.
    """

    def __init__(self, name: str, model: nn.Module, batches: list[Tensor], sites: list[str], ndim: int) -> None:
        self.name, self.model, self.batches, self.sites, self.ndim = name, model.eval(), batches, sites, ndim

    @property
    def positions(self) -> str | None:
        return "all" if self.ndim == 3 else None

    def rows_of(self, output: Tensor) -> Tensor:
        return output.flatten(0, 1) if self.ndim == 3 else output


def decoder(batches: int = 8) -> Case:
    torch.manual_seed(0)
    ids = torch.randint(1000, (batches * 16, 128))
    return Case("decoder", Decoder(), list(ids.split(16)), ["layers.0", "layers.1", "layers.3"], 3)


def light(batches: int = 24) -> Case:
    """One layer, whose output is larger than what it computes from: the store is nearly all of the work."""
    torch.manual_seed(0)
    return Case("light", nn.Sequential(nn.Linear(64, 1024)), list(torch.randn(batches * 2048, 64).split(2048)), ["0"], 2)


# Ways


def bare_forward(case: Case) -> None:
    with torch.no_grad():
        for batch in case.batches:
            case.model(batch)


def by_hand(case: Case, folder: Path) -> None:
    """Run the model, copy what passes at the sites, and save a file where there is enough of it."""
    held: dict[str, list[Tensor]] = {name: [] for name in case.sites}
    size = number = 0

    def hook(name: str) -> Callable[..., None]:
        return lambda module, args, output: held[name].append(case.rows_of(output).clone())

    def save() -> None:
        nonlocal size, number
        number += 1
        save_file({name: torch.cat(parts) for name, parts in held.items()}, folder / f"{number:05d}.safetensors")
        size = 0
        for parts in held.values():
            parts.clear()

    handles = [case.model.get_submodule(name).register_forward_hook(hook(name)) for name in case.sites]
    with torch.no_grad():
        for batch in case.batches:
            case.model(batch)
            size += sum(parts[-1].nbytes for parts in held.values())
            if size >= SHARD:
                save()
    if size:
        save()
    for handle in handles:
        handle.remove()


def by_extract(case: Case, folder: Path) -> None:
    sonde.extract(case.model, case.batches, case.sites, folder / "store", positions=case.positions, shard=SHARD, progress=False)


def by_datasets(case: Case, folder: Path) -> None:
    """Cache the same in ``datasets``: an item is a sequence, or a row where rows are items."""
    import datasets

    datasets.disable_progress_bars()
    held: dict[str, Tensor] = {}
    handles = [
        case.model.get_submodule(name).register_forward_hook(lambda module, args, output, name=name: held.update({name: output}))
        for name in case.sites
    ]

    def items() -> Iterator[dict[str, Any]]:
        with torch.no_grad():
            for batch in case.batches:
                case.model(batch)
                arrays = {name: output.numpy() for name, output in held.items()}
                for item in range(len(batch)):
                    yield {name: array[item].reshape(-1, array.shape[-1]) for name, array in arrays.items()}

    with torch.no_grad():
        case.model(case.batches[0])
    shapes = {name: (int(np.prod(output.shape[1:-1])), output.shape[-1]) for name, output in held.items()}
    features = datasets.Features({name: datasets.Array2D(shape, "float32") for name, shape in shapes.items()})
    datasets.Dataset.from_generator(items, features=features, cache_dir=str(folder), fingerprint=f"{time.time_ns():x}")
    for handle in handles:
        handle.remove()


def by_stream(case: Case, buffer: str) -> None:
    for _ in sonde.stream(case.model, case.batches, case.sites, positions=case.positions, buffer=buffer, rows=4096):
        pass


# Measuring


class Times:
    """The seconds of each way in each round.

    Attributes:
        wall, busy: by way, those that passed, and those of the processor on all threads.
    """

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.busy: dict[str, list[float]] = {}

    def ratio(self, way: str, to: str, *, of: str = "wall") -> float:
        """Return how fast *way* is, relative to the way *to*: the median over the rounds."""
        found = getattr(self, of)
        return statistics.median(theirs / ours for ours, theirs in zip(found[way], found[to], strict=True))

    def show(self, title: str, against: str, targets: Mapping[str, float]) -> None:
        print(f"\n{title}\n{'':<44}seconds   of the processor   speed relative to {against}: wall   processor   target")
        for way, wall in self.wall.items():
            ratios = f"{self.ratio(way, against):>38.2f} {self.ratio(way, against, of='busy'):>11.2f}"
            target = f"{targets[way]:>8.2f}" if way in targets else ""
            print(f"  {way:<42}{statistics.median(wall):7.3f}   {statistics.median(self.busy[way]):16.3f}   {ratios} {target}")


def timed(ways: WAYS, rounds: int) -> Times:
    """Time each way in every round, in an order that turns; a first round is not counted."""
    found = Times()
    names = list(ways)
    for name in names:
        found.wall[name], found.busy[name] = [], []
    for number in range(rounds + 1):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            wall, busy = time.perf_counter(), time.process_time()
            ways[name]()
            wall, busy = time.perf_counter() - wall, time.process_time() - busy
            if number:
                found.wall[name].append(wall)
                found.busy[name].append(busy)
    return found


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def in_empty(folder: Path, way: Callable[[Case, Path], None], case: Case) -> Callable[[], None]:
    def work() -> None:
        with emptied(folder) as empty:
            way(case, empty)

    return work


# What is measured


def writing(folder: Path, rounds: int) -> dict[str, Times]:
    found = {}
    for case in (decoder(), light()):
        ways = {
            "bare loop: run, copy, save_file": in_empty(folder / "t", by_hand, case),
            "extract": in_empty(folder / "t", by_extract, case),
        }
        found[f"writing, {case.name}"] = times = timed(ways, rounds)
        kept = sum(len(batch) for batch in case.batches)
        times.show(f"Writing, {case.name}: {kept:,} items", "bare loop: run, copy, save_file", {"extract": 0.9})
    return found


def beside_datasets(folder: Path, rounds: int) -> dict[str, Times]:
    found = {}
    for case in (decoder(2), light(12)):
        ways = {
            "datasets, Array2D": in_empty(folder / "t", by_datasets, case),
            "extract": in_empty(folder / "t", by_extract, case),
            "bare loop: run, copy, save_file": in_empty(folder / "t", by_hand, case),
            "the forward alone": lambda case=case: bare_forward(case),
        }
        found[f"datasets, {case.name}"] = times = timed(ways, rounds)
        kept = sum(len(batch) for batch in case.batches)
        times.show(f"Beside a cache of datasets, {case.name}: {kept:,} items", "datasets, Array2D", {"extract": 10})
    return found


def streaming(rounds: int) -> dict[str, Times]:
    found = {}
    for case, buffers in ((decoder(), ("1 GB", "32 MB")), (light(), ("1 GB", "32 MB"))):
        ways: dict[str, Callable[[], object]] = {"the forward alone": lambda case=case: bare_forward(case)}
        for buffer in buffers:
            ways[f"stream, a buffer of {buffer}"] = lambda case=case, buffer=buffer: by_stream(case, buffer)
        found[f"stream, {case.name}"] = times = timed(ways, rounds)
        times.show(f"Stream, {case.name}", "the forward alone", {way: 0.9 for way in ways if "stream" in way})
    return found


def reading(folder: Path, rounds: int) -> dict[str, Times]:
    """Read a store of one column of 1,024 floats in shards of 32 MB, and the same as one file that is mapped."""
    rows, width = 64_000, 1024
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, width)).eval()
    store = sonde.extract(model, torch.randn(rows, 16).split(4096), "0", folder / "store", shard=SHARD, progress=False)
    np.save(folder / "all.npy", store["0:output"].numpy())
    mapped = np.load(folder / "all.npy", mmap_mode="r")
    column = store["0:output"]
    draw = np.random.default_rng(0)
    found = {}
    for size in (1, 32, 256, 4096):
        many = [draw.integers(0, rows, size) for _ in range(max(8192 // size, 8))]
        ways: dict[str, Callable[[], object]] = {
            "mmap, numpy": lambda many=many: [torch.from_numpy(mapped[at]) for at in many],
            "store[site][rows]": lambda many=many: [column[at] for at in many],
        }
        if size == 1:
            ways["store[site][row]"] = lambda many=many: [column[int(at[0])] for at in many]
        found[f"random rows, {size} at a time"] = times = timed(ways, rounds)
        times.show(
            f"Random rows, {size} at a time, of {store.shards} shards", "mmap, numpy", {way: 0.8 for way in ways if "store" in way}
        )
    ways = {
        "in order: store.rows[i:j]": lambda: [store.rows[first : first + 512] for first in range(0, rows, 512)],
        "shuffled": lambda: list(map(len, store.shuffled(512))),
    }
    found["an epoch"] = times = timed(ways, rounds)
    times.show("An epoch in batches of 512 rows", "in order: store.rows[i:j]", {"shuffled": 0.5})
    return found


def opening(folder: Path, shards: int, rounds: int) -> dict[str, Times]:
    """Open a store of many shards of three columns, which another process does as well, and read one row."""
    path = folder / "many"
    writer = RowWriter(path, {"kind": "benchmark"})
    for number in range(shards):
        writer.write(
            {"a:output": torch.full((4, 8), float(number)), "b:output": torch.zeros(4, 8), "item": torch.arange(4) + 4 * number},
            items=(4 * number, 4 * number + 3),
            about={},
        )
    writer.close()
    ways = {
        f"open_tensors, {shards:,} shards": lambda: sonde.open_tensors(path),
        "open_tensors, and one row": lambda: sonde.open_tensors(path)["a:output"][2 * shards],
    }
    found = {"opening": timed(ways, rounds)}
    found["opening"].show("Opening (target: less than 1 s)", f"open_tensors, {shards:,} shards", {})
    return found


# Memory, of new processes


def child(way: str, megabytes: int, folder: Path) -> None:
    """Run one way, and print the peak of the memory beyond the one before the first batch, in MB."""
    rows = megabytes * 1_000_000 // 4096
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 512)).eval()

    def batches() -> Iterator[Tensor]:
        for _ in range(rows // 2048):
            yield torch.randn(2048, 64)

    with torch.no_grad():
        model(next(batches()))
    sonde.open_tensors  # noqa: B018  # imported before the start
    before = memory("VmRSS")
    if way == "forward":
        with torch.no_grad():
            for batch in batches():
                model(batch)
    else:
        sonde.extract(model, batches(), ["0", "1"], folder / "store", shard=int(way), progress=False)
    print(json.dumps([before, memory("VmHWM"), memory("VmRSS")]))


def memory(what: str) -> float:
    return int(Path("/proc/self/status").read_text().split(f"{what}:")[1].split()[0]) * 1024 / 1e6


def memories(folder: Path) -> dict[str, list[float]]:
    found = {}
    print("\nMemory, MB\n  way, store     before      peak   beyond the forward's peak and one shard (target: 256)")
    for shard, megabytes in ((0, 500), (64, 500), (64, 2_000), (128, 1_000), (128, 4_000)):
        with emptied(folder / "t") as empty:
            way = "forward" if not shard else str(shard * 1_000_000)
            command = [sys.executable, __file__, "--child", way, str(megabytes), str(empty)]
            before, peak, _ = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        found[f"{way} {megabytes}"] = [before, peak]
        forward = found["forward 500"]
        name = "the forward" if not shard else f"shards of {shard}"
        beyond = "" if not shard else f"{(peak - before) - (forward[1] - forward[0]) - shard:10.0f}"
        print(f"  {name:<14} {megabytes:>6} {before:9.0f} {peak:9.0f} {beyond}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[], help="which parts; all by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shards", type=int, default=10_000, help="of the store that is opened")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        way, megabytes, path = given.child
        child(way, int(megabytes), Path(path))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores; shards of {SHARD / 1e6:.0f} MB")
    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "writing": lambda: writing(folder, given.rounds),
            "stream": lambda: streaming(given.rounds),
            "reading": lambda: reading(folder, given.rounds),
            "opening": lambda: opening(folder, given.shards, given.rounds),
            "memory": lambda: memories(folder),
            "datasets": lambda: beside_datasets(folder, given.rounds),
        }
        for part, measure in parts.items():
            if not given.parts or part in given.parts:
                found = measure()
                raw |= {key: value if isinstance(value, list) else [value.wall, value.busy] for key, value in found.items()}
    print("\n" + json.dumps(raw))


if __name__ == "__main__":
    main()
