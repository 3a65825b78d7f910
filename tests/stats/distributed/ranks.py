"""Several ranks in one process: mergers in threads, whose collectives are computed by numpy between two barriers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from sonde.stats.distributed import merger
from sonde.stats.distributed.merger import Merger


class Collectives:
    """The collectives of *size* ranks.

    Attributes:
        calls: the name of each collective, in order.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls: list[str] = []
        self._barrier = threading.Barrier(size, timeout=120)
        self._given: dict[int, Any] = {}

    def all_of(self, name: str, rank: int, value: Any) -> list[Any]:
        self._given[rank] = value
        if self._barrier.wait() == 0:
            self.calls.append(name)
        found = [self._given[each] for each in range(self.size)]
        self._barrier.wait()
        return found


class FakeChannel:
    """Stands in for a ``Channel``."""

    def __init__(self, group: Any, timeout: float, place: Any) -> None:
        self.group = group
        self.lost: Exception | None = None
        self.beats = SimpleNamespace(tell=lambda when, label: None)

    def minimum(self, numbers: Tensor) -> None:
        found = self._all("minimum", numbers.clone())
        assert len({len(each) for each in found}) == 1
        numbers.copy_(torch.stack(found).amin(0))

    def sum(self, numbers: Tensor) -> None:
        found = self._all("sum", numbers.clone())
        assert len({len(each) for each in found}) == 1
        numbers.copy_(torch.stack(found).sum(0))

    def gathered(self, numbers: Tensor) -> list[Tensor]:
        found = self._all("gathered", numbers.clone())
        assert len({len(each) for each in found}) == 1
        return found

    def sent(self, text: bytes, size: int, root: int) -> bytes:
        found = self._all("sent", text)[root]
        assert len(found) == size
        return found

    def _all(self, name: str, value: Any) -> list[Any]:
        return self.group.collectives.all_of(name, self.group.rank, value)


@contextmanager
def mergers(size: int) -> Iterator[tuple[list[Merger], Collectives]]:
    """Yield a merger for each of *size* ranks, and what they call."""
    collectives = Collectives(size)
    with mock.patch.object(merger, "Channel", FakeChannel):
        groups = [
            SimpleNamespace(rank=rank, size=size, collectives=collectives, named=lambda rank=rank: f"rank {rank}")
            for rank in range(size)
        ]
        for group in groups:
            group.again = lambda group=group: group
        yield [Merger(group) for group in groups], collectives  # type: ignore[arg-type]


def each(merge: list[Callable[[], Any]]) -> list[Any]:
    """Call each function in a thread of its own; return the results, or raise the first error."""
    found: list[Any] = [None] * len(merge)

    def call(number: int) -> None:
        try:
            found[number] = merge[number]()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(merge))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


def rows(*numbers: list[float]) -> np.ndarray:
    return np.array(numbers, dtype=np.float64)
