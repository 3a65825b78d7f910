"""W&B's own offline files hold what the run holds: few charts, the right axis, alerts, pictures, the report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.inspector.sinks.trackers import deep, learn, offline_runs

from sonde.errors import ArgumentError, MissingExtraError, ObservationWarning
from sonde.inspector import watch
from sonde.inspector.sinks import WandbSink
from sonde.run.run import open_run

wandb = pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("DIR", str(tmp_path)), ("CONSOLE", "off")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.chdir(tmp_path)
    yield
    wandb.teardown()  # its settings are those of the first run


def numbers_only(**given: Any) -> WandbSink:
    return WandbSink(pictures=False, report=False, **given)


@pytest.mark.slow
def test_a_run_of_its_own_has_the_numbers_of_the_run_at_its_steps_and_ends_well(tmp_path: Path) -> None:
    model = deep()
    to = [tmp_path / "run", numbers_only(layers=3)]
    with watch(model, every=2, to=to, verbose=False, config={"width": 6}) as inspector:
        list(learn(model, inspector, 24))
    assert wandb.run is None  # as before
    (found,) = offline_runs(tmp_path)
    run = open_run(tmp_path / "run")
    assert found.exit_code == 0
    assert found.config["width"] == 6
    assert found.config["sonde"]["run"] == str(tmp_path / "run")
    assert [(row["_step"], row["sonde/step"]) for row in found.rows] == [*enumerate([*range(0, 24, 2), 23])]  # a loss at the end
    for name in ("loss", "grad_norm", "update_norm"):
        steps, values = run.scalar(name)
        assert found.series(f"sonde/{name}") == [(step, pytest.approx(value)) for step, value in zip(steps, values, strict=True)]
    rms = run.heatmap("rms")
    assert found.series("sonde/output_rms.max") == [
        (step, pytest.approx(value)) for step, value in zip(rms.steps.tolist(), rms.values.max(axis=0).tolist(), strict=True)
    ]
    charts = {name for row in found.rows for name in row}
    drawn = {name.removeprefix("sonde/output_rms/") for name in charts if name.startswith("sonde/output_rms/")}
    assert 2 <= len(drawn) <= 3 + 1  # two at once, one more, and that of the finding
    assert {"3"} <= drawn  # all 0: the furthest from the median
    assert "sonde/activation.output_call_death/3" in charts
    assert {found.axes[name] for name in charts - {"sonde/step", "_step"}} == {"sonde/step"}
    (alert,) = [each for each in run.findings if each.severity != "note"]
    ((title, text, level),) = [each for each in found.alerts if each[2] != "INFO"]
    assert (title, level) == (f"sonde: {alert.rule}", "ERROR")
    assert alert.message in text


@pytest.mark.slow
def test_pictures_and_the_report_are_sent_at_the_end(tmp_path: Path) -> None:
    model = deep(2)
    with watch(model, every=1, to=[tmp_path / "run", "wandb"], verbose=False) as inspector:
        list(learn(model, inspector, 3))
    assert isinstance(inspector.visualizer, WandbSink)
    (found,) = offline_runs(tmp_path)
    assert found.artifacts == [("report", ["run.html"])]
    pictures = {name.split("/")[2] for row in found.rows for name in row if "pictures" in name}
    assert {"moments-output", "gradient_flow-grad", "scalars", "update_ratio"} <= pictures
    media = list(tmp_path.glob("wandb/offline-run-*/files/media/images/sonde/pictures/*.png"))
    assert len(media) == len(pictures)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in media)


@pytest.mark.slow
@pytest.mark.parametrize("explicit", [False, True])
def test_the_programs_own_run_keeps_every_row_at_its_step_and_stays_open(tmp_path: Path, explicit: bool) -> None:
    """Its rows come at each step, once in an epoch of five steps, with ``step=`` the number of the epoch; all of them arrive."""
    model = deep(2)
    own = wandb.init(project="mine")
    with watch(model, every=1, to=[tmp_path / "run", numbers_only()], verbose=False) as inspector:
        for step in learn(model, inspector, 15):
            if step % 5 == 4:
                inspector.run.families  # noqa: B018  # what is logged so far is with the sink
                wandb.log({"mine": step}, **({"step": step // 5} if explicit else {}))
    assert wandb.run is own
    own.log({"after": 1.0}, **({"step": 3} if explicit else {}))
    own.finish()
    (found,) = offline_runs(tmp_path)
    assert [(row["_step"], row["mine"]) for row in found.rows if "mine" in row] == [(0, 4), (1, 9), (2, 14)]
    assert [row["_step"] for row in found.rows if "after" in row] == [3]
    series = open_run(tmp_path / "run").scalar("loss")
    known = dict(zip(*(each.tolist() for each in series), strict=True))
    logged = found.series("sonde/loss")
    assert logged
    assert logged == [(step, pytest.approx(known[step])) for step, _ in logged]


@pytest.mark.slow
@pytest.mark.parametrize("own_rows", [False, True])
def test_a_run_to_which_the_program_logs_nothing_gets_every_moment(tmp_path: Path, own_rows: bool) -> None:
    model = deep(2)
    with wandb.init(project="mine") as own:
        with watch(model, every=1, to=["memory", numbers_only(own_rows=own_rows)], verbose=False) as inspector:
            list(learn(model, inspector, 6))
        assert own.summary["sonde/step"] >= 0
    (found,) = offline_runs(tmp_path)
    assert sorted(step for step, _ in found.series("sonde/loss")) == list(range(6))


@pytest.mark.slow
def test_a_resumed_training_continues_its_run_and_an_exception_fails_it(tmp_path: Path) -> None:
    model = deep(2)

    def failing() -> None:
        with watch(model, every=1, to=[tmp_path / "run", numbers_only()], verbose=False) as inspector:
            list(learn(model, inspector, 2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    with watch(model, every=1, to=[tmp_path / "run", numbers_only()], exists="resume", verbose=False) as inspector:
        list(learn(model, inspector, 2))
    first, second = offline_runs(tmp_path)
    assert first.id == second.id
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert [step for each in (first, second) for step, _ in each.series("sonde/loss")] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_played_run_is_logged_as_the_training_did(tmp_path: Path) -> None:
    model = deep(2)
    with watch(model, every=1, to=[tmp_path / "run", numbers_only()], verbose=False) as inspector:
        list(learn(model, inspector, 4))
    open_run(tmp_path / "run").send_to(numbers_only(id="again"))
    live, played = offline_runs(tmp_path)
    assert played.series("sonde/output_rms.median") == live.series("sonde/output_rms.median")
    assert played.series("sonde/loss") == live.series("sonde/loss")


def test_nobody_is_asked_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "login", lambda **given: given["prompt"])
    model = deep(2)
    with (
        pytest.warns(ObservationWarning, match="nobody is logged in to Weights & Biases: run `wandb login`"),
        watch(model, every=1, to=["memory", numbers_only(mode="online")], verbose=False) as inspector,
    ):
        list(learn(model, inspector, 1))
    assert len(inspector.run.scalar("loss")[0]) == 1


def test_arguments_are_checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, words in (
        ({"layers": -1}, "layers=-1"),
        ({"timeout": 0}, "timeout=0"),
        ({"numbers": "rms"}, "give names"),
        ({"run": object(), "project": "x"}, "project= cannot change it"),
    ):
        with pytest.raises(ArgumentError, match=words):
            WandbSink(**given)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sonde\[wandb\]'"):
        WandbSink()
