"""Gradients as they would be without the loss scaling of mixed-precision training."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sonde.stats.statistic import dense

__all__ = ["Scaler", "unscaled"]


class Scaler(Protocol):
    """What is needed of a ``torch.amp.GradScaler``."""

    def is_enabled(self) -> bool: ...
    def _get_scale_async(self) -> Tensor | None: ...


def unscaled(gradient: Tensor, scaler: Scaler | None) -> Tensor:
    """*gradient* divided by the scale that *scaler* has put on the loss; itself without one. No host sync."""
    # get_scale() would wait for the device
    scale = scaler._get_scale_async() if scaler is not None and scaler.is_enabled() else None
    if scale is None:
        return gradient
    wide = torch.complex128 if gradient.is_complex() else torch.float64
    return dense(gradient.detach()).to(wide) / scale.detach().to(gradient.device, torch.float64)
