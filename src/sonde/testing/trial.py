"""Run copies of a model from one state of all random generators."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sonde.checkup import fresh, mean_square, random_state
from sonde.engine import quiet, walk
from sonde.errors import ArgumentError
from sonde.words import many

Loss = Callable[[Any], Tensor]


# ------------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Trial:
    """A model, the arguments of its call, and its loss function: all that a pass on a fresh copy needs."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss_fn: Loss | None = None
    factory: Callable[[], nn.Module] | None = None

    def fresh_model(self) -> nn.Module:
        """Return a copy of the model, or a new model from the factory.

        Raises:
            ArgumentError: the model cannot be copied and there is no factory.
        """
        if self.factory is not None:
            return self.factory()
        try:
            return copy.deepcopy(self.model)
        except Exception as error:
            raise ArgumentError(
                f"{type(self.model).__name__} cannot be deep-copied ({type(error).__name__}: {error}), and the check needs "
                "several: give factory=, a function that makes the same model each time"
            ) from error

    def fresh_batch(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a copy of the arguments. One tensor given twice is one copy given twice, and leaves stay leaves."""
        return fresh(self.args, self.kwargs)

    def loss(self, output: Any) -> Tensor | None:
        """Return the loss of *output*; None if no tensor needs a gradient."""
        if self.loss_fn is not None:
            loss = self.loss_fn(output)
            return loss if loss.requires_grad else None
        return mean_square(output) if any(tensor.requires_grad for _, tensor in walk(output)) else None


def listed(title: str, lines: list[str], most: int = 12) -> str:
    """Return a message of *title* and the first *most* of *lines*."""
    more = [f"... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n  ".join([f"{title} in {many(len(lines), 'place')}:", *lines[:most], *more])


# ------------------------------------------------------------------------------------------------------- random generators


def set_random_state(state: dict[str, Any]) -> None:
    """Set every random generator to *state*."""
    torch.set_rng_state(state["torch on cpu"])
    random.setstate(state["Python's"])
    np.random.set_state(state["numpy's"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all([held for name, held in state.items() if name.startswith("torch on cuda")])


@contextmanager
def same_chance() -> Iterator[Callable[[], None]]:
    """Yield a function that sets all random generators back to their present state; at the end, set them back too.

    Observers that were attached before see nothing of what runs inside.
    """
    state = random_state()
    try:
        with quiet():
            yield lambda: set_random_state(state)
    finally:
        set_random_state(state)
