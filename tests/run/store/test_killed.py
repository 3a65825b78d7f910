"""Real processes, really killed: no part that was flushed is lost, no row is there twice, and the run goes on."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sonde.rows import Layout
from sonde.run.folder.files import is_leftover
from sonde.run.run import Run, open_run
from sonde.run.store.open import start_run
from sonde.run.store.writer import RunWriter

pytestmark = pytest.mark.slow

LAYOUT = Layout(["fc:output", "head:output"])


def log(writer: RunWriter, steps: range, value: float) -> None:
    for step in steps:
        writer.append("moments", LAYOUT, {"rms": value}, step=step)
        writer.scalar("loss", value, step=step)
        writer.flush()


def rows(run: Run) -> list[dict[int, float]]:
    """Of each family and site the value of each step; a step that is there twice fails."""
    found = []
    for steps, values in (run.series("fc", "rms"), run.series("head", "rms"), run.scalar("loss")):
        assert len(set(steps.tolist())) == len(steps)
        found.append(dict(zip(steps.tolist(), values.tolist(), strict=True)))
    return found


EVERY_POINT = """
import os, shutil, signal, sys
from pathlib import Path
import duckdb, pandas, pyarrow.parquet
from sonde.run.store.disk_writer import Flushing
from sonde.rows import Layout
from sonde.run.store.open import start_run

prepared, copies = map(Path, sys.argv[1:])
layout = Layout(["fc:output", "head:output"])

def resumed(path, fatal):
    left = fatal
    def hook(event, args):
        nonlocal left
        if event.startswith(("open", "os.", "shutil.")) and args and str(path) in str(args[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    with start_run(path, exists="resume", step=4, flushing=Flushing(fan_in=2, first=1000, seconds=1000)) as writer:
        for step in (4, 5, 6):
            writer.append("moments", layout, {"rms": 2.0}, step=step)
            writer.scalar("loss", 2.0, step=step)
            writer.flush()
    os._exit(0)

fatal, status = 0, None
while status != 0:
    fatal += 1
    path = copies / f"{fatal:03d}"
    shutil.copytree(prepared, path)
    pid = os.fork()
    if pid == 0:
        resumed(path, fatal)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(fatal, status, flush=True)
"""


def test_killed_at_every_operation_on_files(tmp_path: Path, abandon: Callable[[RunWriter], None]) -> None:
    """Resuming, flushing, merging, closing: before each of their operations on the run's files one process is killed."""
    first = start_run(tmp_path / "prepared")
    log(first, range(6), 1.0)
    abandon(first)
    (tmp_path / "copies").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", EVERY_POINT, tmp_path / "prepared", tmp_path / "copies"],
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    statuses = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert statuses == [-signal.SIGKILL] * (len(statuses) - 1) + [0]
    assert len(statuses) > 50

    old = dict.fromkeys(range(6), 1.0)
    begun = [dict.fromkeys(range(4), 1.0) | dict.fromkeys(range(4, end), 2.0) for end in range(4, 8)]
    states = [old, *begun]
    reached = -1
    for path in sorted((tmp_path / "copies").iterdir()):
        found = [states.index(each) for each in rows(open_run(path))]
        assert reached <= min(found)
        assert max(found) - min(found) <= 1  # the families of one flush, one after the other
        reached = min(found)
    assert reached == len(states) - 1

    for path in sorted((tmp_path / "copies").iterdir())[::5]:
        with start_run(path, exists="resume", step=4) as writer:
            log(writer, range(4, 6), 3.0)
        assert rows(open_run(path)) == [dict.fromkeys(range(4), 1.0) | {4: 3.0, 5: 3.0}] * 3
        assert not [left for left in path.rglob("*") if is_leftover(left)]
        assert len(list((path / "moments").iterdir())) == len(list((path / "scalars").iterdir())) == 1


VICTIM = """
import sys, itertools
import numpy as np
from sonde.run.store import disk_writer as disk
from sonde.rows import Layout
from sonde.run.store.open import start_run

publish = disk.publish

def announced(folder, part, table, **how):
    path = publish(folder, part, table, **how)
    print(folder.name, max(table["step"].to_pylist()), flush=True)
    return path

disk.publish = announced
layout = Layout([f"layers.{number}:output" for number in range(30)])
writer = start_run(sys.argv[1], flushing=disk.Flushing(seconds=0.004, fan_in=3))
print("begun", flush=True)
for step in itertools.count():
    writer.append("moments", layout, {"rms": np.full(30, float(step)), "count": 8.0}, step=step)
    writer.scalar("loss", step / 2, step=step)
    if step % 50 == 0:
        writer.document("coverage", {"step": step})
"""


def killed(path: Path, wait: float) -> tuple[dict[str, int], int]:
    """The last step that the process has announced for each family, and how it ended."""
    process = subprocess.Popen([sys.executable, "-c", VICTIM, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(wait)
    process.kill()
    said = process.communicate()[0]
    whole = [line.split() for line in said[: said.rfind("\n") + 1].splitlines()]
    return {family: int(step) for family, step in whole}, process.returncode


def test_fifty_processes_killed_at_random_moments(tmp_path: Path) -> None:
    draw = random.Random(0)
    cases = [(tmp_path / f"run{number}", draw.random() * 0.6) for number in range(50)]
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda case: killed(*case), cases))
    survived = 0
    for (path, _), (announced, code) in zip(cases, ends, strict=True):
        assert code == -signal.SIGKILL
        run = open_run(path)
        families = run.families
        assert set(announced) <= set(families)
        if "moments" in families:
            found = run.sql(
                "SELECT step, count(*), min(rms), max(rms), min(count) FROM moments GROUP BY step ORDER BY step"
            ).fetchall()
            assert found == [(step, 30, step, step, 8.0) for step in range(len(found))]
            assert len(found) > announced.get("moments", -1)
            assert run.heatmap("rms").values.shape == (30, len(found))
            survived += len(found)
        if "scalars" in families:
            steps, values = run.scalar("loss")
            assert steps.tolist() == list(range(len(steps)))
            assert values.tolist() == [step / 2 for step in range(len(steps))]
            assert len(steps) > announced.get("scalars", -1)
        assert run.coverage is None or run.coverage["step"] % 50 == 0
        repr(run)
    assert survived > 100
    shutil.rmtree(tmp_path)


def test_killed_before_anything_was_flushed(tmp_path: Path) -> None:
    """What is lost is the last interval and nothing else: here, everything; the run itself is there."""
    code = textwrap.dedent(f"""
        import os, signal
        from sonde.run.store.open import start_run
        start_run({str(tmp_path / "run")!r}).scalar("loss", 1.0, step=0)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    run = open_run(tmp_path / "run")
    assert run.families == ()
    assert run.state == "lost"
