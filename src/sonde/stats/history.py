"""Keep a copy of the last tensor of each key, to compare the next tensor with."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from sonde.stats.statistic import dense


@dataclass(slots=True)
class _Kept:
    step: int | None
    latest: Tensor
    before: Tensor | None  # the last tensor of the step before; only where steps are given


class History:
    """Copies of the last tensor of each key, overwritten in place by the next tensor.

    Where steps are given, the tensors of one step are versions of one tensor (an accumulating gradient): each is compared with
    the last version of the step before, which takes a second copy.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def previous(self, key: Hashable, step: int | None = None) -> Tensor | None:
        """Return the predecessor of a tensor that comes at *step*; None for the first tensor of *key*."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        return kept.before if step is not None and kept.step == step else kept.latest

    def remember(self, key: Hashable, tensor: Tensor, step: int | None = None) -> None:
        """Keep a copy of *tensor*, the predecessor of the next tensor of *key*."""
        kept = self._kept.get(key)
        if kept is None:
            self._kept[key] = _Kept(step, _copy(tensor), None)
        elif step is None:
            self._kept[key] = _Kept(None, _copy(tensor, kept.latest), None)
        elif kept.step == step:
            kept.latest = _copy(tensor, kept.latest)
        else:
            self._kept[key] = _Kept(step, _copy(tensor, kept.before), kept.latest)

    def clear(self) -> None:
        """Forget all tensors."""
        self._kept.clear()


def _copy(tensor: Tensor, into: Tensor | None = None) -> Tensor:
    """Return a copy of *tensor*, written over *into* where shape, type and device allow."""
    tensor = dense(tensor).detach()
    with torch.no_grad(), torch.inference_mode(False):
        fits = into is not None and into.shape == tensor.shape and into.dtype == tensor.dtype and into.device == tensor.device
        return into.copy_(tensor) if into is not None and fits else tensor.clone()
