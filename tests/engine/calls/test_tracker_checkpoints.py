"""What an activation checkpoint repeats is told with the calls that it repeats (M7, M8)."""

from __future__ import annotations

import gc

import pytest
import torch
from tests.engine.calls.tracking import Net, Operations
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

import sonde

X = torch.ones(1, 2)


def in_turn(net: Net, x: Tensor) -> Tensor:
    return net.b(net.a(x))


both_modes = pytest.mark.parametrize("reentrant", [False, True])
needs_gradient = torch.ones(1, 2, requires_grad=True)


@both_modes
def test_a_checkpointed_function_is_repeated_under_its_own_calls(reentrant: bool) -> None:
    """Operations before, between and after modules belong to the call that the function runs in, modules to the call repeated."""

    def run(net: Net, x: Tensor) -> Tensor:
        part = lambda x: net.b(net.a(x.sin()).sin()).sin()  # noqa: E731
        x = net.a(x)
        return checkpoint(part, checkpoint(part, x, use_reentrant=reentrant), use_reentrant=reentrant)

    with sonde.ModuleTracker() as tracker, Operations(tracker, "sin", "tanh") as seen:
        Net(run)(needs_gradient).sum().backward()
    part = [("sin", "Net"), ("tanh", "Net Net.a#{}"), ("sin", "Net"), ("tanh", "Net Net.b{}"), ("sin", "Net")]
    first = [(name, calls.format(index)) for (name, calls), index in zip(part, ["", 1, "", "", ""], strict=True)]
    second = [(name, calls.format(index)) for (name, calls), index in zip(part, ["", 2, "", "#1", ""], strict=True)]
    rows = seen.taken()
    assert [(name, calls) for name, phase, calls in rows if phase == "forward"] == [("tanh", "Net Net.a"), *first, *second]
    again = [(name, calls) for name, phase, calls in rows if phase == "recompute"]
    assert again == (second + first if reentrant else second[:-1] + first[:-1])  # the last sin saves its input, so it is not run
    assert {phase for _, phase, _ in rows} == {"forward", "recompute"}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")  # torch, of the reentrant mode nested
@both_modes
def test_nested_checkpoints(reentrant: bool) -> None:
    """What is repeated inside a repetition, and its backward, has the calls of the forward."""

    def run(net: Net, x: Tensor) -> Tensor:
        inner = lambda x: net.a(net.b(x.sin()))  # noqa: E731

        def outer(x: Tensor) -> Tensor:
            x = checkpoint(inner, net.a(x), use_reentrant=reentrant)
            return net.a(checkpoint(inner, x, use_reentrant=reentrant))

        return checkpoint(outer, net.a(x), use_reentrant=reentrant)

    with sonde.ModuleTracker() as tracker, Operations(tracker, "sin", "tanh", "tanh_backward") as seen:
        Net(run)(needs_gradient).sum().backward()
    a, b = "Net Net.a", "Net Net.b"
    one, two = ["Net", b, f"{a}#2"], ["Net", f"{b}#1", f"{a}#3"]
    assert seen.of("forward") == [a, f"{a}#1", *one, *two, f"{a}#4"]
    assert seen.of("recompute") == [f"{a}#1", *one, *two, f"{a}#4", *two, *one]
    backward = [calls for name, phase, calls in seen.rows if name == "tanh_backward" and phase == "backward"]
    assert backward == [f"{a}#4", f"{a}#3", f"{b}#1", f"{a}#2", b, f"{a}#1", a]


@pytest.mark.parametrize("outer", [False, True])
def test_one_mode_of_checkpoint_inside_the_other(outer: bool) -> None:
    """A reentrant checkpoint in one that is not, and the other way round."""

    def run(net: Net, x: Tensor) -> Tensor:
        inner = lambda x: net.b(net.a(x))  # noqa: E731
        whole = lambda x: net.a(checkpoint(inner, net.a(x), use_reentrant=not outer))  # noqa: E731
        return checkpoint(whole, net.a(x), use_reentrant=outer)

    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh", "tanh_backward") as seen:
        Net(run)(needs_gradient).sum().backward()
    a, b = "Net Net.a", "Net Net.b"
    assert seen.of("forward") == [a, f"{a}#1", f"{a}#2", b, f"{a}#3"]
    assert seen.of("recompute") == [f"{a}#1", f"{a}#2", b, f"{a}#3", f"{a}#2", b]
    assert seen.of("backward") == [f"{a}#3", b, f"{a}#2", f"{a}#1", a]


def test_checkpoints_whose_graphs_are_dropped_are_not_taken_for_later_ones() -> None:
    """A new checkpoint may lie at the address of one that is gone; the call that is repeated is still the right one."""

    def run(net: Net, x: Tensor) -> Tensor:
        for _ in range(4):
            checkpoint(net.a, x, use_reentrant=False)
            gc.collect()
        return checkpoint(net.a, x, use_reentrant=False)

    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh") as seen:
        Net(run)(needs_gradient).sum().backward()
    assert seen.of("recompute") == ["Net Net.a#4"]


@both_modes
def test_the_checkpoint_wrapper_is_as_good_as_what_it_wraps(reentrant: bool) -> None:
    """``checkpoint_wrapper`` has no place of its own, neither in the forward nor in the recomputation."""
    net = Net(in_turn)
    mode = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
    net.a = checkpoint_wrapper(net.a, checkpoint_impl=mode)
    with sonde.ModuleTracker() as tracker, Operations(tracker, "mm") as seen:
        net(needs_gradient).sum().backward()
    a, b = "Net Net.a Net.a.linear", "Net Net.b Net.b.linear"
    assert (seen.of("forward"), seen.of("recompute"), seen.of("backward")) == ([a, b], [a], [b, b, a, a])


def test_hooks_on_saved_tensors_alone_are_no_recomputation() -> None:
    """Under ``save_on_cpu`` around the backward the phase is still backward."""
    with sonde.ModuleTracker() as tracker, Operations(tracker, "mm") as seen:
        loss = Net(in_turn)(X).sum()
        with torch.autograd.graph.save_on_cpu():
            loss.backward()
    assert len(seen.of("backward")) == 3


def test_a_recomputation_in_the_middle_of_a_forward() -> None:
    """A gradient that is asked for inside a forward repeats a checkpoint; what the forward makes after that is still its own."""

    def run(net: Net, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        part = checkpoint(net.a, x, use_reentrant=False)
        (slope,) = torch.autograd.grad(part.sum(), x, create_graph=True)
        return net.b(x) + slope.square().sum()

    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh", "tanh_backward") as seen:
        loss = Net(run)(X).sum()
        made = seen.taken()
        loss.backward()
    assert made == [
        ("tanh", "forward", "Net Net.a"),
        ("tanh", "recompute", "Net Net.a"),
        ("tanh_backward", "backward", "Net Net.a"),
        ("tanh", "forward", "Net Net.b"),
    ]
    assert "Net Net.b" in [calls for name, _, calls in seen.rows if name == "tanh_backward"]
