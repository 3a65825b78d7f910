"""Exponents: the counts of powers of two against torch's formats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh

from sonde.errors import ArgumentError
from sonde.rows import Layout
from sonde.run.run import Run
from sonde.run.store.memory_writer import memory_run
from sonde.stats import Accumulator, ExponentHistogram
from sonde.stats.quantiles import HIGHEST
from sonde.stats.quantiles import LOWEST as FIRST_POWER
from sonde.view import plots
from sonde.view.plots.exponents import FORMATS, LOWEST

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e5m2": torch.float8_e5m2, "e4m3": torch.float8_e4m3fn}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_the_limits_drawn_are_those_of_torchs_formats(form: plots.exponents.Format) -> None:  # type: ignore[name-defined]
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
