"""A program that torch writes down is that of the model alone, and nothing of what passes there is delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import sonde
from sonde.recorders import BackwardInput

X = torch.ones(2, 3)
MODULE_PORTS: tuple[Any, ...] = ("input", "output", "grad_input", "grad_output")


def exported(model: nn.Module) -> list[str]:
    return [str(node.target) for node in torch.export.export(model, (X,)).graph.nodes]


def exported_strictly(model: nn.Module) -> list[str]:
    return [str(node.target) for node in torch.export.export(model, (X,), strict=True).graph.nodes]


def traced(model: nn.Module) -> list[str]:
    return [node.kind() for node in torch.jit.trace(model, X, check_trace=False).inlined_graph.nodes()]


def traced_in_part(model: nn.Module) -> list[str]:
    return traced(model.get_submodule("0"))


def with_proxies(model: nn.Module) -> list[str]:
    return [str(node.target) for node in make_fx(lambda x: model(x))(X).graph.nodes]  # noqa: PLW0108  # modules are traced otherwise


def with_proxies_in_part(model: nn.Module) -> list[str]:
    return with_proxies(model.get_submodule("0"))


def on_fakes(model: nn.Module) -> list[str]:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return [str(model(mode.from_tensor(X)).shape)]


INSTRUMENTS: dict[str, Callable[[nn.Module], Any]] = {
    "watch": lambda model: sonde.watch(model, every=1, to="memory", verbose=False, strict=True),
    "track": lambda model: sonde.track(model, strict=True),
    "statistic": lambda model: sonde.observe(model, sonde.stats.Moments(), ports=MODULE_PORTS, strict=True),
    "subscriber": lambda model: sonde.observe(model, lambda event: None, ports=MODULE_PORTS, strict=True),
    "recorder": lambda model: BackwardInput().modules(model),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
@pytest.mark.parametrize("instrument", INSTRUMENTS)
@pytest.mark.parametrize(
    "write",
    [
        exported,
        pytest.param(exported_strictly, marks=pytest.mark.slow),
        traced,
        traced_in_part,
        with_proxies,
        with_proxies_in_part,
        on_fakes,
    ],
    ids=lambda write: write.__name__,
)
def test_the_program_is_that_of_the_model_alone(write: Callable[[nn.Module], list[str]], instrument: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    alone = write(model)
    held = INSTRUMENTS[instrument](model)
    try:
        model(X)  # a real call before, in the same step
        assert write(model) == alone
        lines = [line for line in held.coverage() if line.site.port in ("output", "grad_input")]
        if write is not exported_strictly:  # where the compiler leaves hooks out
            assert any("nothing is delivered" in line.reason for line in lines)
        assert all(line.count <= 1 for line in lines)
    finally:
        held.detach()


@pytest.mark.parametrize("every", [1, 2])
def test_steps_on_tensors_without_values_are_none(every: int) -> None:
    """They are computed to learn how much memory a training takes; parameters are real before and after."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, every=every, to="memory", verbose=False, strict=True) as inspector:
        for number in range(4):
            if number == 1:
                with FakeTensorMode() as mode:
                    fake = torch.func.functional_call(
                        model, {name: mode.from_tensor(held) for name, held in model.named_parameters()}, (mode.from_tensor(X),)
                    )
                    fake.sum().backward()
                    optimizer.step()
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert inspector.run.sql("SELECT DISTINCT step FROM moments ORDER BY step").fetchall() == [(n,) for n in range(0, 4, every)]
