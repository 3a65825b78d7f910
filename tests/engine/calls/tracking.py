"""Models and a dispatch mode with which tests of the module tracker see where each operation belongs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import sonde


class Operations(TorchDispatchMode):
    """Notes each operation of interest with its phase and the names of the calls that a tracker lists, with index if not 0."""

    def __init__(self, tracker: sonde.ModuleTracker, *names: str) -> None:
        super().__init__()
        self.tracker, self.names, self.rows = tracker, names, list[tuple[str, str, str]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name in self.names:
            calls = (call.name + (f"#{call.call}" if call.call else "") for call in self.tracker.stack)
            self.rows.append((name, self.tracker.phase, " ".join(calls)))
        return func(*args, **(kwargs or {}))

    def of(self, *phases: str) -> list[str]:
        """Where the operations of these phases belong, in order."""
        return [calls for _, held, calls in self.rows if held in phases]

    def taken(self) -> list[tuple[str, str, str]]:
        """All rows so far, which are forgotten."""
        rows, self.rows = self.rows, []
        return rows


class Layer(nn.Module):
    """A product and an activation, so that a recomputation that stops early still repeats the product."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


class Net(nn.Module):
    """Two layers, called as the given function says."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.run = Layer(), Layer(), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)
