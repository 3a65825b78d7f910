"""All pictures of a run on one figure."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tests.view.plots.drawn import texts_of, written

from sonde.run.store.memory_writer import memory_run
from sonde.view import plots


@pytest.mark.slow
def test_a_sheet_has_each_picture_as_it_is_drawn_alone_and_none_above_another() -> None:
    run = written()
    figure = plots.sheet(run)
    planned = plots.plan(run)
    assert len(figure.axes) == len(planned)
    shown = [np.asarray(axes.images[0].get_array()) for axes in figure.axes]
    alone = planned["scalars"]()
    canvas = FigureCanvasAgg(alone)
    canvas.draw()  # type: ignore[no-untyped-call]
    assert any(each.shape == np.asarray(canvas.buffer_rgba()).shape and (each == canvas.buffer_rgba()).all() for each in shown)  # type: ignore[no-untyped-call]
    boxes = [axes.get_position() for axes in figure.axes]
    for place, box in enumerate(boxes):
        assert box.x0 >= -1e-9
        assert box.y0 >= -1e-9
        assert not any(box.shrunk(0.999, 0.999).overlaps(other.shrunk(0.999, 0.999)) for other in boxes[:place])


def test_the_sheet_of_an_empty_run_says_so() -> None:
    assert "nothing was recorded yet" in texts_of(plots.sheet(memory_run().run()))
