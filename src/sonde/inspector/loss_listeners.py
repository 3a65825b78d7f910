"""Read the losses of an epoch from the run of an inspector, and push what a loss module returns."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from sonde.engine import Event
from sonde.errors import ArgumentError
from sonde.lens import LossMetrics


class LossReader:
    """Reads the losses of the last epoch that has ended from the run of an inspector, without keeping the inspector alive."""

    def __init__(self, inspector: weakref.ref[Any]) -> None:
        self._inspector = inspector

    def __call__(self, train: bool) -> list[float]:
        inspector = self._inspector()
        if inspector is None or inspector._ended_epoch is None:
            raise ArgumentError("a loss is that of the last epoch, and none has ended: call tick_epoch() at the end of each")
        epoch, name = inspector._ended_epoch, inspector._loss_names[0 if train else 1]
        rows = inspector.run.sql(f"SELECT name, value FROM scalars WHERE epoch = {epoch:d} ORDER BY step").fetchall()
        values = [value for found, value in rows if found == name]
        if not values:
            raise ArgumentError(
                f"epoch {epoch} has no {name!r}: give the loss module in LossMetrics(loss_fn=...), or push_loss(..., train={train})"
            )
        return values


class LossListener:
    """Pushes what a loss module returns to an inspector, without keeping the inspector alive."""

    def __init__(self, inspector: weakref.ref[Any], lens: LossMetrics) -> None:
        self._inspector = inspector
        self._lens = lens

    def __call__(self, event: Event) -> None:
        inspector = self._inspector()
        if inspector is None or not inspector.attached:
            return
        module = self._lens.loss_fn
        train = torch.is_grad_enabled() if self._lens.evaluation_from_grad else module is not None and module.training
        inspector.push_loss(event.value, train=train)
