"""What has become dearer since the committed ratios is named, and fails nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import committed

ROOT = Path(__file__).parents[1]


def test_a_ratio_that_grew_by_more_than_the_margin_is_named() -> None:
    lines = committed.compared({"a": 1.3, "b": 1.2, "c": 0.7, "new": 2.0}, {"a": 1.0, "b": 1.0, "c": 1.0, "gone": 1.0}, {"a": 1.1})
    assert [line.split()[0] for line in lines[1:-1]] == ["a", "b", "c", "new", "gone"]
    assert lines[1].endswith("1.30 x the committed one")
    assert "1.10" in lines[1]
    assert lines[2].split() == ["b", "1.20", "1.00"]
    assert lines[3].endswith("cheaper, 0.70 x: commit it")
    assert lines[4].split() == ["new", "2.00"]
    assert lines[5].endswith("committed, and not measured any more")
    assert lines[-1].startswith("1 of 4 ratios are more than 1.25 x the committed ones")


def test_a_ratio_that_is_no_number_counts_as_dearer() -> None:
    assert committed.compared({"a": float("nan")}, {"a": 1.0}, {})[-1].startswith("1 of 1")


def test_what_is_written_is_read_again_with_machine_and_date(tmp_path: Path) -> None:
    committed.write(tmp_path / "quick.json", {"a": 1.23456})
    ratios, said = committed.read(tmp_path / "quick.json")
    assert ratios == {"a": 1.235}
    assert committed.machine() in said
    assert committed.read(tmp_path / "none.json") == ({}, "nothing is committed to compare with")


@pytest.mark.slow
def test_the_quick_benchmark_measures_each_committed_ratio() -> None:
    """And ends with 0, whatever it has measured."""
    ran = subprocess.run(
        [sys.executable, "benchmarks/quick.py", "--seconds", "0"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    names = json.loads((ROOT / "benchmarks" / "quick.json").read_text(encoding="utf-8"))["ratios"]
    table = ran.stdout.split("\n\n")[1].splitlines()
    assert [line.split("  ")[0] for line in table[1:-1]] == list(names)
