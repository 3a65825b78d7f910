"""Measure the cost and the growth of a recorder, against the recorders of torchfunc 0.2.0.

Run alone: any other program distorts the numbers. All ways are timed in one process, one after the other in every round. The
table gives medians over rounds; the raw medians are printed as JSON at the end. By default torchfunc keeps a reference to the
first sample with its autograd graph; sonde keeps a copy of the whole batch, or of the first sample on request.

Growth is counted after 200 and after 2,000 training steps of a running sum: objects, and nodes of the autograd graph behind
the first slot. The loss of each step also reads the running sum, as code that logs it does.
"""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from interleaved import medians
from models import chain
from sonde import recorders
from sonde.recorders.reductions import Sum

DEPTH, WIDTH, BATCH = 40, 16, 4
ROUNDS, REPEATS = 41, 10
WARM_UP = 17  # forwards after attaching that are not timed: sonde checks the model for changes at the 2nd, 4th, 8th and 16th
STEPS = (200, 2_000)

try:
    from torchfunc.hooks import recorders as original
except ImportError:
    original = None

Way = tuple[str, Callable[[nn.Module], Any]]


def add(so_far: Tensor, new: Tensor) -> Tensor:
    return so_far + new


def sonde(kind: str, **how: Any) -> Callable[[nn.Module], Any]:
    return lambda net: getattr(recorders, kind)(strict=True, **how).modules(net)


def torchfunc(kind: str, **how: Any) -> Callable[[nn.Module], Any]:
    return lambda net: getattr(original, kind)(**how).modules(net)


def end(recorder: Any) -> None:
    for handle in getattr(recorder, "handles", ()):
        handle.remove()
    if isinstance(recorder, recorders.Recorder):
        recorder.detach()


def measure(ways: list[Way], run: Callable[[nn.Module, Tensor], object]) -> dict[str, float]:
    """Return the median microseconds per module call of each way."""
    x, net = torch.randn(BATCH, WIDTH), chain(DEPTH, WIDTH)

    @contextmanager
    def attached(attach: Callable[[nn.Module], Any]) -> Iterator[None]:
        recorder = attach(net)
        yield
        end(recorder)

    entered = {name: partial(attached, attach) for name, attach in ways}
    seconds = medians(entered, lambda: run(net, x), rounds=ROUNDS, warm_up=WARM_UP, repeats=REPEATS)
    return {name: value / sum(1 for _ in net.modules()) * 1e6 for name, value in seconds.items()}


def forward(net: nn.Module, x: Tensor) -> object:
    return net(x)


def both(net: nn.Module, x: Tensor) -> None:
    net(x).sum().backward()


def ways_of(kind: str) -> list[Way]:
    found: list[Way] = [("bare model", lambda net: None)]
    if original is not None:
        found += [
            ("torchfunc, every value", torchfunc(kind)),
            ("torchfunc, running sum", torchfunc(kind, reduction=add)),
        ]
    return [
        *found,
        ("sonde, every value", sonde(kind)),
        ("sonde, every value, first sample", sonde(kind, data_method="sample")),
        ("sonde, running sum, any callable", sonde(kind, reduction=add)),
        ("sonde, running sum, Sum()", sonde(kind, reduction=Sum())),
    ]


def nodes_behind(value: Any) -> int:
    """Return the number of autograd nodes that *value* keeps alive."""
    pending, seen = [value.grad_fn] if isinstance(value, Tensor) and value.grad_fn is not None else [], set[Any]()
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending += [above for above, _ in node.next_functions if above is not None]
    return len(seen)


def growth(attach: Callable[[nn.Module], Any]) -> dict[str, list[int]]:
    """Return the numbers of objects and of kept nodes after each of ``STEPS``, for a model of four layers."""
    torch.manual_seed(0)
    net, x = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))), torch.randn(BATCH, WIDTH)
    recorder = attach(net)
    found: dict[str, list[int]] = {"objects": [], "nodes": []}
    for step in range(1, STEPS[-1] + 1):
        net(x).sum().backward()
        if step in STEPS:
            gc.collect()
            found["objects"].append(len(gc.get_objects()))
            found["nodes"].append(nodes_behind(recorder[1]) if recorder is not None else 0)
    end(recorder)
    return found


def show(title: str, times: dict[str, float]) -> None:
    bare = times["bare model"]
    print(f"\n{title}\n{'':<40} us/call   whole   beyond bare")
    for name, value in times.items():
        print(f"  {name:<38} {value:7.2f}   {value / bare:5.2f}   {value - bare:7.2f}")


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch warns at each of torchfunc's hooks, which are deprecated
    if original is None:
        print("torchfunc is not installed: only sonde is measured (pip install torchfunc==0.2.0)")
    print(
        f"torch {torch.__version__}, {2 * DEPTH + 1} modules of width {WIDTH}, batch {BATCH}, 1 thread, {ROUNDS} rounds x {REPEATS}"
    )
    outputs = measure(ways_of("ForwardOutput"), forward)
    show("ForwardOutput, forward with gradients", outputs)
    gradients = measure(ways_of("BackwardOutput"), both)
    show("BackwardOutput, forward and backward", gradients)
    grown = {name: growth(attach) for name, attach in ways_of("ForwardOutput") if "every" not in name}
    print(f"\nGrowth of a running sum of ForwardOutput: after {STEPS[0]} and after {STEPS[1]} steps")
    for name, found in grown.items():
        print(f"  {name:<38} objects {found['objects']}   graph nodes behind slot 1 {found['nodes']}")
    print("\n" + json.dumps({"forward": outputs, "backward": gradients, "growth": grown}))


if __name__ == "__main__":
    main()
