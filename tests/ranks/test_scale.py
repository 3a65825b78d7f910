"""The benchmark of many ranks, with few."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ranks_at_scale.py"


@pytest.mark.slow
def test_counts_what_ranks_use_and_what_a_lost_one_costs() -> None:
    """Each shape is measured, with nothing that is 0 by mistake; rows of a step are those of one model until a rank is lost."""
    given = ["--ranks", "2,3", "--sites", "8", "--lost", "last"]
    made = subprocess.run([sys.executable, SCRIPT, *given], check=True, capture_output=True, text=True, timeout=240)
    assert "failed" not in made.stdout
    raw = json.loads(made.stdout.splitlines()[-1])
    for shape in ("ddp", "fsdp", "pipeline"):
        for ranks in (2, 3):
            found = raw[shape]["measured"][f"{ranks} x 8"]
            assert found["start: requests of rank 0"] > 0
            assert found["start: requests in all"] >= ranks
            assert found["round: bytes sent by a rank"] > 8 * 8
            assert found["round: messages of a rank"] > 0
            assert found["files: parts of the run"] > 0
    lost = raw["lost last"]["measured"]["3 x 8"]
    assert lost["lost: rows of a step before"] == 8
    assert lost["lost: rows of a step after"] >= 8
    assert lost["lost: seconds until all go on here"] > 0
