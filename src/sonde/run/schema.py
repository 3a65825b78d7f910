"""The format of a run: its version, the columns of what is no number of a place, and the names that families may have."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any

from sonde.errors import ArgumentError
from sonde.rows import KEYS
from sonde.rows import Layout as Layout

FORMAT = "sonde-run"
VERSION = 6

SCALARS = {
    "epoch": "int64",
    "step": "int64",
    "rank": "int32",
    "scope": "string",
    "ranks": "int32",
    "name": "string",
    "value": "float64",
}
DOCUMENTS = ("graph", "coverage", "findings")

READ_ORDER = ("step", "micro_step", "rank", "order", "call", "name")
"""How the rows of a table are ordered for a reader, as far as the family has these columns."""

STORED_ORDER = ("site", "name", "call", "rank", "step", "micro_step")
"""How the rows of a merged part are ordered, as far as the family has these columns: the steps of one place lie together."""

_RESERVED = frozenset(["scalars", "tensors", "run", *DOCUMENTS])
_FAMILY = re.compile(r"[a-z][a-z0-9_]*")


def check_family(name: str) -> str:
    """Return *name*, if it can name a family of numbers.

    >>> from sonde.run import check_family
    >>> check_family("moments")
    'moments'

    Raises:
        ArgumentError: *name* has other characters than small letters, digits and underscores, or another meaning in a run.
    """
    if _FAMILY.fullmatch(name) is None:
        raise ArgumentError(f"{name!r} cannot name a family: use small letters, digits and underscores, as in 'moments'")
    if name in _RESERVED:
        raise ArgumentError(f"{name!r} cannot name a family of numbers: a run keeps something else under that name")
    return name


def may_be_family(name: str) -> bool:
    """Return whether *name* can name a family of a run, of numbers or not."""
    return name == "scalars" or (_FAMILY.fullmatch(name) is not None and name not in _RESERVED)


def main_families(families: Iterable[str]) -> list[str]:
    """Return the *families* that are not beside another: none of evaluation passes, of single backward passes, or of each rank.

    Names of the first two end with ``_eval`` and ``_micro``; those of rows of each rank with ``_rank``, next to a family without
    this ending (a lens may be named ``effective_rank``).
    """
    there = list(families)
    return [
        each for each in there if not each.endswith(("_eval", "_micro")) and each.removesuffix("_rank") not in {*there} - {each}
    ]


def check_number(name: str) -> str:
    """Return *name*, if it can name a column of numbers.

    Raises:
        ArgumentError: *name* is no identifier, or names a column that every family has.
    """
    if not name.isidentifier():
        raise ArgumentError(f"{name!r} cannot name a number: use letters, digits and underscores, so that SQL needs no quotes")
    if name.lower() == "run":
        raise ArgumentError(
            f"{name!r} cannot name a number: where several runs are read together, a column 'run' says of which a row is"
        )
    if name.lower() in KEYS:  # names of columns are alike to SQL whatever their case
        raise ArgumentError(f"{name!r} cannot name a number: every family has a column {name.lower()!r} that says where and when")
    return name


def whole_number(what: str, value: Any) -> int:
    """Return *value* as an int.

    Raises:
        ArgumentError: *value* is no whole number, or below 0.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} is a whole number, not {value!r}") from None
    if number < 0:
        raise ArgumentError(f"{what} counts from 0; {number} was given")
    return number
