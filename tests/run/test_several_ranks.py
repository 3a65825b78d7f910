"""A run that several ranks wrote is read without counting anything twice."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from sonde.inspector.sinks.base import memory
from sonde.inspector.sinks.replay import play
from sonde.run.recorded_findings import findings_in
from sonde.run.run import open_run
from sonde.run.schema import Layout, main_families
from sonde.run.store.open import join_run, start_run
from sonde.view.plots.layer_series import Known


def test_of_several_ranks_each_place_is_read_once(tmp_path: Path) -> None:
    """The rows of the first rank that has any: those of a stage of a pipeline, or a loss that the last rank alone knows."""
    shared, own = Layout(["fc:output"], scope="rank"), Layout(["head:output"], scope="rank")
    with start_run(tmp_path / "run") as first, join_run(tmp_path / "run", rank=1, attempt=1) as second:
        for step in range(12):
            first.append("moments", shared, {"rms": 1.0}, step=step)
            second.append("moments", shared, {"rms": 100.0}, step=step)
            second.append("moments", own, {"rms": 2.0}, step=step)
            first.scalar("lr", 0.1, step=step)
            second.scalar("lr", 0.2, step=step)
            second.scalar("loss", math.nan if step == 5 else 1.0, step=step)
    run = open_run(tmp_path / "run")
    assert run.ranks == (0, 1)
    assert run.scalar("lr")[1].tolist() == [0.1] * 12
    assert run.scalar("lr", rank=1)[1].tolist() == [0.2] * 12
    assert len(run.scalar("loss")[1]) == 12
    assert [finding.rule for finding in findings_in(run)] == ["nonfinite"]
    assert findings_in(run, rank=0) == []
    played = memory()
    play(run, played)
    assert played.run().sql("SELECT site, rms, scope, count(*) FROM moments GROUP BY ALL ORDER BY site").fetchall() == [
        ("fc:output", 1.0, "rank", 12),
        ("head:output", 2.0, "rank", 12),
    ]
    assert run.table("moments").num_rows == 36


def test_rows_of_each_rank_beside_merged_ones_are_read_only_by_their_name(tmp_path: Path) -> None:
    merged, own = Layout(["fc:output"], scope="data-parallel"), Layout(["fc:output"], scope="rank")
    with start_run(tmp_path / "run") as writer:
        for family, layout, dead in (("activation", merged, 0.5), ("activation_rank", own, 0.75), ("effective_rank", merged, 3.0)):
            name = "value" if family == "effective_rank" else "call_death"
            writer.append(family, layout, {name: np.array([dead])}, step=0)
    run = open_run(tmp_path / "run")
    assert run.series("fc", "call_death")[1].tolist() == [0.5]
    assert run.series("fc", "call_death", family="activation_rank")[1].tolist() == [0.75]
    assert run.heatmap("call_death").values.tolist() == [[0.5]]
    assert Known.of(run).family_with("call_death", "output") == "activation"
    assert main_families(run.families) == ["activation", "effective_rank"]
