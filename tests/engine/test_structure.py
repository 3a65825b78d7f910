"""Structured values: every container is walked in order, rebuilt as its own type, and outlined without its tensors."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    OneHotCategorical,
    TanhTransform,
    TransformedDistribution,
)
from torch.nn.utils.rnn import pack_sequence
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast

from sonde.engine.structure import as_arguments, outline, remap, walk


class Pair(NamedTuple):
    left: Any
    right: Any


class Labelled(dict[str, Any]):
    """A dict subclass that carries an attribute and takes other arguments than a dict."""

    def __init__(self, label: str, **items: Any) -> None:
        super().__init__(**items)
        self.label = label


class Stack(list[Any]):
    """A list subclass that carries an attribute and takes other arguments than a list."""

    def __init__(self, label: str, *items: Any) -> None:
        super().__init__(items)
        self.label = label


@dataclasses.dataclass
class Plain:
    hidden: Any
    count: int = 3


@dataclasses.dataclass(frozen=True)
class Frozen:
    hidden: Any
    count: int = 3


@dataclasses.dataclass(slots=True)
class Slotted:
    hidden: Any
    count: int = 3


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    hidden: Any
    count: int = 3


@dataclasses.dataclass
class Derived:
    """A field that ``__init__`` does not take, one that is never set, and an attribute that is no field."""

    hidden: Any
    doubled: Any = dataclasses.field(init=False)
    never: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.doubled = self.hidden * 2
        self.note = "kept"


class Cache:
    """Like a key-value cache: a plain class with tensors in lists among its attributes."""

    def __init__(self, keys: list[Tensor], seen: int) -> None:
        self.keys = keys
        self.seen = seen


def one() -> Tensor:
    return torch.tensor([1.0, 2.0])


def two() -> Tensor:
    return torch.tensor([[3.0]])


def negated(tensor: Tensor) -> Tensor:
    return -tensor


MATRIX = torch.tensor([[2.0, 1.0], [0.0, 3.0]])

# name: how to make it, and the paths of its leaves in order
VALUES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "tensor": (one, [""]),
    "parameter": (lambda: nn.Parameter(one()), [""]),
    "none": (lambda: None, []),
    "number": (lambda: 3.5, []),
    "text": (lambda: "text", []),
    "size": (lambda: torch.Size([2, 3]), []),
    "empty tuple": (lambda: (), []),
    "tuple": (lambda: (one(), None, two(), 7), ["[0]", "[2]"]),
    "list": (lambda: [one(), [two()]], ["[0]", "[1][0]"]),
    "dict": (lambda: {"hidden": [0, 1, one()], "n": 1, 5: two()}, ["['hidden'][2]", "[5]"]),
    "tuple keys": (lambda: {("a", 1): one()}, ["[('a', 1)]"]),
    "named tuple": (lambda: Pair(one(), [None, two()]), [".left", ".right[1]"]),
    "torch.max": (lambda: torch.max(MATRIX, 1), [".values", ".indices"]),
    "torch.linalg.svd": (lambda: torch.linalg.svd(MATRIX), [".U", ".S", ".Vh"]),
    "OrderedDict": (lambda: OrderedDict(b=one(), a=two()), ["['b']", "['a']"]),
    "defaultdict": (lambda: defaultdict(list, b=one(), a=[two()]), ["['b']", "['a'][0]"]),
    "dict subclass": (lambda: Labelled("x", a=one(), b=(two(),)), ["['a']", "['b'][0]"]),
    "list subclass": (lambda: Stack("x", one(), two()), ["[0]", "[1]"]),
    "deque": (lambda: deque([one(), two()], maxlen=4), ["[0]", "[1]"]),
    "dataclass": (lambda: Plain({"a": one()}), [".hidden['a']"]),
    "frozen dataclass": (lambda: Frozen((one(), two())), [".hidden[0]", ".hidden[1]"]),
    "slotted dataclass": (lambda: Slotted(one()), [".hidden"]),
    "frozen slotted dataclass": (lambda: FrozenSlotted(one()), [".hidden"]),
    "derived dataclass": (lambda: Derived(one()), [".hidden", ".doubled"]),
    "ModelOutput": (
        lambda: CausalLMOutputWithPast(logits=one(), hidden_states=(two(), one())),
        [".logits", ".hidden_states[0]", ".hidden_states[1]"],
    ),
    "PackedSequence": (
        lambda: pack_sequence([torch.ones(2, 1), torch.ones(3, 1)], enforce_sorted=False),
        [".data", ".batch_sizes", ".sorted_indices", ".unsorted_indices"],
    ),
    "Normal": (lambda: Normal(one(), two()), [".loc", ".scale"]),
    "Categorical": (lambda: Categorical(logits=one()), [".logits"]),
    "Categorical of probabilities": (lambda: Categorical(one()), [".probs"]),
    "NegativeBinomial": (lambda: NegativeBinomial(one(), logits=one()), [".total_count", ".logits"]),
    "OneHotCategorical": (lambda: OneHotCategorical(logits=one()), ["._categorical.logits"]),
    "Independent": (lambda: Independent(Normal(two(), two()), 1), [".base_dist.loc", ".base_dist.scale"]),
    "mixture": (
        lambda: MixtureSameFamily(Categorical(logits=one()), Normal(one(), one())),
        [".mixture_distribution.logits", ".component_distribution.loc", ".component_distribution.scale"],
    ),
    "squashed": (
        lambda: (TransformedDistribution(Normal(one(), one()), [TanhTransform()]), two()),
        ["[0].base_dist.loc", "[0].base_dist.scale", "[1]"],
    ),
    "mixed": (
        lambda: {"out": (Pair(one(), Frozen([two(), None])), torch.max(MATRIX, 0)), "more": CausalLMOutputWithPast(loss=one())},
        ["['out'][0].left", "['out'][0].right.hidden[0]", "['out'][1].values", "['out'][1].indices", "['more'].loss"],
    ),
}

CASES = pytest.mark.parametrize(("make", "paths"), VALUES.values(), ids=VALUES.keys())


def taken_apart(value: Any) -> list[Any]:
    """A value as nested lists of plain data with all types written out, by rules that are not those under test."""
    if isinstance(value, Tensor):
        return ["tensor", value.tolist()]
    kind = type(value)
    if dataclasses.is_dataclass(value):
        fields = [item.name for item in dataclasses.fields(value) if hasattr(value, item.name)]
        names = list(dict.fromkeys([*fields, *getattr(value, "__dict__", {})]))
        return [kind, [(name, taken_apart(getattr(value, name))) for name in names]]
    if isinstance(value, Distribution):
        given = vars(value).get("_param")  # the other one of these is made of it when it is asked for
        kept = {name: item for name, item in vars(value).items() if name not in ("probs", "logits") or item is given}
        return [kind, [(name, taken_apart(item)) for name, item in kept.items()]]
    if isinstance(value, dict):
        extra = [getattr(value, "label", None), getattr(value, "default_factory", None)]
        return [kind, extra, [(key, taken_apart(item)) for key, item in value.items()]]
    if isinstance(value, tuple | list | deque):
        return [kind, [getattr(value, "label", None), getattr(value, "maxlen", None)], [taken_apart(item) for item in value]]
    return [kind, value]


@CASES
def test_leaves_have_their_paths_in_order(make: Callable[[], Any], paths: list[str]) -> None:
    """``walk`` gives each tensor itself, in order, with the path that Python would use to reach it."""
    value = make()
    found = walk(value)
    assert [path for path, _ in found] == paths
    for path, tensor in found:
        assert eval(f"value{path}") is tensor


@CASES
def test_a_map_that_changes_nothing_gives_an_equal_value(make: Callable[[], Any], paths: list[str]) -> None:
    """Every container comes back as its own type with its own extras, and the original is not touched."""
    value = make()
    before = taken_apart(value)
    assert taken_apart(remap(value, lambda tensor: tensor)) == before
    remap(value, negated)
    assert taken_apart(value) == before


@CASES
def test_a_map_reaches_every_tensor(make: Callable[[], Any], paths: list[str]) -> None:
    """``remap`` puts ``fn(tensor)`` at the place of each tensor and nothing anywhere else."""
    value = make()
    mapped = remap(value, negated)
    leaves = walk(mapped)
    assert [path for path, _ in leaves] == paths
    for (_, new), (_, old) in zip(leaves, walk(value), strict=True):
        assert torch.equal(new, -old)


@CASES
def test_an_outline_can_be_filled_again(make: Callable[[], Any], paths: list[str]) -> None:
    """``outline`` finds the leaves that ``walk`` finds, and filled with other tensors it holds these at the same paths."""
    value = make()
    leaves, shape = outline(value)
    assert [path for path, _ in leaves] == paths
    assert all(found is expected for (_, found), (_, expected) in zip(leaves, walk(value), strict=True))
    assert shape.size == len(paths)
    new = [torch.full((1,), float(index)) for index in range(len(paths))]
    refilled = shape.fill(list(new))
    assert [(path, tensor.item()) for path, tensor in walk(refilled)] == [(path, float(i)) for i, path in enumerate(paths)]
    if paths:
        assert type(refilled) is (type(value) if paths != [""] else Tensor)


def test_an_outline_holds_none_where_there_was_no_tensor() -> None:
    """What is no tensor is None in a filled outline, and so is a tensor that is filled with None."""
    _, shape = outline((one(), 7, {"a": two(), "b": "text"}, None))
    new = one()
    assert shape.fill([new, None]) == (new, None, {"a": None, "b": None}, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (one(), (5,)),
        ((one(), two()), (5, None)),
        ([one(), two()], (5, None)),
        ((one(), (two(), 3)), (5, (None, None))),
        ({"a": one(), "b": two()}, ({"a": 5, "b": None},)),
        (Pair(one(), two()), (5, None)),
        (Plain(one()), (Plain(5, None),)),  # type: ignore[arg-type]  # an outline's extras are None
        (None, (None,)),
    ],
    ids=["tensor", "tuple", "list", "nested", "dict", "named tuple", "dataclass", "none"],
)
def test_gradients_are_a_plain_tuple(value: Any, expected: tuple[Any, ...]) -> None:
    """As torch's hooks have it: one item per item of a tuple or list, and a single item for anything else."""
    _, shape = outline(value)
    filled = shape.fill_as_gradients([5, None][: shape.size])
    assert filled == expected
    assert type(filled) is tuple


def test_gradients_of_a_model_output_keep_its_names() -> None:
    """The gradients of a Hugging Face output are one of the same type, None where nothing arrived."""
    _, shape = outline(CausalLMOutputWithPast(loss=one(), logits=two()))
    (filled,) = shape.fill_as_gradients([None, two()])
    assert type(filled) is CausalLMOutputWithPast
    assert filled.loss is None
    assert filled.logits.item() == 3.0


def test_a_model_output_can_hold_what_is_no_tensor() -> None:
    """A map whose results are dicts leaves a Hugging Face output with the same fields, each holding its result."""
    mapped = remap(BaseModelOutput(last_hidden_state=one()), lambda tensor: {"mean": tensor.mean().item()})
    assert type(mapped) is BaseModelOutput
    assert mapped.last_hidden_state == {"mean": 1.5}


def test_sets_are_walked_and_rebuilt() -> None:
    """Sets and frozen sets give all of their tensors and come back as what they were."""
    first, second = one(), two()
    for kind in (set, frozenset):
        value = kind([first, second, 3])
        assert {id(tensor) for _, tensor in walk(value)} == {id(first), id(second)}
        assert len({path for path, _ in walk(value)}) == 2
        mapped = remap({"s": value}, lambda tensor: tensor.numel())["s"]
        assert type(mapped) is kind
        assert mapped == {2, 1, 3}


def test_tensors_that_are_keys_are_mapped_too() -> None:
    """A map moves the tensors among a dict's keys as well, so that nothing borrowed is left in the copy."""
    key, held = one(), two()
    ((new_key, new_held),) = remap({key: held}, negated).items()
    assert torch.equal(new_key, -key)
    assert torch.equal(new_held, -held)


def test_the_same_container_twice_is_two_places() -> None:
    """Only a container inside itself ends the walk; one that is shared is walked at each of its places."""
    shared = [one()]
    assert [path for path, _ in walk((shared, {"again": shared}))] == ["[0][0]", "[1]['again'][0]"]
    same = one()
    assert [tensor is same for _, tensor in walk((same, same))] == [True, True]


def test_a_container_inside_itself_ends() -> None:
    """Lists and dicts that hold themselves are walked, mapped and outlined once."""
    looped: list[Any] = [one()]
    looped.append(looped)
    assert [path for path, _ in walk(looped)] == ["[0]"]
    mapped = remap(looped, negated)
    assert torch.equal(mapped[0], -one())
    assert mapped[1] is None
    leaves, shape = outline(looped)
    assert [path for path, _ in leaves] == ["[0]"]
    assert shape.fill([9]) == [9, None]
    around: dict[str, Any] = {"a": two()}
    around["self"] = {"deeper": around}
    assert [path for path, _ in walk(around)] == ["['a']"]


def test_a_distribution_that_is_mapped_is_of_the_new_parameters() -> None:
    """Also where what is made of them had been asked for before."""
    old = Categorical(logits=one())
    assert old.probs.tolist() != [0.5, 0.5]
    assert [path for path, _ in walk(old)] == [".logits"]
    new = remap(old, torch.zeros_like)
    assert (new.probs.tolist(), new.log_prob(torch.tensor(1)).item()) == ([0.5, 0.5], 0.0)
    assert torch.equal(old.logits, Categorical(logits=one()).logits)


def test_unknown_objects_are_left_alone() -> None:
    """An instance of an unknown class, a module or a function is no container unless it is asked for."""
    for value in (Cache([one()], 1), SimpleNamespace(a=one()), nn.Linear(2, 2), negated, torch, object()):
        assert walk(value) == []
        assert remap(value, negated) is value
        assert outline(value)[1].size == 0


def test_objects_that_hold_tensors_are_copied_on_request() -> None:
    """With ``objects=True`` an instance that holds tensors is copied and mapped; the original stays as it was."""
    cache = Cache([one(), two()], 4)
    mapped = remap({"cache": cache}, negated, objects=True)["cache"]
    assert type(mapped) is Cache
    assert mapped is not cache
    assert [tensor.tolist() for tensor in mapped.keys] == [[-1.0, -2.0], [[-3.0]]]
    assert mapped.seen == 4
    assert [tensor.tolist() for tensor in cache.keys] == [[1.0, 2.0], [[3.0]]]
    module = nn.Linear(2, 2)
    assert remap(module, negated, objects=True) is module


def test_a_real_cache_is_copied_on_request() -> None:
    """A transformers ``DynamicCache`` is copied with its tensors, so that later tokens do not reach the copy."""
    cache = DynamicCache()
    cache.update(torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2, 3), 0)
    kept = remap((one(), cache), lambda tensor: tensor.clone(), objects=True)[1]
    cache.update(torch.ones(1, 1, 1, 3), torch.zeros(1, 1, 1, 3), 0)
    cache.layers[0].keys.fill_(7.0)
    assert type(kept) is DynamicCache
    assert torch.equal(kept.layers[0].keys, torch.ones(1, 1, 2, 3))


def test_an_object_that_holds_itself_ends() -> None:
    """An object among its own attributes is copied once."""
    cache = Cache([one()], 1)
    cache.me = cache  # type: ignore[attr-defined]  # objects of unknown classes hold anything
    assert torch.equal(remap(cache, negated, objects=True).keys[0], -one())


def test_what_a_map_leaves_is_independent() -> None:
    """Changing a mapped copy's containers does not change the original's."""
    value = {"a": [one()], "b": Plain([two()])}
    mapped = remap(value, lambda tensor: tensor)
    mapped["a"].append(1)
    mapped["b"].hidden.clear()
    assert [len(value["a"]), len(value["b"].hidden)] == [1, 1]  # type: ignore[arg-type,attr-defined]  # as made above
    assert copy.copy(value).keys() == mapped.keys()


ONE, TWO = torch.ones(1), torch.zeros(2)


@pytest.mark.parametrize(
    ("batch", "args", "kwargs"),
    [
        (ONE, (ONE,), {}),
        ((ONE, TWO), (ONE, TWO), {}),
        ([ONE, TWO], (ONE, TWO), {}),
        ({"x": ONE}, (), {"x": ONE}),
        (UserDict({"x": ONE}), (), {"x": ONE}),  # the BatchEncoding of a tokenizer is one
        (MappingProxyType({"x": ONE}), (), {"x": ONE}),
    ],
)
def test_a_batch_stands_for_arguments(batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Mappings hold keyword arguments, tuples and lists positional ones; anything else is the only argument."""
    assert as_arguments(batch) == (args, kwargs)


def test_a_named_tuple_is_one_argument() -> None:
    """Its fields are not the model's."""
    pair = Pair(ONE, TWO)
    assert as_arguments(pair) == ((pair,), {})
