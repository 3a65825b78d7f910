"""Keep the losses and metrics that the training loop pushes on their device, until a logged step takes them along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sonde.errors import ArgumentError


@dataclass(slots=True)
class Pushed:
    """The mean of *count* values that were pushed under a name, the last of them at *step*.

    Attributes:
        total: their sum; on a device, a float64 tensor without dimensions.
        until: the logged step whose interval this is of; None if that step has not ended.
    """

    name: str
    epoch: int
    step: int
    total: float | Tensor
    count: int = 1
    until: int | None = None


class ScalarBuffer:
    """Pushed values that are not written yet.

    A running value is averaged over the interval from one logged step, exclusive, to the next, inclusive, and becomes a row
    at the first push after it, or as the next step is logged, whether values are pushed before or after the optimizer's step.
    Others are a row each.
    """

    def __init__(self) -> None:
        self._open: dict[str, Pushed] = {}
        self._ready: list[Pushed] = []
        self._logged = -1

    def __len__(self) -> int:
        return len(self._ready)

    def push(self, name: Any, value: Any, epoch: int, step: int, *, running: bool) -> None:
        """Add a value that belongs to *step*.

        Raises:
            ArgumentError: *value* is not one real number, or *name* is no text.
        """
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"the name of what is pushed is a text, as 'accuracy', not {name!r}")
        number = _number(name, value)
        if not running:
            self._ready.append(Pushed(name, epoch, step, number))
            return
        known = self._open.get(name)
        if known is not None and (known.until is None or step <= known.until):
            known.epoch, known.step = epoch, max(step, known.step)
            known.total = known.total + number
            known.count += 1
            return
        if known is not None:
            self._ready.append(known)
        self._open[name] = Pushed(name, epoch, step, number, until=self._logged if step <= self._logged else None)

    def log(self, step: int) -> None:
        """Note that *step* was logged."""
        self._logged = max(step, self._logged)
        for name, pushed in list(self._open.items()):
            if pushed.until is None:
                pushed.until = step if pushed.step <= step else None
            elif pushed.until < step:  # nothing more comes for that interval
                self._ready.append(self._open.pop(name))

    def take(self, *, everything: bool = False) -> list[Pushed]:
        """Return the values that can be written; *everything* ends the intervals that are open."""
        if everything:
            self._ready += self._open.values()
            self._open.clear()
        taken, self._ready = self._ready, []
        return taken


def _number(name: str, value: Any) -> float | Tensor:
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ArgumentError(
                f"{name!r}: one real number can be pushed, not a tensor of shape {tuple(value.shape)}, {value.dtype}"
            )
        with torch.no_grad():
            return value.detach().reshape(()).to(torch.float64, copy=True)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name!r}: one real number can be pushed, not {value!r}") from None
