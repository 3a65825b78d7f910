"""Refuse arguments of another type than a function says, before it does anything: the library's one check of types."""

from __future__ import annotations

import collections.abc
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, wraps
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from sonde.errors import ArgumentError

_F = TypeVar("_F", bound=Callable[..., Any])

_METHODS: dict[Any, tuple[tuple[str, ...], str]] = {
    bool: (("__bool__",), "True or False"),
    int: (("__index__",), "a whole number"),
    float: (("__float__", "__index__"), "a number"),
    collections.abc.Callable: (("__call__",), "a function"),
    collections.abc.Iterable: (("__iter__", "__getitem__"), "a list"),
    collections.abc.Sequence: (("__iter__", "__getitem__"), "a list"),
    collections.abc.Mapping: (("keys",), "a mapping"),
}
"""Types for which anything may stand that has one of these methods, as numbers and arrays of other libraries do; and their name."""

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NAMES: dict[Any, str] = {types.NoneType: "None", str: "a text", type: "a class"}


def checked(*judged: str) -> Callable[[_F], _F]:
    """Return a decorator: the function, or the class, refuses an argument that is nothing of what its annotation names.

    What behaves as a type does is of it: a NumPy integer is a whole number. What is not known while the program runs (a protocol,
    a type variable, a name for type checkers alone) admits everything. The function raises
    :class:`~sonde.errors.ArgumentError` before its first statement.

    Args:
        judged: the arguments that the function itself judges, in words of its own.

    >>> @checked()
    ... def wait(seconds: float, how: Literal["still", "busy"] | None = None) -> None: ...
    >>> wait("long")
    Traceback (most recent call last):
    sonde.errors.ArgumentError: seconds='long': give a number
    >>> wait(1, how="never")
    Traceback (most recent call last):
    sonde.errors.ArgumentError: how='never': give 'still', 'busy' or None
    """

    def decorate(function: Any) -> Any:
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__)  # type: ignore[misc]  # the class's own, wrapped
            return function
        signature = inspect.signature(function)

        @cache
        def kinds() -> dict[str, Any]:
            found = {}
            for name, each in signature.parameters.items():
                if name not in judged and each.annotation is not each.empty and each.kind not in _MANY:
                    with suppress(NameError):
                        is_text = isinstance(each.annotation, str)
                        found[name] = eval(each.annotation, function.__globals__) if is_text else each.annotation
            return found

        @wraps(function)
        def checking(*args: Any, **kwargs: Any) -> Any:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:  # the call below says what is missing, or too much
                given = {}
            for name, value in given.items():
                kind = kinds().get(name, Any)
                if value is not signature.parameters[name].default and not _fits(value, kind):
                    *others, last = dict.fromkeys(_named(kind))
                    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
                    raise ArgumentError(f"{name}={shown}: give {' or '.join([', '.join(others), last] if others else [last])}")
            return function(*args, **kwargs)

        return checking

    return decorate


def _fits(value: Any, kind: Any) -> bool:
    """Return whether *value* is, or behaves as, a *kind*; True where that is not known."""
    origin = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(kind))
    if origin in _METHODS:
        has = {method for each in type(value).__mro__ for method in vars(each)}  # of its class alone, not of the class of that
        return value is not None and not has.isdisjoint(_METHODS[origin][0])
    return origin is Any or not isinstance(origin, type) or getattr(origin, "_is_protocol", False) or isinstance(value, origin)


def _named(kind: Any) -> Iterator[str]:
    """Yield the names of what may stand for *kind*."""
    origin = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        for each in get_args(kind):
            yield from _named(each)
    elif origin is Literal:
        yield from map(repr, get_args(kind))
    elif origin in _METHODS:
        yield _METHODS[origin][1]
    else:
        name = getattr(origin, "__name__", str(origin))
        yield _NAMES.get(origin, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
