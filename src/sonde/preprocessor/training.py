"""Whether a call of a layer belongs to training or to evaluation."""

from __future__ import annotations

from typing import Any

import torch

from sonde.errors import ArgumentError

__all__ = ["in_training"]


def in_training(module: Any, evaluation_from_grad: bool) -> bool:
    """Whether a layer that is called now is in training.

    Args:
        module: the layer, or None if it is not known.
        evaluation_from_grad: evaluation is where gradients are switched off (``no_grad``, ``inference_mode``); otherwise it
            is where ``module.training`` is false.

    Raises:
        ArgumentError: that depends on the module, which is not known.
    """
    if evaluation_from_grad:
        return torch.is_grad_enabled()
    if module is None:
        raise ArgumentError(
            "whether a call belongs to training is read from the layer's training flag, and this event does not carry its layer: "
            "use evaluation_from_grad=True, or call process_fw(name, module, ...)"
        )
    return bool(module.training)
