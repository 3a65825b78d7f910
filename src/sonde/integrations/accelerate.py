"""Record a training loop that uses Accelerate: the tracker that is given to the ``Accelerator``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sonde.errors import ArgumentError
from sonde.inspector import Inspector
from sonde.integrations.foreign import base_class
from sonde.integrations.session import Session

__all__ = ["AccelerateTracker"]

_METHODS = ("start", "store_init_configuration", "log", "finish")

_GeneralTracker: Any = base_class("AccelerateTracker", ["accelerate.tracking"], "GeneralTracker", _METHODS, extra="accelerate")


class AccelerateTracker(_GeneralTracker):  # type: ignore[misc]  # the base is imported late
    """Records a training loop as a run, with what ``accelerator.log`` is given::

        tracker = sonde.integrations.AccelerateTracker(every=10)
        accelerator = Accelerator(log_with=tracker)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        accelerator.init_trackers("name", config={"lr": 1e-3})
        with tracker.watch(model):
            ...  # the loop

    In a training of one process, ``AccelerateTracker(model)`` needs no ``watch``: the run lasts from ``accelerator.init_trackers``
    to ``accelerator.end_training``. In a training of several, each process calls ``watch``, since Accelerate starts trackers on
    the main process alone; one run then holds the joined numbers of all, and what the main process logs.

    The run has the numbers of :func:`sonde.watch`, the configuration, and what is logged, under its names; ``loss`` and
    ``val_loss`` are the losses that rules judge. Steps are those of the optimizer, whatever ``step`` ``log`` is given.

    Args:
        model: the model, before or after ``prepare``; None: :meth:`watch` gives it.
        arguments: those of :func:`sonde.watch`, as ``every=10`` or ``to="runs/name"``, except the optimizer. A loop that is resumed
            says so: ``exists="resume"``, and the ``step`` of its checkpoint.

    Attributes:
        inspector: the :class:`~sonde.inspector.inspector.Inspector` of the training; None before.

    Raises:
        ArgumentError: ``watch`` has no such argument.
        MissingExtraError: accelerate is not installed.
    """

    name = "sonde"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, model: nn.Module | Mapping[str, nn.Module] | None = None, **arguments: Any) -> None:
        super().__init__()
        self._session = Session("AccelerateTracker", arguments)
        self._model = model
        self._config: Mapping[str, Any] | None = None

    @property
    def inspector(self) -> Inspector | None:
        """The inspector of the training that runs or ran last."""
        return self._session.inspector

    @property
    def tracker(self) -> Inspector | None:
        """The same, for ``accelerator.get_tracker("sonde", unwrap=True)``."""
        return self._session.inspector

    def watch(self, model: nn.Module | Mapping[str, nn.Module]) -> Inspector:
        """Record *model* until the end of a ``with`` block or ``accelerator.end_training``; return the inspector."""
        if self.inspector is not None and self.inspector.attached and model is self._model:
            return self.inspector
        self._model = model
        return self._session.begin(model, config=self._config)

    def start(self) -> None:
        """Begin the run, if the model is known and no run was begun: ``accelerator.init_trackers`` calls this.

        Raises:
            ArgumentError: other processes train, too, and Accelerate does not start their trackers.
        """
        if self._model is None or self._session.is_on:
            return
        from accelerate.state import PartialState

        if PartialState().num_processes > 1:
            raise ArgumentError(
                "Accelerate starts trackers on the main process alone, and this training has several: give no model to "
                "AccelerateTracker, and call tracker.watch(model) on each process, after prepare"
            )
        self._session.begin(self._model)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep *values* as the configuration of the run."""
        self._config = values
        self._session.keep_config(values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Record *values* at the step of the optimizer that runs or came last.

        Raises:
            ArgumentError: no model was ever recorded.
        """
        inspector = self.inspector
        if inspector is None:
            raise ArgumentError(
                "AccelerateTracker records no model: call tracker.watch(model) before the first accelerator.log, or give it, as "
                "AccelerateTracker(model)"
            )
        if inspector.attached and "loss" in values:
            inspector.push_loss(values["loss"], train=True, running=False)
        self._session.push({name: value for name, value in values.items() if name != "loss"})

    def finish(self) -> None:
        """End the run: ``accelerator.end_training`` calls this."""
        self._session.end()

    def __repr__(self) -> str:
        return repr(self._session)
