"""Runs are found, their states told apart, and what is new is seen without reading; one that cannot be read spoils no other."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.view.app import made_runs

from sonde.errors import StoreError, UnknownSiteError
from sonde.run.folder.json_file import write_json
from sonde.run.folder.lock import is_locked
from sonde.run.folder.source import DiskSource
from sonde.run.run import open_run
from sonde.run.run_folder import RunFolder
from sonde.run.schema import VERSION
from sonde.run.store.memory_writer import memory_run
from sonde.run.store.open import start_run
from sonde.view.app import followed_runs
from sonde.view.app.answers.layer_pictures import flow
from sonde.view.app.bounded_cache import BoundedCache
from sonde.view.app.followed_runs import FollowedRuns


def states(followed: FollowedRuns) -> dict[str, str]:
    return {entry["name"]: entry["state"] for entry in followed.entries()}


def test_a_writer_is_running_and_then_ended(tmp_path: Path) -> None:
    followed = FollowedRuns(tmp_path)
    assert followed.entries() == []
    with made_runs.growing_run(tmp_path / "run") as writer:
        made_runs.small(writer, range(3))
        writer.flush()
        followed._next_search = 0
        assert followed.news()[1]
        assert states(followed) == {"run": "running"}
        (found,) = followed.ids
        assert flow(followed.opened(found), "rms")["step"] == 2
        assert followed.news() == ([], False)
        made_runs.small(writer, range(3, 5))
        writer.flush()
        followed.refresh()  # as the answer to another reader does
        assert followed.news()[0] == [found]
        assert flow(followed.opened(found), "rms")["step"] == 4
        assert followed.entries()[0]["last"] == 4
    followed.refresh()
    assert states(followed) == {"run": "ended"}


def test_a_list_that_takes_long_has_all_names_at_once_and_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was read keeps its entry until it is read again, and readers are told to ask again."""
    for name in "abc":
        with start_run(tmp_path / name) as writer:
            writer.scalar("loss", 1.0, step=0)
    followed = FollowedRuns(tmp_path)
    none = followed.entries(seconds=0)
    assert [(each["name"], each["state"], each["health"], each["unread"]) for each in none] == [
        (name, "ended", "unknown", True) for name in "abc"
    ]
    assert followed.news() == ([], True)
    clock = iter([0.0, 0.1, 0.2, 9.9])  # when it begins, and before each run
    with monkeypatch.context() as patched:
        patched.setattr(followed_runs, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        some = followed.entries(seconds=5.0)
    assert [each.get("loss_last") for each in some] == [1.0, 1.0, None]
    assert followed.news() == ([], True)
    assert [each["loss_last"] for each in followed.entries()] == [1.0] * 3
    assert followed.news() == ([], False)
    with start_run(tmp_path / "a", exists="resume", step=1) as writer:
        writer.scalar("loss", 2.0, step=1)
    followed.refresh()
    assert [each["loss_last"] for each in followed.entries(seconds=0)] == [1.0] * 3
    assert [each["loss_last"] for each in followed.entries()] == [2.0, 1.0, 1.0]


def test_readers_are_told_of_new_data_at_the_first_look_after_its_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are less than two seconds apart: with the pause replaced, one look is enough."""
    pytest.importorskip("starlette")
    from sonde.view.app import server

    pauses: list[float] = []
    written = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await written.wait()
        written.clear()

    async def told() -> str:
        with made_runs.growing_run(tmp_path / "run") as writer:
            made_runs.small(writer, range(3))
            writer.flush()
            changes = server.Changes(FollowedRuns(tmp_path))
            reader = changes.read()
            await anext(reader)
            while not pauses:  # the first look has nothing to tell
                await yielded(0)
            made_runs.small(writer, range(3, 5))
            writer.flush()
            written.set()
            said = await anext(reader)
            changes.end()
            written.set()
            await reader.aclose()
            return said

    yielded = asyncio.sleep
    monkeypatch.setattr(server.asyncio, "sleep", pause)
    with ThreadPoolExecutor(1) as threads:  # the thread of the tests may have the loop of a browser
        said = threads.submit(lambda: asyncio.run(asyncio.wait_for(told(), 60))).result()
    assert '"version"' in said
    assert max(pauses) < 2


def test_a_run_whose_writer_is_gone_is_lost(tmp_path: Path) -> None:
    """The lock of a killed process is free; nothing is written into the folder to see that."""
    folder = tmp_path / "run"
    code = (
        "import os, sys; from sonde.run import Layout, start_run\n"
        f"writer = start_run({str(folder)!r}); writer.append('moments', Layout(['a:output']), {{'rms': [1.0]}}, step=0)\n"
        "writer.flush(); print('written', flush=True); sys.stdin.readline(); os._exit(9)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    followed = FollowedRuns(tmp_path)
    assert states(followed) == {"run": "running"}
    process.communicate("\n")
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    followed.refresh()
    assert states(followed) == {"run": "lost"}
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_looking_at_a_lock_does_not_release_it(tmp_path: Path) -> None:
    """Closing any descriptor of the file would, were it the same process."""
    folder = tmp_path / "run"
    code = f"from pathlib import Path; from sonde.run.folder.lock import is_locked; print(is_locked(Path({str(folder)!r})))"
    with made_runs.growing_run(folder):
        assert is_locked(folder)
        for _ in range(2):
            said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            assert said == "True\n"
    assert not is_locked(folder)


def test_damaged_and_newer_runs_are_listed_beside_the_others(tmp_path: Path) -> None:
    made_runs.small_run(tmp_path / "good")
    made_runs.small_run(tmp_path / "newer")
    held = json.loads((tmp_path / "newer" / "run.json").read_text())
    del held["checksum"]
    write_json(tmp_path / "newer" / "run.json", {**held, "version": VERSION + 1}, sync=False)
    start_run(tmp_path / "empty").close()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    followed = FollowedRuns(tmp_path)
    entries = {entry["name"]: entry for entry in followed.entries()}
    assert states(followed) == {"damaged": "damaged", "empty": "ended", "good": "ended", "newer": "newer"}
    assert "update sonde" in entries["newer"]["error"]
    assert [entries[name]["health"] for name in ("damaged", "empty", "good")] == ["unknown", "unknown", "ok"]  # nothing to judge
    with pytest.raises(StoreError, match="update sonde"):
        followed.opened(entries["newer"]["id"])


def test_a_damaged_part_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    made_runs.small_run(tmp_path / "run")
    part = next((tmp_path / "run" / "moments").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-50])
    followed = FollowedRuns(tmp_path)
    with pytest.warns(UserWarning, match="is damaged and is left out"):
        assert followed.opened(followed.ids[0]).known.numbers == {}
    assert "is damaged" in followed.opened(followed.ids[0]).run.lost["moments"][0]


def test_a_run_that_is_removed_leaves_the_list(tmp_path: Path) -> None:
    made_runs.small_run(tmp_path / "run")
    followed = FollowedRuns(tmp_path)
    (found,) = followed.ids
    shutil.rmtree(tmp_path / "run")
    followed._next_search = 0
    assert followed.news()[1]
    assert followed.entries() == []
    with pytest.raises(UnknownSiteError, match="the id of no run"):
        followed.opened(found)


def test_one_run_in_memory_is_followed() -> None:
    writer = memory_run()
    made_runs.small(writer, range(2))
    followed = FollowedRuns(writer.run())
    (found,) = followed.ids
    assert states(followed) == {"in memory": "running"}
    made_runs.small(writer, range(2, 4))
    assert followed.news()[0] == [found]
    assert flow(followed.opened(found), "rms")["step"] == 3


def test_one_run_on_disk_is_a_list_of_one(runs: Path) -> None:
    assert states(FollowedRuns(runs / "small")) == {"small": "ended"}
    assert states(FollowedRuns(open_run(runs / "small"))) == {"small": "ended"}


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist; give the folder that holds"):
        FollowedRuns(tmp_path / "nothing")


def test_an_entry_has_the_settings_and_metrics_of_its_run(tmp_path: Path) -> None:
    """Of a loss the best value is the least, of an accuracy the greatest; norms and rates are no metrics."""
    with start_run(tmp_path / "run", about={"config": {"model": {"depth": 2}, "name": "x"}}) as writer:
        for step, loss, accuracy in ((0, 3.0, 0.1), (1, 1.0, 0.9), (2, 2.0, 0.8), (3, math.nan, 0.7)):
            writer.scalar("val_loss", loss, step=step)
            writer.scalar("accuracy", accuracy, step=step)
            writer.scalar("grad_norm", 1.0, step=step)
            writer.scalar("lr", 0.1 / (1 + step), step=step)
    (entry,) = FollowedRuns(tmp_path).entries()
    assert entry["settings"] == {"model.depth": 2, "name": "x", "lr": 0.1}
    assert entry["metrics"] == {"accuracy": {"last": 0.7, "best": 0.9}, "val_loss": {"last": None, "best": 1.0}}
    assert [value for value in entry["course"] if value is not None] == [3.0, 1.0, 2.0]
    assert (entry["first"], entry["last"], entry["loss_last"]) == (0, 3, None)


def test_only_what_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of many runs stays quick: the second one reads nothing, and the first one no rows."""
    for name in range(3):
        made_runs.small_run(tmp_path / f"run-{name}", range(2))
    followed = FollowedRuns(tmp_path)
    first = followed.entries()
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "kept_summary", property(lambda self: pytest.fail("read again")))
        followed.refresh()
        assert followed.entries() == first
    monkeypatch.setattr(DiskSource, "files", lambda *_: pytest.fail("rows were read"))
    assert FollowedRuns(tmp_path).entries() == first


def test_a_cache_makes_a_thing_once_and_drops_the_oldest() -> None:
    cache = BoundedCache(10)
    made: list[str] = []

    def get(key: str) -> str:
        return cache.get((key,), lambda: made.append(key) or key, lambda _: 4)

    for key in "aabacb":
        assert get(key) == key
    assert made == ["a", "b", "c", "b"]
    with pytest.raises(ZeroDivisionError):
        cache.get(("d",), lambda: 1 // 0, len)
