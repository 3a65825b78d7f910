"""Each picture shows the numbers of the run: what is drawn is compared with what was written, and what is missing is said."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection, QuadMesh
from matplotlib.colors import LogNorm, to_rgb, to_rgba
from matplotlib.figure import Figure

from sonde.errors import ArgumentError, MissingExtraError, SelectionError, UnknownSiteError
from sonde.run.run import Run
from sonde.run.schema import Layout
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots
from sonde.view.plots.canvas import look_of

LAYERS = ("blocks.0.fc", "blocks.1.fc", "blocks.2.fc", "head")
STEPS = np.arange(0, 20, 2)
PORTS = ("output", "grad_output")
PARAMETERS = ("param", "grad", "update")


def rms(layer: int, step: int) -> float:
    """The number that the run has for a layer and a step."""
    return float(10.0 ** -(layer + 1) * (1 + step))


def written(**change: Callable[[int, int], float]) -> Run:
    """A run of four layers and ten steps in two epochs; *change* replaces numbers by functions of layer and step."""
    writer = memory_run()
    numbers: dict[str, Callable[[int, int], float]] = {
        "rms": rms,
        "norm": lambda layer, step: 4 * rms(layer, step),
        "mean": lambda layer, step: (layer - 1.5) * 0.1,
        "nan": lambda layer, step: 0.0,
        "inf": lambda layer, step: 0.0,
    } | change
    tensors = Layout([f"{layer}:{port}" for port in PORTS for layer in LAYERS], order=[*range(4)] * 2)
    parameters = Layout(
        [f"{layer}.{name}:{port}" for port in PARAMETERS for layer in LAYERS for name in ("weight", "bias")],
        order=[place for _ in PARAMETERS for place in range(4) for _ in range(2)],
    )
    for step in STEPS.tolist():
        epoch = step // 10
        of_layers = {name: [number(layer, step) for layer in range(4)] for name, number in numbers.items()}
        writer.append("moments", tensors, {n: np.tile(v, 2) for n, v in of_layers.items()}, step=step, epoch=epoch)
        writer.append("moments", parameters, {n: np.tile(np.repeat(v, 2), 3) for n, v in of_layers.items()}, step=step, epoch=epoch)
        rates = {"call_activation": [0.5, 0.4, 0.3], "call_death": [0.0, 0.25, min(1.0, step / 18)]}
        writer.append("activation", Layout([f"blocks.{place}.act:output" for place in range(3)]), rates, step=step, epoch=epoch)
        writer.scalar("loss", 1 / (step + 1), step=step, epoch=epoch)
        writer.scalar("grad_norm", float(step), step=step, epoch=epoch)
    writer.scalar("val_loss", 0.5, step=8)
    writer.scalar("accuracy", 0.9, step=8)
    return writer.run()


def mesh_of(figure: Figure) -> QuadMesh:
    """The cells of a heat-map."""
    return next(each for each in figure.axes[0].collections if isinstance(each, QuadMesh))


def texts_of(figure: Figure) -> str:
    """Everything that is written in a figure."""
    return "\n".join(text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text")))


def pixels(figure: Figure) -> np.ndarray[Any, Any]:
    """The figure as it is saved: colours from 0 to 1 of shape (height, width, 3)."""
    import matplotlib.image

    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=80)
    out.seek(0)
    return np.asarray(matplotlib.image.imread(out)[..., :3], np.float64)


def share_of(figure: Figure, colour: str) -> float:
    """Share of the pixels that have about this colour."""
    return float((np.abs(pixels(figure) - to_rgb(colour)).max(axis=-1) < 0.06).mean())


# Heat-map


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
    assert "NaN or infinite elements" in texts_of(broken)
    assert "NaN or infinite elements" not in texts_of(healthy)


def test_a_number_that_is_itself_infinite_is_marked_where_nothing_counts_defects() -> None:
    writer = memory_run()
    writer.append("own", Layout(["a:output", "b:output"]), {"size": [1.0, np.inf]}, step=0)
    writer.append("own", Layout(["a:output", "b:output"]), {"size": [np.nan, 2.0]}, step=1)
    drawn = mesh_of(plots.heatmap(writer.run(), "size")).get_array()
    assert np.ma.getmaskarray(drawn).tolist() == [[False, True], [True, False]]
    assert share_of(plots.heatmap(writer.run(), "size"), look_of("light").defect) > 0.05


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


# Lines


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


@pytest.mark.parametrize("wrong", [{"ranges": "std"}, {"ranges": ("iqr",)}, {"intervals": 0}, {"most": 1}])
def test_lines_checks_its_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        plots.lines(written(), **wrong)


# Activation and death


def test_activation_shows_both_shares_and_names_the_worst_layer() -> None:
    figure = plots.activation(written())
    text = texts_of(figure)
    assert "least of any layer, at last 2.act" in text
    assert "most of any layer, at last 2.act" in text
    worst = figure.axes[1].lines[1]
    assert np.allclose(worst.get_ydata(), np.maximum(0.25, np.minimum(1.0, STEPS / 18)))
    mean = figure.axes[0].lines[0]
    assert np.allclose(mean.get_ydata(), 0.4)


# Gradient flow


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
    with pytest.raises(ArgumentError, match=r"step=7 was not logged; the nearest that was is [68]"):
        plots.gradient_flow(written(), step=7)
    with pytest.raises(ArgumentError, match="lines"):
        plots.gradient_flow(written(), "output")


# Update / weight


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
    assert {"NaN or infinite elements", "exactly 0"} <= set(texts_of(figure).splitlines())


# Marks


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


def test_every_picture_names_its_marks_in_a_legend() -> None:
    run = written(
        rms=lambda layer, step: 0.0 if (layer, step) == (1, 18) else rms(layer, step),
        nan=lambda layer, step: float((layer, step) == (2, 18)),
    )
    for picture, names in (
        (plots.heatmap(run), {"NaN or infinite elements", "exactly 0"}),
        (plots.lines(run, intervals=100), {"NaN or infinite elements", "exactly 0"}),
        (plots.gradient_flow(run), {"NaN or infinite elements", "exactly 0", "weight", "bias"}),
        (plots.shares(run, "rms"), {"NaN or infinite elements"}),
        (plots.update_ratio(run), {"NaN or infinite elements", "last step before them"}),
    ):
        (legend,) = picture.legends
        assert {text.get_text() for text in legend.get_texts()} == names
    assert plots.heatmap(written()).legends == []


def test_scalars_mark_zero_on_a_logarithmic_axis_and_infinity() -> None:
    writer = memory_run()
    for step, value in enumerate([8.0, 1.0, 0.0, np.inf, np.nan]):
        writer.scalar("loss", value, step=step)
    figure = plots.scalars(writer.run(), log=True)
    marks = {line.get_marker(): np.asarray(line.get_xdata()).tolist() for line in figure.axes[0].lines[1:]}
    assert marks == {"|": [3, 4], "o": [2]}
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"NaN or infinite elements", "exactly 0"}


# Comparison


def test_layers_that_hold_others_are_no_part_of_the_sum() -> None:
    writer = memory_run()
    names = ["(root)", "attn", "attn.proj", "attn2", "mlp", "mlp.0", "mlp.1", "G/attn"]
    writer.append("own", Layout([f"{name}:output" for name in names]), {"size": [8.0, 3, 3, 1, 2, 1, 1, 2]}, step=0)
    figure = plots.shares(writer.run(), "size")
    shown = {text.get_text().split("  ")[0] for text in figure.axes[0].texts}
    assert shown == {"attn.proj", "attn2", "mlp.0", "mlp.1", "G/attn"}
    assert "without 3 that hold others" in texts_of(figure)
    assert {text.get_text() for text in plots.shares(writer.run(), "size", include="^(attn|mlp)$").axes[0].texts} == {
        "attn  60%",
        "mlp  40%",
    }


def test_shares_add_up_to_one_and_are_each_layers_part() -> None:
    figure = plots.shares(written(rms=lambda layer, step: float(layer + 1)), "rms")
    text = texts_of(figure)
    for name, share in zip(("blocks.0.fc", "blocks.1.fc", "blocks.2.fc", "head"), ("10%", "20%", "30%", "40%"), strict=True):
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


# Scalars


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


# What is missing


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (plots.heatmap, r"lens\.moments\(\)"),
        (plots.lines, r"lens\.moments\(\)"),
        (plots.shares, r"lens\.moments\(\)"),
        (plots.gradient_flow, r"lens\.moments\(\)"),
        (plots.activation, r"lens\.OutputActivation\(\)"),
        (plots.update_ratio, r"lens\.ParameterUpdateGeometry\(\)"),
        (plots.exponents, r"ExponentHistogram\(\)"),
        (plots.scalars, r"push_loss\(\)"),
    ],
)
def test_what_was_not_recorded_is_an_error_that_says_what_records_it(draw: Callable[[Run], Figure], said: str) -> None:
    with pytest.raises(UnknownSiteError, match=said):
        draw(memory_run().run())


def test_a_number_of_several_families_asks_which() -> None:
    writer = memory_run()
    for family in ("one", "two"):
        writer.append(family, Layout(["a:output"]), {"size": [1.0]}, step=0)
    with pytest.raises(ArgumentError, match=r"one and two .* family="):
        plots.heatmap(writer.run(), "size")
    assert plots.heatmap(writer.run(), "size", family="two")


def test_a_selection_of_nothing_names_the_nearest() -> None:
    with pytest.raises(SelectionError, match="head"):
        plots.heatmap(written(), "rms", include="haed")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sonde\[plots\]'"):
        plots.heatmap(written())


def test_pictures_need_neither_torch_nor_matplotlib_to_be_imported() -> None:
    code = "import sys, sonde.view.plots; sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# How it looks


def test_a_picture_does_not_depend_on_the_users_style_and_is_in_no_global_list() -> None:
    import matplotlib as mpl
    from matplotlib import pyplot

    before = pixels(plots.heatmap(written(), "rms"))
    with mpl.rc_context({"axes.facecolor": "black", "text.color": "red", "font.size": 30, "xtick.labelcolor": "lime"}):
        assert np.array_equal(pixels(plots.heatmap(written(), "rms")), before)
    assert pyplot.get_fignums() == []


def test_a_notebook_shows_a_picture() -> None:
    assert plots.heatmap(written())._repr_png_()[:4] == b"\x89PNG"


def test_two_themes_and_no_third() -> None:
    for theme in ("light", "dark"):
        assert plots.heatmap(written(), theme=theme).get_facecolor() == to_rgba(look_of(theme).paper)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="'light', 'dark'"):
        plots.heatmap(written(), theme="sepia")  # type: ignore[arg-type]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_the_first_colours_are_readable_on_the_paper(theme: Any) -> None:
    def light(colour: str) -> float:
        parts = np.array(to_rgb(colour))
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    def contrast(colour: str) -> float:  # of the Web Content Accessibility Guidelines
        one, other = sorted((light(colour), light(look_of(theme).paper)))
        return (other + 0.05) / (one + 0.05)

    look = look_of(theme)
    assert contrast(look.ink) > 7
    assert contrast(look.quiet) > 4.5
    assert all(contrast(colour) > 3 for colour in (*look.lines[:3], look.defect))


def test_every_picture_that_a_run_has_is_planned_and_saved(tmp_path: Path) -> None:
    files = plots.save(written(), tmp_path / "out", theme="dark")
    assert {file.stem for file in files} == {
        "scalars",
        "activation-output",
        *(f"moments-{port}" for port in (*PORTS, *PARAMETERS)),
        "gradient_flow-grad",
        "gradient_flow-grad_output",
        "update_ratio",
    }
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in files)
    with pytest.raises(ArgumentError, match="png, svg, pdf"):
        plots.save(written(), tmp_path, form="jpg")


def test_a_lens_says_how_it_is_shown() -> None:
    writer = memory_run(
        {"lenses": [{"family": "output_norm", "picture": "lines", "number": "norm", "compare": True, "ranges": ["std"]}]}
    )
    for step in range(3):
        writer.append("output_norm", Layout(["a:output", "b:output"]), {"norm": [1.0, 2.0], "rms": [0.1, 0.2]}, step=step)
    planned = plots.plan(writer.run())
    assert list(planned) == ["output_norm-output", "output_norm-output-shares"]
    assert np.allclose(planned["output_norm-output"]().axes[1].lines[0].get_ydata(), 2.0)
