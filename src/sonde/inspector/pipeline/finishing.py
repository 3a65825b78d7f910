"""Batches of several moments made into entries: the rows of each measuring finished together, whatever the number of moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sonde.inspector.measurement.measurement import RowIndex
from sonde.inspector.pipeline.norms import Key, Norms, squares_of
from sonde.inspector.sinks.base import LoggedRows, RowBlock, Scalar

if TYPE_CHECKING:
    from sonde.inspector.pipeline.writer_thread import Batch, Part

__all__ = ["Finished", "Finishing", "Unpacked"]

Arrays = Sequence[npt.NDArray[np.float64]]
Unpacked = tuple["Batch", Arrays]
"""A batch, and the arrays in its packet."""


class Finished:
    """What several batches have become.

    Attributes:
        rowed: of each stretch in the entries what says which row is of which site.
    """

    def __init__(self) -> None:
        self.rowed: list[RowIndex] = []
        self._sequence: list[tuple[RowBlock, int] | Scalar] = []
        self._stretches: list[RowBlock] = []
        self._scalars: list[Scalar] = []

    @property
    def entries(self) -> LoggedRows:
        """For the sinks."""
        return LoggedRows(self._sequence, self._stretches, self._scalars)

    def add_scalars(self, scalars: Sequence[Scalar]) -> None:
        """Scalars come next."""
        self._sequence += scalars
        self._scalars += scalars

    def add_rows(self, rowed: RowIndex, stretch: RowBlock, at: int) -> None:
        """The rows of a moment come next; those of each stretch in order."""
        self._sequence.append((stretch, at))
        if at == 0:
            self._stretches.append(stretch)
            self.rowed.append(rowed)


_Moment = tuple[RowBlock, int, dict[Key, float]]
"""The rows of one part: a moment of a stretch, and the sums of squares in it that the norms want."""


class _Group:
    """The parts of one measuring, in the order in which they came, and what they have become."""

    def __init__(self, rowed: RowIndex) -> None:
        self.rowed = rowed
        self.models = tuple(dict.fromkeys(rowed.layout.model))
        self.parts: list[tuple[Part, Arrays]] = []
        self.moments: Iterator[_Moment | None] = iter(())


class Finishing:
    """Finishes batches, one piece of a training after the other.

    However the batches are cut into pieces, the entries are the same, and so is their order: that in which they were put; the
    norms of a step come before what is of the next.

    Args:
        failed: called with the measuring of which a statistic has raised, and what.
    """

    def __init__(self, failed: Callable[[RowIndex, Exception], None]) -> None:
        self._failed = failed
        self._norms = Norms()

    def finish(self, batches: Sequence[Unpacked]) -> Finished:
        """What *batches* hold. Where a statistic raises, the rows of that moment are left out."""
        groups: dict[RowIndex, _Group] = {}
        order: list[_Group] = []  # of each part
        for batch, arrays in batches:
            for part in batch.parts:
                group = groups.get(part.rowed)
                if group is None:
                    group = groups[part.rowed] = _Group(part.rowed)
                group.parts.append((part, arrays))
                order.append(group)
        for group in groups.values():
            group.moments = iter(self._moments(group.parts))
        following = iter(order)
        found = Finished()
        for batch, arrays in batches:
            for part in batch.parts:
                group = next(following)
                found.add_scalars(self._norms.begin(group.models, part.step))
                moment = next(group.moments)
                if moment is None:
                    continue
                stretch, at, squares = moment
                if part.norms:
                    self._norms.add(group.models, part.epoch, part.step, squares)
                if not part.hidden:
                    found.add_rows(group.rowed, stretch, at)
            found.add_scalars([each if isinstance(each, Scalar) else each.read(arrays) for each in batch.scalars])
        return found

    def rest(self) -> Finished:
        """The norms of the last steps, of which nothing more comes."""
        found = Finished()
        found.add_scalars(self._norms.take())
        return found

    def _moments(self, parts: Sequence[tuple[Part, Arrays]]) -> list[_Moment | None]:
        """Of each part its rows; None if there are none. The statistic is asked once, and only if it fails once for each."""
        try:
            return _finished(parts)
        except Exception:
            return [self._alone(part) for part in parts]

    def _alone(self, part: tuple[Part, Arrays]) -> _Moment | None:
        try:
            return _finished([part])[0]
        except Exception as error:
            self._failed(part[0].rowed, error)
            return None


def _finished(parts: Sequence[tuple[Part, Arrays]]) -> list[_Moment | None]:
    first = parts[0][0]
    seen, counts, numbers = first.rowed.finish([arrays[part.blocks] for part, arrays in parts])
    moment, rows = np.nonzero(seen)
    scales = _scales(parts, moment, rows)
    if scales is not None:
        for name in first.rowed.linear:
            if name in numbers:
                numbers[name] = numbers[name] / scales.reshape(-1, *[1] * (numbers[name].ndim - 1))
    lengths = seen.sum(axis=1)
    some = np.flatnonzero(lengths)
    when = np.array([(part.epoch, part.step, part.micro_step) for part, _ in parts], np.int64)
    edges = np.concatenate([[0], np.cumsum(lengths[some])])
    stretch = RowBlock(first.rowed.family, first.rowed.layout, rows, when[some], edges, counts, numbers)
    squares = squares_of(stretch, first.rowed, first.norms) if first.norms and len(some) else [{}] * len(some)
    found: list[_Moment | None] = [None] * len(parts)
    for at, place in enumerate(some.tolist()):
        found[place] = stretch, at, squares[at]
    return found


def _scales(
    parts: Sequence[tuple[Part, Arrays]], moment: npt.NDArray[np.intp], rows: npt.NDArray[np.intp]
) -> npt.NDArray[np.float64] | None:
    """What each row's tensor was multiplied by; None if nothing was."""
    if not any(part.scales for part, _ in parts):
        return None
    ports = np.array(parts[0][0].rowed.ports)
    table = np.ones((len(parts), len(ports)))
    for place, (part, arrays) in enumerate(parts):
        for port, where in part.scales.items():
            table[place, ports == port] = float(arrays[where])
    return table[moment, rows]
