"""Update / weight: the ratio of every weight over all steps, and where NaN begins."""

from __future__ import annotations

import numpy as np
from tests.view.plots.drawn import texts_of

from sonde.rows import Layout
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots


def test_update_ratio_divides_update_by_parameter_and_draws_the_usual_line() -> None:
    writer = memory_run()
    places = Layout(["fc.weight:param", "fc.weight:update", "fc.bias:param", "fc.bias:update"])
    for step in range(3):
        writer.append("moments", places, {"rms": [2.0, 0.002 * (step + 1), 0.0, 1.0]}, step=step)
    axes = plots.update_ratio(writer.run()).axes[0]
    assert np.allclose(axes.lines[0].get_ydata(), [0.001, 0.002, 0.003])
    assert np.asarray(axes.lines[1].get_ydata()).tolist() == [1e-3, 1e-3]  # and no line for the bias
    both = plots.update_ratio(writer.run(), include="fc").axes[0]
    bias = [np.asarray(line.get_ydata(), float) for line in both.lines if np.isnan(np.asarray(line.get_ydata(), float)).all()]
    assert len(bias) == 1, "a parameter that is all zeros has no ratio"


def test_update_ratio_reads_the_lens_that_records_it() -> None:
    writer = memory_run()
    writer.append("parameter_update_ratio", Layout(["fc.weight:update"]), {"ratio": [0.01]}, step=0)
    writer.append("parameter_update_ratio", Layout(["fc.weight:update"]), {"ratio": [0.02]}, step=1)
    assert np.allclose(plots.update_ratio(writer.run()).axes[0].lines[0].get_ydata(), [0.01, 0.02])


def test_update_ratio_shows_all_steps_and_marks_where_nan_begins() -> None:
    writer = memory_run()
    places = Layout(["fc.weight:param", "fc.weight:update", "out.weight:param", "out.weight:update"])
    for step in range(55):
        broken = float(step > 6)
        writer.append("moments", places, {"rms": [2.0, 0.002, 1.0, 0.0], "nan": [0.0, broken, 0.0, 0.0], "inf": 0.0}, step=step)
    figure = plots.update_ratio(writer.run())
    axes = figure.axes[0]
    assert axes.get_xlim() == (0, 54)
    by_marker = {line.get_marker(): np.asarray(line.get_xydata(), float).tolist() for line in axes.lines if len(line.get_xydata())}
    assert by_marker["x"] == [[6.0, 0.001]]
    assert [x for x, _ in by_marker["|"]] == list(range(7, 55))
    assert [x for x, _ in by_marker["o"]] == list(range(55))
    assert {"NaN elements", "exactly 0"} <= set(texts_of(figure).splitlines())
