"""A sink that may block is called in a thread of its own: the training and its run never wait for it, and what is lost is said."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.inspector.training import small, train

from sonde.errors import ObservationWarning
from sonde.inspector import Rows, Sink, watch
from sonde.inspector.pipeline import sink_thread
from sonde.rules import Finding
from sonde.run.run import Run, open_run


class Remote(Sink):
    """A sink that may block, which notes its calls; it waits in ``write`` until the gate is open."""

    may_block = True
    timeout = 30.0

    def __init__(self, *, is_open: bool = True) -> None:
        self.gate = threading.Event()
        self.reached = threading.Event()
        if is_open:
            self.gate.set()
        self.calls: list[str] = []
        self.steps: list[int] = []
        self.threads: set[str] = set()
        self.description: Mapping[str, Any] = {}
        self.findings: list[Finding] = []
        self.run: Run | None = None

    def prepare(self) -> None:
        self.calls.append(f"prepare in {threading.current_thread().name}")

    def open(self, description: Mapping[str, Any]) -> None:
        self.calls.append("open")
        self.description = description

    def write(self, rows: Rows) -> None:
        self.reached.set()
        assert self.gate.wait(60)
        self.threads.add(threading.current_thread().name)
        if rows.family == "moments":
            self.steps.append(rows.step)

    def alert(self, finding: Finding) -> None:
        self.findings.append(finding)

    def finish(self, run: Run | None, *, failed: bool) -> None:
        self.run = run
        self.calls.append(f"finish, {'failed' if failed else 'well'}, {'no run' if run is None else run.state}")

    def close(self) -> None:
        self.calls.append("close")


def test_the_sink_gets_everything_in_order_and_reads_the_closed_run(tmp_path: Path) -> None:
    sink = Remote()
    model, optimizer = small()
    with watch(model, every=1, to=[sink, tmp_path / "run"], verbose=False):
        train(model, optimizer, 4)
    assert sink.calls == ["prepare in MainThread", "open", "finish, well, ended", "close"]
    assert sink.steps == [0, 1, 2, 3]
    assert sink.description["path"] == str(tmp_path / "run")
    assert sink.description["model"]
    assert threading.current_thread().name not in sink.threads
    assert sink.run is not None
    assert sink.run.last_step == 3


def test_findings_come_as_in_the_run(tmp_path: Path) -> None:
    sink = Remote()
    model, optimizer = small()
    model[0].bias.data.fill_(-100.0)  # type: ignore[index, union-attr, operator]
    with watch(model, every=1, to=[tmp_path / "run", sink], verbose=False):
        train(model, optimizer, 12)
    recorded = open_run(tmp_path / "run").findings
    assert recorded
    assert [(found.rule, found.site, found.step) for found in sink.findings] == [
        (each.rule, each.site, each.step) for each in recorded
    ]


def test_a_sink_that_hangs_holds_up_neither_the_training_nor_its_run_and_the_end_waits_its_time(tmp_path: Path) -> None:
    sink = Remote(is_open=False)
    sink.timeout = 0.05
    model, optimizer = small()
    inspector = watch(model, every=1, to=[tmp_path / "run", sink], verbose=False)
    train(model, optimizer, 3)
    run = inspector.run  # flushed, though the sink hangs
    assert sink.reached.wait(30)
    assert run.scalar("grad_norm")[0].tolist() == [0, 1, 2]
    with pytest.warns(ObservationWarning, match=r"Remote raised TimeoutError: it did not end within 0\.05 seconds") as said:
        inspector.detach()
    assert len(said) == 1
    assert [error.observer for error in inspector.errors] == ["Remote"]
    assert open_run(tmp_path / "run").state == "ended"
    sink.gate.set()


def test_a_sink_for_which_there_is_no_room_loses_its_rows_alone_and_this_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_thread, "_LIMITS", sink_thread.QueueLimits(seconds=0.01, size=1, limit=1, patience=0.0))
    sink = Remote(is_open=False)
    model, optimizer = small()
    inspector = watch(model, every=1, to=[tmp_path / "run", sink], verbose=False)
    with pytest.warns(ObservationWarning, match="Remote does not keep up; some of its rows are lost, none of the run's") as said:
        for step in range(4):
            train(model, optimizer, 1)
            assert inspector.run.last_step == step
        sink.gate.set()
        inspector.detach()
    assert len(said) == 1
    assert open_run(tmp_path / "run").scalar("grad_norm")[0].tolist() == [0, 1, 2, 3]
    assert sink.steps == sorted(sink.steps)
    assert len(sink.steps) < 4
    assert "lost" in str(inspector.errors[0].error)
    assert sink.calls[-2:] == ["finish, well, ended", "close"]


@pytest.mark.parametrize("method", ["open", "write", "alert", "finish", "close"])
def test_a_sink_that_keeps_raising_is_not_called_again_but_closed(tmp_path: Path, method: str) -> None:
    """Its rows and findings are tried again some times, its end is not."""

    class Failing(Remote):
        pass

    def fail(*_: Any, **__: Any) -> None:
        sink.calls.append(method)
        raise OSError("no route to host")

    sink = Failing()
    setattr(sink, method, fail)
    model, optimizer = small()
    model[0].bias.data.fill_(-100.0)  # type: ignore[index, union-attr, operator]
    with (
        pytest.warns(ObservationWarning, match="Failing raised OSError: no route to host; nothing more is written to it") as said,
        watch(model, every=1, to=[tmp_path / "run", sink], verbose=False) as inspector,
    ):
        train(model, optimizer, 12)
    assert len(said) == 1
    assert sink.calls.count(method) == 1 if method in ("finish", "close") else 1 < sink.calls.count(method) < 6
    assert sink.calls[-1] == "close"
    assert [error.observer for error in inspector.errors] == ["Failing"]
    assert open_run(tmp_path / "run").scalar("grad_norm")[0].tolist() == list(range(12))


@pytest.mark.parametrize("method", ["open", "write", "scalar", "alert"])
def test_a_sink_that_raises_once_gets_everything_once(tmp_path: Path, method: str) -> None:
    sink = Remote()
    call, raised = getattr(sink, method), []

    def once(*given: Any) -> None:
        if not raised:
            raised.append(method)
            raise SystemError("bad argument")
        call(*given)

    setattr(sink, method, once)
    model, optimizer = small()
    model[0].bias.data.fill_(-100.0)  # type: ignore[index, union-attr, operator]
    with watch(model, every=1, to=[tmp_path / "run", sink], verbose=False) as inspector:
        train(model, optimizer, 12)
    assert raised == [method]
    assert inspector.errors == ()
    assert sink.steps == list(range(12))
    assert len(sink.findings) == len(open_run(tmp_path / "run").findings)
    assert sink.calls[-2:] == ["finish, well, ended", "close"]


def test_an_exception_of_the_training_is_told(tmp_path: Path) -> None:
    sink = Remote()
    model, optimizer = small()

    def stopped() -> None:
        with watch(model, every=1, to=[tmp_path / "run", sink], verbose=False):
            train(model, optimizer, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert sink.calls[-2:] == ["finish, failed, interrupted", "close"]


def test_a_training_without_a_logged_step_opens_nothing(tmp_path: Path) -> None:
    sink = Remote()
    watch(small()[0], every=1, to=[tmp_path / "run", sink], verbose=False).detach()
    assert sink.calls == ["prepare in MainThread", "close"]


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    model, optimizer = small()
    with watch(model, every=1, to=[tmp_path / "run", Remote(), Remote()], verbose=False):
        train(model, optimizer, 1)
        assert len(set(threading.enumerate()) - before) == 3
    assert set(threading.enumerate()) <= before
