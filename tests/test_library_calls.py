"""A program ends without a word from C++: nothing that DuckDB has opened is left, and no thread is inside a library."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pytest
import torch
from tests.quick import quick
from torch import nn

import sonde
from sonde.inspector.sinks.experiment import ExperimentSink
from sonde.run import memory_run, open_run, start_run
from sonde.run.folder.duckdb_sql import ask_tables, connect
from sonde.view import plots

RUN = """
import ctypes, os, sys, threading, time
from sonde.rows import Layout
from sonde.inspector.sinks.experiment import ExperimentSink
from sonde.run import memory_run, start_run

writer = memory_run() if sys.argv[1] == "memory" else start_run(sys.argv[1])
writer.append("moments", Layout(["a:output"]), {"rms": [1.0]}, step=0)
run = writer.run()
assert run.sql("SELECT count(*) FROM moments").fetchall() == [(1,)]
"""


def ended(code: str, *args: str) -> str:
    """Return what a process of its own prints; it must end well, and in time."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *args], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("place", quick(["memory", "disk"], "disk"))
def test_a_run_that_is_never_given_back_leaves_no_database(tmp_path: Path, place: str) -> None:
    """As where a library holds the program's module."""
    ended(f"{RUN}\nctypes.pythonapi.Py_IncRef(ctypes.py_object(run))", place if place == "memory" else str(tmp_path / "run"))


@pytest.mark.slow
def test_a_process_that_was_forked_asks_again_and_ends() -> None:
    """The threads of the parent's database are not there."""
    code = """
def fork():
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        assert run.sql("SELECT count(*) FROM moments").fetchall() == [(1,)]
        print("child", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

fork()
assert run.sql("SELECT count(*) FROM moments").fetchall() == [(1,)]
"""
    assert ended(RUN + code, "memory") == "child\n"


def test_the_end_of_a_program_waits_for_calls_under_way_and_no_thread_begins_another() -> None:
    code = """
import sys, threading, time
from sonde.library_calls import LibraryCalls

class Library(LibraryCalls):
    def ended(self):
        print("closed", flush=True)

outer, inner = Library(), Library()
inside = threading.Event()

def work():
    with outer:
        inside.set()
        time.sleep(0.3)
        with inner:  # is a part of the call
            print("left", flush=True)
    while True:
        with inner:
            pass
        time.sleep(0.001)

threading.Thread(target=work, daemon=True).start()
inside.wait()
"""
    assert ended(code) == "left\nclosed\nclosed\n"


@pytest.mark.slow
def test_a_thread_that_asks_a_run_all_the_time_does_not_hold_up_the_end() -> None:
    code = """
def ask():
    while True:
        run.series("a:output", "rms")
        run.table("moments")

threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
[thread.start() for thread in threads]
time.sleep(0.2)
"""
    ended(RUN + code, "memory")


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.3, 0.7, 1.0])
def test_a_thread_that_draws_all_the_time_does_not_abort_the_end(tmp_path: Path, after: float) -> None:
    code = f"""
from sonde.view import plots

for step in range(1, 30):
    writer.append("moments", Layout(["a:output", "b:output"]), {{"rms": [1.0, 2.0]}}, step=step)
    writer.scalar("loss", 1.0, step=step)
drawn = threading.Event()

def draw():
    while True:
        plots.save(run, {str(tmp_path / "pictures")!r})
        drawn.set()

threading.Thread(target=draw, daemon=True).start()
drawn.wait(100)
time.sleep({after})
"""
    ended(RUN + code, str(tmp_path / "run"))
    assert list((tmp_path / "pictures").iterdir())


@pytest.mark.slow
def test_a_script_with_a_class_of_its_own_and_a_run_in_memory_ends_without_a_word() -> None:
    code = """
import torch, sonde

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
    for _ in range(3):
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()
run = inspector.run
answer = run.sql("SELECT count(*) FROM moments")
answer.fetchall()
checked = sonde.check(run)
"""
    ended(code)


def watched(model: nn.Module) -> None:
    with sonde.watch(model, every=1, to="memory", verbose=False) as inspector:
        model(torch.randn(4, 2)).sum().backward()
        inspector.step()


def tracked(model: nn.Module) -> None:
    with sonde.track(model):
        model(torch.randn(4, 2)).sum().backward()


def observed(model: nn.Module) -> None:
    with sonde.observe(model, lambda event: None):
        model(torch.randn(4, 2)).sum().backward()


@pytest.mark.parametrize("look", [watched, tracked, observed])
def test_the_class_of_a_model_is_not_kept(look: Callable[[Any], None]) -> None:
    """It holds the module in which it stands, and so all that a script or a notebook has made."""

    def of_a_class() -> weakref.ref[type]:
        class Own(nn.Linear):
            pass

        look(Own(2, 2))
        return weakref.ref(Own)

    kept = of_a_class()
    gc.collect()
    assert kept() is None


def test_pictures_for_which_there_is_no_time_are_not_drawn_and_a_logger_names_how_many(tmp_path: Path) -> None:
    class Logger(ExperimentSink):
        ended = False

        def _begin(self, description: object) -> None: ...

        def _log(self, step: int, numbers: object) -> None: ...

        def _tell(self, finding: object) -> None: ...

        def _send(self, pictures: Mapping[str, Path], report: Path | None) -> None:
            assert (pictures, report) == ({}, None)

        def _end(self, *, failed: bool) -> None:
            self.ended = True

    with start_run(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, step=0)
    run = open_run(tmp_path / "run")
    assert plots.save(run, tmp_path, seconds=0.0) == []
    assert [path.name for path in plots.save(run, tmp_path)] == ["scalars.png"]
    logger = Logger(layers=1, numbers=None, pictures=True, report=False, timeout=1e-12, prefix="")
    with pytest.raises(TimeoutError, match="1 picture of the run could not be drawn within"):
        logger.finish(run, failed=False)
    assert logger.ended


def test_no_database_draws_a_bar_in_the_terminal(tmp_path: Path) -> None:
    asked = "SELECT current_setting('enable_progress_bar')"
    with start_run(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, step=0)
    runs = [open_run(tmp_path / "run"), memory_run().run()]
    found = [each.sql(asked).fetchall() for each in runs]
    for connection in [connect(), *(run.connection() for run in runs)]:
        with connection:
            found.append(connection.execute(asked).fetchall())
    assert found == [[(False,)]] * 5


def test_a_database_opens_where_duckdb_refuses_to_switch_its_bar_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook without ipywidgets there is none, and DuckDB raises."""

    class InNotebook:
        def execute(self, sql: str) -> None:
            raise duckdb.InvalidInputException(sql)

    made: Any = InNotebook()
    monkeypatch.setattr(duckdb, "connect", lambda *_, **__: made)
    assert connect() is made


def test_a_question_is_asked_once_more_where_duckdb_was_stopped_as_the_program_began_to_end() -> None:
    tables = {"t": pyarrow.table({"a": [1, 2, 3]})}
    asked = []

    def question(connection: duckdb.DuckDBPyConnection, names: tuple[str, ...]) -> Any:
        asked.append(names)
        if len(asked) == 1:
            raise duckdb.InvalidInputException(
                "reading the stream registered as 't' failed: the Python interpreter is shutting down"
            )
        return connection.execute("SELECT sum(a) FROM t").fetchall()

    with connect() as connection:
        assert ask_tables(connection, tables, question) == [(6,)]
        assert asked == [("t",), ("t",)]
        with pytest.raises(duckdb.InvalidInputException, match="always"):
            ask_tables(connection, tables, lambda *_: (_ for _ in ()).throw(duckdb.InvalidInputException("always")))
