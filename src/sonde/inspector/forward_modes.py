"""Notice logged steps in which the model ran in evaluation mode alone: a forgotten ``model.train()``."""

from __future__ import annotations

from dataclasses import replace

from sonde import rules
from sonde.rules import Finding
from sonde.warn import warn_user


class ForwardModes:
    """The modes of the forwards of one model: those of the step that runs, and which logged steps had none in training mode."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._modes: set[bool] = set()
        self._first: list[int] = []  # the first two such steps
        self._missed = 0
        self._last = (0, 0)  # epoch and step of the last one

    def add(self, *, training: bool) -> None:
        """Note the mode of a forward with gradients."""
        self._modes.add(training)

    def end_step(self, epoch: int, step: int, *, logged: bool, training: bool) -> None:
        """End *step* of *epoch*; the model is in *training* mode now. Warn at the second logged step without a training forward."""
        if logged and self._modes == {False} and not training:
            self._missed += 1
            self._last = epoch, step
            if self._missed <= 2:
                self._first.append(step)
            if self._missed == 2:
                warn_user(
                    f"the steps {self._first[0]:,} and {step:,} had no forward pass in training mode: is the model in eval()? "
                    "Outputs and their gradients are recorded in training passes; evaluation=True records the others, too"
                )
        self._modes.clear()

    def finding(self, logged: int) -> Finding | None:
        """Return the finding about such steps among *logged* ones, if there were enough."""
        found = rules.judge("no_training_forward", self._missed, logged)
        if found is None:
            return None
        since = f" The first without: step {self._first[0]:,}." if self._missed < logged else ""
        message = f"{self._model}: " * bool(self._model) + found.message + since
        return replace(found.at("", *self._last, message), first_step=self._first[0])
