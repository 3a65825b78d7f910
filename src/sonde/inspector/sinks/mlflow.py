"""The sink that logs to MLflow: into the active run, or one of its own."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sonde.errors import MissingExtraError
from sonde.inspector.sinks.charts import Numbers
from sonde.inspector.sinks.experiment import ExperimentSink, identity
from sonde.rules import Finding
from sonde.run import flat

_METRICS, _PARAMS = 1000, 100  # that MLflow takes at once
_NAME, _TEXT = 250, 5000  # characters that every store of MLflow keeps
_FINDINGS = 50  # that become tags

Item = TypeVar("Item")


class MLflowSink(ExperimentSink):
    """Logs the numbers of a training to MLflow: ``watch(model, to=[path, MLflowSink()])``.

    If a run is active in the thread that begins the training (``mlflow.active_run()``), the sink logs into that run and leaves it
    open. Otherwise it begins one where ``mlflow.set_tracking_uri`` and ``mlflow.set_experiment`` say, continues that one when the
    training is resumed, and ends it; an exception marks it as failed.

    Numbers are metrics, at the optimizer's step. The ``config`` of the training becomes parameters, as far as the run has none of
    these names; findings become tags ``sonde.finding.1``, ``sonde.finding.2``, ...; the pictures and the report of the run become
    artifacts in the folder ``sonde``. Characters that MLflow does not allow in names become ``_``.

    Args:
        layers: how many layers have a chart of their own, for each number; see
            :class:`~sonde.inspector.sinks.experiment.ExperimentSink`.
        experiment: the name of the experiment of a run of the sink's own, made if there is none.
        run_id: the run to log to, where it is not the active one; it is left open.
        numbers: which numbers of a layer: names, or ``"all"``.
        pictures: whether the heat-maps and curves of the run are sent at the end; they need matplotlib.
        report: whether the report of the run is sent at the end.
        timeout: the seconds that the end of the training waits for MLflow.
        prefix: stands before every name of a metric.

    Raises:
        MissingExtraError: mlflow is not installed.
        ArgumentError: an argument does not fit.
    """

    def __init__(
        self,
        *,
        layers: int = 10,
        experiment: str | None = None,
        run_id: str | None = None,
        numbers: Numbers = None,
        pictures: bool = True,
        report: bool = True,
        timeout: float = 120.0,
        prefix: str = "sonde/",
    ) -> None:
        MissingExtraError.import_or_raise("mlflow", "logging to MLflow", "mlflow")
        super().__init__(layers=layers, numbers=numbers, pictures=pictures, report=report, timeout=timeout, prefix=prefix)
        self._experiment = experiment
        self._given = run_id
        self._run_id: str | None = None
        self._is_own = False
        self._client: Any = None
        self._findings = 0

    def prepare(self) -> None:
        import mlflow

        active = mlflow.active_run()
        self._run_id = self._given or (None if active is None else active.info.run_id)

    def _begin(self, description: Mapping[str, Any]) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        self._findings = 0
        path = description.get("path")
        if self._run_id is None:
            self._run_id = self._own_run(None if path is None else Path(path))
            self._is_own = True
        config = description.get("config")
        known = self._client.get_run(self._run_id).data.params
        given = {_name(name): str(value)[:_TEXT] for name, value in flat(config).items()} if isinstance(config, Mapping) else {}
        params = [mlflow.entities.Param(name, value) for name, value in given.items() if name not in known]
        for some in _pieces(params, _PARAMS):
            self._client.log_batch(self._run_id, params=some)

    def _own_run(self, path: Path | None) -> str:
        """Begin a run, or go on with the one that an earlier attempt of the training at *path* has begun; return its id."""
        import mlflow

        experiment = None
        if self._experiment is not None:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        known = None if path is None else identity(path)
        if known is not None:
            where = {} if experiment is None else {"experiment_ids": [experiment]}
            wanted = f"tags.`sonde.run` = '{known}'"
            for run in mlflow.search_runs(filter_string=wanted, max_results=1, output_format="list", **where):
                return str(mlflow.start_run(run_id=run.info.run_id).info.run_id)
        tags = {} if known is None else {"sonde.run": known, "sonde.path": str(path)}
        name = None if path is None else path.name
        return str(mlflow.start_run(run_name=name, experiment_id=experiment, tags=tags).info.run_id)

    def _log(self, step: int, numbers: Mapping[str, float]) -> None:
        import mlflow

        now = int(time.time() * 1000)
        metrics = [mlflow.entities.Metric(_name(name), value, now, step) for name, value in numbers.items()]
        for some in _pieces(metrics, _METRICS):
            self._client.log_batch(self._run_id, metrics=some)

    def _tell(self, finding: Finding) -> None:
        self._findings += 1
        self._client.set_tag(self._run_id, "sonde.findings", self._findings)
        if self._findings <= _FINDINGS:
            text = f"{finding.severity}, step {finding.step}: {finding.message} ({finding.rule}): {finding.advice}"
            self._client.set_tag(self._run_id, f"sonde.finding.{self._findings}", text[:_TEXT])

    def _send(self, pictures: Mapping[str, Path], report: Path | None) -> None:
        for path in pictures.values():
            self._client.log_artifact(self._run_id, str(path), "sonde/pictures")
        if report is not None:
            self._client.log_artifact(self._run_id, str(report), "sonde")

    def _end(self, *, failed: bool) -> None:
        import mlflow

        if self._is_own:
            self._is_own = False
            mlflow.end_run("FAILED" if failed else "FINISHED")

    def close(self) -> None:
        self._end(failed=True)  # after an error; otherwise the run has ended
        self._run_id = None


def _pieces(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]


def _name(name: str) -> str:
    """Return *name* as every store of MLflow takes it."""
    allowed = posixpath.normpath(re.sub(r"[^\w.\- /]", "_", name)).lstrip("./")
    return allowed if len(allowed) <= _NAME else f"{allowed[: _NAME // 2 - 2]}...{allowed[-_NAME // 2 + 2 :]}"
