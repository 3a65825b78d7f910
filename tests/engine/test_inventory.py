"""What is remembered of a model between two probes is never older than the model."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import sonde
from sonde.engine import inventory, structure
from sonde.engine.inventory import inventory_of
from sonde.engine.probes.statistic_hooks import StatisticHook
from sonde.engine.selection import members, parameters
from sonde.engine.torch_api import modules
from sonde.stats import Moments, kernel_status


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.third = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


class Held(nn.Module):
    """A module without a forward, until its class is given one."""


def slow_members(model: nn.Module) -> list[tuple[str, int]]:
    return [(name, id(module)) for name, module in model.named_modules()]


def slow_parameters(model: nn.Module) -> list[tuple[str, int]]:
    return [(name, id(parameter)) for name, parameter in model.named_parameters()]


def observed(model: nn.Module, **kwargs: Any) -> list[str]:
    """Return the sites that a new probe has, and check that their hooks are on the model's own modules of these names."""
    with sonde.observe(model, Moments(), ports=("output", "grad"), **kwargs) as probe:
        named = dict(model.named_modules()) | dict(model.named_parameters())
        assert all(hook.target is named[hook.name] for hook in probe._attachment.hooks)
        return [str(site) for site in probe.sites]


def replace_module(model: Tower) -> None:
    model.second[0] = nn.Linear(2, 2)


def replace_by_an_equal_id(model: Tower) -> None:
    """Replace a module by one that has the id of the former, as far as the allocator lets us: many are tried."""
    former = id(model.third)
    weight, bias = model.third.weight, model.third.bias
    del model.third
    tried = []
    for _ in range(2000):
        made = Doubled.__new__(Doubled)
        tried.append(made)
        if id(made) == former:
            break
    nn.Module.__init__(made)
    made.in_features = made.out_features = 2
    made.weight, made.bias = weight, bias
    model.third = made


def rename(model: Tower) -> None:
    module = model.third
    del model.third
    model.fourth = module
    model.third = nn.Identity()


def swap(model: Tower) -> None:
    model.first, model.third = model.third, model.first


def move_to_another_parent(model: Tower) -> None:
    module = model.first
    model.first = nn.Identity()
    model.second.append(module)


def replace_parameter(model: Tower) -> None:
    model.first.weight = nn.Parameter(torch.ones(2, 2))


def tie(model: Tower) -> None:
    model.third.weight = model.first.weight


def parametrized(model: Tower) -> None:
    parametrize.register_parametrization(model.first, "weight", nn.Identity())


def share(model: Tower) -> None:
    model.third = model.first


def change_class(model: Tower) -> None:
    model.first.__class__ = Doubled


CHANGES: list[Callable[[Tower], None]] = [
    replace_module,
    replace_by_an_equal_id,
    rename,
    swap,
    move_to_another_parent,
    replace_parameter,
    tie,
    parametrized,
    share,
    change_class,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_probes_is_seen_by_the_second(change: Callable[[Tower], None]) -> None:
    model = Tower()
    observed(model)
    before = inventory_of(model)
    change(model)
    assert inventory_of(model) is not before
    assert [(item.name, id(item.module)) for item in members(model)] == slow_members(model)
    assert [(name, id(parameter)) for name, parameter, _ in parameters(model)] == slow_parameters(model)
    again = Tower()
    change(again)
    assert observed(model) == observed(again)


def test_an_unchanged_model_keeps_its_inventory() -> None:
    model = Tower()
    before = inventory_of(model)
    observed(model)
    model(torch.ones(1, 2)).sum().backward()
    model.load_state_dict(Tower().state_dict())
    model.double().eval()
    assert inventory_of(model) is before


def test_freezing_and_compiling_make_a_new_inventory() -> None:
    model = Tower()
    before = inventory_of(model)
    model.first.weight.requires_grad_(False)
    frozen = inventory_of(model)
    model.second.compile(backend="eager")
    assert len({id(each) for each in (before, frozen, inventory_of(model))}) == 3


def test_an_object_that_was_freed_makes_the_inventory_worthless_even_if_another_has_its_id() -> None:
    """The walk sees ids alone; that the object is another one is known because the former was freed."""
    model = Tower()
    inventory = inventory_of(model)
    assert inventory.is_whole
    del model.third
    gc.collect()
    assert not inventory.is_whole


def test_a_class_that_is_given_a_forward_later_is_observed_from_then_on() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Held())
    assert "1:output" not in observed(model)
    try:
        Held.forward = lambda self, x: x
        assert "1:output" in observed(model)
    finally:
        del Held.forward
    assert "1:output" not in observed(model)


def test_a_callable_selection_is_asked_each_time() -> None:
    model, wanted = Tower(), {"first"}

    def include(name: str, module: nn.Module) -> bool:
        return name in wanted

    assert [site.path for site in sonde.sites(model, include)] == ["first"]
    wanted.add("third")
    assert [site.path for site in sonde.sites(model, include)] == ["first", "third"]


def test_a_lazy_module_is_observed_as_what_it_has_become() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    for _ in range(2):
        with sonde.track(model) as tracker:
            model(torch.ones(2, 2)).sum().backward()
        assert next((stash.name, stash.type) for stash in tracker if not stash.grad) == ("0", nn.Linear)
        assert [stash.name for stash in tracker if stash.grad] == ["", "1", "0"]


def test_rows_lie_on_the_device_of_the_moved_model() -> None:
    model = Tower()
    observed(model)
    model.to("meta")
    with sonde.observe(model, Moments(), ports=("grad",)) as probe:
        devices = {row.device for hook in probe._attachment.hooks for row in hook.rows.values()}  # type: ignore[attr-defined]
    assert devices == {torch.device("cpu")}  # nothing is added to rows without data


def test_names_of_wrappers_are_left_out_and_their_own_parameters_are_known() -> None:
    model = Tower()
    wrapper = torch.compile(model, backend="eager")
    assert [item.name for item in members(wrapper)] == [item.name for item in members(model)]
    wrapper.scale = nn.Parameter(torch.ones(1))  # type: ignore[union-attr]
    assert {id(each) for each in inventory_of(wrapper).parameters} == {id(each) for each in wrapper.parameters()}


@pytest.mark.parametrize("with_parent", [False, True])
def test_no_model_is_kept_alive(with_parent: bool) -> None:
    """Neither a model, nor one whose parts refer back to it, waits for longer than the garbage collector does anyway."""
    model = Tower()
    if with_parent:
        model.first.parent = [model]
    observed(model)
    inventory = weakref.ref(inventory_of(model))
    gone = [weakref.ref(model), weakref.ref(model.second[0]), weakref.ref(model.first.weight)]
    del model
    if with_parent:
        gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
    assert inventory() is None


def test_no_more_results_are_remembered_than_a_loop_over_names_may_leave() -> None:
    model = Tower()
    for index in range(200):
        observed(model, name=f"model{index}")
    assert len(inventory_of(model)._memory) <= 32


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_model_with_a_scripted_part_keeps_its_inventory() -> None:
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Sequential(nn.Linear(2, 2))))
    before = inventory_of(model)
    assert [item.name for item in before.members] == ["", "0", "1", "1.0"]
    gc.collect()
    assert before.is_whole
    assert inventory_of(model) is before


def test_attaching_again_makes_no_new_plans_for_compiled_code() -> None:
    """Compiled code is guarded by the plan of a hook, and plans are kept for ever."""
    model, plans = Tower(), []
    for _ in range(3):
        with sonde.observe(model, Moments()) as probe:
            plans.append({hook.plan for hook in probe._attachment.hooks})  # type: ignore[attr-defined]
        del probe
        gc.collect()
    assert plans[0] == plans[1] == plans[2]


def test_attaching_again_walks_over_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk costs more than half of what else attaching again does."""
    model, walks = Tower(), []
    monkeypatch.setattr(inventory, "walk", lambda root: walks.append(root) or modules.walk(root))  # type: ignore[func-returns-value]
    for _ in range(2):
        walks.clear()
        with sonde.observe(model, Moments(), ports=("output", "grad_output", "grad")):
            assert walks == [model]


class Wavering(nn.Module):
    """Returns what it is told to."""

    returned: Callable[[Tensor], Any] = staticmethod(lambda x: x)

    def forward(self, x: Tensor) -> Any:
        return self.returned(x)


def test_a_row_that_a_former_probe_has_used_is_that_of_another_tensor_where_one_comes_first() -> None:
    """The rows of each probe are those of a probe on a model that was never observed."""
    model = nn.Sequential(nn.Linear(2, 2), Wavering())
    ways: list[Callable[[Tensor], Any]] = [
        lambda x: x,
        lambda x: (x, 2 * x),
        lambda x: 3 * x,
        lambda x: x.double(),
        lambda x: None,
        lambda x: x.int(),
        lambda x: {"a": x, "": 2 * x},
        lambda x: x,
    ]
    ports = ("input", "output", "grad_output", "grad")

    def seen(of: nn.Module) -> list[dict[str, Any]]:
        with sonde.observe(of, Moments(), ports=ports) as probe:
            for factor in (1.0, 2.0):
                out = of(factor * torch.arange(4.0).reshape(2, 2))
                torch.autograd.backward([each.sum() for _, each in structure.walk(out) if each.requires_grad])
            of[1](torch.ones(2, 2))  # type: ignore[index]
            return [{name: str(value) for name, value in row.items()} for row in probe.rows()]

    for returned in ways:
        model[1].returned = returned
        fresh = copy.deepcopy(model)
        fresh.zero_grad()
        model.zero_grad()
        assert seen(model) == seen(fresh)


def test_the_first_tensor_of_a_row_that_is_used_again_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel_status().level == "":
        pytest.skip("without kernels there is no short way")
    model, long = Tower(), []
    add_part = StatisticHook._add_part
    monkeypatch.setattr(StatisticHook, "_add_part", lambda self, *args: long.append(self.name) or add_part(self, *args))
    for again in (False, True):
        long.clear()
        with sonde.observe(model, Moments(), ports=("output", "grad_output", "grad")) as probe:
            model(torch.ones(1, 2)).sum().backward()
            assert bool(long) is not again
            assert {row["calls"] for row in probe.rows()} == {1}
        del probe
