"""The thread that finishes rows into numbers and hands them to the sinks, so that the training waits for neither."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller

import numpy as np
import numpy.typing as npt

from sonde.errors import ObservationWarning
from sonde.inspector.closing import Findings
from sonde.inspector.measuring import Rowed
from sonde.inspector.norms import Norms
from sonde.inspector.packed import Packet
from sonde.inspector.sink import Rows, Scalar, Sink

__all__ = ["Batch", "Part", "Writing"]

_WAITING = 64  # batches that may wait; beyond it the training waits for the thread
_PATIENCE = 10.0  # seconds that it does


@dataclass(frozen=True)
class Part:
    """The rows of one measuring in a batch.

    Attributes:
        rowed: which row is of which site.
        blocks: where they are in the packet.
        epoch, step, micro_step: when.
        scales: by port, where in the packet the scale is that its gradients are under.
        norms: the ports whose norms over all parameters come from these rows.
        hidden: they are for these norms alone.
    """

    rowed: Rowed
    blocks: slice
    epoch: int
    step: int
    micro_step: int = 0
    scales: Mapping[str, int] = field(default_factory=dict)
    norms: frozenset[str] = frozenset()
    hidden: bool = False


@dataclass(frozen=True)
class Later:
    """A scalar whose sum is in the packet."""

    name: str
    epoch: int
    step: int
    place: int
    count: int

    def read(self, arrays: Sequence[npt.NDArray[np.float64]]) -> Scalar:
        """The mean, now that the packet is there."""
        return Scalar(self.name, float(arrays[self.place]) / self.count, self.epoch, self.step)


@dataclass(frozen=True)
class Batch:
    """All that one moment has to write."""

    packet: Packet
    parts: Sequence[Part] = ()
    scalars: Sequence[Scalar | Later] = ()


class Writing:
    """Takes batches and writes them to the sinks, in a thread of its own.

    Attributes:
        findings: what is remembered for the last lines.
        lost: batches that could not be kept.
        has_written: some batch with rows is with the sinks.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)
        self._queue: queue.Queue[Batch | Callable[[], None] | None] = queue.Queue(_WAITING)
        self._said = False
        self._trouble = ""
        self._impatient = False
        self._norms = Norms()
        self._counted: dict[int, tuple[Rowed, npt.NDArray[np.float64]]] = {}
        self.findings = Findings()
        self.lost = 0
        self.has_written = False
        self._thread = threading.Thread(target=self._loop, name="sonde inspector", daemon=True)
        self._thread.start()

    def seen(self) -> dict[tuple[str, str], int]:
        """By family and site, how often something was added in all that was put before."""
        self._wait(lambda: None)
        found: dict[tuple[str, str], int] = {}
        for rowed, counts in self._counted.values():
            for site, count in zip(rowed.layout.site, counts.tolist(), strict=True):
                found[rowed.family, site] = found.get((rowed.family, site), 0) + int(count)
        return found

    def put(self, batch: Batch) -> None:
        """Have *batch* written. If the sinks do not keep up for ten seconds, batches are lost, with one warning."""
        try:
            self._queue.put(batch, timeout=0.0 if self._impatient else _PATIENCE)
            self._impatient = False
        except queue.Full:
            self._impatient = True
            self.lost += 1
            self._note("the sinks do not keep up; steps are lost")
        self.say()

    def flush(self) -> None:
        """Return when everything put so far is with the sinks, and the norms of the last step with it."""
        self._wait(lambda: self._give(self._norms.take()))
        self.say()

    def _wait(self, last: Callable[[], None]) -> None:
        """Return when everything put so far was written, and *last* was called there."""
        done = threading.Event()

        def call() -> None:
            try:
                last()
            finally:
                done.set()

        self._queue.put(call)
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    def stop(self) -> None:
        """Write what is left, close the sinks, and end the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self.say()

    def say(self) -> None:
        """Warn of what went wrong in the thread, once."""
        if self._trouble and not self._said:
            self._said = True
            warnings.warn(f"{self._trouble}. The training goes on", ObservationWarning, stacklevel=5)

    def _note(self, trouble: str) -> None:
        self._trouble = self._trouble or trouble

    # The thread

    def _loop(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                break
            try:
                self._write(item) if isinstance(item, Batch) else item()
            except Exception as error:
                self._note(f"a logged step could not be written: {type(error).__name__}: {error}")
        self._give(self._norms.take())
        self._each(methodcaller("close"))

    def _write(self, batch: Batch) -> None:
        arrays = batch.packet.unpack()
        for part in batch.parts:
            self._give(self._norms.begin(part))
            try:
                rows = _finished(part, arrays)
            except Exception as error:  # a statistic's: the other families of this step are written
                self._note(f"{part.rowed.statistic!r} of {part.rowed.family} raised {type(error).__name__}: {error}")
                continue
            if rows is None:
                continue
            self._norms.add(part, rows)
            if part.hidden:
                continue
            self._count(part.rowed, rows)
            self.findings.look(rows, part.rowed)
            self._each(methodcaller("write", rows))
            self.has_written = True
        self._give([each if isinstance(each, Scalar) else each.read(arrays) for each in batch.scalars])

    def _count(self, rowed: Rowed, rows: Rows) -> None:
        _, counts = self._counted.setdefault(id(rowed), (rowed, np.zeros(len(rowed.layout))))
        counts[rows.rows] += rows.counts

    def _give(self, scalars: Sequence[Scalar]) -> None:
        for scalar in scalars:
            self.findings.look_at_scalar(scalar)
            self._each(methodcaller("scalar", scalar))

    def _each(self, call: Callable[[Sink], None]) -> None:
        """Call every sink; one that raises is not called again."""
        for sink in tuple(self._sinks):
            try:
                call(sink)
            except Exception as error:
                self._sinks.remove(sink)
                self._note(f"{type(sink).__name__} raised {type(error).__name__}: {error}; nothing more is written to it")


def _finished(part: Part, arrays: list[npt.NDArray[np.float64]]) -> Rows | None:
    seen, counts, numbers = part.rowed.finish(arrays[part.blocks])
    if not len(seen):
        return None
    for port, place in part.scales.items():
        scale = float(arrays[place])
        under = np.array([part.rowed.ports[row] == port for row in seen])
        for name in part.rowed.linear:
            if name in numbers:
                numbers[name] = np.where(under, numbers[name] / scale, numbers[name])
    return Rows(part.rowed.family, part.rowed.layout, seen, part.epoch, part.step, part.micro_step, counts, numbers)
