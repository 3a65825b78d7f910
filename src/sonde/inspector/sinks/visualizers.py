"""The visualizers: print a table, or draw pictures, at the end of each epoch and of the training."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from sonde.answer import standard_output
from sonde.errors import ArgumentError, MissingExtraError
from sonde.paths import absolute_path
from sonde.run import Run
from sonde.view import plots

if TYPE_CHECKING:
    from rich.console import Console


class EpochVisualizer(ABC):
    """A visualizer that shows a run once at each of its moments. It is called at the end of each epoch and of the training."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None

    def __call__(self, run: Run) -> None:
        """Show *run*, unless nothing was recorded since the last call."""
        moment = (str(run.path), run.last_step)
        if moment != self._last:
            self._last = moment
            self._show(run)

    @abstractmethod
    def _show(self, run: Run) -> None: ...


class Print(EpochVisualizer):
    """Prints :func:`sonde.view.plots.table`, one row for each layer: ``watch(model, to=[path, Print()])``.

    >>> from sonde.inspector.sinks import Print
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> writer.run().send_to(Print())
    run in memory · epoch 0 · step 0
    layer   rms
    ──────────────
    0         1
    1       0.5

    Args:
        include, exclude: of layers: a regular expression that is searched in their names, or exact names.
        console: a rich console to print to; by default one that writes to the standard output of that moment.
    """

    def __init__(self, *, include: plots.Include = None, exclude: plots.Include = None, console: Console | None = None) -> None:
        super().__init__()
        self._include = include
        self._exclude = exclude
        self._console = console

    def _show(self, run: Run) -> None:
        console = self._console if self._console is not None else standard_output()
        console.print(plots.table(run, include=self._include, exclude=self._exclude))


class Pictures(EpochVisualizer):
    """Draws the pictures of :func:`sonde.view.plots.plan` over those of the epoch before.

    >>> import tempfile
    >>> from sonde.inspector.sinks import Pictures
    >>> from sonde.run import memory_run
    >>> writer = memory_run()
    >>> for step in range(3):
    ...     writer.scalar("loss", 1.0 / (1 + step), step=step)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pictures = Pictures(folder)
    ...     writer.run().send_to(pictures)
    ...     type(pictures.show_fig()).__name__
    'Picture'

    As in ``watch(model, to=[path, Pictures("out")])``.

    Args:
        folder: where to; made if it is not there.
        form: ``"png"``, ``"svg"`` or ``"pdf"``.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        MissingExtraError: matplotlib is not installed; at once, not after the first epoch.
    """

    def __init__(self, folder: str | os.PathLike[str], *, form: str = "png", theme: plots.Theme = "light") -> None:
        super().__init__()
        MissingExtraError.import_or_raise("matplotlib", "a picture of a run", "plots")
        self.folder = absolute_path(folder)
        self._form = form
        self._theme: plots.Theme = theme
        self._run: Run | None = None

    def _show(self, run: Run) -> None:
        self._run = run
        plots.save(run, self.folder, form=self._form, theme=self._theme)

    def show_fig(self) -> plots.Picture:
        """Return one figure with all pictures of the run: to ``savefig``, or as the last line of a notebook's cell.

        Raises:
            ArgumentError: no epoch has ended yet.
        """
        if self._run is None:
            raise ArgumentError("there is nothing to show before the first tick_epoch() or the end of the training")
        return plots.sheet(self._run, theme=self._theme)
