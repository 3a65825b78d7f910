"""The thread that finishes rows into numbers and hands them to the sinks, so that the training waits for neither."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller

import numpy as np
import numpy.typing as npt

from sonde.errors import ObservationWarning
from sonde.inspector.measurement.measurement import RowIndex
from sonde.inspector.pipeline.findings import Findings
from sonde.inspector.pipeline.finishing import Finished, Finishing, Unpacked
from sonde.inspector.pipeline.waiting import BatchQueue, Request
from sonde.inspector.sinks.base import Scalar, Sink
from sonde.stats.host_copy import HostCopy

__all__ = ["Batch", "Part", "Writing"]

_WAITING = 64  # batches that may wait; beyond it the training waits for the thread
_SMALL = 256  # so many may wait while they are small: while they hold no more than a piece
_PATIENCE = 10.0  # seconds that it does
_PIECE = 4 << 20  # bytes of rows that are finished at once
_SPELL = 0.5  # seconds that one piece may take: room is made after each, so slow sinks are given little at a time


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

    rowed: RowIndex
    blocks: slice
    epoch: int
    step: int
    micro_step: int = 0
    scales: Mapping[str, int] = field(default_factory=dict)
    norms: frozenset[str] = frozenset()
    hidden: bool = False


@dataclass(frozen=True)
class DeviceScalar:
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

    packet: HostCopy
    parts: Sequence[Part] = ()
    scalars: Sequence[Scalar | DeviceScalar] = ()


class Writing:
    """Takes batches and writes them to the sinks, in a thread of its own.

    Attributes:
        findings: what is remembered for the last lines.
        lost: batches that could not be kept.
        has_written: some batch with rows is with the sinks.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)
        self._waiting: BatchQueue[Batch] = BatchQueue(_WAITING)
        self._said = False
        self._trouble = ""
        self._impatient = False
        self._finishing = Finishing(self._failed)
        self._counted: dict[RowIndex, npt.NDArray[np.float64]] = {}
        self._at_once = 1  # batches to a piece; the first one shows how long they take
        self._process = os.getpid()
        self.findings = Findings()
        self.lost = 0
        self.has_written = False
        self._thread = threading.Thread(target=self._loop, name="sonde inspector", daemon=True)
        self._thread.start()

    def seen(self) -> dict[tuple[str, str], int]:
        """By family and site, how often something was added in all that was put before."""
        self._wait(lambda: None)
        found: dict[tuple[str, str], int] = {}
        for rowed, counts in self._counted.items():
            for site, count in zip(rowed.layout.site, counts.tolist(), strict=True):
                found[rowed.family, site] = found.get((rowed.family, site), 0) + int(count)
        return found

    def put(self, batch: Batch) -> None:
        """Have *batch* written soon. If the sinks do not keep up for ten seconds, batches are lost, with one warning."""
        if os.getpid() != self._process:
            self.lost += 1
            self._note("this process was forked from the one that writes; its steps are lost")
        elif self._waiting.put(batch, 0.0 if self._impatient else _PATIENCE):
            self._impatient = False
        else:
            self._impatient = True
            self.lost += 1
            self._note("the sinks do not keep up; steps are lost")
        self.say()

    def flush(self) -> None:
        """Return when everything put so far is with the sinks, and the norms of the last step with it."""
        self._wait(lambda: self._give(self._finishing.rest()))
        self.say()

    def _wait(self, last: Request) -> None:
        """Return when everything put so far was written, and *last* was called there."""
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return  # it has ended, or stayed behind in another process; or it is collecting garbage, an inspector among it
        done = threading.Event()

        def call() -> None:
            try:
                last()
            finally:
                done.set()

        self._waiting.ask(call)
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    def stop(self) -> None:
        """Write what is left, close the sinks, and end the thread."""
        if self._thread.is_alive():
            self._waiting.close()
            if threading.current_thread() is not self._thread:
                self._thread.join()
        self.say()

    def say(self) -> None:
        """Warn of what went wrong in the thread, once."""
        if self._trouble and not self._said:
            self._said = True
            warnings.warn(f"{self._trouble}. The training goes on", ObservationWarning, stacklevel=5)

    def _note(self, trouble: str) -> None:
        self._trouble = self._trouble or trouble

    def _failed(self, rowed: RowIndex, error: Exception) -> None:
        self._note(f"{rowed.statistic!r} of {rowed.family} raised {type(error).__name__}: {error}")

    # The thread

    def _loop(self) -> None:
        while True:
            batches, request = self._waiting.take()
            if not batches and request is None:
                break
            while batches:
                self._write_some(batches)
            if request is not None:
                self._try(request)
        self._try(lambda: self._give(self._finishing.rest()))
        self._each(methodcaller("close"))

    def _write_some(self, batches: deque[Batch]) -> None:
        """Write the first of *batches*: as many as are not too much memory or time at once."""
        start, taken, size = time.monotonic(), 0, 0
        piece: list[Unpacked] = []
        while batches and taken < self._at_once and size < _PIECE:
            taken += 1
            unpacked = self._unpacked(batches.popleft())
            if unpacked is not None:
                piece.append(unpacked)
                size += sum(array.nbytes for array in unpacked[1])
        self._try(partial(self._write, piece))
        self._waiting.most = min(max(_WAITING, _PIECE * taken // max(size, 1)), _SMALL)
        self._waiting.done(taken)
        self._at_once = max(1, int(_SPELL * taken / max(time.monotonic() - start, 1e-9)))

    def _unpacked(self, batch: Batch) -> Unpacked | None:
        try:
            return batch, batch.packet.unpack()
        except Exception as error:
            self._not_written(error)
            return None

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self._not_written(error)

    def _not_written(self, error: Exception) -> None:
        self._note(f"a logged step could not be written: {type(error).__name__}: {error}")

    def _write(self, piece: Sequence[Unpacked]) -> None:
        finished = self._finishing.finish(piece)
        self._give(finished)
        self.has_written = self.has_written or bool(finished.rowed)

    def _give(self, finished: Finished) -> None:
        entries = finished.entries
        for rowed, stretch in zip(finished.rowed, entries.stretches, strict=True):
            counts = self._counted.setdefault(rowed, np.zeros(len(rowed.layout)))
            counts += np.bincount(stretch.rows, stretch.counts, len(rowed.layout))
            self.findings.look(rowed, stretch)
        self.findings.look_for_defects(entries)
        if entries.sequence:
            self._each(methodcaller("write_all", entries))

    def _each(self, call: Callable[[Sink], None]) -> None:
        """Call every sink; one that raises is not called again."""
        for sink in tuple(self._sinks):
            try:
                call(sink)
            except Exception as error:
                self._sinks.remove(sink)
                self._note(f"{type(sink).__name__} raised {type(error).__name__}: {error}; nothing more is written to it")
