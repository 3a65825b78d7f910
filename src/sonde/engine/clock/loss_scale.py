"""Loss scaling: which scale gradients are under, and whether an attempt at a step was skipped."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from sonde.errors import ArgumentError

__all__ = ["Scaling", "scale_at_step"]


class Scaling:
    """Follows a ``GradScaler``, without ever waiting for the device.

    ``update()`` writes into the scaler's scale whether or not the step was taken. So if the scale was written to since the last
    forward, and no step was counted, the attempt was skipped.
    """

    def __init__(self, scaler: Any) -> None:
        if scaler is not None and not hasattr(scaler, "_get_scale_async"):
            raise ArgumentError(f"scaler={scaler!r}: give the torch.amp.GradScaler that scales the loss")
        self._scaler = scaler
        self._seen = self._version()
        self._step = -1

    @property
    def scale(self) -> Tensor | None:
        """What the loss is multiplied by now; None if by nothing."""
        if self._scaler is None or not self._scaler.is_enabled():
            return None
        scale: Tensor | None = self._scaler._get_scale_async()
        return scale

    def _version(self) -> int:
        scale = self.scale
        return 0 if scale is None else scale._version

    def skipped(self, step: int) -> bool:
        """Whether the attempt before this forward, which belongs to *step*, was skipped."""
        version = self._version()
        found = version != self._seen and step == self._step
        self._seen, self._step = version, step
        return found


def scale_at_step(optimizer: Optimizer | None) -> Tensor | None:
    """The scale that gradients are still under when *optimizer* steps, as a fused one unscales them by itself."""
    scale = getattr(optimizer, "grad_scale", None)
    return scale if isinstance(scale, Tensor) else None
