"""The pictures of a run: which there are, and saving them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.view.plots.drawn import PARAMETERS, PORTS, written

from sonde.errors import ArgumentError
from sonde.rows import Layout
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots


@pytest.mark.slow
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


def test_every_wish_of_a_lens_reaches_its_picture() -> None:
    """Read from run.json, of which nothing is believed: unknown names are left out."""
    lenses = [
        {"family": "scalars", "separate": False, "loss": {"line": ["median", 3], "range": ["nonsense"]}, "of_metrics": 5},
        {"family": "output_norm", "picture": "lines", "number": "norm", "lines": ["max"], "compare": True},
        {"family": "activation", "worst": False, "columns": ["max", ["x"], "mean"]},
        {"family": "parameter_norm", "picture": "lines", "number": "norm", "lines": 7, "compare": True, "compared": "min"},
    ]
    writer = memory_run({"lenses": lenses})
    writer.scalar("loss", 1.0, step=0)
    writer.append("output_norm", Layout(["a:output"]), {"norm": [1.0]}, step=0)
    writer.append("parameter_norm", Layout(["a.weight:param"]), {"norm": [1.0]}, step=0)
    writer.append("activation", Layout(["a:output"]), {"call_activation": [1.0], "call_death": [0.0]}, step=0)
    planned: dict[str, Any] = dict(plots.plan(writer.run()))
    assert planned["scalars"].keywords == {"separate": False, "loss": (("median",), ())}
    assert planned["output_norm-output"].keywords["aggregates"] == ("max",)
    assert planned["output_norm-output-shares"].keywords["aggregate"] == "max"
    assert planned["parameter_norm-param"].keywords["aggregates"] == ("mean",)
    assert planned["parameter_norm-param-shares"].keywords["aggregate"] == "min"
    activation = planned["activation-output"].keywords
    assert (activation["worst"], activation["active"], activation["dead"]) == (False, "max", None)
    for draw in planned.values():
        draw()
