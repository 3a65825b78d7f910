"""Check that two models compute the same, up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn


def assert_same(
    a: nn.Module,
    b: nn.Module,
    batch: Any,
    /,
    *,
    loss_fn: Callable[[Any], Tensor] | None = None,
    optimizer: Any = None,
    match: Mapping[str, str] | None = None,
    noise: float | None = None,
    backward: bool = True,
) -> None:
    """Assert that two models agree on *batch* at every place: outputs, gradients and, with *optimizer*, updates.

    >>> import torch
    >>> from sonde.testing import assert_same
    >>> model = torch.nn.Linear(3, 2)
    >>> assert_same(model, model, torch.ones(4, 3))

    Args:
        a, b, batch, loss_fn, optimizer, match, noise, backward: as :func:`sonde.compare` takes them.

    Raises:
        AssertionError: the models part; the message is the ladder of layers down to the place, with the cause.
        ArgumentError: as ``sonde.compare``.
    """
    from sonde.diagnosis import compare

    found = compare(a, b, batch, loss_fn=loss_fn, optimizer=optimizer, match=match, noise=noise, backward=backward, verbose=False)
    if not found.ok:
        raise AssertionError(f"the models are not the same\n{found.to_text()}")
