"""Where rows go: what a sink of one's own is given, several targets at once, a writer or a run that is there already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.inspector.training import small, train
from tests.quick import quick

from sonde.errors import ArgumentError, StoreError
from sonde.inspector import Inspector, Rows, RunSink, Scalar, Sink, watch
from sonde.run.run import Run, open_run
from sonde.run.store.memory_writer import memory_run


class Kept(Sink):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rows: list[Rows] = []
        self.scalars: list[Scalar] = []

    def open(self, description: Mapping[str, Any]) -> None:
        self.calls.append("open")
        assert description["model"]

    def write(self, rows: Rows) -> None:
        self.rows.append(rows)

    def scalar(self, scalar: Scalar) -> None:
        self.scalars.append(scalar)

    def close(self) -> None:
        self.calls.append("close")


def test_a_sink_is_opened_fed_and_closed() -> None:
    """Each family of each logged step, and the scalars."""
    model, optimizer = small()
    sink = Kept()
    with watch(model, every=2, to=sink, verbose=False) as inspector:
        train(model, optimizer, 5)
    assert sink.calls == ["open", "close"]
    assert [(rows.family, rows.step) for rows in sink.rows if rows.family == "moments"] == [("moments", step) for step in (0, 2, 4)]
    first = sink.rows[0]
    assert len(first.sites) == len(first.numbers["rms"]) == 18
    assert set(first.counts) == {1.0}
    keys = ["epoch", "step", "micro_step", "scope", "ranks", "model", "site", "layer", "port", "leaf", "call", "order"]
    assert list(first.columns())[: len(keys)] == keys
    assert {scalar.name for scalar in sink.scalars} >= {"grad_norm", "param_norm", "update_norm"}
    assert inspector.path is None


def test_several_targets_get_the_same(tmp_path: Path) -> None:
    """A folder, a sink and a visualizer at once."""
    model, optimizer = small()
    sink = Kept()
    seen: list[Run] = []
    with watch(model, every=1, to=[tmp_path / "run", sink, seen.append], verbose=False):
        train(model, optimizer, 2)
    run = open_run(tmp_path / "run")
    assert len(seen) == 1
    assert [scalar.value for scalar in sink.scalars if scalar.name == "grad_norm"] == run.scalar("grad_norm")[1].tolist()


@pytest.mark.slow
def test_visualizers_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print, pictures and TensorBoard beside the folder, each in a folder of the run."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    model, optimizer = small()
    shown = ["print", "matplotlib", "tensorboard"]
    with watch(model, every=1, to=[tmp_path / "run", *shown], verbose=False):
        train(model, optimizer, 2)
    assert "update / weight" in capsys.readouterr().out
    assert (tmp_path / "run" / "pictures" / "update_ratio.png").is_file()
    assert any((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))
    assert open_run(tmp_path / "run").last_step == 1


def test_a_name_alone_keeps_the_run_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """As a visualizer that is a callable does; nothing called "print" is made on disk."""
    model, optimizer = small()
    with watch(model, every=1, to="print", verbose=False) as inspector:
        train(model, optimizer, 2)
    assert inspector.path is None
    assert not Path("print").exists()
    assert "run in memory" in capsys.readouterr().out


def test_a_folder_may_have_the_name_of_a_visualizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given as a path, it is where the run is written."""
    monkeypatch.chdir(tmp_path)
    model, optimizer = small()
    with watch(model, every=1, to="./print", verbose=False):
        train(model, optimizer, 1)
    assert open_run(tmp_path / "print").last_step == 0


def test_an_unknown_name_is_no_folder() -> None:
    """The nearest name is said, and that folders are given elsewhere."""
    with pytest.raises(ArgumentError, match="Nearest: matplotlib"):
        Inspector(visualizer="matplotlb", to="memory")


def test_a_writer_that_is_given_stays_open() -> None:
    """Its owner closes it, and may write more."""
    model, optimizer = small()
    with memory_run() as writer:
        for to in (writer, RunSink(writer, owned=False)):
            with watch(model, every=1, to=to, verbose=False, step=writer.run().last_step + 1):
                train(model, optimizer, 2)
        writer.scalar("mine", 1.0, step=4)
        assert writer.run().scalar("grad_norm")[0].tolist() == [0, 1, 2, 3]


def test_a_run_that_was_opened_can_be_continued(tmp_path: Path) -> None:
    """As ``exists="resume"`` with its path; the epoch goes on too."""
    model, optimizer = small()
    with watch(model, every=1, to=tmp_path / "run", verbose=False) as inspector:
        train(model, optimizer, 2)
        inspector.tick_epoch()
        train(model, optimizer, 1)
    with watch(model, every=1, to=open_run(tmp_path / "run"), verbose=False) as inspector:
        train(model, optimizer, 2)
    rows = inspector.run.table("scalars").to_pylist()
    assert [(row["epoch"], row["step"]) for row in rows if row["name"] == "grad_norm"] == [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize(
    ("given", "exists"),
    quick([("run", "error"), ("run", "replace"), ("run", "unique"), (None, "error"), (["run"], "error")], ("run", "error")),
)
def test_a_job_that_was_started_again_continues_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, exists: Any
) -> None:
    """As torchrun does after a failure. Another job, or the same job the first time, does what *exists* says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    for count in range(3):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(count))
        model, optimizer = small()
        with watch(model, every=1, to=given, exists=exists, verbose=False) as inspector:
            train(model, optimizer, 2)
    run = inspector.run
    assert run.scalar("grad_norm")[0].tolist() == list(range(6))
    assert [attempt.first_step for attempt in run.description.attempts] == [0, 2, 4]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "two")
    if exists == "error" and given is not None:
        with pytest.raises(StoreError, match="holds a run already"):
            watch(small()[0], to=given)
