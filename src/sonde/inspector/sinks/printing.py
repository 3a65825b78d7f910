"""The visualizer that prints: at the end of each epoch one compact table, a row for each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sonde.inspector.sinks.visualizers import Shown
from sonde.run.run import Run
from sonde.view.plots.layer_names import Include
from sonde.view.plots.table import table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Print"]


class Print(Shown):
    """Prints :func:`sonde.view.plots.table` at the end of each epoch and of the training: ``watch(model, to=[path, Print()])``.

    Args:
        include, exclude: of layers: a regular expression that is searched in their names, or exact names.
        console: a rich console to print to; by default one that writes to the standard output of that moment.
    """

    def __init__(self, *, include: Include = None, exclude: Include = None, console: Console | None = None) -> None:
        super().__init__()
        self._include = include
        self._exclude = exclude
        self._console = console

    def _show(self, run: Run) -> None:
        from rich.console import Console

        console = self._console if self._console is not None else Console()
        console.print(table(run, include=self._include, exclude=self._exclude))
