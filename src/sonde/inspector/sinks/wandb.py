"""The sink that logs to Weights & Biases: into the run that the program has begun, or one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonde.errors import ArgumentError, MissingExtraError
from sonde.inspector.sinks.charts import Numbers
from sonde.inspector.sinks.experiment import ExperimentSink, identity
from sonde.rules import Finding

_LEVELS = {"note": "INFO", "warn": "WARN", "bad": "ERROR"}
_TITLE = 63  # characters of an alert's title
_HELD = 2048  # moments
_OPEN = 2  # logged steps of which numbers may still come: a loss comes after the rows of the next logged step


class WandbSink(ExperimentSink):
    """Logs the numbers of a training to Weights & Biases: ``watch(model, to=[path, WandbSink()])``.

    If a run of the program is active (``wandb.run``) when the first rows come, the sink logs into that run and leaves it open.
    Otherwise it begins one, with the arguments *init*, continues that one when the training is resumed, and finishes it; an
    exception marks it as failed. ``wandb.run`` stays as it is.

    The x-axis of every chart is ``sonde/step``, the optimizer's step. In the program's own run each moment becomes part of the next
    row that the program's ``wandb.log`` writes, so that no step of that row moves and none of it is dropped. Moments that come more
    often than such rows are left out, and are in sonde's run. Where the program logs nothing itself they are logged at the end.

    Findings are alerts. At the end the pictures of the run and, as an artifact of type ``report``, its report are sent. The class
    is large because a run of the program and one of the sink are logged to in different ways.

    Args:
        layers: how many layers have a chart of their own, for each number; see
            :class:`~sonde.inspector.sinks.experiment.ExperimentSink`.
        own_rows: log every moment as a row of its own in the program's run, too. Do so only where the program never gives ``step=``
            to ``wandb.log``: W&B drops rows whose step is behind.
        numbers: which numbers of a layer: names, or ``"all"``.
        pictures: whether the heat-maps and curves of the run are sent at the end; they need matplotlib.
        report: whether the report of the run is sent at the end.
        timeout: the seconds that the end of the training waits for W&B.
        prefix: stands before every name.
        run: the run to log to, where it is not ``wandb.run``; it is left open.
        init: arguments of ``wandb.init`` for a run of the sink's own, as ``project="vision", mode="offline"``.

    Raises:
        MissingExtraError: wandb is not installed.
        ArgumentError: an argument does not fit, or *init* has arguments beside *run*.
    """

    def __init__(
        self,
        *,
        layers: int = 10,
        own_rows: bool = False,
        numbers: Numbers = None,
        pictures: bool = True,
        report: bool = True,
        timeout: float = 120.0,
        prefix: str = "sonde/",
        run: Any = None,
        **init: Any,
    ) -> None:
        MissingExtraError.import_or_raise("wandb", "logging to Weights & Biases", "wandb")
        if run is not None and init:
            raise ArgumentError(f"run= is a run that has begun: {', '.join(init)}= cannot change it any more")
        super().__init__(layers=layers, numbers=numbers, pictures=pictures, report=report, timeout=timeout, prefix=prefix)
        self._given = run
        self._init = init
        self._run: Any = None
        self._is_own = False
        self._rides = not own_rows
        self._defined: set[str] = set()
        self._moments: dict[int, dict[str, float]] = {}  # by step, until nothing of that step can come
        self._row: int | None = None  # the row of the program that the last moment is part of
        self._held: list[dict[str, float]] = []  # moments that no row had room for, while the program has logged nothing

    def prepare(self) -> None:
        import wandb

        self._run = self._given if self._given is not None else wandb.run

    def _begin(self, description: Mapping[str, Any]) -> None:
        import wandb

        self._run = self._run if self._run is not None else wandb.run  # it may have begun since then
        path = description.get("path")
        if self._run is None:
            self._is_own, self._rides = True, False
            _log_in(self._init.get("mode"))
            config = description.get("config")
            known = {} if path is None else {"id": identity(Path(path)), "resume": "allow", "name": Path(path).name}
            given = {"config": config if isinstance(config, Mapping) else None, "reinit": "create_new", **known}
            self._run = wandb.init(**{**given, **self._init})
        from sonde import __version__

        self._run.config.update({"sonde": {"version": __version__, "run": path}}, allow_val_change=True)
        self._run.define_metric(f"{self._prefix}step", hidden=True)

    def _log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._moments.setdefault(step, {}).update(numbers)
        while len(self._moments) > _OPEN:
            self._put(min(self._moments))

    def _put(self, step: int) -> None:
        """Log what has come of *step*."""
        moment = {**self._moments[step], f"{self._prefix}step": step}
        for name in moment.keys() - self._defined - {f"{self._prefix}step"}:
            self._run.define_metric(name, step_metric=f"{self._prefix}step")
            self._defined.add(name)
        self._put_moment(moment)
        del self._moments[step]  # once it is logged: a call that raises is made again

    def _put_moment(self, moment: dict[str, float]) -> None:
        if not self._rides:
            self._run.log(moment)
            return
        row = self._run.step
        if row != self._row:
            self._run.log(moment, commit=False)
            self._row = self._run.step
        elif self._program_logs():
            self._held.clear()
        else:
            self._held.append(moment)
            if len(self._held) > _HELD:
                del self._held[::2]

    def _program_logs(self) -> bool:
        names = self._run.summary.keys()
        return any(not name.startswith(("_", self._prefix)) for name in names)

    def _tell(self, finding: Finding) -> None:
        where = f"step {finding.step:,}: {finding.message}" + (f" (at {finding.site})" if finding.site else "")
        text = "\n".join(filter(None, [where, finding.advice]))
        self._run.alert(f"sonde: {finding.rule or 'alert'}"[:_TITLE], text, level=_LEVELS.get(finding.severity, "WARN"))

    def _send(self, pictures: Mapping[str, Path], report: Path | None) -> None:
        import wandb

        self._put_rest()
        if pictures:
            shown = {f"{self._prefix}pictures/{name}": wandb.Image(str(path)) for name, path in pictures.items()}
            self._run.log(shown, commit=not self._rides)
        if report is not None:
            artifact = wandb.Artifact(f"sonde-report-{self._run.id}", type="report")
            artifact.add_file(str(report), policy="mutable")
            self._run.log_artifact(artifact)

    def _put_rest(self) -> None:
        """Log the moment that has not been, and those that waited for rows of the program, if there were none."""
        for step in sorted(self._moments):
            self._put(step)
        if self._held and not self._program_logs():
            for moment in ({}, *self._held):  # the first ends the row that has a moment already
                self._run.log(moment)
        self._held.clear()

    def _end(self, *, failed: bool) -> None:
        self._put_rest()
        if self._is_own:
            self._run.finish(exit_code=int(failed))
            self._is_own = False

    def close(self) -> None:
        if self._is_own and self._run is not None:  # after an error
            self._run.finish(exit_code=1)
        self._run, self._is_own = None, False


def _log_in(mode: str | None) -> None:
    """Make sure that ``wandb.init`` does not ask for a key: nobody would see the question, or could answer."""
    import wandb

    mode = mode or wandb.setup().settings.mode
    if mode not in ("offline", "disabled", "dryrun") and not wandb.login(prompt=False):
        raise ArgumentError("nobody is logged in to Weights & Biases: run `wandb login`, or set WANDB_MODE=offline and sync later")
