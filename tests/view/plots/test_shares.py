"""Shares: the parts of a sum over layers, each tensor counted once."""

from __future__ import annotations

import numpy as np
import pytest
from tests.view.plots.drawn import texts_of, written

from sonde.errors import ArgumentError
from sonde.rows import Layout
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots


def test_layers_that_hold_others_are_no_part_of_the_sum() -> None:
    writer = memory_run()
    names = ["(root)", "attn", "attn.proj", "attn2", "mlp", "mlp.0", "mlp.1", "G/attn"]
    writer.append("own", Layout([f"{name}:output" for name in names]), {"size": [8.0, 3, 3, 1, 2, 1, 1, 2]}, step=0)
    figure = plots.shares(writer.run(), "size")
    shown = {text.get_text().split("  ")[0] for text in figure.axes[0].texts}
    assert shown == {"attn.proj", "attn2", "mlp.0", "mlp.1", "G/attn"}
    assert "without 3 that hold others" in texts_of(figure)
    assert {text.get_text() for text in plots.shares(writer.run(), "size", include="^(attn|mlp)$").axes[0].texts} == {
        "attn  60 %",
        "mlp  40 %",
    }


def test_shares_add_up_to_one_and_are_each_layers_part() -> None:
    figure = plots.shares(written(rms=lambda layer, step: float(layer + 1)), "rms")
    text = texts_of(figure)
    for name, share in zip(("blocks.0.fc", "blocks.1.fc", "blocks.2.fc", "head"), ("10 %", "20 %", "30 %", "40 %"), strict=True):
        assert f"{name}  {share}" in text
    tops = [each.get_datalim(figure.axes[0].transData).y1 for each in figure.axes[0].collections]
    assert np.allclose(tops, [0.1, 0.3, 0.6, 1.0])


def test_shares_of_thousands_of_steps_are_averaged_and_still_add_up() -> None:
    writer = memory_run()
    for step in range(900):
        writer.append("own", Layout(["a:output", "b:output"]), {"size": [1.0, 3.0 if step % 3 else 1.0]}, step=step)
    figure = plots.shares(writer.run(), "size")
    assert "mean over 3 logged steps" in texts_of(figure)
    first = figure.axes[0].collections[0].get_datalim(figure.axes[0].transData)
    assert (first.y0, first.y1) == (0, pytest.approx((0.5 + 0.25 + 0.25) / 3))


def test_shares_of_a_number_with_a_sign_are_refused() -> None:
    with pytest.raises(ArgumentError, match="negative"):
        plots.shares(written(), "mean")


def test_shares_of_aggregates_of_intervals() -> None:
    writer = memory_run()
    for step in range(80):
        writer.append("norms", Layout(["a:param", "b:param"]), {"norm": [1.0 + 2 * (step % 2), 1.0]}, step=step)
    figure = plots.shares(writer.run(), "norm", "param", aggregate="max")
    outline = figure.axes[0].collections[0].get_paths()[0].vertices
    assert np.isclose(np.asarray(outline)[:, 1].max(), 3 / 4)  # the largest of a is 3, of b 1
    with pytest.raises(ArgumentError, match="aggregate='men'"):
        plots.shares(writer.run(), "norm", "param", aggregate="men")
