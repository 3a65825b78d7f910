"""Scalars: panels, axes and marks of loss, metrics and norms."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from tests.view.plots.drawn import STEPS, written

from sonde.errors import ArgumentError, UnknownSiteError
from sonde.run.run import Run
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


def several(*factors: float, more: str = "val_loss") -> list[Run]:
    runs = []
    for factor in factors:
        with memory_run() as writer:
            for step in range(10):
                writer.scalar("loss", factor / (step + 1), step=step)
                writer.scalar(more if factor == 1 else "val_loss", 2 * factor, step=step)
            runs.append(writer.run())
    return runs


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_several_runs_share_each_panel_with_a_colour_each_and_a_legend_by_run(theme: Literal["light", "dark"]) -> None:
    figure = plots.scalars(several(1.0, 2.0, 3.0), theme=theme)
    (axes,) = figure.axes
    drawn = [(line.get_color(), line.get_linestyle(), np.asarray(line.get_ydata(), float)[0]) for line in axes.lines]
    assert [(dashes, first) for _, dashes, first in drawn] == [("-", 1), ("--", 2), ("-", 2), ("--", 4), ("-", 3), ("--", 6)]
    colours = [colour for colour, _, _ in drawn[::2]]
    assert len(set(colours)) == 3
    assert [colour for colour, _, _ in drawn[1::2]] == colours
    (legend,) = figure.legends
    names = dict(
        zip([text.get_text() for text in legend.get_texts()], [each.get_color() for each in legend.get_lines()], strict=True)
    )
    assert list(names) == ["in memory (1)", "in memory (2)", "in memory (3)"]
    assert list(names.values()) == colours
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["loss", "val_loss"]  # type: ignore[union-attr]
    assert any("3 runs" in text.get_text() for text in figure.texts)


def test_a_scalar_that_some_runs_lack_is_drawn_for_the_others() -> None:
    figure = plots.scalars(several(1.0, 2.0, more="accuracy"))
    assert [len(axes.lines) for axes in figure.axes] == [3, 1]
    with pytest.raises(UnknownSiteError, match=r"'los' is no scalar of these runs\. Nearest: loss"):
        plots.scalars(several(1.0, 2.0), ["los"])


def test_more_runs_than_colours_are_told_apart() -> None:
    figure = plots.scalars(several(*np.arange(1.0, 13.0).tolist()), ["loss"])
    assert len({str(line.get_color()) for line in figure.axes[0].lines}) == 12


@pytest.mark.parametrize("wrong", [[], "runs/a", [1], 3])
def test_what_is_no_run_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be drawn: give a run"):
        plots.scalars(wrong)
