"""The global scalars that everybody looks for: ``grad_norm``, ``param_norm`` and ``update_norm`` of all parameters together."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sonde.inspector.sinks.base import RowBlock, Scalar

if TYPE_CHECKING:
    from sonde.inspector.measurement.measurement import RowIndex

__all__ = ["NORMS", "Key", "Norms", "squares_of"]

NORMS: Mapping[str, str] = {"grad": "grad_norm", "param": "param_norm", "update": "update_norm"}
"""Of each port of parameters, what the norm over all of them is called."""

Key = tuple[str, str]
"""Model and port."""


def squares_of(stretch: RowBlock, rowed: RowIndex, ports: Collection[str]) -> list[dict[Key, float]]:
    """Of each moment, the sum of the squares of the parameters' norms, by model and port, where there are any at these *ports*.

    The norm of all parameters is the root of the sum of the squares of their norms. If any element was NaN, so is the
    norm; if any was infinite, it is infinite: a norm over the rest would hide what matters.
    """
    places: dict[Key, int] = {}
    of_site = np.full(len(rowed.layout), -1)
    for site, (model, port) in enumerate(zip(rowed.layout.model, rowed.ports, strict=True)):
        if port in ports:
            of_site[site] = places.setdefault((model, port), len(places))
    squares = np.square(stretch.numbers["norm"])
    squares = np.where(stretch.numbers["inf"] > 0, np.inf, squares)
    squares = np.where(stretch.numbers["nan"] > 0, np.nan, squares)
    place = of_site[stretch.rows]
    wanted = place >= 0
    moment = np.repeat(np.arange(len(stretch)), np.diff(stretch.edges))
    cell = (moment * len(places) + place)[wanted]
    shape = len(stretch), len(places)
    sums = np.bincount(cell, squares[wanted], math.prod(shape)).reshape(shape).tolist()
    counts = np.bincount(cell, minlength=math.prod(shape)).reshape(shape).tolist()
    return [
        {key: square for key, square, count in zip(places, row, often, strict=True) if count}
        for row, often in zip(sums, counts, strict=True)
    ]


class Norms:
    """Adds up the squares of steps, until each is complete: its parts may come from several measurings and optimizers."""

    def __init__(self) -> None:
        self._squares: dict[Key, float] = {}
        self._steps: dict[str, int] = {}  # by model, that of the squares
        self._epochs: dict[str, int] = {}

    def begin(self, models: Iterable[str], step: int) -> Sequence[Scalar]:
        """The scalars of earlier steps of *models*, which are complete now that something of *step* comes."""
        complete = [model for model in models if self._steps.get(model, step) != step]
        return self._of(complete) if complete else ()

    def add(self, models: Iterable[str], epoch: int, step: int, squares: Mapping[Key, float]) -> None:
        """Add what was found at one moment of that step."""
        for model in models:
            self._epochs[model], self._steps[model] = epoch, step
        for key, square in squares.items():
            self._squares[key] = self._squares.get(key, 0.0) + square

    def take(self) -> Sequence[Scalar]:
        """All that there is: nothing more comes for these steps."""
        return self._of(list(self._steps))

    def _of(self, models: list[str]) -> list[Scalar]:
        found = []
        for model in sorted(models):
            epoch, step = self._epochs.pop(model), self._steps.pop(model)
            for port, name in NORMS.items():
                square = self._squares.pop((model, port), None)
                if square is not None:
                    found.append(Scalar(f"{model}/{name}" if model else name, math.sqrt(square), epoch, step))
        return found
