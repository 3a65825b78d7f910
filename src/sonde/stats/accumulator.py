"""Accumulate one row of a statistic by hand: update, merge, compute, reset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats.history import History
from sonde.stats.pair import PairStatistic
from sonde.stats.statistic import Column, RowStatistic, Statistic, dense
from sonde.stats.table import Table

S_co = TypeVar("S_co", bound=RowStatistic, covariant=True)
M = TypeVar("M", bound=Statistic)

_LINE = 100  # characters, beyond which a repr takes a line per number


class Result:
    """The numbers of one row, as attributes: ``result.mean``; iterating gives the names. NaN means no number.

    >>> import torch
    >>> from sonde.stats import Accumulator, Norm
    >>> found = Accumulator(Norm()).update(torch.tensor([3.0, 4.0])).compute()
    >>> found.norm, sorted(found) == sorted(found.as_dict())
    (5.0, True)
    """

    def __init__(self, numbers: dict[str, float]) -> None:
        self._numbers = numbers

    def __getattr__(self, name: str) -> float:
        try:
            return self.__dict__["_numbers"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"there is no number {name!r}; there are {', '.join(self.__dict__.get('_numbers', ()))}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._numbers]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def as_dict(self) -> dict[str, float]:
        """Return a dict from name to number."""
        return dict(self._numbers)

    def __repr__(self) -> str:
        shown = {name: _shown(number) for name, number in self._numbers.items()}
        line = f"Result({', '.join(f'{name}={number}' for name, number in shown.items())})"
        if len(line) <= _LINE:
            return line
        column = max(map(len, shown))
        return "\n".join(["Result(", *(f"    {name:<{column}} = {number}" for name, number in shown.items()), ")"])


def _shown(number: float) -> str:
    return f"{number:.0f}" if number.is_integer() and abs(number) < 1e15 else f"{number:.6g}"


class Accumulator(Generic[S_co]):
    """A statistic and one row of its sums.

    >>> from sonde.stats import Accumulator, Cosine, Moments
    >>> seen = Accumulator(Moments()).update(torch.tensor([3.0, 4.0]))
    >>> seen.compute().norm
    5.0

    With a :class:`~sonde.stats.PairStatistic`, the accumulator keeps a copy of the last tensor, to compare the next tensor with:

    >>> gradients = Accumulator(Cosine()).update(torch.tensor([1.0, 0.0])).update(torch.tensor([1.0, 1.0]))
    >>> round(gradients.compute().cosine, 4)
    0.7071

    Args:
        statistic: an instance of a statistic.

    Raises:
        ArgumentError: *statistic* is no instance of a statistic, but for example the class.
    """

    def __init__(self, statistic: S_co) -> None:
        given: object = statistic
        if not isinstance(given, RowStatistic):
            hint = f"make one: {given.__name__}(...)" if isinstance(given, type) else "sonde.stats has them"
            raise ArgumentError(f"an accumulator needs an instance of a statistic, not {given!r}; {hint}")
        self.statistic = statistic
        self._table = Table(statistic, 1)
        (self._row,) = self._table.allocate(1, "cpu")
        self._history = History()

    def update(self, tensor: Tensor, previous: Tensor | None = None) -> Self:
        """Add all elements of *tensor*. The row moves to the device of the last tensor.

        >>> import torch
        >>> from sonde.stats import Accumulator, Moments
        >>> half = Accumulator(Moments()).update(torch.tensor([1.0, 2.0]))
        >>> rest = Accumulator(Moments()).update(torch.tensor([3.0, 6.0]))
        >>> half.merge(rest).compute().mean
        3.0
        >>> half.columns()["zeros"]
        array([0.])
        >>> again = Accumulator(Moments()).load_state_dict(half.state_dict())
        >>> half.reset().compute().count, again.compute().count
        (0.0, 4.0)

        Args:
            tensor: any real, integer, bool or complex tensor, of any shape, dense or sparse.
            previous: for a pair statistic, the tensor to compare *tensor* with. The kept tensor is then neither used nor
                replaced. Without *previous*, the tensor of the last call is the predecessor; the first call makes no pair, and
                a tensor of another shape than its predecessor is counted as skipped.

        Raises:
            ArgumentError: *tensor* is no tensor, or has no values to read: nested, quantised, on the meta device; *previous* is
                given and the statistic is no pair statistic; or the statistic cannot measure such a tensor. Nothing was added
                then.
        """
        given: object = tensor
        if not isinstance(given, Tensor):
            raise ArgumentError(f"a statistic is of tensors, and this is {type(given).__name__}: give torch.as_tensor(...)")
        if isinstance(self.statistic, PairStatistic):
            tensor = dense(tensor)
            before = self._history.previous(None) if previous is None else dense(previous)
            if before is not None:
                self._table.add(self._row_at(tensor.device), tensor, before)
            if previous is None:
                self._history.remember(None, tensor)
        elif previous is not None:
            raise ArgumentError(f"{self.statistic} measures tensors one by one and has no use for a previous one")
        else:
            tensor = dense(tensor)
            self._table.add(self._row_at(tensor.device), tensor)
        return self

    def _row_at(self, device: torch.device) -> Tensor:
        """Return the row, moved to *device*."""
        if self._row.device != device:
            self._row = self._table.move(self._row, device)
        return self._row

    def merge(self: Accumulator[M], other: Accumulator[Statistic]) -> Accumulator[M]:
        """Add the row of *other*, which stays unchanged.

        Raises:
            ArgumentError: the two accumulators have different statistics, or a :class:`~sonde.stats.PairStatistic`, whose
                rows depend on the order of the tensors.
        """
        if not isinstance(self.statistic, Statistic):
            raise ArgumentError(
                f"cannot merge accumulators of {self.statistic}: it compares each tensor with the one before it, and two "
                "sequences are not one; keep an accumulator per sequence"
            )
        if not isinstance(other, Accumulator):
            raise ArgumentError(f"cannot merge {type(other).__name__} into {self.statistic}: give another Accumulator")
        if other.statistic != self.statistic:
            raise ArgumentError(f"cannot merge {other.statistic} into {self.statistic}: they are different statistics")
        self._table.merge(self._row, other._row.to(self._row.device))
        return self

    def columns(self) -> dict[str, Column]:
        """Return the sums so far: a column of one row per field, in the form that methods of the statistic take."""
        return self.statistic.columns(self._row[None, 1:].clone())

    def compute(self) -> Result:
        """Return the numbers so far. Nothing is reset."""
        finished = self.statistic.finish(self.columns())
        return Result({name: float(column[0]) for name, column in finished.items()})

    def reset(self, *, keep_previous: bool = False) -> Self:
        """Empty the row.

        Args:
            keep_previous: keep the last tensor of a pair statistic, so that the first tensor of the next interval is
                compared with the last one of this interval.
        """
        self._table.reset()
        if not keep_previous:
            self._history.clear()
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return ``statistic``, as text; ``row``, the sums; ``previous``, the tensor that a pair statistic keeps, or None."""
        previous = self._history.previous(None)
        previous = None if previous is None else previous.clone()
        return {"statistic": repr(self.statistic), "row": self._row[None, 1:].clone(), "previous": previous}

    def load_state_dict(self, state: dict[str, Any]) -> Self:
        """Replace the sums by a copy of those in a ``state_dict()``.

        Raises:
            ArgumentError: the state is not of this statistic with these arguments. Nothing was replaced then.
        """
        row, previous = state.get("row"), state.get("previous")
        if state.get("statistic") != repr(self.statistic):
            raise ArgumentError(f"this is not the state of {self.statistic}: it is of {state.get('statistic')}")
        shape = (1, self.statistic.width)
        wide = isinstance(row, Tensor) and row.dim() == 2 and self.statistic.grows
        if not isinstance(row, Tensor) or (row.shape != shape and not wide):
            raise ArgumentError(f"this is not the state of {self.statistic}: it needs 'row' of shape {shape}")
        if not isinstance(previous, Tensor | None):
            raise ArgumentError(f"this is not the state of {self.statistic}: 'previous' must be a tensor or None")
        previous = None if previous is None else dense(previous)
        with torch.no_grad():
            self._table.replace(self._row_at(row.device), row[0])
        self._history.clear()
        if previous is not None:
            self._history.remember(None, previous)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"statistic": self.statistic, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Accumulator.__init__(self, state["statistic"])
        self.load_state_dict(state["state"])

    def __repr__(self) -> str:
        return f"Accumulator({self.statistic}, {self.compute()})"
