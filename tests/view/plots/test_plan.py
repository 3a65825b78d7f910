"""The pictures of a run: which there are, and saving them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.view.plots.drawn import PARAMETERS, PORTS, written

from sonde.errors import ArgumentError
from sonde.run.schema import Layout
from sonde.run.store.memory_writer import memory_run
from sonde.view import plots


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
