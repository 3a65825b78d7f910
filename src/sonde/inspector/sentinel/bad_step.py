"""A step whose gradients or loss are not finite, or far beyond those before, with everything that is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from sonde.inspector.sentinel.spikes import Spike
from sonde.inspector.sentinel.training_passes import KeptPass


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters as they were before a step.

    Attributes:
        copies: by the id of the parameter; of the others the present ones are as good.
        lost: ids of those that are not known.
        reason: why these are not known, in words.
    """

    copies: Mapping[int, Tensor] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    reason: str = ""


@dataclass(slots=True)
class BadStep:
    """A step whose gradients or loss are not finite or a spike, before the optimizer has used them, or found so later.

    Attributes:
        model, name: the model, and its name in the sites.
        epoch, step: when.
        gradients: by the name of the parameter, of each gradient that is not finite: ``NaN``, or ``inf`` if it holds no NaN.
        passes: the training passes of the step, in order.
        buffers: as they were before the step, by name; of those that are not there the present ones are as good.
        looked_at: so many gradients were looked at.
        is_sample: there were more gradients.
        loss: a loss that is not finite; None if there was none.
        spike: all is finite, and the loss or the gradient norm is far beyond those before.
        parameters: as they were before the step; None: the present ones are.
        late: so many steps were begun before it was found.
        at_end: it was found as the observation ended, when there is nothing to stop.
        is_taken: the optimizer has used the gradients.
        skipped: so many attempts in a row were skipped by a ``GradScaler``; 0 if none was.
        in_backward: the optimizer runs inside the backward pass, so that some parameters have changed already.
        slopes: operations of the loss function whose slope is infinite somewhere, with where, in words.
    """

    model: nn.Module
    name: str
    epoch: int
    step: int
    gradients: dict[str, str]
    passes: list[KeptPass]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    looked_at: int = 0
    loss: float | None = None
    spike: Spike | None = None
    parameters: Parameters | None = None
    is_sample: bool = False
    late: int = 0
    at_end: bool = False
    is_taken: bool = False
    skipped: int = 0
    in_backward: bool = False
    slopes: tuple[str, ...] = ()
