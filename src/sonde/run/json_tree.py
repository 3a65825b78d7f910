"""Write a structured value as JSON and names of tensors, and read it back without running code.

::

    null, true, 1, 0.5, "text"           themselves
    {"tensor": key}                      the tensor of that name
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

from sonde.errors import StoreError

EncodeTensor = Callable[[Any, str], dict[str, Any] | None]
"""From a value and its path to its written form if it is a tensor; None for everything else."""


def encode(value: Any, tensor: EncodeTensor) -> Any:
    """*value* as plain data that JSON can hold.

    >>> from sonde.run import decode, encode
    >>> tree = encode({"shape": (2, 3)}, lambda value, path: None)
    >>> decode(tree, lambda name: None)
    {'shape': (2, 3)}

    Args:
        value: any value. An object of an unknown class is written as its attributes, or else as the name of its class.
        tensor: writes the tensors.
    """
    return _encode(value, "", tensor, frozenset())


def _encode(value: Any, path: str, tensor: EncodeTensor, inside: frozenset[int]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": [_encode(part, path, tensor, inside) for part in (value.real, value.imag)]}
    written = tensor(value, path)
    if written is not None:
        return written
    if id(value) in inside:
        return {"object": "the container itself"}
    inside |= {id(value)}
    fields = _fields(value)
    if fields is not None:
        return {
            "fields": {name: _encode(held, f"{path}.{name}", tensor, inside) for name, held in fields.items()},
            "type": _type_name(value),
        }
    if isinstance(value, Mapping):
        keys = [_encode(key, f"{path}.keys[{place}]", tensor, inside) for place, key in enumerate(value)]
        values = [_encode(held, f"{path}[{key!r}]", tensor, inside) for key, held in value.items()]
        return {"dict": [list(pair) for pair in zip(keys, values, strict=True)]}
    if isinstance(value, list | tuple | set | frozenset):
        items = [_encode(item, f"{path}[{place}]", tensor, inside) for place, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    return {"object": _type_name(value)}


def _fields(value: Any) -> dict[str, Any] | None:
    """The named parts of *value*; None if it has none, or is a plain container."""
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value) if hasattr(value, item.name)}
    if isinstance(value, tuple):
        names = getattr(value, "_fields", getattr(value, "__match_args__", None) if hasattr(value, "n_fields") else None)
        return None if names is None else dict(zip(names, value, strict=False))
    if isinstance(value, Mapping | list | set | frozenset) or callable(value):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else None


def _type_name(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def decode(tree: Any, tensor: Callable[[str], Any]) -> Any:
    """The value that *tree* stands for, with ``tensor(key)`` in the place of each tensor.

    >>> from sonde.run import decode, encode
    >>> decode(encode(["a", (1, 2)], lambda value, path: None), lambda name: None)
    ['a', (1, 2)]

    Raises:
        StoreError: *tree* is not the written form of any value.
    """
    try:
        return _decode(tree, tensor)
    except (RecursionError, TypeError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"this is not the written form of any value: {error}") from None


def _decode(tree: Any, tensor: Callable[[str], Any]) -> Any:
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    match tree:
        case {"tensor": str(key)}:
            return tensor(key)
        case {"list": list(items)}:
            return [_decode(item, tensor) for item in items]
        case {"tuple": list(items)}:
            return tuple([_decode(item, tensor) for item in items])
        case {"dict": list(pairs)}:
            return {_key(_decode(key, tensor)): _decode(held, tensor) for key, held in pairs}
        case {"fields": dict(fields)}:
            return {name: _decode(held, tensor) for name, held in fields.items()}
        case {"float": str(text)}:
            return float(text)
        case {"complex": [real, imaginary]}:
            return complex(_decode(real, tensor), _decode(imaginary, tensor))
        case {"object": str(text)}:
            return f"<{text}>"
    raise StoreError(f"{str(tree)[:200]!r} is not the written form of any value")


def _key(key: Any) -> Any:
    """*key*, as text if it cannot be a key any more (a named tuple is read as a dict)."""
    try:
        hash(key)
    except TypeError:
        return str(key)
    return key
