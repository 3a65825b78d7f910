"""The writer thread gives every row to every sink, in order; it wakes seldom, waits for slow sinks, and loses nothing silently."""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.inspector.pipeline.batches import NORMS, Fussy, batch_of, moments_of, one_by_one, plain, random_training, rowed

from sonde.errors import ObservationWarning
from sonde.inspector.measurement.row_index import RowIndex
from sonde.inspector.pipeline import batch_writer, finishing
from sonde.inspector.pipeline.batch import Batch, PendingScalar, RawRows
from sonde.inspector.pipeline.batch_writer import LIMITS, BatchWriter
from sonde.inspector.ranks import Participation
from sonde.inspector.sinks import memory
from sonde.inspector.sinks.base import LoggedRows, RunSink, Sink
from sonde.rows import Layout, Rows, Scalar, Scope
from sonde.rules import LayerFindings
from sonde.run import Findings
from sonde.run.run import open_run
from sonde.run.store import writer_thread
from sonde.run.store.memory_writer import MemoryWriter, memory_run
from sonde.run.store.open import start_run
from sonde.stats import Moments
from sonde.stats.host_copy import HostCopy
from sonde.stats.statistic import Column

PATIENT = replace(LIMITS, seconds=1_000.0, first=1_000.0)
"""Nothing is written because time has passed."""


class Kept(Sink):
    """Keeps what it is given, and how much came at once."""

    def __init__(self) -> None:
        self.entries: list[Rows | Scalar] = []
        self.pieces: list[int] = []
        self.closed = 0
        self.came = threading.Event()

    def write_all(self, entries: LoggedRows) -> None:
        self.pieces.append(sum(len(block) for block in entries.blocks))
        super().write_all(entries)
        self.came.set()

    def write(self, rows: Rows) -> None:
        self.entries.append(rows)

    def scalar(self, scalar: Scalar) -> None:
        self.entries.append(scalar)

    def close(self) -> None:
        self.closed += 1

    @property
    def steps(self) -> list[int]:
        return [entry.step for entry in self.entries if isinstance(entry, Rows)]


class Single(Kept):
    """Is given one entry at a time."""

    write_all = Sink.write_all


class Failing(Kept):
    """Raises at its third rows."""

    def write(self, rows: Rows) -> None:
        if len(self.steps) == 2:
            raise OSError("no room")
        super().write(rows)


class Gated(Kept):
    """Waits at a gate, and says when it does."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.waits = threading.Event()

    def write(self, rows: Rows) -> None:
        self.waits.set()
        assert self.gate.wait(30)
        super().write(rows)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "this never became true"
        time.sleep(0.001)


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sonde writer"]


# What sinks are given


@pytest.mark.parametrize(("seed", "scope"), [(0, "global"), (1, "global"), (2, "global"), (2, "rank")])
def test_sinks_and_runs_get_every_row(seed: int, scope: Scope) -> None:
    """A sink of one moment at a time, and a run, through the thread; a run written one moment at a time is the same.

    A rank that joins no others takes the same way, and several moments at once.
    """
    batches = random_training(seed)
    expected = list(one_by_one(batches))
    kept, run, copied = Kept(), memory(), memory()
    writer = BatchWriter([kept, run], PATIENT, part=Participation(scope=scope))
    for batch in batches:
        writer.put(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ObservationWarning)  # of the statistic that fails
        writer.stop()
    assert [plain(entry, digits=13) for entry in kept.entries] == [plain(entry, digits=13) for entry in expected]
    for entry in kept.entries:
        copied.write(entry) if isinstance(entry, Rows) else copied.scalar(entry)
    assert run.run().families == copied.run().families
    for family in run.run().families:
        found, once = (sorted(map(str, each.run().table(family).to_pylist())) for each in (run, copied))  # as text, NaN is NaN
        assert found == once
    assert max(kept.pieces) > max(len(batch.rows) for batch in batches)
    assert {entry.scope for entry in kept.entries if isinstance(entry, Scalar) and "norm" in entry.name} == {scope}
    norms, values = run.run().scalar("grad_norm")
    given = [entry for entry in kept.entries if isinstance(entry, Scalar) and entry.name == "grad_norm"]
    assert norms.tolist() == [entry.step for entry in given]
    assert str(values.tolist()) == str([entry.value for entry in given])


def test_a_sink_that_keeps_raising_is_not_called_again_but_closed() -> None:
    """It had what came before; the others get everything, and there is one warning."""
    failing, kept = Failing(), Kept()
    writer = BatchWriter([failing, kept], PATIENT)
    for batch in moments_of([[1.0, 1.0]] * 6):
        writer.put(batch)
    with pytest.warns(ObservationWarning, match="Failing raised OSError: no room; nothing more is written to it") as said:
        writer.stop()
    assert len(said) == 1
    assert [str(error) for error in writer.errors] == ["Failing at None: OSError: no room"]
    assert failing.steps == [0, 1]
    assert failing.closed == 1
    assert kept.steps == [0, 1, 2, 3, 4, 5]
    assert kept.closed == 1


def once(broken: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the second call of *name* raise before it does anything; return the names of those that have raised."""
    method, raised, calls = getattr(broken, name), list[str](), [0]

    def raising(*given: Any, **how: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raised.append(name)
            raise SystemError("bad argument to internal function")
        return method(*given, **how)

    monkeypatch.setattr(broken, name, raising)
    return raised


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (HostCopy, "unpack"),
        (finishing, "_finished"),
        (finishing, "_squares"),
        (LoggedRows, "add_moment"),
        (LoggedRows, "add_scalars"),
        (PendingScalar, "read"),
        (RowIndex, "finish"),
        (Findings, "_feed"),
        (Kept, "write"),
        (Kept, "scalar"),
        (RunSink, "calls_for"),
        (MemoryWriter, "write"),
        (MemoryWriter, "scalars"),
        (Rows, "of"),
    ],
)
def test_whatever_raises_once_costs_no_row_and_doubles_none(broken: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no norm, and no finding."""
    expected = undisturbed()
    raised = once(broken, name, monkeypatch)
    assert written() == expected
    assert raised == [name]


def written() -> tuple[Any, ...]:
    """Return all that is written of a training."""
    kept, run = Single(), memory()
    writer = BatchWriter([kept, run], PATIENT)
    for each in random_training(3):
        writer.put(replace(each, rows=[raw for raw in each.rows if raw.index.family != "fussy"]))
    writer.flush()
    writer.stop()
    rows = [plain(entry, digits=13) for entry in kept.entries]
    tables = {family: sorted(map(str, run.run().table(family).to_pylist())) for family in run.run().families}
    return rows, tables, run.run().findings, writer.lost, writer.errors, run.writer.lost


@cache
def undisturbed() -> tuple[Any, ...]:
    """Return the same, where nothing raises."""
    return written()


def test_rows_that_a_run_does_not_take_are_counted_and_the_run_goes_on() -> None:
    """In the run itself, too, and in one warning."""
    run = memory()
    run.writer.append("moments", Layout(["a:output"]), {"sum": ["a text"]}, step=0)  # so that no number can be written there
    of = rowed("moments", Fussy(), ["a:output"])
    others = rowed("others", Fussy(), ["a:output"])
    writer = BatchWriter([run], PATIENT)
    for step in range(5):
        writer.put(batch_of(of, step, [1.0]))
        writer.put(batch_of(others, step, [1.0]))
    with pytest.warns(ObservationWarning, match="RunSink raised ArgumentError: .*; [1-5] rows? could not be written") as said:
        writer.stop()
    assert len(said) == 1
    assert run.run().series("a:output", "sum", family="others")[0].tolist() == list(range(5))
    assert (run.writer.lost, run.run().description.attempts[0].lost, writer.lost) == (5, 5, 0)
    assert run.run().record.lost_rows == 5


def test_a_rule_that_raises_loses_no_rows() -> None:
    """With one warning; the error is kept once."""
    kept = Kept()
    writer = BatchWriter([kept], PATIENT)

    def broken(blocks: object, scalars: object) -> None:
        raise ZeroDivisionError("no rule")

    writer.findings.judge = broken  # type: ignore[assignment, method-assign]
    with pytest.warns(ObservationWarning, match="the rules raised ZeroDivisionError: no rule; rows are written") as caught:
        for batch in moments_of([[1.0, 1.0]] * 3):
            writer.put(batch)
            writer.flush()
        writer.stop()
    assert kept.steps == [0, 1, 2]
    assert (len(caught), len(writer.errors), writer.lost) == (1, 1, 0)


def test_a_rule_that_raises_once_leaves_the_rules_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows, of one step, are said not to be judged; later ones are."""
    once(LayerFindings, "add", monkeypatch)
    writer = BatchWriter([memory()], PATIENT)
    with pytest.warns(ObservationWarning, match="the rules raised SystemError"):
        for batch in moments_of([[1.0, 1.0]] * 4):
            writer.put(batch)
            writer.flush()
        writer.stop()
    record = writer.record()
    assert (record.steps, record.findings) == (4, [])
    assert "some rows were not judged" in record.failed


def test_a_run_sink_that_looks_at_each_moment_is_given_each() -> None:
    """A subclass that overrides ``write`` need not know of more."""

    class Doubled(RunSink):
        def write(self, rows: Rows) -> None:
            super().write(rows)
            self.writer.scalar("rows", len(rows.rows), step=rows.step)

    sink = Doubled(memory_run())
    writer = BatchWriter([sink], PATIENT)
    for batch in moments_of([[1.0, 1.0]] * 3):
        writer.put(batch)
    writer.stop()
    assert sink.run().scalar("rows")[1].tolist() == [2.0, 2.0, 2.0]
    assert sink.run().series("a:output", "count")[0].tolist() == [0, 1, 2]


def test_numbers_for_other_rows_are_the_statistics_fault() -> None:
    """Its rows alone are left out; the sink goes on."""

    class Short(Fussy):
        def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
            return {"sum": np.zeros(len(columns["sum"]) + 1)}

    run = memory()
    writer = BatchWriter([run], PATIENT)
    of = rowed("short", Short(), ["a:output", "b:output"])
    for short, batch in zip([batch_of(of, step, [1.0, 1.0]) for step in range(3)], moments_of([[1.0, 1.0]] * 3), strict=True):
        writer.put(short)
        writer.put(batch)
    with pytest.warns(ObservationWarning, match=r"Short\(\) of short raised ArgumentError: 'sum' has the shape"):
        writer.stop()
    assert run.run().families == ("moments",)
    assert run.run().series("w:grad", "count")[0].tolist() == [0, 1, 2]


class Broken(HostCopy):
    """Never arrives."""

    def __init__(self) -> None:
        pass

    def unpack(self) -> Any:
        raise RuntimeError("the device is lost")


def test_a_batch_that_does_not_arrive_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are written, there is one warning, and its room is free again."""
    monkeypatch.setattr(writer_thread, "_PAUSES", (0.0,) * 4)
    kept = Kept()
    writer = BatchWriter([kept], replace(PATIENT, limit=10_000, patience=30.0))
    batches = moments_of([[1.0, 1.0]] * 5)
    batches[2] = Batch(Broken(), batches[2].rows, nbytes=10_000)
    with pytest.warns(ObservationWarning, match="a logged step could not be written: RuntimeError: the device is lost"):
        for batch in batches:
            writer.put(batch)
        writer.stop()
    assert kept.steps == [0, 1, 3, 4]
    assert (writer.lost, len(writer.errors)) == (1, 1)


def test_a_flush_is_whole_and_what_was_seen_is_counted() -> None:
    """Rows, and the norms of a step after which nothing more comes; asked again, nothing comes twice."""
    of = rowed("moments", Moments(), ["w:grad", "v:grad"])
    batches = [batch_of(of, step, [3.0, 4.0]) for step in range(3)]
    batches = [Batch(each.copy, [RawRows(of, slice(0, 1), 0, step, norms=NORMS)]) for step, each in enumerate(batches)]
    batches[1].copy.unpack()[0][of.index[0], 0] = 5  # of five calls
    kept = Kept()
    writer = BatchWriter([kept], PATIENT)
    assert not writer.has_written
    for batch in batches:
        writer.put(batch)
    assert writer.seen() == {("moments", "w:grad"): 7, ("moments", "v:grad"): 3}
    assert writer.has_written
    assert kept.steps == [0, 1, 2]
    assert [entry.step for entry in kept.entries if isinstance(entry, Scalar)] == [0, 1]
    writer.flush()
    writer.flush()
    scalars = [(entry.name, entry.step, entry.value) for entry in kept.entries if isinstance(entry, Scalar)]
    assert scalars == [("grad_norm", step, pytest.approx(math.sqrt(9 + 1 + 16 + 1))) for step in range(3)]
    writer.stop()
    writer.stop()
    writer.flush()
    assert kept.closed == 1
    assert writer.seen() == {("moments", "w:grad"): 7, ("moments", "v:grad"): 3}


def test_stop_writes_what_waits_and_calls_what_comes_last() -> None:
    """The norms of the last step, then the last call, and then the sinks are closed."""
    of = rowed("moments", Moments(), ["w:grad"])
    kept = Kept()
    writer = BatchWriter([kept], PATIENT)
    writer.put(Batch(batch_of(of, 7, [3.0]).copy, [RawRows(of, slice(0, 1), 0, 7, norms=NORMS)]))
    last: list[tuple[int, int]] = []
    writer.stop(lambda: last.append((len(kept.entries), kept.closed)))
    assert [type(entry) for entry in kept.entries] == [Rows, Scalar]
    assert last == [(2, 0)]
    assert kept.closed == 1


def test_stop_may_come_from_anywhere() -> None:
    """Garbage collection may find a forgotten inspector in the writer thread, in the middle of a piece, or within ``put``."""

    class Stopping(Kept):
        def write(self, rows: Rows) -> None:
            super().write(rows)
            writer.stop()

    sink = Stopping()
    writer = BatchWriter([sink], PATIENT)
    for batch in moments_of([[1.0, 1.0]] * 3):
        writer.put(batch)
    writer.flush()
    until(lambda: sink.closed)
    assert (sink.steps, sink.closed) == ([0, 1, 2], 1)

    class Sized(Batch):
        @property
        def nbytes(self) -> int:  # type: ignore[override]  # asked for while the queue is locked
            writer.stop()
            return 1

    kept = Kept()
    writer = BatchWriter([kept], PATIENT)
    first, second = moments_of([[1.0, 1.0]] * 2)
    writer.put(first)
    sized = object.__new__(Sized)
    sized.__dict__.update(copy=second.copy, rows=second.rows, scalars=())
    writer.put(sized)
    assert (kept.steps, kept.closed) == ([0], 1)
    assert writer.lost == 1


# One thread


def test_an_inspector_and_its_run_share_one_thread(tmp_path: Any) -> None:
    """It ends when the run is closed; a run that belongs to somebody else goes on, with its thread."""
    before = len(writers())
    sink = RunSink(start_run(tmp_path / "own"))
    writer = BatchWriter([sink, Kept()])
    assert len(writers()) == before + 1
    writer.put(moments_of([[1.0, 1.0]])[0])
    writer.stop()
    assert len(writers()) == before
    with start_run(tmp_path / "given") as run:
        writer = BatchWriter([RunSink(run, owned=False)])
        for batch in moments_of([[1.0, 1.0]] * 2):
            writer.put(batch)
        writer.stop()
        assert open_run(tmp_path / "given").series("a", "count")[0].tolist() == [0, 1]
        run.scalar("loss", 1.0, step=2)
        assert len(writers()) == before + 1
    assert open_run(tmp_path / "given").scalar("loss")[0].tolist() == [2]
    assert len(writers()) == before


def test_the_thread_does_not_wake_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until enough waits, or somebody asks, nothing is finished; then all of it is, the first alone to see how long one takes."""
    monkeypatch.setattr(batch_writer, "_SPELL", 1e6)  # seconds, so that no batch takes too long for all that wait to be one piece
    kept = Kept()
    batches = moments_of([[1.0, 1.0]] * 100)
    writer = BatchWriter([kept], replace(PATIENT, size=32 * batches[0].nbytes))
    for batch in batches[:31]:
        writer.put(batch)
    time.sleep(0.05)
    assert not kept.steps
    writer.put(batches[31])
    until(lambda: len(kept.steps) == 32)
    assert kept.pieces == [1, 31]
    for batch in batches[32:50]:
        writer.put(batch)
    time.sleep(0.05)
    assert len(kept.steps) == 32
    writer.flush()
    assert kept.steps == list(range(50))
    assert len(kept.pieces) == 3
    for batch in batches[50:60]:
        writer.put(batch)
    writer.stop()
    assert kept.steps == list(range(60))


def test_batches_are_written_though_nobody_asks() -> None:
    """Soon after each comes, also after a quiet time."""
    kept = Kept()
    writer = BatchWriter([kept], replace(LIMITS, seconds=0.001))
    for number, batch in enumerate(moments_of([[1.0, 1.0]] * 3)):
        writer.put(batch)
        until(lambda number=number: len(kept.steps) == number + 1)  # type: ignore[misc]
        time.sleep(0.01)
    writer.stop()


# Slow sinks


def test_what_does_not_fit_is_lost_and_counted() -> None:
    """The training waits once, and is warned once; when the sink goes on, it waits again where it must, and loses nothing."""
    sink = Gated()
    batches = moments_of([[1.0, 1.0]] * 20)
    size = batches[0].nbytes
    writer = BatchWriter([sink], replace(LIMITS, seconds=0.001, limit=4 * size, patience=0.05))
    with pytest.warns(ObservationWarning, match="the sinks do not keep up; steps are lost. The training goes on") as said:
        for batch in batches[:10]:
            writer.put(batch)
    assert len(said) == 1
    assert writer.lost == 6
    sink.gate.set()
    writer.flush()
    for batch in batches[10:]:
        writer.put(batch)
        writer.flush()
    writer.stop()
    assert sink.steps == [0, 1, 2, 3, *range(10, 20)]
    assert writer.lost == 6


def test_the_training_waits_for_a_sink_that_is_slow() -> None:
    """And loses nothing."""
    sink = Gated()
    batches = moments_of([[1.0, 1.0]] * 20)
    writer = BatchWriter([sink], replace(LIMITS, seconds=0.001, limit=2 * batches[0].nbytes, patience=30.0))
    done = 0

    def put() -> None:
        nonlocal done
        for batch in batches:
            writer.put(batch)
            done += 1

    training = threading.Thread(target=put)
    training.start()
    assert sink.waits.wait(30)
    until(lambda: done == 2)
    time.sleep(0.05)
    assert (done, training.is_alive()) == (2, True)
    sink.gate.set()
    training.join(30)
    writer.stop()
    assert sink.steps == list(range(20))
    assert writer.lost == 0


def test_a_slow_sink_is_given_little_at_a_time() -> None:
    """Room is made after each piece, so none may take much longer than half a second, whatever waits."""

    class Slow(Kept):
        def write(self, rows: Rows) -> None:
            super().write(rows)
            time.sleep(0.3)

    sink = Slow()
    writer = BatchWriter([sink], PATIENT)
    for batch in moments_of([[1.0, 1.0]] * 5):
        writer.put(batch)
    writer.stop()
    assert sink.pieces == [1] * 5


def test_little_memory_is_finished_at_once() -> None:
    """However many batches wait."""
    sink = Kept()
    writer = BatchWriter([sink], PATIENT)
    for batch in moments_of([[1.0, 1.0]] * 12):
        writer.put(replace(batch, nbytes=1 << 20))
    writer.stop()
    assert max(sink.pieces) == 4
    assert sum(sink.pieces) == 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_writes_nothing_and_says_so() -> None:
    """The thread stayed with the parent; nothing in the child waits for it."""
    kept = Kept()
    writer = BatchWriter([kept], PATIENT)
    first, second = moments_of([[1.0, 1.0]] * 2)
    writer.put(first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 on: of threads and fork
        child = os.fork()
    if not child:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            writer.put(second)
            writer.put(second)
            writer.flush()
            writer.stop()
        told = [str(each.message) for each in said]
        os._exit(0 if writer.lost == 2 and len(told) == 1 and "forked" in told[0] and not kept.steps else 1)
    assert os.waitpid(child, 0)[1] == 0
    writer.put(second)
    writer.stop()
    assert kept.steps == [0, 1]
