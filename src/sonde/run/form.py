"""The forms that documents out of a folder may have: each checks one value, and says of another one where it is and what is wanted.

A form is a function of what a document holds and of where, as ``passes[0].autocast.cpu``. It returns the value that is used; a
value of another form is refused with a :class:`StoreError`. Nothing is converted unasked: ``True`` is no number, ``"3"`` none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from sonde.errors import StoreError

Form = Callable[[Any, str], Any]

_LARGEST = 2**62  # of a count or a time


def refuse(where: str, held: object, wanted: str) -> NoReturn:
    """Say that *where* stands *held*, and *wanted* should.

    Raises:
        StoreError: always.
    """
    raise StoreError(f"{where} is {held!r:.60}, not {wanted}")


def anything(held: Any, _where: str) -> Any:
    """Return *held*, of whatever form: somebody else reads it."""
    return held


def text(held: Any, where: str) -> str:
    """Return *held*, a text."""
    return held if isinstance(held, str) else refuse(where, held, "a text")


def flag(held: Any, where: str) -> bool:
    """Return *held*, true or false."""
    return held if isinstance(held, bool) else refuse(where, held, "true or false")


def mapping(held: Any, where: str) -> Mapping[Any, Any]:
    """Return *held*, an object of whatever members."""
    return held if isinstance(held, Mapping) else refuse(where, held, "an object")


def number(held: Any, where: str) -> float:
    """Return *held*, a finite number."""
    if isinstance(held, int | float) and not isinstance(held, bool):
        try:
            if math.isfinite(held):
                return float(held)
        except OverflowError:  # a whole number beyond the range of float
            pass
    refuse(where, held, "a finite number")


def within(least: float, most: float) -> Form:
    """Return the form of numbers from *least* to *most*."""

    def form(held: Any, where: str) -> float:
        found = number(held, where)
        return found if least <= found <= most else refuse(where, held, f"a number from {least:g} to {most:g}")

    return form


def whole(least: int = 0, most: int = _LARGEST) -> Form:
    """Return the form of whole numbers from *least* to *most*."""

    def form(held: Any, where: str) -> int:
        if type(held) is int and least <= held <= most:
            return held
        refuse(where, held, f"a whole number from {least}{'' if most >= _LARGEST else f' to {most}'}")

    return form


count = whole()
time = within(0, 2**36)
"""Seconds since 1970, up to the year 4147: dates that Python can write."""


def one_of(*allowed: str) -> Form:
    """Return the form of the texts *allowed*."""

    def form(held: Any, where: str) -> str:
        for each in allowed:
            if held == each:
                return each
        refuse(where, held, f"one of {', '.join(allowed)}")

    return form


def optional(of: Form) -> Form:
    """Return the form of null, and of what *of* allows."""
    return lambda held, where: None if held is None else of(held, where)


def listed(of: Form, length: int | None = None) -> Form:
    """Return the form of lists of what *of* allows, of this *length* if it is given; they are read as tuples."""

    def form(held: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(held, list | tuple) or (length is not None and len(held) != length):
            refuse(where, held, "a list" if length is None else f"a list of {length}")
        return tuple([of(each, f"{where}[{place}]") for place, each in enumerate(held)])

    return form


def row(**of: Form) -> Form:
    """Return the form of lists with one member for each of the forms *of*, named for messages; they are read as tuples."""
    *names, last = of

    def form(held: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(held, list | tuple) or len(held) != len(of):
            refuse(where, held, f"a list of {', '.join(names)} and {last}")
        return tuple([each(value, f"{where}.{name}") for (name, each), value in zip(of.items(), held, strict=True)])

    return form


def named(of: Form, name: Form = text) -> Form:
    """Return the form of objects whose values *of* allows, by names that *name* allows."""

    def form(held: Any, where: str) -> dict[Any, Any]:
        return {name(key, f"a name in {where}"): of(value, f"{where}.{key}"[:200]) for key, value in mapping(held, where).items()}

    return form


@dataclass(frozen=True, slots=True)
class Absent:
    """The form of a member that an object may lack: *default* stands for it then.

    >>> from sonde.run import Absent
    >>> Absent(int, default=0).default
    0
    """

    of: Form
    default: Any = None

    def __call__(self, held: Any, where: str) -> Any:
        return self.of(held, where)


def members(**of: Form) -> Form:
    """Return the form of objects with these members; they are read as a dict of these: a later version may have added others."""

    def form(held: Any, where: str) -> dict[str, Any]:
        given, read = mapping(held, where), {}
        for name, each in of.items():
            if name in given:
                read[name] = each(given[name], f"{where}.{name}" if where else name)
            elif isinstance(each, Absent):
                read[name] = each.default
            else:
                raise StoreError(f"{where}{'.' if where else ''}{name!r} is missing")
        return read

    return form
