"""A module tracker and ``torch.compile``: a compiled region is one call, the rest is told as ever, and it is said once (M16)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import ObservationWarning

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:Using `torch.compile\\(module\\)` when there are global hooks"),  # torch, of any global hook
]

X = torch.ones(1, 2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


class Net(nn.Module):
    """Two blocks, with a break of the graph between them if wanted."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.broken = Block(), Block(), broken

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        if self.broken:
            torch._dynamo.graph_break()
        return self.b(x)


def whole() -> nn.Module:
    return torch.compile(Net(), backend="aot_eager")  # type: ignore[return-value]


def in_place() -> nn.Module:
    net = Net()
    net.compile(backend="aot_eager")
    return net


def child_in_place() -> nn.Module:
    net = Net()
    net.a.compile(backend="aot_eager")
    return net


def child_wrapped() -> nn.Module:
    net = Net()
    net.a = torch.compile(net.a, backend="aot_eager")  # type: ignore[assignment]
    return net


def broken() -> nn.Module:
    return torch.compile(Net(broken=True), backend="aot_eager")  # type: ignore[return-value]


WHOLE = "+Net -Net <Net >Net"
CHILD = (
    "+Net +Net.a -Net.a +Net.b +Net.b.linear -Net.b.linear -Net.b -Net "
    "<Net <Net.b <Net.b.linear >Net.b.linear >Net.b <Net.a >Net.a >Net"
)


@pytest.mark.parametrize(
    ("make", "region", "expected"),
    [
        (whole, "Net", WHOLE),
        (in_place, "Net", WHOLE),
        (broken, "Net", WHOLE),
        (child_in_place, r"Net\.a", CHILD),
        (child_wrapped, r"Net\.a", CHILD),
    ],
    ids=lambda held: getattr(held, "__name__", None),
)
def test_a_compiled_region_is_one_call(make: Callable[[], nn.Module], region: str, expected: str) -> None:
    """Its forward and its backward are told as one, again and again; the warning comes once and names the region."""
    model, log = make(), list[str]()
    marks = {"enter": "+", "leave": "-", "enter_backward": "<", "leave_backward": ">"}
    callbacks = {kind: lambda call, mark=mark: log.append(mark + call.name) for kind, mark in marks.items()}
    with sonde.ModuleTracker(**callbacks, strict=True) as tracker:  # type: ignore[arg-type]
        for step in range(3):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", ObservationWarning)
                model(X).sum().backward()
            ours = [warning for warning in said if warning.category is ObservationWarning]
            assert len(ours) == (step == 0)
            assert all(str(warning.message).startswith(f"{region} is compiled".replace("\\", "")) for warning in ours)
            assert " ".join(log) == expected
            log.clear()
            assert tracker.stack == ()


def test_the_region_is_known_in_its_backward() -> None:
    """Without callbacks, from the numbers alone; the label of a compiled model is that of what was compiled."""
    model, seen = whole(), list[str]()
    with pytest.warns(ObservationWarning, match="compiled"), sonde.ModuleTracker() as tracker:
        out = model(X)
        out.register_hook(lambda _: seen.append(repr(tracker)))
        out.sum().backward()
    assert seen == ["ModuleTracker(backward of Net)"]


def test_tracking_a_compiled_model_changes_nothing() -> None:
    """Values and gradients have the same bits with and without, and nothing is compiled anew for the tracker's sake."""
    net = Net()
    model = torch.compile(net, backend="aot_eager")

    def results() -> list[Tensor]:
        net.zero_grad()
        out = model(X)
        out.sum().backward()
        return [out.detach(), *(parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None)]

    plain = results()
    frames = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with pytest.warns(ObservationWarning, match="compiled"), sonde.ModuleTracker():
        tracked = results()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == frames
    assert len(plain) == len(tracked) == 5
    assert all(torch.equal(one, other) for one, other in zip(plain, tracked, strict=True))
