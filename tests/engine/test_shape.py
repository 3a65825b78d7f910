"""The shape test: twelve identical blocks under ``torch.compile(fullgraph=True)``, observed in both lanes.

The engine is built so that this holds; everything else stands on it. What is compared is always the same network run in
eager mode with torch's own tensors kept by plain Python, never sonde against sonde.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.errors import DeadHookError, ObservationWarning
from sonde.stats import Moments

BLOCKS, CHECKPOINTED = 12, 3
WAYS = ["whole", "wrapped", "blocks"]

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
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
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


def oracle(checkpointed: bool, step: int) -> tuple[dict[str, Tensor], Tensor, list[Tensor]]:
    """Outputs and gradients at every module, by plain hooks on an eager twin; and what the step computes."""
    net = Net(checkpointed=False)  # the same numbers as with a checkpoint
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


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpoint"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["aot_eager", "eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_statistic_is_right_at_every_site_forward_and_backward(backend: str, way: str, checkpointed: bool) -> None:
    """Lane 1: sums in compiled code equal those of kept tensors; off-steps run a graph without observation."""
    plain = Net(checkpointed)
    for step in (0, 1, 2):
        train(plain, compiled(plain, way, backend), step)
    graphs_without = graphs()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    net = Net(checkpointed)
    with sonde.observe(net, Moments(), ports=("output", "grad_output"), strict=True) as probe:
        call = compiled(net, way, backend)
        expected: dict[str, list[Tensor]] = {}
        for step in range(4):
            if step == 2:
                probe.pause()
            if step == 3:
                probe.resume()
            out, gradients = train(net, call, step)
            kept, out_expected, gradients_expected = oracle(checkpointed, step)
            if backend != "inductor":  # which rounds fused operations differently from eager, observed or not
                assert torch.equal(out, out_expected)
                assert all(map(torch.equal, gradients, gradients_expected))
            if step != 2:
                for site, tensor in kept.items():
                    expected.setdefault(site, []).append(tensor)
        rows = {row["site"]: row for row in probe.rows()}

    assert rows.keys() == expected.keys()
    assert len(rows) == 2 * (1 + BLOCKS * 4)
    for site, tensors in expected.items():
        every = torch.cat([tensor.flatten() for tensor in tensors]).double()
        assert rows[site]["calls"] == 3, site
        assert rows[site]["count"] == every.numel(), site
        assert rows[site]["mean"] == pytest.approx(every.mean().item(), rel=1e-4, abs=1e-7), site
        assert rows[site]["rms"] == pytest.approx(every.square().mean().sqrt().item(), rel=1e-5), site
        assert rows[site]["absmax"] == pytest.approx(every.abs().max().item(), rel=1e-5), site
        assert abs(rows[site]["zeros"] - int((every == 0).sum())) <= (0 if backend != "inductor" else 1), site
    assert graphs() <= 2 * graphs_without, "at most one more graph for each compiled region"


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpoint"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_kept_tensors_are_right_at_every_site(backend: str, way: str, checkpointed: bool) -> None:
    """Lane 2: every kept output and gradient equals that of plain hooks in eager code, in the same order."""
    net = Net(checkpointed)
    with sonde.track(net, strict=True) as tracker:
        call = compiled(net, way, backend)
        for step in range(3):
            tracker.clear()
            train(net, call, step)
            kept, _, _ = oracle(checkpointed, step)
            found = [stash for stash in tracker if stash.phase != "recompute"]
            assert sorted(str(stash.site) for stash in found) == sorted(kept)
            for stash in found:
                value = stash.value[0] if stash.grad else stash.value
                torch.testing.assert_close(value, kept[str(stash.site)], rtol=0 if backend != "inductor" else 1e-4, atol=1e-6)
                assert stash.call == 0
                assert stash.tick.forward == step
            forward = [stash.name for stash in found if not stash.grad]
            assert forward == [str(name) for name in _completion_order(net)]
            recomputed = {stash.name for stash in tracker if stash.phase == "recompute"}
            assert all(name.startswith(f"blocks.{CHECKPOINTED}") for name in recomputed)
            assert not recomputed or checkpointed


def _completion_order(net: Net) -> list[str]:
    inside = [f"blocks.{index}{part}" for index in range(BLOCKS) for part in (".a", ".act", ".b", "")]
    return [*inside, ""]


@pytest.mark.parametrize("way", WAYS)
def test_hooks_that_died_are_reported(way: str) -> None:
    """A model that was compiled before it is observed warns with the cure, and the cure works."""
    net = Net(checkpointed=False)
    call = compiled(net, way, "aot_eager")
    train(net, call, 0)
    with (
        pytest.warns(ObservationWarning, match=r"torch\.compiler\.reset\(\)"),
        sonde.observe(net, Moments(), include=r"blocks\.") as probe,
    ):
        train(net, call, 0)
        if way == "blocks":  # the root is eager code, so the next forward notices
            train(net, call, 1)
        else:
            optimizer = torch.optim.SGD(net.parameters(), 0.0)
            optimizer.step()
        eager = BLOCKS if way == "blocks" else 0  # a region's outermost module is called from eager code
        assert len(probe.coverage().observed) == eager
        dead = [line for line in probe.coverage().missing if "compiled before it was observed" in line.reason]
        assert len(dead) == BLOCKS * 4 - eager
        torch.compiler.reset()
        train(net, call, 2)
        assert len(probe.coverage().observed) == BLOCKS * 4


def test_an_unobserved_twin_compiled_before_is_noticed() -> None:
    """Code compiled for a twin of the same class is used again without our hooks: that raises if strict."""
    twin = Net(checkpointed=False)
    train(twin, compiled(twin, "blocks", "aot_eager"), 0)
    net = Net(checkpointed=False)
    call = compiled(net, "blocks", "aot_eager")
    with sonde.observe(net, Moments(), include=r"blocks\.", strict=True):
        train(net, call, 0)
        with pytest.raises(DeadHookError, match="unobserved model of the same class"):
            train(net, call, 1)


def test_a_model_observed_while_compiled_can_be_observed_again() -> None:
    """Once observed code has been compiled, hooks that come and go are noticed: no reset is needed."""
    net = Net(checkpointed=False)
    call = None
    for _ in range(3):
        with sonde.observe(net, Moments(), strict=True) as probe:
            call = call or compiled(net, "blocks", "aot_eager")
            train(net, call, 0)
            assert {line.count for line in probe.coverage()} == {1}
        train(net, call, 0)
