"""Find the tensors in structured values, with the path of each, and map them to a value of the same types.

Inputs and outputs of modules are tensors, or tensors in tuples, lists, dicts, named tuples, torch's return types, dataclasses of
every kind, Hugging Face outputs, distributions, registered pytree nodes, and nested mixes of these. One function, ``_open``, takes
each kind of container apart and puts it together again; everything else is recursion over that function.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from sonde.engine.torch_api import pytree
from sonde.stats import PLAIN, local


class _Opened(NamedTuple):
    """A container taken apart: the path step and the value of each child, and a function that makes one of new children."""

    steps: list[str]
    children: list[Any]
    make: Callable[[list[Any]], Any]


def walk(value: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors in *value* in order, each with its leaf path (``""`` if *value* is a tensor itself)."""
    if isinstance(value, Tensor):
        return [("", value)]
    found: list[tuple[str, Tensor]] = []
    _walk(value, "", found, set())
    return found


def _walk(value: Any, path: str, found: list[tuple[str, Tensor]], inside: set[int]) -> None:
    if isinstance(value, Tensor):
        found.append((path, value))
        return
    if id(value) in inside or ((is_plain := type(value) in _PLAIN) and not value):
        return
    if is_plain:  # as arguments are, of every call: not taken apart, only looked through
        children: Iterable[tuple[str, Any]]
        children = [(f"[{key!r}]", child) for key, child in (value.items() if type(value) is dict else enumerate(value))]
    else:
        opened = _open(value, objects=False)
        if opened is None:
            return
        children = zip(opened.steps, opened.children, strict=True)
    inside.add(id(value))
    for step, child in children:
        _walk(child, path + step, found, inside)
    inside.discard(id(value))


def remap(value: Any, fn: Callable[[Tensor], Any], *, objects: bool = False) -> Any:
    """Return *value* with ``fn(tensor)`` in the place of each tensor, every container rebuilt as its own type.

    Where a container holds itself, None stands in place of the inner reference. With *objects*, an instance of an unknown class
    that holds tensors in its attributes (a key-value cache, say) is copied and mapped as well; otherwise instances of unknown
    classes are returned unchanged.
    """
    return _remap(value, fn, set(), objects)


def _remap(value: Any, fn: Callable[[Tensor], Any], inside: set[int], objects: bool) -> Any:
    if isinstance(value, Tensor):
        return fn(value)
    if id(value) in inside:
        return None
    opened = _open(value, objects=objects)
    if opened is None:
        return value
    inside.add(id(value))
    children = [_remap(child, fn, inside, objects) for child in opened.children]
    inside.discard(id(value))
    if isinstance(value, dict) and any(isinstance(key, Tensor) for key in value):
        keys = [fn(key) if isinstance(key, Tensor) else key for key in value]
        return dict(zip(keys, children, strict=True))
    return opened.make(children)


def local_parts(value: Any) -> Any:
    """Return *value* with this rank's part in the place of each distributed tensor; None in the place of a partial sum.

    Parts have no graph, and require a gradient where the tensor does. *value* itself is returned if nothing in it is distributed.
    """
    if isinstance(value, Tensor):
        return _local_part(value)
    if all(type(tensor) in PLAIN for _, tensor in walk(value)):
        return value
    return remap(value, _local_part)


def _local_part(tensor: Tensor) -> Tensor | None:
    part = local(tensor)
    return part if part is None or part is tensor else part.detach().requires_grad_(tensor.requires_grad)


def is_floating(tensor: Tensor) -> bool:
    """Return whether *tensor* holds floating-point or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def first_floating(value: Any) -> Tensor | None:
    """Return the first tensor in *value* that holds floating-point or complex numbers; None without one.

    Can be traced by ``torch.compile``; then only tuples, lists, dicts and dataclasses are looked into.
    """
    if isinstance(value, Tensor):
        return value if is_floating(value) else None
    if torch.compiler.is_dynamo_compiling():
        return _first_floating_traced(value)
    return next((tensor for _, tensor in walk(value) if is_floating(tensor)), None)


def _first_floating_traced(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() or value.is_complex() else None
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            found = _first_floating_traced(item)
            if found is not None:
                return found
        return None
    if hasattr(type(value), "__dataclass_fields__"):
        return _first_floating_traced([getattr(value, name) for name in type(value).__dataclass_fields__])
    return None


class Outline:
    """The structure of a value without its tensors; it can be filled with as many others.

    Attributes:
        size: number of tensors.
    """

    __slots__ = ("_children", "_leaf", "_make", "size")

    def __init__(self, leaf: int | None, make: Callable[[list[Any]], Any] | None, children: list[Outline], size: int) -> None:
        self._leaf = leaf
        self._make = make
        self._children = children
        self.size = size

    def fill(self, values: list[Any]) -> Any:
        """Return the structure with ``values[i]`` in the place of the i-th tensor, and None in the place of everything else."""
        if self._leaf is not None:
            return values[self._leaf]
        if self._make is None:
            return None
        return self._make([child.fill(values) for child in self._children])

    def fill_as_gradients(self, values: list[Any]) -> tuple[Any, ...]:
        """Return the filled structure as torch hands gradients to module hooks, see ``as_gradients``."""
        return as_gradients(self.fill(values))


def as_gradients(filled: Any) -> tuple[Any, ...]:
    """Return gradients as torch hands them to module hooks: a tuple; of one item for anything but a tuple or list."""
    return tuple(filled) if isinstance(filled, tuple | list) else (filled,)


def as_arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments that *batch* stands for.

    A mapping (a dict, the ``BatchEncoding`` of a tokenizer) holds keyword arguments, a tuple or list positional ones. Anything
    else, a named tuple too, is the only argument.
    """
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, tuple | list) and not hasattr(batch, "_fields") else (batch,)), {}


def outline(value: Any) -> tuple[list[tuple[str, Tensor]], Outline]:
    """Return the tensors of *value* with their paths, and its outline."""
    found: list[tuple[str, Tensor]] = []
    return found, _outline(value, "", frozenset(), found)


def _outline(part: Any, path: str, inside: frozenset[int], found: list[tuple[str, Tensor]]) -> Outline:
    if isinstance(part, Tensor):
        found.append((path, part))
        return Outline(len(found) - 1, None, [], 1)
    opened = None if id(part) in inside else _open(part, objects=False)
    if opened is None:
        return Outline(None, None, [], 0)
    inside |= {id(part)}
    children = [_outline(child, path + step, inside, found) for step, child in zip(opened.steps, opened.children, strict=True)]
    return Outline(None, opened.make, children, sum(child.size for child in children))


_PLAIN = (tuple, list, dict)
_EITHER = ("probs", "logits")  # of a distribution: one of them was given


def _indices(count: int) -> list[str]:
    return [f"[{index}]" for index in range(count)]


def _open(value: Any, *, objects: bool) -> _Opened | None:
    """Split a container into children; return None if *value* is no container (as a tensor)."""
    kind = type(value)
    if kind is tuple or kind is list:
        return _Opened(_indices(len(value)), list(value), kind)
    if kind is dict:
        keys = list(value)
        return _Opened([f"[{key!r}]" for key in keys], list(value.values()), lambda new: dict(zip(keys, new, strict=True)))
    if value is None or kind in _ATOMS:
        return None
    if isinstance(value, tuple):
        return _open_tuple(value)
    registered = pytree.registered(kind)
    if registered is not None:
        return _open_registered(value, registered)
    if isinstance(value, dict):
        return _open_mapping(value, [f".{key}" if hasattr(kind, "__dataclass_fields__") else f"[{key!r}]" for key in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _open_dataclass(value)
    if isinstance(value, list):
        return _Opened(_indices(len(value)), list(value), _refill_list(value))
    if isinstance(value, set | frozenset):
        return _Opened([f"{{{index}}}" for index in range(len(value))], list(value), kind)
    if isinstance(value, Distribution):
        return _open_distribution(value)
    if objects and _holds_tensors(value):
        attributes = dict(vars(value))
        return _Opened([f".{name}" for name in attributes], list(attributes.values()), _refill_object(value, list(attributes)))
    return None


_ATOMS = {bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device, range, slice}


def _open_tuple(value: tuple[Any, ...]) -> _Opened:
    kind = type(value)
    if hasattr(kind, "n_sequence_fields"):  # torch.return_types and other C struct sequences
        return _Opened([f".{name}" for name in kind.__match_args__], list(value), kind)  # type: ignore[attr-defined]
    names = getattr(kind, "_fields", None)
    steps = _indices(len(value)) if names is None else [f".{name}" for name in names]
    # tuple.__new__, because a subclass (PackedSequence, say) may give its own __new__ other arguments
    return _Opened(steps, list(value), lambda new: tuple.__new__(kind, new))


def _open_registered(value: Any, node: Any) -> _Opened:
    children, context = node.flatten_fn(value)
    if isinstance(value, Mapping) and len(value) == len(children):
        attributes = dataclasses.is_dataclass(value)  # a Hugging Face ModelOutput is both
        steps = [f".{key}" if attributes else f"[{key!r}]" for key in value]
        if attributes and isinstance(value, dict):
            return _open_mapping(value, steps)
    elif node.flatten_with_keys_fn is not None:
        steps = [str(key) for key, _ in node.flatten_with_keys_fn(value)[0]]
    else:
        steps = _indices(len(children))
    return _Opened(steps, list(children), lambda new: node.unflatten_fn(new, context))


def _open_dataclass(value: Any) -> _Opened:
    kind = type(value)
    names = [item.name for item in dataclasses.fields(value) if hasattr(value, item.name)]
    others = {name: held for name, held in getattr(value, "__dict__", {}).items() if name not in set(names)}

    def make(new: list[Any]) -> Any:
        made = object.__new__(kind)  # not kind(...): fields may be init=False, frozen or slotted
        for name, held in (*zip(names, new, strict=True), *others.items()):
            object.__setattr__(made, name, held)
        return made

    return _Opened([f".{name}" for name in names], [getattr(value, name) for name in names], make)


def _open_mapping(value: dict[Any, Any], steps: list[str]) -> _Opened:
    """Split a dict of a class of its own: its items, and attributes that are not just items under another name."""
    kind, keys = type(value), list(value)
    attributes = dict(getattr(value, "__dict__", {}))
    others = [name for name in attributes if name not in value]
    put = OrderedDict.__setitem__ if isinstance(value, OrderedDict) else dict.__setitem__

    def make(new: list[Any]) -> Any:
        # not kind(**fields): a Hugging Face output takes a container in its first field for all of its fields
        made = kind.__new__(kind)
        items = dict(zip(keys, new, strict=False))
        for name, held in (attributes | dict(zip(others, new[len(keys) :], strict=True))).items():
            object.__setattr__(made, name, items.get(name, held))
        for key, held in items.items():
            put(made, key, held)
        return made

    children = [*value.values(), *(attributes[name] for name in others)]
    return _Opened([*steps, *(f".{name}" for name in others)], children, make)


def _open_distribution(value: Distribution) -> _Opened:
    """Split a distribution into the parameters that it was made with, and the distributions that it is made of.

    Of probabilities and their logarithms the one is made of the other when it is asked for: that is none of its parameters.
    """
    held = dict(vars(value))
    given = held.get("_param")
    parameters = [name for name, each in held.items() if isinstance(each, Tensor) and not name.startswith("_")]
    own = [name for name in parameters if given is None or name not in _EITHER or held[name] is given]
    names = [*own, *[name for name, each in held.items() if isinstance(each, Distribution)]]
    steps = [f".{name.lstrip('_') if hasattr(type(value), name.lstrip('_')) else name}" for name in names]

    def make(new: list[Any]) -> Any:
        made, others = copy.copy(value), {name for name in _EITHER if name in held} - set(own)
        for name, each in zip(names, new, strict=True):
            vars(made).update({name: each} | ({"_param": each} if held[name] is given else {}))
        for name in others:
            del vars(made)[name]  # made of what was given, which is another now
        return made

    return _Opened(steps, [held[name] for name in names], make)


def _refill_list(value: list[Any]) -> Callable[[list[Any]], Any]:
    kind, attributes = type(value), dict(getattr(value, "__dict__", {}))

    def make(new: list[Any]) -> Any:
        made = kind.__new__(kind)
        list.extend(made, new)
        getattr(made, "__dict__", {}).update(attributes)
        return made

    return make


def _refill_object(value: Any, names: list[str]) -> Callable[[list[Any]], Any]:
    def make(new: list[Any]) -> Any:
        made = copy.copy(value)
        vars(made).update(zip(names, new, strict=True))
        return made

    return make


def _holds_tensors(value: Any) -> bool:
    if not hasattr(value, "__dict__") or isinstance(value, nn.Module | type | FunctionType | ModuleType):
        return False
    pending: list[Any] = [value]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if isinstance(part, Tensor):
            return True
        if id(part) in seen or isinstance(part, nn.Module | type | FunctionType | ModuleType):
            continue
        seen.add(id(part))
        pending.extend(_parts(part))
    return False


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return getattr(value, "__dict__", {}).values()


def passes_through(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a tensor of the structured *output* is one of the arguments."""
    given = {id(tensor) for _, tensor in walk((args, kwargs))}
    # an integer tensor that comes along (the lengths of a packed sequence, say) is not the value
    return any(id(tensor) in given for _, tensor in walk(output) if is_floating(tensor))
