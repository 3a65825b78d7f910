"""Powers of two against torch's formats, the table of a run, names and places of labels."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import QuadMesh

from sonde.errors import ArgumentError
from sonde.run.run import Run
from sonde.run.schema import Layout
from sonde.run.store.memory_writer import memory_run
from sonde.stats import Accumulator, ExponentHistogram
from sonde.stats.quantiles import HIGHEST
from sonde.stats.quantiles import LOWEST as FIRST_POWER
from sonde.view import plots
from sonde.view.plots.exponents import FORMATS, LOWEST
from sonde.view.plots.layer_names import labels, spaced, spread_apart

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e5m2": torch.float8_e5m2, "e4m3": torch.float8_e4m3fn}


# Exponents


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_the_limits_drawn_are_those_of_torchs_formats(form: plots.powers.Format) -> None:  # type: ignore[name-defined]
    known = torch.finfo(TYPES[form.name])
    assert 2.0**form.normal == known.smallest_normal
    assert 2.0**form.greatest == pytest.approx(known.max, rel=1e-12)
    least = torch.tensor([2.0**form.subnormal, 2.0**form.vanishing], dtype=torch.float64).float().to(TYPES[form.name]).double()
    assert least[0] == 2.0**form.subnormal
    assert least[1] == 0


def test_powers_are_those_of_the_statistic() -> None:
    assert LOWEST == FIRST_POWER
    assert HIGHEST == 128


def counted(tensors: list[torch.Tensor]) -> Run:
    """A run with the exponents of one tensor at each step, of two layers."""
    writer = memory_run()
    for step, tensor in enumerate(tensors):
        accumulator = Accumulator(ExponentHistogram()).update(tensor)
        numbers = {"powers": accumulator.columns()["powers"][0], **accumulator.compute().as_dict()}
        columns = {name: np.stack([value, value]) for name, value in numbers.items()}
        writer.append("exponents", Layout(["a:output", "b:output"]), columns, step=step)
    return writer.run()


def test_cells_are_shares_of_elements_and_the_lines_below_what_each_format_loses() -> None:
    tensors = [torch.tensor([0.0, 1.0, 1.5, 2.0**-20]), torch.tensor([0.0, 0.0, 2.0**-30, 4.0])]
    figure = plots.exponents(counted(tensors))
    mesh = next(each for each in figure.axes[0].collections if isinstance(each, QuadMesh))
    drawn = np.ma.filled(mesh.get_array(), 0.0)  # rows are powers from the lowest shown
    bottom = round(figure.axes[0].get_ylim()[0]) + 1
    shown = {(step, power + bottom): drawn[power, step] for power, step in np.argwhere(drawn > 0)}
    assert shown == {(0, 0): 0.25, (0, 1): 0.25, (0, -20): 0.25, (1, -30): 0.25, (1, 2): 0.25}
    lost = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in figure.axes[2].lines}
    assert lost["zero already"] == [0.25, 0.5]
    assert lost["fp16 rounds to zero"] == [0.25, 0.75]
    assert lost["e4m3 rounds to zero"] == [0.5, 0.75]


def test_one_layer_can_be_chosen_and_a_quote_in_its_name_does_no_harm() -> None:
    writer = memory_run()
    powers = np.zeros((2, HIGHEST - FIRST_POWER + 1))
    powers[0, 149] = powers[1, 151] = 4
    writer.append("exponents", Layout(["it's:output", "b:output"]), {"powers": powers, "zeros": [0, 0], "count": [4, 4]}, step=0)
    mesh = next(each for each in plots.exponents(writer.run(), include="it's").axes[0].collections if isinstance(each, QuadMesh))
    assert np.ma.filled(mesh.get_array(), 0.0).sum() == 1


def test_nothing_but_zeros_is_said() -> None:
    with pytest.raises(ArgumentError, match="no element was finite and not zero"):
        plots.exponents(counted([torch.zeros(3)]))


# The table


def trained() -> Run:
    writer = memory_run()
    tensors = Layout(["fc:output", "act:output", "head:output"], order=[0, 1, 2])
    parameters = Layout(
        [f"{name}:{port}" for name in ("fc.weight", "fc.bias", "head.weight") for port in ("param", "grad", "update")],
        order=[0, 0, 0, 0, 0, 0, 2, 2, 2],
    )
    for step in range(4):
        writer.append(
            "moments", tensors, {"rms": [1.0, 0.5, 2.0], "norm": 0, "nan": [0, 0, step == 3], "inf": 0}, step=step, epoch=step // 2
        )
        norms = [3.0, 3.0, 0.3, 4.0, 4.0, 0.4, 1.0, 1.0, 0.5]
        writer.append("moments", parameters, {"rms": 0, "norm": norms, "nan": 0, "inf": 0}, step=step, epoch=step // 2)
        writer.append(
            "activation",
            Layout(["act:output"], order=[1]),
            {"call_activation": [0.5], "call_death": [0.95]},
            step=step,
            epoch=step // 2,
        )
    writer.scalar("loss", 0.25, step=3)
    return writer.run()


def test_the_table_has_a_row_for_each_layer_with_norms_over_all_its_parameters() -> None:
    grid = plots.table(trained())
    assert grid.columns == ["layer", "output", "gradient", "dead", "update / weight"]
    assert [[cell.text for cell in row] for row in grid.rows] == [
        ["fc", "1", "5.0e+00", "–", "1.0e-01"],  # norms 3 and 4, 0.3 and 0.4 together
        ["act", "0.5", "–", "95%", "–"],
        ["head", "NaN", "1.0e+00", "–", "5.0e-01"],
    ]
    assert [[cell.tone for cell in row] for row in grid.rows] == [
        ["plain", "plain", "plain", "quiet", "plain"],
        ["plain", "plain", "quiet", "bad", "quiet"],
        ["plain", "bad", "plain", "quiet", "warn"],
    ]
    assert grid.title == "run in memory · epoch 1 · medians over steps 2 to 3"
    assert grid.footer == ["loss 0.25"]


def test_the_table_of_fewer_steps_and_layers() -> None:
    grid = plots.table(trained(), include="fc|act", recent=1)
    assert [row[0].text for row in grid.rows] == ["fc", "act"]
    assert grid.title.endswith("step 3")
    with pytest.raises(ArgumentError, match="recent=0"):
        plots.table(trained(), recent=0)


def test_the_table_of_nothing_says_so() -> None:
    assert "nothing was recorded yet" in plots.table(memory_run().run()).to_text()


# Names and labels


NAME = st.lists(st.text("abcdef0123456789_", min_size=1, max_size=14), min_size=1, max_size=6).map(".".join)


@given(st.lists(NAME, min_size=1, max_size=30, unique=True))
def test_short_names_are_as_different_as_the_names(names: list[str]) -> None:
    short, prefix = labels(names)
    assert len(set(short)) == len(names)
    assert all(name.startswith(prefix) for name in names)
    assert all(text for text in short)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.001, 0.2))
def test_labels_keep_their_order_and_distance_within_the_picture(places: list[float], gap: float) -> None:
    places.sort()
    moved = spread_apart(places, gap)
    room = min(gap, 1 / max(len(places) - 1, 1))
    assert len(moved) == len(places)
    assert all(after - before >= room - 1e-9 for before, after in pairwise(moved))
    assert min(moved) >= -1e-9
    assert max(moved) <= 1 + 1e-9
    if all(after - before >= gap for before, after in pairwise(places)):
        assert moved == pytest.approx(places)


@given(st.integers(1, 500), st.integers(2, 60))
def test_evenly_spaced_positions_have_both_ends(count: int, room: int) -> None:
    chosen = spaced(count, room)
    assert chosen[0] == 0
    assert chosen[-1] == count - 1
    assert len(chosen) == min(count, room)
    gaps = np.diff(chosen)
    assert not len(gaps) or gaps.max() - gaps.min() <= math.ceil(count / room)
