"""Draw all pictures of a run on one figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sonde.run import Run
from sonde.view.plots.canvas import Theme, canvas, subtitle
from sonde.view.plots.plan import plan

if TYPE_CHECKING:
    from sonde.view.plots.picture import Picture


_COLUMNS = 2
_GAP = 0.25  # inches between pictures
_DPI = 150


def sheet(run: Run, *, theme: Theme = "light") -> Picture:
    """Draw every picture of :func:`plan` on one figure, in two columns, as images; a run without any gives an empty figure.

    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> len(plots.sheet(writer.run()).axes)
    1

    :func:`save` writes each picture to a file of its own, which can be enlarged without loss.

    Args:
        run: the run.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn = [draw(theme=theme) for draw in plan(run).values()]
    columns: list[list[tuple[Picture, float]]] = [[] for _ in range(min(_COLUMNS, max(len(drawn), 1)))]
    heights = [0.0] * len(columns)
    for picture in drawn:  # each below the shortest column
        shortest = heights.index(min(heights))
        columns[shortest].append((picture, heights[shortest]))
        heights[shortest] += picture.get_figheight() + _GAP
    widths = [max((picture.get_figwidth() for picture, _ in column), default=4.0) for column in columns]
    width, header = sum(widths) + _GAP * (len(columns) - 1), 0.62
    height = max(heights) + header
    facts = f"{len(drawn)} pictures" if drawn else "nothing was recorded yet"
    with canvas(width, height, theme, "All pictures of the run", subtitle(run, facts)) as (figure, _):
        figure.set_layout_engine("none")
        for place, column in enumerate(columns):
            left = sum(widths[:place]) + _GAP * place
            for picture, top in column:
                size = picture.get_size_inches()
                at = (left / width, 1 - (header + top + size[1]) / height, size[0] / width, size[1] / height)
                axes = figure.add_axes(at)
                axes.set_axis_off()
                axes.imshow(_pixels(picture), aspect="auto", interpolation="none")
    return figure


def _pixels(picture: Picture) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the picture as an image: uint8 of shape (height, width, 4)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    picture.set_dpi(_DPI)
    drawn: Any = FigureCanvasAgg(picture)
    drawn.draw()
    return np.array(drawn.buffer_rgba())
