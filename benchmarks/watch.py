"""Measure the cost of ``sonde.watch``: against the floor (hooks that only read every tensor once) and against a peer.

Run alone (``make bench``): any other program distorts the numbers. The floor is a lower bound for every program that reads
all tensors: hooks that call ``x.sum()`` on each output and output gradient, and foreach norms of parameters, their gradients
and updates. All ways are timed in one process, one after the other in every round. The table gives medians over rounds, and
ratios to the bare training; the raw medians are printed as JSON at the end.

The peer is monitorch, with the lenses of the most similar statistics, and no output. It is skipped if it is not installed.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import sonde.inspector as sonde
from models import gpt, mlp
from sonde import lens

WARM_UP = 3
Undo = Callable[[], None]
Attach = Callable[[nn.Module, torch.optim.Optimizer], Undo]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int) -> None:
    """Train *model* to return its input: a loss that only makes outputs small lets layers die, which is judged and costs more."""
    for _ in range(steps):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# The ways


def bare(model: nn.Module, optimizer: torch.optim.Optimizer) -> Undo:
    return lambda: None


def floor(model: nn.Module, optimizer: torch.optim.Optimizer) -> Undo:
    """Read the same tensors as ``sonde.watch``, and keep one number of each."""
    parameters = list(model.parameters())
    kept: list[Tensor] = []
    before: list[Tensor] = []

    def forward(module: nn.Module, args: object, output: Tensor) -> None:
        kept.append(output.detach().sum())
        if output.requires_grad:
            output.register_hook(lambda gradient: kept.append(gradient.sum()))

    def about_to_step(*_: object) -> None:
        kept.extend(torch._foreach_norm([parameter.grad for parameter in parameters if parameter.grad is not None]))
        before[:] = [parameter.detach().clone() for parameter in parameters]

    def stepped(*_: object) -> None:
        kept.extend(torch._foreach_norm(parameters))
        kept.extend(torch._foreach_norm(torch._foreach_sub([p.detach() for p in parameters], before)))
        torch.stack([number.detach() for number in kept]).clone()
        kept.clear()

    watched = [module for module in model.modules() if type(module) is not nn.Sequential]
    handles = [module.register_forward_hook(forward) for module in watched]
    handles += [optimizer.register_step_pre_hook(about_to_step), optimizer.register_step_post_hook(stepped)]
    return lambda: [handle.remove() for handle in handles]  # type: ignore[return-value, func-returns-value]


def floor_every_10th(model: nn.Module, optimizer: torch.optim.Optimizer) -> Undo:
    """Register the floor's hooks in every tenth step and remove them again; in the other steps only count forwards."""
    forwards = 0
    undo: list[Undo] = []

    def begins(*_: object) -> None:
        nonlocal forwards
        if undo:
            undo.pop()()
        if forwards % 10 == 0:
            undo.append(floor(model, optimizer))
        forwards += 1

    handle = model.register_forward_pre_hook(begins)

    def all_out() -> None:
        handle.remove()
        for each in undo:
            each()

    return all_out


def watching(every: object, lenses: object = None) -> Attach:
    def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> Undo:
        folder = tempfile.TemporaryDirectory()
        inspector = sonde.watch(model, optimizer, every=every, to=Path(folder.name) / "run", lenses=lenses, verbose=False)

        def undo() -> None:
            inspector.detach()
            folder.cleanup()

        return undo

    return attach


NEVER = range(10**9, 10**9 + 1)
"""Steps that never come: the inspector is attached and logs no step."""


def asked(tick: object) -> bool:
    """Log no step, by a function that is called at each step."""
    return False


def monitorch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Undo:
    from monitorch.inspector import PyTorchInspector
    from monitorch.lens import OutputGradientGeometry, OutputNorm, ParameterGradientGeometry, ParameterNorm, ParameterUpdateGeometry
    from monitorch.visualizer import DummyVisualizer

    lenses = [
        OutputNorm(activation=True),
        OutputGradientGeometry(compute_correlation=False),
        ParameterGradientGeometry(compute_correlation=False),
        ParameterUpdateGeometry(optimizer, compute_correlation=False),
        ParameterNorm(),
    ]
    inspector = PyTorchInspector(lenses, visualizer=DummyVisualizer(), module=model)
    return inspector.detach


BLOCK = 10
"""Steps that are timed together, so that each block has one step of every ten."""

Times = dict[str, list[float]]


def measure(make: Callable[[], tuple[nn.Module, Tensor]], steps: int, rounds: int, ways: dict[str, Attach]) -> tuple[Times, Times]:
    """Return the milliseconds per step of each way, for each round and for each block of steps; all ways are interleaved."""
    whole: Times = {name: [] for name in ways}
    blocks: Times = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, attach in ways.items():
            torch.manual_seed(0)
            model, x = make()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            undo = attach(model, optimizer)
            train(model, optimizer, x, WARM_UP)
            gc.collect(0)
            gc.disable()
            marks = [time.perf_counter()]
            for _ in range(steps // BLOCK):
                train(model, optimizer, x, BLOCK)
                marks.append(time.perf_counter())
            gc.enable()
            undo()
            if number:
                whole[name].append((marks[-1] - marks[0]) / steps * 1e3)
                blocks[name] += [(end - start) / BLOCK * 1e3 for start, end in pairwise(marks)]
    return whole, blocks


class Copies(TorchDispatchMode):
    """Count the scalars that are read from a device."""

    def __init__(self) -> None:
        super().__init__()
        self.scalars = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.scalars += function.overloadpacket.__name__ == "_local_scalar_dense"
        return function(*args, **(kwargs or {}))


def reads(make: Callable[[], tuple[nn.Module, Tensor]]) -> int:
    """Return the number of scalars that one logged step reads to the host, beside its one copy."""
    model, x = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    undo = watching(1)(model, optimizer)
    train(model, optimizer, x, 3)
    with Copies() as copies:
        train(model, optimizer, x, 1)
    undo()
    return copies.scalars


def show(title: str, whole: Times, blocks: Times) -> dict[str, dict[str, float]]:
    """Print the medians over rounds, and the first decile of blocks, which other programs on the machine disturbed least.

    The writing thread works in few of the blocks, so its cost is in the medians alone.
    """
    medians = {name: statistics.median(values) for name, values in whole.items()}
    calm = {name: statistics.quantiles(values, n=10)[0] for name, values in blocks.items()}
    print(f"\n{title}\n{'':<34} ms/step  x bare  x floor   first decile: x bare  x floor")
    for name, value in medians.items():
        print(
            f"  {name:<32} {value:7.3f}  {value / medians['bare']:6.3f}  {value / medians['floor']:7.3f}  "
            f"{calm[name] / calm['bare']:20.3f}  {calm[name] / calm['floor']:7.3f}"
        )
    return {"median": medians, "first decile": calm}


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, SGD")
    ways: dict[str, Attach] = {
        "bare": bare,
        "floor": floor,
        "floor, every 10th": floor_every_10th,
        "watch, every step": watching(1),
        "watch, moments alone": watching(1, (lens.moments(),)),
        "watch, every 10th": watching(10),
        "watch, no step": watching(NEVER),
        "watch, asked at each, no step": watching(asked),
    }
    try:
        import monitorch as _  # noqa: F401

        ways["monitorch, same statistics"] = monitorch
    except ImportError:
        print("monitorch is not installed here: pip install monitorch, in the environment of the benchmarks")
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for title, make, steps, rounds in (("MLP of 16 leaves", mlp, 1000, 7), ("GPT of 6 blocks", gpt, 10, 9)):
            found[title] = show(title, *measure(make, steps, rounds, ways))
            print(f"  scalars read in a logged step beside the one copy (on the CPU, where that waits for nothing): {reads(make)}")
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
