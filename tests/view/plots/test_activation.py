"""Activation and death: both shares, and the worst layer."""

from __future__ import annotations

import numpy as np
from tests.view.plots.drawn import STEPS, texts_of, written

from sonde.view import plots


def test_activation_shows_both_shares_and_names_the_worst_layer() -> None:
    figure = plots.activation(written())
    text = texts_of(figure)
    assert "least of any layer, at last 2.act" in text
    assert "most of any layer, at last 2.act" in text
    worst = figure.axes[1].lines[1]
    assert np.allclose(worst.get_ydata(), np.maximum(0.25, np.minimum(1.0, STEPS / 18)))
    mean = figure.axes[0].lines[0]
    assert np.allclose(mean.get_ydata(), 0.4)
