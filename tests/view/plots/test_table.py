"""The table of a run."""

from __future__ import annotations

import numpy as np
import pytest

from sonde.answer import Grid
from sonde.errors import ArgumentError
from sonde.rows import Layout
from sonde.run.run import Run
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots


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


def cells(grid: Grid) -> list[list[str]]:
    return [[cell.text for cell in row] for row in grid.rows]


def test_the_table_has_a_row_for_each_layer_with_norms_over_all_its_parameters() -> None:
    grid = plots.table(trained())
    assert grid.columns == ["layer", "rms", "dead", "weight", "weight grad", "update / weight", ""]
    assert cells(grid) == [
        ["fc", "1", "", "5", "5.0e+00", "1.0e-01", ""],  # norms 3 and 4, 0.3 and 0.4 together
        ["act", "0.5", "95 %", "", "", "", "95 % dead"],
        ["head", "NaN", "", "1", "1.0e+00", "5.0e-01", "output not finite: 1 NaN; each step moves it by 50 % of its size"],
    ]
    assert [row[1].tone for row in grid.rows] == ["plain", "plain", "bad"]
    assert [row[-1].tone for row in grid.rows] == ["quiet", "bad", "bad"]
    assert grid.title == "run in memory · epoch 1 · medians over steps 2 to 3"
    assert grid.footer[-1] == "loss 0.25"


def test_the_table_of_fewer_steps_and_layers() -> None:
    grid = plots.table(trained(), include="fc|act", recent=1)
    assert [row[0].text for row in grid.rows] == ["fc", "act"]
    assert grid.title.endswith("step 3")
    with pytest.raises(ArgumentError, match="recent=0"):
        plots.table(trained(), recent=0)


def test_the_table_of_one_step() -> None:
    """That step alone; of a family that has no rows of it, the last before, which the footer names."""
    writer = memory_run()
    for step in (0, 10, 20):
        writer.append("moments", Layout(["fc:output"]), {"rms": [1.0 + step]}, step=step)
        if not step:
            writer.append("activation", Layout(["fc:output"]), {"call_death": [0.5]}, step=step)
    grid = plots.table(writer.run(), step=10)
    assert cells(grid) == [["fc", "11", "50 %", "50 % dead in a batch"]]
    assert grid.title.endswith("step 10")
    assert grid.footer == ["activation: of step 0, the last with any"]
    with pytest.raises(ArgumentError, match="step=11 was not logged; the nearest are 0, 10, 20"):
        plots.table(writer.run(), step=11)


def test_numbers_over_finite_elements_are_shown_with_the_share_of_the_others() -> None:
    """Half of the elements NaN: beside the number; all of them: there is no number, though the row holds a 0."""
    numbers = {"rms": [2.0, 0.0], "norm": [4.0, 0.0], "count": 8, "finite": [4, 0], "nan": [4, 8], "inf": 0}
    writer = memory_run()
    writer.append("moments", Layout(["a:output", "b:output"]), numbers, step=0)
    writer.append("moments", Layout(["a.weight:param", "b.weight:param"]), numbers, step=0)
    grid = plots.table(writer.run())
    assert cells(grid) == [
        ["a", "2 (50 % NaN)", "4 (50 % NaN)", "output, weights not finite: 8 NaN"],
        ["b", "NaN", "NaN", "output, weights not finite: 16 NaN"],
    ]


def test_nan_and_infinities_of_every_tensor_of_a_layer_are_named() -> None:
    """Also of its gradients, which is where they often arise."""
    writer = memory_run()
    numbers = {"rms": [2.0, np.nan], "norm": [4.0, np.nan], "count": 8, "finite": [6, 0], "nan": [1, 0], "inf": [1, 8]}
    writer.append("moments", Layout(["a:output", "a:grad_output"]), numbers, step=0)
    assert cells(plots.table(writer.run())) == [["a", "2 (13 % NaN, 13 % inf)", "inf", "output, gradient not finite: 1 NaN, 9 inf"]]


def test_the_layer_that_a_finding_names_is_marked_from_its_step_on() -> None:
    writer = memory_run()
    layout = Layout(["a:output", "b:output", "b.weight:param"], order=[0, 1, 1])
    for step in range(3):
        writer.append("moments", layout, {"rms": 1.0, "norm": 1.0, "count": 4, "nan": 0, "inf": 0}, step=step)
    writer.alert("b:output arose here", severity="bad", rule="nonfinite", site="b:output", step=1)
    writer.alert("b: grew", severity="warn", rule="spike", site="b.weight:param", step=2)
    writer.alert("nothing of the network", step=0)
    run = writer.run()
    for step, words, tone in ((0, "", "strong"), (1, "output arose here", "bad"), (2, "output arose here; grew", "bad")):
        first, second = plots.table(run, step=step).rows
        assert (first[0].tone, first[-1].text) == ("strong", "")
        assert (second[0].tone, second[-1].text) == (tone, words)
    assert plots.table(run).rows[1][-1].text == "output arose here; grew"


def test_a_finding_that_the_row_has_too_is_told_once_under_its_own_name() -> None:
    """Without the layer's name, but with no name cut in two; ``gradient`` alone is the one at the output, as in its column."""
    writer = memory_run()
    places = ["0:output", "0.weight:param", "0.weight:grad", "1:output", "1.weight:param", "1.weight:grad"]
    norms = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    writer.append("moments", Layout(places, order=[0, 0, 0, 1, 1, 1]), {"rms": 1.0, "norm": norms}, step=0)
    writer.append("activation", Layout(["1:output"] * 2, call=[0, 1], order=[1, 1]), {"call_death": [1.0, 0.0]}, step=0)
    assert [row[-1].text for row in plots.table(writer.run()).rows] == ["weight gradient is zero", "100 % dead"]
    writer.alert("0.weight: gradient is zero", severity="bad", rule="gradient_zero", site="0.weight:grad", step=0)
    writer.alert("0.weight, 0.bias and 1 more were not finite", severity="bad", rule="nonfinite", site="0.weight:param", step=0)
    writer.alert("1 (call 0): 100 % dead", severity="bad", rule="dead", site="1:output", step=0)
    assert [row[-1].text for row in plots.table(writer.run()).rows] == [
        "0.weight, 0.bias and 1 more were not finite; weight: gradient is zero",
        "(call 0): 100 % dead",
    ]


def test_a_layer_of_several_calls_shows_their_number_and_the_worst_death() -> None:
    """As a ReLU that is called twice, the first call dead."""
    writer = memory_run()
    writer.append("moments", Layout(["a:output"] * 2, call=[0, 1], order=[0, 0]), {"rms": [0.0, 2.0]}, step=0)
    writer.append("activation", Layout(["a:output"] * 2, call=[0, 1], order=[0, 0]), {"call_death": [1.0, 0.0]}, step=0)
    grid = plots.table(writer.run())
    assert grid.columns == ["layer", "calls", "rms", "dead", ""]
    assert cells(grid) == [["a", "2", "1", "100 %", "100 % dead"]]


def test_containers_stand_before_their_parts_and_parts_in_the_order_of_execution() -> None:
    """Modules return children first, and here the second block before the first."""
    names = ["blocks.1.fc", "blocks.1", "blocks.0.fc", "blocks.0", "head", "(root)"]
    writer = memory_run()
    writer.append("moments", Layout([f"{name}:output" for name in names]), {"rms": 1.0}, step=0)
    grid = plots.table(writer.run())
    assert [row[0].text for row in grid.rows] == ["(root)", "blocks.1", "blocks.1.fc", "blocks.0", "blocks.0.fc", "head"]


def test_a_weight_that_is_not_finite_does_not_stand_still() -> None:
    writer = memory_run()
    numbers = {"norm": [0.0, 1.0, 0.0], "count": 4, "finite": [0, 4, 0], "nan": [4, 0, 4], "inf": 0}
    writer.append("moments", Layout(["a.weight:param", "a.weight:grad", "a.weight:update"]), numbers, step=0)
    grid = plots.table(writer.run())
    assert cells(grid) == [["a", "NaN", "1.0e+00", "NaN", "weights not finite: 4 NaN"]]


def test_the_table_of_nothing_says_so() -> None:
    assert "nothing was recorded yet" in plots.table(memory_run().run()).to_text()


def test_where_most_outputs_are_nan_their_sizes_at_the_last_finite_step_stand_beside() -> None:
    """Until step 5 all are finite; at step 6 one is infinite, from step 7 on all are NaN. One step alone has no such column."""
    with memory_run() as writer:
        for step in range(30):
            rms = [np.nan, np.nan] if step > 6 else [1.0 + step, np.inf if step == 6 else 10.0 + step]
            writer.append("moments", Layout(["a:output", "b:output"]), {"rms": rms}, step=step)
    grid = plots.table(writer.run())
    assert grid.columns[:3] == ["layer", "rms", "last finite"]
    assert [row[:3] for row in cells(grid)] == [["a", "NaN", "6"], ["b", "NaN", "15"]]
    assert "last finite: rms at step 5, the last at which no output had a NaN or an infinity" in grid.footer
    assert "last finite" not in plots.table(writer.run(), step=20).columns
