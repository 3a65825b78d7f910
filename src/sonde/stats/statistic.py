"""What a statistic is: a value that says how to measure a tensor, how measures add up, and how to finish a row of sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.errors import ArgumentError

__all__ = ["Column", "Field", "Merge", "Statistic"]

Merge = Literal["sum", "min", "max"]
Column = NDArray[np.float64]

_ORDER: dict[str, int] = {"sum": 0, "min": 1, "max": 2}
_IDENTITY: dict[str, float] = {"sum": 0.0, "min": float("inf"), "max": float("-inf")}


@dataclass(frozen=True, slots=True)
class Field:
    """One number of a row, and how two rows' numbers become one: over calls, steps, ranks and files alike."""

    name: str
    merge: Merge = "sum"


class Statistic(ABC):
    """A statistic without state. A row of its ``fields`` is the state, and lives where the caller keeps it.

    A subclass names its ``fields`` (those that add up first, then minima, then maxima), measures one tensor, and finishes
    columns of rows. Because a row is only ever merged field by field, an empty row changes nothing, and the order and
    the grouping of updates do not matter beyond rounding.
    """

    fields: ClassVar[tuple[Field, ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = [_ORDER[item.merge] for item in getattr(cls, "fields", ())]
        if order != sorted(order):
            raise ArgumentError(f"{cls.__name__}.fields must list sums first, then minima, then maxima")

    @abstractmethod
    def measure(self, tensor: Tensor) -> Tensor:
        """The row of one dense tensor: float64, shape ``(len(fields),)``, on its device. Traceable, without a host sync."""

    @abstractmethod
    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """The statistic's numbers from one column per field, for any number of rows at once, on the host."""

    # Rows

    def empty(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        """Rows that nothing was added to: float64, shape ``(rows, len(fields))``."""
        identity = [_IDENTITY[item.merge] for item in self.fields]
        with torch.inference_mode(False):  # a row made under inference mode could not be written to during training
            return torch.tensor(identity, dtype=torch.float64, device=device).repeat(rows, 1)

    def merged(self, row: Tensor, other: Tensor) -> Tensor:
        """A new row that holds both. Works on many rows at once."""
        sums, minima = self._cuts()
        return torch.cat(
            [
                row[..., :sums] + other[..., :sums],
                torch.minimum(row[..., sums:minima], other[..., sums:minima]),
                torch.maximum(row[..., minima:], other[..., minima:]),
            ],
            dim=-1,
        )

    def add(self, row: Tensor, tensor: Tensor) -> None:
        """Add *tensor* to *row* in place."""
        dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
        row.copy_(self.merged(row, self.measure(dense)))

    def columns(self, rows: Tensor) -> dict[str, Column]:
        """The rows on the host as one column per field. This is the one place that waits for a device."""
        host = rows.detach().cpu().numpy()
        return {item.name: host[:, index] for index, item in enumerate(self.fields)}

    def _cuts(self) -> tuple[int, int]:
        sums = sum(item.merge == "sum" for item in self.fields)
        return sums, sums + sum(item.merge == "min" for item in self.fields)
