"""Take a structured value apart where code is traced, and put it together where the code runs.

The form of a value is its structure as nested tuples of constants, which a traced function can build: ("tensor",), ("value", v),
("sequence", type, children), ("mapping", type, keys, children), ("fields", type, names, children), ("other",).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import Tensor

_forms: list[Any] = []


def number_of(form: Any) -> int:
    """Return the number of *form*, which compiled code carries in its place."""
    if form not in _forms:
        _forms.append(form)
    return _forms.index(form)


def form_of(value: Any, leaves: list[Tensor], floating: bool) -> Any:
    """Return the form of *value*; append its tensors, or those that are *floating*, to *leaves*.

    Traced, so only plain containers are known.
    """
    if isinstance(value, Tensor):
        if floating and not (value.is_floating_point() or value.is_complex()):
            return ("other",)
        leaves.append(value)
        return ("tensor",)
    if value is None or isinstance(value, str):
        return ("value", value)
    if isinstance(value, tuple | list):
        return ("sequence", type(value), tuple([form_of(item, leaves, floating) for item in value]))
    if isinstance(value, dict):
        keys = tuple(value.keys())
        return ("mapping", type(value), keys, tuple([form_of(value[key], leaves, floating) for key in keys]))
    if hasattr(type(value), "__dataclass_fields__"):
        names = tuple(type(value).__dataclass_fields__.keys())
        return ("fields", type(value), names, tuple([form_of(getattr(value, name), leaves, floating) for name in names]))
    return ("other",)


def rebuild(form: int, leaves: list[Any]) -> Any:
    """Return the value of form number *form* with *leaves* as its tensors; anything but tensors and text is None."""
    remaining = iter(leaves)
    return _rebuild(_forms[form], remaining)


def _rebuild(form: Any, leaves: Iterator[Any]) -> Any:
    kind = form[0]
    if kind == "tensor":
        return next(leaves)
    if kind == "value":
        return form[1]
    if kind == "other":
        return None
    children = [_rebuild(child, leaves) for child in form[-1]]
    made = form[1]
    if kind == "sequence":
        return list(children) if made is list else tuple.__new__(made, children)
    if kind == "mapping":
        pairs = dict(zip(form[2], children, strict=True))
        return pairs if made is dict else made(pairs) if not hasattr(made, "__dataclass_fields__") else made(**pairs)
    whole = object.__new__(made)
    for name, child in zip(form[2], children, strict=True):
        object.__setattr__(whole, name, child)
    return whole


@cache
def paths_of(form: int) -> tuple[str, ...]:
    """Return the leaf paths of the tensors of form number *form*."""
    return tuple(_paths(_forms[form], ""))


def _paths(form: Any, path: str) -> Iterator[str]:
    kind = form[0]
    if kind == "tensor":
        yield path
    elif kind == "sequence":
        names = getattr(form[1], "_fields", None)
        for index, child in enumerate(form[2]):
            yield from _paths(child, f"{path}[{index}]" if names is None else f"{path}.{names[index]}")
    elif kind == "mapping":
        attributes = hasattr(form[1], "__dataclass_fields__")
        for key, child in zip(form[2], form[3], strict=True):
            yield from _paths(child, f"{path}.{key}" if attributes else f"{path}[{key!r}]")
    elif kind == "fields":
        for name, child in zip(form[2], form[3], strict=True):
            yield from _paths(child, f"{path}.{name}")
