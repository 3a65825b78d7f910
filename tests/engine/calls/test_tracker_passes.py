"""Forward and backward in every order, nesting and thread: each operation still has its module call."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engine.calls.tracking import Layer, Net, Operations
from torch import Tensor, nn
from torch.func import functional_call

import sonde

X = torch.ones(1, 2)


def in_turn(net: Net, x: Tensor) -> Tensor:
    return net.b(net.a(x))


def branches(net: Net, x: Tensor) -> Tensor:
    return net.a(x) + net.b(x)


BACKWARD = ["Net Net.b", "Net Net.a"]  # of a net that calls a, then b

needs_gradient = torch.ones(1, 2, requires_grad=True)

# Interrupts


def test_an_interrupt_in_a_forward_leaves_nothing_running() -> None:
    """No hook is called after ``KeyboardInterrupt``; the next call of that model or of another one is told right."""
    net, other = Net(in_turn), Net(branches)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for then in (net, other, nn.Sequential(nn.Linear(2, 2, bias=False))):
        with sonde.ModuleTracker(net, other) as tracker, Operations(tracker, "mm") as seen:
            net(X)
            handle = net.b.register_forward_hook(interrupt)
            with pytest.raises(KeyboardInterrupt):
                net(X)
            handle.remove()
            seen.taken()
            then(X)
            assert tracker.stack == ()
            label = {net: "Net", other: "Net-2"}.get(then, "Sequential")
            assert {calls.split(" ")[0] for _, _, calls in seen.taken()} == {label}


def test_a_parent_that_goes_on_after_an_interrupt_of_its_child() -> None:
    """What a parent catches ends the child only."""

    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    def run(net: Any, x: Tensor) -> Tensor:
        with pytest.raises(KeyboardInterrupt):
            net.c(x)
        return in_turn(net, x)

    net = Net(run)
    net.c = Interrupted()
    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh") as seen:
        net(X)
    assert seen.of("forward") == ["Net Net.a", "Net Net.b"]


# Several models


def test_a_model_inside_the_forward_of_another_that_is_not_its_parent() -> None:
    """It is listed below the call that it runs in, under its own label."""
    helper = Layer()
    net = Net(lambda net, x: net.b(helper(x)))
    with sonde.ModuleTracker() as tracker, Operations(tracker, "mm") as seen:
        net(X).sum().backward()
    inner = "Net Layer Layer.linear"
    assert seen.of("forward") == [inner, "Net Net.b Net.b.linear"]
    assert seen.of("backward")[-1] == inner


def test_wrappers_of_data_parallel_training_do_not_show() -> None:
    """``DataParallel`` on a CPU just calls its module."""
    net = Net(in_turn)
    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh") as seen:
        nn.DataParallel(net)(X)
        net(X)
    assert seen.of("forward") == ["Net Net.a", "Net Net.b"] * 2


def test_modules_that_are_made_and_dropped_inside_a_forward() -> None:
    """They have a label of their own while they live; in the backward the call is known though the module is gone."""

    def run(net: Net, x: Tensor) -> Tensor:
        return Layer()(net.a(x))

    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh", "tanh_backward") as seen:
        for _ in range(3):
            Net(run)(X).sum().backward()
            gc.collect()
        assert tracker.modules == {}
    assert seen.of("forward") == ["Net Net.a", "Net Layer"] * 3
    assert seen.of("backward") == ["Net Layer", "Net Net.a"] * 3


def test_a_functional_call_belongs_to_the_module() -> None:
    """``functional_call`` with other tensors for parameters."""
    net = Net(in_turn)
    parameters = {name: tensor.detach().clone().requires_grad_() for name, tensor in net.named_parameters()}
    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh", "tanh_backward") as seen:
        functional_call(net, parameters, (X,)).sum().backward()
    assert (seen.of("forward"), seen.of("backward")) == (["Net Net.a", "Net Net.b"], BACKWARD)


# Backward passes of every kind


def test_a_gradient_penalty_inside_the_forward() -> None:
    """What ``autograd.grad`` runs belongs to the modules whose backward it is; the nodes it makes to the call that asked."""

    def run(net: Net, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net.a(x).sum(), x, create_graph=True)
        return net.b(x) + slope.square().sum()

    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh", "mm") as seen:
        loss = Net(run)(X).sum()
        made = seen.taken()
        loss.backward()
    a, b = "Net Net.a Net.a.linear", "Net Net.b Net.b.linear"
    assert made == [
        ("mm", "forward", a),
        ("tanh", "forward", "Net Net.a"),
        ("mm", "backward", a),
        ("mm", "forward", b),
        ("tanh", "forward", "Net Net.b"),
    ]
    assert {phase for _, phase, _ in seen.rows} == {"backward"}
    assert {calls for _, _, calls in seen.rows} == {"Net", a, b}


def test_what_is_outside_of_every_module_belongs_to_none() -> None:
    """The operations of a loss, before and after the model, forward and backward."""
    net = Net(in_turn)
    with sonde.ModuleTracker() as tracker, Operations(tracker, "sin", "cos", "tanh_backward") as seen:
        for _ in range(2):
            net(needs_gradient.sin()).sin().sum().backward()
    assert seen.of("forward") == [""] * 4
    assert seen.of("backward") == ["", *BACKWARD, ""] * 2


def test_backward_twice_and_out_of_order() -> None:
    """Graphs of earlier forwards, run late, twice and in another order, are those of their own calls."""
    nets = [Net(in_turn), Net(branches), Net(in_turn)]
    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh_backward") as seen:
        losses = [net(X).sum() for net in nets]
        for index in (1, 2, 0, 1):
            losses[index].backward(retain_graph=True)
    labels = ["Net", "Net-2", "Net-3"]
    assert seen.of("backward") == [f"{label} {label}.{part}" for label in (labels[i] for i in (1, 2, 0, 1)) for part in "ba"]


def test_forty_forwards_before_one_backward_each() -> None:
    """Graphs that are kept keep their calls, however many there are; those that are dropped do not."""
    net = Net(lambda net, x: net.a(x) if x.sum() > 2 else net.b(x))
    with sonde.ModuleTracker() as tracker, Operations(tracker, "tanh_backward") as seen:
        losses = [net(X * (1 + index % 2)).sum() for index in range(40)]
        for loss in losses:
            loss.backward()
        expected = ["Net Net.b", "Net Net.a"] * 20
        assert seen.of("backward") == expected
        torch.stack([net(X * (1 + index % 2)).sum() for index in range(40)]).sum().backward()
        assert seen.of("backward") == expected + expected[::-1]


def test_two_trackers_at_once_see_the_same() -> None:
    """Neither disturbs the other, also if the outer one is left first."""
    net, one, two = Net(in_turn), sonde.ModuleTracker(), sonde.ModuleTracker()
    one.__enter__()
    with two, Operations(one, "tanh_backward") as seen, Operations(two, "tanh_backward") as also:
        net(X).sum().backward()
        one.__exit__()
        net(X).sum().backward()
    assert (seen.of("backward"), also.of("backward")) == ([*BACKWARD, "", ""], BACKWARD * 2)


# Threads (M17)


def in_thread(work: Callable[[], Any]) -> Any:
    """What *work* returns in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_threads_see_each_their_own() -> None:
    """While one thread is inside its model, the other sees nothing of it."""
    inside, seen_outside = threading.Event(), threading.Event()
    net = Net(lambda net, x: (inside.set(), seen_outside.wait(10), net.a(x))[-1])
    with sonde.ModuleTracker() as tracker:
        thread = threading.Thread(target=net, args=(X,))
        thread.start()
        assert inside.wait(10)
        assert tracker.parents == {"Global"}
        stacks: list[list[str]] = []
        other = Layer()
        other.linear.register_forward_pre_hook(lambda *_: stacks.append([call.name for call in tracker.stack]))
        other(X)
        seen_outside.set()
        thread.join()
    assert stacks == [["Layer", "Layer.linear"]]


def test_a_backward_in_another_thread_than_the_forward() -> None:
    """Each thread numbers its own nodes: equal numbers of another graph, made by the thread of the backward, do not confuse."""
    first, second = Net(in_turn), Net(branches)
    with sonde.ModuleTracker(first, second) as tracker, Operations(tracker, "tanh_backward") as seen:

        def backward_of(loss: Tensor) -> list[str]:
            kept = second(X).sum()  # noqa: F841  # lives beside the other, with the same numbers
            with Operations(tracker, "tanh_backward") as here:
                loss.backward()
            return here.of("backward")

        made = in_thread(lambda: first(X).sum())
        assert in_thread(lambda: backward_of(made)) == BACKWARD
        again = in_thread(lambda: second(X).sum())
        again.backward()
    assert seen.of("backward") == ["Net-2 Net-2.b", "Net-2 Net-2.a"]


def test_a_module_made_in_the_forward_lies_in_its_caller() -> None:
    """Its path is no other module's, and the modules in it have paths below; made again, it has the same."""

    class Making(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = nn.Sequential(nn.Softmax(-1))(self.part(x))
            return out

    seen: list[tuple[str, str]] = []
    with sonde.ModuleTracker(enter=lambda call: seen.append((call.path, call.name))):
        model = Making()
        for _ in range(2):
            model(torch.ones(1, 4))
    made = [("", "Making"), ("part", "Making.part"), ("part.0", "Making.part.0")]
    made += [("Sequential()", "Sequential"), ("Sequential().0", "Sequential.0")]
    assert seen == made * 2
