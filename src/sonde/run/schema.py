"""The format of a run: its version, the columns that every family of numbers has, and the names that families may have."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.escape import encodable
from sonde.site import Site

__all__ = [
    "ALERTS",
    "DOCUMENTS",
    "FORMAT",
    "KEYS",
    "KEY_COLUMNS",
    "LATER",
    "READ_ORDER",
    "SCALARS",
    "SCOPES",
    "STORED_ORDER",
    "VERSION",
    "Key",
    "Layout",
    "Scope",
    "check_family",
    "check_number",
    "main_families",
    "may_be_family",
    "whole_number",
]

FORMAT = "sonde-run"
VERSION = 4

Scope = Literal["rank", "data-parallel", "global"]
"""How much of a training a number is of, where several processes train together: of one process alone; of the batches of all
processes of a data-parallel group, joined; or of the whole. In a training of one process every number is of the whole."""

SCOPES: tuple[Scope, ...] = ("rank", "data-parallel", "global")


@dataclass(frozen=True, slots=True)
class Key:
    """A column that every family of numbers has.

    Attributes:
        name: of the column.
        kind: its Arrow type; texts are dictionary-encoded.
        given: the source of its values: the ``moment`` at which rows were taken, the ``process`` that writes, the ``place`` in
            the network (a row of a :class:`Layout`), or the ``row`` itself.
        of_site: derives the value from the site; None where it is given.
    """

    name: str
    kind: Literal["int64", "int32", "string"]
    given: Literal["moment", "process", "place", "row"]
    of_site: Callable[[Site], str] | None = None


KEY_COLUMNS = (
    Key("epoch", "int64", "moment"),
    Key("step", "int64", "moment"),
    Key("micro_step", "int32", "moment"),
    Key("rank", "int32", "process"),
    Key("scope", "string", "place"),
    Key("ranks", "int32", "row"),
    Key("model", "string", "place", lambda site: site.model),
    Key("site", "string", "place", str),
    Key("layer", "string", "place", lambda site: site.layer),
    Key("port", "string", "place", lambda site: site.port),
    Key("leaf", "string", "place", lambda site: site.leaf),
    Key("call", "int32", "place"),
    Key("order", "int32", "place"),
)
"""The columns that lead every family of numbers, in this order. A column in every row is an entry here, and nothing else."""

KEYS = tuple(key.name for key in KEY_COLUMNS)
"""Their names."""

SCALARS = {
    "epoch": "int64",
    "step": "int64",
    "rank": "int32",
    "scope": "string",
    "ranks": "int32",
    "name": "string",
    "value": "float64",
}
ALERTS = {
    "epoch": "int64",
    "step": "int64",
    "rank": "int32",
    "severity": "string",
    "rule": "string",
    "site": "string",
    "value": "float64",
    "message": "string",
    "call": "int32",
    "first_step": "int64",
    "evidence": "string",
    "advice": "string",
}
LATER = frozenset(["call", "first_step", "evidence", "advice"])
"""Columns of alerts that parts of older runs lack."""
DOCUMENTS = ("graph", "coverage")

READ_ORDER = ("step", "micro_step", "rank", "order", "call", "name")
"""How the rows of a table are ordered for a reader, as far as the family has these columns."""

STORED_ORDER = ("site", "name", "call", "rank", "step", "micro_step")
"""How the rows of a merged part are ordered, as far as the family has these columns: the steps of one place lie together."""

_RESERVED = frozenset(["scalars", "alerts", "tensors", "run", *DOCUMENTS])
_FAMILY = re.compile(r"[a-z][a-z0-9_]*")


class Layout:
    """Which place in the network each row belongs to. Make one and give it with every block of numbers.

    Args:
        sites: of each row its site, or the text of it, as ``layers.3.mlp:output``.
        call: of each row which call of the module within one forward, or one number for all.
        order: of each row its site's place in the order of execution; by default the order of the rows.
        scope: of each row how much of the training it is of, or one scope for all.

    Attributes:
        site, model, port, scope: of each row the text of its site, the model and the port in it, and its scope.
        columns: of each column in ``KEY_COLUMNS`` that is given by the place, the value of each row.
        rows: the indices of all rows.

    Raises:
        ArgumentError: these are not equally long, or a scope is none of ``SCOPES``.
        SiteError: a text does not name a site.
    """

    def __init__(
        self,
        sites: Sequence[str | Site],
        call: int | Sequence[int] | npt.NDArray[Any] = 0,
        order: Sequence[int] | npt.NDArray[Any] | None = None,
        scope: Scope | Sequence[Scope] = "global",
    ) -> None:
        if isinstance(sites, str):
            raise ArgumentError(f"a layout takes a sequence of sites, one for each row, not the text {sites!r}")
        parsed = [site if isinstance(site, Site) else Site.parse(site) for site in sites]
        texts = {key.name: tuple(encodable(key.of_site(site)) for site in parsed) for key in KEY_COLUMNS if key.of_site is not None}
        whole = {
            "call": np.full(len(parsed), call, np.int32) if isinstance(call, int) else np.array(call, np.int32),
            "order": np.arange(len(parsed), dtype=np.int32) if order is None else np.array(order, np.int32),
        }
        self.scope: tuple[Scope, ...] = (scope,) * len(parsed) if isinstance(scope, str) else tuple(scope)
        if strange := set(self.scope) - set(SCOPES):
            raise ArgumentError(f"{strange.pop()!r} is no scope of a row: it is one of {', '.join(map(repr, SCOPES))}")
        for name, values in (*whole.items(), ("scope", self.scope)):
            if len(values) != len(parsed):
                raise ArgumentError(f"a layout of {len(parsed)} sites has {len(values)} of {name!r}: give one for each row")
        self.site, self.model, self.port = texts["site"], texts["model"], texts["port"]
        self.columns: Mapping[str, tuple[str, ...] | npt.NDArray[np.int32]] = {**texts, **whole, "scope": self.scope}
        self.rows: npt.NDArray[np.intp] = np.arange(len(parsed))

    def of_scope(self, scope: Scope | Sequence[Scope]) -> Layout:
        """Return a layout of the same places, whose rows are of *scope*."""
        made = copy(self)
        made.scope = (scope,) * len(self) if isinstance(scope, str) else tuple(scope)
        made.columns = {**self.columns, "scope": made.scope}
        return made

    @property
    def order(self) -> npt.NDArray[np.int32]:
        """Of each row its site's place in the order of execution."""
        return np.asarray(self.columns["order"])

    def __len__(self) -> int:
        return len(self.site)


def check_family(name: str) -> str:
    """Return *name*, if it can name a family of numbers.

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
    return name in ("scalars", "alerts") or (_FAMILY.fullmatch(name) is not None and name not in _RESERVED)


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
