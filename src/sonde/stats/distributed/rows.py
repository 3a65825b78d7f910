"""What a rank offers of a logged step, and what comes back: raw rows with keys, by which the rows of several ranks join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sonde.number import Number
from sonde.stats.statistic import Column, Field, Statistic

_REMEMBERED = 64  # lists of names of totals

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Key:
    """Say which row joins which: rows of equal ``place`` and ``group`` do.

    Attributes:
        place: texts and numbers that name the row: the family, and then what names the tensor, alike in all families, as the
            site with its leaf, the call, and the moment within the step.
        group: the first rank of the ranks whose rows join, as those of one data-parallel group; ``ALL`` for all ranks.
        piece: the part of a parameter that this rank holds, with a ``repr`` that names it and, as a ``Piece`` has it, a ``shape``.
            Of the ranks with the same piece the lowest counts, and the others add nothing; where their rows differ, each rank
            keeps its own. None: every rank counts.
        sort: what must be equal for the rows to mean the same, as the module's class or the parameter's whole shape. Where ranks
            differ in it, each keeps its row.
        is_spread: whether ranks may hold different parts of one model under this name, as experts. Else ranks whose rows of a
            parameter differ have models of their own, as far as is known.
    """

    ALL: ClassVar[int] = -1
    """In place of the first rank of a group: the rows of all ranks join."""

    place: tuple[str | int, ...]
    group: int = ALL
    piece: Any = None
    sort: str = ""
    is_spread: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RankRows:
    """Rows of one statistic.

    Attributes:
        statistic: rows of other statistics than a ``Statistic`` stay of this rank.
        keys: of each row; None for a row that stays of this rank. The same object from step to step says that no key has changed.
        rows: float64 of shape ``(rows, 1 + width)``, led by the number of additions, as in a ``Table``.
    """

    statistic: Any
    keys: Sequence[Key | None]
    rows: Array


@dataclass(frozen=True, slots=True)
class Total:
    """A number beside the rows.

    Attributes:
        name: names equal on several ranks join; of equal names on one rank the first joins the first.
        total: the number; for a mean, the sum of *count* numbers.
        how: ``"mean"`` over all that was added, ``"lowest"`` takes that of the lowest rank, ``"max"`` the largest, ``"sum"``
            adds up.
    """

    name: str
    total: float
    count: int = 1
    how: Literal["mean", "lowest", "max", "sum"] = "mean"


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """All that one rank has of one logged step.

    Attributes:
        when: a number that grows from offer to offer, equal on all ranks for the same step.
        label: the same in words, as ``"step 120"``, for what is said of a rank that was lost.
        is_last: this rank makes no other offer. The offer joins the next one of ranks that go on, and waits for none that has begun
            a step which this rank will never make.
    """

    when: int
    blocks: Sequence[RankRows] = ()
    totals: Sequence[Total] = ()
    label: str = ""
    is_last: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class MergedRows:
    """Rows in the order of the keys that were offered.

    Attributes:
        rows: of all ranks that have the key where ``is_merged``, else of this rank.
        ranks: the number of ranks whose tensors are in the row; 0 where another rank writes the row, or nothing was added.
        is_merged: whether the row is of all ranks that it should be of.
        joined: as ``ranks``, and the same on all ranks, also on those that do not write the row.
        first: the rank that writes the row; the number of all ranks where nothing was added.
        differs: whether ranks hold the same piece of a parameter with other values, as ranks that train models of their own do.
            Their rows are not merged.
    """

    rows: Array
    ranks: npt.NDArray[np.intp]
    is_merged: npt.NDArray[np.bool_]
    joined: npt.NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    first: npt.NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    differs: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))


class MergedTotal(NamedTuple):
    """What has become of a total.

    Attributes:
        value: the number of all ranks where *is_merged*, on each rank that has offered the total; else of this rank.
        ranks: the number of ranks that the number is of; 0 where another rank writes it.
        is_merged: whether the number is of all ranks.
    """

    value: float
    ranks: int
    is_merged: bool


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """What has become of an offer.

    Attributes:
        blocks: one for each block of the offer.
        totals: one for each total of the offer.
        failed: why nothing is merged from now on, in words; ``""`` while all is well.
        lost: which ranks were lost since the offer before, in words, where the others have gone on without them.
        members: the ranks of the group that have merged the offer; none where nothing is merged.
    """

    blocks: Sequence[MergedRows]
    totals: Sequence[MergedTotal] = ()
    failed: str = ""
    lost: str = ""
    members: Sequence[int] = ()


@dataclass(frozen=True)
class _Totals(Statistic):
    """Sum, count and maximum of numbers, so that totals travel as rows."""

    fields = (Field("total", per="call"), Field("count", per="call"), Field("most", "max", per="call"))
    numbers = (Number("total"), Number("count"), Number("most"))

    def measure(self, tensor: Tensor) -> Tensor:
        numbers = tensor.double()
        return torch.stack([numbers.sum(), numbers.new_tensor(numbers.numel()), numbers.amax()])

    def finish(self, columns: Any) -> dict[str, Column]:
        return dict(columns)


@dataclass(frozen=True, slots=True)
class _Anyone:
    """Stands as the piece of a total that is taken from the lowest rank."""

    shape: tuple[int, ...] = field(default=())


def rows_of(totals: Sequence[Total], known: dict[tuple[str, ...], list[Key]]) -> RankRows:
    """Return *totals* as rows; *known* remembers the keys by the names."""
    names = tuple([f"{each.how} {each.name}" for each in totals])
    keys = known.get(names)
    if keys is None:
        if len(known) >= _REMEMBERED:
            known.clear()
        seen: dict[str, int] = {}
        keys = known[names] = []
        for name, each in zip(names, totals, strict=True):
            number = seen[name] = seen.get(name, -1) + 1
            keys.append(Key((name, number), piece=_Anyone() if each.how == "lowest" else None))
    return RankRows(_Totals(), keys, np.array([[1.0, each.total, each.count, each.total] for each in totals]).reshape(-1, 4))


def totals_of(totals: Sequence[Total], merged: MergedRows) -> list[MergedTotal]:
    """Return what has become of *totals*, whose rows have become *merged*."""
    total, count, most = merged.rows[:, 1:].T
    hows = np.array([each.how for each in totals], dtype="U6")
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(hows == "max", most, np.where(hows == "sum", total, total / count))
    return list(map(MergedTotal, values.tolist(), merged.ranks.tolist(), merged.is_merged.tolist()))
