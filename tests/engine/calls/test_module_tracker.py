"""Which module call an operation belongs to, forward and backward: every defect of the original, and hand-written expectations."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import sonde
from sonde.errors import ModelError

X = torch.ones(1, 2)


class Operations(TorchDispatchMode):
    """Notes each operation of interest with its phase and the calls that a tracker lists, ``name`` or ``name#call``."""

    def __init__(self, tracker: sonde.ModuleTracker, *names: str) -> None:
        super().__init__()
        self.tracker, self.names, self.rows = tracker, names, list[tuple[str, str, str]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name in self.names:
            assert self.tracker.parents == {"Global", *(call.name for call in self.tracker.stack)}
            calls = (call.name + (f"#{call.call}" if call.call else "") for call in self.tracker.stack)
            self.rows.append((name, self.tracker.phase, " ".join(calls)))
        return func(*args, **(kwargs or {}))

    def of(self, phase: str) -> list[str]:
        """Where the operations of that phase belong, in order."""
        return [calls for _, held, calls in self.rows if held == phase]


def linear() -> nn.Linear:
    return nn.Linear(2, 2, bias=False)


class Branches(nn.Module):
    """Two branches from one input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


def products(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
    """Where the matrix products of forward and of backward belong."""
    with sonde.ModuleTracker() as tracker, Operations(tracker, "mm", "addmm") as seen:
        model(*args, **kwargs).sum().backward()
    return seen.of("forward"), seen.of("backward")


# The original's defects, M1 to M18


def test_m1_branches_from_an_input_without_gradient_are_told_apart() -> None:
    """During the backward of one branch the other is not listed."""
    assert products(Branches(), X) == (
        ["Branches Branches.a", "Branches Branches.b"],
        ["Branches Branches.b", "Branches Branches.a"],
    )


def test_m2_a_module_called_twice_is_listed_in_both_backwards() -> None:
    """A reused module: the second call's backward comes first, each under its index."""

    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = linear()

        def forward(self, x: Tensor) -> Tensor:
            return self.a(self.a(x))

    forward, backward = products(Reused(), X)
    assert forward == ["Reused Reused.a", "Reused Reused.a#1"]
    assert backward == ["Reused Reused.a#1", "Reused Reused.a#1", "Reused Reused.a"]  # weight and input; the first input needs none


def test_m3_a_recursive_module_is_listed_at_every_depth() -> None:
    """The stack grows and shrinks with the recursion, and backward goes through it the other way round."""

    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = linear()

        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            x = self.a(x)
            return self(x, depth - 1) if depth else x

    model = Recursive()
    forward, backward = products(model, X)
    first, second, third = (
        "Recursive Recursive.a",
        "Recursive Recursive#1 Recursive.a#1",
        "Recursive Recursive#1 Recursive#2 Recursive.a#2",
    )
    assert forward == [first, second, third]
    assert backward == [third, third, second, second, first]


def test_m4_a_shared_module_has_the_name_it_is_called_by_and_one_path() -> None:
    """``name`` is as called, ``path`` is canonical, calls are counted by module."""

    class Holder(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x)

    shared = linear()
    model = nn.Sequential(Holder(shared), Holder(shared))
    seen: list[tuple[str, str, int | None]] = []
    with sonde.ModuleTracker(enter=lambda call: seen.append((call.name, call.path, call.call))):
        model(X)
    assert [line for line in seen if line[0].endswith("part")] == [
        ("Sequential.0.part", "0.part", 0),
        ("Sequential.1.part", "0.part", 1),
    ]
    assert products(model, X)[1] == [
        "Sequential Sequential.1 Sequential.1.part#1",
        "Sequential Sequential.1 Sequential.1.part#1",
        "Sequential Sequential.0 Sequential.0.part",
    ]


def test_m5_a_child_called_alone_first_and_two_models_of_one_class() -> None:
    """A label is one model's; a part that was met alone takes its name in the whole; a model given beforehand names its parts."""
    one, two = nn.Sequential(linear()), nn.Sequential(linear())
    with sonde.ModuleTracker() as tracker:
        one[0](X)
        assert tracker.modules == {"Linear": one[0]}
        one(X)
        two(X)
        assert tracker.modules == {"Sequential": one, "Sequential.0": one[0], "Sequential-2": two, "Sequential-2.0": two[0]}
    with sonde.ModuleTracker(two) as tracker, Operations(tracker, "mm") as seen:
        two[0](X)
    assert seen.of("forward") == ["Sequential.0"]


def test_m6_what_follows_the_label_is_the_key_of_the_state_dict() -> None:
    """A name without its label, or a call's path, with the parameter's own name is a key of the ``state_dict``."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    with sonde.ModuleTracker(model) as tracker:
        names = [name.removeprefix("Sequential").removeprefix(".") for name in tracker.modules]
    assert names == [name for name, _ in model.named_modules()]
    paths: list[str] = []
    with sonde.ModuleTracker(enter=lambda call: paths.append(call.path)):
        model(X)
    assert paths == ["", "0", "1", "1.0"]
    assert {f"{path}.weight" for path in ("0", "1.0")} <= set(model.state_dict())


@dataclasses.dataclass
class Plain:
    value: Tensor


class Structured(nn.Module):
    """Its middle layer takes a keyword and returns a plain dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.d = linear(), Wrapping()

    def forward(self, x: Tensor) -> Tensor:
        out: Plain = self.d(value=self.c(x))
        return out.value


class Wrapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = linear()

    def forward(self, *, value: Tensor) -> Plain:
        return Plain(self.a(value).mm(torch.eye(2)))


def test_m9_m10_dataclass_outputs_and_keyword_tensors() -> None:
    """Backward enters a module that returns a plain dataclass, and leaves one that got its tensor by keyword."""
    forward, backward = products(Structured(), X)
    d, a, c = "Structured Structured.d", "Structured Structured.d Structured.d.a", "Structured Structured.c"
    assert forward == [c, a, d]
    assert backward == [d, a, a, c]


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise ArithmeticError("in backward")


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.where = linear(), linear(), ""

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = Fails.apply(x) if self.where == "backward" else x
        x = self.b(x)
        if self.where == "forward":
            raise ArithmeticError("in forward")
        return x


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_m11_m12_nothing_stays_after_an_exception(where: str) -> None:
    """After an exception that was caught, nothing runs, and the next forward and backward are told right."""
    model, other = Failing(), Branches()
    with sonde.ModuleTracker() as tracker, Operations(tracker, "mm") as seen:
        model.where = where
        with pytest.raises(ArithmeticError):
            model(X).sum().backward()
        assert (tracker.parents, tracker.stack, tracker.is_bw, tracker.phase) == ({"Global"}, (), False, "forward")
        model.where = ""
        seen.rows.clear()
        other(X).sum().backward()
        model(X).sum().backward()
    assert seen.of("forward") == ["Branches Branches.a", "Branches Branches.b", "Failing Failing.a", "Failing Failing.b"]
    assert seen.of("backward")[2:] == ["Failing Failing.b", "Failing Failing.b", "Failing Failing.a"]


def test_m13_an_output_that_is_not_used() -> None:
    """Of two outputs one is used: the backward goes through the calls that made it and no other."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = linear(), linear()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    with sonde.ModuleTracker() as tracker, Operations(tracker, "mm") as seen:
        Two()(X)[0].sum().backward()
    assert seen.of("backward") == ["Two Two.a"]


def test_m14_nothing_is_hung_on_modules_or_tensors() -> None:
    """No hook is on any module or tensor, however many steps there were."""
    model = Branches()
    with sonde.ModuleTracker():
        outputs = [model(X) for _ in range(50)]
    assert not any(output._backward_hooks for output in outputs)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_m15_entering_the_same_tracker_twice() -> None:
    """The inner exit ends nothing, the outer one everything; it can be entered again."""
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    before = len(hooks)
    tracker, model = sonde.ModuleTracker(), Branches()
    for _ in range(2):
        with tracker:
            with tracker, Operations(tracker, "mm") as seen:
                model(X)
            with Operations(tracker, "mm") as again:
                model(X)
            assert len(hooks) == before + 1
        assert seen.rows == again.rows
        assert len(seen.rows) == 2
        assert len(hooks) == before
        assert tracker.parents == {"Global"}


def test_m18_stack_modules_and_repr() -> None:
    """Calls from root to leaf with path, module, index and name; a map from name to module; and what it looks like."""
    model = nn.Sequential(nn.Sequential(linear()))
    texts: list[str] = []
    stacks: list[tuple[sonde.types.ModuleCall, ...]] = []
    tracker = sonde.ModuleTracker()
    assert repr(tracker) == "ModuleTracker(not entered)"

    def note(*_: Any) -> None:
        texts.append(repr(tracker))
        stacks.append(tracker.stack)

    model[0][0].register_forward_hook(note)
    with tracker:
        model(X)
        assert repr(tracker) == "ModuleTracker(forward of no module)"
    assert texts == ["ModuleTracker(forward of Sequential.0)"]  # the module's own hook runs after the tracker's
    assert stacks == [(("", model, 0, "Sequential"), ("0", model[0], 0, "Sequential.0"))]
    assert tracker.modules == {"Sequential": model, "Sequential.0": model[0], "Sequential.0.0": model[0][0]}


# What else is promised


def test_is_bw_and_phase() -> None:
    """Backward is told while it runs and not a moment longer."""
    model = Branches()
    seen: list[tuple[bool, str]] = []
    with sonde.ModuleTracker() as tracker:
        model.a.register_forward_hook(lambda *_: seen.append((tracker.is_bw, tracker.phase)))
        loss = model(X).sum()
        loss.register_hook(lambda _: seen.append((tracker.is_bw, tracker.phase)))
        loss.backward()
        seen.append((tracker.is_bw, tracker.phase))
    assert seen == [(False, "forward"), (True, "backward"), (False, "forward")]


def test_the_gradient_of_a_parameter_belongs_to_its_module_and_no_call() -> None:
    """While ``.grad`` is written the owner is listed, without an index; a tensor that is no parameter has no owner."""
    model = nn.Sequential(linear())
    seen: list[tuple[set[str], list[int | None]]] = []
    x = X.clone().requires_grad_()
    with sonde.ModuleTracker() as tracker:
        for leaf in (model[0].weight, x):
            leaf.register_post_accumulate_grad_hook(
                lambda _: seen.append((tracker.parents, [call.call for call in tracker.stack])),
            )
        model(x).sum().backward()
    assert len(seen) == 2
    assert ({"Global", "Sequential", "Sequential.0"}, [None, None]) in seen
    assert ({"Global"}, []) in seen


def test_the_owner_of_a_parameter_is_known_once_its_model_is() -> None:
    """A gradient that is written before the model was ever called has no owner, and later it has."""
    model, seen = nn.Sequential(linear()), list[set[str]]()
    with sonde.ModuleTracker() as tracker:
        model[0].weight.register_post_accumulate_grad_hook(lambda _: seen.append(tracker.parents))
        nn.functional.linear(X, model[0].weight).sum().backward()
        model(X).sum().backward()
    assert seen == [{"Global"}, {"Global", "Sequential", "Sequential.0"}]


def test_what_is_no_model_is_refused() -> None:
    """A class, or a tensor, cannot be known by name beforehand."""
    with pytest.raises(ModelError, match="make one first"):
        sonde.ModuleTracker(nn.Linear)  # type: ignore[arg-type]


GROWTH = """
import gc, torch, sonde
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
    def forward(self, x):
        return nn.Softmax(-1)(checkpoint(self.b, self.a(x), use_reentrant=False))

model, x = Net(), torch.randn(1, 2)

def objects_after(steps):
    for _ in range(steps):
        model(x).sum().backward()
    gc.collect()
    return len(gc.get_objects())

callbacks = dict.fromkeys(("enter", "leave", "enter_backward", "leave_backward"), lambda call: None)
with sonde.ModuleTracker(**callbacks, strict=True), sonde.ModuleTracker():
    objects_after(100)
    print(objects_after(100), objects_after(9_800))
"""


@pytest.mark.slow
def test_nothing_grows_over_ten_thousand_steps() -> None:
    """Objects are as many after ten thousand steps as after a hundred, though each step makes and drops a module."""
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after - before < 10


def test_a_tracker_that_the_collector_has_found_leaves_no_names_that_are_gone() -> None:
    """Python ends the weak references of garbage before a tracker among it is told that it is deleted."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    seen: list[set[str]] = []
    for _ in range(3):
        tracker = sonde.ModuleTracker()
        handle = net[1].register_forward_pre_hook(lambda *_, tracker=tracker: seen.append(set(tracker.parents)))
        with tracker:
            net(torch.ones(1, 2))
        handle.remove()
        cycle: list[Any] = [tracker]
        cycle.append(cycle)
        del tracker, cycle
        gc.collect()
    assert seen == [{"Global", "Sequential", "Sequential.1"}] * 3
