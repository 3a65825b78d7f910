"""Loss scaling: the scale that gradients are under, gradients without the scale, and attempts at a step that were skipped."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from sonde.engine.torch_api.torch_tensors import loss_scale_of, takes_loss_scale, version_of
from sonde.errors import ArgumentError
from sonde.stats import dense
from sonde.warn import warn_user


class Scaling:
    """Follows a ``GradScaler`` without ever waiting for the device.

    ``update()`` writes into the scaler's scale whether or not the step was taken. So if the scale was written into since the last
    forward, and no step was counted, the attempt was skipped.

    Raises:
        ArgumentError: *scaler* is no ``GradScaler``.
    """

    def __init__(self, scaler: Any) -> None:
        if scaler is not None and not takes_loss_scale(scaler):
            raise ArgumentError(f"scaler={scaler!r}: give the torch.amp.GradScaler that scales the loss")
        self._scaler = scaler
        self._seen = self._version()
        self._step = -1

    @property
    def scale(self) -> Tensor | None:
        """The factor of the loss now; None without one."""
        return Scaling.of(self._scaler)

    def notice(self) -> None:
        """Use the scaler whose ``step()`` runs now, if none was given, and warn once. Call inside an optimizer's step."""
        if self._scaler is not None:
            return
        scaler = _scaler_at_work()
        if scaler is not None and scaler.is_enabled():
            self._scaler = scaler
            self._seen = self._version()
            warn_user(
                "the loss is scaled by a GradScaler that was not given: sonde divides gradients by its scale from this step on. "
                "Give it, watch(..., scaler=scaler): attempts that it skipped before this step were taken for parts of it"
            )

    def _version(self) -> int:
        scale = self.scale
        return 0 if scale is None else version_of(scale)

    def skipped(self, step: int) -> bool:
        """Return whether the attempt before this forward, which belongs to *step*, was skipped."""
        version = self._version()
        found = version != self._seen and step == self._step
        self._seen, self._step = version, step
        return found

    of = staticmethod(loss_scale_of)

    @staticmethod
    def at_step(optimizer: Optimizer | None) -> Tensor | None:
        """Return the scale that gradients are still under when *optimizer* steps: a fused one unscales them itself."""
        scale = getattr(optimizer, "grad_scale", None)
        return scale if isinstance(scale, Tensor) else None

    @staticmethod
    def unscaled(gradient: Tensor, scaler: Any) -> Tensor:
        """Return *gradient* divided by the scale that *scaler*, a ``GradScaler``, has put on the loss, in float64. No host sync.

        Without a scaler, or with one that is not enabled, *gradient* itself is returned.
        """
        scale = Scaling.of(scaler)
        if scale is None:
            return gradient
        wide = torch.complex128 if gradient.is_complex() else torch.float64
        return dense(gradient.detach()).to(wide) / scale.detach().to(gradient.device, torch.float64)

    @staticmethod
    def skips(optimizer: Optimizer) -> Tensor | None:
        """Return the tensor by which a ``GradScaler`` makes a fused *optimizer* skip the step, if it is not 0; None without one."""
        found = getattr(optimizer, "found_inf", None)
        return found if isinstance(found, Tensor) else None

    @staticmethod
    def is_skipped(optimizer: Optimizer) -> bool:
        """Return whether a fused optimizer under a ``GradScaler`` found infinities and left the parameters as they were."""
        found = Scaling.skips(optimizer)
        return found is not None and bool(found)


def _scaler_at_work() -> Any:
    """Return the ``GradScaler`` whose ``step()`` is among the callers of this function, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _STEP:
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


_STEP = torch.amp.GradScaler.step.__code__
