"""Scalars: panels, axes and marks of loss, metrics and norms."""

from __future__ import annotations

import numpy as np
import pytest
from tests.view.plots.drawn import STEPS, written

from sonde.errors import ArgumentError, UnknownSiteError
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots


def test_scalars_mark_zero_on_a_logarithmic_axis_and_infinity() -> None:
    writer = memory_run()
    for step, value in enumerate([8.0, 1.0, 0.0, np.inf, np.nan]):
        writer.scalar("loss", value, step=step)
    figure = plots.scalars(writer.run(), log=True)
    marks = {line.get_marker(): np.asarray(line.get_xdata()).tolist() for line in figure.axes[0].lines[1:]}
    assert marks == {"^": [3], "|": [4], "o": [2]}
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"NaN elements", "infinite elements", "exactly 0"}


def test_scalars_share_a_panel_where_only_train_and_eval_differ() -> None:
    figure = plots.scalars(written())
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["loss", "accuracy", "grad_norm"]
    assert {text.get_text() for text in figure.axes[0].get_legend().get_texts()} == {"loss", "val_loss"}  # type: ignore[union-attr]
    assert np.allclose(figure.axes[0].lines[0].get_ydata(), 1 / (STEPS + 1))


def test_an_unknown_scalar_names_the_nearest() -> None:
    with pytest.raises(UnknownSiteError, match="Nearest: loss"):
        plots.scalars(written(), ["los"])
    with pytest.raises(ArgumentError, match="no scalar"):
        plots.scalars(written(), [])


def test_scalars_show_the_aggregates_that_are_asked_for() -> None:
    """Of long series, over 40 intervals; losses and metrics each in their way; a norm as always."""
    writer = memory_run()
    values = np.sin(np.arange(80.0)) + 2
    for step, value in enumerate(values.tolist()):
        for name in ("loss", "accuracy", "grad_norm"):
            writer.scalar(name, value, step=step)
    pairs = values.reshape(40, 2)
    figure = plots.scalars(writer.run(), loss=(("median", "max"), ("min-max",)), metrics=(("mean",), ()), log=False)
    loss, metric, norm = figure.axes
    assert np.allclose(loss.lines[1].get_ydata(), np.median(pairs, axis=1))
    assert np.allclose(loss.lines[2].get_ydata(), pairs.max(axis=1))
    assert [line.get_label() for line in loss.lines[1:]] == ["loss median", "loss max"]
    assert len(loss.collections) == 1
    assert np.allclose(metric.lines[1].get_ydata(), pairs.mean(axis=1))
    assert not metric.collections
    assert len(np.asarray(norm.lines[1].get_ydata())) == 80
    together = plots.scalars(writer.run(), separate=False)
    assert [axes.get_title(loc="left") for axes in together.axes] == ["loss and metrics", "grad_norm"]
    for wrong in ({"loss": (("men",), ())}, {"metrics": (("mean",), ("Q1",))}):
        with pytest.raises(ArgumentError, match="there are"):
            plots.scalars(writer.run(), **wrong)  # type: ignore[arg-type]


def test_every_norm_over_all_parameters_is_drawn_as_one() -> None:
    """Also that of gradients before they are clipped: neither among metrics nor in their way."""
    writer = memory_run()
    for step in range(80):
        for name in ("grad_norm", "grad_norm_raw", "G/grad_norm"):
            writer.scalar(name, 1.0 + step, step=step)
    figure = plots.scalars(writer.run(), metrics=(("max",), ("min-max",)), separate=False)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["G/grad_norm", "grad_norm", "grad_norm_raw"]
    assert not any(axes.collections for axes in figure.axes)
