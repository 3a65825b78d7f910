"""Lines: means over intervals, bands, and steps that are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection
from tests.view.plots.drawn import STEPS, rms, texts_of, written

from sonde.errors import ArgumentError
from sonde.rows import Layout
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots


def test_lines_are_means_over_intervals_with_bands_of_standard_deviation_and_range() -> None:
    figure = plots.lines(written(), "rms", intervals=5, log=False)
    axes = figure.axes[1]
    values = np.array([rms(1, step) for step in STEPS]).reshape(5, 2)
    steps = STEPS.reshape(5, 2).mean(axis=1)
    assert np.allclose(axes.lines[0].get_xydata(), np.column_stack([steps, values.mean(axis=1)]))
    bands = [each for each in axes.collections if isinstance(each, FillBetweenPolyCollection)]
    extents = {(band.get_datalim(axes.transData).y0, band.get_datalim(axes.transData).y1) for band in bands}
    middle, wide = values.mean(axis=1), values.std(axis=1)
    assert any(np.allclose(extent, (values.min(), values.max())) for extent in extents)
    assert any(np.allclose(extent, ((middle - wide).min(), (middle + wide).max())) for extent in extents)


def test_lines_by_epoch_and_evenly_chosen_layers() -> None:
    figure = plots.lines(written(), "rms", intervals="epoch", most=2)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["blocks.0.fc", "head"]
    assert np.allclose(
        figure.axes[0].lines[0].get_ydata(),
        [np.mean([rms(0, s) for s in (0, 2, 4, 6, 8)]), np.mean([rms(0, s) for s in range(10, 20, 2)])],
    )
    assert "2 of 4 layers" in texts_of(figure)


def test_a_step_that_met_nan_is_no_part_of_a_line() -> None:
    figure = plots.lines(
        written(nan=lambda layer, step: float(step == 4), rms=lambda layer, step: 0.0 if step == 4 else 1.0), "rms"
    )
    values = np.asarray(figure.axes[0].lines[0].get_ydata(), float)
    assert np.isnan(values).tolist() == [step == 4 for step in STEPS]
    assert np.nanmin(values) == 1
    assert np.asarray(figure.axes[0].lines[1].get_xdata()).tolist() == [4]


@pytest.mark.parametrize("wrong", [{"ranges": "std"}, {"ranges": ("iqr",)}, {"intervals": 0}, {"most": 1}, {"aggregates": ()}])
def test_lines_checks_its_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        plots.lines(written(), **wrong)


def test_lines_of_several_aggregates_and_a_band_of_quartiles() -> None:
    figure = plots.lines(written(), "rms", intervals=2, aggregates=("median", "max"), ranges=("Q1-Q3",), log=False)
    values = np.array([rms(1, step) for step in STEPS]).reshape(2, 5)
    lines = figure.axes[1].lines
    assert np.allclose(lines[0].get_ydata(), np.median(values, axis=1))
    assert np.allclose(lines[1].get_ydata(), values.max(axis=1))
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"median", "max", "first to third quartile"}
    band = next(each for each in figure.axes[1].collections if isinstance(each, FillBetweenPolyCollection))
    extent = band.get_datalim(figure.axes[1].transData)
    quartiles = np.quantile(values, [0.25, 0.75], axis=1)
    assert np.allclose([extent.y0, extent.y1], [quartiles[0].min(), quartiles[1].max()])
    assert "median and max over 5 logged steps" in texts_of(figure)


def test_several_runs_share_each_panel_on_one_scale_with_a_colour_each() -> None:
    one, other = written(), written(rms=lambda layer, step: 3 * rms(layer, step))
    figure = plots.lines([one, other], "rms", intervals=5, log=False)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["blocks.0.fc", "blocks.1.fc", "blocks.2.fc", "head"]
    steps = STEPS.reshape(5, 2).mean(axis=1)
    for layer, axes in enumerate(figure.axes):
        first, second = axes.lines
        values = np.array([rms(layer, step) for step in STEPS]).reshape(5, 2).mean(axis=1)
        assert np.allclose(first.get_xydata(), np.column_stack([steps, values]))
        assert np.allclose(second.get_xydata(), np.column_stack([steps, 3 * values]))
        assert first.get_color() != second.get_color()
        assert axes.get_ylim() == figure.axes[0].get_ylim()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[:2] == ["in memory (1)", "in memory (2)"]
    assert "2 runs" in texts_of(figure)


def test_layers_that_one_run_alone_has_are_drawn_too() -> None:
    with memory_run() as writer:
        for step in range(4):
            writer.append("moments", Layout(["head:output", "extra:output"]), {"rms": [1.0, 2.0]}, step=step)
    figure = plots.lines([written(), writer.run()], "rms")
    drawn = {axes.get_title(loc="left"): len(axes.lines) for axes in figure.axes}
    assert drawn == {"blocks.0.fc": 1, "blocks.1.fc": 1, "blocks.2.fc": 1, "head": 2, "extra": 1}
