"""A compiled optimizer step, and a compiled whole step: the same bits as unobserved, and the rows of the eager training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import ObservationWarning
from sonde.inspector import watch
from sonde.stats import Moments

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_compiler")]

STEPS = 7
ROUNDING = 64 * 2.0**-24
"""A parameter after seven steps of SGD: each is one product and one sum, and no gradient here adds more than 16 terms."""

Rows = dict[tuple[str, int, int], float]


def train(kind: str, every: int = 0, *, says: bool = True) -> tuple[list[Tensor], Rows]:
    """Return the parameters after seven steps, and the rms of all rows; *every* = 0: unobserved."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = [torch.randn(5, 8) for _ in range(STEPS)]
    inspector = watch(model, optimizer, every=every, to="memory", verbose=False) if every else None

    def passes(x: Tensor) -> None:
        model(x).square().mean().backward()

    def whole(x: Tensor) -> None:
        passes(x)
        optimizer.step()
        optimizer.zero_grad()

    step = torch.compile(optimizer.step, backend="aot_eager") if kind == "optimizer" else optimizer.step
    one_step = torch.compile(whole, backend="aot_eager") if kind == "whole" else None
    for x in batches:
        if one_step is not None:
            one_step(x)
        else:
            passes(x)
            step()
            optimizer.zero_grad()
        if inspector is not None and says and kind != "eager":
            inspector.step()
    rows: Rows = {}
    if inspector is not None:
        inspector.detach()
        found = inspector.run.sql("SELECT site, step, call, rms FROM moments").fetchall()
        rows = {(site, step, call): rms for site, step, call, rms in found}
    return [parameter.detach() for parameter in model.parameters()], rows


@pytest.mark.parametrize(("kind", "every"), [("optimizer", 1), ("optimizer", 3), ("whole", 1), ("whole", 3)])
def test_rows_are_those_of_the_eager_training(kind: str, every: int) -> None:
    expected = train("eager", every)[1]
    parameters, rows = train(kind, every)
    assert len(expected) == 18 * len(range(0, STEPS, every))
    assert rows == pytest.approx(expected, rel=ROUNDING)
    assert all(map(torch.equal, parameters, train(kind)[0]))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", ["optimizer", "whole"])
def test_steps_that_nobody_says_are_recognised_and_the_bits_are_the_same(kind: str, every: int) -> None:
    with pytest.warns(ObservationWarning, match=r"no optimizer was seen to step.*log each step \(every=1\)"):
        parameters, rows = train(kind, every, says=False)
    assert all(map(torch.equal, parameters, train(kind)[0]))
    found = {(site.partition(":")[2], step) for site, step, _ in rows}
    ports = {"grad", "param", "update"}
    if (kind, every) != ("whole", 3):  # there each graph has been chosen before the step is recognised
        ports |= {"output", "grad_output"}
    assert {(port, step) for port in ports for step in set(range(0, STEPS, every)) - {0, 1}} <= found


def graphs_of_whole_steps(observer: Callable[[nn.Module], Any], *, breaks: bool) -> tuple[int, int]:
    """Return how many graphs, and how many breaks, a function has that holds whole steps, under what *observer* returns."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x)
            if breaks:
                torch._dynamo.graph_break()
            y = self.linear(y)
            return x + y

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def whole(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step = torch.compile(whole, backend="aot_eager")
    with observer(model):
        for _ in range(3):
            step(torch.randn(5, 8))
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


OBSERVERS: list[Callable[[nn.Module], Any]] = [
    lambda model: watch(model, every=1, to="memory", verbose=False),
    lambda model: sonde.observe(model, Moments(), ports=("output", "grad_output", "grad"), strict=True),
    lambda model: sonde.observe(model, lambda event: None, ports=("output", "grad_output", "grad", "update"), strict=True),
    sonde.track,
    lambda model: sonde.ModuleTracker(),
]


@pytest.mark.filterwarnings("ignore:the parameters have changed 2 times")
@pytest.mark.parametrize("breaks", [False, True], ids=["one graph", "graph breaks"])
def test_nothing_of_an_observer_is_compiled_with_a_whole_step(breaks: bool) -> None:
    """Backward pass and optimizer run there between graphs: what torch calls then was compiled as the user's own code."""
    bare = graphs_of_whole_steps(lambda model: contextlib.nullcontext(), breaks=breaks)
    assert [graphs_of_whole_steps(each, breaks=breaks) for each in OBSERVERS] == [bare] * len(OBSERVERS)
