"""Whether a probe observes now: the one thing that its hooks ask, also in compiled code."""

from __future__ import annotations

import torch

__all__ = ["Switch"]


class Switch:
    """Whether a probe observes now, and which passes. Compiled code reads it, and there is a graph for each answer.

    Attributes:
        on: whether it observes.
        training: whether it observes training passes alone, or (False) evaluation passes alone; None is both.
    """

    __slots__ = ("on", "training")

    def __init__(self, training: bool | None) -> None:
        self.on = False
        self.training = training

    def refuses_traced(self) -> bool:
        """Whether it does not observe passes with gradients as they are now enabled; inside compiled code."""
        return self.training is not None and torch.is_grad_enabled() is not self.training
