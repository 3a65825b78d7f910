"""``where()``: the module call that runs, asked from anywhere."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.types import Whereabouts

X = torch.ones(1, 2)


class Asks(torch.autograd.Function):
    """An operation of the user's own that asks in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, asked: list[Whereabouts]) -> Tensor:
        ctx.asked = asked
        asked.append(sonde.where())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.asked.append(sonde.where())
        return gradients[0], None


class Asking(nn.Module):
    """Asks in its forward and in the backward of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Whereabouts] = []

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = Asks.apply(x, self.asked)
        return made


class Net(nn.Module):
    """Calls its asking layer twice, inside a block."""

    def __init__(self) -> None:
        super().__init__()
        self.asking = Asking()
        self.block = nn.Sequential(nn.Linear(2, 2), self.asking)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(self.block(x))
        return y


def told(asked: list[Whereabouts]) -> list[str]:
    """The answers as text; they are forgotten."""
    texts = [str(answer) for answer in asked]
    asked.clear()
    return texts


def test_in_a_forward_nothing_needs_to_be_set_up() -> None:
    """Without a tracker the stack is there, the module under its canonical name, without an index."""
    net = Net()
    net(X)
    answer = net.asking.asked[0]
    assert (answer.phase, answer.path, answer.call, answer.known) == ("forward", "asking", None, True)
    assert [(call.path, call.module, call.call) for call in answer.stack] == [
        ("", net, None),
        ("block", net.block, None),
        ("asking", net.asking, None),
    ]
    assert told(net.asking.asked) == ["forward of Net.asking"] * 2


def test_with_a_tracker_the_index_and_the_backward_are_known() -> None:
    """The answers of the tracker that was entered before the forward."""
    net = Net()
    with sonde.ModuleTracker():
        net(X).sum().backward()
    assert told(net.asking.asked) == [
        "forward of Net.block.1 (call 0)",
        "forward of Net.block.1 (call 1)",
        "backward of Net.block.1 (call 1)",
        "backward of Net.block.1 (call 0)",
    ]


def test_in_a_backward_without_a_tracker_it_says_that_it_does_not_know() -> None:
    """Neither a wrong module nor none at all: the text tells what to do."""
    net = Net()
    net(X).sum().backward()
    answer = net.asking.asked[-1]
    assert answer == Whereabouts("backward", (), known=False)
    assert (answer.path, answer.call) == (None, None)
    assert str(answer) == "backward of an unknown module: enter a ModuleTracker before the forward"


@pytest.mark.parametrize("tracked", [False, True])
def test_outside_of_everything(tracked: bool) -> None:
    """No module runs, and that is known."""
    with sonde.ModuleTracker() if tracked else nullcontext():
        Net()(X)
        answer = sonde.where()
    assert answer == Whereabouts("forward", (), known=True)
    assert str(answer) == "forward of no module"


@pytest.mark.parametrize("tracked", [False, True])
def test_in_hooks_of_modules(tracked: bool) -> None:
    """The module whose hook asks is running, before and after its own forward."""
    net, asked = Net(), list[Whereabouts]()
    net.block[0].register_forward_pre_hook(lambda *_: asked.append(sonde.where()))
    net.block[0].register_forward_hook(lambda *_: asked.append(sonde.where()))
    with sonde.ModuleTracker() if tracked else nullcontext():
        net(X)
    assert [answer.path for answer in asked] == ["block.0"] * 4


def test_in_hooks_of_tensors() -> None:
    """The hook of a tensor runs as the backward of what made it begins."""
    net, asked = Net(), list[Whereabouts]()
    net.block[0].register_forward_hook(lambda _, args, output: output.register_hook(lambda _: asked.append(sonde.where())) and None)
    with sonde.ModuleTracker():
        net(X).sum().backward()
    assert told(asked) == ["backward of Net.block.0 (call 1)", "backward of Net.block.0 (call 0)"]


def test_in_a_dispatch_mode() -> None:
    """Every operation of the forward, without a tracker."""

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.addmm.default:
                asked.append(sonde.where())
            return func(*args, **(kwargs or {}))

    asked: list[Whereabouts] = []
    with Mode():
        Net()(X)
    assert told(asked) == ["forward of Net.block.0"] * 2


def test_in_a_recomputation() -> None:
    """A checkpoint that repeats a forward is told from a forward and from a backward."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(Asking(), nn.Tanh())

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.part, x, use_reentrant=False)

    net = Checkpointed()
    with sonde.ModuleTracker():
        net(X.clone().requires_grad_()).sum().backward()
    name = "Checkpointed.part.0 (call 0)"
    assert told(net.part[0].asked) == [f"forward of {name}", f"recompute of {name}", f"backward of {name}"]


def test_in_wrappers_threads_and_other_models() -> None:
    """A wrapper does not show; another model begins a name of its own; a thread sees its own calls."""
    net = Net()
    nn.DataParallel(net)(X)
    assert told(net.asking.asked) == ["forward of Net.asking"] * 2

    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Any:
            thread = threading.Thread(target=lambda: asked.append(sonde.where()))
            thread.start()
            thread.join()
            return net(x)

    asked: list[Whereabouts] = []
    Outer()(X)
    assert told(asked) == ["forward of no module"]
    assert [call.name for call in net.asking.asked[0].stack] == ["Outer", "Net", "Net.block", "Net.asking"]
    assert net.asking.asked[0].path == "asking"


def test_a_tracker_entered_in_the_middle_of_a_forward_hides_nothing() -> None:
    """It knows only a part of the stack, the Python stack all of it."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.asking = Asking()

        def forward(self, x: Tensor) -> Any:
            with sonde.ModuleTracker():
                return self.asking(x)

    net = Late()
    net(X)
    assert [call.name for call in net.asking.asked[0].stack] == ["Late", "Late.asking"]


def test_a_recursive_module_is_listed_at_each_depth() -> None:
    """As often as its calls run."""

    class Recursive(nn.Module):
        def forward(self, x: Tensor, depth: int = 2) -> Any:
            if depth:
                return self(x, depth - 1)
            asked.append(sonde.where())
            return x

    asked: list[Whereabouts] = []
    Recursive()(X)
    assert [len(answer.stack) for answer in asked] == [3]
