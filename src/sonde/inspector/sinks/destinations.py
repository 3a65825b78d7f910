"""Open the destinations that ``to=`` names: folders, runs, sinks and visualizers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sonde.errors import ArgumentError
from sonde.inspector.sinks.base import RunSink, Sink
from sonde.inspector.sinks.job import continued
from sonde.inspector.sinks.mlflow import MLflowSink
from sonde.inspector.sinks.opentelemetry import OpenTelemetrySink
from sonde.inspector.sinks.tensorboard import TensorBoard
from sonde.inspector.sinks.to_argument import NAMED, folders_named, targets_of
from sonde.inspector.sinks.visualizers import Pictures, Print
from sonde.inspector.sinks.wandb import WandbSink
from sonde.run import Existing, Run, RunWriter, memory_run, quoted, start_run
from sonde.schedule import counted_from_0

Visualizer = Callable[[Run], None]
"""Shows a run, at the end of each epoch and of the training."""


@dataclass
class Destinations:
    """The destinations of an inspector's rows.

    Attributes:
        sinks: all of them.
        recorded: the sink that writes the run, or None.
        visualizers: called with this run.
        shown: the sinks and visualizers in the order in which they were given, without that of the run.
        first_step: the step at which a resumed run continues; None for a new run.
        epoch: the first epoch: of a resumed run its last one, or the next if that had ended.
    """

    sinks: list[Sink] = field(default_factory=list)
    recorded: RunSink | None = None
    visualizers: list[Visualizer] = field(default_factory=list)
    shown: list[Sink | Visualizer] = field(default_factory=list)
    first_step: int | None = None
    epoch: int = 0

    @property
    def path(self) -> Path | None:
        """The folder of the run; None if there is none on disk."""
        return getattr(self.recorded.writer, "path", None) if self.recorded is not None else None

    def begin(self, about: Mapping[str, Any]) -> None:
        """Begin a training that *about* describes. Sinks that may block are opened later, in their own threads."""
        for sink in self.sinks:
            sink.prepare()
            if not sink.may_block:
                sink.open({**about, "path": self.place})

    @property
    def place(self) -> str | None:
        """The folder of the run as text; None if there is none on disk."""
        return None if self.path is None else str(self.path)

    def begin_epoch(self, number: int, first_step: int) -> None:
        """Note in the run that an epoch begins, so that it is known where the run is resumed before the epoch has a row."""
        if self.recorded is not None and self.path is not None:
            self.recorded.writer.describe(epoch={"number": number, "first_step": first_step})

    def note_end(self, error: BaseException | None, *, epoch: int | None = None, step: int | None = None) -> None:
        """Note in the run that *error*, if it is one, has ended the training in this epoch and step."""
        if error is not None and self.recorded is not None:
            self.recorded.writer.note_end(error, step=step, epoch=epoch)

    def close(self, error: BaseException | None = None) -> None:
        """Close every sink, after the training could not begin because of *error*."""
        self.note_end(error)
        for sink in self.sinks:
            sink.close()


def open_destinations(
    to: Any, exists: Existing, step: int | None, epoch: int | None = None, beside: Sequence[Sink] = ()
) -> Destinations:
    """Open the destinations that the arguments name.

    A job that ``torchrun`` has restarted continues the run that it had begun.

    Args:
        to: None for a new folder in runs/, a path, ``"memory"``, a run to continue, a writer, a
            :class:`~sonde.inspector.sinks.base.Sink`, a visualizer, the name of a sink or visualizer, or several of them.
        exists: what to do where the folder holds a run.
        step: the step at which a run is continued.
        beside: further sinks.
        epoch: the number of the first epoch; by default that in which a run is continued, else 0.

    Raises:
        ArgumentError: *to* names no destination, or two runs.
        MissingExtraError: a package that the visualizer needs is not installed.
        StoreError: the folder cannot be used.
    """
    for word, number in (("step", step), ("epoch", epoch)):
        if number is not None:
            counted_from_0(word, number)
    destinations = Destinations()
    to, exists = continued(to, exists)
    given = targets_of(to)
    runs = [target for target in given if isinstance(target, RunSink) or _is_run(target)]
    if len(runs) > 1:
        raise ArgumentError("to= names two runs to write: one training writes one run; give sinks or visualizers beside it")
    if exists == "resume" and not folders_named(runs):
        raise ArgumentError("there is nothing to resume: give the folder of the run in to=")
    others = [target for target in given if target not in runs]
    destinations.shown += [_named(each) if isinstance(each, str) else each for each in others]  # all that may be refused is
    try:
        for run in runs:
            destinations.recorded = run if isinstance(run, RunSink) else _run_sink(run, exists, step)
        if not runs and any(not isinstance(each, Sink) or each.needs_run for each in destinations.shown):
            destinations.recorded = RunSink(memory_run())
        destinations.sinks += [] if destinations.recorded is None else [destinations.recorded]
        for shown, target in zip(destinations.shown, others, strict=True):
            if isinstance(target, str) and isinstance(shown, Pictures | TensorBoard) and destinations.path is not None:
                shown.folder = destinations.path / shown.folder.name
            if isinstance(shown, Sink):
                destinations.sinks.append(shown)
            else:
                destinations.visualizers.append(shown)
        destinations.sinks += beside
        _look_back(destinations, step)
    except BaseException as error:
        destinations.close(error)
        raise
    if epoch is not None:
        destinations.epoch = epoch
    return destinations


def _named(name: str) -> Sink | Visualizer:
    """Return the sink or visualizer of that name. Its files are in the current folder, where there is no run's."""
    makes: dict[str, Callable[[], Sink | Visualizer]] = {
        "print": Print,
        "matplotlib": lambda: Pictures("pictures"),
        "tensorboard": lambda: TensorBoard("tensorboard"),
        "wandb": WandbSink,
        "mlflow": MLflowSink,
        "opentelemetry": OpenTelemetrySink,
    }
    return makes[name]()


def _is_run(target: Any) -> bool:
    """Return whether *target* stands for a run, and not for a sink or a visualizer."""
    if isinstance(target, str):
        return target not in NAMED
    return not isinstance(target, Sink) and (isinstance(target, Run | RunWriter | os.PathLike) or not callable(target))


def _run_sink(target: Any, exists: Existing, step: int | None) -> RunSink:
    if isinstance(target, RunWriter):
        return RunSink(target, owned=False)
    if isinstance(target, Run):
        if target.path is None:
            raise ArgumentError("to=: a run in memory cannot be continued; give the path of one on disk")
        return RunSink(start_run(target.path, exists="resume", step=step))
    if target == "memory":
        return RunSink(memory_run())
    if target is None or isinstance(target, str | os.PathLike):
        resumed = step if exists == "resume" else None
        return RunSink(start_run(target, exists=exists, step=resumed))
    raise ArgumentError(
        f'to={target!r}: rows go to a folder (a path, or None for a new one in runs/), "memory", a Run to continue, a '
        "sonde.inspector.Sink, or a visualizer, which is a callable that takes a Run"
    )


def _look_back(destinations: Destinations, step: int | None) -> None:
    """Find the first step and the last epoch of a run that is continued."""
    destinations.first_step = step
    if destinations.recorded is None:
        return
    writer = destinations.recorded.writer
    if writer.first_step or step is not None:
        destinations.first_step = writer.first_step if step is None else step
        run = destinations.recorded.run()
        families = run.families
        before = [
            run.sql(f"SELECT max(epoch) FROM {quoted(family)} WHERE step < {destinations.first_step:d}").fetchall()
            for family in families
        ]
        destinations.epoch = max((rows[0][0] for rows in before if rows[0][0] is not None), default=0)
        begun = run.info.get("epoch")
        if isinstance(begun, Mapping):  # an epoch that began without a row
            number, at = begun.get("number"), begun.get("first_step")
            if isinstance(number, int) and isinstance(at, int) and at <= destinations.first_step:
                destinations.epoch = number
