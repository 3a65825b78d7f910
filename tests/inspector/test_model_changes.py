"""A model that changes during a training is observed as it is from the first step after the change, by every instrument."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from tests.quick import quick
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.utils import parametrizations, parametrize, prune

import sonde
from sonde import lens
from sonde.errors import ObservationWarning
from sonde.recorders import ForwardOutput
from sonde.site import PARAMETER_PORTS
from sonde.stats import Moments

Optimizer = torch.optim.Optimizer
Change = Callable[[nn.Sequential, Optimizer], Optimizer]

pytestmark = pytest.mark.filterwarnings("ignore:the model has changed since it was observed")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2)))


def batch(step: int, rank: int = 0) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * step + rank))


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


# The changes


def _added(optimizer: Optimizer, layer: nn.Module) -> Optimizer:
    optimizer.add_param_group({"params": list(layer.parameters())})
    return optimizer


def _new_head(model: nn.Sequential) -> nn.Module:
    last = model[3]
    assert isinstance(last, nn.Sequential)
    last[1] = nn.Linear(8, 2)
    return last[1]


def head_in_a_group(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    return _added(optimizer, _new_head(model))


def head_with_a_new_optimizer(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    _new_head(model)
    return sgd(model)


def parameter_in_the_same_group(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    """The lists of parameters have the same lengths and ends as before."""
    model[2].weight = nn.Parameter(torch.randn(8, 8))
    optimizer.param_groups[0]["params"] = list(model.parameters())
    return optimizer


def parameter_with_a_new_optimizer(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    model[2].weight = nn.Parameter(torch.randn(8, 8))
    return sgd(model)


def weight_norm(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    parametrizations.weight_norm(model[2])
    return sgd(model)


def former_weight_norm(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(model[2])
    return sgd(model)


class Twice(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def parametrized(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    parametrize.register_parametrization(model[2], "weight", Twice())
    return sgd(model)


def pruned(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    prune.l1_unstructured(model[2], "weight", 0.5)  # type: ignore[no-untyped-call]
    return sgd(model)


def overwritten(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    """No registration sees this: new parameters are written into the dictionaries of the modules."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double().float()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    return sgd(model)


class Adapted(nn.Module):
    """A layer with a low-rank adapter, as LoRA has it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


def adapter(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    model[2] = Adapted(model[2])  # type: ignore[arg-type]
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.05)


def activation(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    model[1] = nn.GELU()
    return optimizer


def appended(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    return _added(optimizer, model.append(nn.Linear(2, 2))[-1])


def inserted(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    """Each layer behind moves on to the next name, and no registration sees it."""
    model.insert(1, nn.Linear(8, 8))
    return _added(optimizer, model[1])


def removed(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
    del model[2]
    return optimizer


CHANGES: list[Change] = [
    head_in_a_group,
    head_with_a_new_optimizer,
    parameter_in_the_same_group,
    parameter_with_a_new_optimizer,
    weight_norm,
    former_weight_norm,
    parametrized,
    pruned,
    overwritten,
    adapter,
    activation,
    appended,
    inserted,
    removed,
]


# What is true


def length(tensor: Tensor) -> float:
    return float(tensor.detach().double().norm())


def noting(found: dict[Any, float], key: Any) -> Any:
    """Return a hook that notes the length of an output under *key*."""

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        found[key] = length(output)

    return note


def total(lengths: list[float]) -> float:
    return math.sqrt(sum(each * each for each in lengths))


class Numbers(dict[tuple[str, int], float]):
    """Lengths by site, or name of a norm, and step."""


def train(
    change: Change,
    at: int,
    steps: int,
    *,
    compiled: bool = False,
    rank: int = 0,
    to: Any = "memory",
    every: int = 1,
    wrapper: bool = False,
) -> tuple[Any, Numbers, Numbers]:
    """Train a watched model that changes before *at*; return the inspector, the true lengths by site, and those of all."""
    model = net()
    called: Any = torch.compile(model, backend="aot_eager") if compiled else model
    optimizer = sgd(model)
    true, norms = Numbers(), Numbers()
    with sonde.watch(
        called if wrapper else model, optimizer, every=every, to=to, verbose=False, lenses=[lens.moments()]
    ) as inspector:
        for step in range(steps):
            if step == at:
                optimizer = change(model, optimizer)
            handles = []
            for name, module in () if compiled else model.named_modules():
                if isinstance(module, nn.Sequential):
                    continue  # no lens looks there
                handles.append(module.register_forward_hook(noting(true, (f"{name}:output", step))))
            loss = called(batch(step, rank)).square().mean()
            for handle in handles:
                handle.remove()
            optimizer.zero_grad()
            loss.backward()
            if dist.is_initialized():
                for each in model.parameters():
                    if each.grad is not None:
                        dist.all_reduce(each.grad, op=dist.ReduceOp.SUM)
            moved = {id(each) for group in optimizer.param_groups for each in group["params"]}
            own = {name: each for name, each in model.named_parameters() if id(each) in moved}
            before = {name: each.detach().double() for name, each in own.items()}
            found = {
                "grad": {name: length(each.grad) for name, each in own.items() if each.grad is not None},
            }
            optimizer.step()
            found["param"] = {name: length(each) for name, each in own.items()}
            found["update"] = {name: length(each.detach().double() - before[name]) for name, each in own.items()}
            for port, lengths in found.items():
                true |= {(f"{name}:{port}", step): each for name, each in lengths.items()}
                norms[f"{port}_norm", step] = total(list(lengths.values()))
    return inspector, true, norms


def recorded(run: Any) -> tuple[Numbers, Numbers]:
    """Return the lengths by site, and those of all parameters."""
    frame = run.to_pandas("moments")
    rows = Numbers({(site, step): norm for site, step, norm in zip(frame["site"], frame["step"], frame["norm"], strict=True)})
    norms = Numbers()
    for name in ("grad_norm", "param_norm", "update_norm"):
        steps, numbers = run.scalar(name)
        norms |= {(name, int(step)): float(number) for step, number in zip(steps, numbers, strict=True)}
    return rows, norms


def of_ports(rows: Numbers, *ports: str) -> Numbers:
    return Numbers({key: number for key, number in rows.items() if key[0].rpartition(":")[2] in ports})


# A length is the root of a float64 sum of at most 64 squares: each sum errs by at most 64 units in the last place
CLOSE = 1e-12


@pytest.mark.parametrize(
    ("change", "at"),
    quick(
        [(change, at) for change in CHANGES for at in (1, 19)],
        *[(change, 1) for change in CHANGES],
        *[(change, 19) for change in (head_with_a_new_optimizer, former_weight_norm, adapter, removed)],
    ),
    ids=lambda held: getattr(held, "__name__", None),
)
def test_every_number_after_a_change_is_of_the_changed_model(change: Change, at: int) -> None:
    """Each row of each logged step, and the norms over all parameters, are those that plain hooks and plain loops find."""
    inspector, true, norms = train(change, at, at + 6)
    rows, totals = recorded(inspector.run)
    assert of_ports(rows, "output", *PARAMETER_PORTS) == pytest.approx(true, rel=CLOSE)
    assert totals == pytest.approx(norms, rel=CLOSE)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    "change",
    quick([head_with_a_new_optimizer, parameter_in_the_same_group, adapter, activation, inserted], adapter),
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("wrapper", [True, False], ids=["the compiled module watched", "its model watched"])
def test_a_compiled_model_that_changes(change: Change, wrapper: bool) -> None:
    """Right from the first step on where what is called is watched; else the first call of the new code is left out, and said."""
    inspector, true, norms = train(change, 3, 6, compiled=True, wrapper=wrapper)
    rows, totals = recorded(inspector.run)
    assert of_ports(rows, *PARAMETER_PORTS) == pytest.approx(true, rel=CLOSE)
    assert totals == pytest.approx(norms, rel=CLOSE)
    eager, _ = recorded(train(change, 3, 6)[0].run)
    assert rows.keys() <= eager.keys()
    said = {str(line.site) for line in inspector.coverage() if "compiled before that was seen" in line.reason}
    assert eager.keys() - rows.keys() <= (set() if wrapper else {(site, 3) for site in said})


def test_a_new_optimizer_goes_on_with_the_interval_of_the_former() -> None:
    """Every tenth step stays every tenth step, though the former optimizer may live on in a scheduler of the learning rate."""
    for keeps in (False, True):
        kept: list[Optimizer] = []

        def change(model: nn.Sequential, optimizer: Optimizer) -> Optimizer:
            if keeps:  # noqa: B023
                kept.append(optimizer)  # noqa: B023
            return head_with_a_new_optimizer(model, optimizer)

        inspector, _, norms = train(change, 35, 100, every=10)
        steps, found = inspector.run.scalar("param_norm")
        assert list(steps) == list(range(0, 100, 10))
        assert list(found) == pytest.approx([norms["param_norm", int(step)] for step in steps], rel=CLOSE)


def test_an_optimizer_that_is_replaced_early_is_let_go_and_followed() -> None:
    """The inspector does not keep the one that it was given: the new one has its interval, and the name of its learning rate."""
    inspector, _, norms = train(head_with_a_new_optimizer, 4, 12, every=3)
    steps, found = inspector.run.scalar("grad_norm")
    assert list(steps) == [0, 3, 6, 9]
    assert list(found) == pytest.approx([norms["grad_norm", int(step)] for step in steps], rel=CLOSE)
    assert list(inspector.run.scalar("lr")[0]) == [0, 3, 6, 9]


def test_a_layer_that_comes_at_a_step_that_is_not_logged() -> None:
    """The next logged step has its rows, whenever the change came."""
    for at in (41, 45, 50):
        inspector, true, norms = train(appended, at, 61, every=10)
        rows, totals = recorded(inspector.run)
        assert rows[("4.weight:param", 50)] == pytest.approx(true["4.weight:param", 50], rel=CLOSE)
        assert totals["grad_norm", 50] == pytest.approx(norms["grad_norm", 50], rel=CLOSE)


def test_norms_are_of_all_parameters_where_no_lens_means_those_that_came() -> None:
    """The lens has covered all parameters, and does not cover the new layer."""
    model = net()
    optimizer = sgd(model)
    with sonde.watch(
        model, optimizer, every=1, to="memory", verbose=False, lenses=[lens.moments()], include=r"^[0-3]"
    ) as inspector:
        for step in range(6):
            if step == 3:
                optimizer = appended(model, optimizer)
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            true = total([length(each.grad) for each in model.parameters() if each.grad is not None])
            optimizer.step()
    assert inspector.run.scalar("grad_norm")[1][-1] == pytest.approx(true, rel=CLOSE)


def lengths_of_outputs(model: nn.Module, x: Tensor) -> dict[str, float]:
    """Run *model* unobserved, with plain hooks; return the length of each module's output."""
    found: dict[str, float] = {}
    handles = [module.register_forward_hook(noting(found, name)) for name, module in model.named_modules()]
    model(x)
    for handle in handles:
        handle.remove()
    return found


Run = Callable[[int], None]  # runs the model, which has changed before the last of so many forwards


def by_track(model: nn.Module, run: Run) -> dict[str, float]:
    with sonde.track(model, ports=("output",)) as tracker:
        run(4)
        return {stash.name: length(stash.first_value) for stash in tracker if stash.tick.forward == 3}


def by_subscriber(model: nn.Module, run: Run) -> dict[str, float]:
    found: dict[int, dict[str, float]] = {}

    def note(event: Any) -> None:
        found.setdefault(event.tick.forward, {})[event.name] = length(event.value)

    with sonde.observe(model, note, strict=True):
        run(4)
    return found[3]


def by_statistic(model: nn.Module, run: Run) -> dict[str, float]:
    """In the rows of all forwards the last one is what is new."""
    with sonde.observe(model, Moments(), strict=True) as probe:
        run(3)
        probe.reset()
        run(1)
        return {row["name"]: row["norm"] for row in probe.rows() if row["calls"]}


def by_recorder(model: nn.Module, run: Run) -> dict[str, float]:
    """Names that come have no slot."""
    recorder = ForwardOutput()
    recorder.modules(model)
    run(3)
    before = {slot.site: len(slot.held) for slot in recorder.subrecorders}
    run(1)
    recorder.detach()
    new = {slot.site.path: slot.held[before.get(slot.site, 0) :] for slot in recorder.subrecorders}
    return {name: length(held[-1]) for name, held in new.items() if held}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("read", [by_track, by_subscriber, by_statistic, by_recorder])
def test_the_first_forward_after_a_change_is_seen_by_each_instrument(read: Any, change: Change) -> None:
    """Each module that has run has its output, and no other has one."""
    check_first_forward(read, change, compiled=False)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("change", [head_in_a_group, weight_norm, adapter, activation, removed], ids=lambda change: change.__name__)
@pytest.mark.parametrize("read", [by_track, by_subscriber, by_statistic, by_recorder])
def test_the_first_forward_of_a_compiled_model_after_a_change(read: Any, change: Change) -> None:
    """The code is compiled anew with the hooks of what came."""
    check_first_forward(read, change, compiled=True)


def check_first_forward(read: Any, change: Change, *, compiled: bool) -> None:
    model, x, made = net(), batch(0), 0
    called: Any = torch.compile(model, backend="aot_eager") if compiled else model

    def run(forwards: int) -> None:
        nonlocal made
        for _ in range(forwards):
            made += 1
            if made == 4:
                change(model, sgd(model))
            called(x)

    names = {name for name, _ in model.named_modules()}
    found, true = read(called, run), lengths_of_outputs(model, x)
    if read is by_recorder:
        true = {name: number for name, number in true.items() if name in names}
    assert found == pytest.approx(true, rel=CLOSE)


def of_ranks() -> list[tuple[Any, Any, Any]]:
    """Return by kind of change the recorded lengths, those of all parameters, and the true ones, of this rank."""
    warnings.filterwarnings("ignore", "the model has changed")
    found = []
    for change in (head_with_a_new_optimizer, appended, adapter, overwritten):
        inspector, true, norms = train(change, 3, 7, rank=dist.get_rank())
        rows, totals = recorded(inspector.run) if dist.get_rank() == 0 else (Numbers(), Numbers())
        found.append((dict(rows), dict(totals), {**of_ports(true, *PARAMETER_PORTS), **norms}))
    return found


@pytest.mark.slow
def test_a_model_that_changes_on_two_ranks() -> None:
    """Rows of parameters and their norms are those of the whole training from the first step on."""
    first, second = values(on_ranks(2, of_ranks))
    for (rows, totals, true), (_, _, other) in zip(first, second, strict=True):
        assert true == pytest.approx(other, rel=CLOSE)
        assert {**of_ports(rows, *PARAMETER_PORTS), **totals} == pytest.approx(true, rel=CLOSE)


def test_one_warning_names_what_has_changed() -> None:
    """However many statistics observe the model."""
    model = net()
    optimizer = sgd(model)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        model(batch(0)).sum().backward()
        optimizer.step()
        optimizer = head_with_a_new_optimizer(model, optimizer)
        with pytest.warns(ObservationWarning) as said:
            model(batch(0)).sum().backward()
            optimizer.step()
    reasons = {line.reason for line in inspector.coverage() if line.site.path == "3.1.weight"}
    assert reasons == {"came or was replaced after the probe was attached, by step 1"}
    assert [str(each.message) for each in said] == [
        "the model has changed since it was observed: 3.1, 3.1.weight, 3.1.bias came or were replaced, and are observed from now on"
    ]
