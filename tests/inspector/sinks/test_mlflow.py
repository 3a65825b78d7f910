"""MLflow's own client reads back what the run holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.inspector.sinks.trackers import deep, learn

from sonde.errors import MissingExtraError
from sonde.inspector import watch
from sonde.inspector.sinks import MLflowSink
from sonde.inspector.sinks.mlflow import _name
from sonde.run.run import open_run


@pytest.fixture
def mlflow() -> Any:
    """The package, whose import takes seconds that the quick tests here do not need."""
    return pytest.importorskip("mlflow")


@pytest.fixture
def client(mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    yield mlflow.MlflowClient()
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


def numbers_only(**given: Any) -> MLflowSink:
    return MLflowSink(pictures=False, report=False, **given)


def runs(client: Any, experiment: str = "Default") -> list[Any]:
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id], order_by=["attributes.start_time ASC"]))


@pytest.mark.slow
def test_a_run_of_its_own_has_metrics_params_findings_and_files_and_ends_well(tmp_path: Path, mlflow: Any, client: Any) -> None:
    model = deep()
    config = {"lr": 0.01, "data": {"name": "noise", "long": "x" * 10_000}}
    with watch(model, every=2, to=[tmp_path / "run", "mlflow"], verbose=False, config=config) as inspector:
        list(learn(model, inspector, 24))
    assert mlflow.active_run() is None  # as before
    (found,) = runs(client)
    run = open_run(tmp_path / "run")
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["lr"] == "0.01"
    assert found.data.params["data.name"] == "noise"
    assert set(found.data.params["data.long"]) == {"x"}
    for name in ("loss", "grad_norm", "update_norm"):
        history = client.get_metric_history(found.info.run_id, f"sonde/{name}")
        steps, values = run.scalar(name)
        assert [(each.step, each.value) for each in history] == list(zip(steps.tolist(), values.tolist(), strict=True))
    worst = client.get_metric_history(found.info.run_id, "sonde/output_rms.max")
    assert [each.value for each in worst] == run.heatmap("rms").values.max(axis=0).tolist()
    drawn = [name for name in found.data.metrics if name.startswith("sonde/output_rms/")]
    assert 5 <= len(drawn) <= 11
    assert found.data.tags["sonde.findings"] == str(len(run.findings))
    assert run.findings[0].message in found.data.tags["sonde.finding.1"]
    files = {each.path for folder in ("sonde", "sonde/pictures") for each in client.list_artifacts(found.info.run_id, folder)}
    assert {"sonde/run.html", "sonde/pictures/scalars.png", "sonde/pictures/moments-output.png"} <= files


@pytest.mark.slow
def test_the_active_run_is_used_and_left_open_with_its_params(mlflow: Any, client: Any) -> None:
    model = deep(2)
    mlflow.start_run()
    mlflow.log_param("lr", "mine")
    with watch(model, every=1, to=["memory", numbers_only()], verbose=False, config={"lr": 0.01, "width": 6}) as inspector:
        for step in learn(model, inspector, 3):
            mlflow.log_metric("mine", step, step=step)
    active = mlflow.active_run()
    assert active is not None
    assert active.info.run_id == runs(client)[0].info.run_id
    found = client.get_run(active.info.run_id)
    assert found.info.status == "RUNNING"
    assert found.data.params == {"lr": "mine", "width": "6"}
    assert [each.step for each in client.get_metric_history(active.info.run_id, "sonde/loss")] == [0, 1, 2]
    assert [each.value for each in client.get_metric_history(active.info.run_id, "mine")] == [0, 1, 2]


@pytest.mark.slow
def test_a_resumed_training_continues_its_run_in_its_experiment_and_an_exception_fails_it(tmp_path: Path, client: Any) -> None:
    model = deep(2)

    def failing() -> None:
        with watch(model, every=1, to=[tmp_path / "run", numbers_only(experiment="deep")], verbose=False) as inspector:
            list(learn(model, inspector, 2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert [run.info.status for run in runs(client, "deep")] == ["FAILED"]
    to = [tmp_path / "run", numbers_only(experiment="deep")]
    with watch(model, every=1, to=to, exists="resume", verbose=False) as inspector:
        list(learn(model, inspector, 2))
    (found,) = runs(client, "deep")
    assert found.info.status == "FINISHED"
    assert [each.step for each in client.get_metric_history(found.info.run_id, "sonde/loss")] == [0, 1, 2, 3]


def test_names_are_what_every_store_takes() -> None:
    assert _name("sonde/output_rms/layers.3.mlp") == "sonde/output_rms/layers.3.mlp"
    assert _name("sonde/output_rms/(root)[0]") == "sonde/output_rms/_root__0_"
    assert _name("/../a//b") == "a/b"
    long = _name("sonde/" + "x" * 300 + "/end")
    assert len(long) <= 250
    assert long.startswith("sonde/xx")
    assert long.endswith("xx/end")


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sonde\[mlflow\]'"):
        MLflowSink()
