"""Compiled code gives a statistic tensors on the CPU, rows on an accelerator: both as plain hooks see them in eager code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests import bounds
from torch import Tensor, nn

import sonde
from sonde.engine.probes import statistic_hooks
from sonde.stats import Activation, Moments, Statistic
from sonde.stats.samples import SampleNorm

pytestmark = pytest.mark.usefixtures("fresh_compiler")

BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.fixture(params=["tensors", "rows"])
def measures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What compiled code hands over; rows as on an accelerator."""
    if request.param == "rows":
        monkeypatch.setattr(statistic_hooks, "is_fused", lambda tensor: True)
    return str(request.param)


class Pass(nn.Module):
    """Returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Weight(nn.Module):
    """Returns its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2, 2, 4))

    def forward(self) -> Tensor:
        return self.weight


class Ends(nn.Module):
    """Returns two tensors and an integer one."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2, x.sum(0), torch.arange(3)


class Odd(nn.Module):
    """A layer that returns its input, one that returns a parameter, one that runs twice; writes into outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.same, self.weight = nn.Linear(4, 4), Pass(), Weight()
        self.act, self.drop, self.ends = nn.ReLU(), nn.Dropout(0.5), Ends()

    def forward(self, x: Tensor) -> Tensor:
        x = self.same(x)  # a tensor from outside
        y = self.first(x)
        z = self.act(self.same(y)) + y
        z = self.drop(z) * self.weight()
        y = self.first(z)
        y.add_(1.0)
        whole, low, _ = self.ends(y.relu_())
        return whole + low + x


class Model(nn.Module):
    """The odd parts between layers that are not compiled, so that the input of compiled code has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.odd, self.after = nn.Linear(4, 4), Odd(), nn.Linear(4, 1)
        self.odd.drop.eval()

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        return self.after(self.odd(h) + h)


def batch(step: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(step))


def train(model: nn.Module) -> list[Tensor]:
    """Run two steps of two calls each; return losses and gradients."""
    seen = []
    for step in range(2):
        model.zero_grad()
        loss = model(batch(2 * step)).square().mean() + model(batch(2 * step + 1)).square().mean()
        loss.backward()
        seen += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)]
    return seen


def tensors_of(value: Any) -> list[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        return [("", value)]
    return [(f"[{index}]", each) for index, each in enumerate(value) if each.is_floating_point()]


def oracle() -> dict[str, list[Tensor]]:
    """Outputs and their gradients at each site, by plain hooks on the model in eager code."""
    model, kept = Model(), dict[str, list[Tensor]]()

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            for leaf, tensor in tensors_of(output):
                kept.setdefault(f"{name}:output{leaf}", []).append(tensor.detach().clone())
                if not tensor.is_leaf:
                    tensor.register_hook(partial(keep_gradient, f"{name}:grad_output{leaf}"))

        return keep

    def keep_gradient(site: str, gradient: Tensor) -> None:
        kept.setdefault(site, []).append(gradient.clone())

    for name, module in model.named_modules():
        module.register_forward_hook(hook(name or "(root)"))
    train(model)
    return kept


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_those_of_plain_hooks_in_eager_code(backend: str, measures: str) -> None:
    """Layers that pass their input on, that return a parameter, that run twice; outputs that are written into later."""
    expected, alone = oracle(), Model()
    alone.odd.compile(backend=backend, fullgraph=True)
    results = train(alone)
    torch._dynamo.reset()
    model = Model()
    model.odd.compile(backend=backend, fullgraph=True)
    with sonde.observe(model, Moments(), ports=("output", "grad_output"), strict=True, calls="joined") as probe:
        found = train(model)
        rows = {str(row["site"]): row for row in probe.rows()}
    assert all(map(torch.equal, found, results))
    slack = 0.0 if backend == "eager" else bounds.relative(64, torch.float32)  # gradients are added up in another order
    for site, tensors in expected.items():
        every = torch.cat([tensor.flatten() for tensor in tensors]).double()
        assert rows[site]["count"] == every.numel(), site
        near = slack + bounds.relative(len(every) + 3)
        assert rows[site]["rms"] == pytest.approx(every.square().mean().sqrt().item(), rel=near, abs=near), site
        assert rows[site]["absmax"] == pytest.approx(every.abs().max().item(), rel=slack, abs=slack), site


@pytest.mark.parametrize("statistic", [Activation(channel_axis=None), SampleNorm()], ids=repr)
def test_statistics_that_read_axes_are_those_of_eager_code(statistic: Statistic, measures: str) -> None:
    """The units of a layer, and the samples, are found where eager code finds them."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.ReLU())

    rows = []
    for backend in ("", "aot_eager"):
        model = network()
        if backend:
            model.compile(backend=backend)
        with sonde.observe(model, statistic, ports=("output", "grad_output"), strict=True) as probe:
            for step in range(2):
                model(torch.randn(2, 1, 3, 3, generator=torch.Generator().manual_seed(step))).square().sum().backward()
            rows.append(probe.rows())
    eager, compiled = rows
    for one, other in zip(eager, compiled, strict=True):
        assert one == pytest.approx(other, nan_ok=True), one["site"]


def test_the_compiler_sees_one_call_for_each_site() -> None:
    """Nothing of a statistic is traced by Dynamo: one call for each hook, and one token."""
    sizes: dict[bool, int] = {}
    for observed in (False, True):
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

        def backend(module: torch.fx.GraphModule, inputs: Any, observed: bool = observed) -> Any:
            sizes[observed] = sum(node.op == "call_function" for node in module.graph.nodes)
            return module.forward

        called: Any = torch.compile(model, backend=backend)
        if not observed:
            called(torch.ones(2, 4)).sum().backward()
            continue
        with sonde.observe(model, Moments(), include=r"^\d$", ports=("output", "grad_output"), strict=True) as probe:
            called(torch.ones(2, 4)).sum().backward()
            assert {row["calls"] for row in probe.rows()} == {1}
    begin_and_end = 2  # of the root, which is counted
    assert sizes[True] - sizes[False] == 3 + begin_and_end
