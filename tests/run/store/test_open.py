"""Where a run begins and how it goes on: folders that exist, trainings that are resumed, several ranks."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from sonde.errors import ArgumentError, StoreError
from sonde.rows import Layout
from sonde.run.folder.lock import Lock
from sonde.run.run import Run, open_run
from sonde.run.store.disk_writer import DiskWriter, Flushing
from sonde.run.store.open import join_run, start_run
from sonde.run.store.writer import RunWriter

LAYOUT = Layout(["fc:output", "head:output"])
Abandon = Callable[[RunWriter], None]


def log(writer: RunWriter, steps: range, value: float) -> None:
    for step in steps:
        writer.append("moments", LAYOUT, {"rms": value}, step=step)
        writer.scalar("loss", value, step=step)


def seen(run: Run) -> dict[int, float]:
    """The value of each step, which both families and both sites must agree on, once."""
    found = [run.series(site, "rms") for site in LAYOUT.site] + [run.scalar("loss")]
    steps, values = found[0]
    for other_steps, other_values in found[1:]:
        assert (other_steps.tolist(), other_values.tolist()) == (steps.tolist(), values.tolist())
    assert len(set(steps.tolist())) == len(steps)
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


# Folders


def test_a_folder_that_holds_a_run_is_not_written_to_unasked(tmp_path: Path) -> None:
    start_run(tmp_path / "run").close()
    with pytest.raises(StoreError, match="'resume' continues it, 'unique' writes beside it, 'replace' deletes it"):
        start_run(tmp_path / "run")


def test_an_empty_folder_and_one_of_a_writer_killed_at_once_are_as_good_as_new(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    start_run(tmp_path / "empty").close()
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed/.lock-r0000").touch()
    (tmp_path / "killed/.run.json.77.tmp").write_text("{")
    start_run(tmp_path / "killed").close()
    assert open_run(tmp_path / "killed").families == ()


def test_a_folder_that_holds_something_else_is_never_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    for exists in ("error", "resume", "replace"):
        with pytest.raises(StoreError, match="holds something that is no run"):
            start_run(tmp_path, exists=exists)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="is a file"):
        start_run(tmp_path / "thesis.tex")
    (tmp_path / "run.json").write_text('{"format": "another"}')
    with pytest.raises(StoreError, match="does not look like a run"):
        start_run(tmp_path, exists="replace")


def test_unique_writes_beside_it(tmp_path: Path) -> None:
    paths = []
    for _ in range(3):
        with start_run(tmp_path / "run", exists="unique") as writer:
            paths.append(writer.path.name)
    assert paths == ["run", "run-2", "run-3"]


def test_replace_deletes_the_run_and_nothing_else(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        log(writer, range(5), 1.0)
        writer.append("old", LAYOUT, {"x": 1}, step=0)
        writer.document("coverage", [])
    (tmp_path / "run/checkpoint.pt").write_text("precious")
    (tmp_path / "run/old/mine.txt").write_text("precious")
    with start_run(tmp_path / "run", exists="replace") as writer:
        assert (writer.first_step, writer.attempt) == (0, 1)
        log(writer, range(2), 2.0)
    run = open_run(tmp_path / "run")
    assert seen(run) == {0: 2.0, 1: 2.0}
    assert run.families == ("moments", "scalars")
    assert run.coverage is None
    assert (tmp_path / "run/checkpoint.pt").exists()
    assert (tmp_path / "run/old/mine.txt").exists()


def test_a_reader_that_is_open_sees_the_run_that_replaced_its_own(tmp_path: Path) -> None:
    """Parts of the same names and sizes, other numbers: nothing is remembered from before."""
    with start_run(tmp_path / "run") as writer:
        log(writer, range(3), 1.0)
    run = open_run(tmp_path / "run")
    assert seen(run) == dict.fromkeys(range(3), 1.0)
    with start_run(tmp_path / "run", exists="replace") as writer:
        log(writer, range(3), 2.0)
    assert seen(run) == dict.fromkeys(range(3), 2.0)


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="no run can be written to"):
        start_run(tmp_path / "file" / "run")
    with pytest.raises(StoreError, match="no run can be written to"):
        start_run("/proc/run")


def test_arguments_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="'error', 'resume', 'unique', 'replace'"):
        start_run(tmp_path / "run", exists="overwrite")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="give exists='resume'"):
        start_run(tmp_path / "run", step=3)
    with pytest.raises(ArgumentError, match="plain data"):
        start_run(tmp_path / "run", about={"model": object()})
    for wrong in ("seconds", "size", "limit", "patience", "first"):
        with pytest.raises(ArgumentError, match=f"{wrong}=0: it must be above 0"):
            Flushing(**{wrong: 0})  # type: ignore[arg-type]
    start_run(tmp_path / "run").close()  # none of these has left a lock


def test_two_writers_of_one_run_are_one_too_many(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        with pytest.raises(StoreError, match="this very process: close that writer first, or detach"):
            start_run(tmp_path / "run", exists="resume")
        code = f"from sonde.run.store.open import start_run; start_run({str(writer.path)!r}, exists='resume')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "being written by another process (process" in done.stderr
    start_run(tmp_path / "run", exists="resume").close()


# Attempts


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_a_resumed_training_has_no_step_twice(tmp_path: Path, abandon: Abandon, ended: str) -> None:
    """Steps 0-9 were logged, the checkpoint was of step 6: 6-9 are superseded, for readers at once and on disk at the end."""
    first = start_run(tmp_path / "run")
    log(first, range(10), 1.0)
    if ended == "closed":
        first.close()
    else:
        abandon(first)
    second = start_run(tmp_path / "run", exists="resume", step=6)
    assert (second.attempt, second.first_step) == (2, 6)
    run = open_run(tmp_path / "run")
    assert seen(run) == dict.fromkeys(range(6), 1.0)
    log(second, range(6, 8), 2.0)
    second.flush()
    expected = dict.fromkeys(range(6), 1.0) | {6: 2.0, 7: 2.0}
    assert seen(run) == expected
    assert "resumed at step 6" in repr(run)
    second.close()
    assert seen(run) == expected
    assert duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/run/moments/*.parquet'").fetchall() == [(16,)]


def test_without_a_step_it_goes_on_after_the_last_row(tmp_path: Path) -> None:
    with start_run(tmp_path / "run", exists="resume") as writer:
        assert writer.first_step == 0
        log(writer, range(10), 1.0)
    with start_run(tmp_path / "run", exists="resume") as writer:
        assert writer.first_step == 10
        log(writer, range(10, 12), 2.0)
    assert seen(open_run(tmp_path / "run")) == dict.fromkeys(range(10), 1.0) | {10: 2.0, 11: 2.0}


def test_resuming_with_another_list_of_layers_and_numbers(tmp_path: Path, abandon: Abandon) -> None:
    first = start_run(tmp_path / "run", about={"model": ["fc", "head"], "seed": 1})
    log(first, range(4), 1.0)
    abandon(first)
    with start_run(tmp_path / "run", exists="resume", step=2, about={"model": ["fc", "new"]}) as second:
        second.append("moments", Layout(["fc:output", "new:output"]), {"rms": 2.0, "norm": 3.0}, step=2)
        second.append("updates", Layout(["new.weight:update"]), {"ratio": 0.001}, step=2)
    run = open_run(tmp_path / "run")
    assert run.info == {"model": ["fc", "new"], "seed": 1}
    assert run.sites == ("fc:output", "new.weight:update", "head:output", "new:output")
    assert run.series("fc", "rms")[1].tolist() == [1.0, 1.0, 2.0]
    assert run.series("head", "rms")[0].tolist() == [0, 1]
    assert run.series("new", "norm")[0].tolist() == [2]
    assert run.scalar("loss")[0].tolist() == [0, 1]
    assert run.families == ("moments", "scalars", "updates")


def test_a_column_cannot_change_its_kind_in_a_later_life(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        writer.append("moments", LAYOUT, {"rms": 1.0, "counts": [[1, 2], [3, 4]], "mode": "train"}, step=0)
    with start_run(tmp_path / "run", exists="resume") as writer:
        for wrong in ({"rms": "big"}, {"counts": 1.0}, {"mode": 3}):
            with pytest.raises(ArgumentError, match="in each row before"):
                writer.append("moments", LAYOUT, wrong, step=1)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 24))])
def test_any_history_reads_as_an_oracle_that_keeps_everything(tmp_path: Path, abandon: Abandon, seed: int) -> None:
    """Random attempts: each logs some steps, flushes, merges, is closed or killed; the next begins at a random step."""
    draw = random.Random(seed)
    expected: dict[int, float] = {}
    start = 0
    for attempt in range(draw.randint(2, 6)):
        flushing = Flushing(fan_in=draw.choice([2, 3, 64]), sync=False)
        writer = start_run(tmp_path / "run", exists="resume", step=start, flushing=flushing)
        expected = {step: value for step, value in expected.items() if step < start}
        end = start + draw.randint(1, 12)
        for step in range(start, end):
            log(writer, range(step, step + 1), float(attempt))
            expected[step] = float(attempt)
            if draw.random() < 0.5:
                writer.flush()
        if draw.random() < 0.5:
            writer.close()
        else:
            abandon(writer)
        if expected:
            assert seen(open_run(tmp_path / "run")) == expected
        start = draw.randint(0, end)


# Ranks


def test_ranks_write_one_run(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as zero:
        others = [join_run(zero.path, rank=rank, attempt=zero.attempt) for rank in (1, 2)]
        for writer in (zero, *others):
            writer.append("moments", LAYOUT, {"rms": float(writer.rank)}, step=0)
            writer.scalar("loss", writer.rank / 10, step=0)
            writer.document("coverage", {"rank": writer.rank})
            writer.close()
    run = open_run(tmp_path / "run")
    assert len(list((tmp_path / "run/moments").iterdir())) == 3
    assert sorted(run.table("moments").column("rms").to_pylist()) == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert run.series("fc", "rms")[1].tolist() == [0.0]  # of the lowest rank
    assert [run.series("fc", "rms", rank=rank)[1].tolist() for rank in (1, 2)] == [[1.0], [2.0]]
    assert [run.scalar("loss", rank=rank)[1].tolist() for rank in (None, 0, 1, 2)] == [[0.0], [0.0], [0.1], [0.2]]
    assert run.scalar("loss", rank=2)[1].tolist() == [0.2]
    assert run.heatmap("rms").values.tolist() == [[1.0], [1.0]]
    assert run.coverage == {"rank": 0}
    assert run.document("coverage", rank=2) == {"rank": 2}


def test_fewer_ranks_resume_and_no_row_of_the_others_is_left_over(tmp_path: Path, abandon: Abandon) -> None:
    def attempt(ranks: int, steps: range, value: float) -> None:
        zero = start_run(tmp_path / "run", exists="resume", step=steps.start)
        writers: list[DiskWriter] = [zero] + [join_run(zero.path, rank=rank, attempt=zero.attempt) for rank in range(1, ranks)]
        for writer in writers:
            log(writer, steps, value)
            abandon(writer)

    attempt(3, range(4), 1.0)
    attempt(1, range(2, 5), 2.0)
    attempt(2, range(4, 6), 3.0)
    rows = open_run(tmp_path / "run").sql("SELECT step, rank, value FROM scalars ORDER BY ALL").fetchall()
    assert rows == (
        [(step, rank, 1.0) for step in (0, 1) for rank in (0, 1, 2)]
        + [(step, 0, 2.0) for step in (2, 3)]
        + [(step, rank, 3.0) for step in (4, 5) for rank in (0, 1)]
    )


def test_joining_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        join_run(tmp_path / "run", rank=1, attempt=1)
    with start_run(tmp_path / "run") as zero:
        with pytest.raises(StoreError, match=r"attempt 2 is not the one .* rank 0 starts it first"):
            join_run(zero.path, rank=1, attempt=2)
        with pytest.raises(ArgumentError, match="rank 0 starts a run"):
            join_run(zero.path, rank=0, attempt=1)
        with join_run(zero.path, rank=1, attempt=1) as one, pytest.raises(ArgumentError, match="rank 0 describes"):
            one.describe(model=[])


def test_no_unfinished_file_survives_a_resume(tmp_path: Path, abandon: Abandon) -> None:
    """Of any rank that writes no more, also in a family of which nothing was ever finished. Files of a rank that writes stay."""
    path = tmp_path / "run"
    first = start_run(path)
    log(first, range(2), 1.0)
    abandon(first)
    for name in ("moments/.part-r0000-a.tmp", "moments/.part-r0007-b.tmp", "updates/.part-r0000-c.tmp", ".graph.json.1-2.tmp"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).touch()
    (path / "updates" / ".part-r0001-d.tmp").touch()
    (path / "updates" / "notes.tmp").touch()
    busy = Lock(path, 1)
    with start_run(path, exists="resume"):
        assert {file.relative_to(path).as_posix() for file in path.rglob("*.tmp")} == {
            "updates/.part-r0001-d.tmp",
            "updates/notes.tmp",
        }
    busy.release()
