"""What holds for every picture: errors, legend, theme, notebook, imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from tests.view.plots.drawn import pixels, rms, share_of, written
from torch import nn

import sonde
from sonde.errors import ArgumentError, MissingExtraError, SelectionError, UnknownSiteError
from sonde.rows import Layout
from sonde.run.run import Run
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots
from sonde.view.plots.canvas import look_of


def test_every_picture_names_its_marks_in_a_legend() -> None:
    run = written(
        rms=lambda layer, step: 0.0 if (layer, step) == (1, 18) else rms(layer, step),
        nan=lambda layer, step: float((layer, step) == (2, 18)),
    )
    for picture, names in (
        (plots.heatmap(run), {"NaN elements", "exactly 0"}),
        (plots.lines(run, intervals=100), {"NaN elements", "exactly 0"}),
        (plots.gradient_flow(run), {"NaN elements", "exactly 0", "weight", "bias"}),
        (plots.shares(run, "rms"), {"NaN elements"}),
        (plots.update_ratio(run), {"NaN elements", "last step before them"}),
    ):
        (legend,) = picture.legends
        assert {text.get_text() for text in legend.get_texts()} == names
    assert plots.heatmap(written()).legends == []


def test_nan_and_infinities_have_marks_of_their_own_in_every_picture() -> None:
    run = written(
        nan=lambda layer, step: float((layer, step) == (2, 18)),
        inf=lambda layer, step: float((layer, step) == (1, 18)),
    )
    for picture in (
        plots.heatmap(run),
        plots.lines(run, intervals=100),
        plots.gradient_flow(run),
        plots.shares(run, "rms"),
        plots.update_ratio(run, include="weight"),
    ):
        (legend,) = picture.legends
        named = {text.get_text() for text in legend.get_texts()}
        assert named >= {"NaN elements", "infinite elements"}
        assert "NaN or infinite elements" not in named
    heat = plots.heatmap(run)
    assert share_of(heat, look_of("light").defect) > 0.001
    assert share_of(heat, look_of("light").infinite) > 0.001


def test_a_statistic_that_counts_both_as_one_says_so() -> None:
    writer = memory_run()
    writer.append("own", Layout(["a:output", "b:output"]), {"size": [1.0, 2.0], "nonfinite": [3.0, 0.0]}, step=0)
    (legend,) = plots.heatmap(writer.run(), "size").legends
    assert [text.get_text() for text in legend.get_texts()] == ["NaN or infinite elements"]


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (plots.heatmap, r"lens\.moments\(\)"),
        (plots.lines, r"lens\.moments\(\)"),
        (plots.shares, r"lens\.moments\(\)"),
        (plots.gradient_flow, r"lens\.moments\(\)"),
        (plots.activation, r"lens\.OutputActivation\(include=nn\.GELU\), with the classes of your activations"),
        (plots.update_ratio, r"lens\.ParameterUpdateGeometry\(\)"),
        (plots.exponents, r"ExponentHistogram\(\)"),
        (plots.scalars, r"push_loss\(\)"),
    ],
)
def test_what_was_not_recorded_is_an_error_that_says_what_records_it(draw: Callable[[Run], Figure], said: str) -> None:
    with pytest.raises(UnknownSiteError, match=said):
        draw(memory_run().run())


def test_the_cure_for_a_network_of_smooth_activations_names_their_classes() -> None:
    """The lens without arguments, which is among the defaults, would find nothing again."""
    modules = [{"name": "0", "type": "Linear"}, {"name": "1", "type": "GELU"}, {"name": "2", "type": "Tanh"}]
    writer = memory_run({"model": modules})
    writer.append("moments", Layout(["1:output"]), {"rms": [1.0]}, step=0)
    with pytest.raises(UnknownSiteError, match=r"lens\.OutputActivation\(include=\(nn\.GELU, nn\.Tanh\)\); without include="):
        plots.activation(writer.run())


def test_the_cure_works() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    with sonde.watch(
        model, every=1, to="memory", verbose=False, lenses=[sonde.lens.OutputActivation(include=nn.GELU)]
    ) as inspector:
        model(torch.randn(16, 4)).sum().backward()
        inspector.step()
    assert plots.activation(inspector.run).axes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rms", "ouput"), "'ouput' is no port of a site. Nearest: output"),
        (("rsm", "output"), "Nearest: rms. What records it"),
        (("rms", "output", "momnets"), "'momnets' is no family of the run. Nearest: moments"),
    ],
)
def test_a_typo_in_a_port_a_number_or_a_family_names_the_nearest(arguments: tuple[str, ...], said: str) -> None:
    number, port, *family = arguments
    with pytest.raises(UnknownSiteError, match=said):
        plots.heatmap(written(), number, port, family=family[0] if family else None)


def test_before_the_first_rows_the_error_says_when_they_come() -> None:
    with pytest.raises(UnknownSiteError, match="nothing yet; the first rows come within two seconds"):
        plots.heatmap(memory_run().run())


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
    assert all(contrast(colour) > 3 for colour in (*look.lines[:3], look.defect, look.infinite))
