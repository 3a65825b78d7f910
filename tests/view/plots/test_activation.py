"""Activation and death: both shares, and the worst layer."""

from __future__ import annotations

import numpy as np
from tests.view.plots.drawn import STEPS, texts_of, written

from sonde.rows import Layout
from sonde.run.store.memory_writer import memory_run
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


def test_activation_can_do_without_the_worst_layer() -> None:
    figure = plots.activation(written(), worst=False)
    assert "of any layer" not in texts_of(figure)
    assert len(figure.axes) == 3  # two heat-maps and the scale


def test_activation_can_show_aggregates_of_intervals() -> None:
    """Of 100 steps, 34 columns of three; NaN in one step is seen in its column."""
    writer = memory_run()
    for step in range(100):
        numbers = {"call_activation": [step / 100], "call_death": [float(step % 3 == 1)], "nonfinite": [float(step == 4)]}
        writer.append("activation", Layout(["a:output"]), numbers, step=step)
    figure = plots.activation(writer.run(), active="max", dead="median")
    rates, deaths = (np.asarray(figure.axes[column].lines[1].get_ydata(), float) for column in (0, 1))
    assert np.allclose(rates[:1], 0.02)
    assert np.allclose(rates[2:33], [(3 * place + 2) / 100 for place in range(2, 33)])
    assert np.allclose(deaths[2:33], 0)
    assert np.isnan(rates[1])
    assert "active: max of each interval" in texts_of(figure)


def test_a_layer_of_several_calls_is_shown_by_its_worst_call() -> None:
    """A shared ReLU whose first call is dead is no layer that is half dead."""
    writer = memory_run()
    layout = Layout(["a:output"] * 2, call=[0, 1], order=[0, 0])
    writer.append("activation", layout, {"call_activation": [0.0, 0.5], "call_death": [1.0, 0.0]}, step=0)
    least, most = (plots.activation(writer.run()).axes[column].lines[1].get_ydata() for column in (0, 1))
    assert (np.asarray(least).tolist(), np.asarray(most).tolist()) == ([0.0], [1.0])
