"""``sonde.compare`` of two runs: which sides are runs, names that are mapped, and arguments that are for models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sonde
from sonde.errors import ArgumentError, StoreError
from sonde.rows import Layout
from sonde.run.store.open import start_run
from sonde.view.run_comparison import RunComparison


def record(folder: Path, seed: int, name: str, factor: float = 1.0) -> Path:
    random = np.random.default_rng(seed)
    places = Layout([f"{name}.0:output", f"{name}.1:output", f"{name}.1.weight:update"])
    with start_run(folder) as writer:
        for step in range(20):
            rms = np.exp(random.normal(0, 0.02, 3)) * [1.0, factor if step >= 10 else 1.0, 1.0]
            writer.append("moments", places, {"rms": rms, "count": [640.0] * 3}, step=step)
    return folder


def test_runs_are_compared_as_objects_and_as_paths(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", 0, "layers"), record(tmp_path / "b", 1, "layers", 8.0)
    for one, other in ((a, b), (str(a), sonde.open_run(b)), (sonde.open_run(a), sonde.open_run(b))):
        found: Any = sonde.compare(one, other)
        assert isinstance(found, RunComparison)
        assert (found.step, found.site) == (10, "layers.1:output")
    repeats = [record(tmp_path / f"r{seed}", seed, "layers") for seed in (2, 3)]
    assert sonde.compare(sonde.open_run(a), sonde.open_run(b), baseline=repeats).step == 10


def test_names_are_mapped_by_patterns(tmp_path: Path) -> None:
    a, b = sonde.open_run(record(tmp_path / "a", 0, "layers")), sonde.open_run(record(tmp_path / "b", 1, "blocks", 8.0))
    with pytest.raises(ArgumentError, match="no place in common"):
        sonde.compare(a, b)
    found = sonde.compare(a, b, match={"layers.*": "blocks.*"})
    assert (found.step, found.site) == (10, "layers.1:output")
    assert found.parts.places == 3
    with pytest.raises(ArgumentError, match="fits no module"):
        sonde.compare(a, b, match={"layer.*": "blocks.*"})


def test_arguments_for_models_and_other_sides_are_refused(tmp_path: Path) -> None:
    run: Any = sonde.open_run(record(tmp_path / "a", 0, "layers"))
    for given in ({"batch": 1}, {"loss_fn": torch.sum}, {"optimizer": 1}, {"noise": 0.1}, {"backward": False}):
        with pytest.raises(ArgumentError, match=f"{next(iter(given))}= is for models"):
            sonde.compare(run, run, **given)
    for other in (torch.nn.Linear(1, 1), str(tmp_path / "none")):
        with pytest.raises(ArgumentError, match="is no run, and the other side is one"):
            sonde.compare(run, other)
    with pytest.raises(ArgumentError, match="baseline= is for two runs"):
        sonde.compare(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), torch.ones(1, 1), baseline=[run])  # type: ignore[call-overload]
    (tmp_path / "a" / "run.json").write_text("{}")
    with pytest.raises(StoreError, match="is not a run"):
        sonde.compare(str(tmp_path / "a"), run)
