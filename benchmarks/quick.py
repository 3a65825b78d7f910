"""Measure in less than two minutes what must not become dearer unnoticed, and compare it with the committed ratios.

``make bench-quick`` runs it, and so does ``.ci/run``. It needs no peers. All ways of a part run in one process on one thread, one
after the other in every round; a ratio is that of first deciles over rounds, in seconds of the processor that the training thread
takes: other programs on the machine disturb these least. The thread that writes a run is not in it: ``make bench`` measures whole
times. The table is reported, and fails nothing. ``--write`` keeps the ratios in ``quick.json``, to be committed; run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.module_tracker import ModuleTracker

import events
import sonde
import watch
from committed import compared, machine, read, write
from interleaved import medians
from models import chain, copies_by_hand, mlp
from sonde.graph import capture
from sonde.stats import Moments

COMMITTED = Path(__file__).with_suffix(".json")
PAIRS, WIDTH, BATCH = 40, 16, 4  # of the chain whose events, attaching and capture are measured: 81 modules
ALL_PORTS = ("input", "output", "grad_output", "grad", "param", "update")

Ways = Mapping[str, Callable[[], AbstractContextManager[Any]]]
Timed = Callable[..., dict[str, float]]
Part = Callable[[Timed], tuple[dict[str, float], dict[str, float]]]
"""Measures one part: returns the seconds of each way, and the ratios."""


@contextmanager
def attached(attach: Callable[..., Callable[[], object]], *given: Any) -> Iterator[None]:
    """Attach one way, and undo it at the end."""
    undo = attach(*given)
    yield
    undo()


def training(timed: Timed) -> tuple[dict[str, float], dict[str, float]]:
    """Measure ten steps of the MLP of sixteen leaves under ``watch``."""
    torch.manual_seed(0)
    model, x = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ways = {
        "bare": watch.bare,
        "floor": watch.floor,
        "every step": watch.watching(1),
        "every 10th": watch.watching(10),
        "no step": watch.watching(watch.NEVER),
    }
    entered = {name: partial(attached, attach, model, optimizer) for name, attach in ways.items()}
    found = timed(entered, lambda: watch.train(model, optimizer, x, watch.BLOCK), warm_up=1, repeats=2)
    ratios = {f"watch, {name} / bare": found[name] / found["bare"] for name in ("every step", "every 10th", "no step")}
    return found, {"watch, every step / floor": found["every step"] / found["floor"]} | ratios


def one_event(timed: Timed) -> tuple[dict[str, float], dict[str, float]]:
    """Measure events to a trivial subscriber, and copies that are kept."""
    net, x = chain(PAIRS, WIDTH), torch.randn(BATCH, WIDTH)

    def measured(run: Callable[[nn.Module, Tensor], None], **ways: Callable[[nn.Module], Callable[[], object]]) -> dict[str, float]:
        entered = {name: partial(attached, attach, net) for name, attach in ways.items()}
        return timed(entered, lambda: run(net, x), warm_up=events.WARM_UP, repeats=events.REPEATS)

    with torch.no_grad():
        ahead = measured(
            events.forward,
            bare=events.nothing,
            by_hand=events.by_hand_forward,
            observed=events.sonde_forward,
            resting=events.sonde_resting,
        )
    back = measured(
        events.both,
        by_hand=events.by_hand_backward,
        observed=events.sonde_backward,
        copies=events.by_hand_copies,
        track=events.sonde_track,
    )
    return {f"forward, {name}": value for name, value in ahead.items()} | {
        f"backward, {name}": value for name, value in back.items()
    }, {
        "event of an output / hook by hand": ahead["observed"] / ahead["by_hand"],
        "event of a gradient / hook by hand": back["observed"] / back["by_hand"],
        "observe between its steps / bare": ahead["resting"] / ahead["bare"],
        "track / copies by hand": back["track"] / back["copies"],
    }


def attaching(timed: Timed) -> tuple[dict[str, float], dict[str, float]]:
    """Measure an observer that is attached anew around each step."""
    net, x = chain(PAIRS, WIDTH), torch.randn(BATCH, WIDTH)

    @contextmanager
    def by_hand() -> Iterator[None]:
        handles = copies_by_hand(net, [])
        yield
        for handle in handles:
            handle.remove()

    def step() -> None:
        net(x).sum().backward()

    def around(make: Callable[[], AbstractContextManager[Any]], run: Callable[[], object]) -> Callable[[], None]:
        def way() -> None:
            with make():
                run()

        return way

    observers: dict[str, Callable[[], None]] = {
        "bare": step,
        "copies by hand": around(by_hand, step),
        "track": around(lambda: sonde.track(net), step),
        "observe(Moments()), all ports": around(lambda: sonde.observe(net, Moments(), ports=ALL_PORTS), step),
        "torch's ModuleTracker": around(ModuleTracker, lambda: net(x)),
        "ModuleTracker": around(sonde.ModuleTracker, lambda: net(x)),
    }
    now = [step]

    def run() -> None:
        now[0]()

    @contextmanager
    def chosen(way: Callable[[], None]) -> Iterator[None]:
        now[:] = [way]
        yield

    found = timed({name: partial(chosen, way) for name, way in observers.items()}, run, warm_up=1, repeats=3)
    return found, {
        "track around a step / copies by hand": found["track"] / found["copies by hand"],
        "observe(Moments()) around a step / bare": found["observe(Moments()), all ports"] / found["bare"],
        "ModuleTracker around a forward / torch's": found["ModuleTracker"] / found["torch's ModuleTracker"],
    }


def capturing(timed: Timed) -> tuple[dict[str, float], dict[str, float]]:
    """Measure the capture of a graph."""
    net, x = chain(PAIRS, WIDTH), torch.randn(BATCH, WIDTH)
    ways: dict[str, Callable[[], object]] = {
        "forward": lambda: net(x),
        "modules": lambda: capture(net, x, operations=False),
        "operations": lambda: capture(net, x),
    }
    found = {}
    for name, run in ways.items():  # one by one: a capture leaves caches cold for the next forward
        found |= timed({name: nullcontext}, run, warm_up=1, repeats=20 if name == "forward" else 1)
    return found, {
        "capture of modules / forward": found["modules"] / found["forward"],
        "capture of operations / forward": found["operations"] / found["forward"],
    }


PARTS: dict[str, Part] = {"training": training, "events": one_event, "attaching": attaching, "capture": capturing}

GOALS = {
    "watch, every step / floor": 1.0,
    "watch, every 10th / bare": 1.08,
    "watch, no step / bare": 1.02,
    "event of an output / hook by hand": 1.3,
    "event of a gradient / hook by hand": 1.3,
    "observe between its steps / bare": 1.01,
    "track / copies by hand": 1.1,
    "ModuleTracker around a forward / torch's": 0.5,
}


def first_decile(values: list[float]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"keep the ratios in {COMMITTED.name}, to be committed")
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long to measure (default: 60)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    began = time.perf_counter()
    ratios: dict[str, float] = {}
    raw: dict[str, dict[str, float]] = {}
    calls = {"training": 1, "events": 2, "attaching": 1, "capture": 3}  # of timed(), in each part
    for name, part in PARTS.items():
        share = options.seconds / len(PARTS) / calls[name]
        raw[name], found = part(partial(medians, rounds=400, clock=time.thread_time, seconds=share, of=first_decile))
        ratios |= found
    committed, said = read(COMMITTED)
    print(f"here: {machine()}, torch {torch.__version__}, 1 thread, {time.perf_counter() - began:.0f} s\n{said}\n")
    print("\n".join(compared(ratios, committed, GOALS)))
    print("\n" + json.dumps(raw))
    if options.write:
        write(COMMITTED, ratios)


if __name__ == "__main__":
    main()
