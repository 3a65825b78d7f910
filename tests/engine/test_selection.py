"""Names of modules with wrapper parts removed, and the one grammar that selects among them."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.engine.selection import Where, members, parameters
from sonde.engine.torch_api.modules import unwrap
from sonde.errors import ModelError, SelectionError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(2, 2)
        self.mlp = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Holder(nn.Module):
    """A wrapper that calls what it wraps by a name of our choice, as FSDP and the checkpoint wrapper do."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)


BLOCK = ["", ".attn", ".mlp", ".mlp.0", ".mlp.1"]
NAMES = ["", "embed", "blocks", *(f"blocks.0{part}" for part in BLOCK), *(f"blocks.1{part}" for part in BLOCK), "head"]

CALLED = [name for name in NAMES if name != "blocks"]  # a ModuleList only holds others


def names_of(model: nn.Module) -> list[str]:
    return [item.name for item in members(model)]


def chosen(include: Where = None, exclude: Where = None) -> list[str]:
    return [site.path for site in sonde.sites(Net(), include, exclude)]


# Names


def test_members_are_named_modules() -> None:
    """Names, order and modules are those of ``named_modules()`` where nothing is wrapped."""
    model = Net()
    assert names_of(model) == NAMES == [name for name, _ in model.named_modules()]
    assert [item.module for item in members(model)] == list(model.modules())
    assert all(item.aliases == () for item in members(model))


@pytest.mark.parametrize("attribute", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_a_wrapper_leaves_no_part_in_the_names(attribute: str) -> None:
    """Wrapping the whole model and one block under a known attribute name changes no name."""
    model = Net()
    model.blocks[1] = Holder(attribute, model.blocks[1])
    assert names_of(Holder(attribute, model)) == NAMES


def test_torch_compile_leaves_no_part_in_the_names() -> None:
    """``torch.compile(model)`` and a compiled block keep their names (nothing is compiled before the first call)."""
    model = Net()
    model.blocks[0] = torch.compile(model.blocks[0])  # type: ignore[assignment]  # it is a module
    whole = torch.compile(model)
    assert names_of(whole) == NAMES  # type: ignore[arg-type]  # it is a module
    assert unwrap(whole) is model  # type: ignore[arg-type]  # it is a module


def test_data_parallel_leaves_no_part_in_the_names() -> None:
    """What ``DataParallel`` wraps keeps its names, and so does a stack of wrappers."""
    model = Net()
    assert names_of(nn.DataParallel(model)) == NAMES
    assert names_of(nn.DataParallel(Holder("_fsdp_wrapped_module", Holder("_checkpoint_wrapped_module", model)))) == NAMES


def test_a_user_module_called_module_keeps_its_name() -> None:
    """``module`` is dropped for the parallel wrappers alone, since users call their own modules so."""
    assert names_of(Holder("module", nn.ReLU())) == ["", "module"]


def test_parameters_have_names_without_wrapper_parts() -> None:
    """Parameter names are those of ``named_parameters()`` of the bare model, tied ones once."""
    model = Net()
    model.head.weight = nn.Parameter(torch.zeros(1, 2))
    model.extra = nn.Linear(2, 1)
    model.extra.weight = model.head.weight
    expected = [name for name, _ in model.named_parameters()]
    assert [name for name, _, _ in parameters(nn.DataParallel(Holder("_orig_mod", model)))] == expected
    assert "extra.weight" not in expected


def test_a_shared_module_has_one_name_and_aliases() -> None:
    """A module reachable by several names is listed once, under the first; the others are its aliases."""
    model = Net()
    model.again = model.embed
    model.tail = model.blocks
    found = {item.name: item for item in members(model)}
    assert "again" not in found
    assert found["embed"].module is model.embed
    assert found["embed"].aliases == ("again",)
    assert found["blocks.1.mlp.0"].aliases == ("tail.1.mlp.0",)
    assert found["head"].aliases == ()


def test_a_module_that_contains_itself_is_listed_once() -> None:
    """A cycle in the module tree ends, and its way back is an alias."""
    model = Net()
    model.blocks[0].add_module("above", model)
    found = {item.name: item for item in members(model)}
    assert list(found) == NAMES
    assert "blocks.0.above" in found[""].aliases


def test_many_levels_of_sharing_end() -> None:
    """Thirty levels that each hold the next one twice (a thousand million names) are listed at once."""
    inner: nn.Module = nn.ReLU()
    for _ in range(30):
        inner = nn.ModuleDict({"left": inner, "right": inner})
    assert len(members(inner)) == 31


# Selection


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (None, None, CALLED),
        ("", "", CALLED),
        (r"mlp", None, ["blocks.0.mlp", "blocks.0.mlp.0", "blocks.0.mlp.1", "blocks.1.mlp", "blocks.1.mlp.0", "blocks.1.mlp.1"]),
        (r"\.1$", None, ["blocks.0.mlp.1", "blocks.1", "blocks.1.mlp.1"]),
        (r"^head|^embed", None, ["embed", "head"]),
        (r"^$", None, [""]),
        (re.compile("EMB", re.IGNORECASE), None, ["embed"]),
        (None, re.compile("blocks"), ["", "embed", "head"]),
        (["head", "embed"], None, ["embed", "head"]),
        ([""], None, [""]),
        (nn.ReLU, None, ["blocks.0.mlp.1", "blocks.1.mlp.1"]),
        ((nn.ReLU, Block), None, ["blocks.0", "blocks.0.mlp.1", "blocks.1", "blocks.1.mlp.1"]),
        ([nn.ReLU], None, ["blocks.0.mlp.1", "blocks.1.mlp.1"]),
        (nn.Linear, "blocks", ["embed", "head"]),
        ("blocks.0", nn.Linear, ["blocks.0", "blocks.0.mlp", "blocks.0.mlp.1"]),
        (lambda name, module: isinstance(module, nn.Linear) and "." not in name, None, ["embed", "head"]),
        (None, lambda name, module: "." in name or not name, ["embed", "head"]),
        ({"head"}, None, ["head"]),
        ((name for name in ["head"]), None, ["head"]),
        ("embed", [], ["embed"]),
    ],
)
def test_what_a_condition_admits(include: Any, exclude: Any, expected: list[str]) -> None:
    """A regex is searched, names are exact, types match instances, and an empty string is no condition."""
    assert chosen(include, exclude) == expected


def test_a_callable_is_given_name_and_module() -> None:
    """A callable gets each candidate's name and module, in order."""
    model = Net()
    given: list[tuple[str, nn.Module]] = []
    sonde.sites(model, lambda name, module: given.append((name, module)) is None)
    assert given == [(name, module) for name, module in model.named_modules() if name in CALLED]


@pytest.mark.parametrize("include", [["again"], "again", lambda name, module: name == "again"])
def test_a_shared_module_is_selected_by_any_of_its_names(include: Any) -> None:
    """An alias selects the module it leads to, under its canonical name, in every kind of condition."""
    model = Net()
    model.again = model.embed
    assert [site.path for site in sonde.sites(model, include)] == ["embed"]


def test_a_regex_with_no_match_names_the_nearest() -> None:
    """Nothing matched: the error repeats what was asked and names the nearest misses."""
    with pytest.raises(SelectionError) as raised:
        chosen(r"blocks\.0\.atn$")
    assert "include='blocks\\\\.0\\\\.atn$'" in str(raised.value)
    assert "blocks.0.attn" in str(raised.value)


def test_a_misspelt_last_part_is_found() -> None:
    """The nearest misses also look at the last part of the names alone."""
    with pytest.raises(SelectionError, match=r"blocks\.0\.attn"):
        chosen("transformer.h.0.attn")


def test_everything_excluded_is_an_error_that_shows_both_conditions() -> None:
    """An exclusion that leaves nothing raises, showing include and exclude as they were asked."""
    with pytest.raises(SelectionError, match=r"include=Linear.*exclude='embed\|head\|blocks'"):
        chosen(nn.Linear, "embed|head|blocks")


def test_a_type_that_does_not_occur_is_an_error_that_lists_names() -> None:
    """With no near miss to name, the error says what there is."""
    with pytest.raises(SelectionError, match=r"include=Conv2d.*There are 13: \(root\), embed, blocks"):
        chosen(nn.Conv2d)


def test_a_bad_regex_says_so_and_offers_the_list() -> None:
    """A string that is no regular expression raises with the reason and the way to give it as an exact name."""
    with pytest.raises(SelectionError, match=r"not a regular expression.*include=\['blocks\[0'\]"):
        chosen("blocks[0")
    with pytest.raises(SelectionError, match=r"exclude='\(' is not a regular expression"):
        chosen(None, "(")


def test_an_unknown_listed_name_is_an_error_with_near_misses() -> None:
    """Each listed name must exist: one that does not raises even when others do, also in ``exclude``."""
    with pytest.raises(SelectionError, match=r"include: there is no module called 'haed'. Nearest: head"):
        chosen(["embed", "haed"])
    with pytest.raises(SelectionError, match=r"exclude: there is no module called 'haed'"):
        chosen(None, ["haed"])


@pytest.mark.parametrize("include", [3, [3], (nn.Linear, "head"), int, (int, nn.Linear)])
def test_a_condition_of_another_kind_is_an_error(include: Any) -> None:
    """What is no condition at all raises ``SelectionError`` and names the argument."""
    with pytest.raises(SelectionError, match="include"):
        chosen(include)


def test_an_empty_list_selects_nothing() -> None:
    """A list of no names admits nothing, which is an error like any other empty selection."""
    with pytest.raises(SelectionError, match=r"nothing is selected by include=\[\]"):
        chosen([])


# Through the public door


def test_a_container_is_no_site() -> None:
    """A ``ModuleList`` is never called, so it is no site; naming it exactly says what there is instead."""
    found = [site.path for site in sonde.sites(Net())]
    assert found == CALLED
    with pytest.raises(SelectionError, match=r"no module called 'blocks'. Nearest: .*blocks\.0"):
        sonde.sites(Net(), ["blocks"])


def test_sites_of_a_wrapped_model_are_those_of_the_bare_one() -> None:
    """The same sites come from a bare, a compiled and a parallel model."""
    model = Net()
    bare = sonde.sites(model, "attn")
    assert [str(site) for site in bare] == ["blocks.0.attn:output", "blocks.1.attn:output"]
    assert sonde.sites(nn.DataParallel(model), "attn") == bare
    assert sonde.sites(torch.compile(model), "attn") == bare  # type: ignore[arg-type]  # it is a module


@pytest.mark.parametrize(
    ("model", "said"),
    [(nn.Linear, r"make one first, Linear\(\.\.\.\)"), (3, "int"), ([nn.ReLU()], "list"), (torch.relu, "nn.Module")],
)
def test_what_is_no_model_raises(model: Any, said: str) -> None:
    """A class, a number, a list or a function in the place of a model raises ``ModelError``, saying what it is."""
    for call in (lambda: sonde.sites(model), lambda: sonde.observe(model, print)):
        with pytest.raises(ModelError, match=said):
            call()


class Pair(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.act = nn.Linear(2, 2), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.mlp(x))


def blocks() -> nn.Module:
    """Return two blocks under the name h, and a head."""
    return nn.Sequential(OrderedDict(h=nn.Sequential(Pair(), Pair()), head=nn.Linear(2, 2)))


INSTRUMENTS: dict[str, Callable[[nn.Module, str], Any]] = {
    "observe": lambda model, where: sonde.observe(model, lambda event: None, where),
    "track": lambda model, where: sonde.track(model, include=where),
    "recorder": lambda model, where: sonde.recorders.ForwardOutput(lambda tensor: tensor).modules(model, include=where),
    "watch": lambda model, where: sonde.watch(model, include=where, to="memory", verbose=False),
    "lens": lambda model, where: sonde.watch(model, lenses=sonde.lens.OutputNorm(include=where), to="memory", verbose=False),
    "exclude": lambda model, where: sonde.observe(model, lambda event: None, exclude=where),
}


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_a_pattern_that_looks_like_a_glob_is_said_once_with_both_counts(instrument: str) -> None:
    """When the instrument is put on, and never again while the model changes and runs."""
    model = blocks()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        probe = INSTRUMENTS[instrument](model, "h.*")
        model[1] = nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        probe.detach() if hasattr(probe, "detach") else None
    said = [str(each.message) for each in caught if "glob" in str(each.message)]
    assert len(said) == 1
    assert "='h.*' is a regular expression, which is found in the names of 8 modules" in said[0]
    assert "As a glob it would be 2 modules: h.0, h.1. For these give" in said[0]
    assert r"=r'^h\.[^.]*$'" in said[0]


@pytest.mark.parametrize("pattern", [r"^h\.[^.]*$", "(h.*)", "^h.*", "h", r"h\.", "act", ".*mlp", "h.*mlp", re.compile("h.*")])
def test_a_pattern_that_says_what_it_is_or_means_the_same_either_way_is_not_remarked_on(pattern: Any) -> None:
    with sonde.observe(model := blocks(), lambda event: None, pattern):
        model(torch.ones(1, 2))


def test_what_is_attached_says_how_many_modules_were_selected() -> None:
    model = blocks()
    probe = sonde.observe(model, sonde.stats.Moments(), r"^h\.[^.]*$", ports=("input", "output"))
    model(torch.ones(1, 2))
    assert repr(probe).splitlines()[0] == "Probe(Moments(), 4 sites of 2 modules, attached)"
    probe.detach()
    inspector = sonde.watch(model, include=r"^h\.\d\.mlp$", to="memory", verbose=False)
    inspector.detach()
    assert "model: 0 of 0 steps logged, 2 of 9 modules observed" in repr(inspector)


def test_a_name_that_is_none_of_the_public_ones_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"^sonde has no 'sumary'\. Nearest: summary\.$"):
        sonde.sumary  # noqa: B018
    with pytest.raises(AttributeError, match=r"^sonde\.integrations has no 'TensorBord'\. Nearest: TensorBoard"):
        sonde.integrations.TensorBord  # noqa: B018
    assert not hasattr(sonde, "__wrapped__")
