"""Measure what attaching costs a program that attaches again at every step, and what ``track`` costs beside copies made by hand.

Run alone (``make bench``): any other program distorts the numbers. All ways run in one process, one after the other in every
round, on one thread. The first table has the least microseconds over rounds, for each module, beyond the same step without an
observer; the second the time of a training step, divided by that of hooks by hand which copy the same tensors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch
from torch.utils.module_tracker import ModuleTracker

import sonde
from models import chain, copies_by_hand
from sonde.stats import Moments

LAYERS, WIDTH, BATCH = 99, 16, 4  # of the first table: 199 small modules
SIZES = ((40, 16, 4), (40, 128, 32), (40, 256, 64), (20, 512, 256))  # of the second: pairs of layers, width, batch
ROUNDS = 40


def least(ways: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the least seconds of processor time that each way took."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            found[name] = min(found[name], time.process_time() - start)
    return found


def attaching() -> dict[str, float]:
    """Return microseconds for each module of an observer around each step, and of attaching and detaching alone."""
    net, x = chain(LAYERS, WIDTH), torch.randn(BATCH, WIDTH)

    def step() -> None:
        net(x).sum().backward()

    def forward() -> None:
        net(x)

    def inside(make: Callable[[], object], run: Callable[[], object]) -> Callable[[], None]:
        def way() -> None:
            with make():  # type: ignore[attr-defined]
                run()

        return way

    def by_hand() -> None:
        for handle in copies_by_hand(net, []):
            handle.remove()

    def by_hand_around() -> None:
        handles = copies_by_hand(net, [])
        step()
        for handle in handles:
            handle.remove()

    def nothing() -> None:
        """Attach alone."""

    observers: dict[str, Callable[[], object]] = {
        "track": lambda: sonde.track(net),
        "observe(Moments())": lambda: sonde.observe(net, Moments()),
        "observe(Moments()), all ports": lambda: sonde.observe(
            net, Moments(), ports=("input", "output", "grad_output", "grad", "param", "update")
        ),
    }
    ways = {"step": step, "forward": forward, "hooks by hand, alone": by_hand, "hooks by hand, around a step": by_hand_around}
    ways |= {f"{name}, alone": inside(make, nothing) for name, make in observers.items()}
    ways |= {f"{name}, around a step": inside(make, step) for name, make in observers.items()}
    ways["sonde.ModuleTracker, around a forward"] = inside(sonde.ModuleTracker, forward)
    ways["torch's ModuleTracker, around a forward"] = inside(ModuleTracker, forward)
    seconds = least(ways)
    bare = {"step": seconds.pop("step"), "forward": seconds.pop("forward")}
    modules = len(list(net.modules()))
    return {name: (value - bare.get(name.rpartition(" a ")[2], 0.0)) / modules * 1e6 for name, value in seconds.items()}


def copying(layers: int, width: int, batch: int) -> dict[str, float]:
    """Return how long a training step takes, divided by one with hooks by hand that copy outputs and gradients."""
    net, x = chain(layers, width), torch.randn(batch, width)
    found = dict.fromkeys(("bare", "by hand", "track"), float("inf"))

    def run(name: str, clear: Callable[[], object]) -> None:
        for round_ in range(4):
            start = time.process_time()
            net(x).sum().backward()
            if round_ > 1:
                found[name] = min(found[name], time.process_time() - start)
            clear()

    for _ in range(ROUNDS // 2):
        run("bare", lambda: None)
        sink: list[object] = []
        handles = copies_by_hand(net, sink)
        run("by hand", sink.clear)
        for handle in handles:
            handle.remove()
        with sonde.track(net) as tracker:
            run("track", tracker.clear)
    return {name: value / found["by hand"] for name, value in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    attached = attaching()
    for name, value in attached.items():
        print(f"{name:45} {value:7.1f} us/module")
    ratios = {}
    for layers, width, batch in SIZES:
        ratios[f"{batch}x{width}"] = copying(layers, width, batch)
        print(
            f"outputs of {batch} x {width}: "
            + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios[f"{batch}x{width}"].items())
        )
    print(json.dumps({"attaching": attached, "copying": ratios}))


if __name__ == "__main__":
    main()
