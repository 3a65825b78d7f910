"""Measure the cost of an event: sonde against hooks written by hand that do the same, and against peers.

Run alone (``make bench``): any other program distorts the numbers. All ways are timed in one process, one after the other
in every round. The table gives medians over rounds; the raw medians are printed as JSON at the end. "Share" is the time
beyond the bare model, divided by the same time of the hand-written hook.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

import sonde
from interleaved import medians
from models import chain, copies_by_hand
from sonde.keep import default_stash, default_stash_value

DEPTH, WIDTH, BATCH = 40, 16, 4
ROUNDS, REPEATS = 41, 10
WARM_UP = 17  # forwards after attaching that are not timed: sonde checks the model for changes at the 2nd, 4th, 8th and 16th
SLOW_ROUNDS = 5

sink: list[object] = []


def calls(net: nn.Module) -> int:
    return sum(1 for _ in net.modules())


def forward(net: nn.Module, x: Tensor) -> None:
    net(x)
    sink.clear()


def both(net: nn.Module, x: Tensor) -> None:
    net(x).sum().backward()
    sink.clear()


def by_hand_forward(net: nn.Module) -> Callable[[], None]:
    def hook(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        sink.append(output)

    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in net.modules()]
    return lambda: [handle.remove() for handle in handles]


def by_hand_backward(net: nn.Module) -> Callable[[], None]:
    def hook(module: nn.Module, args: tuple, output: Tensor) -> None:
        output.register_hook(sink.append)

    handles = [module.register_forward_hook(hook) for module in net.modules()]
    return lambda: [handle.remove() for handle in handles]


def by_hand_copies(net: nn.Module) -> Callable[[], None]:
    handles = copies_by_hand(net, sink)
    return lambda: [handle.remove() for handle in handles]


def full_backward_hooks(net: nn.Module) -> Callable[[], None]:
    handles = [module.register_full_backward_pre_hook(lambda module, gradient: sink.append(gradient)) for module in net.modules()]
    return lambda: [handle.remove() for handle in handles]


def sonde_forward(net: nn.Module) -> Callable[[], None]:
    return sonde.observe(net, lambda event: sink.append(event.value)).detach


def sonde_backward(net: nn.Module) -> Callable[[], None]:
    return sonde.observe(net, lambda event: sink.append(event.value), ports="grad_output").detach


def sonde_track(net: nn.Module) -> Callable[[], None]:
    def keep(event: sonde.types.Event) -> None:
        sink.append(default_stash(event, default_stash_value))

    probe = sonde.observe(net, keep, ports=("output", "grad_output"))
    return probe.detach


def sonde_resting(net: nn.Module) -> Callable[[], None]:
    return sonde.observe(net, lambda event: sink.append(event.value), every=lambda tick: False).detach


def nothing(net: nn.Module) -> Callable[[], None]:
    return lambda: None


Way = tuple[str, Callable[[nn.Module], Callable[[], None]]]


def measure(ways: list[Way], run: Callable[[nn.Module, Tensor], None]) -> dict[str, float]:
    """Return the median microseconds per module call of each way."""
    x, net = torch.randn(BATCH, WIDTH), chain(DEPTH, WIDTH)

    @contextmanager
    def attached(attach: Callable[[nn.Module], Callable[[], None]]) -> Iterator[None]:
        undo = attach(net)
        yield
        undo()

    entered = {name: partial(attached, attach) for name, attach in ways}
    seconds = medians(entered, lambda: run(net, x), rounds=ROUNDS, warm_up=WARM_UP, repeats=REPEATS)
    return {name: value / calls(net) * 1e6 for name, value in seconds.items()}


def peers(base: float) -> dict[str, float]:
    """Return the median microseconds per module call of peers that keep every module's output, forward only."""
    found: dict[str, float] = {}
    net, x = chain(DEPTH, WIDTH), torch.randn(BATCH, WIDTH)

    def clock(run: Callable[[], object]) -> float:
        run()
        values = []
        for _ in range(SLOW_ROUNDS):
            start = time.perf_counter()
            run()
            values.append((time.perf_counter() - start) / calls(net) * 1e6)
        return statistics.median(values)

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            import nnsight

            wrapped = nnsight.NNsight(net)

            def by_nnsight() -> object:
                with wrapped.trace(x) as tracer:
                    cache = tracer.cache(device=None)
                return cache  # noqa: RET504  # nnsight parses the body of the block again, where nothing may return

            found["nnsight 0.8.1, cache of all modules"] = clock(by_nnsight)
        except Exception as error:
            print(f"nnsight: {type(error).__name__}: {error}")
        try:
            import torchlens

            found["TorchLens 2.36.1, trace"] = clock(lambda: torchlens.trace(chain(DEPTH, WIDTH), x))
        except Exception as error:
            print(f"torchlens: {type(error).__name__}: {error}")
    return found


def show(title: str, times: dict[str, float], bare: str, hand: str) -> None:
    print(f"\n{title}\n{'':<46} us/call  whole   share")
    for name, value in times.items():
        whole = value / times[hand]
        share = (value - times[bare]) / (times[hand] - times[bare])
        print(f"  {name:<44} {value:7.2f}  {whole:5.2f}  {'' if name == bare else f'{share:5.2f}'}")


def main() -> None:
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, {DEPTH * 2 + 1} modules of width {WIDTH}, batch {BATCH}, 1 thread, {ROUNDS} rounds x {REPEATS}"
    )
    bare = ("bare model", nothing)
    with torch.no_grad():
        one = measure(
            [
                bare,
                ("hook by hand", by_hand_forward),
                ("sonde.observe", sonde_forward),
                ("sonde between observed steps", sonde_resting),
            ],
            forward,
        )
    show("Forward: each output to a trivial subscriber (no grad)", one, "bare model", "hook by hand")
    two = measure(
        [
            bare,
            ("tensor hook by hand", by_hand_backward),
            ("sonde.observe", sonde_backward),
            ("full backward hooks (the seed's way)", full_backward_hooks),
        ],
        both,
    )
    show("Backward: each output gradient to a trivial subscriber", two, "bare model", "tensor hook by hand")
    three = measure([bare, ("copies by hand", by_hand_copies), ("stashes of sonde.track", sonde_track)], both)
    show("Keeping: copies of outputs and gradients", three, "bare model", "copies by hand")
    four = {"bare model": one["bare model"], "hook by hand": one["hook by hand"], "sonde.observe": one["sonde.observe"]} | peers(
        one["bare model"]
    )
    show("Peers that keep every module's output (no gradients)", four, "bare model", "hook by hand")
    print("\n" + json.dumps({"forward": one, "backward": two, "keeping": three, "peers": four}))


if __name__ == "__main__":
    main()
