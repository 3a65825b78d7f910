"""The heat-map: cells, scales, and the marks of NaN, zero and cells beyond the scale."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import LogNorm, to_rgb
from tests.view.plots.drawn import STEPS, mesh_of, rms, share_of, texts_of, written

from sonde.errors import ArgumentError
from sonde.rows import Layout
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots
from sonde.view.plots.canvas import look_of


def test_a_heatmap_has_a_row_for_each_layer_in_order_and_a_column_for_each_step() -> None:
    figure = plots.heatmap(written(), "rms", "output")
    drawn = mesh_of(figure).get_array()
    assert drawn is not None
    assert np.allclose(drawn, [[rms(layer, step) for step in STEPS] for layer in range(4)])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["blocks.0.fc", "blocks.1.fc", "blocks.2.fc", "head"]
    assert axes.get_ylim() == (4, 0)  # the first on top
    assert axes.get_xlim() == (-1, 19)  # half a step to each side
    assert "Root mean square of outputs" in texts_of(figure)
    assert "rms, unit of the output" in texts_of(figure)


@pytest.mark.parametrize(("number", "is_log", "low", "high"), [("rms", True, None, None), ("mean", False, -0.15, 0.15)])
def test_sizes_are_coloured_logarithmically_and_what_has_a_sign_about_zero(
    number: str, is_log: bool, low: float | None, high: float | None
) -> None:
    norm = mesh_of(plots.heatmap(written(), number)).norm
    assert isinstance(norm, LogNorm) is is_log
    if low is not None:
        assert (norm.vmin, norm.vmax) == pytest.approx((low, high))


def test_a_share_is_coloured_from_0_to_1_whatever_its_values() -> None:
    norm = mesh_of(plots.heatmap(written(), "call_activation")).norm
    assert (norm.vmin, norm.vmax) == (0, 1)


def test_limits_and_scale_can_be_given_and_are_checked() -> None:
    norm = mesh_of(plots.heatmap(written(), "rms", scale="linear", limits=(0, 5))).norm
    assert (norm.vmin, norm.vmax) == (0, 5)
    assert not isinstance(norm, LogNorm)
    with pytest.raises(ArgumentError, match="above 0"):
        plots.heatmap(written(), "rms", scale="log", limits=(0, 5))
    with pytest.raises(ArgumentError, match="'signed'"):
        plots.heatmap(written(), "rms", scale="square")  # type: ignore[arg-type]


def test_a_cell_that_met_nan_is_marked_though_its_number_is_finite() -> None:
    healthy = plots.heatmap(written(), "rms")
    broken = plots.heatmap(written(nan=lambda layer, step: float(layer == 2 and step == 6)), "rms")
    drawn = mesh_of(broken).get_array()
    assert isinstance(drawn, np.ma.MaskedArray)
    assert np.argwhere(np.ma.getmaskarray(drawn)).tolist() == [[2, 3]]
    red = look_of("light").defect
    assert share_of(healthy, red) == 0
    assert share_of(broken, red) > 0.001
    assert "NaN elements" in texts_of(broken)
    assert "NaN elements" not in texts_of(healthy)


def test_a_number_that_is_itself_infinite_is_marked_where_nothing_counts_defects() -> None:
    writer = memory_run()
    writer.append("own", Layout(["a:output", "b:output"]), {"size": [1.0, np.inf]}, step=0)
    writer.append("own", Layout(["a:output", "b:output"]), {"size": [np.nan, 2.0]}, step=1)
    drawn = mesh_of(plots.heatmap(writer.run(), "size")).get_array()
    assert np.ma.getmaskarray(drawn).tolist() == [[False, True], [True, False]]
    look = look_of("light")
    assert share_of(plots.heatmap(writer.run(), "size"), look.infinite) > 0.02
    assert share_of(plots.heatmap(writer.run(), "size"), look.defect) > 0.02


def test_exact_zeros_are_told_apart_from_small_numbers_and_from_what_was_not_recorded() -> None:
    writer = memory_run()
    writer.append("own", Layout(["a:output", "b:output"]), {"size": [0.0, 1e-3]}, step=0)
    writer.append("own", Layout(["b:output"]), {"size": [1.0]}, step=1)
    text = texts_of(plots.heatmap(writer.run(), "size"))
    assert "exactly 0" in text
    assert "not recorded" in text


def test_one_defect_in_thousands_of_steps_is_seen() -> None:
    writer = memory_run()
    place = Layout(["a:output", "b:output"])
    for step in range(3_000):
        writer.append("moments", place, {"rms": [1.0, 2.0], "nan": [float(step == 1_234), 0.0]}, step=step)
    axes = plots.heatmap(writer.run(), "rms").axes[0]
    marks = [
        each.get_datalim(axes.transData)
        for each in axes.collections
        if to_rgb(look_of("light").defect) == tuple(each.get_facecolor()[0][:3])
    ]  # type: ignore[index]
    assert [(mark.y0, mark.y1) for mark in marks] == [(0, 1)]
    assert marks[0].x0 < 1_234 < marks[0].x1
    assert marks[0].width == pytest.approx(0.004 * 3_000, rel=0.01)  # 2 pixels of 500


def test_columns_that_join_many_steps_keep_the_largest() -> None:
    writer = memory_run()
    for step in range(3_000):
        writer.append("own", Layout(["a:output"]), {"size": [100.0 if step == 777 else 1.0 + step % 7]}, step=step)
    figure = plots.heatmap(writer.run(), "size")
    drawn = mesh_of(figure).get_array()
    assert drawn is not None
    assert drawn.shape == (1, 600)
    assert drawn.max() == 100
    assert "the largest of 5 steps" in texts_of(figure)


def test_of_hundreds_of_layers_all_are_drawn_and_some_are_named() -> None:
    writer = memory_run()
    names = [f"model.layers.{place}.self_attention.output_projection.dense" for place in range(400)]
    writer.append("own", Layout([f"{name}:output" for name in names]), {"size": np.arange(400) + 1.0}, step=0)
    figure = plots.heatmap(writer.run(), "size")
    drawn = mesh_of(figure).get_array()
    assert drawn is not None
    assert drawn.shape == (400, 1)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert 20 < len(labels) < 60
    assert len(set(labels)) == len(labels)
    assert max(map(len, labels)) <= 36
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert all(above.y0 >= below.y1 - 1 for above, below in pairwise(boxes)), "labels overlap"


def test_a_run_that_diverges_in_a_few_steps_keeps_its_colours() -> None:
    writer = memory_run()
    for step in range(100):
        sizes = [10.0**-layer * (1 + step % 7) for layer in range(4)] if step < 95 else [1e28] * 4
        writer.append("moments", Layout([f"{layer}:output" for layer in range(4)]), {"rms": sizes, "nan": 0, "inf": 0}, step=step)
    figure = plots.heatmap(writer.run())
    norm = mesh_of(figure).norm
    places = np.asarray(norm(np.array([1e-3, 7.0])), float)
    assert places[1] - places[0] > 0.25  # most cells lie in a good part of the colour map, not all at one end
    assert "above the scale, up to 1e+28" in texts_of(figure)
    assert "below the scale" not in texts_of(figure)


def test_vanishing_over_many_decades_is_not_clipped() -> None:
    writer = memory_run()
    names = [f"{layer}:output" for layer in range(40)]
    writer.append("own", Layout(names), {"size": [10.0 ** (-layer / 2) for layer in range(40)]}, step=0)
    writer.append("own", Layout(names), {"size": [10.0 ** (-layer / 2) for layer in range(40)]}, step=1)
    norm = mesh_of(plots.heatmap(writer.run(), "size")).norm
    assert norm.vmin == pytest.approx(10**-19.5, rel=0.5)
    assert norm.vmax == pytest.approx(1.0, rel=0.5)


def test_limits_that_clip_mark_both_ends() -> None:
    text = texts_of(plots.heatmap(written(), "rms", limits=(1e-3, 1e-1)))
    assert "below the scale, down to 0.0001" in text
    assert "above the scale, up to 1.9" in text
