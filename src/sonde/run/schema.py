"""What a run holds: its version, the columns that every family of numbers has, and the names that families may have."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError

__all__ = [
    "ALERTS",
    "DOCUMENTS",
    "FORMAT",
    "KEYS",
    "SCALARS",
    "VERSION",
    "Layout",
    "check_family",
    "check_number",
    "whole_number",
]

FORMAT = "sonde-run"
VERSION = 1

KEYS = ("epoch", "step", "micro_step", "rank", "model", "site", "call", "order")
"""The columns that lead every family of numbers, in this order. ``order`` is the site's place in the order of execution."""

SCALARS = {"epoch": "int64", "step": "int64", "rank": "int32", "name": "string", "value": "float64"}
ALERTS = {
    "epoch": "int64",
    "step": "int64",
    "rank": "int32",
    "severity": "string",
    "rule": "string",
    "site": "string",
    "value": "float64",
    "message": "string",
}
DOCUMENTS = ("graph", "coverage")

_RESERVED = frozenset(["scalars", "alerts", "tensors", "run", *DOCUMENTS])
_FAMILY = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, eq=False)
class Layout:
    """Which place each row of a slab belongs to; made once, handed over with every block of numbers.

    Attributes:
        site: of each row the text of its site, as ``layers.3.mlp:output``.
        model: of each row the model's name, or one for all.
        call: of each row which call of the module within one forward, or one for all.
        order: of each row its site's place in the order of execution; the default is the order of the rows.

    Raises:
        ArgumentError: they are not equally long.
    """

    site: Sequence[str]
    model: str | Sequence[str] = ""
    call: int | Sequence[int] | npt.NDArray[Any] = 0
    order: Sequence[int] | npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        rows = len(self.site)
        if isinstance(self.site, str):
            raise ArgumentError(f"a layout takes a sequence of sites, one for each row, not the text {self.site!r}")
        model = (self.model,) * rows if isinstance(self.model, str) else tuple(self.model)
        call = np.broadcast_to(np.asarray(self.call, np.int32), (rows,)) if np.ndim(self.call) == 0 else self.call
        made = {
            "site": tuple(self.site),
            "model": model,
            "call": np.array(call, np.int32),
            "order": np.arange(rows, dtype=np.int32) if self.order is None else np.array(self.order, np.int32),
        }
        for name, values in made.items():
            if len(values) != rows:
                raise ArgumentError(f"a layout of {rows} sites has {len(values)} of {name!r}: give one for each row")
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.site)


def check_family(name: str) -> str:
    """*name*, if a family of numbers may have it.

    Raises:
        ArgumentError: it is not made of small letters, digits and underscores, or it means something else in a run.
    """
    if _FAMILY.fullmatch(name) is None:
        raise ArgumentError(f"{name!r} cannot name a family: use small letters, digits and underscores, as in 'moments'")
    if name in _RESERVED:
        raise ArgumentError(f"{name!r} cannot name a family of numbers: a run keeps something else under that name")
    return name


def check_number(name: str) -> str:
    """*name*, if a column of numbers may have it.

    Raises:
        ArgumentError: it is no identifier, or a column that every family has.
    """
    if not name.isidentifier():
        raise ArgumentError(f"{name!r} cannot name a number: use letters, digits and underscores, so that SQL needs no quotes")
    if name.lower() in KEYS:  # names of columns are alike to SQL whatever their case
        raise ArgumentError(f"{name!r} cannot name a number: every family has a column {name.lower()!r} that says where and when")
    return name


def whole_number(what: str, value: Any) -> int:
    """*value* as an int.

    Raises:
        ArgumentError: it is none, or below 0.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} is a whole number, not {value!r}") from None
    if number < 0:
        raise ArgumentError(f"{what} counts from 0; {number} was given")
    return number
