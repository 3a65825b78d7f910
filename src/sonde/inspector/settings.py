"""The settings that hold for every model of an inspector."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import sonde
from sonde.errors import ArgumentError
from sonde.inspector.arguments import in_words
from sonde.inspector.lenses.layer_selection import Choice
from sonde.inspector.lenses.lens import Lens
from sonde.inspector.ranks import Participation
from sonde.inspector.sentinel.sentinel import OnNonFinite
from sonde.rules import Chosen
from sonde.run import VERSION

__all__ = ["GRADIENTS", "Gradients", "Settings", "bytes_of"]

Gradients = Literal["step", "micro_step", "both"]
"""Which gradients of parameters are recorded: as the optimizer saw them, after each backward pass, or both."""

GRADIENTS: tuple[Gradients, ...] = ("step", "micro_step", "both")


@dataclass(frozen=True)
class Settings:
    """The settings that hold for every model of an inspector.

    Attributes:
        lenses: all of them, also those that belong to others.
        choice: which layers.
        gradients: of parameters.
        evaluation: record evaluation passes through every lens.
        scaler: a ``GradScaler`` or None.
        strict: raise what a statistic raises.
        update_memory: bytes that copies of parameters may take, for the time of a logged step.
        calls_apart: how many calls of a module in one forward have rows of their own.
        by_default: whether these are the default lenses. One of them may find nothing to observe.
        part: how this process takes part in the run.
        batch_ranks: the ranks that run the models on batches of their own; None: find them.
        on_nonfinite: what is done about a step whose gradients or loss are not finite; None: no step but logged ones is looked at.
        on_spike: robust deviations from which the step of a loss or gradient norm is kept; None: no step is.
        rules: those that are applied to the rows.
    """

    lenses: tuple[Lens, ...]
    choice: Choice
    gradients: Gradients = "step"
    evaluation: bool = False
    scaler: Any = None
    strict: bool = False
    update_memory: float = inf
    calls_apart: int = 0
    by_default: bool = False
    part: Participation = Participation()
    batch_ranks: tuple[int, ...] | None = None
    on_nonfinite: OnNonFinite | None = None
    on_spike: float | None = None
    rules: Chosen = Chosen()

    def in_common(self) -> dict[str, Any]:
        """Return what must be alike in all processes of a training, in words."""
        choice = self.choice
        return {
            "the version of sonde": sonde.__version__,
            "the version of the run format": VERSION,
            "per_rank=": self.part.rows_beside,
            "lenses=": "the default" if self.by_default else [lens.described() for lens in self.lenses],
            "gradients=": self.gradients,
            "evaluation=": self.evaluation,
            "calls=": self.calls_apart,
            "include=": in_words(choice.include),
            "exclude=": in_words(choice.exclude),
            "depth=": choice.depth,
        }


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(k|m|g|ki|mi|gi|)b?\s*", re.IGNORECASE)


def bytes_of(size: str | float | None) -> float:
    """Return the bytes that ``"1GB"``, ``"500 MiB"`` or a number stands for; None is no limit.

    Raises:
        ArgumentError: *size* is no size, or not above 0.
    """
    if size is None:
        return inf
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    given = float(found[1]) * _UNITS[found[2].lower()] if found is not None else size
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        raise ArgumentError(f'update_memory={size!r}: give the bytes that copies of parameters may take, as "1GB", or None for any')
    return float(given)
