"""How long a full queue makes its callers wait: once, until something is written again. Time passes here when it is waited for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonde.errors import ObservationWarning
from sonde.run.run import open_run
from sonde.run.schema import Layout
from sonde.run.store import disk_writer, writer_thread
from sonde.run.store.disk_writer import Flushing
from sonde.run.store.open import start_run
from sonde.run.store.writer_thread import QueueLimits, WriteQueue, WriterThread
from sonde.warn import WarnOnce

LONG = 1e6


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that callers have waited in vain: who waits for at most so long has at once waited so long."""
    found: list[float] = []
    wait_for = threading.Condition.wait_for

    def passing(self: threading.Condition, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        if timeout is None:
            return wait_for(self, predicate)
        found.append(timeout)
        return predicate()

    monkeypatch.setattr(threading.Condition, "wait_for", passing)
    return found


@dataclass(frozen=True)
class Item:
    nbytes: int


@dataclass
class Disk:
    """Writes items at a gate that is open or closed, or keeps them, as a disk that is full."""

    gate: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    keeps: int = 0
    written: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)  # sizes that it raises for
    tries: list[list[int]] = field(default_factory=list)

    def give_up(self, item: Item, error: Exception) -> None:
        self.given_up.append(item.nbytes)

    def pick(self, items: deque[Item]) -> int:
        """Write all but what it raises for, one item after the other."""
        self.tries.append([item.nbytes for item in items])
        while items:
            if items[0].nbytes in self.lost:
                raise SystemError("bad argument")
            self.written.append(items.popleft().nbytes)
        return self.keeps

    def write(self, items: deque[Item]) -> int:
        self.reached.set()
        assert self.gate.wait(60)
        self.written += [item.nbytes for item in items]
        items.clear()
        return self.keeps


class Noted(WarnOnce):
    """Keeps the first problem, and warns of none."""

    def warn(self) -> None:
        pass


@dataclass
class Queue:
    """A queue for 100 bytes, which is written only where there is no room or somebody asks."""

    disk: Disk
    thread: WriterThread
    queue: WriteQueue[Item]
    problems: WarnOnce

    def put(self, *sizes: int) -> list[bool]:
        """Return whether there was room for each."""
        return [self.queue.put(Item(size)) for size in sizes]

    def write(self) -> None:
        """Write what waits, and return when that is done."""
        self.disk.gate.set()
        self.thread.call(self.queue.drain)
        self.disk.gate.clear()


@pytest.fixture
def queue(waited: list[float]) -> Iterator[Queue]:
    disk, thread, problems = Disk(), WriterThread(), Noted("{}")
    limits = QueueLimits(seconds=LONG, size=10**9, limit=100, patience=7.0)
    made = Queue(disk, thread, WriteQueue(thread, disk.write, disk.give_up, limits, problems, "no room"), problems)
    yield made
    disk.gate.set()
    thread.stop()


def test_a_hundred_steps_at_a_disk_that_hangs_are_waited_for_once(
    tmp_path: Path, waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once more when the disk has written, and hangs again."""
    gate, publish = threading.Event(), disk_writer.publish

    def stuck(*args: Any, **how: Any) -> Path:
        assert gate.wait(60)
        return publish(*args, **how)

    monkeypatch.setattr(disk_writer, "publish", stuck)
    layout = Layout([f"layers.{number}:output" for number in range(50)])
    flushing = Flushing(seconds=LONG, first=LONG, limit=60_000, patience=1_000)
    rounds = []
    with start_run(tmp_path / "run", flushing=flushing) as writer:
        with pytest.warns(ObservationWarning, match="did not keep up for 1000 seconds"):
            for first in (0, 100):
                for step in range(first, first + 100):
                    writer.append("moments", layout, {"rms": np.ones(50)}, step=step)
                rounds.append(list(waited))
                gate.set()
                writer.flush()
                gate.clear()
        gate.set()
    assert rounds == [[1_000], [1_000, 1_000]]
    steps = open_run(tmp_path / "run").series("layers.7", "rms")[0]
    assert 0 < len(steps) < 200
    assert writer.lost == 50 * (200 - len(steps))


def test_what_fills_the_queue_to_its_limit_has_room_and_one_byte_more_has_none(queue: Queue, waited: list[float]) -> None:
    assert queue.put(60, 40) == [True, True]
    assert waited == []
    assert queue.put(1) == [False]
    assert waited == [7.0]
    assert queue.queue.nbytes == 100


def test_what_is_being_written_takes_room_until_it_is(queue: Queue) -> None:
    assert queue.put(60, 60) == [True, False]  # for the second the thread begins to write
    assert queue.disk.reached.wait(60)
    assert queue.put(50, 40) == [False, True]
    queue.write()
    assert queue.put(100) == [True]
    assert queue.disk.written == [60, 40]


def test_after_waiting_in_vain_all_that_has_no_room_is_refused_at_once(queue: Queue, waited: list[float]) -> None:
    """What is small enough is taken still, and the problem is noted."""
    assert queue.put(90, 20, 20, 20, 10) == [True, False, False, False, True]
    assert waited == [7.0]
    assert queue.problems.problem == "no room"


def test_when_something_is_written_again_it_is_waited_for_again(queue: Queue, waited: list[float]) -> None:
    queue.put(90, 20, 20)
    queue.write()
    assert queue.disk.written == [90]
    assert queue.put(90, 20, 20) == [True, False, False]
    assert waited == [7.0, 7.0]


def test_an_item_larger_than_the_limit_is_taken_where_nothing_waits(queue: Queue, waited: list[float]) -> None:
    assert queue.put(1_000, 1) == [True, False]
    queue.write()
    assert queue.put(1) == [True]
    assert (queue.disk.written, len(waited)) == ([1_000], 1)


def test_while_writing_fails_nobody_waits(queue: Queue, waited: list[float]) -> None:
    """What could not be written counts as waiting; what fits beside it is taken."""
    queue.disk.keeps = 90
    queue.put(90)
    queue.write()
    assert queue.queue.nbytes == 90
    assert queue.put(20, 10) == [False, True]
    assert waited == []
    queue.disk.keeps = 0
    queue.write()
    assert queue.put(100) == [True]


@pytest.fixture
def picking(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """The queue with a disk that raises for some items, without pauses between tries."""
    monkeypatch.setattr(writer_thread, "_PAUSES", (0.0,) * 4)
    monkeypatch.setattr(queue.queue, "_write", queue.disk.pick)
    queue.disk.gate.set()
    return queue


def test_what_raises_once_is_written_in_order(picking: Queue) -> None:
    """Whatever the error is; nothing comes twice, and nothing is said."""
    disk, pick = picking.disk, picking.disk.pick

    def once(items: deque[Item]) -> int:
        picking.queue._write = pick
        disk.written.append(items.popleft().nbytes)
        raise MemoryError

    picking.queue._write = once
    picking.put(10, 20, 30)
    picking.write()
    assert (disk.written, disk.given_up, picking.problems.problem) == ([10, 20, 30], [], "")


def test_one_item_that_always_raises_is_given_up_and_holds_up_none(picking: Queue) -> None:
    picking.disk.lost = [20]
    picking.put(10, 20, 30, 40)
    picking.queue._urgent = True
    with picking.thread.changed:
        picking.thread.wake()
        picking.thread.changed.wait_for(lambda: picking.queue.nbytes == 0)
    assert (picking.disk.written, picking.disk.given_up) == ([10, 30, 40], [20])
    assert picking.disk.tries == [[10, 20, 30, 40], [20, 30, 40], *[[20]] * 5, [30], [40]]
    assert picking.put(100) == [True]


def test_what_raises_keeps_its_room_and_is_waited_for_once(
    picking: Queue, waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it can be written it is, before what came later."""
    monkeypatch.setattr(writer_thread, "_PAUSES", (LONG,) * 4)
    picking.disk.lost = [60]
    picking.put(60)
    picking.write()
    assert picking.disk.tries == [[60]] * 3
    assert picking.put(50, 50, 30) == [False, False, True]
    assert waited == [7.0]
    picking.disk.lost = []
    picking.write()
    assert (picking.disk.written, picking.disk.given_up) == ([60, 30], [])


def test_at_the_end_what_cannot_be_written_is_given_up(picking: Queue) -> None:
    picking.disk.lost = [10, 30]
    picking.put(10, 20, 30)
    picking.thread.stop()
    assert (picking.disk.written, picking.disk.given_up) == ([20], [10, 30])


def test_a_request_that_raises_does_not_end_the_thread(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    queue.thread.ask(lambda: {}[0])
    queue.put(10)
    queue.write()
    assert (queue.disk.written, [each.exc_type for each in raised]) == ([10], [KeyError])


def test_after_the_end_of_the_thread_there_is_no_room(queue: Queue) -> None:
    queue.disk.gate.set()
    assert queue.put(10) == [True]
    queue.thread.stop()
    assert queue.disk.written == [10]
    assert queue.put(10) == [False]
