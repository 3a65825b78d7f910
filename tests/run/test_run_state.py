"""A run says in which state it is, in one set of words, and what ended it, of one rank or several."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sonde.cli import main
from sonde.errors import UnknownSiteError
from sonde.run import Layout, join_run, memory_run, open_run, open_runs, start_run
from sonde.run.store.disk_writer import DiskWriter
from sonde.view.app.followed_runs import FollowedRuns

PLACE = Layout(["0:output"])


def fail(path: Path, error: BaseException) -> None:
    writer = start_run(path)
    writer.append("moments", PLACE, {"rms": [1.0]}, step=0)
    with pytest.raises(type(error)), writer:
        raise error


def leave(writer: DiskWriter) -> None:
    """Let the process of *writer* be gone: nothing more is written, and the lock is free."""
    writer.thread.stop()
    writer._lock.release()
    writer._end = lambda: None  # type: ignore[method-assign]  # as after a kill


@pytest.mark.parametrize(("error", "state"), [(ValueError("bad"), "failed"), (KeyboardInterrupt(), "interrupted")], ids=repr)
def test_an_error_in_the_block_of_a_writer_ends_its_run(tmp_path: Path, error: BaseException, state: str) -> None:
    fail(tmp_path / "run", error)
    run = open_run(tmp_path / "run")
    assert (run.state, run.end.error, run.end.message) == (state, type(error).__name__, str(error))  # type: ignore[union-attr]
    assert run.end.line.startswith("test_run_state.py:")  # type: ignore[union-attr]
    assert run.description.attempts[0].ended is not None  # for readers that know no ends
    assert repr(run).splitlines()[0].startswith(f"Run run · {state} · ")
    assert repr(run).splitlines()[1] == run.end.words  # type: ignore[union-attr]


def test_a_run_in_memory_has_the_same_states() -> None:
    writer = memory_run()
    run = writer.run()
    assert (run.state, run.end) == ("running", None)
    writer.note_end(ValueError("bad"), step=3, epoch=1)
    writer.note_end(RuntimeError("a later one"))
    writer.close()
    assert run.state == "failed"
    assert (run.end.message, run.end.step, run.end.epoch) == ("bad", 3, 1)  # type: ignore[union-attr]


def test_a_run_that_is_resumed_after_an_error_has_its_state_anew(tmp_path: Path) -> None:
    """The end of the first attempt stays in the list of attempts."""
    fail(tmp_path / "run", ValueError("first"))
    with start_run(tmp_path / "run", exists="resume") as writer:
        run = open_run(tmp_path / "run")
        assert (run.state, run.end) == ("running", None)
        writer.append("moments", PLACE, {"rms": [1.0]}, step=1)
    assert (run.state, run.end) == ("ended", None)
    assert [end.message for end in run.ends] == ["first"]


def test_the_error_is_known_before_the_rows_are_merged(tmp_path: Path) -> None:
    """A process that is killed while it closes its run has still said why."""
    writer = start_run(tmp_path / "run")
    writer.append("moments", PLACE, {"rms": [1.0]}, step=0)
    writer.note_end(ValueError("bad"), step=0)
    writer.flush()
    run = open_run(tmp_path / "run")
    assert (run.state, run.end.message) == ("running", "bad")  # type: ignore[union-attr]
    leave(writer)
    assert (run.state, run.end.message) == ("failed", "bad")  # type: ignore[union-attr]
    assert run.description.attempts[0].ended is None


def test_the_error_of_another_rank_is_that_of_the_run(tmp_path: Path) -> None:
    """Whether rank 0 still runs, is killed by the launcher, or ends by itself."""
    first = start_run(tmp_path / "run")
    first.append("moments", PLACE, {"rms": [1.0]}, step=0)
    third = join_run(tmp_path / "run", rank=3, attempt=1)
    third.note_end(ValueError("bad"), step=17)
    third.close()
    run = open_run(tmp_path / "run")
    assert run.state == "running"
    assert run.end.words == "failed at step 17 on rank 3: ValueError: bad"  # type: ignore[union-attr]
    leave(first)
    assert run.state == "failed"
    with start_run(tmp_path / "run", exists="resume"):
        fourth = join_run(tmp_path / "run", rank=3, attempt=2)
        fourth.note_end(RuntimeError("worse"))
        fourth.close()
    assert (run.state, run.end.message) == ("failed", "worse")  # type: ignore[union-attr]


def test_a_run_whose_process_is_gone_is_lost(tmp_path: Path) -> None:
    writer = start_run(tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.state == "running"
    leave(writer)
    assert (run.state, run.end) == ("lost", None)


def test_every_place_says_the_same_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``repr``, the table of runs, ``list``, ``show``, ``info`` and the live page; and JSON has the parts."""
    path = tmp_path / "run"
    fail(path, ValueError("no \x1b[31mcolour"))
    words = open_run(path).end.words  # type: ignore[union-attr]
    assert words.startswith("failed: ValueError: no ")
    shown = words.replace("\x1b", "�")
    texts = [repr(open_run(path)), repr(open_runs(tmp_path))]
    for command in (["list", str(tmp_path)], ["show", str(path)], ["info", str(path)]):
        assert main(command) == 0
        texts.append(capsys.readouterr().out)
    for text in texts:
        assert "failed" in text
        assert shown[:40] in " ".join(text.split())  # a table may fold it
        assert "\x1b" not in text
    for command in (["list", str(tmp_path)], ["show", str(path)], ["info", str(path)]):
        assert main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        found = found["runs"][0] if command[0] == "list" else found
        assert (found["state"], found["end"]["error"], found["end"]["attempt"]) == ("failed", "ValueError", 1)
    assert main(["list", str(tmp_path), "--state", "failed", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1
    (entry,) = FollowedRuns(tmp_path).entries()
    assert (entry["state"], entry["end"]["words"]) == ("failed", shown)


def test_where_locks_are_unknown_a_run_that_was_just_written_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.run.run_state.is_locked", lambda path: None)
    writer = start_run(tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.state == "running"
    for file in (tmp_path / "run").glob("*.json"):
        os.utime(file, (1.0, 1.0))
    assert run.state == "lost"
    writer.close()
    assert run.state == "ended"


def test_a_run_that_failed_before_its_first_row_says_so_and_not_when_rows_come(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        writer.note_end(ValueError("the batch has no labels"))
    with pytest.raises(UnknownSiteError, match="the run is failed, and nothing was recorded; failed: ValueError: the batch has no"):
        open_run(tmp_path / "run").table("moments")
