"""A structured value as JSON and tensors, and back: what is no tensor has a written form, and reading it runs no code.

::

    null, true, 1, 0.5, "text"           themselves
    {"tensor": key}                      the tensor of that name in the slot's file; "complex" if it was written as real pairs
    {"list": [...]}, {"tuple": [...]}    in order
    {"dict": [[key, value], ...]}        keys are values as well
    {"fields": {...}, "type": name}      a named tuple, dataclass or other container with named parts; read as a dict
    {"float": "nan"}, {"complex": [real, imaginary]}, {"object": description}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sonde.errors import StoreError
from sonde.keep.reductions.base import shape_text

__all__ = ["planted", "read"]


def planted(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """*value* as JSON can hold it, and its tensors by the names that stand in their places."""
    tensors: dict[str, Tensor] = {}
    return _planted(value, "value", tensors, frozenset()), tensors


def _planted(value: Any, path: str, tensors: dict[str, Tensor], inside: frozenset[int]) -> Any:
    if isinstance(value, Tensor):
        return _planted_tensor(value, path, tensors)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": [_planted(part, path, tensors, inside) for part in (value.real, value.imag)]}
    if id(value) in inside:
        return {"object": "the container itself"}
    inside |= {id(value)}
    named = _fields(value)
    if named is not None:
        fields = {name: _planted(held, f"{path}.{name}", tensors, inside) for name, held in named.items()}
        return {"fields": fields, "type": _name(value)}
    if isinstance(value, Mapping):
        pairs = [
            (_planted(key, f"{path}.keys[{place}]", tensors, inside), key, held) for place, (key, held) in enumerate(value.items())
        ]
        return {"dict": [[written, _planted(held, f"{path}[{key!r}]", tensors, inside)] for written, key, held in pairs]}
    if isinstance(value, list | tuple | set | frozenset):
        items = [_planted(item, f"{path}[{place}]", tensors, inside) for place, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(getattr(value, "__dict__", None), dict) and not callable(value):
        fields = {name: _planted(held, f"{path}.{name}", tensors, inside) for name, held in vars(value).items()}
        return {"fields": fields, "type": _name(value)}
    return {"object": _name(value)}


def _fields(value: Any) -> dict[str, Any] | None:
    """The parts of a container by name; None if it has no names for them."""
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value) if hasattr(value, item.name)}
    if isinstance(value, tuple):
        names = getattr(value, "_fields", getattr(value, "__match_args__", None) if hasattr(value, "n_fields") else None)
        return None if names is None else dict(zip(names, value, strict=False))
    return None


def _name(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _planted_tensor(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        kind = "meta" if tensor.is_meta else "nested" if tensor.is_nested else "quantized"
        return {"object": f"{kind} tensor {shape_text(tensor)}"}
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dense = (tensor if tensor.layout == torch.strided else tensor.to_dense()).cpu()
    written: dict[str, Any] = {"tensor": path}
    if dense.is_complex():
        dense = torch.view_as_real(dense)
        written["complex"] = True
    # memory of its own: the format refuses tensors that share some
    tensors[path] = dense.clone(memory_format=torch.contiguous_format)
    return written


def read(tree: Any, tensor: Callable[[str], Tensor]) -> Any:
    """The value that *tree* stands for, with ``tensor(key)`` for each tensor.

    Raises:
        StoreError: it is not the form of any value.
    """
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    match tree:
        case {"tensor": str(key)}:
            found = tensor(key)
            return torch.view_as_complex(found) if tree.get("complex") else found
        case {"list": list(items)}:
            return [read(item, tensor) for item in items]
        case {"tuple": list(items)}:
            return tuple(read(item, tensor) for item in items)
        case {"dict": list(pairs)}:
            return {_key(read(key, tensor)): read(held, tensor) for key, held in pairs}
        case {"fields": dict(fields)}:
            return {name: read(held, tensor) for name, held in fields.items()}
        case {"float": str(text)}:
            return float(text)
        case {"complex": [real, imaginary]}:
            return complex(read(real, tensor), read(imaginary, tensor))
        case {"object": str(text)}:
            return f"<{text}>"
    raise StoreError(f"{tree!r} is not the written form of any value")


def _key(key: Any) -> Any:
    """A key as it was; one that cannot be a key any more (a named tuple is read as a dict) as text."""
    return key if key.__hash__ is not None else str(key)
