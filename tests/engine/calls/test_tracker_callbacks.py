"""Callbacks of a module tracker: in which order they come, and what happens when one fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.errors import ObservationWarning

X = torch.ones(1, 2)


class Log(list[str]):
    """Callbacks that write down what they are told."""

    def all(self) -> dict[str, Callable[[sonde.types.ModuleCall], None]]:
        """One for each occasion, by the name of the argument."""
        return {
            kind: self._note(mark)
            for kind, mark in (("enter", "+"), ("leave", "-"), ("enter_backward", "<"), ("leave_backward", ">"))
        }

    def _note(self, mark: str) -> Callable[[sonde.types.ModuleCall], None]:
        return lambda call: self.append(f"{mark}{call.name}{f'#{call.call}' if call.call else ''}")

    def taken(self) -> str:
        """All so far on one line, which is forgotten."""
        line = " ".join(self)
        self.clear()
        return line


class Net(nn.Module):
    """One layer called twice, and a backward that fails as long as ``trouble`` is not empty."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.trouble = nn.Linear(2, 2), list[str]()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = Raises.apply(self.a(self.a(x)), self.trouble)
        return made


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, trouble: list[str]) -> Tensor:
        ctx.trouble = trouble
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.trouble:
            raise ArithmeticError
        return gradients[0], None


FORWARD = "+Net +Net.a -Net.a +Net.a#1 -Net.a#1 -Net"
BACKWARD = "<Net <Net.a#1 >Net.a#1 <Net.a >Net.a >Net"


def test_the_order_of_callbacks() -> None:
    """Forward as the calls begin and end; backward the other way round, and all are left when the pass has ended."""
    log, net = Log(), Net()
    with sonde.ModuleTracker(**log.all(), strict=True):
        for _ in range(2):
            loss = net(X).sum()
            assert log.taken() == FORWARD
            loss.backward()
            assert log.taken() == BACKWARD
        with torch.no_grad():
            net(X)
        assert log.taken() == FORWARD
    net(X).sum().backward()
    assert log == []


def test_what_runs_is_listed_in_a_callback() -> None:
    """As it begins, as it ends and in its backward, a call is the innermost of the stack."""
    seen: list[bool] = []
    check = lambda call: seen.append(tracker.stack[-1] == call)  # noqa: E731
    with sonde.ModuleTracker(enter=check, leave=check, enter_backward=check, strict=True) as tracker:
        nn.Sequential(nn.Linear(2, 2))(X).sum().backward()
    assert seen == [True] * 4 + [False, True]  # at a border both are entered at once


def test_a_graph_that_outlives_the_tracker_calls_nothing() -> None:
    """Its nodes keep the hooks, which do nothing any more; a tracker entered again hears of its own graphs only."""
    log, net = Log(), Net()
    with sonde.ModuleTracker(**log.all(), strict=True) as tracker:
        loss = net(X).sum()
    log.clear()
    loss.backward(retain_graph=True)
    assert log == []
    with tracker:
        loss.backward()
    assert log == []


def test_a_backward_that_raises_is_left_when_the_next_one_begins() -> None:
    """As a backward pass raises nothing is heard of it: what was entered is left first thing in the next pass."""
    log, net = Log(), Net()
    with sonde.ModuleTracker(**log.all(), strict=True):
        loss = net(X).sum()
        assert log.taken() == FORWARD
        net.trouble.append("there is")
        with pytest.raises(ArithmeticError):
            loss.backward(retain_graph=True)
        net.trouble.clear()
        assert log.taken() == "<Net"
        loss.backward()  # the same calls once more
        assert log.taken() == f">Net {BACKWARD}"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputation_enters_and_leaves_again(reentrant: bool) -> None:
    """The recomputed call is entered as a forward inside the backward, with the index that it had."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.a, self.a(x), use_reentrant=reentrant)

    log = Log()
    with sonde.ModuleTracker(**log.all(), strict=True) as tracker:
        phases: list[str] = []
        net = Checkpointed()
        net.a.register_forward_pre_hook(lambda *_: phases.append(tracker.phase))
        loss = net(X.clone().requires_grad_()).sum()
        assert log.taken() == "+Checkpointed +Checkpointed.a -Checkpointed.a +Checkpointed.a#1 -Checkpointed.a#1 -Checkpointed"
        loss.backward()
    again = "+Checkpointed.a#1 -Checkpointed.a#1"
    begun = (
        f"{again} <Checkpointed.a#1" if reentrant else f"<Checkpointed.a#1 {again}"
    )  # its own pass comes after it, or is this one
    assert log.taken() == f"<Checkpointed {begun} >Checkpointed.a#1 <Checkpointed.a >Checkpointed.a >Checkpointed"
    assert phases == ["forward", "forward", "recompute"]


def fails(call: sonde.types.ModuleCall) -> None:
    raise ArithmeticError(f"at {call.path or 'root'}")


@pytest.mark.parametrize("kind", ["enter", "leave", "enter_backward", "leave_backward"])
def test_a_callback_that_raises_is_named_once_and_tracking_goes_on(kind: str) -> None:
    """One warning with callback, occasion and cause; it is kept in ``errors``; none is called after that."""
    log, net = Log(), Net()
    callbacks = log.all() | {kind: fails}
    with sonde.ModuleTracker(**callbacks) as tracker:
        with pytest.warns(
            ObservationWarning, match=rf"{kind}=fails raised ArithmeticError at Net.*: at .*Tracking goes on"
        ) as said:
            net(X).sum().backward()
        assert len(said) == 1
        log.clear()
        net(X).sum().backward()
        assert log == []
        assert [str(error.error) for error in tracker.errors] == ["at root" if kind.startswith("enter") else "at a"]
        names: list[str] = []
        net.a.register_forward_pre_hook(lambda *_: names.append(tracker.stack[-1].name))
        net(X)
        assert names == ["Net.a"] * 2


@pytest.mark.filterwarnings("ignore:global module forward hook")  # torch, when the parent is left and it raises once more
@pytest.mark.parametrize("kind", ["enter", "leave", "enter_backward", "leave_backward"])
def test_strict_raises_and_nothing_stays(kind: str) -> None:
    """The callback's own exception comes out of the forward or the backward, after which nothing runs."""
    net = Net()
    with sonde.ModuleTracker(**{kind: fails}, strict=True) as tracker:  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(ArithmeticError):
                net(X).sum().backward()
            assert tracker.stack == ()
            assert tracker.errors == ()
