"""What the visualizers have in common: each moment of a run is shown once."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sonde.run.run import Run

__all__ = ["Shown"]


class Shown(ABC):
    """A visualizer: called with a run at the end of each epoch and of the training, it shows what is new."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None

    def __call__(self, run: Run) -> None:
        """Show *run*, unless nothing was recorded since the last time."""
        moment = (str(run.path), run.last_step)
        if moment != self._last:
            self._last = moment
            self._show(run)

    @abstractmethod
    def _show(self, run: Run) -> None: ...
