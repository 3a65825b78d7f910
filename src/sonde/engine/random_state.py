"""Take the state of every random generator that a model may draw from, and put the generators back into it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True)
class RandomState:
    """The state of the random generators at one moment.

    Attributes:
        cpu: of torch on the CPU: bytes, of one dimension.
        accelerators: of torch on each accelerator, by the arguments that name the device to torch: its index, or nothing.
        python, numpy: of ``random`` and of ``numpy.random``; None if these were not taken.
    """

    cpu: Tensor
    accelerators: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    python: Any = None
    numpy: Any = None

    @classmethod
    def now(cls, used: Iterable[Tensor] = (), *, with_python: bool = True) -> RandomState:
        """Return the present state: of torch on the CPU and on the accelerators of the tensors *used*, and on the current one.

        Args:
            with_python: take those of Python and NumPy too, which takes thirty times as long.
        """
        accelerators = {place: _device_module().get_rng_state(*place) for place in _places(used)} if _accelerator() else {}
        of_python = (random.getstate(), np.random.get_state()) if with_python else ()
        return cls(torch.default_generator.get_state(), accelerators, *of_python)

    def has_drawn_from_python(self) -> bool:
        """Return whether Python's or NumPy's generator was drawn from since this state was taken with both."""
        now = np.random.get_state()
        same = all(np.array_equal(one, other) for one, other in zip(now, self.numpy or (), strict=False))
        return self.python is not None and not (same and random.getstate() == self.python)

    def restore(self) -> None:
        """Put the generators into this state."""
        torch.set_rng_state(self.cpu)
        if self.python is not None:
            random.setstate(self.python)
            np.random.set_state(self.numpy)
        for place, state in self.accelerators.items():
            _device_module().set_rng_state(state, *place)


@cache
def _accelerator() -> torch.device | None:
    """Return the accelerator of this machine, without an index; None if there is none."""
    return torch.accelerator.current_accelerator()


def _device_module() -> Any:
    return torch.get_device_module(_accelerator())


def _places(used: Iterable[Tensor]) -> list[tuple[int, ...]]:
    """Return the arguments that name each accelerator whose state is wanted."""
    device = _accelerator()
    if device is None:
        return []
    indices = {tensor.device.index or 0 for tensor in used if tensor.device.type == device.type}
    if indices or getattr(_device_module(), "is_initialized", bool)():  # never the first to wake a device
        indices.add(torch.accelerator.current_device_index())
    if device.type == "mps":
        return [()]
    return [(index,) for index in sorted(indices)]
