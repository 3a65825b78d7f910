"""The table of a run."""

from __future__ import annotations

import pytest

from sonde.errors import ArgumentError
from sonde.run.run import Run
from sonde.run.schema import Layout
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
