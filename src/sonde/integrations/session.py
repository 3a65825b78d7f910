"""Record the trainings of a foreign trainer: arguments for ``watch``, one run from checkpoint to checkpoint, metrics, the end."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from sonde.errors import ArgumentError
from sonde.inspector import Inspector, folders_named, plain_config, watch
from sonde.run import RunFolder
from sonde.suggest import nearest
from sonde.warn import warn_user

__all__ = ["Session"]

_ARGUMENTS = tuple(inspect.signature(watch).parameters)[2:]  # without model and optimizer, which the trainer has
_OWN = ("loss", "grad_norm", "grad_norm_raw", "param_norm", "update_norm", "lr", "overhead")


class Session:
    """The recording of one trainer's training.

    Attributes:
        inspector: of the training that runs or ran last; None before the first.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        for given in arguments:
            if given in ("model", "optimizer"):
                raise ArgumentError(f"{name}({given}=): the trainer has the {given}: leave it out")
            if given not in _ARGUMENTS:
                raise ArgumentError(f"{name}({given}=): takes the arguments of sonde.watch. {nearest(given, _ARGUMENTS)}")
        self.inspector: Inspector | None = None
        self._name = name
        self._arguments = dict(arguments)
        self._seen: dict[str, Tensor] = {}

    @property
    def is_on(self) -> bool:
        """Whether a training is recorded now."""
        return self.inspector is not None and self.inspector.attached

    # Life

    def begin(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        *,
        optimizers: Iterable[Any] = (),
        scaler: Any = None,
        config: Any = None,
        step: int = 0,
        epoch: int = 0,
        saved: Mapping[str, Any] | None = None,
        again: bool = False,
    ) -> Inspector:
        """Begin to record a training; one that still runs has failed, and ends.

        Args:
            model, optimizers, scaler, config: what the trainer has; arguments of the user's own go before the last two.
            step, epoch: those at which the trainer continues; 0 and 0 for a new training.
            saved: the ``state`` of the session that the trainer's checkpoint holds; its numbers are those of the run, and go
                before the trainer's.
            again: the trainer begins the same training once more, as with a smaller batch: in the same run, from its first step.
        """
        former = None if self.inspector is None else self.inspector.path
        self.end()
        self._seen.clear()
        arguments = {"scaler": scaler, "config": config} | self._arguments
        if saved is not None or step:
            arguments = self._continued(arguments, saved or {}, step, epoch)
        elif again and former is not None:
            arguments = self._continued(arguments, {"run": former}, step, epoch)
        self.inspector = watch(model, [each for each in optimizers if isinstance(each, Optimizer)], **arguments)
        return self.inspector

    def _continued(self, arguments: dict[str, Any], saved: Mapping[str, Any], step: int, epoch: int) -> dict[str, Any]:
        """Return *arguments* with those that continue the run of the checkpoint, unless the user says how to begin."""
        if any(name in self._arguments for name in ("exists", "step", "epoch")):
            return arguments
        arguments |= {"step": int(saved.get("step", step)), "epoch": int(saved.get("epoch", epoch))}
        path = saved.get("run")
        if path is None:
            return arguments
        if RunFolder(Path(path)).description is None:
            warn_user(f"{self._name}: the run of this checkpoint, {path}, is not there any more: a new one begins at its step")
        elif arguments.get("to") is None:
            arguments |= {"to": path, "exists": "resume"}
        elif self._is_same(arguments.get("to"), path):
            arguments["exists"] = "resume"
        return arguments

    def _is_same(self, to: Any, path: str | os.PathLike[str]) -> bool:
        """Return whether *to*, as given to ``watch``, names the run at *path*."""
        return any(Path(each).absolute() == Path(path).absolute() for each in folders_named(to))

    def keep_config(self, config: Mapping[str, Any]) -> None:
        """Keep *config* in the run that is recorded, unless the user has given one."""
        inspector = self.inspector
        if inspector is None or not inspector.attached or "config" in self._arguments:
            return
        training = inspector._attached()
        if training.part.leads and training.destinations.recorded is not None:
            training.destinations.recorded.writer.describe(config=plain_config(config))

    def end(self, error: BaseException | None = None) -> None:
        """End the run, if one is recorded; *error* has ended the training. Idempotent."""
        if self.inspector is not None and self.inspector.attached:
            self.inspector.detach(error)

    def state(self) -> dict[str, Any]:
        """Return plain data for the trainer's checkpoint: where the run is, and the epoch and step that come next."""
        if self.inspector is None:
            return {}
        epoch, step = self.inspector.moment
        path = self.inspector.path
        return {"run": None if path is None else str(Path(path).absolute()), "step": step, "epoch": epoch}

    # What the trainer logs

    def push(self, metrics: Mapping[str, Any]) -> None:
        """Record the numbers among *metrics* under their names; ``val_loss`` as the loss of evaluation.

        The names of other numbers that are recorded already, as ``grad_norm``, get the prefix ``trainer/``.
        """
        inspector = self.inspector
        if inspector is None or not inspector.attached:
            return
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
                continue
            if isinstance(value, Tensor) and (value.numel() != 1 or value.is_complex()):
                continue
            own = name in _OWN or name.startswith(("lr/", "lr_"))
            try:
                if name == "val_loss":
                    inspector.push_loss(value, train=False, running=False)
                else:
                    inspector.push_metric(f"trainer/{name}" if own else name, value, running=False)
            except ArgumentError:  # a LossMetrics lens names the metrics that are wanted
                continue

    def push_new(self, metrics: Mapping[str, Any]) -> None:
        """Record those of *metrics* that were made since the last call: the trainer keeps the others from step to step."""
        new = {}
        for name, value in metrics.items():
            if isinstance(value, Tensor):
                before = self._seen.get(name)  # held, so that its memory is not used again
                if before is None or before.data_ptr() != value.data_ptr() or before.device != value.device:
                    self._seen[name] = value.detach()
                    new[name] = value
        self.push(new)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._arguments.items())
        where = "" if self.inspector is None else f": {self.inspector!r}"
        return f"{self._name}({given}){where}"
