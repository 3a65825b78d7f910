"""A path is resolved once, when it is given: wherever the process goes, and with ~ as everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde.errors import ArgumentError
from sonde.graph import Graph
from sonde.paths import absolute_path, is_inside, short_path
from sonde.recorders import ForwardOutput, open_recorded
from sonde.run import join_run, start_run
from sonde.view import plots


def test_a_path_is_absolute_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert absolute_path("runs/a") == tmp_path / "runs" / "a"
    assert absolute_path(Path("~/runs")) == Path("/home/somebody/runs")
    assert absolute_path("a~b") == tmp_path / "a~b"
    assert short_path(tmp_path / "runs" / "a") == str(Path("runs", "a"))
    assert short_path(Path("/elsewhere")) == "/elsewhere"


@pytest.mark.parametrize("path", [3, None, "a\0b", "half \ud83d", "~nobody-has-this-name/x", b"bytes"])
def test_what_cannot_be_a_path_is_refused(path: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be a path"):
        absolute_path(path)


def test_a_link_out_of_a_folder_is_outside(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").touch()
    (folder / "here").touch()
    (folder / "near").symlink_to("here")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "loop").symlink_to("loop")
    (tmp_path / "same").symlink_to(folder)
    assert [is_inside(folder, folder / name) for name in ("here", "near", "out", "loop", "../secret")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert is_inside(tmp_path / "same", folder / "here")
    assert is_inside(folder, tmp_path / "same" / "near")


def watched(path: str, leave: Callable[[], None]) -> None:
    model = nn.Linear(2, 1)
    with sonde.watch(model, every=1, to=path, verbose=False) as inspector:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            inspector.step()
            leave()
    assert inspector.run.last_step == 2


@pytest.mark.parametrize("given", ["runs/quiet-otter", "~/quiet-otter"])
def test_a_training_that_changes_its_folder_keeps_its_run(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra, notebooks and launchers call os.chdir after the paths were read."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    watched(given, lambda: os.chdir(tmp_path / "elsewhere"))
    assert not list((tmp_path / "elsewhere").iterdir())
    folder = tmp_path / given.replace("~", "home")
    monkeypatch.chdir(tmp_path)
    run = sonde.open_run(given)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run.path == folder
    assert run.last_step == 2
    assert run.coverage is not None


def test_every_path_argument_knows_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model, batch = nn.Sequential(nn.Linear(2, 2)), torch.ones(3, 2)
    with sonde.track(model) as tracker:
        model(batch)
    assert tracker.save("~/kept") == tmp_path / "kept"
    assert len(sonde.open_tensors("~/kept")) == len(tracker)
    recorder = ForwardOutput().modules(model)
    model(batch)
    recorder.save("~/recorded")
    recorder.remove()
    assert len(open_recorded("~/recorded")) == 2
    assert sonde.capture(model, batch).save("~/graph.json") == tmp_path / "graph.json"
    assert len(Graph.load("~/graph.json")) > 0
    with start_run(root="~/many") as writer:
        assert writer.path.parent == tmp_path / "many"
        writer.scalar("loss", 1.0, step=0)
        with join_run(f"~/many/{writer.path.name}", rank=1, attempt=1) as other:
            other.scalar("loss", 2.0, step=0)
    plots.save(sonde.open_run(writer.path), "~/pictures")
    made = {path.name for path in tmp_path.iterdir()} - {".cache", ".config"}  # matplotlib's own
    assert made == {"graph.json", "kept", "many", "pictures", "recorded"}


def test_a_run_behind_a_link_is_read(tmp_path: Path) -> None:
    """A link to the newest run, as many scripts keep one."""
    with start_run(tmp_path / "run-7") as writer:
        writer.scalar("loss", 1.0, step=0)
    (tmp_path / "latest").symlink_to("run-7")
    assert sonde.open_run(tmp_path / "latest").scalar("loss")[0].tolist() == [0]
