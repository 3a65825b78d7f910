"""What holds for every model of an inspector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sonde.inspector.choosing import Choice
from sonde.inspector.lenses import Lens

__all__ = ["GRADIENTS", "Gradients", "Settings"]

Gradients = Literal["step", "micro_step", "both"]
"""Which gradients of parameters are recorded: as the optimizer saw them, after each backward pass, or both."""

GRADIENTS: tuple[Gradients, ...] = ("step", "micro_step", "both")


@dataclass(frozen=True)
class Settings:
    """What holds for every model of an inspector.

    Attributes:
        lenses: all of them, also those that belong to others.
        choice: which layers.
        gradients: of parameters.
        evaluation: record evaluation passes through every lens.
        scaler: a ``GradScaler`` or None.
        strict: raise what a statistic raises.
        by_default: nobody asked for these lenses, so that one of them may find nothing to look at.
    """

    lenses: tuple[Lens, ...]
    choice: Choice
    gradients: Gradients = "step"
    evaluation: bool = False
    scaler: Any = None
    strict: bool = False
    by_default: bool = False
