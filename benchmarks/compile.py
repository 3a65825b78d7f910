"""Measure what ``watch`` and ``track`` cost a compiled model: the first step, a logged step, a plain step; and count graphs.

Run alone (``make bench``): any other program distorts the numbers. It takes many minutes. Each way runs in processes of its
own, since compiled code is kept by the process, and with the caches of inductor off. Logged and plain steps alternate in one
process, and the first is stated as a multiple of the second; the plain step and the first one as multiples of those of bare
processes, which run in turn with the others. Two processes of the same program differ by some percent. Times of steps are
medians, and of several processes the least. The models are a GPT of six blocks, a vision transformer, and a residual network of
convolutions; compiled whole, or block by block.

    python benchmarks/compile.py                                  everything
    python benchmarks/compile.py --backend aot_eager --model gpt  a part
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

STEPS = 20
WAYS = ("bare", "watch", "track")
BACKENDS = ("aot_eager", "inductor")
CASES = ("gpt-whole", "gpt-blocks", "vit-whole", "resnet-whole", "resnet-blocks")


def models() -> dict[str, Callable[[], tuple[Any, Any, list[Any]]]]:
    """Return functions that make a model, its input and its blocks, by name. Imports torch."""
    import torch
    from torch import Tensor, nn

    from models import Block as Transformer

    class Vision(nn.Module):
        """Patches of an image, transformer blocks, and the mean over positions."""

        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 128, 8, stride=8)
            self.blocks = nn.Sequential(*(Transformer(128) for _ in range(4)))
            self.head = nn.Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.patches(x).flatten(2).transpose(1, 2)
            return self.head(self.blocks(tokens).mean(1))  # type: ignore[no-any-return]

    class Residual(nn.Module):
        """Two convolutions with normalisations, and a shortcut, as in a ResNet-18."""

        def __init__(self, given: int, made: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(given, made, 3, stride, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(made)
            self.act = nn.ReLU()
            self.conv2 = nn.Conv2d(made, made, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(made)
            changes = stride != 1 or given != made
            self.short = nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made)) if changes else None

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
            return self.act(y + (x if self.short is None else self.short(x)))  # type: ignore[no-any-return]

    def gpt() -> tuple[Any, Any, list[Any]]:
        model = nn.Sequential(*(Transformer(256) for _ in range(6)))
        return model, torch.randn(4, 128, 256), list(model)

    def vit() -> tuple[Any, Any, list[Any]]:
        model = Vision()
        return model, torch.randn(8, 3, 64, 64), list(model.blocks)

    def resnet() -> tuple[Any, Any, list[Any]]:
        widths = (16, 16, 32, 32, 64, 64, 128, 128)
        blocks = [Residual(given, made, 1 + (made > given)) for given, made in zip((16, *widths), widths, strict=False)]
        model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.Flatten(), nn.LazyLinear(10))
        x = torch.randn(8, 3, 32, 32)
        model(x)
        return model, x, blocks

    return {"gpt": gpt, "vit": vit, "resnet": resnet}


def processor_seconds() -> float:
    """Return the seconds of all cores that this process and its ended children have taken."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def run(backend: str, case: str, way: str) -> dict[str, float]:
    """Train one model in one way; return seconds of the first step, milliseconds of a logged and of a plain step, and graphs."""
    import torch
    import torch._dynamo.utils

    import sonde

    torch.set_num_threads(1)
    torch.manual_seed(0)
    warm: Any = torch.compile(lambda x: x.sin().sum(), backend=backend)
    warm(torch.ones(3, requires_grad=True)).backward()  # the compiler's own first time
    torch._dynamo.utils.counters.clear()
    name, _, how = case.partition("-")
    model, x, blocks = models()[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    observer: Any = None
    if way == "watch":
        observer = sonde.watch(model, optimizer, every=2, to="memory", verbose=False)
    elif way == "track":
        observer = sonde.track(model)
    called: Any = torch.compile(model, backend=backend) if how == "whole" else model
    for block in blocks if how == "blocks" else []:
        block.compile(backend=backend)

    def step() -> float:
        start = time.perf_counter()
        loss = called(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if way == "track":
            observer.clear()
        return time.perf_counter() - start

    before = processor_seconds()
    first = step()
    seconds = processor_seconds() - before
    step()  # compiles what plain steps run
    logged, plain = [], []
    for _ in range(STEPS):
        if way == "track":
            observer.resume()
        logged.append(step())
        if way == "track":
            observer.pause()
        plain.append(step())
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    times = {"logged": statistics.median(logged) * 1e3, "plain": statistics.median(plain) * 1e3}
    return {"first": first, "processor": seconds, **times, "graphs": graphs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="the backends; by default all")
    parser.add_argument("--model", choices=[*CASES, "gpt", "vit", "resnet"], action="append", help="the models; by default all")
    parser.add_argument("--processes", type=int, default=3, help="of each way, in turn (default: 3)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way is not None:
        warnings.simplefilter("ignore")
        print(json.dumps(run(options.backend[0], options.model[0], options.way)))
        return
    given = options.model or list(CASES)
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    environment = os.environ | {
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    titles = f"{'':<26}{'first step':>11}{'its processor':>15}{'logged step':>13}{'plain step':>12}{'graphs':>8}"
    print(f"{titles}   (x bare; logged: x plain)")
    for backend in options.backend or BACKENDS:
        for case in CASES:
            if case not in given and case.partition("-")[0] not in given:
                continue
            ways: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(options.processes):
                for way in WAYS:
                    command = [sys.executable, __file__, "--backend", backend, "--model", case, "--way", way]
                    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                    ways[way].append(json.loads(done.stdout.splitlines()[-1]))
            found[f"{backend} {case}"] = ways
            least = {way: {key: min(one[key] for one in made) for key in made[0]} for way, made in ways.items()}
            bare = least["bare"]
            print(
                f"{backend} {case:<16} bare: {bare['first']:.1f} s, a step {bare['plain']:.1f} ms, {bare['graphs']:.0f} graphs",
                flush=True,
            )
            for way in WAYS[1:]:
                ratio = {key: least[way][key] / bare[key] for key in bare}
                logged = statistics.median(one["logged"] / one["plain"] for one in ways[way])
                print(
                    f"  {way:<24}{ratio['first']:>11.2f}{ratio['processor']:>15.2f}{logged:>13.3f}{ratio['plain']:>12.3f}"
                    f"{least[way]['graphs']:>8.0f}",
                    flush=True,
                )
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
