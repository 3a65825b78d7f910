"""Rows that compiled code writes: right in any number of graphs, and never in the way of the user's backward pass."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from tests.quick import quick
from torch import Tensor, nn

import sonde
from sonde.engine.torch_api import compiler_state
from sonde.stats import Moments

Step = Callable[[nn.Module], Tensor]


class Block(nn.Module):
    """A residual layer; one of several graphs where *breaks*."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.linear(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return x + y  # type: ignore[no-any-return]


def blocks_one_by_one(backend: str) -> tuple[nn.Module, nn.Module, int]:
    """Three graphs, called in turn by eager code; the model to call, the model to watch, and the calls in a step."""
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 1))
    for block in model:
        block.compile(backend=backend)
    return model, model, 1


def one_graph_break(backend: str) -> tuple[nn.Module, nn.Module, int]:
    """A whole model with a break inside."""
    model = nn.Sequential(Block(breaks=True), Block(), nn.Linear(4, 1))
    compiled: Any = torch.compile(model, backend=backend)
    return compiled, model, 1


def called_twice(backend: str) -> tuple[nn.Module, nn.Module, int]:
    """A whole model of one graph, called twice before its backward pass, as in contrastive training."""
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 1))
    compiled: Any = torch.compile(model, backend=backend)
    return compiled, model, 2


CASES = [blocks_one_by_one, one_graph_break, called_twice]
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


def loss_of(model: nn.Module, calls: int) -> Tensor:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    return torch.stack([model(x * (call + 1)).square().mean() for call in range(calls)]).sum()


@pytest.fixture(autouse=True)
def new_compiler() -> None:
    torch.compiler.reset()


QUICK = [(blocks_one_by_one, "aot_eager"), (one_graph_break, "eager"), (called_twice, "aot_eager")]


@pytest.mark.parametrize(("case", "backend"), quick(itertools.product(CASES, ("eager", "aot_eager", "inductor")), *QUICK))
def test_watch_with_default_lenses_counts_what_eager_counts(case: Callable[[str], Any], backend: str) -> None:
    """The user's backward runs, and each site has the numbers of an eager twin."""
    torch.manual_seed(0)
    called, model, calls = case(backend)
    twin = nn.Sequential(*(copy.deepcopy(child) for child in model.children()))
    for child in twin:
        child._compiled_call_impl = None
        for part in child.modules():
            if isinstance(part, Block):
                part.breaks = False
    runs = []
    for module, watched in ((called, model), (twin, twin)):
        optimizer = torch.optim.SGD(watched.parameters(), lr=0.1)
        with sonde.watch(watched, optimizer, every=1, to="memory", verbose=False, strict=True) as inspector:
            for _ in range(2):
                optimizer.zero_grad()
                loss_of(module, calls).backward()
                optimizer.step()
        table = inspector.run.table("moments").to_pylist()
        runs.append({(row["step"], row["site"]): (row["count"], row["rms"], row["absmax"]) for row in table})
    found, expected = runs
    assert set(found) == set(expected)
    assert any(site.endswith(":grad_output") for _, site in found)
    for key, numbers in found.items():
        # float32 values that two backends may round differently in each of some ten operations
        assert numbers == pytest.approx(expected[key], rel=64 * 2**-23, abs=64 * 2**-23), key


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_statistic_counts_every_backward_of_a_model_called_twice(backend: str) -> None:
    """``observe`` with gradients: both calls before the one backward are in each row, of outputs and of gradients."""
    called, model, calls = called_twice(backend)
    with sonde.observe(model, Moments(), ports=("output", "grad_output"), strict=True) as probe:
        for _ in range(2):
            loss_of(called, calls).backward()
    assert {row["calls"] for row in probe.rows()} == {4}


@pytest.mark.parametrize("backend", BACKENDS)
def test_track_keeps_both_calls_of_a_model_called_twice(backend: str) -> None:
    """Events of both calls and of both backward passes, and the gradients that eager code computes."""
    called, model, calls = called_twice(backend)
    with sonde.track(model) as tracker:
        loss_of(called, calls).backward()
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    kept = [(stash.name, stash.grad, stash.value) for stash in tracker]
    model.zero_grad()
    with torch.compiler.set_stance("force_eager"), sonde.track(model) as tracker:
        loss_of(called, calls).backward()
    assert sorted(stash[:2] for stash in kept) == sorted((stash.name, stash.grad) for stash in tracker)
    for one, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


def test_rows_and_gradients_are_counted_once_under_checkpointing() -> None:
    """A checkpoint inside compiled code computes activations again: neither rows nor gradients are counted again."""
    model = nn.Sequential(Block(), Block())

    def forward(x: Tensor) -> Tensor:
        for block in model:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return x

    run = torch.compile(forward, backend="aot_eager")
    with (
        warnings.catch_warnings(),
        sonde.observe(model, Moments(), exclude="^$", ports=("output", "grad_output"), strict=True) as probe,
    ):
        warnings.simplefilter("ignore")  # the root itself is not called
        run(torch.ones(3, 4, requires_grad=True)).sum().backward()
    assert {row["calls"] for row in probe.rows()} == {1}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "instrument", [lambda model: sonde.observe(model, Moments(), ports=("output", "grad_output")), sonde.track]
)
def test_a_graph_may_be_retained_in_a_later_backward(backend: str, instrument: Callable[[nn.Module], Any]) -> None:
    """Torch refuses that where the backward owns a saved tensor; no linear layer saves one, and so must no observer."""
    model = nn.Sequential(Block(breaks=True), nn.Linear(4, 1))
    model[0].act = nn.Identity()
    model[0].compile(backend=backend)
    gradients = []
    for attach in (None, instrument):
        model.zero_grad()
        probe = None if attach is None else attach(model)
        loss_of(model, 1).backward()
        loss = loss_of(model, 3)
        loss.backward(retain_graph=True)
        loss.backward()
        if probe is not None:
            assert all(line.count for line in probe.coverage())
            probe.detach()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_a_reset_makes_no_hook_of_compiled_code_a_dead_one() -> None:
    """Neither for the check after the first step, nor in the coverage, which counts on."""
    _, model, _ = blocks_one_by_one("eager")
    with sonde.observe(model, Moments(), ports=("output", "grad_output", "grad"), strict=True) as probe:
        for step in range(1, 4):
            loss_of(model, 1).backward()
            probe.reset()
            assert {row["calls"] for row in probe.rows()} == {0}
            assert {(line.count, line.reason) for line in probe.coverage()} == {(step, "")}


class Numbered(nn.Module):
    """A layer that needs a graph of its own, since its number is a constant in there."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear, self.number = nn.Linear(4, 4), number

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.number
        return out


def test_each_block_may_have_a_graph_for_observed_and_one_for_other_steps(fresh_compiler: None) -> None:
    """Six graphs are near the limit on recompilations; twice as many are beyond, and with fullgraph torch would raise."""
    before = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = 8
    model = nn.Sequential(*map(Numbered, range(6)))
    for block in model:
        block.compile(backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with sonde.observe(model, Moments(), every=2, strict=True) as probe:
        for _ in range(4):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        assert {line.count for line in probe.coverage()} == {2}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2 * len(model)
    assert compiler_state.limits_raised()["recompile_limit"] == (8, torch._dynamo.config.recompile_limit)
    torch._dynamo.config.recompile_limit = before


def test_a_limit_that_is_set_for_a_while_does_not_raise_the_former_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program sets 3 in a block, three times: within, the limit is four times that; outside it stays four times 10."""
    monkeypatch.setattr(compiler_state, "_raised", {name: {} for name in compiler_state._LIMITS})
    config = torch._dynamo.config
    with config.patch(recompile_limit=10, accumulated_recompile_limit=100):
        for _ in range(3):
            compiler_state.notice_hooks()
            assert compiler_state.limits_raised() == {"recompile_limit": (10, 40), "accumulated_recompile_limit": (100, 400)}
            with config.patch(recompile_limit=3):
                compiler_state.notice_hooks()
                assert compiler_state.limits_raised()["recompile_limit"] == (3, 12)
            assert config.recompile_limit == 40
