"""The settings that hold for every model of an inspector."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import sonde
from sonde.checked import checked
from sonde.errors import ArgumentError
from sonde.inspector.arguments import in_words
from sonde.inspector.budget import share_of
from sonde.inspector.ranks import Participation
from sonde.lens import Choice, Lens
from sonde.rules import Chosen
from sonde.run import VERSION
from sonde.sizes import bytes_of

Gradients = Literal["step", "micro_step", "both"]
"""Which gradients of parameters are recorded: as the optimizer saw them, after each backward pass, or both."""

OnNonFinite = Literal["warn", "stop", "wait"]
"""What is done about a step whose gradients or loss are not finite."""

_ON_NONFINITE: tuple[OnNonFinite | None, ...] = ("warn", "stop", "wait", None)


@checked("on_nonfinite")
@dataclass(frozen=True)
class BadSteps:
    """What ``watch`` does about bad steps, also between logged ones: with NaN or infinity, or with a spike.

    >>> import sonde, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> bad = sonde.BadSteps(on_nonfinite="stop", on_spike=100.0)
    >>> with sonde.watch(net, every=1, to="memory", bad_steps=bad, verbose=False) as inspector:
    ...     bad.on_nonfinite
    'stop'

    A bad step is kept in the folder of the run, with its batches, parameters and random state: see :func:`sonde.replay`.

    Args:
        on_nonfinite: what is done about a step with NaN or infinity in its loss, or in the gradients that the optimizer is about to
            use: ``"warn"``, keep the step, find the operation that made them, and warn; ``"stop"``, the same, and raise
            :class:`~sonde.errors.NonFiniteError` before the optimizer changes any parameter; None, nothing. Neither waits for an
            accelerator: there a step is found as its numbers arrive, most often one or two steps later, and ``"stop"`` raises
            then. ``"wait"`` is ``"stop"`` that waits before each step.
        on_spike: a number, as 6: keep each step, too, whose loss or gradient norm lies so many robust deviations above the median
            of the last 128 steps (both of logarithms; a deviation is 1.4826 times the median distance, at least 2 %), and warn.
            All gradients are then measured before each step. None: no step is kept for that.

    Raises:
        ArgumentError: one of them is neither of these.
    """

    on_nonfinite: OnNonFinite | None = "warn"
    on_spike: float | None = None

    def __post_init__(self) -> None:
        if self.on_nonfinite not in _ON_NONFINITE:
            known = ", ".join(map(repr, _ON_NONFINITE))
            raise ArgumentError(
                f"bad_steps={self.on_nonfinite!r}: give one of {known}, or sonde.BadSteps(on_nonfinite=, on_spike=)"
            )
        if self.on_spike is not None and (isinstance(self.on_spike, bool) or not self.on_spike > 0):
            raise ArgumentError(
                f"BadSteps(on_spike={self.on_spike!r}): give the robust deviations from which a step is kept, as 6, or None"
            )


@checked("memory")
@dataclass(frozen=True)
class Limits:
    """What ``watch`` may take of the time of a training, and of memory.

    >>> import sonde
    >>> sonde.Limits(memory="2GB").memory_bytes()
    2000000000.0

    Args:
        budget: the share of step time that observing may take, as ``"1%"`` or 0.01: *every*, an int, is then adapted. None: any.
        memory: the memory for copies of parameters, as ``"1GB"``, bytes, or None for any amount. Updates are measured on copies
            that are made before each logged step and dropped after it. Where the copies would take more, they hold every n-th
            element: shares and means are then of these elements, counts and norms are estimates, and the coverage says where. On
            an accelerator bad steps are kept in as much memory again.

    Raises:
        ArgumentError: one of them is no share, or no size.
    """

    budget: str | float | None = None
    memory: str | float | None = "1GB"

    def __post_init__(self) -> None:
        share_of(self.budget)
        self.memory_bytes()

    def memory_bytes(self) -> float:
        """Return *memory* in bytes."""
        return bytes_of(self.memory, "Limits(memory)", "that copies of parameters may take")


@dataclass(frozen=True)
class Settings:
    """The settings that hold for every model of an inspector.

    Attributes:
        lenses: all of them, also those that belong to others.
        choice: which layers: ``include``, ``exclude`` and ``depth``.
        gradients, evaluation, scaler, strict, bad_steps: see :func:`sonde.watch`.
        update_memory: bytes that copies of parameters may take, for the time of a logged step.
        calls_apart: how many calls of a module in one forward have rows of their own.
        by_default: whether these are the default lenses. One of them may find nothing to observe.
        part: how this process takes part in the run.
        batch_ranks: the ranks that run the models on batches of their own; None: find them.
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
    bad_steps: BadSteps = BadSteps(None)
    rules: Chosen = Chosen()

    def in_common(self) -> dict[str, Any]:
        """Return what must be alike in all processes of a training, in words."""
        choice = self.choice
        return {
            "the version of sonde": sonde.__version__,
            "the version of the run format": VERSION,
            "Ranks(per_rank=)": self.part.rows_beside,
            "lenses=": "the default" if self.by_default else [lens.described() for lens in self.lenses],
            "gradients=": self.gradients,
            "evaluation=": self.evaluation,
            "calls=": self.calls_apart,
            "include=": in_words(choice.include),
            "exclude=": in_words(choice.exclude),
            "depth=": choice.depth,
        }
