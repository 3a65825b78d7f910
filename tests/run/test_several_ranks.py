"""A run that several ranks wrote is read without counting anything twice."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from sonde.inspector.sinks.base import memory
from sonde.rows import Layout
from sonde.run import check
from sonde.run.run import open_run
from sonde.run.schema import main_families
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
    assert [finding.rule for finding in check(run).findings] == ["nonfinite"]
    assert check(run, rank=0).findings == ()
    played = memory()
    run.send_to(played)
    assert played.run().sql("SELECT site, rms, scope, count(*) FROM moments GROUP BY ALL ORDER BY site").fetchall() == [
        ("fc:output", 1.0, "rank", 12),
        ("head:output", 2.0, "rank", 12),
    ]
    assert run.table("moments").num_rows == 36


def test_a_series_is_of_one_rank(tmp_path: Path) -> None:
    """The first that has a row which the condition allows, or the rank that is asked for."""
    own = Layout(["fc:output"], scope="rank")
    with start_run(tmp_path / "run") as first, join_run(tmp_path / "run", rank=1, attempt=1) as second:
        for step in range(3):
            first.append("moments", own, {"rms": 10.0 + step}, step=step)
        for step in range(4):
            second.append("moments", own, {"rms": 20.0 + step}, step=step)
    run = open_run(tmp_path / "run")
    assert [part.tolist() for part in run.series("fc", "rms")] == [[0, 1, 2, 3], [10.0, 11.0, 12.0, 23.0]]
    assert [part.tolist() for part in run.series("fc", "rms", rank=1)] == [[0, 1, 2, 3], [20.0, 21.0, 22.0, 23.0]]
    assert run.series("fc", "rms", where="rank = 1 OR step > 1")[1].tolist() == [20.0, 21.0, 12.0, 23.0]


def test_what_several_ranks_have_found_is_said_once(tmp_path: Path) -> None:
    """By the rank that saw it first; what is of no rule is the loop's own, each by its words."""
    with start_run(tmp_path / "run") as first, join_run(tmp_path / "run", rank=1, attempt=1) as second:
        for rank, writer in enumerate((first, second)):
            writer.alert(f"fc: {90 + rank} % dead", step=4 + rank, rule="dead", site="fc:output")
            writer.alert("a checkpoint was written", step=6)
        second.alert("head: 100 % dead", step=4, rule="dead", site="head:output")
    run = open_run(tmp_path / "run")
    assert [each.message for each in run.findings] == ["fc: 90 % dead", "a checkpoint was written"]
    assert [len(record.seen) for record in run.records().values()] == [2, 3]


def test_the_coverage_of_several_ranks_is_that_of_all(tmp_path: Path) -> None:
    """A site is missing where no rank has rows of it; each rank's notes stay."""

    def data(observed: int, missing: list[str], notes: dict[str, str]) -> dict[str, object]:
        return {
            "sites": observed + len(missing),
            "observed": observed,
            "missing": [{"site": site, "reason": "a branch not taken"} for site in missing],
            "notes": [{"site": site, "note": note} for site, note in notes.items()],
        }

    with start_run(tmp_path / "run") as first, join_run(tmp_path / "run", rank=1, attempt=1) as second:
        first.append("moments", Layout(["a:output", "lstm:output[0]", "lstm:output[1]"]), {"rms": 1.0}, step=0)
        second.append("moments", Layout(["b:output"]), {"rms": 1.0}, step=0)
        first.document("coverage", data(2, ["b:output", "c:output"], {"a:output": "half"}))
        second.document("coverage", data(1, ["c:output", "d:output"], {"a:output": "other half", "b:output": "alone"}))
    assert open_run(tmp_path / "run").coverage == {
        "sites": 5,
        "observed": 3,
        "missing": [{"site": site, "reason": "a branch not taken"} for site in ("c:output", "d:output")],
        "notes": [{"site": "a:output", "note": "half; other half"}, {"site": "b:output", "note": "alone"}],
    }


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
