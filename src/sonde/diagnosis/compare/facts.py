"""The facts of a comparison: the places, the first one where the sides part, the causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sonde.diagnosis.compare.aligned import Place
from sonde.rules import Finding

__all__ = ["Facts"]


@dataclass(repr=False)
class Facts:
    """The facts of a comparison of two sides.

    Attributes:
        a, b: the sides in words: the model's class, or the folder.
        places: every place that both sides have, in the order in which ``a`` executed them: forward, backward, update.
        culprit: the first place where the sides part beyond rounding; None where they do not.
        owner: the module in ``a`` whose own code made the tensor of the culprit: that of its site, or where the input of a layer
            parts, the module around the layer; ``""`` without a culprit.
        causes: what explains the culprit, the most certain cause first; empty where no cause is known.
        hints: settings, modes and types that differ and have no effect beyond rounding, or come after the culprit.
        match: the patterns of names that were used.
        only_a, only_b: modules that ran in one side alone.
        notes: how the sides were run, in words.
        errors: the sides that raised, which were compared up to there, in words.
    """

    a: str
    b: str
    places: tuple[Place, ...]
    culprit: Place | None = None
    owner: str = ""
    causes: tuple[Finding, ...] = ()
    hints: tuple[Finding, ...] = ()
    match: Mapping[str, str] = field(default_factory=dict)
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether the sides do not part anywhere beyond rounding, and none raised."""
        return self.culprit is None and not self.errors

    @property
    def cause(self) -> Finding | None:
        """The most certain cause; None where none is known."""
        return self.causes[0] if self.causes else None
