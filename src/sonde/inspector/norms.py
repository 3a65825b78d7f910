"""The global scalars that everybody looks for: ``grad_norm``, ``param_norm`` and ``update_norm`` of all parameters together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sonde.inspector.sink import Rows, Scalar

if TYPE_CHECKING:
    from sonde.inspector.writing import Part

__all__ = ["NORMS", "Norms"]

NORMS: Mapping[str, str] = {"grad": "grad_norm", "param": "param_norm", "update": "update_norm"}
"""Of each port of parameters, what the norm over all of them is called."""


class Norms:
    """Adds up squares of the parameters' norms, until the step they are of is complete.

    The norm of all parameters is the root of the sum of the squares of their norms. If any element was NaN, so is the
    norm; if any was infinite, it is infinite: a norm over the rest would hide what matters.
    """

    def __init__(self) -> None:
        self._squares: dict[tuple[str, str], float] = {}  # by model and port
        self._moment: dict[str, tuple[int, int]] = {}  # by model: epoch and step

    def begin(self, part: Part) -> list[Scalar]:
        """The scalars of earlier steps, which are complete now that *part* comes."""
        models = {model for model in part.rowed.layout.model if self._moment.get(model, (part.epoch, part.step))[1] != part.step}
        return self._of(models)

    def add(self, part: Part, rows: Rows) -> None:
        """Add what *rows* hold of parameters."""
        if not part.norms:
            return
        for model in set(part.rowed.layout.model):
            self._moment[model] = part.epoch, part.step
        squares = np.square(rows.numbers["norm"])
        squares = np.where(rows.numbers["inf"] > 0, np.inf, squares)
        squares = np.where(rows.numbers["nan"] > 0, np.nan, squares)
        for row, square in zip(rows.rows.tolist(), squares.tolist(), strict=True):
            port = part.rowed.ports[row]
            if port in part.norms:
                key = part.rowed.layout.model[row], port
                self._squares[key] = self._squares.get(key, 0.0) + square

    def take(self) -> list[Scalar]:
        """All that there is: nothing more comes for these steps."""
        return self._of(set(self._moment))

    def _of(self, models: set[str]) -> list[Scalar]:
        found = []
        for model in sorted(models):
            epoch, step = self._moment.pop(model)
            for port, name in NORMS.items():
                square = self._squares.pop((model, port), None)
                if square is not None:
                    found.append(Scalar(f"{model}/{name}" if model else name, float(np.sqrt(square)), epoch, step))
        return found
