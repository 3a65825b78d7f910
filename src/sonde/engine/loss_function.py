"""Check a ``loss_fn=`` before a model runs, and what it returns; find the loss that a model returns itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sonde.errors import ArgumentError


def check_loss_fn(loss_fn: Any) -> None:
    """Raise if *loss_fn* is neither None nor a function that can be called with one argument.

    Raises:
        ArgumentError: *loss_fn* cannot be called, or needs other arguments than the model's output, as ``nn.CrossEntropyLoss()``
            needs a target.
    """
    if loss_fn is None:
        return
    if not callable(loss_fn):
        raise ArgumentError(f"loss_fn={loss_fn!r} cannot be called: give a function from the model's output to a scalar")
    try:
        signature = inspect.signature(loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn)
    except (TypeError, ValueError):  # a builtin function may have no signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = loss_fn if isinstance(loss_fn, nn.Module) else getattr(loss_fn, "__name__", repr(loss_fn))
        raise ArgumentError(
            f"loss_fn={name} cannot be called with the model's output alone ({error}): give a function that holds the rest, as "
            "lambda output: torch.nn.functional.cross_entropy(output, target)"
        ) from None


def check_loss(loss: Any) -> Tensor:
    """Return *loss*, which a ``loss_fn`` has returned.

    Raises:
        ArgumentError: it is no scalar tensor.
    """
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = f"one of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ArgumentError(f"loss_fn must return a scalar tensor; it returned {shown}")
    return loss


def own_loss(output: Any) -> Tensor | None:
    """Return the ``loss`` of what a model has returned, an attribute or a key; None if there is none of one element."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None


def returned_loss(output: Any) -> Tensor | None:
    """Return what a model has returned if that is a scalar tensor, as of a model that computes its loss; else its ``own_loss``."""
    return output if isinstance(output, Tensor) and output.dim() == 0 else own_loss(output)
