"""Measure the cost of a module tracker: sonde's against torch's, and the number of objects that each keeps.

Run alone: any other program distorts the numbers. All ways are timed in one process, one after the other in every round. The
table gives medians over rounds; "share" is the tracker's own time divided by that of torch's tracker. Torch's tracker is
entered again in each round, since it keeps handles until its end. The raw medians are printed as JSON at the end.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.module_tracker import ModuleTracker as TorchTracker

import sonde
from interleaved import medians
from models import chain

DEPTH, WIDTH, BATCH = 40, 16, 4
ROUNDS, REPEATS, WARM_UP = 41, 10, 3
GROWTH_STEPS = (100, 200, 400, 800)

Way = Callable[[], AbstractContextManager[Any]]


def ignore(call: sonde.types.ModuleCall) -> None:
    pass


WAYS: dict[str, Way] = {
    "bare model": nullcontext,
    "torch.utils.module_tracker": TorchTracker,
    "sonde.ModuleTracker": sonde.ModuleTracker,
    "sonde, callbacks forward": lambda: sonde.ModuleTracker(enter=ignore, leave=ignore),
    "sonde, callbacks in both directions": lambda: sonde.ModuleTracker(
        enter=ignore, leave=ignore, enter_backward=ignore, leave_backward=ignore
    ),
}


def forward(net: nn.Module, x: Tensor) -> None:
    net(x)


def both(net: nn.Module, x: Tensor) -> None:
    net(x).sum().backward()


def measure(run: Callable[[nn.Module, Tensor], None], *, grad: bool) -> dict[str, float]:
    """Return the median microseconds per module call of each way."""
    net, x = chain(DEPTH, WIDTH), torch.randn(BATCH, WIDTH, requires_grad=grad)
    with torch.set_grad_enabled(grad):
        seconds = medians(WAYS, lambda: run(net, x), rounds=ROUNDS, warm_up=WARM_UP, repeats=REPEATS)
    return {name: value / sum(1 for _ in net.modules()) * 1e6 for name, value in seconds.items()}


def growth() -> dict[str, list[int]]:
    """Return, for each way, the number of objects beyond those after the first step, after each of ``GROWTH_STEPS``."""
    found: dict[str, list[int]] = {}
    for name, way in WAYS.items():
        net, x = chain(DEPTH, WIDTH), torch.randn(BATCH, WIDTH, requires_grad=True)
        with way():
            both(net, x)
            gc.collect()
            before, done, found[name] = len(gc.get_objects()), 1, []
            for steps in GROWTH_STEPS:
                for _ in range(steps - done):
                    both(net, x)
                done = steps
                gc.collect()
                found[name].append(len(gc.get_objects()) - before)
    return found


def show(title: str, times: dict[str, float]) -> None:
    bare, theirs = times["bare model"], times["torch.utils.module_tracker"]
    print(f"\n{title}\n{'':<40} us/call    own   share")
    for name, value in times.items():
        own = "" if name == "bare model" else f"{value - bare:6.2f}  {(value - bare) / (theirs - bare):6.2f}"
        print(f"  {name:<38} {value:7.2f} {own}")


def main() -> None:
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, {DEPTH * 2 + 1} modules of width {WIDTH}, batch {BATCH}, 1 thread, {ROUNDS} rounds x {REPEATS}"
    )
    one = measure(forward, grad=False)
    show("Forward without gradients", one)
    two = measure(forward, grad=True)
    show("Forward with gradients", two)
    three = measure(both, grad=True)
    show("Forward and backward", three)
    kept = growth()
    print(f"\nObjects kept after {', '.join(map(str, GROWTH_STEPS))} steps, beyond those after the first")
    for name, numbers in kept.items():
        print(f"  {name:<38} {'  '.join(f'{number:>7}' for number in numbers)}")
    print("\n" + json.dumps({"no_grad": one, "grad_forward": two, "grad_both": three, "objects": kept}))


if __name__ == "__main__":
    main()
