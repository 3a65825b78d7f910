"""Define what a case of the suite is: a training, and the truth about its fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.health.training import Training

SYMPTOMS = {
    "not finite": "a NaN or an infinity",
    "dead": "units or a whole output that is zero for every sample",
    "constant": "an output or a weight whose elements are all one value",
    "saturated": "an activation at the flat end of its range",
    "zero gradient": "a gradient that is exactly zero, or missing",
    "vanishing": "gradients that are tiny beside others, or against what the numbers can hold",
    "exploding": "gradients that are huge beside others, or that grow",
    "scale": "outputs that are far too large or too small from the beginning on",
    "growth": "outputs, weights or attention scores that grow (or shrink) over the run",
    "large steps": "steps that move weights too far",
    "small steps": "steps that do not move weights, or too little",
    "rounding": "updates that are lost to the rounding of the parameters' dtype",
    "range": "numbers beyond, or below, what their dtype can hold",
    "spike": "one step that stands out",
    "loss": "a loss that does not fall, or rises",
    "overfitting": "a validation loss that rises while the training loss falls",
    "rank": "outputs that lose their dimensions",
    "mode": "steps without a forward pass in training mode",
}
"""What can be seen of a fault, in words. A rule speaks of one of these; a truth names those that show the fault."""


@dataclass(frozen=True)
class Truth:
    """What is wrong with a training, as it was planted. Never taken from what a rule says.

    Attributes:
        expected: the symptoms that show the fault, each with its place: a regular expression that matches the whole name of the
            layer or parameter, or ``""`` where the whole network is at fault. A finding of one of them has found the fault.
        allowed: symptoms that follow from the fault too: right, but not enough.
        step: the step at which the fault begins to show; None where it grows slowly, and no step is the first.
        until: the last step at which it can begin to show; by default *step*.
        spreads: whether the fault reaches every layer before the next step: rows of later steps cannot show where it began, so that
            the layer counts only where *step* itself is logged.
        hidden: why nothing can be seen in the recorded numbers; such a case is in the table, but counts for nothing.
    """

    expected: Mapping[str, str] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    step: int | None = None
    until: int | None = None
    spreads: bool = False
    hidden: str = ""

    def __post_init__(self) -> None:
        unknown = sorted({*self.expected, *self.allowed} - SYMPTOMS.keys())
        if unknown:
            raise ValueError(f"symptoms that do not exist: {', '.join(unknown)}. They are: {', '.join(SYMPTOMS)}.")


def truth(
    expected: Mapping[str, str] | Iterable[str],
    allowed: Iterable[str] = (),
    *,
    step: int | None = None,
    until: int | None = None,
    spreads: bool = False,
) -> Truth:
    """Return a truth; symptoms without a place are those of the whole network."""
    places = dict(expected) if isinstance(expected, Mapping) else dict.fromkeys(expected, "")
    return Truth(places, frozenset(allowed), step, until, spreads)


def hidden(why: str) -> Truth:
    """Return the truth about a fault that the recorded numbers cannot show."""
    return Truth(hidden=why)


Build = Callable[[str, int], tuple[Training, Truth]]
"""Makes the training of a kind of network from a seed, and the truth about it."""


@dataclass(frozen=True)
class Case:
    """One training of the suite: its name, the kind of network, and how it is made. A healthy one has an empty truth."""

    name: str
    kind: str
    build: Build
    healthy: bool = False

    def __str__(self) -> str:
        return f"{self.name} [{self.kind}]"


FAILURES: list[Case] = []
CONTROLS: list[Case] = []


def failure(name: str, kinds: str | Sequence[str]) -> Callable[[Build], Build]:
    """List the decorated function as a failure, once for each of the *kinds* of networks (words in one string)."""

    def listed(build: Build) -> Build:
        FAILURES.extend(Case(name, kind, build) for kind in (kinds.split() if isinstance(kinds, str) else kinds))
        return build

    return listed


def control(name: str, kind: str) -> Callable[[Callable[[int], Training]], Callable[[int], Training]]:
    """List the decorated function as a healthy training."""

    def listed(build: Callable[[int], Training]) -> Callable[[int], Training]:
        CONTROLS.append(Case(name, kind, lambda _, seed: (build(seed), Truth()), healthy=True))
        return build

    return listed
