"""A compiled optimizer step, and a compiled whole step: the same bits as unobserved, and the rows of the eager training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sonde.errors import ObservationWarning
from sonde.inspector import watch

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
