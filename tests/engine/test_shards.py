"""Every instrument beside distributed tensors: it sees what its rank holds, and communicates with nobody."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from torch import Tensor, nn

import sonde
from sonde import preprocessor, recorders
from sonde.stats import Activation, ExponentHistogram, Moments, Norm, Spectrum, Statistic
from sonde.stats.samples import MatrixCondition, SampleNorm

pytestmark = pytest.mark.first_is_quick

STATISTICS: list[Statistic] = [
    Moments(),
    Norm(),
    ExponentHistogram(),
    Activation(),
    Activation(channel_axis=None),
    Spectrum(6),
    MatrixCondition(),
    SampleNorm(),
]
PREPROCESSORS: list[Callable[[], Any]] = [
    preprocessor.OutputActivation,
    preprocessor.OutputNorm,
    preprocessor.InputNorm,
    preprocessor.OutputGradientGeometry,
    preprocessor.GradientGeometry,
    preprocessor.GradientActivation,
    preprocessor.ParameterDifferenceGeometry,
    preprocessor.UpdateRatio,
    preprocessor.UpdateRounding,
    preprocessor.ParameterNorm,
    preprocessor.Conditioning,
]
RECORDERS = [
    recorders.ForwardPre,
    recorders.ForwardInput,
    recorders.ForwardOutput,
    recorders.BackwardOutput,
    recorders.BackwardInput,
]
PORTS: tuple[Any, ...] = ("input", "output", "grad_output", "grad", "param", "update")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(self.act(self.up(self.norm(x))))
        return result


def model(kind: str) -> nn.Module:
    """Return three blocks, sharded by FSDP2 or split by tensor parallelism."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    made = nn.Sequential(Block(), Block(), nn.Linear(6, 3))  # three rows on two ranks: uneven shards, and an empty one of four
    if kind == "fsdp":
        for block in made:
            fully_shard(block)
        return fully_shard(made)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if kind == "tensor":
        plan |= {"up": ColwiseParallel(use_local_output=False)}
    if kind == "sequence":
        plan |= {"norm": SequenceParallel(sequence_dim=0)}
    for block in (made[0], made[1]):
        if kind == "sequence":
            cut = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False)
            parallelize_module(block, mesh, {"norm": cut})
        parallelize_module(block, mesh, plan)
    return made


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        result = module(torch.randn(4, 6, generator=generator))
        result = result.full_tensor() if hasattr(result, "full_tensor") else result
        result.square().mean().backward()
        optimizer.step()


def trained(kind: str, observed: bool = True) -> list[list[float]]:
    """Train with every instrument in turn, on the first rank alone; return the parameters of this rank at the end."""
    module = model(kind)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    instruments: list[Callable[[], Any]] = [
        *(
            lambda each=each: sonde.observe(module, each, ports=PORTS, grad_at_step=True, strict=not isinstance(each, Spectrum))
            for each in STATISTICS
        ),
        *(lambda each=each: sonde.observe(module, each(), strict=True) for each in PREPROCESSORS),
        *(lambda each=each: each(strict=True).modules(module) for each in RECORDERS),
        lambda: sonde.track(module, strict=True),
        lambda: sonde.track(module, stash_value=lambda tensor: tensor.std().item(), strict=True),
        lambda: sonde.observe(module, lambda event: [leaf.norm().item() for _, leaf in event.leaves], ports=PORTS, strict=True),
    ]
    for instrument in instruments:
        if observed and torch.distributed.get_rank() == 0:
            probe = instrument()
            train(module, optimizer, 2)
            texts = [repr(probe), repr(probe.coverage())]
            if isinstance(probe, sonde.Tracker):
                probe.to_frame()
            probe.detach()
            assert all(texts)
        else:
            train(module, optimizer, 2)
    return [local_of(parameter) for parameter in module.parameters()]


@pytest.mark.parametrize(
    "kind", ["fsdp", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("local", "tensor", "sequence"))]
)
@pytest.mark.filterwarnings("ignore::sonde.errors.ObservationWarning")
def test_an_instrument_on_one_rank_alone_neither_waits_for_the_other_nor_changes_anything(kind: str) -> None:
    seen = on_ranks(2, trained, kind, check=False)
    assert [rank.error for rank in seen] == [None, None], seen
    assert values(seen) == values(on_ranks(2, trained, kind, False, check=False))


def of_rows(kind: str) -> dict[str, Any]:
    """Return rows of the last step, and by hand the norm of what this rank holds; the coverage; kept tensors."""
    module = model(kind)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    by_hand: dict[str, float] = {}

    def norm(tensor: Tensor) -> float:
        return float(getattr(tensor, "to_local", lambda: tensor)().detach().double().norm())

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, output: Any) -> None:
            by_hand[f"{name}:output"] = norm(output)
            output.register_hook(lambda gradient: by_hand.update({f"{name}:grad_output": norm(gradient)}))

        return hook

    names = ["0.norm", "0.up", "0.act", "0.down", "0", "2"]
    for name in names:
        module.get_submodule(name).register_forward_hook(note(name))
    train(module, optimizer, 1)
    probe = sonde.observe(module, Moments(), ports=PORTS, grad_at_step=True, strict=True)
    before = {name: [parameter.detach().clone()] for name, parameter in module.named_parameters()}
    optimizer.register_step_pre_hook(
        lambda *_: by_hand.update(
            {f"{name}:grad": norm(held.grad) for name, held in module.named_parameters() if held.grad is not None}
        )
    )
    train(module, optimizer, 1, seed=1)
    for name, parameter in module.named_parameters():
        by_hand[f"{name}:param"] = norm(parameter)
        by_hand[f"{name}:update"] = norm(parameter.detach().double() - before[name][0].double())
    rows = {row["site"]: row for row in probe.rows()}
    missing = set(by_hand) - set(rows)
    assert not missing
    return {
        "numbers": {site: (rows[site]["norm"], value) for site, value in by_hand.items()},
        "why": {str(line.site): line.reason for line in probe.coverage()},
        "counts": {site: rows[site]["count"] for site in by_hand},
    }


@pytest.mark.parametrize("kind", ["fsdp", "local", "tensor"])
def test_rows_are_of_the_part_that_the_rank_holds(kind: str) -> None:
    seen = values(on_ranks(2, of_rows, kind))
    for rank in seen:
        wrong = {site: pair for site, pair in rank["numbers"].items() if pair[0] != pytest.approx(pair[1], rel=1e-12, abs=0)}
        assert not wrong  # sums of at most 48 squares in float64
    if kind == "fsdp":
        assert [rank["why"]["2.weight:update"] for rank in seen] == [
            "rank 0's part [0:2] of (3, 6)",
            "rank 1's part [2:3] of (3, 6)",
        ]
        assert [rank["counts"]["2.weight:grad"] for rank in seen] == [12, 6]
        assert seen[0]["why"]["0.up:output"] == ""
    if kind == "local":
        assert {site: why for site, why in seen[1]["why"].items() if "features" in why} == dict.fromkeys(
            ["0.up:output", "0.up:grad_output", "1.up:output", "1.up:grad_output"], "rank 1's part: 4 of 8 features"
        )
    if kind == "tensor":
        assert seen[1]["why"]["0.up:output"] == "rank 1's part [:, 4:8] of (4, 8)"
        assert seen[1]["why"]["0.act:grad_output"] == "rank 1's part [:, 4:8] of (4, 8)"


def of_a_gradient_placed_otherwise() -> dict[str, Any]:
    """Return what is seen of the gradient of a split weight: whole on each rank, as of an embedding; and split otherwise."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    module = nn.Embedding(5, 2)
    plan = {"": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())}
    parallelize_module(module, mesh, plan)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, foreach=False)
    sizes: list[tuple[int, ...]] = []
    at_step, passed = (sonde.observe(module, Moments(), ports="grad", grad_at_step=each, strict=True) for each in (True, False))
    events = sonde.observe(module, lambda event: sizes.append(tuple(event.value.shape)), ports="grad", strict=True)
    module(torch.tensor([0, 4, 4])).sum().backward()  # the gradient of row 0 is 1, and of row 4 is 2
    optimizer.step()
    found: dict[str, Any] = {"is_whole": bool(module.weight.grad.placements[0].is_replicate()), "sizes": list(sizes)}
    found["merged"] = [(row["count"], row["norm"]) for row in at_step.merged().to_dict("records")]
    found["own"] = [(row["count"], row["norm"]) for probe in (at_step, passed) for row in probe.rows()]
    for probe in (at_step, passed, events):
        probe.detach()
    with sonde.observe(module, Moments(), ports="grad", grad_at_step=True, strict=True) as probe:
        module.weight.grad = distribute_tensor(torch.ones(5, 2), mesh, [Shard(1)])
        optimizer.step()
        found["otherwise"] = ([row["count"] for row in probe.rows()], [line.reason for line in probe.coverage()])
    return found


def test_a_gradient_that_is_placed_otherwise_than_its_parameter_counts_once() -> None:
    """It was counted on every rank that has all of it."""
    for rank, seen in enumerate(values(on_ranks(2, of_a_gradient_placed_otherwise))):
        assert seen["is_whole"]
        assert seen["sizes"] == [(3 - rank, 2)]
        assert seen["merged"] == [(10, pytest.approx((2 * 1 + 2 * 4) ** 0.5, rel=1e-15))]  # the sums of squares are whole numbers
        assert seen["own"] == [(6, pytest.approx(2**0.5, rel=1e-15)), (4, pytest.approx(8**0.5, rel=1e-15))][rank : rank + 1] * 2
        assert seen["otherwise"] == ([0.0], ["left out: it is split among ranks in another way than the parameter"])


def averaged() -> list[tuple[bool, str]]:
    """Return whether the seen gradient is the optimizer's, and the words of the coverage: as accumulated, and at the step."""
    torch.manual_seed(torch.distributed.get_rank())
    module = nn.parallel.DistributedDataParallel(nn.Linear(6, 2, bias=False))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    probes = [sonde.observe(module, Moments(), ports="grad", grad_at_step=at_step, strict=True) for at_step in (False, True)]
    module(torch.randn(4, 6)).square().mean().backward()
    gradient = module.module.weight.grad.double().norm()
    optimizer.step()
    found = []
    for probe in probes:
        (row,), (line,) = probe.rows(), probe.coverage()
        found.append((row["norm"] == pytest.approx(float(gradient), rel=1e-12), line.reason))
        probe.detach()
    return found


def test_the_gradient_that_ddp_has_not_averaged_is_named() -> None:
    for accumulated, at_step in values(on_ranks(2, averaged)):
        assert accumulated == (
            False,
            "of this rank's samples, before DDP has averaged it over the ranks: with grad_at_step=True it is the average",
        )
        assert at_step == (True, "")


def unsynchronised() -> tuple[int, int, list[int]]:
    """Return how often gradients were seen under FSDP2, where two of three backward passes do not synchronise; the empty shard."""
    module = model("fsdp")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    each = sonde.observe(module, Moments(), ports="grad", strict=True)
    at_step = sonde.observe(module, Moments(), ports=("grad", "param", "update"), grad_at_step=True, strict=True)
    for _ in range(2):
        for micro_step in range(3):
            module.set_requires_gradient_sync(micro_step == 2)  # type: ignore[operator]
            module(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    seen, used = ({row["site"]: row for row in probe.rows()} for probe in (each, at_step))
    last = [used[f"2.weight:{port}"]["count"] for port in ("grad", "param", "update")]
    return seen["0.up.weight:grad"]["calls"], used["0.up.weight:grad"]["calls"], last


def test_backward_passes_that_do_not_synchronise_bring_no_gradient_under_fsdp() -> None:
    found = values(on_ranks(4, unsynchronised))
    assert [(each, at_step) for each, at_step, _ in found] == [(2, 2)] * 4
    assert [last for _, _, last in found] == [[12, 12, 12]] * 3 + [[0, 0, 0]]  # three rows of six on four ranks, twice


def compiled(kind: str, instrument: str | None) -> tuple[list[list[float]], dict[str, float], list[str]]:
    """Train with compiled blocks, observed on the first rank alone; return parameters, norms by site, and what failed."""
    module = model(kind)
    for block in (module[0], module[1]):  # type: ignore[index]
        block.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    norms: dict[str, float] = {}
    errors: list[str] = []
    if instrument is None or torch.distributed.get_rank():
        train(module, optimizer, 2)
    else:
        ports = ("input", "output", "grad_output")
        probe = sonde.observe(module, Moments(), ports=ports) if instrument == "statistic" else sonde.track(module)
        train(module, optimizer, 2)
        errors += map(str, probe.errors)
        if isinstance(probe, sonde.Tracker):
            for stash in probe:
                norms[str(stash.site)] = norms.get(str(stash.site), 0.0) + float(stash.first_value.double().square().sum())
        else:
            norms |= {row["site"]: row["norm"] ** 2 for row in probe.rows() if not row["site"].endswith("input")}
        probe.detach()
    return [local_of(parameter) for parameter in module.parameters()], norms, errors


def local_of(parameter: Tensor) -> list[float]:
    part = sonde.stats.pieces.local(parameter)
    assert part is not None
    return part.flatten().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp", "local", "tensor", "sequence"])
def test_compiled_code_hands_over_parts(kind: str) -> None:
    bare = values(on_ranks(2, compiled, kind, None, limit=120))
    statistic = values(on_ranks(2, compiled, kind, "statistic", limit=120, check=False))
    tracked = values(on_ranks(2, compiled, kind, "track", limit=120, check=False))
    assert [rank[0] for rank in bare] == [rank[0] for rank in statistic] == [rank[0] for rank in tracked]
    assert statistic[0][2] == tracked[0][2] == []
    assert set(statistic[0][1]) == set(tracked[0][1])
    for site, square in tracked[0][1].items():
        assert statistic[0][1][site] == pytest.approx(square, rel=1e-12)


def wrapped(how: str) -> tuple[list[str], set[str]]:
    """Return the names of all sites of a model that is wrapped, and every type that instruments show."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    made: nn.Module = nn.Sequential(Block(), nn.Sequential(Block()), nn.Linear(6, 3))
    for wrapper in how.split():
        if wrapper == "checkpoint":
            made[0] = checkpoint_wrapper.checkpoint_wrapper(made[0])  # type: ignore[index, operator]
        elif wrapper == "FSDP1":
            made[0] = FullyShardedDataParallel(made[0], use_orig_params=True, device_id=torch.device("cpu"))  # type: ignore[index, operator]
            made = FullyShardedDataParallel(made, use_orig_params=True, device_id=torch.device("cpu"))
        elif wrapper == "FSDP2":
            for each in (*list(made)[:2], made):  # type: ignore[call-overload]
                fully_shard(each)
        elif wrapper == "DDP":
            made = DistributedDataParallel(made)
        elif wrapper == "compile":
            made = torch.compile(made, backend="eager")  # type: ignore[assignment]
    sites = [str(site) for site in sonde.engine.probes.probe.sites(made, ports=("output", "param"))]
    types: set[str] = set()
    if "compile" not in how:
        probe = sonde.observe(made, Moments(), ports="output")
        tracker, recorder = sonde.track(made), recorders.ForwardOutput().modules(made)
        made(torch.ones(2, 6)).sum().backward()
        types |= {str(row["type"]) for row in probe.rows()} | {stash.type.__name__ for stash in tracker}
        types |= set(re.findall(r"\w*(?:FSDP|DDP|Wrapper|DataParallel)\w*", repr(tracker) + repr(recorder)))
        for each in (probe, tracker, recorder):
            each.detach()
    return sites, types


@pytest.mark.parametrize(
    "how",
    [
        "FSDP2",
        "DDP",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ("checkpoint FSDP2", "FSDP1", "checkpoint FSDP1", "checkpoint DDP compile")
        ),
    ],
)
def test_wrappers_leave_names_and_types_as_they_are(how: str) -> None:
    bare = values(on_ranks(1, wrapped, ""))[0]
    for sites, types in values(on_ranks(2, wrapped, how)):
        assert sites == bare[0]
        assert types <= bare[1]
