"""Compute mean, variance and extremes of a stream of numbers, without keeping the numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats.statistic import unreadable

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from sonde.stats.distributed.exchange import Exchange


class RunningMeanVar:
    """Count, mean, variance, smallest and largest of the numbers given to :meth:`update`.

    >>> loss = RunningMeanVar()
    >>> loss
    RunningMeanVar(no data)
    >>> for value in (2.0, 4.0, 9.0):
    ...     loss.update(value)
    >>> loss.count, loss.mean, loss.min_, loss.max_
    (3, 5.0, 2.0, 9.0)

    NaN and infinities are counted in ``nonfinite`` and left out of all other properties. Without a finite number there is no
    data: ``count`` is 0 and mean, variance, minimum and maximum are NaN.

    Each number x adds ``(x - mean) / count`` to the mean, and ``(x - old mean)^2 (count - 1) / count`` to the sum of squared
    distances (Welford 1962); two aggregates merge as in Chan, Golub and LeVeque 1983. The mean is kept as the sum of two floats
    (Knuth's TwoSum), so the relative error of the variance does not depend on mean / std: it is at most ``4 * 2^-53`` times the
    number of numbers and merges. Where a square is beyond 1e308 the variance is infinite; where a square is below 1e-324 it is 0.
    """

    __slots__ = ("_count", "_max", "_mean", "_min", "_nonfinite", "_rest", "_squares", "_sync")

    def __init__(self) -> None:
        self._sync: tuple[Exchange, tuple[float, ...]] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all numbers."""
        self._count = 0
        self._nonfinite = 0
        self._mean = 0.0
        self._rest = 0.0  # what the float in _mean lacks
        self._squares = 0.0  # sum of squared distances to the mean
        self._min = math.inf
        self._max = -math.inf

    def update(self, value: SupportsFloat | Tensor) -> None:
        """Add one number.

        >>> from sonde.stats import RunningMeanVar
        >>> losses = RunningMeanVar()
        >>> for loss in (1.0, 3.0):
        ...     losses.update(loss)
        >>> copy = losses.copy()
        >>> losses.append(8.0)
        >>> losses.mean, copy.mean, copy.merge(losses).count
        (4.0, 2.0, 5)
        >>> losses.reset()
        >>> losses.count
        0

        Args:
            value: a real number, or a real tensor of one element (reading it waits for its device).

        Raises:
            ArgumentError: *value* is none of these.
        """
        number = as_number(value)
        if not math.isfinite(number):
            self._nonfinite += 1
            return
        self._count += 1
        self._min = min(self._min, number)
        self._max = max(self._max, number)
        if self._count == 1:
            self._mean = number
            return
        apart = number - self._mean - self._rest
        self._squares += apart * (apart * ((self._count - 1) / self._count))
        self._move(apart, number, self._count)

    append = update  # the method of a list, so that both kinds of aggregate can be filled alike

    def merge(self, other: RunningMeanVar) -> Self:
        """Add all numbers of *other*, as if they had been given to this aggregate; *other* stays unchanged.

        Raises:
            ArgumentError: *other* is no RunningMeanVar.
        """
        if not isinstance(other, RunningMeanVar):
            raise ArgumentError(f"only a RunningMeanVar can be merged into one, not {type(other).__name__}")
        self._nonfinite += other._nonfinite
        if other._count == 0:
            return self
        if self._count == 0:
            self._mean, self._rest = other._mean, other._rest
        mine, theirs = self._count, other._count
        self._count = mine + theirs
        apart = other._mean - self._mean + (other._rest - self._rest)
        self._squares += other._squares + apart * (apart * (mine * theirs / self._count))
        self._move(apart, other._mean, self._count / theirs)
        self._min = min(self._min, other._min)
        self._max = max(self._max, other._max)
        return self

    def _move(self, apart: float, towards: float, nth: float) -> None:
        """Move the mean by an nth of *apart*, its distance to *towards*, which may be beyond the largest float."""
        mean = self._mean
        if not math.isfinite(apart):
            self._mean, self._rest = mean - mean / nth + towards / nth, 0.0
            return
        step = self._rest + apart / nth
        self._mean = mean + step
        taken = self._mean - mean
        self._rest = (mean - (self._mean - taken)) + (step - taken)

    def copy(self) -> RunningMeanVar:
        """Return a copy."""
        return RunningMeanVar().merge(self)

    # Ranks

    def start_sync(self, dst_rank: int = 0, *, group: ProcessGroup | None = None) -> None:
        """Begin to send these numbers to the other ranks of a distributed training, without waiting for them.

        >>> from sonde.stats import RunningMeanVar
        >>> losses = RunningMeanVar()
        >>> losses.update(2.0)
        >>> losses.start_sync()
        >>> losses.finish_sync().mean
        2.0

        All ranks of the group call this, and :meth:`finish_sync` later. In one process the two do nothing.

        Args:
            dst_rank: the rank that needs the numbers, as in monitorch; every rank gets them.
            group: a process group of torch, by default the one of all ranks.

        Raises:
            ArgumentError: *dst_rank* is no number of a rank; a sync has begun already; there is no process group though
                ``WORLD_SIZE`` is larger than 1; or this rank is not in *group*.
        """
        from sonde.stats.distributed.exchange import Exchange

        asked: object = dst_rank
        if not (isinstance(asked, int) and asked >= 0):
            raise ArgumentError(f"dst_rank={dst_rank!r} is no number of a rank; a process group is given as group=")
        if self._sync is not None:
            raise ArgumentError("start_sync() was called already: call finish_sync() first")
        state = self._state()
        self._sync = Exchange(state, group), state

    def finish_sync(self) -> Self:
        """Add the numbers that the other ranks had at :meth:`start_sync`, as :meth:`merge` does. Wait for them.

        All ranks have the same aggregate then, but for numbers that were added to this one in between, which are kept. Call
        :meth:`reset` before the next interval: at a second sync the numbers of the first would be added by every rank.

        Raises:
            ArgumentError: no sync has begun.
        """
        if self._sync is None:
            raise ArgumentError("finish_sync() waits for what start_sync() began: call that before, on all ranks")
        (exchange, state), self._sync = self._sync, None
        ranks = [_restored(int(count), int(nonfinite), *rest) for count, nonfinite, *rest in exchange.finish()]
        if self._state() != state:  # numbers came in between
            ranks[ranks.index(_restored(*state))] = self.copy()
        self.reset()
        for rank in ranks:
            self.merge(rank)
        return self

    # Reading

    @property
    def count(self) -> int:
        """Number of finite numbers."""
        return self._count

    finite = count  # the name of the same count in a kept list

    @property
    def nonfinite(self) -> int:
        """Number of NaN and infinities."""
        return self._nonfinite

    @property
    def mean(self) -> float:
        """Mean of the finite numbers."""
        return self._mean if self._count else math.nan

    @property
    def var(self) -> float:
        """Population variance (ddof 0) of the finite numbers, in the square of their unit."""
        return self._squares / self._count if self._count else math.nan

    @property
    def std(self) -> float:
        """The square root of ``var``."""
        return math.sqrt(self.var)

    @property
    def min_(self) -> float:
        """Smallest finite number."""
        return self._min if self._count else math.nan

    @property
    def max_(self) -> float:
        """Largest finite number."""
        return self._max if self._count else math.nan

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count + self._nonfinite > 0

    def __eq__(self, other: object) -> bool:
        return self._state() == other._state() if isinstance(other, RunningMeanVar) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, self._state()

    def _state(self) -> tuple[int, int, float, float, float, float, float]:
        return self._count, self._nonfinite, self._mean, self._rest, self._squares, self._min, self._max

    def __repr__(self) -> str:
        apart = f", nonfinite={self._nonfinite}" if self._nonfinite else ""
        if not self._count:
            return f"RunningMeanVar(no data{apart})"
        return (
            f"RunningMeanVar(count={self._count}, mean={self.mean:.6g}, var={self.var:.6g}, "
            f"min_={self.min_:.6g}, max_={self.max_:.6g}{apart})"
        )


def as_number(value: SupportsFloat | Tensor) -> float:
    """Return *value* as a float.

    Raises:
        ArgumentError: *value* is not a real number, nor a real tensor or array of one element.
    """
    try:
        if isinstance(value, str | bytes):
            raise TypeError  # which float() would parse
        if isinstance(value, Tensor):
            return float(value.detach().item())
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]  # an integer beyond 1e308
    except (TypeError, ValueError, RuntimeError):
        if not isinstance(value, Tensor):
            what = repr(value)
        elif kind := unreadable(value):
            what = f"a {kind} tensor"
        else:
            what = f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
        raise ArgumentError(f"a real number or a tensor of one element is needed, not {what}") from None


def _restored(*state: Any) -> RunningMeanVar:
    made = RunningMeanVar()
    made._count, made._nonfinite, made._mean, made._rest, made._squares, made._min, made._max = state
    return made
