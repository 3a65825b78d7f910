"""What does not add up is refused by the type checker, before anything runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

SNIPPET = """
import torch
from sonde.stats import Accumulator, Cosine, Moments, reduce

merged: Accumulator[Moments] = Accumulator(Moments()).merge(Accumulator(Moments()))
Accumulator(Cosine()).merge(Accumulator(Cosine()))  # refused
Accumulator(Moments()).merge(Accumulator(Cosine()))  # refused
reduce(Moments(), torch.zeros(1, 8))
reduce(Cosine(), torch.zeros(1, 6))  # refused
Accumulator(Cosine()).update(torch.ones(2), torch.ones(2)).compute()
"""


@pytest.mark.slow
def test_a_type_checker_refuses_rows_that_depend_on_order(tmp_path: Path) -> None:
    """Each use of a pair statistic as one that merges is an error, and nothing else is."""
    file = tmp_path / f"snippet_{os.getpid()}.py"  # mypy remembers what it said of a module of this name, with its old path
    file.write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(file)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    wrong = {int(line.split(":")[1]) for line in shown.stdout.splitlines() if line.startswith(str(file)) and ": error:" in line}
    refused = {number for number, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# refused")}
    assert wrong == refused, shown.stdout + shown.stderr
