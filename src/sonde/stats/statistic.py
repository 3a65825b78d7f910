"""What a statistic is: a value that says how to measure a tensor, how measures add up, and how to finish a row of sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.number import Number
from sonde.stats.kernels import Kernel

__all__ = ["Column", "Field", "Merge", "RowStatistic", "Statistic", "dense", "elements", "reduce"]

Merge = Literal["sum", "min", "max"]
Column = NDArray[np.float64]

_ORDER: dict[str, int] = {"sum": 0, "min": 1, "max": 2}
_IDENTITY: dict[str, float] = {"sum": 0.0, "min": float("inf"), "max": float("-inf")}


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of a row, and how two rows' entries become one: over calls, steps, ranks and files alike.

    Attributes:
        name: its name, which is that of its column.
        merge: how two become one.
        size: how many numbers of the row it takes; they are merged one by one.
        per: ``"element"`` where a tensor added whole and in pieces leave the same (pieces of whole samples, for a
            statistic that knows samples); ``"call"`` where each tensor added counts as one, whatever its size.
    """

    name: str
    merge: Merge = "sum"
    size: int = 1
    per: Literal["element", "call"] = "element"


class RowStatistic(ABC):
    """What every statistic has: rows of float64 with a known layout, and numbers finished from columns of rows."""

    recorded: ClassVar[tuple[str, ...]] = ()
    """Fields that a run holds as they are, beside the numbers."""

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers that :meth:`finish` gives, described; a picture shows the first that is not minor.

        A class attribute, or a property where a description depends on the statistic's arguments. A number that is left out is
        called by its name, and nothing is known of its unit and of how it scales.
        """
        return ()

    def number(self, name: str) -> Number:
        """Return the description of the number *name*; a bare one if *name* is not in ``numbers``."""
        return next((number for number in self.numbers if number.name == name), Number(name))

    @property
    def can_sample(self) -> bool:
        """Whether a sample of a tensor tells every number of the whole tensor."""
        return bool(self.numbers) and all(number.growth is not None for number in self.numbers)

    @abstractmethod
    def layout(self) -> tuple[tuple[str, int], ...]:
        """Name and size of each entry of a row, in order."""

    @abstractmethod
    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """The statistic's numbers, for any number of rows at once, on the host.

        Args:
            columns: one per field; float64 of shape ``(rows,)``, or ``(rows, size)`` for a field of more than one number.

        Returns:
            Name to float64 of shape ``(rows,)``. NaN says that there is no such number.
        """

    @abstractmethod
    def empty(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        """Rows that nothing was added to: float64, shape ``(rows, width)``."""

    @property
    def kernel(self) -> Kernel | None:
        """A compiled kernel that adds to a row, in one pass over memory, the same as :meth:`row_of`; None where there is none.

        A class attribute, or a property where the kernel depends on the statistic's arguments.
        """
        return None

    @abstractmethod
    def row_of(self, tensor: Tensor, previous: Tensor | None = None) -> Tensor:
        """Return the row that *tensor* alone leaves; *previous* is its predecessor, for a statistic of pairs."""

    @abstractmethod
    def merged(self, row: Tensor, other: Tensor) -> Tensor:
        """Return a new row that holds both. Works on many rows at once."""

    def add(self, row: Tensor, tensor: Tensor, previous: Tensor | None = None) -> None:
        """Add *tensor* to *row*, of shape ``(width,)``, in place, by the kernel where the kernel can."""
        if self.kernel is None or not self.kernel.add(row, tensor):
            row.copy_(self.merged(row, self.row_of(tensor, previous)))

    @abstractmethod
    def _cuts(self) -> tuple[int, int]:
        """Return how many numbers of a row are sums, and how many are sums or minima; the rest are maxima."""

    @property
    def width(self) -> int:
        """How many numbers a row holds."""
        return sum(size for _, size in self.layout())

    def columns(self, rows: Tensor) -> dict[str, Column]:
        """The rows, of shape ``(rows, width)``, on the host as one column per field. The one place that waits for a device."""
        host = rows.detach().cpu().numpy()
        return {name: host[:, cut] if cut.stop - cut.start > 1 else host[:, cut.start] for name, cut in self._slices()}

    def _slices(self) -> Iterator[tuple[str, slice]]:
        start = 0
        for name, size in self.layout():
            yield name, slice(start, start + size)
            start += size


class Statistic(RowStatistic):
    """A statistic without state. A row of its ``fields`` is the state, and lives where the caller keeps it.

    A subclass names its ``fields`` (those that add up first, then minima, then maxima), measures one tensor, and finishes
    columns of rows. Because a row is only ever merged field by field, an empty row changes nothing, and the order and
    the grouping of updates do not matter beyond rounding.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        fields = getattr(cls, "fields", ())
        order = [_ORDER[item.merge] for item in fields] if isinstance(fields, tuple) else []
        if order != sorted(order):
            raise ArgumentError(f"{cls.__name__}.fields must list sums first, then minima, then maxima")

    @property
    @abstractmethod
    def fields(self) -> tuple[Field, ...]:
        """The entries of a row. A class attribute, or a property where their size depends on the statistic's arguments."""

    @abstractmethod
    def measure(self, tensor: Tensor) -> Tensor:
        """The row of one dense tensor: float64, shape ``(width,)``, on its device. Traceable, without a host sync."""

    # Rows

    def layout(self) -> tuple[tuple[str, int], ...]:
        return tuple((item.name, item.size) for item in self.fields)

    def empty(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        """Rows that nothing was added to: float64, shape ``(rows, width)``."""
        identity = [_IDENTITY[item.merge] for item in self.fields for _ in range(item.size)]
        with torch.inference_mode(False):  # a row made under inference mode could not be written to during training
            return torch.tensor(identity, dtype=torch.float64, device=device).repeat(rows, 1)

    def row_of(self, tensor: Tensor, previous: Tensor | None = None) -> Tensor:
        return self.measure(dense(tensor))

    def merged(self, row: Tensor, other: Tensor) -> Tensor:
        sums, minima = self._cuts()
        return torch.cat(
            [
                row[..., :sums] + other[..., :sums],
                torch.minimum(row[..., sums:minima], other[..., sums:minima]),
                torch.maximum(row[..., minima:], other[..., minima:]),
            ],
            dim=-1,
        )

    def _cuts(self) -> tuple[int, int]:
        sums = sum(item.size for item in self.fields if item.merge == "sum")
        return sums, sums + sum(item.size for item in self.fields if item.merge == "min")


def reduce(statistic: Statistic, rows: Tensor) -> Tensor:
    """All *rows*, of shape ``(rows, width)``, as one of shape ``(width,)``: over ranks, steps or files.

    Raises:
        ArgumentError: *statistic* is a :class:`~sonde.stats.PairStatistic`, whose rows depend on the order in which
            tensors came and do not add up (type checkers refuse it too); or *rows* are not rows of *statistic*.
    """
    if not isinstance(statistic, Statistic):
        raise ArgumentError(
            f"cannot reduce rows of {statistic!r}: it compares each tensor with the one before it, so rows of several ranks "
            "or sites do not add up; keep its numbers per row, or reduce a Statistic"
        )
    if rows.dim() != 2 or rows.shape[1] != statistic.width:
        raise ArgumentError(f"cannot reduce rows of shape {tuple(rows.shape)}: {statistic} has rows of {statistic.width} numbers")
    sums, minima = statistic._cuts()
    whole = torch.cat([statistic.empty(1, rows.device), rows])  # so that no rows make an empty row
    return torch.cat([whole[:, :sums].sum(0), whole[:, sums:minima].amin(0), whole[:, minima:].amax(0)])


def dense(tensor: Tensor) -> Tensor:
    """*tensor* itself where it is dense; a sparse one as what it stands for.

    Raises:
        ArgumentError: *tensor* is nested or on the meta device, and so has no values that could be measured.
    """
    if tensor.is_nested:
        raise ArgumentError("a nested tensor cannot be measured: add the tensors of its unbind() one by one")
    if tensor.is_meta:
        raise ArgumentError("a tensor on the meta device has no values to measure: move the model to a real device first")
    if torch.compiler.is_compiling():  # where a tensor is dense, and a backward pass may not ask for its layout
        return tensor
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def elements(tensor: Tensor) -> Tensor:
    """The elements as float64, without a graph: integers and bools as numbers, complex ones as their modulus."""
    tensor = tensor.detach()
    return (tensor.abs() if tensor.is_complex() else tensor).to(torch.float64)
