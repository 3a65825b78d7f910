"""When: the tick that counts a training, and schedules, the values of ``every=``: which steps are observed, logged or sent."""

from __future__ import annotations

import operator
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

from sonde.errors import ArgumentError


class Tick(NamedTuple):
    """The moment at which something happened, all counted from 0.

    >>> from sonde.types import Tick
    >>> Tick(epoch=1, step=20)
    Tick(epoch=1, step=20, micro_step=0, forward=0)

    Attributes:
        epoch: calls of ``tick_epoch`` before.
        step: optimizer steps taken before; a step that a ``GradScaler`` skipped is none.
        micro_step: backward passes since the last step that wrote a ``.grad`` of the model.
        forward: the index of the call of the root module.
    """

    epoch: int = 0
    step: int = 0
    micro_step: int = 0
    forward: int = 0


class Schedule(ABC):
    """Decides for each step, at its beginning, whether the step is logged.

    Attributes:
        by_epoch: whether the decision may depend on the epoch: it is then made again for a step before which an epoch has ended.
    """

    by_epoch: ClassVar[bool] = False

    @property
    def is_by_turn(self) -> bool:
        """Whether, where optimizers alternate, the schedule holds for the steps of each (``is_due``), and not for all together."""
        return False

    def is_in_epoch(self, tick: Tick) -> bool:
        """Return whether steps of the epoch of *tick* may be logged at all."""
        return True

    @abstractmethod
    def wants(self, tick: Tick, waited: float) -> bool:
        """Return whether the step that begins at *tick* is logged.

        Args:
            tick: the time of the training.
            waited: seconds since the last logged step began; infinite before the first.
        """

    def next(self, step: int) -> int:
        """Return the first step from *step* on that may be logged; *step* itself where this is not known in advance."""
        return step

    def is_due(self, number: int, seen: int, waited: float) -> bool:
        """Return whether the step *number* of one optimizer is logged, where several alternate.

        Args:
            number: among the steps of the optimizer, from 0.
            seen: the number of its last step that was logged; -1 if none was. A step that was missed is made up for by the next.
            waited: seconds since its last logged step began.
        """
        return self.next(seen + 1) <= number


Steps: TypeAlias = int | str | range | Iterable[int] | Callable[[Tick], bool] | Schedule
"""What ``every=`` takes: n, ``"10s"``, a range, step numbers, a callable ``Tick -> bool``, or a schedule."""


@dataclass(frozen=True)
class Every(Schedule):
    """Every *n*-th step: those whose number n divides."""

    n: int

    @property
    def is_by_turn(self) -> bool:
        return True

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ArgumentError(f"every={self.n!r}: every n-th step is logged, so n is 1 or more")

    def wants(self, tick: Tick, waited: float) -> bool:
        return tick.step % self.n == 0

    def next(self, step: int) -> int:
        return -(-step // self.n) * self.n


@dataclass(frozen=True)
class EverySeconds(Schedule):
    """The first step, and each that begins so many *seconds* or more after the last logged one began."""

    seconds: float

    @property
    def is_by_turn(self) -> bool:
        return True

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ArgumentError(f"every={self.seconds!r} seconds: the time between logged steps is above 0")

    def wants(self, tick: Tick, waited: float) -> bool:
        return waited >= self.seconds

    def is_due(self, number: int, seen: int, waited: float) -> bool:
        return waited >= self.seconds


@dataclass(frozen=True)
class Listed(Schedule):
    """The steps of a range or collection."""

    steps: range | frozenset[int]

    def wants(self, tick: Tick, waited: float) -> bool:
        return tick.step in self.steps

    def next(self, step: int) -> int:
        if isinstance(self.steps, frozenset):
            return min((each for each in self.steps if each >= step), default=sys.maxsize)
        ascending = self.steps if self.steps.step > 0 else self.steps[::-1]
        place = max(-(-(step - ascending.start) // ascending.step), 0)
        return ascending[place] if place < len(ascending) else sys.maxsize


class Ascending(Schedule):
    """The steps of an ascending iterator, which may be endless: no more steps are taken from it than are needed."""

    def __init__(self, steps: Iterator[int]) -> None:
        self._rest = steps
        self._seen: set[int] = set()
        self._last = -1

    def wants(self, tick: Tick, waited: float) -> bool:
        while self._last < tick.step:
            step = next(self._rest, None)
            if step is None:
                break
            number = _whole(step)
            if number <= self._last:
                raise ArgumentError(f"every=: the iterator gave step {step} after {self._last}; it must ascend")
            self._last = number
            self._seen.add(number)
        return tick.step in self._seen


@dataclass(frozen=True)
class When(Schedule):
    """The steps for which *asked*, a callable ``Tick -> bool``, returns True."""

    asked: Callable[[Tick], bool]
    by_epoch: ClassVar[bool] = True

    def wants(self, tick: Tick, waited: float) -> bool:
        return bool(self.asked(tick))


@dataclass(frozen=True)
class Warmup(Schedule):
    """Every step before *dense_until*, and from there on the steps of *then*: ``Warmup(100, then=50)``.

    >>> warmup = Warmup(3, then=10)
    >>> [step for step in range(25) if warmup.wants(Tick(step=step), 0.0)]
    [0, 1, 2, 10, 20]

    Raises:
        ArgumentError: *dense_until* is negative, or *then* is no schedule.
    """

    dense_until: int
    then: Steps = 10

    def __post_init__(self) -> None:
        number = whole_number(self.dense_until)
        if number is None or number < 0:
            raise ArgumentError(f"dense_until={self.dense_until!r}: it is the number of the first step that is not logged densely")
        object.__setattr__(self, "dense_until", number)
        object.__setattr__(self, "then", schedule_of(self.then))

    def wants(self, tick: Tick, waited: float) -> bool:
        return tick.step < self.dense_until or schedule_of(self.then).wants(tick, waited)

    def next(self, step: int) -> int:
        return step if step < self.dense_until else schedule_of(self.then).next(step)

    @property
    def is_by_turn(self) -> bool:
        return schedule_of(self.then).is_by_turn

    def is_due(self, number: int, seen: int, waited: float) -> bool:
        return number < self.dense_until or schedule_of(self.then).is_due(number, max(seen, self.dense_until - 1), waited)


@dataclass(frozen=True)
class InEpochs(Schedule):
    """The steps of another *schedule*, in the epochs for which *is_active* returns True; it is given their number, from 1 on."""

    schedule: Schedule
    is_active: Callable[[int], bool]
    by_epoch: ClassVar[bool] = True

    @property
    def is_by_turn(self) -> bool:
        return self.schedule.is_by_turn

    def is_in_epoch(self, tick: Tick) -> bool:
        return bool(self.is_active(tick.epoch + 1))

    def wants(self, tick: Tick, waited: float) -> bool:
        return self.is_in_epoch(tick) and self.schedule.wants(tick, waited)

    def is_due(self, number: int, seen: int, waited: float) -> bool:
        return self.schedule.is_due(number, seen, waited)

    def next(self, step: int) -> int:
        return self.schedule.next(step)


def in_epochs(schedule: Schedule, is_active_fn: int | Callable[[int], bool]) -> Schedule:
    """Return *schedule* in the epochs that *is_active_fn* describes: a callable, or n for those whose number n divides.

    Raises:
        ArgumentError: *is_active_fn* is neither.
    """
    if callable(is_active_fn):
        return InEpochs(schedule, is_active_fn)
    given: Any = is_active_fn
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ArgumentError(f"is_active_fn={given!r}: give n for every n-th epoch, or a callable: number of an epoch -> bool")
    return schedule if given == 1 else InEpochs(schedule, lambda number: number % given == 0)


_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)\s*")


def schedule_of(every: Steps) -> Schedule:
    """Return the schedule that *every* describes.

    Raises:
        ArgumentError: *every* describes no schedule, or one that never logs a step.
    """
    if isinstance(every, Schedule):
        return every
    number = whole_number(every)
    if number is not None:
        return Every(number)
    if isinstance(every, str):
        found = _TIME.fullmatch(every)
        if found is None:
            raise ArgumentError(f'every={every!r}: a text is a time between logged steps, such as "10s", "500ms" or "5min"')
        return EverySeconds(float(found[1]) * _SECONDS[found[2]])
    if isinstance(every, Iterable) and not isinstance(every, Iterator) and hasattr(every, "tolist"):
        every = every.tolist()  # an array or a tensor
    if isinstance(every, Collection) and not len(every):
        raise ArgumentError(f"every={every!r} holds no step, so that nothing would be logged")
    if isinstance(every, range):
        return Listed(every)
    if isinstance(every, Iterator):
        return Ascending(every)
    if isinstance(every, Iterable):
        return Listed(frozenset(map(_whole, every)))
    if callable(every):
        return When(every)
    raise ArgumentError(f'every={every!r}: give a number of steps, a time ("10s"), steps (a range or numbers), or a callable')


def _whole(step: Any) -> int:
    number = whole_number(step)
    if number is None or number < 0:
        raise ArgumentError(f"every=: steps are whole numbers from 0, and {step!r} is none")
    return number


def seconds_of(schedule: Schedule) -> float | None:
    """Return the seconds between logged steps, where *schedule* goes by time."""
    if isinstance(schedule, Warmup):
        return seconds_of(schedule_of(schedule.then))
    if isinstance(schedule, InEpochs):
        return seconds_of(schedule.schedule)
    return schedule.seconds if isinstance(schedule, EverySeconds) else None


def with_interval(schedule: Schedule, n: int) -> Schedule:
    """Return *schedule* with every *n*-th step instead of another interval or of a time."""
    if isinstance(schedule, Warmup):
        return replace(schedule, then=with_interval(schedule_of(schedule.then), n))
    if isinstance(schedule, InEpochs):
        return replace(schedule, schedule=with_interval(schedule.schedule, n))
    return Every(n) if isinstance(schedule, Every | EverySeconds) else schedule


def counted_from_0(word: str, value: Any) -> int:
    """Return *value*, which is given as *word*, as an int.

    Raises:
        ArgumentError: *value* is no whole number, or below 0.
    """
    number = whole_number(value)
    if number is None or number < 0:
        raise ArgumentError(f"{word}={value!r}: {word}s are counted from 0; give the number of the one that comes next")
    return number


def whole_number(value: Any) -> int | None:
    """Return *value* as an int, if it is a whole number of any library (as ``numpy.int64(7)``); else None."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
