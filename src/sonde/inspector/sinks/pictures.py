"""The visualizer that draws: at the end of each epoch every picture of the run, into a folder."""

from __future__ import annotations

import os
from pathlib import Path

from sonde.inspector.sinks.visualizers import Shown
from sonde.run.run import Run
from sonde.view.plots import save
from sonde.view.plots.canvas import Theme, need_matplotlib

__all__ = ["Pictures"]


class Pictures(Shown):
    """Draws the pictures of :func:`sonde.view.plots.plan` over those of the epoch before.

    As in ``watch(model, to=[path, Pictures("out")])``.

    Args:
        folder: where to; made if it is not there.
        form: ``"png"``, ``"svg"`` or ``"pdf"``.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        MissingExtraError: matplotlib is not installed; at once, not after the first epoch.
    """

    def __init__(self, folder: str | os.PathLike[str], *, form: str = "png", theme: Theme = "light") -> None:
        super().__init__()
        need_matplotlib()
        self.folder = Path(folder)
        self._form = form
        self._theme: Theme = theme

    def _show(self, run: Run) -> None:
        save(run, self.folder, form=self._form, theme=self._theme)
