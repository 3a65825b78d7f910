"""One row of a statistic, for people: update, merge, compute, reset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats.statistic import Statistic

__all__ = ["Accumulator", "Result"]

S = TypeVar("S", bound=Statistic)


class Result:
    """The numbers of one row, as attributes: ``result.mean``; iterating gives the names."""

    def __init__(self, numbers: dict[str, float]) -> None:
        self._numbers = numbers

    def __getattr__(self, name: str) -> float:
        try:
            return self.__dict__["_numbers"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"there is no number {name!r}; there are {', '.join(self.__dict__.get('_numbers', ()))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def as_dict(self) -> dict[str, float]:
        """Name to number."""
        return dict(self._numbers)

    def __repr__(self) -> str:
        return f"Result({', '.join(f'{name}={number:.6g}' for name, number in self._numbers.items())})"


class Accumulator(Generic[S]):
    """A statistic and one row of its sums.

    >>> from sonde.stats import Accumulator, Moments
    >>> seen = Accumulator(Moments()).update(torch.tensor([3.0, 4.0]))
    >>> seen.compute().norm
    5.0
    """

    def __init__(self, statistic: S) -> None:
        self.statistic = statistic
        self._row = statistic.empty(1)

    def update(self, tensor: Tensor) -> Self:
        """Add all elements of *tensor*. The row moves to the device of the first tensor."""
        if self._row.device != tensor.device:
            with torch.inference_mode(False):
                self._row = self._row.to(tensor.device)
        self.statistic.add(self._row[0], tensor)
        return self

    def merge(self, other: Accumulator[S]) -> Self:
        """Add what *other* has seen; *other* stays as it is.

        Raises:
            ArgumentError: the two accumulate different statistics.
        """
        if other.statistic != self.statistic:
            raise ArgumentError(f"cannot merge {other.statistic} into {self.statistic}: they are different statistics")
        with torch.inference_mode(False):  # else the row could not be written to during training
            self._row = self.statistic.merged(self._row, other._row.to(self._row.device))
        return self

    def compute(self) -> Result:
        """The numbers so far. Nothing is reset."""
        finished = self.statistic.finish(self.statistic.columns(self._row))
        return Result({name: float(column[0]) for name, column in finished.items()})

    def reset(self) -> Self:
        """Forget everything seen."""
        self._row = self.statistic.empty(1, self._row.device)
        return self

    def state_dict(self) -> dict[str, Any]:
        """The sums, by field."""
        return {"row": self._row.detach().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> Self:
        """Take over sums from ``state_dict()``.

        Raises:
            ArgumentError: the state is not one of this statistic.
        """
        row = state.get("row")
        if not isinstance(row, torch.Tensor) or row.shape != self._row.shape:
            raise ArgumentError(f"this is not the state of {self.statistic}: it needs 'row' of shape {tuple(self._row.shape)}")
        with torch.inference_mode(False):
            self._row = row.detach().to(torch.float64).clone()
        return self

    def __repr__(self) -> str:
        return f"Accumulator({self.statistic}, {self.compute()})"
