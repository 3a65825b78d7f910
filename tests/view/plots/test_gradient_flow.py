"""Gradient flow: dots, bars, and gradients that have no place on the axis."""

from __future__ import annotations

import numpy as np
import pytest
from tests.view.plots.drawn import STEPS, rms, written

from sonde.errors import ArgumentError
from sonde.view import plots


def test_gradient_flow_dots_are_the_chosen_step_and_bars_the_spread_over_steps() -> None:
    figure = plots.gradient_flow(written(), step=6)
    axes = figure.axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o" and len(np.asarray(line.get_xdata())) == 4]
    assert np.allclose(dots[0].get_xdata(), [rms(layer, 6) for layer in range(4)])
    heights = np.asarray(dots[0].get_ydata(), float)
    assert np.allclose(np.diff(heights), 1)  # a row for each layer
    everything = np.array([rms(0, step) for step in STEPS])
    bars = {tuple(np.asarray(line.get_xdata(), float)) for line in axes.lines if line.get_marker() in ("None", "")}
    assert any(np.allclose(bar, (everything.min(), everything.max())) for bar in bars)
    assert any(np.allclose(bar, np.percentile(everything, (25, 75))) for bar in bars)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["blocks.0.fc", "blocks.1.fc", "blocks.2.fc", "head"]


def test_gradient_flow_says_zero_and_nan_where_the_axis_has_no_place_for_them() -> None:
    run = written(
        rms=lambda layer, step: 0.0 if layer == 1 else rms(layer, step), nan=lambda layer, step: float(layer == 2 and step == 18)
    )
    words = [text.get_text() for text in plots.gradient_flow(run, "grad_output").axes[0].texts]
    assert words == ["0", "NaN"]


def test_gradient_flow_of_a_step_that_was_not_logged_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match=r"step=7 was not logged; the nearest are .*6, 8"):
        plots.gradient_flow(written(), step=7)
    with pytest.raises(ArgumentError, match="lines"):
        plots.gradient_flow(written(), "output")
