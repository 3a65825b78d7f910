"""The disk never stops a training: back-pressure, full disks, exits and forks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonde.errors import ObservationWarning
from sonde.rows import Layout
from sonde.run.folder import files
from sonde.run.folder.parts import Part, parts_in
from sonde.run.folder.run_json import Description
from sonde.run.folder.written import Written
from sonde.run.run import open_run
from sonde.run.store import disk_writer
from sonde.run.store.compaction import Merger
from sonde.run.store.disk_writer import DiskWriter, Flushing
from sonde.run.store.open import start_run

LAYOUT = Layout([f"layers.{number}:output" for number in range(50)])


def log(writer: DiskWriter, steps: range) -> None:
    for step in steps:
        writer.append("moments", LAYOUT, {"rms": np.full(50, step, float)}, step=step)


def steps_of(path: Path) -> list[int]:
    return open_run(path).series("layers.7", "rms")[0].tolist()


def until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this never became true"
        time.sleep(0.005)


def test_rows_appear_within_the_interval_though_nobody_flushes(tmp_path: Path) -> None:
    with start_run(tmp_path / "run", flushing=Flushing(seconds=0.05)) as writer:
        log(writer, range(1))
        until(lambda: open_run(writer.path).families == ("moments",))
        log(writer, range(1, 2))
        until(lambda: steps_of(writer.path) == [0, 1])


def test_the_first_rows_appear_sooner_and_each_interval_is_longer(tmp_path: Path) -> None:
    """A program that is killed at its beginning leaves what it has done."""
    with start_run(tmp_path / "run", flushing=Flushing(seconds=1_000, first=0.05)) as writer:
        log(writer, range(1))
        until(lambda: open_run(writer.path).families == ("moments",))
        log(writer, range(1, 2))
        until(lambda: steps_of(writer.path) == [0, 1])
        until(lambda: writer._queue._interval == pytest.approx(0.05 * 1.5**2))  # the next one, as soon as the writing has ended


def test_rows_appear_when_enough_wait(tmp_path: Path) -> None:
    with start_run(tmp_path / "run", flushing=Flushing(seconds=1_000, first=1_000, size=100_000)) as writer:
        log(writer, range(30))
        assert not (writer.path / "moments").exists()
        log(writer, range(30, 60))
        until(lambda: (writer.path / "moments").exists() and any((writer.path / "moments").glob("*.parquet")))
    assert steps_of(tmp_path / "run") == list(range(60))


def test_parts_do_not_become_many(tmp_path: Path) -> None:
    """40 flushes, merged by 3: ternary digits, not 40 files."""
    with start_run(tmp_path / "run", flushing=Flushing(fan_in=3, sync=False)) as writer:
        for step in range(40):
            log(writer, range(step, step + 1))
            writer.flush()
        parts = parts_in(writer.path / "moments")
        assert [(part.first, part.last, part.generation) for part in parts] == [(1, 27, 3), (28, 36, 2), (37, 39, 1), (40, 40, 0)]
        assert steps_of(writer.path) == list(range(40))
    assert len(list((tmp_path / "run/moments").iterdir())) == 1
    assert steps_of(tmp_path / "run") == list(range(40))


class Gate:
    """In place of ``publish``: waits at a gate, or raises."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.error: Exception | None = None
        self.publish = disk_writer.publish

    def __call__(self, *args: Any, **how: Any) -> Path:
        assert self.open.wait(30)
        if self.error is not None:
            raise self.error
        return self.publish(*args, **how)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(disk_writer, "publish", made)
    yield made
    made.open.set()


def test_a_slow_disk_makes_the_writer_wait_and_loses_nothing(tmp_path: Path, gate: Gate) -> None:
    flushing = Flushing(limit=60_000, size=10_000, patience=30)
    with start_run(tmp_path / "run", flushing=flushing) as writer:
        training = threading.Thread(target=log, args=(writer, range(100)))
        training.start()
        time.sleep(0.2)
        assert training.is_alive()  # at the limit, waiting for the disk
        assert writer._queue.nbytes <= 60_000
        gate.open.set()
        training.join(30)
    assert steps_of(tmp_path / "run") == list(range(100))
    assert writer.lost == 0


def test_what_comes_at_once_is_counted_in_pieces(tmp_path: Path, gate: Gate) -> None:
    """A hundred steps in one go, five times the room: the writer waits with what fits, and nothing is lost."""
    flushing = Flushing(limit=60_000, size=10_000, patience=30)
    moments = [(0, step, 0) for step in range(100)]
    numbers = {"rms": np.repeat(np.arange(100.0), 50)}
    with start_run(tmp_path / "run", flushing=flushing) as writer:
        rows = np.tile(np.arange(50), 100)
        given = {"moments": moments, "lengths": [50] * 100, "rows": rows}
        training = threading.Thread(target=writer.extend, args=("moments", LAYOUT, numbers), kwargs=given)
        training.start()
        until(lambda: writer._queue.nbytes > 40_000)
        assert training.is_alive()
        assert writer._queue.nbytes <= 60_000
        gate.open.set()
        training.join(30)
    assert steps_of(tmp_path / "run") == list(range(100))
    assert open_run(tmp_path / "run").series("layers.7", "rms")[1].tolist() == list(range(100))
    assert writer.lost == 0


def test_a_disk_that_hangs_costs_rows_and_one_warning(tmp_path: Path, gate: Gate) -> None:
    """A hundred steps through a closed gate wait once; what did not fit is counted, in run.json too."""
    with start_run(tmp_path / "run", flushing=Flushing(limit=60_000, patience=0.05)) as writer:
        with pytest.warns(ObservationWarning, match=r"did not keep up for 0.05 seconds.*counted") as said:
            log(writer, range(100))
        assert len(said) == 1
        gate.open.set()
    kept = steps_of(tmp_path / "run")
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < 100
    assert writer.lost == 50 * (100 - len(kept))
    assert f"{writer.lost:,} rows lost" in repr(open_run(tmp_path / "run"))


def test_what_could_not_be_written_is_written_when_it_can(tmp_path: Path, gate: Gate) -> None:
    """The disk is full for a while: one warning, and nothing lost as long as it fits into memory."""
    gate.open.set()
    with start_run(tmp_path / "run") as writer:
        log(writer, range(3))
        writer.flush()
        gate.error = OSError(28, "No space left on device")
        log(writer, range(3, 6))
        with pytest.warns(ObservationWarning, match=r"No space left on device. Training goes on") as said:
            writer.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            log(writer, range(6, 8))
            writer.flush()
        assert len(said) == 1
        assert steps_of(writer.path) == [0, 1, 2]
        gate.error = None
        writer.flush()
        assert steps_of(writer.path) == list(range(8))
    assert writer.lost == 0


def test_a_disk_that_stays_full_costs_bounded_memory_and_no_time(tmp_path: Path, gate: Gate) -> None:
    gate.open.set()
    gate.error = OSError(28, "No space left on device")
    writer = start_run(tmp_path / "run", flushing=Flushing(limit=60_000, patience=1_000, seconds=0.01))
    with pytest.warns(ObservationWarning) as said:
        log(writer, range(1))
        writer.flush()
        log(writer, range(1, 200))
        writer.close()
    assert len(said) == 1
    assert writer.lost == 200 * 50
    assert open_run(tmp_path / "run").families == ()


def test_a_bug_in_writing_stops_neither_training_nor_the_thread(tmp_path: Path, gate: Gate) -> None:
    """What cannot be written while it lasts is written afterwards."""
    gate.open.set()
    gate.error = RuntimeError("something nobody thought of")
    with start_run(tmp_path / "run") as writer:
        log(writer, range(1))
        with pytest.warns(ObservationWarning, match="something nobody thought of"):
            writer.flush()
        gate.error = None
        log(writer, range(1, 2))
    assert steps_of(tmp_path / "run") == [0, 1]
    assert writer.lost == 0


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError(), OSError(116, "Stale file handle")], ids=repr)
def test_a_bug_that_stays_costs_the_rows_and_this_is_counted_in_the_run(tmp_path: Path, gate: Gate, error: Exception) -> None:
    gate.open.set()
    with start_run(tmp_path / "run") as writer:
        log(writer, range(2))
        writer.flush()
        gate.error = error
        log(writer, range(2, 4))
        with pytest.warns(ObservationWarning, match="could not be written") as said:
            writer.close()
    assert (steps_of(tmp_path / "run"), writer.lost, len(said)) == ([0, 1], 100, 1)
    run = open_run(tmp_path / "run")
    assert (run.state, run.description.attempts[0].lost, run.record.lost_rows) == ("ended", 100, 100)


def test_a_family_that_cannot_be_written_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some tries its rows are counted as lost; the disk's own errors are waited for."""
    publish, tries = disk_writer.publish, [0]

    def broken(folder: Path, *args: Any, **how: Any) -> Path:
        if folder.name == "moments" and tries[0] < 10:
            tries[0] += 1
            raise SystemError("bad argument")
        return publish(folder, *args, **how)

    monkeypatch.setattr(disk_writer, "publish", broken)
    with start_run(tmp_path / "run") as writer:
        with pytest.warns(ObservationWarning, match="SystemError: bad argument") as said:
            for step in range(8):
                log(writer, range(step, step + 1))
                writer.scalar("loss", 1.0, step=step)
                writer.flush()
                assert open_run(writer.path).scalar("loss")[0].tolist() == list(range(step + 1))
        assert len(said) == 1
    assert writer.lost == 50  # of the first step, tried at five flushes
    assert steps_of(tmp_path / "run") == list(range(1, 8))


@pytest.mark.parametrize(
    "error",
    [
        SystemError("bad argument"),
        pytest.param(MemoryError(), marks=pytest.mark.slow),
        pytest.param(OSError(5, "Input/output error"), marks=pytest.mark.slow),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (disk_writer, "publish"),
        (disk_writer, "tables_of"),
        (disk_writer, "write_json"),
        (disk_writer, "file_checksum"),
        (files, "_sync"),
        (Written, "write"),
        (disk_writer, "Merger"),
        (Merger, "compact"),
        (Description, "write"),
    ],
)
def test_whatever_raises_once_in_writing_costs_no_row_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, error: Exception
) -> None:
    """Each of some calls is the one that raises: it may do so before or after the part has its name."""
    for place in (0, 1, 4):
        path = tmp_path / f"{place}"
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", ObservationWarning)
            writer = start_run(path, flushing=Flushing(fan_in=2))
            calls, method = [0], getattr(where, name)

            def raising(*given: Any, calls: Any = calls, method: Any = method, place: int = place, **how: Any) -> Any:
                calls[0] += 1
                if calls[0] == place + 1:
                    raise error
                return method(*given, **how)

            patch.setattr(where, name, raising)
            for step in range(4):
                log(writer, range(step, step + 1))
                writer.scalar("loss", 1.0, step=step)
                writer.flush()
            writer.close()
        run = open_run(path)
        assert (writer.lost, run.state, run.lost) == (0, "ended", {})
        assert run.sql("SELECT step, count(*) FROM moments GROUP BY step ORDER BY step").fetchall() == [(at, 50) for at in range(4)]
        assert run.scalar("loss")[0].tolist() == list(range(4))


def test_the_count_of_lost_rows_is_stored_though_the_folder_cannot_be_listed_at_the_end(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.open.set()
    writer = start_run(tmp_path / "run")
    log(writer, range(2))
    gate.error = OSError(116, "Stale file handle")

    def stale(folder: Path) -> list[Part]:
        raise gate.error or OSError

    monkeypatch.setattr("sonde.run.store.compaction.parts_in", stale)
    with pytest.warns(ObservationWarning, match="Stale file handle"):
        writer.close()
    run = open_run(tmp_path / "run")
    assert (run.state, run.description.attempts[0].lost) == ("ended", 100)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_really_full_disk(tiny_disk: Path) -> None:
    """Training goes on, one warning; what was written is read; the compaction that does not fit breaks nothing."""
    draw = np.random.default_rng(0)
    writer = start_run(tiny_disk / "run", flushing=Flushing(limit=300_000, size=100_000))
    with pytest.warns(ObservationWarning, match="No space left") as said:
        for step in range(3_000):
            writer.append("moments", LAYOUT, {"rms": draw.random(50)}, step=step)
            writer.scalar("loss", 0.5, step=step)
            if step % 300 == 0:
                writer.flush()
        writer.document("coverage", {"x": "x" * 2_000_000})
        writer.close()
    assert len(said) == 1
    kept = steps_of(tiny_disk / "run")
    assert kept == list(range(len(kept)))
    assert 300 < len(kept) < 3_000
    assert writer.lost > 0
    assert not list((tiny_disk / "run").rglob("*.tmp*"))


def child(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    start = f"""
import os, sys, numpy as np
from sonde.run.store.disk_writer import Flushing
from sonde.rows import Layout
from sonde.run.store.open import start_run
writer = start_run({str(path)!r})
writer.append("moments", Layout(["layers.7:output"]), {{"rms": [1.0]}}, step=0)
"""
    return subprocess.run([sys.executable, "-W", "error", "-c", start + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("end", "state"), [("", "ended"), ("sys.exit(3)", "ended"), ("raise KeyError('training failed')", "failed")]
)
def test_a_run_that_nobody_closes_is_closed_at_exit(tmp_path: Path, end: str, state: str) -> None:
    """An error that stops the script is kept; its exit code is not known in the process."""
    done = child(end, tmp_path / "run")
    assert "training failed" in done.stderr or not done.stderr
    assert steps_of(tmp_path / "run") == [0]
    assert open_run(tmp_path / "run").state == state


def test_a_forked_child_writes_nothing_and_ends_nothing(tmp_path: Path) -> None:
    done = child(
        """
if (pid := os.fork()) == 0:
    writer.append("moments", Layout(["layers.7:output"]), {"rms": [9.0]}, step=9)
    writer.flush()
    writer.close()
    sys.exit()
os.waitpid(pid, 0)
writer.append("moments", Layout(["layers.7:output"]), {"rms": [1.0]}, step=1)
""",
        tmp_path / "run",
    )
    assert done.stderr == ""
    assert steps_of(tmp_path / "run") == [0, 1]


def test_threads_may_write_while_others_read(tmp_path: Path) -> None:
    """Readers see at any moment, through flushes and merges, a prefix of whole steps of each thread."""
    with start_run(tmp_path / "run", flushing=Flushing(seconds=0.005, fan_in=2, sync=False)) as writer:
        layouts = [Layout([f"t{number}:output"] * 20, call=range(20)) for number in range(3)]
        looked = threading.Event()

        def work(layout: Layout) -> None:
            for step in range(60):
                if step == 30:
                    assert looked.wait(120)
                writer.append("moments", layout, {"rms": 1.0}, step=step)
                time.sleep(0.001)

        threads = [threading.Thread(target=work, args=(layout,)) for layout in layouts]
        for thread in threads:
            thread.start()
        run = open_run(writer.path)
        while any(thread.is_alive() for thread in threads):
            if run.families:
                rows = run.sql(
                    "SELECT site, count(DISTINCT step), max(step) + 1, count(*) / 20 FROM moments GROUP BY site"
                ).fetchall()
                assert all(steps == last == whole for _, steps, last, whole in rows), rows
                looked.set()
    assert run.table("moments").num_rows == 3 * 60 * 20
    assert [path.name[:11] for path in (tmp_path / "run/moments").iterdir()] == ["part-r0000-"]


def test_a_folder_that_was_removed_meanwhile_is_no_disaster(tmp_path: Path) -> None:
    writer = start_run(tmp_path / "run")
    log(writer, range(2))
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(ObservationWarning, match="could not be written"):
        writer.close()
    assert writer.lost == 100


def test_a_folder_that_can_only_be_read_from_some_step_on(tiny_disk: Path) -> None:
    """A disk that the system mounted anew for reading: one warning, the rows from before stay, the training goes on."""
    writer = start_run(tiny_disk / "run")
    log(writer, range(3))
    writer.flush()
    for options in (["--bind", tiny_disk / "run", tiny_disk / "run"], ["-o", "remount,bind,ro", tiny_disk / "run"]):
        subprocess.run(["mount", *options], check=True)
    with pytest.warns(ObservationWarning, match="Read-only file system") as said:
        for step in range(3, 6):
            log(writer, range(step, step + 1))
            writer.flush()
        writer.document("coverage", {"sites": 1})
        writer.close()
    assert len(said) == 1
    assert writer.lost == 3 * 50
    assert steps_of(tiny_disk / "run") == [0, 1, 2]


def test_a_family_that_was_removed_meanwhile_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    writer = start_run(tmp_path / "run")
    log(writer, range(2))
    writer.scalar("loss", 1.0, step=0)
    writer.flush()
    shutil.rmtree(tmp_path / "run" / "moments")
    log(writer, range(2, 3))
    writer.close()
    run = open_run(tmp_path / "run")
    with pytest.warns(ObservationWarning, match=r"flush 1 of rank 0 is missing from .*moments.* removed after it was written"):
        assert sorted(set(run.table("moments")["step"].to_pylist())) == [2]
    assert run.scalar("loss")[0].tolist() == [0]


def test_a_run_tells_when_its_rows_came_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One time for each flush, after the beginning of the attempt; a resumed run forgets those of the steps that are made anew."""
    now = iter(range(1_000_000_000, 2_000_000_000, 10))
    monkeypatch.setattr("time.time", lambda: float(next(now)))
    for attempt, steps in ((0, range(6)), (3, range(3, 5))):
        exists = {"exists": "resume", "step": attempt} if attempt else {}
        with start_run(tmp_path / "run", **exists) as writer:  # type: ignore[arg-type]
            for step in steps:
                writer.scalar("loss", 1.0, step=step)
                writer.flush()
    times = open_run(tmp_path / "run").times
    assert [step for step, _ in times] == [0, 1, 2, 3, 4]
    seconds = [each for _, each in times]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 1_000_000_000
    assert seconds[-1] - seconds[0] >= 80  # nine readings of a clock that goes on by 10


def test_of_many_times_every_second_one_is_left() -> None:
    """The last one always; a step that comes again takes the place of itself and of those behind it."""
    written = Written()
    for step in range(513):
        written = written.reached(step, 10.0 * step)
    assert [step for step, _ in written.times] == list(range(0, 513, 2))
    assert written.reached(4, 7.0).times == ((0, 0.0), (2, 20.0), (4, 7.0))
