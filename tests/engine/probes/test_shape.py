"""The shape test: identical blocks under ``torch.compile(fullgraph=True)``, observed in both lanes.

The engine is built so that this holds; everything else stands on it. What is compared is always the same network run in
eager mode with torch's own tensors kept by plain Python, never sonde against sonde.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import bounds
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.engine.probes import statistic_hooks
from sonde.errors import DeadHookError, ObservationWarning
from sonde.stats import Moments

BLOCKS = {"whole": 3, "wrapped": 3, "blocks": 12}
"""How many blocks, by how they are compiled. One by one there are more of them than Dynamo recompiles one function (8)."""

CHECKPOINTED = 1
OPERATIONS = 2 * 12 * 2 * (8 + 2)
"""Roundings in a row in float32: forward and backward, twelve blocks, two layers of eight terms, a bias and a sum in each."""

WAYS = list(BLOCKS)

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.act = nn.ReLU()
        self.b = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.act(self.a(x)))


class Net(nn.Module):
    def __init__(self, way: str, checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS[way]))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed and index == CHECKPOINTED else block(x)
        return x


def compiled(net: Net, way: str, backend: str) -> Callable[[Tensor], Tensor]:
    if way == "wrapped":
        return torch.compile(net, fullgraph=True, backend=backend)  # type: ignore[no-any-return]
    for module in net.blocks if way == "blocks" else [net]:
        module.compile(fullgraph=True, backend=backend)
    return net


def batch(step: int) -> Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step))


def train(net: Net, call: Callable[[Tensor], Tensor], step: int) -> tuple[Tensor, list[Tensor]]:
    net.zero_grad()
    out = call(batch(step))
    out.square().mean().backward()
    return out.detach().clone(), [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


def oracle(way: str, step: int) -> tuple[dict[str, Tensor], Tensor, list[Tensor]]:
    """Outputs and gradients at every module, by plain hooks on an eager twin; and what the step computes."""
    net = Net(way)  # the same numbers as with a checkpoint
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            kept[f"{name}:output"] = output.detach().clone()
            output.register_hook(lambda gradient: kept.__setitem__(f"{name}:grad_output", gradient.detach().clone()))

        return hook

    for name, module in net.named_modules():
        if not isinstance(module, nn.ModuleList):
            module.register_forward_hook(keep(name or "(root)"))
    out, gradients = train(net, net, step)
    return kept, out, gradients


def graphs() -> int:
    import torch._dynamo.utils

    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def cases(*chosen: str) -> Any:
    """Backend, way and checkpoint of each of *chosen*; and whether compiled code measures, as on an accelerator."""
    seldom = ("aot_eager-whole-checkpoint-rows", "aot_eager-whole-plain", "aot_eager-wrapped-checkpoint", "eager-whole-checkpoint")
    seldom += ("aot_eager-blocks-checkpoint", "eager-blocks-checkpoint-rows", "eager-wrapped-plain")
    marks = {name: [pytest.mark.slow] for name in ("inductor", *seldom)}
    split = [case.split("-") for case in chosen]
    made = [
        pytest.param(backend, way, "checkpoint" in rest, "rows" in rest, id=case, marks=marks.get(backend, marks.get(case, [])))
        for case, (backend, way, *rest) in zip(chosen, split, strict=True)
    ]
    return pytest.mark.parametrize(("backend", "way", "checkpointed", "measures"), made)


AOT_EAGER = [f"aot_eager-{way}-{which}" for way in WAYS for which in ("plain", "checkpoint")]
ROWS = ["eager-blocks-checkpoint-rows", "aot_eager-whole-checkpoint-rows", "aot_eager-blocks-plain-rows"]
ROWS += ["inductor-whole-checkpoint-rows", "inductor-blocks-plain-rows"]
INDUCTOR = ["inductor-whole-checkpoint", "inductor-blocks-plain"]  # one graph with all in it, and one for all blocks


@cases(*AOT_EAGER, "eager-whole-checkpoint", "eager-wrapped-plain", "eager-blocks-checkpoint", *INDUCTOR, *ROWS)
def test_a_statistic_is_right_at_every_site_forward_and_backward(
    backend: str, way: str, checkpointed: bool, measures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lane 1: sums in compiled code equal those of kept tensors; off-steps run a graph without observation."""
    if measures:
        monkeypatch.setattr(statistic_hooks, "is_fused", lambda tensor: True)
    plain = Net(way, checkpointed)
    for step in (0, 1, 2):
        train(plain, compiled(plain, way, "eager"), step)  # Dynamo makes the same graphs for every backend
    graphs_without = graphs()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    net = Net(way, checkpointed)
    with sonde.observe(net, Moments(), ports=("output", "grad_output"), strict=True) as probe:
        call = compiled(net, way, backend)
        expected: dict[str, list[Tensor]] = {}
        for step in range(4):
            if step == 2:
                probe.pause()
            if step == 3:
                probe.resume()
            out, gradients = train(net, call, step)
            kept, out_expected, gradients_expected = oracle(way, step)
            if backend != "inductor":  # which rounds fused operations differently from eager, observed or not
                assert torch.equal(out, out_expected)
                assert all(map(torch.equal, gradients, gradients_expected))
            if step != 2:
                for site, tensor in kept.items():
                    expected.setdefault(site, []).append(tensor)
        rows = {row["site"]: row for row in probe.rows()}

    # Both ways add float64; the values are the same, or, with inductor, float32 sums of 8 terms in another order.
    values = bounds.relative(OPERATIONS, torch.float32) if backend == "inductor" else 0.0
    assert rows.keys() == expected.keys()
    assert len(rows) == 2 * (1 + BLOCKS[way] * 4)
    for site, tensors in expected.items():
        every = torch.cat([tensor.flatten() for tensor in tensors]).double()
        assert rows[site]["calls"] == 3, site
        assert rows[site]["count"] == every.numel(), site
        largest = every.abs().max().item()
        slack = values + bounds.relative(len(every) + 3)
        assert rows[site]["mean"] == pytest.approx(every.mean().item(), rel=0, abs=slack * largest), site
        assert rows[site]["rms"] == pytest.approx(every.square().mean().sqrt().item(), rel=slack), site
        assert rows[site]["absmax"] == pytest.approx(largest, rel=values), site
        assert abs(rows[site]["zeros"] - int((every == 0).sum())) <= (0 if backend != "inductor" else 1), site
    assert graphs() <= 2 * graphs_without, "at most one more graph for each compiled region"


@cases(*AOT_EAGER, *INDUCTOR)
def test_kept_tensors_are_right_at_every_site(backend: str, way: str, checkpointed: bool, measures: bool) -> None:
    """Lane 2: every kept output and gradient equals that of plain hooks in eager code, in the same order."""
    net = Net(way, checkpointed)
    with sonde.track(net, strict=True) as tracker:
        call = compiled(net, way, backend)
        for step in range(3):
            tracker.clear()
            train(net, call, step)
            kept, _, _ = oracle(way, step)
            found = [stash for stash in tracker if stash.phase != "recompute"]
            assert sorted(str(stash.site) for stash in found) == sorted(kept)
            for stash in found:
                value = stash.value[0] if stash.grad else stash.value
                expected = kept[str(stash.site)]
                slack = bounds.relative(OPERATIONS, torch.float32) if backend == "inductor" else 0.0
                torch.testing.assert_close(value, expected, rtol=0, atol=slack * expected.abs().max().item())
                assert stash.call == 0
                assert stash.tick.forward == step
            forward = [stash.name for stash in found if not stash.grad]
            assert forward == [str(name) for name in _completion_order(net)]
            recomputed = {stash.name for stash in tracker if stash.phase == "recompute"}
            assert all(name.startswith(f"blocks.{CHECKPOINTED}") for name in recomputed)
            assert not recomputed or checkpointed


def _completion_order(net: Net) -> list[str]:
    inside = [f"blocks.{index}{part}" for index in range(len(net.blocks)) for part in (".a", ".act", ".b", "")]
    return [*inside, ""]


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow if way == "wrapped" else ()) for way in WAYS])
def test_hooks_that_died_are_reported(way: str) -> None:
    """A model that was compiled before it is observed warns with the cure, and the cure works."""
    net = Net(way)
    call = compiled(net, way, "aot_eager")
    train(net, call, 0)
    with (
        pytest.warns(ObservationWarning, match=r"torch\.compiler\.reset\(\)"),
        sonde.observe(net, Moments(), include=r"blocks\.") as probe,
    ):
        train(net, call, 0)
        torch.optim.SGD(net.parameters(), 0.0).step()  # code that leaves out the hooks of the root is noticed by its steps
        train(net, call, 1)
        eager = len(net.blocks) if way == "blocks" else 0  # a region's outermost module is called from eager code
        assert len(probe.coverage().observed) == eager
        dead = [line for line in probe.coverage().missing if "compiled before it was observed" in line.reason]
        assert len(dead) == len(net.blocks) * 4 - eager
        torch.compiler.reset()
        train(net, call, 2)
        assert len(probe.coverage().observed) == len(net.blocks) * 4


def test_hooks_that_rested_while_the_model_ran_are_not_dead(fresh_compiler: None) -> None:
    """A probe that is paused before the first forward has seen nothing, and its hooks run as soon as it observes."""
    model = nn.Sequential(nn.Linear(2, 2))
    called: Any = torch.compile(model, backend="eager")
    with sonde.observe(model, Moments(), strict=True) as probe:
        probe.pause()
        called(torch.ones(1, 2))
        probe.resume()
        called(torch.ones(1, 2))
        assert {line.count for line in probe.coverage()} == {1}


def test_hooks_of_gradients_alone_are_judged_after_a_backward_pass() -> None:
    """Forwards without gradients, and two forwards before one backward pass, say nothing of them."""
    net = Net("whole")
    call = compiled(net, "whole", "aot_eager")
    with sonde.observe(net, Moments(), include=r"blocks\.", ports="grad_output") as probe:
        with torch.no_grad():
            for step in range(3):
                call(batch(step))
        (call(batch(0)).sum() + call(batch(1)).sum()).backward()
        call(batch(2)).sum().backward()
        assert [line.reason for line in probe.coverage().missing] == []


def test_an_unobserved_twin_compiled_before_is_noticed() -> None:
    """Code compiled for a twin of the same class is used again without our hooks: that raises if strict."""
    twin = Net("blocks")
    train(twin, compiled(twin, "blocks", "aot_eager"), 0)
    net = Net("blocks")
    call = compiled(net, "blocks", "aot_eager")
    with sonde.observe(net, Moments(), include=r"blocks\.", strict=True):
        train(net, call, 0)
        with pytest.raises(DeadHookError, match="unobserved model of the same class"):
            train(net, call, 1)


def test_a_model_observed_while_compiled_can_be_observed_again() -> None:
    """Once observed code has been compiled, hooks that come and go are noticed: no reset is needed."""
    net = Net("blocks")
    call = None
    for _ in range(3):
        with sonde.observe(net, Moments(), strict=True) as probe:
            call = call or compiled(net, "blocks", "aot_eager")
            train(net, call, 0)
            assert {line.count for line in probe.coverage()} == {1}
        train(net, call, 0)
