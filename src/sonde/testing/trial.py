"""Run copies of a model from one state of all random generators, and compare tensors to the last bit."""

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

from sonde.engine import quiet, structure
from sonde.errors import ArgumentError
from sonde.testing.zoo import mean_square

__all__ = ["Loss", "Trial", "difference", "listed", "random_state", "same_bits", "same_chance", "settled"]

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
        copies: dict[int, Tensor] = {}

        def copied(tensor: Tensor) -> Tensor:
            if id(tensor) not in copies:
                copies[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            return copies[id(tensor)]

        args, kwargs = structure.remap((self.args, self.kwargs), copied, objects=True)
        return args, kwargs

    def loss(self, output: Any) -> Tensor | None:
        """Return the loss of *output*; None if no tensor needs a gradient."""
        if self.loss_fn is not None:
            loss = self.loss_fn(output)
            return loss if loss.requires_grad else None
        return mean_square(output) if any(tensor.requires_grad for _, tensor in structure.walk(output)) else None


def settled(output: Any) -> Any:
    """Return *output*; the list of its items if it is a generator."""
    return list(output) if isinstance(output, Iterator) else output


def listed(title: str, lines: list[str], most: int = 12) -> str:
    """Return a message of *title* and the first *most* of *lines*."""
    more = [f"... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n  ".join([f"{title} in {len(lines)} {'place' if len(lines) == 1 else 'places'}:", *lines[:most], *more])


# ------------------------------------------------------------------------------------------------------- random generators


def random_state() -> dict[str, Any]:
    """Return the state of every random generator from which a model may draw."""
    state = {"torch on cpu": torch.get_rng_state(), "Python's": random.getstate(), "numpy's": np.random.get_state()}
    if torch.cuda.is_available():
        state |= {f"torch on cuda:{index}": held for index, held in enumerate(torch.cuda.get_rng_state_all())}
    return state


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


# ----------------------------------------------------------------------------------------------------------------- bits

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits; any NaN equals any other."""
    return difference(one, other) == ""


def difference(one: Tensor, other: Tensor) -> str:
    """Return the difference between two tensors in words; ``""`` if all bits are the same (any NaN equals any other)."""
    for what in ("dtype", "layout", "device", "is_nested"):
        here, there = getattr(one, what), getattr(other, what)
        if here != there:
            return f"{what} {here} and {there}"
    if type(one) is not type(other) and not {type(one), type(other)} <= {Tensor, nn.Parameter}:
        return f"type {type(one).__name__} and {type(other).__name__}"
    parts = _parts(one.detach()), _parts(other.detach())
    if len(parts[0]) != len(parts[1]):
        return f"{len(parts[0])} and {len(parts[1])} parts"
    return next(filter(None, map(_plain_difference, *parts)), "")


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return dense tensors of real numbers that together hold all that *tensor* holds."""
    tensor = tensor if type(tensor) in (Tensor, nn.Parameter) or tensor.is_nested else tensor.as_subclass(Tensor)
    if tensor.is_nested:
        return [part for held in tensor.unbind() for part in _parts(held)]
    if tensor.layout == torch.sparse_coo:
        held = tensor.coalesce()
        return [held.indices(), *_parts(held.values())]
    if tensor.layout != torch.strided:
        return _parts(tensor.to_dense())
    return [torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor]


def _plain_difference(one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return f"shape {tuple(one.shape)} and {tuple(other.shape)}"
    if one.is_meta or one.numel() == 0:
        return ""
    kind = _INTEGERS.get(one.element_size())
    if kind is None or not one.is_floating_point():
        differs = one != other
    else:
        differs = (one.contiguous().view(kind) != other.contiguous().view(kind)) & ~(one.isnan() & other.isnan())
    count = int(differs.sum())
    if not count:
        return ""
    place = tuple(differs.nonzero()[0].tolist())
    shown = f"{count} of {one.numel()} elements, first at {place}: " if one.ndim else ""
    return f"{shown}{one[place].item()!r} and {other[place].item()!r}"
