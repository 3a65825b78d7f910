"""A run that is played is the run: sinks get every number, visualizers see it grow, and TensorBoard's own reader agrees."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from sonde.errors import ArgumentError, MissingExtraError
from sonde.inspector.sinks import Nothing, Pictures, Print, TensorBoard, memory
from sonde.inspector.sinks.base import RunSink, Sink
from sonde.rows import KEYS, Layout, Rows, Scalar
from sonde.run.run import Run, open_run
from sonde.run.store.memory_writer import memory_run
from sonde.run.store.open import join_run, start_run

SITES = ("fc:output", "fc.weight:param", "fc.weight:grad", "fc.weight:update")


def recorded(epochs: int = 3, steps: int = 4, broken: int | None = None) -> Run:
    """A run with moments, activation, exponents, scalars and an alert; at step *broken* a gradient is NaN."""
    writer = memory_run({"model": ["fc"], "lenses": []})
    places, act = Layout(SITES, order=[0, 0, 0, 0]), Layout(["act:output"], order=[1])
    for step in range(epochs * steps):
        epoch = step // steps
        size = np.array([1.0, 2.0, 0.5, 0.002]) * (step + 1)
        nan = [0, 0, float(step == broken), 0]
        writer.append(
            "moments", places, {"rms": size, "norm": 4 * size, "mean": -size, "nan": nan, "inf": 0.0}, step=step, epoch=epoch
        )
        writer.append("activation", act, {"count": 8, "call_activation": [0.5], "call_death": [step / 100]}, step=step, epoch=epoch)
        powers = np.zeros((1, 278))
        powers[0, 149 : 149 + step + 1] = step + 1
        writer.append("exponents", act, {"powers": powers, "zeros": 1.0, "count": 9.0}, step=step, epoch=epoch)
        writer.scalar("loss", 1 / (step + 1), step=step, epoch=epoch)
        writer.scalar("grad_norm", 2.0 * (step + 1), step=step, epoch=epoch)
    writer.alert("92 % dead", step=5, epoch=1, rule="dead", site="act:output", value=0.92, call=-1)
    writer.document("coverage", {"sites": 5})
    return writer.run()


class Noted(Sink):
    """Remembers what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def open(self, description: Mapping[str, Any]) -> None:
        self.calls.append(("open", dict(description)))

    def write(self, rows: Rows) -> None:
        self.calls.append(("write", rows.family, rows.epoch, rows.step, rows.micro_step, tuple(rows.sites)))

    def scalar(self, scalar: Scalar) -> None:
        self.calls.append(("scalar", scalar.name, scalar.epoch, scalar.step, scalar.value))

    def close(self) -> None:
        self.calls.append(("close",))


# Sending


def as_written(run: Run, family: str) -> list[dict[str, Any]]:
    """The rows of a family; those of one place in the order of execution by their sites."""
    return sorted(run.table(family).to_pylist(), key=lambda row: (row["step"], row.get("site", row.get("name"))))


@pytest.mark.parametrize("family", ["moments", "activation", "exponents", "scalars"])
def test_sending_to_another_run_writes_the_same_run(family: str) -> None:
    run, sink = recorded(broken=7), memory()
    run.send_to(sink)
    copy = sink.run()
    assert as_written(copy, family) == as_written(run, family)
    assert copy.families == run.families
    assert copy.info == run.info
    assert copy.coverage == {"sites": 5}
    assert copy.findings == run.findings


def test_an_alert_of_a_program_is_sent_too() -> None:
    """It has no rule and no place; what a finding has besides is that of a finding about all calls."""
    writer, sink = memory_run(), memory()
    writer.alert("the disk is nearly full", step=3)
    writer.run().send_to(sink)
    (sent,) = sink.run().findings
    assert (sent.message, sent.step, sent.rule, sent.call) == ("the disk is nearly full", 3, "", -1)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_run_is_sent_whole(data: st.DataObject) -> None:
    """Rows that are missing at a step, several micro-steps and calls, several families: nothing is lost or moved."""
    writer = memory_run()
    names = [f"l{place}:{port}" for place in range(3) for port in ("output", "grad")]
    layout = Layout([*names, "l0:output"], call=[0] * 6 + [1], order=[0, 0, 1, 1, 2, 2, 0])
    for step in sorted(data.draw(st.sets(st.integers(0, 600), min_size=1, max_size=6))):
        for micro_step in range(data.draw(st.integers(1, 2))):
            for family in ("one", "two"):
                rows = data.draw(st.lists(st.integers(0, 6), unique=True, max_size=7))
                numbers = {"a": np.arange(7) + step / 7, "b": np.arange(14).reshape(7, 2) * 1.5}
                writer.append(
                    family, layout, numbers, step=step, epoch=step // 200, micro_step=micro_step, rows=np.array(rows, int)
                )
    run, sink = writer.run(), memory()
    run.send_to(sink)
    for family in run.families:
        columns = [*KEYS, "a", "b"]
        order = 'ORDER BY step, micro_step, "order", site, call'
        listed = ", ".join(f'"{name}"' for name in columns)
        query = f"SELECT {listed} FROM {family} {order}"
        assert sink.run().sql(query).fetchall() == run.sql(query).fetchall()


def test_a_sink_is_opened_fed_in_order_and_closed() -> None:
    noted = Noted()
    recorded(1, 2).send_to(noted)
    assert [call[0] for call in noted.calls] == ["open", *(["write"] * 3 + ["scalar"] * 2) * 2, "close"]
    assert noted.calls[0] == ("open", {"model": ["fc"], "lenses": [], "path": None})
    assert [call[3] for call in noted.calls[1:-1]] == [0] * 5 + [1] * 5
    assert {call[1]: call[5] for call in noted.calls if call[0] == "write"}["moments"] == tuple(sorted(SITES))


def test_one_rank_is_played(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as first:
        first.append("one", Layout(["a:output"]), {"x": [1.0]}, step=0)
        with join_run(tmp_path / "run", rank=1, attempt=first.attempt) as second:
            second.append("one", Layout(["a:output"]), {"x": [2.0]}, step=0)
    for rank, value in ((0, 1.0), (1, 2.0)):
        sink = memory()
        open_run(tmp_path / "run").send_to(sink, rank=rank)
        assert sink.run().series("a", "x")[1].tolist() == [value]


def test_a_visualizer_sees_the_run_as_it_was_after_each_epoch_and_at_the_end() -> None:
    seen: list[tuple[int, int, int]] = []
    recorded(3, 4).send_to(lambda run: seen.append((run.last_step, len(run.table("moments")), len(run.findings))))
    assert seen == [(3, 16, 0), (7, 32, 1), (11, 48, 1)]


def test_every_chooses_steps_and_shows_each() -> None:
    seen: list[int] = []
    sink = memory()
    recorded().send_to(sink, lambda run: seen.append(run.last_step), every=5)
    assert seen == [0, 5, 10]
    assert sink.run().series("fc", "rms")[0].tolist() == [0, 5, 10]
    assert sink.run().scalar("loss")[0].tolist() == [0, 5, 10]
    listed = memory()
    recorded().send_to(listed, every=[1, 3])
    assert listed.run().series("fc", "rms")[0].tolist() == [1, 3]


def test_an_empty_run_is_opened_and_closed_and_shown_to_nobody() -> None:
    noted = Noted()
    memory_run().run().send_to(noted, lambda run: pytest.fail("there is nothing to see"))
    assert [call[0] for call in noted.calls] == ["open", "close"]


@pytest.mark.parametrize(("targets", "said"), [((), "give a sink"), ((3,), "3 is neither"), ((Print,), r"make one, Print\(")])
def test_what_is_no_target_is_refused(targets: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        recorded(1, 1).send_to(*targets)


@pytest.mark.parametrize("every", ["10s", 0, -1])
def test_a_run_has_no_seconds_and_no_zeroth_step(every: Any) -> None:
    with pytest.raises(ArgumentError, match="every="):
        recorded(1, 1).send_to(Nothing(), every=every)


def test_a_sink_that_raises_is_heard_and_all_are_closed() -> None:
    class Failing(Sink):
        def write(self, rows: Rows) -> None:
            raise ValueError("no room")

    noted = Noted()
    with pytest.raises(ValueError, match="no room"):
        recorded(1, 1).send_to(noted, Failing())
    assert noted.calls[-1] == ("close",)


# TensorBoard


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Any]:
    """Reads what is under ``tb`` in the test's folder, by TensorBoard's own reader, keeping every point."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read() -> EventAccumulator:
        return EventAccumulator(str(tmp_path / "tb"), {"scalars": 0, "histograms": 0}).Reload()

    return read


def points(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events().Scalars(tag)]


def test_tensorboard_reads_the_numbers_of_the_run_under_tags_with_the_number_first(tmp_path: Path, events: Any) -> None:
    run = recorded()
    run.send_to(TensorBoard(tmp_path / "tb"))
    for tag, site, number in (
        ("output_rms/fc", "fc:output", "rms"),
        ("grad_norm/fc.weight", "fc.weight:grad", "norm"),
        ("param_norm/fc.weight", "fc.weight:param", "norm"),
        ("update_norm/fc.weight", "fc.weight:update", "norm"),
        ("activation.output_call_death/act", "act:output", "call_death"),
    ):
        steps, values = run.series(site, number)
        assert points(events, tag) == [(step, pytest.approx(value)) for step, value in zip(steps, values, strict=True)]
    assert points(events, "update_ratio/fc.weight") == [(step, pytest.approx(0.001)) for step in range(12)]
    for name in ("loss", "grad_norm"):
        assert points(events, name) == [(step, pytest.approx(value)) for step, value in zip(*run.scalar(name), strict=True)]


def test_by_default_each_tensor_has_one_number_and_counts_have_none(tmp_path: Path, events: Any) -> None:
    recorded(1, 2).send_to(TensorBoard(tmp_path / "tb"))
    assert set(events().Tags()["scalars"]) == {
        "loss",
        "grad_norm",
        "output_rms/fc",
        *(f"{port}_norm/fc.weight" for port in ("param", "grad", "update")),
        "update_ratio/fc.weight",
        "activation.output_call_activation/act",
        "activation.output_call_death/act",
    }


def test_numbers_can_be_chosen(tmp_path: Path, events: Any) -> None:
    recorded(1, 2).send_to(TensorBoard(tmp_path / "tb", numbers=("mean",)))
    assert points(events, "grad_mean/fc.weight") == [(0, -0.5), (1, -1.0)]
    assert "grad_norm/fc.weight" not in events().Tags()["scalars"]
    with pytest.raises(ArgumentError, match="numbers='mean'"):
        TensorBoard(tmp_path / "tb", numbers="mean")


def test_nan_elements_are_counted_where_there_are_any(tmp_path: Path, events: Any) -> None:
    recorded(broken=7).send_to(TensorBoard(tmp_path / "tb"))
    assert points(events, "grad_nonfinite/fc.weight") == [(7, 1.0), *((step, 0.0) for step in range(8, 12))]
    assert "output_nonfinite/fc" not in events().Tags()["scalars"]


def test_two_lenses_on_the_same_tensor_make_one_chart(tmp_path: Path, events: Any) -> None:
    writer = memory_run()
    for family in ("moments", "parameter_gradient", "own"):
        writer.append(family, Layout(["fc.weight:grad"]), {"norm": [3.0], "rms": [1.0]}, step=0)
    writer.run().send_to(TensorBoard(tmp_path / "tb"))
    assert points(events, "grad_norm/fc.weight") == [(0, 3.0)]
    assert points(events, "own.grad_norm/fc.weight") == [(0, 3.0)]


def test_powers_of_two_are_a_histogram(tmp_path: Path, events: Any) -> None:
    recorded(1, 3).send_to(TensorBoard(tmp_path / "tb"))
    last = events().Histograms("output_powers/act")[-1]
    assert last.step == 2
    counts = {
        limit: count for limit, count in zip(last.histogram_value.bucket_limit, last.histogram_value.bucket, strict=True) if count
    }
    assert counts == {0.0: 3, 1.0: 3, 2.0: 3}  # 2**(e-1) < |x| <= 2**e for e of 0, 1, 2
    assert (last.histogram_value.num, last.histogram_value.min, last.histogram_value.max) == (9, -1, 2)


def test_a_folder_with_events_is_continued_and_later_steps_are_superseded(tmp_path: Path, events: Any) -> None:
    first, second = TensorBoard(tmp_path / "tb"), TensorBoard(tmp_path / "tb")
    for step in range(6):
        first.scalar(Scalar("loss", 1.0, 0, step))
    first.close()
    time.sleep(1.1)  # files of one second are read in the order of their writers' numbers as text, 10 before 9
    for step in range(4, 8):
        second.scalar(Scalar("loss", 2.0, 0, step))
    second.close()
    assert points(events, "loss") == [(step, 1.0 if step < 4 else 2.0) for step in range(8)]


def test_without_tensorboard_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sonde\[tensorboard\]'"):
        TensorBoard(tmp_path)


@pytest.mark.slow
def test_sinks_import_neither_tensorboard_nor_matplotlib() -> None:
    import subprocess

    code = (
        "import sys, sonde.inspector.sinks; sys.exit(any(name in sys.modules for name in ('tensorboard', 'matplotlib', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Print, pictures, memory, nothing


def test_print_prints_a_table_at_the_end_of_each_epoch_and_nothing_twice() -> None:
    out = io.StringIO()
    shown = Print(console=Console(file=out, width=120))
    run = recorded(2, 4)
    run.send_to(shown)
    memory_run().run().send_to(shown)
    text = out.getvalue()
    assert text.count("update / weight") == 2
    assert "epoch 0 · medians over steps 0 to 3" in text
    assert "epoch 1 · medians over steps 4 to 7" in text
    shown(run)
    again = out.getvalue()
    shown(run)
    assert out.getvalue() == again


def test_print_goes_to_the_standard_output_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    recorded(1, 1).send_to(Print(include="fc"))
    printed = capsys.readouterr().out
    assert "fc" in printed
    assert "act" not in printed


@pytest.mark.slow
def test_pictures_are_drawn_over_those_of_the_epoch_before(tmp_path: Path) -> None:
    shown = Pictures(tmp_path / "out", theme="dark")
    recorded(2, 2).send_to(shown)
    names = {file.stem for file in (tmp_path / "out").iterdir()}
    assert {"scalars", "update_ratio", "activation-output", "exponents-output", "gradient_flow-grad"} <= names


def test_pictures_say_at_once_that_matplotlib_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="plots"):
        Pictures(tmp_path)


def test_memory_can_be_read_after_it_is_closed_and_nothing_is_kept_of_nothing() -> None:
    sink = memory()
    recorded(1, 2).send_to(sink, Nothing())
    assert isinstance(sink, RunSink)
    assert sink.run().scalar("loss")[1].tolist() == [1.0, 0.5]
